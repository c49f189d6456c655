//! Addresses, connections, and what is too much.

use std::net::Ipv4Addr;

use tine_devices::mmds::{MAX_CONNECTIONS, MAX_REQUEST_LEN, MmdsConfig, MmdsVersion};
use tine_devices::virtio::net::Detour;

use super::client::{Client, Direct, Wire, store};

const GET: &[u8] = b"GET /latest/user-data HTTP/1.1\r\n\r\n";

fn guest() -> Client<Direct> {
    Client::new(Direct::to(&store(MmdsVersion::V1)))
}

#[test]
fn a_guest_that_knows_only_its_router_is_answered_too() {
    let mut guest = Client::behind_router(Direct::to(&store(MmdsVersion::V1)));
    guest.run();
    assert_eq!(guest.get("/latest/meta-data/ami-id").body, "ami-1");
}

#[test]
fn the_store_can_have_another_link_local_address() {
    let mmds = store(MmdsVersion::V1);
    let ipv4_address = Ipv4Addr::new(169, 254, 7, 7);
    let config = MmdsConfig {
        ipv4_address,
        ..MmdsConfig::default()
    };
    mmds.configure(config).unwrap();
    let mut guest = Client::new(Direct::to(&mmds));
    let socket = guest.connect_to(ipv4_address);
    guest.send(socket, GET);
    assert_eq!(guest.answer(socket).status, 200);
    let responder = mmds.responder();
    let mut ip = vec![0; 34];
    ip[12] = 8;
    for (addr, wanted) in [([169, 254, 7, 7], true), ([169, 254, 169, 254], false)] {
        ip[30..].copy_from_slice(&addr);
        assert_eq!(responder.wants(&ip), wanted);
    }
}

#[test]
fn frames_to_others_are_not_wanted() {
    let responder = store(MmdsVersion::V1).responder();
    let mut frame = vec![0; 42];
    frame[30..34].copy_from_slice(&[169, 254, 169, 254]);
    for kind in [[0x86, 0xdd], [0x81, 0], [8, 6], [0, 0]] {
        frame[12..14].copy_from_slice(&kind);
        assert!(!responder.wants(&frame), "{kind:x?}");
    }
    frame[12..14].copy_from_slice(&[8, 0]);
    assert!(responder.wants(&frame));
    for len in 0..34 {
        assert!(!responder.wants(&frame[..len]));
    }
}

#[test]
fn a_connection_serves_many_requests_also_when_they_come_at_once() {
    let mut guest = guest();
    let socket = guest.connect();
    for _ in 0..20 {
        guest.send(socket, GET);
        assert_eq!(
            guest.answer(socket).header("connection"),
            Some("keep-alive")
        );
    }
    guest.send(socket, &GET.repeat(20));
    for _ in 0..20 {
        assert_eq!(guest.answer(socket).body, "#!/bin/sh\necho hi\n");
    }
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let mut guest = guest();
    let socket = guest.connect();
    for byte in GET {
        guest.send(socket, &[*byte]);
    }
    assert_eq!(guest.answer(socket).status, 200);
}

#[test]
fn a_connection_ends_when_the_guest_says_so() {
    let mut guest = guest();
    for request in [
        "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        let socket = guest.connect();
        guest.send(socket, request.as_bytes());
        let answer = guest.answer(socket);
        assert_eq!(
            (answer.status, answer.header("connection")),
            (200, Some("close"))
        );
        assert!(guest.ends(socket));
    }
}

#[test]
fn a_body_is_read_and_of_no_interest() {
    let mut guest = guest();
    let socket = guest.connect();
    let request = "PUT /latest/api/token HTTP/1.1\r\nX-metadata-token-ttl-seconds: 9\r\n\
                   Content-Length: 5\r\n\r\nhello";
    guest.send(socket, request.as_bytes());
    assert_eq!(guest.answer(socket).status, 200);
    guest.send(socket, GET);
    assert_eq!(guest.answer(socket).status, 200);
}

#[test]
fn what_is_no_request_is_answered_once_and_ends_the_connection() {
    let mut guest = guest();
    let long = "x".repeat(MAX_REQUEST_LEN);
    let many = "a: b\r\n".repeat(40);
    for (request, status) in [
        ("\0\0\0\0\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/9.9\r\n\r\n".into(), 400),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), 431),
        ("PUT / HTTP/1.1\r\nContent-Length: 9000\r\n\r\n".into(), 413),
        ("PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n".into(), 400),
        (
            "PUT / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n".into(),
            413,
        ),
        (
            "PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".into(),
            400,
        ),
        (
            "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
            501,
        ),
    ] {
        let socket = guest.connect();
        guest.send(socket, request.as_bytes());
        let answer = guest.answer(socket);
        assert_eq!(answer.status, status, "{request:.60}");
        assert!(guest.ends(socket));
    }
    assert_eq!(guest.get("/latest/user-data").status, 200);
}

#[test]
fn more_connections_than_there_may_be_are_refused_until_some_end() {
    let mut guest = guest();
    let mut sockets: Vec<_> = (0..MAX_CONNECTIONS).map(|_| guest.connect()).collect();
    assert!(sockets.iter().all(|socket| guest.is_open(*socket)));
    let refused = guest.connect();
    assert!(!guest.is_open(refused));
    let ended = sockets.pop().unwrap();
    guest.close(ended);
    guest.run();
    guest.run();
    for socket in sockets {
        guest.send(socket, GET);
        assert_eq!(guest.answer(socket).status, 200);
    }
    assert_eq!(guest.get("/latest/user-data").status, 200);
}

#[test]
fn many_short_connections_are_no_matter() {
    let mut guest = guest();
    for _ in 0..4 * MAX_CONNECTIONS {
        let socket = guest.connect();
        guest.send(socket, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
        assert_eq!(guest.answer(socket).status, 200);
        assert!(guest.ends(socket));
        guest.close(socket);
        guest.run();
    }
}

#[test]
fn there_is_nothing_before_the_first_frame_and_after_a_reset() {
    let mmds = store(MmdsVersion::V1);
    let mut wire = Direct::to(&mmds);
    assert_eq!(wire.responder.due(), None);
    assert!(wire.receive().is_empty());
    let mut guest = Client::new(wire);
    let socket = guest.connect();
    assert!(guest.wire.responder.due().is_some());
    guest.wire.responder.reset();
    assert_eq!(guest.wire.responder.due(), None);
    // The guest hears of it when it goes on.
    guest.send(socket, GET);
    for _ in 0..4 {
        guest.run();
    }
    assert!(!guest.is_open(socket));
    assert_eq!(guest.get("/").status, 200);
}
