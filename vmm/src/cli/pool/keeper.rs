//! `tine pool start`: the process that keeps machines ready.
//!
//! It holds the pool's lock and answers at its socket for as long as it lives; what it does all the time
//! is `supply.rs`.

use std::time::Duration;

use rustix::fs::inotify::WatchFlags;
use tokio::net::UnixListener;
use tokio::task::LocalSet;

use super::claim::keeper_of;
use super::place::{Keeping, Pool, Record, Stage};
use super::supply::{self, Supply};
use super::watch::Watch;
use crate::cli::failure::Failure;
use crate::cli::session::Signals;
use crate::cli::template::{Named, Store, named};
use crate::cli::{background, jail, output};

/// How long somebody who looks at a pool without a process may have its lock.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between looks at that lock.
const LOOK: Duration = Duration::from_millis(5);

/// `tine pool start`.
#[derive(clap::Args)]
#[command(after_help = "\
Runs until told to end (SIGTERM, ctrl-C or `tine pool stop`), and then ends the machines that wait. With
-d it does so in the background. Without a VERSION the machines are always of the active one: when
another one becomes that, they are replaced.

Example:
  tine pool start -d -n 4 web")]
pub struct Args {
    /// Leave it running in the background
    #[arg(short, long)]
    detach: bool,
    /// Number of machines that are ready
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    #[command(flatten)]
    jail: jail::Choice,
    /// This is the process in the background
    #[arg(long, hide = true)]
    background: bool,
    /// The template
    #[arg(value_name = "NAME[@VERSION]", value_parser = named)]
    template: Named,
}

/// Keeps the pool; the result is the status to exit with.
pub async fn start(args: Args) -> Result<u8, Failure> {
    let store = Store::of_user()?;
    store.version(&args.template)?;
    let pool = Pool::of(&args.template.name)?;
    refuse_second(&pool).await?;
    pool.make()?;
    if args.background {
        background::enter()?;
    }
    if args.detach {
        let count = args.count.to_string();
        let template = args.template.to_string();
        // Said here, where somebody reads it.
        args.jail.files()?;
        let mut words = vec!["pool", "start", "--background", "-n", &count, &template];
        let jail = args.jail.words();
        words.extend(jail.iter().map(String::as_str));
        let said = background::start(&words, &pool.log())?;
        output::print(&said)?;
        return Ok(0);
    }
    let jail = args.jail.files()?;
    let signals = Signals::watch()?;
    let keeping = keep(&pool).await?;
    // What an earlier one left there would say that nobody is there.
    let socket = pool.socket()?;
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)
        .map_err(|err| Failure::new(format!("cannot listen at {}: {err}", socket.display())))?;
    let record = Record {
        template: args.template.to_string(),
        count: args.count,
    };
    pool.set_record(&keeping, &record)?;
    let watch = Watch::new()?;
    // A closed file that had been opened to be written: its claimer has gone.
    watch.add(&pool.stage(Stage::Claimed), WatchFlags::CLOSE_WRITE)?;
    let gone = WatchFlags::MOVED_FROM | WatchFlags::DELETE;
    watch.add(&pool.stage(Stage::Ready), gone)?;
    pool.clear_making(&keeping).await?;
    output::print(&format!("{}\n", pool.name))?;
    let supply = Supply::new(store, pool.clone(), args.template, jail);
    let local = LocalSet::new();
    let result = local.run_until(supply::work(&supply, args.count, &watch, listener, signals));
    let result = result.await;
    // What is on its way goes with its task.
    drop(local);
    pool.clear_making(&keeping).await?;
    pool.clear_ready(&keeping).await?;
    pool.clear_claimed().await?;
    pool.remove(&keeping);
    result.map(|()| 0)
}

async fn refuse_second(pool: &Pool) -> Result<(), Failure> {
    match keeper_of(pool).await {
        None => Ok(()),
        Some(_) => Err(Failure::new(format!(
            "there is a pool of {0} already: `tine pool stop {0}` ends it",
            pool.name
        ))),
    }
}

/// Takes the pool's lock, which somebody who looks at it may have for a moment.
pub async fn keep(pool: &Pool) -> Result<Keeping, Failure> {
    let wait = async {
        loop {
            pool.make()?;
            if let Some(keeping) = pool.keep() {
                return Ok(keeping);
            }
            refuse_second(pool).await?;
            tokio::time::sleep(LOOK).await;
        }
    };
    let late = |_| Failure::new(format!("the pool of {} is in use", pool.name));
    tokio::time::timeout(PATIENCE, wait).await.map_err(late)?
}
