//! Random frames: none of them may do harm, and the store has to go on.

use proptest::prelude::*;
use tine_devices::mmds::MmdsVersion;
use tine_devices::virtio::net::Detour;

use super::client::{Client, Direct, Wire, store};

/// A frame to the store that has the form of one, up to some point.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let tcp = (
        any::<u16>(),
        any::<u32>(),
        any::<u32>(),
        any::<u8>(),
        any::<u8>(),
        any::<u16>(),
    );
    let rest = prop::collection::vec(any::<u8>(), 0..200);
    let breaks = prop::collection::vec((0..120usize, any::<u8>()), 0..6);
    (tcp, rest, breaks, any::<bool>(), 0..260usize).prop_map(
        |((port, seq, ack, offset, flags, window), rest, breaks, arp, len)| {
            let mut frame = vec![6, 1, 0x23, 0x45, 0x67, 1, 6, 0, 0, 0, 0, 7];
            if arp {
                frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, flags & 3]);
                frame.extend([6, 0, 0, 0, 0, 7, 172, 16, 0, 2]);
                frame.extend([0, 0, 0, 0, 0, 0, 169, 254, 169, 254]);
            } else {
                let total = (40 + rest.len()) as u16;
                frame.extend([8, 0, 0x45, 0]);
                frame.extend(total.to_be_bytes());
                frame.extend([
                    0,
                    0,
                    0,
                    0,
                    64,
                    if flags & 0xc0 == 0xc0 { 17 } else { 6 },
                    0,
                    0,
                ]);
                frame.extend([172, 16, 0, 2, 169, 254, 169, 254]);
                frame.extend(port.to_be_bytes());
                frame.extend(80u16.to_be_bytes());
                frame.extend(seq.to_be_bytes());
                frame.extend(ack.to_be_bytes());
                frame.extend([offset | 0x50, flags & 0x3f]);
                frame.extend(window.to_be_bytes());
                frame.extend([0, 0, 0, 0]);
            }
            frame.extend(rest);
            for (at, value) in breaks {
                // Not the kind and the address, so that it is for the store.
                if !(12..14).contains(&at) && !(30..34).contains(&at) && at < frame.len() {
                    frame[at] = value;
                }
            }
            frame.truncate(len.max(34));
            frame
        },
    )
}

/// What happens to a frame on its way to the store.
#[derive(Debug, Clone)]
enum Noise {
    Lose,
    Repeat,
    /// Comes after the next one.
    Delay,
    Cut(usize),
    Change(usize, u8),
}

/// A wire on which things happen to frames, for a while.
struct Noisy {
    wire: Direct,
    noise: Vec<Option<Noise>>,
    delayed: Option<Vec<u8>>,
}

impl Wire for Noisy {
    fn send(&mut self, mut frame: Vec<u8>) {
        match self.noise.pop().flatten() {
            Some(Noise::Lose) => return,
            Some(Noise::Repeat) => self.wire.send(frame.clone()),
            Some(Noise::Delay) => {
                self.delayed = Some(frame);
                return;
            }
            Some(Noise::Cut(len)) => frame.truncate(len.max(34)),
            Some(Noise::Change(at, value)) => {
                let at = 14 + at % (frame.len() - 14);
                if !(30..34).contains(&at) {
                    frame[at] = value;
                }
            }
            None => {}
        }
        self.wire.send(frame);
        if let Some(delayed) = self.delayed.take() {
            self.wire.send(delayed);
        }
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        self.wire.receive()
    }
}

fn noise() -> impl Strategy<Value = Option<Noise>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(Noise::Lose)),
        1 => Just(Some(Noise::Repeat)),
        1 => Just(Some(Noise::Delay)),
        1 => (0..200usize).prop_map(|len| Some(Noise::Cut(len))),
        4 => (0..90usize, any::<u8>()).prop_map(|(at, value)| Some(Noise::Change(at, value))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Frames of real conversations, so that what is wrong with them comes in every state of TCP.
    #[test]
    fn no_damaged_conversation_does_harm(noise in prop::collection::vec(noise(), 1..80)) {
        let mmds = store(MmdsVersion::V1);
        let wire = Noisy { wire: Direct::to(&mmds), noise, delayed: None };
        let mut guest = Client::new(wire);
        for _ in 0..4 {
            let socket = guest.start_to_connect(super::client::STORE);
            for round in 0..12 {
                guest.run();
                if guest.is_open(socket) && round % 3 == 0 {
                    guest.send(socket, b"GET / HTTP/1.1\r\n\r\n");
                }
            }
            guest.close(socket);
            guest.run();
        }
        let mut other = Client::new(guest.wire.wire);
        other.skip_ports(1000);
        prop_assert_eq!(other.get("/").status, 200);
    }

    #[test]
    fn no_frame_does_harm(frames in prop::collection::vec(frame(), 1..60)) {
        let mmds = store(MmdsVersion::V1);
        let mut responder = mmds.responder();
        for mut frame in frames {
            responder.take(&mut frame);
            responder.poll();
            let _ = responder.due();
            while responder.next_frame().is_some() {}
        }
    }

    #[test]
    fn any_bytes_on_a_connection_are_answered_or_waited_for(
        bytes in prop::collection::vec(any::<u8>(), 1..3000),
        text in "[ -~\r\n]{0,400}",
    ) {
        let mut guest = Client::new(Direct::to(&store(MmdsVersion::V2)));
        for bytes in [&bytes[..], text.as_bytes()] {
            let socket = guest.connect();
            let mut rest = bytes;
            while guest.is_open(socket) && !rest.is_empty() {
                let len = rest.len().min(500);
                guest.send(socket, &rest[..len]);
                rest = &rest[len..];
            }
            guest.close(socket);
            guest.run();
        }
        prop_assert_eq!(guest.get("/").status, 401);
    }
}
