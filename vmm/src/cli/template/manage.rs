//! What can be done with templates that are there.

use serde_json::json;

use super::record::{self, Named};
use super::store::{SNAPSHOT, Store};
use crate::cli::failure::Failure;
use crate::cli::{output, ps};

/// `tine template ls`.
#[derive(clap::Args)]
pub struct Ls {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// `tine template activate`.
#[derive(clap::Args)]
pub struct Activate {
    /// The template
    #[arg(value_name = "NAME", value_parser = record::name)]
    name: String,
    /// The number of the version
    #[arg(value_name = "VERSION", value_parser = record::version)]
    version: u32,
}

/// `tine template rollback`.
#[derive(clap::Args)]
pub struct Rollback {
    /// The template
    #[arg(value_name = "NAME", value_parser = record::name)]
    name: String,
}

/// `tine template rm`.
#[derive(clap::Args)]
#[command(after_help = "\
Machines that run go on. One that was stopped and is to be started again (`tine start`) needs the
version that it was made of, as long as it has disks.")]
pub struct Rm {
    /// Templates, with all their versions, or versions that are not active
    #[arg(value_name = "NAME[@VERSION]", required = true, value_parser = record::named)]
    named: Vec<Named>,
}

/// Lists all versions.
pub fn ls(args: &Ls) -> Result<u8, Failure> {
    let store = Store::of_user()?;
    if store.root.is_dir() {
        store.clear(&store.lock()?);
    }
    let (mut list, head) = (
        Vec::new(),
        ["TEMPLATE", "ACTIVE", "CREATED", "MEMORY", "VCPUS", "FROM"],
    );
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for name in store.names()? {
        let template = store.template(&name)?;
        for version in &template.versions {
            // Removed meanwhile, or damaged: it is still to be seen what there is.
            let record = store.record(&name, *version).ok();
            let active = template.active.version == Some(*version);
            let text = |text: Option<String>| text.unwrap_or_else(|| "?".to_owned());
            rows.push(vec![
                format!("{name}@{version}"),
                if active { "*" } else { "" }.to_owned(),
                text(record.as_ref().map(|record| ps::seconds(&record.created))),
                text(
                    record
                        .as_ref()
                        .map(|record| format!("{} MiB", record.memory >> 20)),
                ),
                text(record.as_ref().map(|record| record.vcpus.to_string())),
                record
                    .as_ref()
                    .and_then(|record| record.from.clone())
                    .unwrap_or_default(),
            ]);
            list.push(json!({
                "name": name,
                "version": version,
                "active": active,
                "snapshot": store.version_dir(&name, *version).join(SNAPSHOT),
                "record": record,
            }));
        }
    }
    output::print(&match args.json {
        true => output::pretty(&list),
        false => output::table(&rows),
    })?;
    Ok(0)
}

/// Makes a version the active one.
pub fn activate(args: &Activate) -> Result<u8, Failure> {
    Store::of_user()?.activate(&args.name, args.version)?;
    output::print(&format!("{}@{}\n", args.name, args.version))?;
    Ok(0)
}

/// Makes the version active that was so before.
pub fn rollback(args: &Rollback) -> Result<u8, Failure> {
    let version = Store::of_user()?.roll_back(&args.name)?;
    output::print(&format!("{}@{version}\n", args.name))?;
    Ok(0)
}

/// Removes each, whether or not another one could be.
pub fn rm(args: &Rm) -> Result<u8, Failure> {
    let store = Store::of_user()?;
    let mut failures = Vec::new();
    for named in &args.named {
        match store.remove(named) {
            Ok(()) => output::print(&format!("{named}\n"))?,
            Err(failure) => failures.push(failure.words),
        }
    }
    match failures.is_empty() {
        true => Ok(0),
        false => Err(Failure::new(failures.join("\ntine: "))),
    }
}
