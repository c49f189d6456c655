//! `tine pool`: machines of a template that wait, ready, for somebody to take them.

mod claim;
mod clear;
mod keeper;
mod manage;
mod place;
mod supply;
#[cfg(test)]
mod tests;
mod watch;

pub use self::claim::{Job, ready, run};

use super::failure::Failure;

/// Keep machines of a template ready, and hand them out
#[derive(clap::Args)]
#[command(after_help = "\
Each machine is restored from the template, with an identity of its own, its agent has answered, and it
waits. It is handed out once, and another one takes its place. Nothing else needs the pool's process:
if it is killed, the machines that wait can still be claimed, and the next `tine pool start` goes on
with them.

Examples:
  tine pool start -d -n 4 web
  id=$(tine pool claim web)
  tine run --template web --pool -- git status
  tine pool stop web")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Keep machines ready until told to end
    Start(keeper::Args),
    /// Take a machine
    Claim(claim::Args),
    /// List pools
    Ls(manage::Ls),
    /// End a pool and the machines that wait
    Stop(manage::Stop),
}

/// Does what the words say.
pub async fn pool(args: Args) -> Result<u8, Failure> {
    match args.command {
        Command::Start(args) => keeper::start(args).await,
        Command::Claim(args) => claim::claim(args).await,
        Command::Ls(args) => manage::ls(args).await,
        Command::Stop(args) => manage::stop(args).await,
    }
}
