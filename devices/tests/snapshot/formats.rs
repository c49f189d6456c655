//! Sections as they were written by earlier builds. They stay here for ever: a build that makes
//! other ones has to give them another version, and to read these too.

use std::sync::Arc;

use tine_devices::bus::{BusDeviceMut, lock};
use tine_devices::irq::NoIrq;
use tine_devices::legacy::i8042::I8042;
use tine_devices::legacy::power::SleepRegisters;
use tine_devices::legacy::serial::Serial;
use tine_devices::rate::{BucketConfig, RateLimiterConfig};
use tine_devices::testing::FakeDriver;
use tine_devices::virtio::VirtioDevice;
use tine_devices::virtio::block::{Block, BlockConfig};
use tine_devices::virtio::net::{Net, NetConfig, TapSource};
use tine_snapshot::section::Section;

use crate::balloon::Everything;
use crate::cable::Cable;
use crate::disk::FakeDisk;
use crate::rng::Entropy;
use crate::suite::Subject;
use crate::vsock::Sockets;

const NAME: &str = "part";

fn section(name: &str, kind: &str, version: u16, hex: &str) -> Section {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    Section {
        name: name.to_owned(),
        kind: kind.to_owned(),
        version,
        payload: digits.chunks(2).map(byte).collect(),
    }
}

/// A device takes old sections; and what it makes of them now, if they are of this version.
#[track_caller]
fn reads(device: Box<dyn VirtioDevice>, sections: [Section; 2]) {
    let driver = FakeDriver::boxed(device);
    lock(&driver.transport).restore(NAME, &sections).unwrap();
    assert_eq!(driver.save(NAME), sections);
}

fn limits() -> Option<RateLimiterConfig> {
    let bucket = BucketConfig {
        size: 1000,
        one_time_burst: Some(50),
        refill_time: 100,
    };
    Some(RateLimiterConfig {
        bandwidth: Some(bucket),
        ops: None,
    })
}

const MMIO: &str = "virtio-mmio";

fn virtio(kind: &str, device: &str, transport: &str) -> [Section; 2] {
    [
        section(NAME, kind, 1, device),
        section(&format!("{NAME}/transport"), MMIO, 1, transport),
    ]
}

#[test]
fn virtio_block_1() {
    let config = BlockConfig {
        rate_limiter: limits(),
        ..BlockConfig::new("root", "")
    };
    let block = Block::with_backend(&config, FakeDisk::new(8)).unwrap();
    let device = "802000726f6f740000000000000000000000000000000001e80780c2d72fd00f003200";
    let transport = "020f0000000000018080808010014001808004808005808006000000";
    reads(Box::new(block), virtio("virtio-block", device, transport));
}

#[test]
fn virtio_net_1() {
    let config = NetConfig {
        guest_mac: Some("06:00:ac:10:00:02".parse().unwrap()),
        mtu: Some(1400),
        rx_rate_limiter: limits(),
        ..NetConfig::new("eth0", TapSource::Name("none".into()))
    };
    let net = Net::with_backend(&config, Cable::new()).unwrap();
    let device = "010600ac10000201f80a000001e80780c2d72fd00f0032000000";
    let transport = "010f00000002000180808081120340018080048080058080060000004001808008
        80800980800a000000400180800c80800d80800e000000";
    reads(Box::new(net), virtio("virtio-net", device, transport));
}

#[test]
fn virtio_balloon_1() {
    let device = "ae80808003801200901c0104808040000001000001";
    let transport = "050f000100040001ae808080120540018080048080058080060101004001808008
        80800980800a010100400180800c80800d80800e0000004001808010808011808012
        0000004001808014808015808016010100";
    let sections = virtio("virtio-balloon", device, transport);
    reads(Everything::make().0, sections);
}

#[test]
fn virtio_vsock_1() {
    let transport = "130f00010002000180808080120340018080048080058080060202004001808008
        80800980800a030300400180800c80800d80800e000000";
    let sections = virtio("virtio-vsock", "8180808004", transport);
    reads(Sockets::make().0, sections);
}

#[test]
fn virtio_rng_1() {
    let transport = "040f0000000000018080808012014001808004808005808006000000";
    reads(Entropy::make().0, virtio("virtio-rng", "", transport));
}

#[test]
fn serial_1() {
    let saved = section(NAME, "serial-16550a", 1, "0c000306036110b05a026162");
    let mut serial = Serial::new(Arc::new(NoIrq), Vec::new());
    serial.restore(&saved).unwrap();
    assert_eq!(serial.save(NAME).unwrap(), saved);
    let mut read = [0; 2].map(|_| {
        let mut byte = [0];
        serial.read(0, &mut byte);
        byte[0]
    });
    assert_eq!(&read, b"ab");
    serial.read(7, &mut read[..1]);
    assert_eq!(read[0], 0x5a);
}

#[test]
fn without_state_1() {
    let saved = section(NAME, "i8042", 1, "");
    let mut keyboard = I8042::new(|| {});
    keyboard.restore(&saved).unwrap();
    assert_eq!(keyboard.save(NAME).unwrap(), saved);
    let saved = section(NAME, "acpi-sleep", 1, "");
    let mut registers = SleepRegisters::new(|| {});
    registers.restore(&saved).unwrap();
    assert_eq!(registers.save(NAME).unwrap(), saved);
}
