//! The network interfaces of a restored or forked machine: behind other TAP devices, and with
//! addresses that no other machine has. Its agent is told them before it counts as running.

use std::io;
use std::net::Ipv4Addr;

use tine_devices::virtio::net::MacAddr;
use tine_guest_agent::refresh::{Address, NewInterface};

use crate::config::MachineConfig;

/// What of an interface becomes another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherInterface {
    /// The interface's id.
    pub id: String,
    /// The TAP device, in the place of the one that it had.
    pub tap: Option<String>,
    /// The guest's link address; a new one at random when not given.
    pub guest_mac: Option<MacAddr>,
    /// The guest's IPv4 address, in the place of those that it has.
    pub address: Option<Address>,
    /// The guest's way to everywhere else.
    pub gateway: Option<Ipv4Addr>,
}

impl OtherInterface {
    /// The guest has to be told.
    pub(super) fn concerns_guest(&self) -> bool {
        self.guest_mac.is_some() || self.address.is_some() || self.gateway.is_some()
    }
}

/// Puts `others` into a configuration, and gives what the guest's agent is to be told. With `anew` each
/// interface has a link address of its own from here on, at random where none is given.
///
/// # Errors
///
/// When there are no random bytes.
pub fn give_addresses(
    config: &mut MachineConfig,
    others: &[OtherInterface],
    anew: bool,
) -> io::Result<Vec<NewInterface>> {
    let mut told = Vec::new();
    for (place, interface) in (0..).zip(&mut config.interfaces) {
        let mut others = others.iter();
        let other = others.find(|other| other.id == interface.id);
        let other = other.cloned().unwrap_or_default();
        if let Some(tap) = other.tap {
            interface.tap = tap;
        }
        let mac = match other.guest_mac {
            None if anew => Some(at_random()?),
            given => given,
        };
        // One that made its address up was offered none, and is not offered one now.
        if mac.is_some() && interface.guest_mac.is_some() {
            interface.guest_mac = mac;
        }
        let new = NewInterface {
            place,
            mac: mac.map(MacAddr::bytes),
            address: other.address,
            gateway: other.gateway,
        };
        let same = NewInterface {
            place,
            ..NewInterface::default()
        };
        if new != same {
            told.push(new);
        }
    }
    Ok(told)
}

fn at_random() -> io::Result<MacAddr> {
    let mut bytes = [0; 6];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    // Of one host, and nobody's that makes devices.
    bytes[0] = bytes[0] & !1 | 2;
    MacAddr::new(bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::InterfaceConfig;

    fn config() -> MachineConfig {
        let interface = |id: &str, mac: Option<&str>| InterfaceConfig {
            id: id.to_owned(),
            tap: "tap0".to_owned(),
            guest_mac: mac.map(|mac| mac.parse().unwrap()),
            mtu: None,
            rx_rate_limiter: None,
            tx_rate_limiter: None,
        };
        let mut config = MachineConfig::new("kernel".into());
        config.interfaces = vec![
            interface("a", Some("06:00:00:00:00:01")),
            interface("b", None),
        ];
        config
    }

    #[test]
    fn each_has_an_address_of_its_own() {
        let (mut one, mut two) = (config(), config());
        let first = give_addresses(&mut one, &[], true).unwrap();
        let second = give_addresses(&mut two, &[], true).unwrap();
        for (place, (first, second)) in first.iter().zip(&second).enumerate() {
            assert_eq!((usize::from(first.place), first.address), (place, None));
            assert_ne!(first.mac, second.mac);
            assert_eq!(first.mac.unwrap()[0] & 3, 2);
        }
        assert_eq!(first.len(), 2);
        let offered = one.interfaces[0].guest_mac.map(MacAddr::bytes);
        assert_eq!(offered, first[0].mac);
        assert_eq!(one.interfaces[1].guest_mac, None);
    }

    #[test]
    fn what_is_given_is_taken_and_the_rest_stays() {
        let mut same = config();
        assert_eq!(give_addresses(&mut same, &[], false).unwrap(), []);
        assert_eq!(same.interfaces, config().interfaces);
        let other = OtherInterface {
            id: "b".to_owned(),
            tap: Some("tap7".to_owned()),
            address: Some("10.0.0.2/24".parse().unwrap()),
            ..OtherInterface::default()
        };
        let told = give_addresses(&mut same, std::slice::from_ref(&other), false).unwrap();
        assert_eq!((told.len(), told[0].place), (1, 1));
        assert_eq!((told[0].address, told[0].mac), (other.address, None));
        assert_eq!(same.interfaces[1].tap, "tap7");
        assert_eq!(same.interfaces[0], config().interfaces[0]);
    }
}
