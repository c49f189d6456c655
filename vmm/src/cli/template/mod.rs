//! `tine template`: prepared machines that are kept by name, to start any number from.

mod build;
mod building;
mod manage;
mod plan;
mod prepare;
mod recipe;
mod record;
pub mod store;
#[cfg(test)]
mod tests;
mod version;
mod working_set;

pub use self::record::{Named, name, named};
pub use self::store::Store;
pub use self::version::Opened;

use super::failure::Failure;

/// Prepare machines once, and keep them by name
#[derive(clap::Args)]
#[command(after_help = "\
A template has versions, 1, 2, .., which are never changed. One of them is active: `tine run
--template NAME` starts from it, `tine run --template NAME@VERSION` from any other.

Examples:
  tine template build web --from debian.ext4 --file src:/work/src --run 'make -C /work/src'
  tine run --template web -- /work/src/test
  tine template rollback web
  tine template rm web@2")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Prepare a machine, and make it the next version of a template
    Build(Box<build::Args>),
    /// List templates with their versions
    Ls(manage::Ls),
    /// Have later runs use a version
    Activate(manage::Activate),
    /// Have later runs use the version that was active before
    Rollback(manage::Rollback),
    /// Remove versions that are not active, or templates
    Rm(manage::Rm),
}

/// Does what the words say.
pub async fn template(args: Args) -> Result<u8, Failure> {
    match args.command {
        Command::Build(args) => build::build(*args).await,
        Command::Ls(args) => manage::ls(&args),
        Command::Activate(args) => manage::activate(&args),
        Command::Rollback(args) => manage::rollback(&args),
        Command::Rm(args) => manage::rm(&args),
    }
}
