//! `cargo bench -p tine-bench --bench host_share`: the host's own share of an exec's round trip.
//!
//! The exchange of `POST /v1/exec` replayed with everything of the host and nothing of a guest: a
//! client, the machine's socket, the API's thread, the vsock device on its thread, all as in
//! `tine-vmm`; the guest is a thread that looks at the virtio rings and answers at once with the
//! bytes that an agent answers with. So the figure is what a round trip would take if the guest took
//! no time: five threads' hand-overs (client, API, device, and back) with what each does. Not in it:
//! KVM's own way of delivering an interrupt, and of telling of a notification.
//!
//! Twice: one exchange after the other, and with a pause before the guest's answer and before the
//! next request, in which processors go idle and caches are used for other things, as with a guest
//! that is at work.
//!
//! Beside it the bare hand-overs: as many threads that pass a byte on in the same order and do
//! nothing else. What they take is the kernel's and the processors' price of waking a thread, five
//! times; the rest is the work of the program. How often each thread slept is counted, so that a
//! wake-up too many would show.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use event_manager::{EventManager, MutEventSubscriber, SubscriberOps};
use tine::api::{DEFAULT_MAX_BODY, Prepared, Socket};
use tine::control::{Controller, Identity, State};
use tine_devices::bus::lock;
use tine_devices::mmds::Mmds;
use tine_devices::testing::{Buffer, FakeDriver};
use tine_devices::virtio::events::DeviceEvents;
use tine_devices::virtio::vsock::{Vsock, VsockConfig};
use vmm_sys_util::eventfd::EventFd;

const CID: u64 = 3;
const HOST_CID: u64 = 2;
const AGENT_PORT: u32 = 1024;
/// Queues of the device.
const RX: usize = 0;
const TX: usize = 1;
/// Length of a packet's header, and its operations (virtio 1.2, section 5.10.6).
const HEADER: usize = 44;
const REQUEST: u16 = 1;
const RESPONSE: u16 = 2;
const RW: u16 = 5;
const CREDIT_UPDATE: u16 = 6;
const CREDIT_REQUEST: u16 = 7;
const BUF_ALLOC: u32 = 256 << 10;
/// The size of Linux's receive buffers, and how many the guest keeps supplied.
const ROOM: u32 = 4096;
const SUPPLIED: usize = 30;

/// What is asked and answered, as long as in earnest.
const ASKED: &str = r#"{"request_id":"bench-123456","argv":["/bench/tiny"]}"#;
const ANSWERED: &str = r#"{"request_id":"bench-123456","state":"exited","exit_code":0,"signal":null,"reason":null,"stdout":"","stderr":"","stdout_encoding":"utf-8","stderr_encoding":"utf-8","stdout_truncated":false,"stderr_truncated":false,"started_at":"2026-11-29T20:52:39.104Z","ended_at":"2026-11-29T20:52:39.204Z","usage":{"cpu_us":10000,"max_memory_bytes":4096}}"#;

/// How the round trips follow one another: the pause, and how many there are.
const KINDS: [(&str, Duration, usize); 2] = [
    ("one after the other", Duration::ZERO, 2000),
    ("with pauses of 100 ms", Duration::from_millis(100), 60),
];

fn main() {
    bare_hand_overs();
    let think = Arc::new(AtomicU64::new(0));
    let paused = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let config = VsockConfig {
        guest_cid: CID as u32,
        uds_path: None,
    };
    let (device, vsock) = Vsock::new(&config).expect("a vsock device");
    let driver = FakeDriver::started(device, 0);
    let manager = EventManager::<Box<dyn MutEventSubscriber + Send>>::new_with_capacity(32);
    let mut manager = manager.expect("an event loop");
    manager.add_subscriber(Box::new(DeviceEvents::new(driver.transport.clone())));
    named("devices", move || {
        loop {
            manager.run().expect("events");
        }
    });
    let notify = lock(&driver.transport).queue_events()[TX].clone();
    let guest = Guest {
        driver,
        notify,
        forwarded: HashMap::new(),
        think: think.clone(),
        paused: paused.clone(),
        done: done.clone(),
    };
    named("guest", move || guest.run());

    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("api.sock");
    let identity = Identity {
        id: "bench".to_owned(),
        run_dir: None,
    };
    let made = Controller::new(identity, Mmds::new(1000)).expect("a controller");
    let (_controller, handle) = made.map_err(drop).expect("no deleted machine");
    let socket = Socket::bind(&path).expect("a socket");
    let dial = Box::new(move |_: &_| vsock.connect(AGENT_PORT));
    let server = Prepared::begin()
        .and_then(|server| server.serve_with(socket, handle.clone(), dial, DEFAULT_MAX_BODY));
    let server = server.expect("a server");
    handle.pretend(State::Running, None);

    let mut client = UnixStream::connect(&path).expect("a connection");
    for (name, pause, rounds) in KINDS {
        think.store(pause.as_nanos() as u64, Ordering::Relaxed);
        let pauses = || Duration::from_nanos(paused.load(Ordering::Acquire));
        let sleeps = sleeps_of(&["api", "devices"]);
        measure(name, pause, rounds, || exchange(&mut client) - pauses());
        let slept = sleeps_of(&["api", "devices"]);
        let each = |at: usize| (slept[at] - sleeps[at]) as f64 / (rounds + WARM_UP) as f64;
        println!(
            "  a round trip: api slept {:.2} times, devices {:.2}",
            each(0),
            each(1)
        );
    }
    done.store(true, Ordering::Relaxed);
    drop(client);
    server.stop();
}

/// Round trips before those that count.
const WARM_UP: usize = 5;

fn measure(name: &str, pause: Duration, rounds: usize, mut once: impl FnMut() -> Duration) {
    for _ in 0..WARM_UP {
        once();
    }
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            thread::sleep(pause);
            once()
        })
        .collect();
    times.sort();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!(
        "{name}: {rounds} round trips, median {:?}, p95 {:?}, min {:?}",
        at(50),
        at(95),
        times[0]
    );
}

/// How often this process's threads of these names have gone to sleep by themselves so far.
fn sleeps_of<const N: usize>(names: &[&str; N]) -> [u64; N] {
    let mut counts = [0; N];
    for task in std::fs::read_dir("/proc/self/task")
        .expect("threads")
        .flatten()
    {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        if let Some(at) = names.iter().position(|name| *name == field("Name:")) {
            counts[at] += field("voluntary_ctxt_switches:")
                .parse::<u64>()
                .unwrap_or(0);
        }
    }
    counts
}

/// The bare hand-overs: threads in the places of `api` and `devices` that pass a byte on, and a guest
/// that watches memory.
fn bare_hand_overs() {
    let pair = || UnixStream::pair().expect("sockets");
    let ((mut client, mut api), (mut to_device, mut device)) = (pair(), pair());
    let pause = Arc::new(AtomicU64::new(0));
    let paused = Arc::new(AtomicU64::new(0));
    let (asked, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let notify = Arc::new(EventFd::new(0).expect("an event"));
    named("bare-api", move || {
        let mut byte = [0];
        while api.read(&mut byte).is_ok_and(|count| count == 1) {
            to_device.write_all(&byte).expect("a byte");
            to_device.read_exact(&mut byte).expect("a byte");
            api.write_all(&byte).expect("a byte");
        }
    });
    let (flag, event) = (asked.clone(), notify.clone());
    named("bare-devices", move || {
        let mut byte = [0];
        while device.read(&mut byte).is_ok_and(|count| count == 1) {
            flag.store(true, Ordering::Release);
            event.read().expect("an event");
            device.write_all(&byte).expect("a byte");
        }
    });
    let (how_long, was, over) = (pause.clone(), paused.clone(), done.clone());
    named("bare-guest", move || {
        while !over.load(Ordering::Relaxed) {
            if asked.swap(false, Ordering::AcqRel) {
                let spent = pausing(how_long.load(Ordering::Relaxed));
                was.store(spent, Ordering::Release);
                notify.write(1).expect("a notification");
            }
            std::hint::spin_loop();
        }
    });
    for (name, length, rounds) in KINDS {
        pause.store(length.as_nanos() as u64, Ordering::Relaxed);
        measure(&format!("bare hand-overs, {name}"), length, rounds, || {
            let begun = Instant::now();
            client.write_all(b"x").expect("a byte");
            client.read_exact(&mut [0]).expect("a byte");
            begun.elapsed() - Duration::from_nanos(paused.load(Ordering::Acquire))
        });
    }
    done.store(true, Ordering::Relaxed);
}

/// Sleeps, and returns for how long, in nanoseconds.
fn pausing(nanos: u64) -> u64 {
    if nanos == 0 {
        return 0;
    }
    let begun = Instant::now();
    thread::sleep(Duration::from_nanos(nanos));
    begun.elapsed().as_nanos() as u64
}

fn named(name: &str, act: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(act);
    drop(thread.expect("a thread"));
}

/// One request on a connection that is kept, to the last byte of its answer.
fn exchange(client: &mut UnixStream) -> Duration {
    let request = format!(
        "POST /v1/exec HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{ASKED}",
        ASKED.len()
    );
    let mut answer = [0; 2048];
    let mut have = 0;
    let begun = Instant::now();
    client.write_all(request.as_bytes()).expect("a request");
    while !answer[..have].ends_with(ANSWERED.as_bytes()) {
        let count = client.read(&mut answer[have..]).expect("an answer");
        assert!(count > 0, "{}", String::from_utf8_lossy(&answer[..have]));
        have += count;
    }
    begun.elapsed()
}

/// The guest: it accepts connections, and answers every request with the same.
struct Guest {
    driver: FakeDriver,
    /// The event that a write to the notification register becomes.
    notify: Arc<EventFd>,
    /// Bytes taken off each connection so far, by the host's port.
    forwarded: HashMap<u32, u32>,
    /// How long to pause before an answer, and how long that was, in nanoseconds.
    think: Arc<AtomicU64>,
    paused: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
}

impl Guest {
    fn run(mut self) {
        for _ in 0..SUPPLIED {
            self.supply();
        }
        self.driver.kick(RX);
        while !self.done.load(Ordering::Relaxed) {
            match self.driver.used(RX) {
                None => std::hint::spin_loop(),
                Some(used) => {
                    self.supply();
                    self.take(&used.data);
                }
            }
        }
    }

    fn supply(&mut self) {
        let room = [Buffer::In(HEADER as u32), Buffer::In(ROOM)];
        self.driver.submit(RX, &room);
    }

    fn take(&mut self, packet: &[u8]) {
        let half = |at: usize| u16::from_le_bytes([packet[at], packet[at + 1]]);
        let word = |at: usize| {
            let bytes = [packet[at], packet[at + 1], packet[at + 2], packet[at + 3]];
            u32::from_le_bytes(bytes)
        };
        let (host_port, guest_port, length, operation) = (word(16), word(20), word(24), half(30));
        let key = (guest_port, host_port);
        match operation {
            REQUEST => self.send(key, RESPONSE, b""),
            CREDIT_REQUEST => self.send(key, CREDIT_UPDATE, b""),
            RW => {
                let forwarded = self.forwarded.entry(host_port).or_default();
                *forwarded = forwarded.wrapping_add(length);
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                     content-length: {}\r\n\r\n{ANSWERED}",
                    ANSWERED.len()
                );
                let spent = pausing(self.think.load(Ordering::Relaxed));
                self.paused.store(spent, Ordering::Release);
                self.send(key, RW, answer.as_bytes());
            }
            _ => {}
        }
    }

    fn send(&mut self, (from, to): (u32, u32), operation: u16, data: &[u8]) {
        let forwarded = *self.forwarded.entry(to).or_default();
        let header = header(from, to, operation, data.len(), forwarded);
        let chain: &[Buffer] = match data {
            [] => &[Buffer::Out(&header)],
            data => &[Buffer::Out(&header), Buffer::Out(data)],
        };
        self.driver.submit(TX, chain);
        // What KVM does when the guest writes to the register.
        self.notify.write(1).expect("a notification");
        while self.driver.used(TX).is_some() {}
    }
}

fn header(from: u32, to: u32, operation: u16, length: usize, forwarded: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &CID.to_le_bytes());
    put(8, &HOST_CID.to_le_bytes());
    put(16, &from.to_le_bytes());
    put(20, &to.to_le_bytes());
    put(24, &(length as u32).to_le_bytes());
    put(28, &1u16.to_le_bytes());
    put(30, &operation.to_le_bytes());
    put(36, &BUF_ALLOC.to_le_bytes());
    put(40, &forwarded.to_le_bytes());
    header
}
