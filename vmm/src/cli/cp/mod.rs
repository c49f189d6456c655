//! `tine cp`: files and directories between the host and a machine, as tar streams.
//!
//! What goes where is decided as `cp -r` does it. The guest is hostile: what it sends is unpacked
//! by [`unpack`], which makes nothing outside the place that was named.

mod down;
mod pack;
mod pipe;
mod side;
mod unpack;
mod up;

use std::ffi::OsString;

use tine::client::Files;

pub use self::side::GuestPath;
use self::side::Side;
pub use self::up::tree as up;
use super::failure::Failure;
use super::rundir;
use super::session::Signals;

/// Copy files and directories to a machine or from it
#[derive(clap::Args)]
#[command(after_help = "\
One of the two is ID:PATH, a path in the machine; the other is a path here, or `-` for a tar archive
on standard input or output. A path here that has a colon is written with its directory: `./a:b`.

As with `cp -r`, a source goes into a directory that exists, and else gets the destination's name.
`DIR/.` stands for what is in a directory. Links are copied as links, but a source that is itself a
link is followed. Modes and times are kept. Files here belong to you, and have no set-id bits;
files in the machine belong to its root user. With -a owners and all mode bits are kept. Devices,
pipes and sockets are left out.

Examples:
  tine cp job.py web:/work/
  tine cp web:/var/log ./logs
  tine cp -a web:/etc/. backup
  git archive HEAD | tine cp - web:/src
  tine cp web:/src - | tar t")]
pub struct Args {
    /// Keep owners (as numbers) and all mode bits
    #[arg(short, long)]
    archive: bool,
    /// What to copy: ID:PATH, a path here, or -
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// Where to: a path here, ID:PATH, or -
    #[arg(value_name = "DESTINATION")]
    destination: OsString,
}

/// Copies.
pub async fn cp(args: Args) -> Result<u8, Failure> {
    let source = Side::parse(&args.source);
    let destination = Side::parse(&args.destination);
    let mut signals = Signals::watch()?;
    match (source, destination) {
        (Side::Guest(guest), Side::Guest(other)) => Err(Failure::usage(format!(
            "one side has to be here: `tine cp {guest} - | tine cp - {other}` copies from one \
             machine to another"
        ))),
        (Side::Guest(guest), here) => {
            let files = files(&guest.id)?;
            down::copy(&files, &guest, &here, args.archive, &mut signals).await
        }
        (here, Side::Guest(guest)) => {
            let files = files(&guest.id)?;
            up::copy(&files, &here, &guest, args.archive, &mut signals).await
        }
        _ => Err(Failure::usage(
            "neither side is in a machine: write that one as ID:PATH",
        )),
    }
    .map(|()| 0)
}

fn files(id: &str) -> Result<Files, Failure> {
    Ok(rundir::machine(id)?.files())
}

/// Says how many special files were left out.
fn tell_left_out(count: u64) {
    match count {
        0 => {}
        1 => eprintln!("tine: a device, pipe or socket was left out"),
        count => eprintln!("tine: {count} devices, pipes and sockets were left out"),
    }
}
