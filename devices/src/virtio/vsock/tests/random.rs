//! Random packets against the whole device, with host programs that do what they like meanwhile.

use proptest::prelude::*;

use super::hostile::assert_alive;
use super::*;

#[derive(Debug, Clone)]
enum Step {
    Packet { header: Header, data: Vec<u8> },
    Connect(u32),
    Write(usize, usize),
    Read(usize),
    Close(usize),
    HalfClose(usize),
    Work,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let port = prop_oneof![
        Just(5u32),
        Just(6),
        1u32..4,
        (1u32 << 30) + 1..(1 << 30) + 6
    ];
    let op = prop_oneof![8 => 1u16..8, 4 => Just(op::RW), 1 => any::<u16>()];
    let cid = prop_oneof![20 => Just(CID), 1 => any::<u64>()];
    let kind = prop_oneof![20 => Just(TYPE_STREAM), 1 => any::<u16>()];
    let len = prop_oneof![Just(0usize), 0usize..20, 0usize..70_000];
    let credit = prop_oneof![0u32..100, any::<u32>(), Just(256 << 10)];
    let fields = (cid, (port.clone(), port), kind, op, 0u32..5, credit, len);
    let packet = (fields, any::<u8>()).prop_map(|(fields, lie)| {
        let (src_cid, (src_port, dst_port), kind, op, flags, buf_alloc, len) = fields;
        let header = Header {
            src_cid,
            dst_cid: HOST_CID,
            src_port,
            dst_port,
            len: len as u32 + u32::from(lie == 0),
            kind,
            op,
            flags,
            buf_alloc,
            fwd_cnt: if lie == 1 { buf_alloc } else { 0 },
        };
        let data = vec![lie; len];
        Step::Packet { header, data }
    });
    let step = prop_oneof![
        8 => packet,
        2 => (1u32..4).prop_map(Step::Connect),
        1 => (0usize..8, 0usize..50_000).prop_map(|(at, len)| Step::Write(at, len)),
        1 => (0usize..8).prop_map(Step::Read),
        1 => (0usize..8).prop_map(Step::Close),
        1 => (0usize..8).prop_map(Step::HalfClose),
        3 => Just(Step::Work),
    ];
    prop::collection::vec(step, 1..80)
}

fn submit_raw(guest: &mut Guest, header: Header, data: &[u8]) {
    let header = header.to_bytes();
    match data.is_empty() {
        true => guest.driver.submit(TX, &[Buffer::Out(&header)]),
        false => {
            let chain = [Buffer::Out(&header[..]), Buffer::Out(data)];
            guest.driver.submit(TX, &chain)
        }
    };
    guest.driver.kick(TX);
    assert!(guest.driver.used(TX).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // Whatever the guest sends and whatever the host does meanwhile: no panic, no spinning, and
    // the next connection works.
    #[test]
    fn any_packets_leave_the_device_alive(steps in steps()) {
        let mut guest = Guest::new();
        let listener = guest.handle.listen(5).unwrap();
        let mut hosts: Vec<UnixStream> = Vec::new();
        for step in steps {
            match step {
                Step::Packet { header, data } => submit_raw(&mut guest, header, &data),
                Step::Connect(port) => hosts.push(guest.handle.connect(port).unwrap()),
                Step::Work => {
                    guest.driver.run_backend(0);
                    while guest.poll().is_some() {}
                }
                Step::Write(at, len) => {
                    if let Some(host) = hosts.get_mut(at) {
                        host.set_nonblocking(true).unwrap();
                        let _ = host.write(&vec![1; len]);
                    }
                }
                Step::Read(at) => {
                    if let Some(host) = hosts.get_mut(at) {
                        host.set_nonblocking(true).unwrap();
                        let _ = host.read(&mut vec![0; 100_000]);
                    }
                }
                Step::Close(at) if at < hosts.len() => drop(hosts.remove(at)),
                Step::HalfClose(at) if at < hosts.len() => {
                    let _ = hosts[at].shutdown(std::net::Shutdown::Write);
                }
                Step::Close(_) | Step::HalfClose(_) => {}
            }
            while let Some(host) = listener.accept(Duration::ZERO) {
                hosts.push(host);
            }
        }
        assert_alive(&mut guest);
        drop(hosts);
        guest.settle();
        assert_alive(&mut guest);
    }
}
