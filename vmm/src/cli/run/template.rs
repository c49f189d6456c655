//! `tine run --template`: a machine that goes on where a template's machine had been prepared to.

use super::Args;
use crate::cli::failure::Failure;
use crate::cli::restore;
use crate::cli::template::{Named, Store};

/// Makes the machine, or machines; the result is the status to exit with.
pub fn run(args: Args, named: &Named) -> Result<u8, Failure> {
    let opened = Store::of_user()?.open(named)?;
    restore::restore(restore::Args {
        detach: args.detach,
        count: args.count,
        name: args.name,
        no_wait: args.no_wait,
        json: args.json,
        hostname: None,
        files: args.files,
        console: args.console,
        timeout: args.timeout,
        place: args.place,
        interactive: args.interactive,
        timing: args.timing,
        dir: opened.snapshot.clone(),
        command: args.command,
        template: Some(opened),
    })
}
