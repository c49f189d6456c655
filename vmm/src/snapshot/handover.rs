//! A captured machine on its way into other processes: by descriptors, so that no byte of its memory
//! or disks is copied, over a Unix socket.
//!
//! Whoever connects is sent a short head and then descriptors, a few hundred with each message at
//! most: first a memory file with the machine's state, laid out as the file `state` of a snapshot,
//! then the layers of memory, then those of the disks. The state has one section more than the
//! machine's own, which says what the other descriptors are. Both ends are of one version of Tine.
//!
//! Until the receiver closes the connection, the disks' files have names, and it can give them others.
//!
//! The receiver trusts none of it: lengths, ranges and numbers are checked, and descriptors that do
//! not fit are an error. A sender that has been taken over by its guest can still shorten a file that
//! is mapped, and so end the machines that were made from it.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tine_devices::virtio::block::layers::Format;
use tine_snapshot::manifest::{MAX_LAYERS as MAX_LAYERS_OF_A_DISK, is_drive_id};
use tine_snapshot::section::Section;
use tine_snapshot::{Id, ReadError, Snapshot, state_file};

use super::Description;
use super::disks::{LayerFile, LoadedDisk, LoadedDisks, LoadedLayer};
use super::load::Loaded;
use crate::machine::Capture;
use crate::memory::{self, Image, Layer, MAX_LAYERS, MAX_RUNS, PAGE, Run};

/// What a message begins with.
const MAGIC: [u8; 8] = *b"TINEFORK";
/// The magic, and how many descriptors there are.
const HEAD: usize = 12;
/// Descriptors with one message: Linux takes 253.
const AT_ONCE: usize = 128;
/// Descriptors in all: memory's layers, and disks of 128 layers each.
const MAX_FDS: usize = 4096;
/// How long the other end may take for one message.
const PATIENCE: Duration = Duration::from_secs(10);
/// The section that says what the descriptors are.
const META: &str = "tine/fork";
const META_KIND: &str = "file";
const META_VERSION: u16 = 1;

/// Why a machine could not be handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// The other end is not there, or a message did not get through.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What came is not what is sent for a fork.
    #[error("what it sends makes no sense: {0}")]
    Malformed(String),
    /// The other end is of another version.
    #[error("it is Tine {theirs}, and this is {}: use the same on both ends", env!("CARGO_PKG_VERSION"))]
    Version {
        /// Its version.
        theirs: String,
    },
    /// The state cannot be read.
    #[error(transparent)]
    State(#[from] ReadError),
}

/// What the descriptors are, and the rest of what a machine is made from.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    version: String,
    generation: u64,
    description: Description,
    memory_bytes: u64,
    /// The ranges of each layer of memory: start, end, and whether they are all zero.
    memory: Vec<Vec<(u64, u64, bool)>>,
    disks: Vec<MetaDisk>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetaDisk {
    drive: String,
    /// Format and size of each layer.
    layers: Vec<(Format, u64)>,
}

/// A captured machine, ready to be sent any number of times.
pub struct HandOver {
    state: File,
    memory: Image,
    disks: Vec<File>,
}

impl HandOver {
    /// Makes a captured machine ready. Its disks, if it has any, are those of `disks`, a snapshot of
    /// them alone, whose directory is not needed any more afterwards.
    ///
    /// # Errors
    ///
    /// When the state cannot be encoded, or a layer not be opened.
    pub fn new(
        capture: &Capture,
        description: Description,
        generation: u64,
        disks: Option<&Snapshot>,
    ) -> Result<Self, HandOverError> {
        let mut files = Vec::new();
        let mut meta_disks = Vec::new();
        for disk in disks.iter().flat_map(|disks| &disks.manifest().disks) {
            for n in 0..disk.layers.len() {
                files.extend(disks.map(|disks| disks.disk_layer_file(&disk.drive, n)));
            }
            let layers = disk.layers.iter();
            meta_disks.push(MetaDisk {
                drive: disk.drive.clone(),
                layers: layers.map(|l| (l.format, l.virtual_size)).collect(),
            });
        }
        let run = |run: &Run| (run.range.start, run.range.end, run.zero);
        let layers = capture.memory.layers.iter();
        let meta = Meta {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation,
            description,
            memory_bytes: capture.memory.size,
            memory: layers.map(|l| l.runs.iter().map(run).collect()).collect(),
            disks: meta_disks,
        };
        let mut sections = vec![Section {
            name: META.to_owned(),
            kind: META_KIND.to_owned(),
            version: META_VERSION,
            payload: serde_json::to_vec(&meta).map_err(io::Error::from)?,
        }];
        sections.extend_from_slice(&capture.sections);
        let bytes = state_file::encode(Id::random()?, &sections).map_err(malformed)?;
        let mut state = memory::create_memfd(c"tine-fork", bytes.len() as u64)?;
        state.write_all(&bytes)?;
        memory::seal(&state)?;
        Ok(Self {
            state,
            memory: capture.memory.clone(),
            disks: files.into_iter().collect::<Result<_, _>>()?,
        })
    }

    /// Sends it.
    ///
    /// # Errors
    ///
    /// When the other end does not take it.
    pub fn send(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let memory = self.memory.layers.iter().map(|layer| layer.file.as_fd());
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.state.as_fd())
            .chain(memory)
            .chain(self.disks.iter().map(File::as_fd))
            .collect();
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&MAGIC);
        head[8..].copy_from_slice(&(fds.len() as u32).to_le_bytes());
        for (n, fds) in fds.chunks(AT_ONCE).enumerate() {
            let bytes = if n == 0 { &head[..] } else { &head[..1] };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // It fits: the space is for as many.
            control.push(SendAncillaryMessage::ScmRights(fds));
            let sent = sendmsg(
                stream,
                &[IoSlice::new(bytes)],
                &mut control,
                SendFlags::NOSIGNAL,
            )?;
            if sent != bytes.len() {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

impl Loaded {
    /// Takes over the machine that is handed out at `socket`.
    ///
    /// # Errors
    ///
    /// When nobody is there, or what comes is not a machine that can go on here.
    pub fn receive(socket: &Path) -> Result<Self, HandOverError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut files = receive_files(&stream)?.into_iter();
        let state = files.next().ok_or_else(|| malformed("no descriptors"))?;
        let mut sections = read_state(socket, &state)?;
        let meta = sections
            .iter()
            .position(|section| section.name == META && section.kind == META_KIND);
        let meta = meta.ok_or_else(|| malformed("there is no section of it"))?;
        let meta = read_meta(&sections.remove(meta).payload)?;
        let memory = image(&meta, &mut files)?;
        let mut disks = Vec::with_capacity(meta.disks.len());
        for disk in meta.disks {
            let mut layers = Vec::new();
            for (format, virtual_size) in disk.layers {
                let file = files.next();
                layers.push(LoadedLayer {
                    file: LayerFile::Open(file.ok_or_else(|| malformed("too few descriptors"))?),
                    format,
                    virtual_size,
                });
            }
            let drive = disk.drive;
            // It is going to be part of paths.
            if !is_drive_id(&drive) || layers.len() > MAX_LAYERS_OF_A_DISK {
                return Err(malformed(format!(
                    "a drive {drive:?} of {} layers",
                    layers.len()
                )));
            }
            disks.push(LoadedDisk { drive, layers });
        }
        match files.next() {
            None => Ok(Self {
                generation: meta.generation,
                description: meta.description,
                sections,
                memory: memory.into(),
                disks: LoadedDisks::open(disks, stream),
            }),
            Some(_) => Err(malformed("too many descriptors")),
        }
    }
}

fn receive_files(stream: &UnixStream) -> Result<Vec<File>, HandOverError> {
    let mut head = [0; HEAD];
    let (got, mut files) = receive_some(stream, &mut head)?;
    if got != HEAD || head[..8] != MAGIC {
        return Err(malformed("it is not a fork"));
    }
    let count = u32::from_le_bytes(head[8..].try_into().expect("4 bytes")) as usize;
    if !(1..=MAX_FDS).contains(&count) {
        return Err(malformed(format!("{count} descriptors")));
    }
    while files.len() < count {
        let (got, more) = receive_some(stream, &mut head[..1])?;
        if got == 0 || more.is_empty() {
            return Err(malformed("it ends before all descriptors have come"));
        }
        files.extend(more);
    }
    match files.len() == count {
        true => Ok(files),
        false => Err(malformed("too many descriptors")),
    }
}

fn receive_some(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<File>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let received = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds.map(|fd: OwnedFd| File::from(fd)));
        }
    }
    Ok((received.bytes, files))
}

fn read_state(socket: &Path, file: &File) -> Result<Vec<Section>, HandOverError> {
    let length = regular(file)?;
    if length > state_file::MAX_STATE {
        return Err(malformed(format!("a state of {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let (_, sections) = state_file::decode(socket, &bytes)?;
    Ok(sections)
}

fn read_meta(bytes: &[u8]) -> Result<Meta, HandOverError> {
    /// All that versions have in common.
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    let Version { version } =
        serde_json::from_slice(bytes).map_err(|err| malformed(err.to_string()))?;
    if version != env!("CARGO_PKG_VERSION") {
        return Err(HandOverError::Version { theirs: version });
    }
    serde_json::from_slice(bytes).map_err(|err| malformed(err.to_string()))
}

/// The image of memory, if files and ranges fit together: the lowest layer has all of it.
fn image(meta: &Meta, files: &mut impl Iterator<Item = File>) -> Result<Image, HandOverError> {
    let size = meta.memory_bytes;
    let runs: usize = meta.memory.iter().map(Vec::len).sum();
    if !(1..=MAX_LAYERS).contains(&meta.memory.len()) || runs > MAX_RUNS {
        return Err(malformed(format!(
            "memory of {} layers and {runs} ranges",
            meta.memory.len()
        )));
    }
    let mut layers = Vec::with_capacity(meta.memory.len());
    for ranges in &meta.memory {
        let file = files.next();
        let file = file.ok_or_else(|| malformed("too few descriptors"))?;
        let mut at = 0;
        for &(start, end, _) in ranges {
            let pages = start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
            if start < at || start >= end || end > size || !pages {
                return Err(malformed(format!("memory of {start} to {end}")));
            }
            at = end;
        }
        if regular(&file)? < at {
            return Err(malformed("a memory file that is too short"));
        }
        let run = |&(start, end, zero): &(u64, u64, bool)| Run {
            range: start..end,
            zero,
        };
        let runs = ranges.iter().map(run).collect();
        layers.push(Layer::new(file, runs, None).into());
    }
    let image = Image { size, layers };
    match image.is_whole() {
        true => Ok(image),
        false => Err(malformed("memory that is not whole")),
    }
}

/// The length of a file that can be mapped.
fn regular(file: &File) -> Result<u64, HandOverError> {
    let meta = file.metadata()?;
    match meta.is_file() {
        true => Ok(meta.len()),
        false => Err(malformed("a descriptor that is no file's")),
    }
}

fn malformed(reason: impl Into<String>) -> HandOverError {
    HandOverError::Malformed(reason.into())
}
