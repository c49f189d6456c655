//! `tine completion`: what a shell needs to complete command lines.

use clap::CommandFactory;

use super::failure::Failure;
use super::{Cli, output};

/// Print a script that makes a shell complete tine's command lines
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tine completion bash > /etc/bash_completion.d/tine
  tine completion zsh > ~/.zfunc/_tine
  tine completion fish > ~/.config/fish/completions/tine.fish")]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: clap_complete::Shell,
}

/// Prints the script.
pub fn completion(args: &Args) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tine", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
