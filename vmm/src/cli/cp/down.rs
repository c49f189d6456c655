//! From a machine to here.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use tine::client::{Content, Files};
use tine_guest_agent::files::{FileInfo, FileKind};

use super::pipe::{from_connection, hand_over};
use super::side::{GuestPath, Side, is_content, is_directory_only};
use super::tell_left_out;
use super::unpack::{Into, Unpack};
use crate::cli::failure::Failure;
use crate::cli::output::Sink;
use crate::cli::session::Signals;

/// Most links that are followed to a source.
const MAX_LINKS: usize = 40;

/// Copies.
pub async fn copy(
    files: &Files,
    from: &GuestPath,
    to: &Side,
    archive: bool,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let failed = |err| Failure::of(&from.id, &err);
    let Side::Here(to) = to else {
        if io::stdout().is_terminal() {
            return Err(Failure::usage(
                "an archive is not printed to a terminal: pass it on, as in `| tar t`",
            ));
        }
        let content = files.download(&from.path).await.map_err(failed)?;
        return tokio::select! {
            done = print(content, &from.id) => done,
            number = signals.ending() => Err(Failure::signal(number)),
        };
    };
    let (source, info) = followed(files, from).await?;
    let target = target(from, &info, to)?;
    let content = files.download(&source).await.map_err(failed)?;
    let (sender, reader) = from_connection();
    let unpack = Unpack::new(target, archive)?;
    let unpacking = tokio::task::spawn_blocking(move || unpack.run(reader));
    let handed = tokio::select! {
        handed = hand_over(content, sender) => Some(handed),
        number = signals.ending() => {
            // The thread sees the end, and takes away what it has half written.
            let _ = unpacking.await;
            return Err(Failure::signal(number));
        }
    };
    match (unpacking.await, handed) {
        // The connection's end is why the archive is broken.
        (_, Some(Err(err))) => Err(failed(err)),
        (Ok(Ok(left_out)), _) => {
            tell_left_out(left_out);
            Ok(())
        }
        (Ok(Err(err)), _) => Err(Failure::new(format!("cannot copy {from}: {err}"))),
        (Err(_), _) => Err(Failure::new(format!("cannot copy {from}: Tine has a bug"))),
    }
}

async fn print(mut content: Content, id: &str) -> Result<(), Failure> {
    let mut out = Sink::stdout();
    while let Some(piece) = content.next().await.map_err(|err| Failure::of(id, &err))? {
        out.write_all(&piece)
            .await
            .map_err(|err| match err.kind() {
                io::ErrorKind::BrokenPipe => Failure::signal(libc::SIGPIPE),
                _ => Failure::new(format!("cannot write the archive: {err}")),
            })?;
    }
    Ok(())
}

/// What a source is, behind the links that it may be.
async fn followed(files: &Files, from: &GuestPath) -> Result<(PathBuf, FileInfo), Failure> {
    use std::os::unix::ffi::OsStrExt;
    let mut path = from.path.clone();
    for _ in 0..MAX_LINKS {
        let info = files.stat(&path, false).await;
        let info = info.map_err(|err| Failure::of(&from.id, &err))?;
        match (info.kind, &info.target) {
            (FileKind::File | FileKind::Directory, _) => return Ok((path, info)),
            (FileKind::Symlink, Some(target)) => {
                let target = std::ffi::OsStr::from_bytes(&target.0);
                path = path.parent().unwrap_or(Path::new("/")).join(target);
            }
            _ => {
                return Err(Failure::new(format!(
                    "cannot copy {from}: it is neither a file nor a directory"
                )));
            }
        }
    }
    Err(Failure::new(format!("cannot copy {from}: too many links")))
}

/// Where the source goes: into a directory that exists, or by the destination's name.
fn target(from: &GuestPath, info: &FileInfo, to: &Path) -> Result<Into, Failure> {
    let is_dir = info.kind == FileKind::Directory;
    let refuse = |why: &str| {
        let to = to.display();
        Err(Failure::new(format!("cannot copy {from} to {to}: {why}")))
    };
    let path = match std::fs::metadata(to) {
        Ok(meta) if meta.is_dir() => match from.path.file_name() {
            Some(name) if !(is_dir && is_content(&from.path)) => to.join(name),
            _ => to.to_owned(),
        },
        Ok(_) if is_dir => return refuse("that is no directory"),
        Ok(meta) if !meta.is_file() => return refuse("that is neither a file nor a directory"),
        Ok(_) => to.to_owned(),
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            if !is_dir && is_directory_only(to) {
                return refuse("there is no such directory");
            }
            to.to_owned()
        }
        Err(err) => return refuse(&err.to_string()),
    };
    Ok(match is_dir {
        true => Into::Directory(path),
        false => Into::File(path),
    })
}
