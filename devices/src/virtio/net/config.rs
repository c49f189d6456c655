//! What an interface is to be, as inert data, and why it could not be had.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::rate::RateLimiterConfig;

/// One network interface.
#[derive(Debug)]
pub struct NetConfig {
    /// The interface's name among the machine's: in messages.
    pub id: String,
    /// The host's side.
    pub host: TapSource,
    /// The guest's address. Without one the guest makes one up.
    pub guest_mac: Option<MacAddr>,
    /// The largest packet that the guest should send, 68 to 65535 bytes. The tap's own is set on
    /// the host.
    pub mtu: Option<u16>,
    /// How much the guest may receive. What goes beyond waits in the tap.
    pub rx_rate_limiter: Option<RateLimiterConfig>,
    /// How much the guest may send. What goes beyond waits in the queue.
    pub tx_rate_limiter: Option<RateLimiterConfig>,
}

impl NetConfig {
    /// An interface on `host` with everything else as usual.
    pub fn new(id: impl Into<String>, host: TapSource) -> Self {
        Self {
            id: id.into(),
            host,
            guest_mac: None,
            mtu: None,
            rx_rate_limiter: None,
            tx_rate_limiter: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), NetError> {
        match self.mtu {
            Some(mtu) if mtu < 68 => Err(NetError::Mtu {
                interface: self.id.clone(),
                mtu,
            }),
            _ => Ok(()),
        }
    }
}

/// Where the TAP device comes from.
#[derive(Debug)]
pub enum TapSource {
    /// The name of one that exists.
    Name(String),
    /// A descriptor of `/dev/net/tun`, attached to one: made with IFF_TAP, IFF_NO_PI and
    /// IFF_VNET_HDR.
    Fd(OwnedFd),
}

/// An Ethernet address of one interface: not a group's. Written as `06:00:ac:10:00:02`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr([u8; 6]);

/// The text or the bytes are no [`MacAddr`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the MAC address of an interface, like 06:00:ac:10:00:02")]
pub struct MacAddrError(String);

impl MacAddr {
    /// The address with these bytes, unless it is a group's or all zeroes.
    pub fn new(bytes: [u8; 6]) -> Result<Self, MacAddrError> {
        match bytes[0] & 1 == 1 || bytes == [0; 6] {
            true => Err(MacAddrError(Self(bytes).to_string())),
            false => Ok(Self(bytes)),
        }
    }

    /// Its bytes.
    pub fn bytes(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<Self, MacAddrError> {
        let wrong = || MacAddrError(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(wrong)?;
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        Self::new(bytes).map_err(|_| wrong())
    }
}

impl TryFrom<String> for MacAddr {
    type Error = MacAddrError;

    fn try_from(text: String) -> Result<Self, MacAddrError> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(addr: MacAddr) -> Self {
        addr.to_string()
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, last] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{last:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why an interface could not be made. Each message is one line, names the interface and, where
/// there is one, the next step.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The MTU is too small for IP.
    #[error("interface {interface:?}: an MTU of {mtu} is less than 68")]
    Mtu {
        /// The interface's id.
        interface: String,
        /// The MTU given.
        mtu: u16,
    },
    /// No device of the host can be called that.
    #[error(
        "interface {interface:?}: {tap:?} cannot be the name of a TAP device (1 to 15 bytes, no slash, no space)"
    )]
    Name {
        /// The interface's id.
        interface: String,
        /// The name given.
        tap: String,
    },
    /// `/dev/net/tun` cannot be opened.
    #[error(
        "interface {interface:?}: cannot open /dev/net/tun: {source}; is the tun module loaded (modprobe tun), and may this user open it?"
    )]
    Tun {
        /// The interface's id.
        interface: String,
        /// What the host said.
        source: io::Error,
    },
    /// There is no such device.
    #[error(
        "interface {interface:?}: there is no TAP device {tap:?}; make it with: ip tuntap add {tap} mode tap && ip link set {tap} up"
    )]
    Missing {
        /// The interface's id.
        interface: String,
        /// The device.
        tap: String,
    },
    /// Another process has the device open.
    #[error(
        "interface {interface:?}: TAP device {tap:?} is in use by another process; give each machine its own, or end the other one (find it with: grep -l 'iff:\\s*{tap}$' /proc/*/fdinfo/*)"
    )]
    Busy {
        /// The interface's id.
        interface: String,
        /// The device.
        tap: String,
    },
    /// The device belongs to another user.
    #[error(
        "interface {interface:?}: this user may not use TAP device {tap:?}; make it with: ip tuntap add {tap} mode tap user $(id -u)"
    )]
    Denied {
        /// The interface's id.
        interface: String,
        /// The device.
        tap: String,
    },
    /// There is a device of that name that is no TAP device, or one with several queues.
    #[error(
        "interface {interface:?}: {tap:?} is not a TAP device with one queue; make one with: ip tuntap add NAME mode tap"
    )]
    NotATap {
        /// The interface's id.
        interface: String,
        /// The device.
        tap: String,
    },
    /// The descriptor is of something else, or was made in another way.
    #[error(
        "interface {interface:?}: the descriptor is not of a TAP device made with IFF_TAP, IFF_NO_PI and IFF_VNET_HDR"
    )]
    NotATapFd {
        /// The interface's id.
        interface: String,
    },
    /// The host refused something else.
    #[error("interface {interface:?}: cannot {action}: {source}")]
    Os {
        /// The interface's id.
        interface: String,
        /// What was to be done.
        action: &'static str,
        /// What the host said.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_written_alike() {
        let text = "06:00:ac:10:00:0f";
        let addr: MacAddr = text.parse().unwrap();
        assert_eq!(addr.bytes(), [6, 0, 0xac, 0x10, 0, 15]);
        assert_eq!(addr.to_string(), text);
        assert_eq!("06:00:AC:10:00:0F".parse(), Ok(addr));
    }

    #[test]
    fn what_is_no_address_of_one_interface_is_refused() {
        for text in [
            "",
            "06:00:ac:10:00",
            "06:00:ac:10:00:02:03",
            "6:0:ac:10:0:2",
            "06-00-ac-10-00-02",
            "+6:00:ac:10:00:02",
            "06:00:ac:10:00:0g",
            "01:00:5e:00:00:01",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text:?}");
        }
    }
}
