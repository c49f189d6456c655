//! A tar stream into a directory, as it arrives. Nothing is made outside the directory, whatever the archive says.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat,
    fchmod, fchown, futimens, linkat, makedev, mkdirat, mknodat, openat, openat2, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use tine_guest_agent::files::Unpacked;

use super::Sink;
use super::params::Params;
use super::tar_format::{BLOCK, Head, MAX_META, padding, records, text};
use super::tar_times::OpenDirs;
use super::tree::failed;
use crate::agent::fault::Fault;

/// An archive being unpacked.
pub struct Unpack {
    base: OwnedFd,
    base_path: PathBuf,
    owner: (Option<u32>, Option<u32>),
    state: State,
    /// What pax or GNU entries say about the next one.
    next: HashMap<Vec<u8>, Vec<u8>>,
    dirs: OpenDirs,
    done: Unpacked,
}

enum State {
    /// Bytes of a head's block so far.
    Head(Vec<u8>),
    /// Content for a file, or for nothing where there is none.
    Content {
        file: Option<File>,
        head: Box<Head>,
        left: u64,
        padding: usize,
    },
    /// Content that describes the next entry.
    Meta {
        kind: u8,
        bytes: Vec<u8>,
        left: u64,
        padding: usize,
    },
    /// The end was there; what follows is nothing.
    Ended,
}

impl Unpack {
    pub fn new(params: &Params) -> Result<Self, Fault> {
        let path = &params.path;
        if params.parents {
            std::fs::create_dir_all(path).map_err(|error| failed(&error, path))?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base =
            openat(CWD, path, flags, Mode::empty()).map_err(|errno| failed(&errno.into(), path))?;
        Ok(Self {
            base,
            base_path: path.clone(),
            owner: (params.uid, params.gid),
            state: State::Head(Vec::new()),
            next: HashMap::new(),
            dirs: OpenDirs::default(),
            done: Unpacked::default(),
        })
    }

    /// A head is complete: makes what it says, and tells what is to be done with the content.
    fn begin(&mut self, block: &[u8; BLOCK]) -> Result<State, Fault> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(State::Ended);
        }
        let broken = || Fault::bad_request("not a tar archive");
        let mut head = Head::read(block).ok_or_else(broken)?;
        if let b'x' | b'g' | b'L' | b'K' = head.kind {
            if head.size > MAX_META {
                return Err(Fault::new(
                    413,
                    "too_large",
                    "the archive has an oversized pax entry",
                ));
            }
            let (kind, left, padding) = (head.kind, head.size, padding(head.size));
            return Ok(State::Meta {
                kind,
                bytes: Vec::new(),
                left,
                padding,
            });
        }
        head.apply(&std::mem::take(&mut self.next))
            .ok_or_else(broken)?;
        if let Some(uid) = self.owner.0 {
            head.uid = uid.into();
        }
        if let Some(gid) = self.owner.1 {
            head.gid = gid.into();
        }
        let file = self.make(&head)?;
        self.done.entries += 1;
        // Only files have content; what others announce is not there.
        let left = if matches!(head.kind, b'1'..=b'6') {
            0
        } else {
            head.size
        };
        let padding = padding(left);
        Ok(State::Content {
            file,
            head: Box::new(head),
            left,
            padding,
        })
    }

    fn make(&mut self, head: &Head) -> Result<Option<File>, Fault> {
        let relative = clean(&head.path)?;
        self.leave_directories(Some(&relative))?;
        let full = self.base_path.join(&relative);
        let fail = |errno: Errno| failed(&errno.into(), &full);
        let Some(name) = relative.file_name() else {
            // The directory itself, which stays as it is.
            return Ok(None);
        };
        let parent = self.parent(&relative).map_err(fail)?;
        let mode = Mode::from_raw_mode(head.mode);
        if head.kind != b'5' {
            match unlinkat(&parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        let node = |kind| {
            let device = makedev(head.device.0, head.device.1);
            mknodat(&parent, name, kind, mode, device)
        };
        match head.kind {
            b'0' | 0 | b'7' => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = openat(&parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
                return Ok(Some(File::from(file)));
            }
            b'1' => self.link(&head.link, &parent, name)?,
            b'2' => symlinkat(OsStr::from_bytes(&head.link), &parent, name).map_err(fail)?,
            b'3' => node(FileType::CharacterDevice).map_err(fail)?,
            b'4' => node(FileType::BlockDevice).map_err(fail)?,
            b'6' => node(FileType::Fifo).map_err(fail)?,
            b'5' => {
                match mkdirat(&parent, name, mode) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(fail(errno)),
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let dir = openat(&parent, name, flags, Mode::empty()).map_err(fail)?;
                fchown(&dir, uid(head), gid(head)).map_err(fail)?;
                fchmod(&dir, mode).map_err(fail)?;
                self.dirs.enter(relative, head.mtime);
                return Ok(None);
            }
            // Kinds that nobody knows any more.
            _ => return Ok(None),
        }
        if head.kind != b'1' {
            chownat(
                &parent,
                name,
                uid(head),
                gid(head),
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .map_err(fail)?;
        }
        Ok(None)
    }

    /// A second name for a file that the archive has had.
    fn link(&self, target: &[u8], parent: &OwnedFd, name: &OsStr) -> Result<(), Fault> {
        let target = clean(target)?;
        let fail = |errno: Errno| failed(&errno.into(), &self.base_path.join(&target));
        let old_name = target.file_name().ok_or_else(|| fail(Errno::PERM))?;
        let old = self.parent(&target).map_err(fail)?;
        linkat(old, old_name, parent, name, AtFlags::empty()).map_err(fail)
    }

    /// The directory that a path is in, made where it is missing, and never outside the base.
    fn parent(&self, relative: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |dir: &OwnedFd, path: &Path| {
            openat2(dir, path, flags, Mode::empty(), ResolveFlags::BENEATH)
        };
        let parent = relative
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let Some(parent) = parent else {
            return rustix::io::fcntl_dupfd_cloexec(&self.base, 3);
        };
        match open(&self.base, parent) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let mut dir = rustix::io::fcntl_dupfd_cloexec(&self.base, 3)?;
        for part in parent.components() {
            let part = Path::new(part.as_os_str());
            dir = match open(&dir, part) {
                Err(Errno::NOENT) => {
                    mkdirat(&dir, part, Mode::from_raw_mode(0o755))?;
                    open(&dir, part)?
                }
                result => result?,
            };
        }
        Ok(dir)
    }

    /// An entry's content is complete.
    fn end(&mut self, file: Option<File>, head: &Head) -> Result<(), Fault> {
        let Some(file) = file else { return Ok(()) };
        let fd = file.as_fd();
        fchown(fd, uid(head), gid(head))
            // After the owner, whose change takes the set-id bits away.
            .and_then(|()| fchmod(fd, Mode::from_raw_mode(head.mode)))
            .and_then(|()| futimens(fd, &times(head.mtime)))
            .map_err(|errno| failed(&errno.into(), Path::new(OsStr::from_bytes(&head.path))))
    }

    /// Gives directories that the archive has left, now that it comes to `next`, their times.
    fn leave_directories(&mut self, next: Option<&Path>) -> Result<(), Fault> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        while let Some((path, mtime)) = self.dirs.leave(next) {
            let dir = openat2(
                &self.base,
                &path,
                flags,
                Mode::empty(),
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
            );
            match dir.and_then(|dir| futimens(&dir, &times(mtime))) {
                // Somebody has taken it away meanwhile, or put something else there.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(failed(&errno.into(), &self.base_path.join(path))),
            }
        }
        Ok(())
    }

    fn meta(&mut self, kind: u8, bytes: &[u8]) -> Result<(), Fault> {
        match kind {
            b'x' => {
                let records =
                    records(bytes).ok_or_else(|| Fault::bad_request("broken pax entry"))?;
                self.next.extend(records);
            }
            b'L' => drop(self.next.insert(b"path".to_vec(), text(bytes).to_vec())),
            b'K' => drop(self.next.insert(b"linkpath".to_vec(), text(bytes).to_vec())),
            // Global records hold comments.
            _ => {}
        }
        Ok(())
    }
}

impl Sink for Unpack {
    type Outcome = Unpacked;

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Ok(()),
                State::Head(mut block) => {
                    let count = bytes.len().min(BLOCK - block.len());
                    block.extend_from_slice(&bytes[..count]);
                    bytes = &bytes[count..];
                    self.state = match block.first_chunk() {
                        Some(whole) => self.begin(whole)?,
                        None => State::Head(block),
                    };
                }
                State::Content {
                    file,
                    head,
                    mut left,
                    padding,
                } => {
                    let count = left.min(bytes.len() as u64) as usize;
                    if let Some(mut file) = file.as_ref() {
                        let path = || self.base_path.join(OsStr::from_bytes(&head.path));
                        file.write_all(&bytes[..count])
                            .map_err(|error| failed(&error, &path()))?;
                    }
                    self.done.bytes += count as u64;
                    left -= count as u64;
                    let skip = if left == 0 {
                        padding.min(bytes.len() - count)
                    } else {
                        0
                    };
                    bytes = &bytes[count + skip..];
                    self.state = State::Content {
                        file,
                        head,
                        left,
                        padding: padding - skip,
                    };
                }
                State::Meta {
                    kind,
                    bytes: mut held,
                    mut left,
                    padding,
                } => {
                    let count = left.min(bytes.len() as u64) as usize;
                    held.extend_from_slice(&bytes[..count]);
                    left -= count as u64;
                    let skip = if left == 0 {
                        padding.min(bytes.len() - count)
                    } else {
                        0
                    };
                    bytes = &bytes[count + skip..];
                    self.state = State::Meta {
                        kind,
                        bytes: held,
                        left,
                        padding: padding - skip,
                    };
                }
            }
            self.complete()?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Unpacked, Fault> {
        let whole = match &self.state {
            State::Ended => true,
            // Some writers leave out the blocks that end an archive.
            State::Head(block) => block.is_empty() && self.done.entries > 0,
            _ => false,
        };
        if !whole {
            return Err(Fault::bad_request("the archive ends in the middle"));
        }
        self.leave_directories(None)?;
        Ok(self.done)
    }
}

impl Unpack {
    /// Ends an entry all of whose content has come; one without content ends as soon as it has begun.
    fn complete(&mut self) -> Result<(), Fault> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Content {
                file,
                head,
                left: 0,
                padding: 0,
            } => {
                self.end(file, &head)?;
                self.state = State::Head(Vec::new());
            }
            State::Meta {
                kind,
                bytes,
                left: 0,
                padding: 0,
            } => {
                self.meta(kind, &bytes)?;
                self.state = State::Head(Vec::new());
            }
            state => self.state = state,
        }
        Ok(())
    }
}

/// A path of the archive as a path below the base.
fn clean(path: &[u8]) -> Result<PathBuf, Fault> {
    let mut clean = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(path)).components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                let path = String::from_utf8_lossy(path);
                return Err(Fault::bad_request(format_args!(
                    "the archive has `..` in `{path}`"
                )));
            }
        }
    }
    if path.contains(&0) {
        return Err(Fault::bad_request("the archive has a NUL byte in a path"));
    }
    Ok(clean)
}

fn times(mtime: u64) -> Timestamps {
    let time = Timespec {
        tv_sec: mtime.min(i64::MAX as u64) as i64,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn uid(head: &Head) -> Option<Uid> {
    Some(Uid::from_raw(head.uid as u32))
}

fn gid(head: &Head) -> Option<Gid> {
    Some(Gid::from_raw(head.gid as u32))
}
