//! Loading a kernel, an initrd and a command line into guest memory, so that the first
//! instruction finds them.

pub mod cmdline;
mod params;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use linux_loader::loader::bootparam::setup_header;
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::{BzImage, Elf, KernelLoader, KernelLoaderResult};
use tine_devices::GuestMemory;
use vm_memory::{Bytes, GuestAddress};

use crate::layout;

/// How a kernel is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The 64-bit entry of the Linux boot protocol.
    Linux64 {
        /// Address of the first instruction.
        rip: u64,
    },
    /// The 32-bit entry that a PVH note names.
    Pvh {
        /// Address of the first instruction.
        rip: u64,
    },
}

/// Why a kernel or initrd cannot be booted.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The file cannot be opened or read.
    #[error("cannot read {what} {}: {source}", path.display())]
    Read {
        /// "kernel" or "initrd".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file is a directory or device.
    #[error("cannot use {what} {}: it is {kind}, not a file", path.display())]
    NotAFile {
        /// "kernel" or "initrd".
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Neither an ELF file nor a bzImage.
    #[error("cannot boot {}: it is neither an ELF kernel (vmlinux) nor a bzImage", .0.display())]
    NotAKernel(PathBuf),
    /// An ELF file or bzImage that cannot be loaded.
    #[error("cannot boot {}: {reason}", path.display())]
    BadKernel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The initrd is larger than the memory left for it.
    #[error(
        "initrd {} ({size} bytes) does not fit beside the kernel: {room} bytes are free in a \
         machine of {memory} MiB",
        path.display()
    )]
    InitrdTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// How much there was room for, in bytes.
        room: u64,
        /// The machine's memory in MiB.
        memory: u64,
    },
    /// The command line cannot be used.
    #[error(transparent)]
    Cmdline(#[from] cmdline::CmdlineError),
    /// Guest memory has no room for the boot data.
    #[error("cannot write boot data to guest memory: {0}")]
    Memory(#[from] vm_memory::GuestMemoryError),
}

/// What is to be booted.
pub struct BootSource<'a> {
    /// The kernel: an uncompressed ELF file, or a bzImage.
    pub kernel: &'a Path,
    /// The initial RAM disk.
    pub initrd: Option<&'a Path>,
    /// The whole command line.
    pub cmdline: &'a str,
    /// Address of the ACPI root pointer.
    pub rsdp: u64,
    /// Guest memory in bytes.
    pub memory: u64,
}

/// Loads everything and returns where to start.
pub fn load(mem: &GuestMemory, source: &BootSource) -> Result<Entry, BootError> {
    let kernel = load_kernel(mem, source)?;
    let initrd = match source.initrd {
        Some(path) => Some(load_initrd(mem, path, &kernel, source.memory)?),
        None => None,
    };
    cmdline::write(mem, source.cmdline)?;
    let boot = params::Boot {
        source,
        initrd,
        setup_header: kernel.setup_header,
    };
    match kernel.entry {
        Entry::Linux64 { .. } => params::write_zero_page(mem, &boot)?,
        Entry::Pvh { .. } => params::write_start_info(mem, &boot)?,
    }
    Ok(kernel.entry)
}

struct Kernel {
    entry: Entry,
    /// First address behind the kernel.
    end: u64,
    setup_header: Option<setup_header>,
}

/// Offset of the 64-bit entry in a bzImage's protected-mode part (boot.rst, "64-bit Boot
/// Protocol").
const BZIMAGE_ENTRY64: u64 = 0x200;
/// Where the setup header's magic stands in a bzImage, and what it is.
const BZIMAGE_MAGIC_AT: usize = 0x202;
const BZIMAGE_MAGIC: &[u8] = b"HdrS";
/// xloadflags bit 0: the kernel has a 64-bit entry.
const XLF_KERNEL_64: u16 = 1;

fn load_kernel(mem: &GuestMemory, source: &BootSource) -> Result<Kernel, BootError> {
    let path = source.kernel;
    let (mut file, _) = open("kernel", path)?;
    let unreadable = |source| BootError::Read {
        what: "kernel",
        path: path.into(),
        source,
    };
    let mut head = Vec::with_capacity(BZIMAGE_MAGIC_AT + 4);
    (&mut file)
        .take(BZIMAGE_MAGIC_AT as u64 + 4)
        .read_to_end(&mut head)
        .map_err(unreadable)?;
    file.rewind().map_err(unreadable)?;
    let bad = |reason: String| BootError::BadKernel {
        path: path.into(),
        reason,
    };
    let start = Some(GuestAddress(layout::HIGH_MEMORY_START));
    if head.starts_with(b"\x7fELF") {
        let loaded = Elf::load(mem, None, &mut file, start)
            .map_err(|err| bad(explain(&err, source.memory)))?;
        elf_kernel(&loaded).map_err(bad)
    } else if head.get(BZIMAGE_MAGIC_AT..) == Some(BZIMAGE_MAGIC) {
        let loaded = BzImage::load(mem, None, &mut file, start)
            .map_err(|err| bad(explain(&err, source.memory)))?;
        bzimage_kernel(&loaded).map_err(bad)
    } else {
        Err(BootError::NotAKernel(path.into()))
    }
}

fn elf_kernel(loaded: &KernelLoaderResult) -> Result<Kernel, String> {
    let entry = match loaded.pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(addr) => Entry::Pvh { rip: addr.0 },
        _ => Entry::Linux64 {
            rip: loaded.kernel_load.0,
        },
    };
    if loaded.kernel_end == 0 {
        return Err("the ELF file has nothing to load".to_owned());
    }
    Ok(Kernel {
        entry,
        end: loaded.kernel_end,
        setup_header: None,
    })
}

fn bzimage_kernel(loaded: &KernelLoaderResult) -> Result<Kernel, String> {
    let header = loaded
        .setup_header
        .ok_or("the bzImage has no setup header")?;
    if header.version < 0x20c || header.xloadflags & XLF_KERNEL_64 == 0 {
        return Err("the bzImage has no 64-bit entry point".to_owned());
    }
    // The kernel unpacks itself from its load address on and needs `init_size` for it.
    let end = (loaded.kernel_load.0 + u64::from(header.init_size))
        .max(
            header
                .pref_address
                .saturating_add(u64::from(header.init_size)),
        )
        .max(loaded.kernel_end);
    let entry = Entry::Linux64 {
        rip: loaded.kernel_load.0 + BZIMAGE_ENTRY64,
    };
    Ok(Kernel {
        entry,
        end,
        setup_header: Some(header),
    })
}

/// Says in the user's words what the loader found.
fn explain(err: &linux_loader::loader::Error, memory: u64) -> String {
    use linux_loader::loader::{Error, bzimage, elf};
    let no_room = "it is truncated, or a part of it lies outside the machine's memory";
    match err {
        Error::Elf(elf::Error::ReadKernelImage)
        | Error::Bzimage(bzimage::Error::ReadBzImageCompressedKernel) => {
            format!("{no_room} ({} MiB)", memory >> 20)
        }
        Error::Elf(elf::Error::ReadElfHeader | elf::Error::ReadProgramHeader) => {
            "the ELF file is truncated".to_owned()
        }
        Error::Elf(elf::Error::InvalidEntryAddress) => {
            format!(
                "its entry point lies below {:#x}",
                layout::HIGH_MEMORY_START
            )
        }
        other => other.to_string(),
    }
}

/// Opens a regular file and tells its size.
fn open(what: &'static str, path: &Path) -> Result<(File, u64), BootError> {
    let unreadable = |source| BootError::Read {
        what,
        path: path.into(),
        source,
    };
    // A FIFO would wait for a writer.
    let mut options = File::options();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    let kind = meta.file_type();
    let kind = match () {
        () if kind.is_file() => return Ok((file, meta.len())),
        () if kind.is_dir() => "a directory",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "a pipe or socket",
    };
    Err(BootError::NotAFile {
        what,
        path: path.into(),
        kind,
    })
}

/// Puts the initrd as high as it goes below the gap, so that it is out of the way of a kernel
/// that unpacks itself. Returns its address and size.
fn load_initrd(
    mem: &GuestMemory,
    path: &Path,
    kernel: &Kernel,
    memory: u64,
) -> Result<(u64, u64), BootError> {
    let (mut file, size) = open("initrd", path)?;
    let ceiling = match &kernel.setup_header {
        Some(header) => u64::from(header.initrd_addr_max).saturating_add(1),
        None => u64::MAX,
    };
    let top = memory.min(layout::MMIO_GAP.start).min(ceiling);
    let floor = kernel.end.next_multiple_of(0x1000);
    let room = top.saturating_sub(floor);
    if size > room {
        let memory = memory >> 20;
        return Err(BootError::InitrdTooLarge {
            path: path.into(),
            size,
            room,
            memory,
        });
    }
    let addr = (top - size) & !0xfff;
    mem.read_exact_volatile_from(GuestAddress(addr), &mut file, size as usize)
        .map_err(|err| {
            let source = io::Error::other(err);
            BootError::Read {
                what: "initrd",
                path: path.into(),
                source,
            }
        })?;
    Ok((addr, size))
}

#[cfg(test)]
mod tests;
