//! Looking at pools, and their end.

use std::time::Duration;

use serde_json::json;

use super::claim::keeper_of;
use super::keeper;
use super::place::{Pool, Stage};
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::template::name;

/// How long a pool's process may take to end its machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// `tine pool ls`.
#[derive(clap::Args)]
pub struct Ls {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// `tine pool stop`.
#[derive(clap::Args)]
#[command(after_help = "\
The machines that wait are ended; those that were claimed go on.")]
pub struct Stop {
    /// The template
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
}

/// Lists the pools.
pub async fn ls(args: Ls) -> Result<u8, Failure> {
    let head = ["TEMPLATE", "READY", "WANTED", "PID"];
    let (mut list, mut rows) = (Vec::new(), vec![head.map(str::to_owned).to_vec()]);
    for pool in Pool::all()? {
        pool.clear_claimed().await?;
        let keeper = keeper_of(&pool).await;
        if keeper.is_none()
            && let Some(keeping) = pool.keep()
        {
            // Killed: what it was about to do is finished here. What is ready can still be claimed.
            pool.clear_making(&keeping).await?;
            if pool.record()?.is_none() {
                // It was stopped while somebody still had a machine.
                pool.remove(&keeping);
            }
        }
        let Some(record) = pool.record()? else {
            continue;
        };
        let pid = keeper.and_then(|process| process.pid());
        let ready = pool.markers(Stage::Ready)?;
        rows.push(vec![
            record.template.clone(),
            ready.len().to_string(),
            record.count.to_string(),
            pid.map_or("-".to_owned(), |pid| pid.to_string()),
        ]);
        let ids: Vec<String> = ready.into_iter().map(|marker| marker.id).collect();
        list.push(json!({
            "name": pool.name,
            "template": record.template,
            "ready": ids,
            "wanted": record.count,
            "pid": pid,
        }));
    }
    output::print(&match args.json {
        true => output::pretty(&list),
        false => output::table(&rows),
    })?;
    Ok(0)
}

/// Ends the pool's process and the machines that wait.
pub async fn stop(args: Stop) -> Result<u8, Failure> {
    let pool = Pool::of(&args.name)?;
    if !pool.dir.is_dir() {
        return Err(Failure::new(format!("there is no pool of {}", args.name)));
    }
    if let Some(process) = keeper_of(&pool).await {
        process.ask_to_end();
        if tokio::time::timeout(PATIENCE, process.ended())
            .await
            .is_err()
        {
            return Err(Failure::new(format!(
                "the pool of {} does not end: its process can be killed, and this repeated",
                args.name
            )));
        }
    }
    pool.clear_claimed().await?;
    if pool.dir.is_dir() {
        // It was killed, a moment ago perhaps, and all is still there.
        let keeping = keeper::keep(&pool).await?;
        pool.clear_making(&keeping).await?;
        pool.clear_ready(&keeping).await?;
        pool.remove(&keeping);
    }
    output::print(&format!("{}\n", args.name))?;
    Ok(0)
}
