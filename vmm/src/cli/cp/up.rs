//! From here to a machine.

use std::io;
use std::path::{Path, PathBuf};

use tine::client::{Bytes, Error, Files};
use tine_guest_agent::files::FileKind;
use tokio::sync::mpsc;

use super::pack::{PackError, pack};
use super::pipe::to_connection;
use super::side::{GuestPath, Side, is_content, is_directory_only};
use super::tell_left_out;
use crate::cli::failure::Failure;
use crate::cli::session::{Signals, read_stdin};

/// Copies.
pub async fn copy(
    files: &Files,
    from: &Side,
    to: &GuestPath,
    archive: bool,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let work = async {
        match from {
            Side::Here(path) => tree(files, path, to, archive).await,
            _ => stream(files, to).await,
        }
    };
    tokio::select! {
        done = work => done,
        number = signals.ending() => Err(Failure::signal(number)),
    }
}

/// An archive from standard input, with the owners that it says.
async fn stream(files: &Files, to: &GuestPath) -> Result<(), Failure> {
    let mut typed = read_stdin();
    let (sender, pieces) = mpsc::channel::<io::Result<Bytes>>(1);
    let feed = async move {
        while let Some(piece) = typed.recv().await {
            if sender.send(Ok(piece.into())).await.is_err() {
                break;
            }
        }
    };
    let upload = files.upload(&to.path, None, true, pieces);
    let (uploaded, ()) = tokio::join!(upload, feed);
    uploaded.map(drop).map_err(|err| Failure::of(&to.id, &err))
}

/// A file or directory of this host.
pub async fn tree(
    files: &Files,
    from: &Path,
    to: &GuestPath,
    archive: bool,
) -> Result<(), Failure> {
    let cannot = |path: &Path, err: &io::Error| {
        Failure::new(format!("cannot copy {}: {err}", path.display()))
    };
    let meta = std::fs::metadata(from).map_err(|err| cannot(from, &err))?;
    if !meta.is_dir() && !meta.is_file() {
        let from = from.display();
        return Err(Failure::new(format!(
            "cannot copy {from}: it is neither a file nor a directory"
        )));
    }
    let target = target(files, from, meta.is_dir(), to).await?;
    let owner = (!archive).then_some((0, 0));
    let (mut writer, pieces) = to_connection();
    let (source, name) = (from.to_owned(), target.name);
    let packing =
        tokio::task::spawn_blocking(move || match pack(&source, name.as_deref(), &mut writer) {
            Ok(left_out) => writer
                .finish()
                .map(|()| left_out)
                .map_err(|source| PackError { path: None, source }),
            Err(err) => {
                writer.fail(io::Error::from(err.source.kind()));
                Err(err)
            }
        });
    let uploaded = files.upload(&target.directory, owner, false, pieces).await;
    match (packing.await, uploaded) {
        (Ok(Ok(left_out)), Ok(_)) => {
            tell_left_out(left_out);
            Ok(())
        }
        (
            Ok(Err(PackError {
                path: Some(path),
                source,
            })),
            _,
        ) => Err(cannot(&path, &source)),
        (_, Err(err)) => Err(Failure::of(&to.id, &err)),
        (_, Ok(_)) => Err(Failure::new(format!("the copy to {to} is not complete"))),
    }
}

/// Where an archive is unpacked.
struct Target {
    directory: PathBuf,
    /// The name that the source gets there; its content gets there without one.
    name: Option<PathBuf>,
}

async fn target(
    files: &Files,
    from: &Path,
    is_dir: bool,
    to: &GuestPath,
) -> Result<Target, Failure> {
    let there = match files.stat(&to.path, true).await {
        Ok(info) => Some(info.kind == FileKind::Directory),
        Err(Error::Refused { status: 404, .. }) => None,
        Err(err) => return Err(Failure::of(&to.id, &err)),
    };
    let named = || -> Result<Target, Failure> {
        let (directory, name) = (to.path.parent(), to.path.file_name());
        match (directory, name) {
            (Some(directory), Some(name)) => Ok(Target {
                directory: directory.to_owned(),
                name: Some(name.into()),
            }),
            _ => Err(Failure::new(format!("cannot copy to {to}: it has no name"))),
        }
    };
    match there {
        Some(true) if is_dir && is_content(from) => Ok(Target {
            directory: to.path.clone(),
            name: None,
        }),
        Some(true) => Ok(Target {
            directory: to.path.clone(),
            name: Some(name_of(from)?),
        }),
        Some(false) if is_dir => Err(Failure::new(format!(
            "cannot copy the directory {} to {to}: that is a file",
            from.display()
        ))),
        Some(false) => named(),
        None if !is_dir && is_directory_only(&to.path) => Err(Failure::new(format!(
            "cannot copy to {to}: there is no such directory"
        ))),
        None => named(),
    }
}

/// The last name of a path here; what ends in dots is looked at.
fn name_of(path: &Path) -> Result<PathBuf, Failure> {
    if let Some(name) = path.file_name() {
        return Ok(name.into());
    }
    let real = path.canonicalize();
    let real = real.map_err(|err| Failure::new(format!("{}: {err}", path.display())))?;
    match real.file_name() {
        Some(name) => Ok(name.into()),
        None => Err(Failure::usage("the root directory has no name: write `/.`")),
    }
}
