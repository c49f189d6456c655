//! A host inside the device.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tine_devices::bus::lock;
use tine_devices::virtio::net::{Detour, Net, PEEK_LEN};

use super::driver::{Guest, MERGEABLE, config, framed, load};
use super::fake::Cable;

/// Takes frames that begin with its mark, and answers each by several, one at each poll.
#[derive(Default)]
struct State {
    left: u8,
    ready: VecDeque<Vec<u8>>,
    due: Option<Duration>,
    polls: usize,
    resets: usize,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<State>>);

const MARK: u8 = 0xd0;

impl Detour for Fake {
    fn wants(&self, start: &[u8]) -> bool {
        assert!(start.len() <= PEEK_LEN);
        start.first() == Some(&MARK)
    }

    fn take(&mut self, frame: &mut [u8]) {
        lock(&self.0).left += frame[1];
    }

    fn poll(&mut self) {
        let mut state = lock(&self.0);
        state.polls += 1;
        if state.left > 0 && state.ready.is_empty() {
            state.left -= 1;
            let answer = vec![state.left; 60];
            state.ready.push_back(answer);
        }
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        lock(&self.0).ready.pop_front()
    }

    fn has_frames(&self) -> bool {
        !lock(&self.0).ready.is_empty()
    }

    fn due(&mut self) -> Option<Duration> {
        lock(&self.0).due
    }

    fn reset(&mut self) {
        let mut state = lock(&self.0);
        state.resets += 1;
        state.left = 0;
        state.ready.clear();
    }
}

fn guest() -> (Guest, Fake) {
    let (cable, fake) = (Cable::new(), Fake::default());
    let net = Net::with_backend(&config(), cable.clone()).unwrap();
    let net = net.with_detour(Box::new(fake.clone())).unwrap();
    (Guest::with_device(net, cable, MERGEABLE), fake)
}

fn mark(answers: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..2].copy_from_slice(&[MARK, answers]);
    frame
}

#[test]
fn its_frames_are_taken_and_answered_and_all_others_go_on() {
    let (mut guest, _) = guest();
    guest.post(16, 300);
    guest.send(&mark(5));
    guest.send(b"other");
    guest.settle();
    for left in (0..5).rev() {
        let (header, bytes) = guest.received().unwrap();
        assert_eq!(bytes, [left; 60]);
        assert_eq!(header, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    }
    assert_eq!(guest.cable.sent(), [framed(b"other")]);
    assert_eq!(guest.tx_used(), 2);
    let stats = guest.handle.stats();
    assert_eq!(
        (load(&stats.detour_tx_frames), load(&stats.detour_rx_frames)),
        (1, 5)
    );
    assert_eq!((load(&stats.tx_frames), load(&stats.rx_frames)), (1, 5));
    assert!(!guest.driver.run_backend(20));
}

#[test]
fn answers_wait_for_buffers() {
    let (mut guest, _) = guest();
    guest.send(&mark(2));
    guest.settle();
    for left in (0..2).rev() {
        assert!(guest.received().is_none());
        guest.post(1, 300);
        guest.settle();
        assert_eq!(guest.received().unwrap().1, [left; 60]);
    }
}

#[test]
fn it_is_polled_when_it_is_due_and_not_otherwise() {
    let (mut guest, fake) = guest();
    lock(&fake.0).due = Some(Duration::from_millis(30));
    guest.send(&mark(0));
    let polls = lock(&fake.0).polls;
    guest.send(b"other");
    assert_eq!(lock(&fake.0).polls, polls);
    assert!(guest.driver.run_backend(5_000));
    assert_eq!(lock(&fake.0).polls, polls + 1);
    lock(&fake.0).due = None;
    assert!(guest.driver.run_backend(5_000));
    assert!(!guest.driver.run_backend(60));
}

#[test]
fn a_reset_is_one_for_it_too() {
    let (mut guest, fake) = guest();
    lock(&fake.0).due = Some(Duration::from_millis(10));
    guest.send(&mark(9));
    guest.driver.reset();
    assert!(!guest.driver.run_backend(40));
    assert_eq!(lock(&fake.0).resets, 1);
    guest.driver.start(MERGEABLE);
    guest.post(4, 300);
    guest.settle();
    // One answer had been taken and waited for a buffer: it went with the driver that it was for.
    assert!(guest.received().is_none());
}

#[test]
fn a_long_frame_is_none_of_its_business() {
    let (mut guest, _) = guest();
    let mut long = vec![0; 20_000];
    long[0] = MARK;
    guest.send(&long);
    assert_eq!(guest.cable.sent().len(), 1);
}
