//! `tine run --template`: a machine that goes on where a template's machine had been prepared to.

use super::Args;
use crate::cli::failure::Failure;
use crate::cli::pool::{self, Job};
use crate::cli::template::{Named, Store};
use crate::cli::timing::Timing;
use crate::cli::{in_runtime, restore};

/// Makes the machine, or machines; the result is the status to exit with.
pub fn run(mut args: Args, named: &Named) -> Result<u8, Failure> {
    if args.pool
        && let Some(done) = pooled(&mut args, named)
    {
        return done;
    }
    let opened = Store::of_user()?.open(named)?;
    restore::restore(restore::Args {
        detach: args.detach,
        count: args.count,
        name: args.name,
        no_wait: args.no_wait,
        json: args.json,
        hostname: None,
        jail: args.jail,
        files: args.files,
        console: args.console,
        timeout: args.timeout,
        place: args.place,
        interactive: args.interactive,
        timing: args.timing,
        working_set: None,
        record_working_set: None,
        dir: opened.snapshot.clone(),
        command: args.command,
        template: Some(opened),
    })
}

/// Runs the command in a machine that waits for that; `None` where none does.
fn pooled(args: &mut Args, named: &Named) -> Option<Result<u8, Failure>> {
    let mut timing = Timing::start(args.timing);
    let work = async {
        let Some(claimed) = pool::ready(named).await? else {
            return Ok(None);
        };
        timing.phase("claimed");
        let job = Job {
            command: std::mem::take(&mut args.command),
            place: std::mem::take(&mut args.place),
            files: std::mem::take(&mut args.files),
            interactive: args.interactive,
            timeout: args.timeout,
        };
        pool::run(claimed, job).await.map(Some)
    };
    in_runtime(work).transpose()
}
