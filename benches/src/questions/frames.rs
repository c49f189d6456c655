//! The host's end of a TAP device: a network namespace of its own, which ends with the thread that
//! made it and takes the device along, and a socket for frames there.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{netdevice, recv, send, socket_with};
use rustix::thread::UnshareFlags;

/// For local experiments (IEEE 802, table of EtherTypes), in the order of a network's bytes.
pub const TYPE: [u8; 2] = 0x88b5_u16.to_be_bytes();

/// Puts this thread, and what it starts, into a network of its own with the TAP device `name` in it.
pub fn network_of_its_own(name: &str) -> anyhow::Result<()> {
    // SAFETY: of what a thread shares with others only its network namespace is given up, which no
    // memory and no descriptor depends on.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .context("cannot make a network namespace: this question is for root")?;
    for words in [
        format!("tuntap add {name} mode tap"),
        format!("link set {name} up"),
    ] {
        let mut ip = Command::new("ip");
        let output = ip.args(words.split(' ')).output();
        let output = output.context("cannot start `ip` (Debian: iproute2)")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`ip {words}`: {}", said.trim());
    }
    Ok(())
}

/// A socket for frames of [`TYPE`] at an interface of this network.
pub struct Frames(OwnedFd);

impl Frames {
    /// At the interface `name`; nothing is waited for longer than `patience`.
    pub fn open(name: &str, patience: Duration) -> anyhow::Result<Self> {
        let family = AddressFamily::from_raw(libc::AF_PACKET as u16);
        let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .context("cannot open a socket for frames")?;
        let index = netdevice::name_to_index(&socket, name).context(name.to_owned())?;
        bind(&socket, index).context("cannot bind a socket for frames")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(patience))
            .context("cannot set a timeout")?;
        Ok(Self(socket))
    }

    /// Sends a frame out of the interface.
    pub fn send(&self, frame: &[u8]) -> anyhow::Result<()> {
        let sent = send(&self.0, frame, SendFlags::empty()).context("cannot send a frame")?;
        ensure!(sent == frame.len(), "a frame was sent in part");
        Ok(())
    }

    /// Receives one that came in there.
    pub fn receive(&self, frame: &mut [u8]) -> anyhow::Result<usize> {
        let (len, _) = recv(&self.0, frame, RecvFlags::empty()).context("no frame comes back")?;
        Ok(len)
    }
}

fn bind(socket: &OwnedFd, index: u32) -> io::Result<()> {
    // SAFETY: all-zeroes is a value of this struct of integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = u16::from_ne_bytes(TYPE);
    address.sll_ifindex = index as i32;
    let size = size_of_val(&address) as u32;
    // SAFETY: the address lives through the call and has the size that is told.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    match bound {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
