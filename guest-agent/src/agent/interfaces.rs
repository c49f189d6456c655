//! A copy's network interfaces: link addresses of its own, and addresses where it is given some.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use tine_guest_agent::refresh::NewInterface;

use super::netlink::{HEADER, Kernel, PUT, attribute};

const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESSES: u16 = 22;
const NEW_ROUTE: u16 = 24;
/// Family, length of the prefix, flags, scope, interface.
const ADDRESS: usize = 8;
const IPV4: u8 = 2;
/// The table of routes that everybody uses, made by an administrator, to others that are one each.
const MAIN: u8 = 254;
const STATIC: u8 = 4;
const UNICAST: u8 = 1;
/// Of a link, an address and a route.
const LINK_ADDRESS: u16 = 1;
const PEER: u16 = 1;
const LOCAL: u16 = 2;
const BROADCAST: u16 = 4;
const OUT: u16 = 4;
const GATEWAY: u16 = 5;

/// Changes the interfaces. One that the kernel does not have is left out: there is nothing of it that
/// could be another guest's, too.
pub fn change(wanted: &[NewInterface]) -> io::Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let present = present(Path::new("/sys/class/net"))?;
    let kernel = Kernel::open()?;
    for wanted in wanted {
        let Some(&index) = present.get(usize::from(wanted.place)) else {
            continue;
        };
        if let Some(mac) = &wanted.mac {
            kernel.ask(SET_LINK, 0, &link(index, mac))?;
        }
        if let Some(address) = &wanted.address {
            // First, as those of the same network would go with the first of them.
            for other in kernel.list(GET_ADDRESSES, &[IPV4; 1], NEW_ADDRESS)? {
                if is_other(&other, index, address.ip) {
                    kernel.ask(DELETE_ADDRESS, 0, &other[HEADER..])?;
                }
            }
            let body = local(index, address.ip, address.prefix);
            kernel.ask(NEW_ADDRESS, PUT, &body)?;
        }
        if let Some(gateway) = &wanted.gateway {
            kernel.ask(NEW_ROUTE, PUT, &default_route(index, *gateway))?;
        }
    }
    Ok(())
}

/// The kernel's numbers of the virtio network devices, in the machine's order: the kernel numbers
/// virtio devices as it finds them.
fn present(classes: &Path) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(classes)?.flatten() {
        let Ok(device) = fs::canonicalize(entry.path().join("device")) else {
            continue;
        };
        let name = device.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix("virtio")?.parse().ok());
        let index = fs::read_to_string(entry.path().join("ifindex")).ok();
        let index = index.and_then(|index| index.trim_end().parse().ok());
        if let (Some(number), Some(index)) = (number, index) {
            let number: u32 = number;
            found.push((number, index));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, index)| index).collect())
}

fn link(index: u32, mac: &[u8; 6]) -> Vec<u8> {
    let mut body = vec![0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    attribute(&mut body, LINK_ADDRESS, mac);
    body
}

fn local(index: u32, ip: Ipv4Addr, prefix: u8) -> Vec<u8> {
    let mut body = vec![IPV4, prefix, 0, 0];
    body.extend(index.to_ne_bytes());
    attribute(&mut body, LOCAL, &ip.octets());
    attribute(&mut body, PEER, &ip.octets());
    // A network of two has none.
    if prefix < 31 {
        let all = u32::from(ip) | u32::MAX >> prefix;
        attribute(&mut body, BROADCAST, &all.to_be_bytes());
    }
    body
}

/// Whether a message of the list is about another address of the interface.
fn is_other(message: &[u8], index: u32, ip: Ipv4Addr) -> bool {
    let Some((body, mut rest)) = message
        .get(HEADER..)
        .and_then(|body| body.split_at_checked(ADDRESS))
    else {
        return false;
    };
    if body[0] != IPV4 || body[4..] != index.to_ne_bytes() {
        return false;
    }
    while let Some(head) = rest.get(..4) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(data) = rest.get(4..len) else {
            return false;
        };
        if u16::from_ne_bytes([head[2], head[3]]) == LOCAL {
            return data != ip.octets();
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

fn default_route(index: u32, gateway: Ipv4Addr) -> Vec<u8> {
    let mut body = vec![IPV4, 0, 0, 0, MAIN, STATIC, 0, UNICAST, 0, 0, 0, 0];
    attribute(&mut body, GATEWAY, &gateway.octets());
    attribute(&mut body, OUT, &index.to_ne_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(body: &[u8]) -> Vec<u8> {
        [&[0; HEADER][..], body].concat()
    }

    #[test]
    fn other_addresses_of_the_same_interface_go() {
        let (mine, other) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3));
        assert!(is_other(&listed(&local(7, other, 24)), 7, mine));
        assert!(!is_other(&listed(&local(7, mine, 24)), 7, mine));
        assert!(!is_other(&listed(&local(8, other, 24)), 7, mine));
        let mut lie = local(7, other, 24);
        for len in [0u16, 3, 100, u16::MAX] {
            lie[ADDRESS..ADDRESS + 2].copy_from_slice(&len.to_ne_bytes());
            assert!(!is_other(&listed(&lie), 7, mine), "{len}");
        }
        assert!(!is_other(&[0; 5], 7, mine));
    }

    #[test]
    fn networks_have_broadcast_addresses() {
        let ip = Ipv4Addr::new(172, 16, 77, 2);
        let last = |prefix| local(1, ip, prefix).split_off(ADDRESS + 16);
        assert_eq!(last(24)[4..], [172, 16, 77, 255]);
        assert_eq!(last(30)[4..], [172, 16, 77, 3]);
        assert!(last(31).is_empty() && last(32).is_empty());
    }

    #[test]
    fn devices_are_in_the_machines_order() {
        let sys = tempfile::tempdir().unwrap();
        let class = sys.path().join("class");
        for (name, device, index) in [
            ("lo", None, 1),
            ("eth0", Some("virtio12"), 2),
            ("wan", Some("virtio3"), 5),
            ("usb0", Some("1-1"), 4),
        ] {
            let dir = class.join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("ifindex"), format!("{index}\n")).unwrap();
            if let Some(device) = device {
                let device = sys.path().join(device);
                fs::create_dir(&device).unwrap();
                std::os::unix::fs::symlink(device, dir.join("device")).unwrap();
            }
        }
        assert_eq!(present(&class).unwrap(), [5, 2]);
    }
}
