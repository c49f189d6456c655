//! Works on all devices of a guest at once and looks at what it gets: `tine-worker DIR STATE`.
//!
//! DIR is on a disk. After each round its number is in STATE; at the first thing that is not as it has to
//! be, the reason is in STATE and this program ends. A snapshot may come between any two instructions.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a block on the disk, and how many there are.
const BLOCK: usize = 16 << 10;
const BLOCKS: u64 = 16;
/// Bytes that are written over in memory.
const MEMORY: usize = 256 << 10;
/// A port of the host that nobody listens on.
const PORT: u32 = 4321;

fn main() {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [dir, state] = &words[..] else {
        panic!("tine-worker DIR STATE");
    };
    let mut worker = Worker::new(dir);
    for round in 1.. {
        let result = worker.round(round);
        let text = match &result {
            Ok(()) => round.to_string(),
            Err(why) => format!("round {round}: {why}"),
        };
        let new = state.with_extension("new");
        fs::write(&new, text).expect("the state can be written");
        fs::rename(&new, state).expect("the state can be renamed");
        if result.is_err() {
            return;
        }
    }
}

struct Worker {
    disk: File,
    /// The round that each block was written in last.
    written: [u64; BLOCKS as usize],
    memory: Vec<u8>,
    random: [u8; 16],
}

impl Worker {
    fn new(dir: &Path) -> Self {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Self {
            disk: options
                .open(dir.join("blocks"))
                .expect("a file on the disk"),
            written: [0; BLOCKS as usize],
            memory: vec![0; MEMORY],
            random: [0; 16],
        }
    }

    fn round(&mut self, round: u64) -> Result<(), String> {
        self.disk(round).map_err(|err| format!("disk: {err}"))?;
        self.memory(round)?;
        self.entropy().map_err(|err| format!("hwrng: {err}"))?;
        connect().map_err(|err| format!("vsock: {err}"))?;
        let console = OpenOptions::new().write(true).open("/dev/console");
        let said = console.and_then(|mut console| writeln!(console, "round {round}"));
        said.map_err(|err| format!("console: {err}"))
    }

    /// One block is written, and all others are as they were: from the disk, not from memory.
    fn disk(&mut self, round: u64) -> std::io::Result<()> {
        let place = round % BLOCKS;
        self.disk
            .write_all_at(&pattern(round, BLOCK), place * BLOCK as u64)?;
        self.disk.sync_data()?;
        self.written[place as usize] = round;
        // SAFETY: an open file and numbers.
        unsafe { libc::posix_fadvise(self.disk.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let mut block = vec![0; BLOCK];
        for (place, written) in (0..).zip(self.written).filter(|(_, written)| *written > 0) {
            self.disk.read_exact_at(&mut block, place * BLOCK as u64)?;
            if block != pattern(written, BLOCK) {
                let what = format!("block {place} is not what round {written} wrote");
                return Err(std::io::Error::other(what));
            }
        }
        Ok(())
    }

    fn memory(&mut self, round: u64) -> Result<(), String> {
        if round > 1 && self.memory != pattern(round - 1, MEMORY) {
            return Err("memory: it is not what the round before wrote".to_owned());
        }
        self.memory.copy_from_slice(&pattern(round, MEMORY));
        Ok(())
    }

    fn entropy(&mut self) -> std::io::Result<()> {
        let before = self.random;
        File::open("/dev/hwrng")?.read_exact(&mut self.random)?;
        match before == self.random {
            true => Err(std::io::Error::other("the same bytes twice")),
            false => Ok(()),
        }
    }
}

/// Bytes that no other round has in the same place.
fn pattern(round: u64, len: usize) -> Vec<u8> {
    let word = round.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(len).collect()
}

/// Connects to the host, where nobody listens, and closes: a reset is the right answer, also where it comes
/// from a restore.
fn connect() -> std::io::Result<()> {
    // SAFETY: numbers.
    let socket = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it was opened above, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as u16;
    address.svm_cid = libc::VMADDR_CID_HOST;
    address.svm_port = PORT;
    let len = size_of::<libc::sockaddr_vm>() as u32;
    // SAFETY: the address is that long and lives through the call.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    let err = std::io::Error::last_os_error();
    match (result, err.raw_os_error()) {
        (0, _) => Err(std::io::Error::other("somebody listens")),
        (_, Some(libc::ECONNRESET | libc::ECONNREFUSED | libc::ENODEV | libc::ENOTCONN)) => Ok(()),
        _ => Err(err),
    }
}
