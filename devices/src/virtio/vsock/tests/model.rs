//! Properties of one connection's protocol, with neither sockets nor memory.

use proptest::prelude::*;

use super::super::connection::{Connection, Reaction};
use super::*;

const KEY: Key = Key { host: 5, guest: 1 };

fn packet(op: u16, len: u32, flags: u32, buf_alloc: u32, fwd_cnt: u32) -> Header {
    Header {
        op,
        len,
        flags,
        buf_alloc,
        fwd_cnt,
        ..Header::default()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Packet(Header),
    Forward(u32),
    Send(u32),
    Control,
    HostSentAll,
    HostReadsNoMore,
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![4 => Just(op::RW), 4 => 1u16..8, 1 => any::<u16>()];
    let len = prop_oneof![0u32..10, 0..=MAX_PACKET_LEN];
    let count = prop_oneof![0u32..10_000, any::<u32>()];
    let packet = (op, len, 0u32..5, count.clone(), count)
        .prop_map(|(op, len, flags, alloc, fwd)| Step::Packet(packet(op, len, flags, alloc, fwd)));
    prop_oneof![
        6 => packet,
        2 => any::<u32>().prop_map(Step::Forward),
        2 => any::<u32>().prop_map(Step::Send),
        4 => Just(Step::Control),
        1 => Just(Step::HostSentAll),
        1 => Just(Step::HostReadsNoMore),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // A guest can send what it likes: we hold no more than we advertised, send no more than it
    // has room for, and never fall into sending control packets for ever.
    #[test]
    fn any_packets_keep_a_connection_within_its_bounds(
        from_guest: bool,
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let mut connection = match from_guest {
            true => Connection::from_guest(&packet(op::REQUEST, 0, 0, 1000, 0)),
            false => Connection::to_guest(),
        };
        for step in steps {
            match step {
                Step::Packet(header) => {
                    let held = connection.held();
                    let over = match connection.on_packet(&header) {
                        Reaction::Data => {
                            prop_assert_eq!(connection.held(), held + header.len);
                            false
                        }
                        Reaction::Closed | Reaction::Gone | Reaction::Violation => true,
                        _ => false,
                    };
                    if over {
                        return Ok(());
                    }
                    prop_assert!(connection.room() <= header.buf_alloc);
                }
                Step::Forward(len) => connection.forwarded(len.min(connection.held())),
                Step::Send(len) => {
                    let room = connection.room();
                    let len = len.min(room);
                    connection.send(&mut Header::default(), len);
                    prop_assert_eq!(connection.room(), room - len);
                }
                Step::Control => {
                    connection.wants_to_send();
                    let count = (0..20)
                        .take_while(|_| connection.next_control(&mut Header::default()))
                        .count();
                    prop_assert!(count <= 5, "{} control packets in a row", count);
                }
                Step::HostSentAll => connection.host_sent_all(),
                Step::HostReadsNoMore => connection.host_reads_no_more(),
            }
            prop_assert!(connection.held() <= BUFFER_LEN);
        }
    }

    // Two honest sides of any speed: every byte gets through both ways, without a deadlock.
    #[test]
    fn honest_sides_never_wait_for_each_other(
        guest_buffer in 1u32..70_000,
        speeds in prop::collection::vec((1u32..90_000, 0u32..90_000, 1u32..90_000), 1..10),
    ) {
        const LEN: u32 = 1 << 20;
        let request = packet(op::REQUEST, 0, 0, guest_buffer, 0);
        let mut connection = Connection::from_guest(&request);
        // What the guest knows and holds.
        let (mut buf_alloc, mut fwd_cnt) = (0, 0);
        let (mut to_host, mut to_guest, mut read_by_guest, mut told) = (0, 0, 0, 0u32);
        let mut reached_host = 0;
        let mut idle = 0;
        for (send, read, forward) in speeds.iter().cycle() {
            let before = (to_host, to_guest, read_by_guest, reached_host);
            // The guest sends what it believes there is room for.
            let room = u32::saturating_sub(buf_alloc, to_host - fwd_cnt);
            let len = (*send).min(room).min(LEN - to_host).min(MAX_PACKET_LEN);
            if len > 0 {
                to_host += len;
                told = read_by_guest;
                let data = packet(op::RW, len, 0, guest_buffer, told);
                prop_assert_eq!(connection.on_packet(&data), Reaction::Data);
            }
            // It reads, and tells of it as Linux does.
            let len = (*read).min(to_guest - read_by_guest);
            read_by_guest += len;
            if len > 0 && guest_buffer - (to_guest - told).min(guest_buffer) < MAX_PACKET_LEN {
                told = read_by_guest;
                let update = packet(op::CREDIT_UPDATE, 0, 0, guest_buffer, told);
                prop_assert_eq!(connection.on_packet(&update), Reaction::Nothing);
            }
            // The host program takes some.
            let len = (*forward).min(connection.held());
            connection.forwarded(len);
            reached_host += len;
            // The device sends what it has.
            connection.wants_to_send();
            let mut header = Header::to_guest(CID, KEY, 0);
            let len = (*forward).min(connection.room()).min(LEN - to_guest);
            let sent = match len {
                0 => connection.next_control(&mut header),
                _ => {
                    connection.send(&mut header, len);
                    to_guest += len;
                    true
                }
            };
            if sent {
                (buf_alloc, fwd_cnt) = (header.buf_alloc, header.fwd_cnt);
            }
            if reached_host == LEN && read_by_guest == LEN {
                return Ok(());
            }
            let now = (to_host, to_guest, read_by_guest, reached_host);
            idle = if now == before { idle + 1 } else { 0 };
            let blocked = speeds.iter().all(|(_, read, _)| *read == 0);
            if blocked && reached_host == LEN {
                return Ok(());
            }
            prop_assert!(idle < 50, "stuck at {:?}", now);
        }
    }
}
