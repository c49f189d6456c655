//! The front door: bytes written to a connection of the API, of a server without a machine. Whatever
//! comes, each answer is one of HTTP, nothing panics, and the next client is served.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tine_fuzz::bounded::Bounded;
use tine_fuzz::server::{Place, ask, hear};
use tine_fuzz::{answers, examples};

#[global_allocator]
static ALLOCATOR: Bounded<{ 16 << 20 }> = Bounded;

thread_local! {
    static PLACE: Place = Place::new();
}

fn seeds() -> Vec<Vec<u8>> {
    let all = examples::all();
    let one = |example: &examples::Example| {
        let (method, target) = (&example.method, &example.target);
        let body = example.body.as_deref().unwrap_or_default();
        let framing = match body.len() {
            0 => String::new(),
            len => format!("Content-Length: {len}\r\n"),
        };
        format!("{method} {target} HTTP/1.1\r\n{framing}\r\n{body}").into_bytes()
    };
    let mut seeds: Vec<_> = all.iter().map(one).collect();
    // All on one connection, which then has to last.
    seeds.push(
        all.iter()
            .filter(|example| !example.ends())
            .flat_map(one)
            .collect(),
    );
    let more = [
        "GET /v1/machine?wait=created&timeout=1ms HTTP/1.0\r\n\r\n",
        "PUT /mmds HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n\
         2\r\n{}\r\n0\r\nX: y\r\n\r\n",
        "GET /v1/events HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tine-stream/1\r\n\r\n",
        "PUT /logger HTTP/1.1\r\nContent-Length: 24\r\n\r\n{\"log_path\":\"/srv/fifo\"}",
        "HEAD /v1/metrics HTTP/1.1\r\nConnection: close\r\n\r\n",
    ];
    seeds.extend(more.map(|text| text.as_bytes().to_vec()));
    seeds
}

fn run(place: &Place, data: &[u8]) {
    let server = place.serve(None);
    let mut client = place.connect();
    ask(&mut client, data);
    if let Some(bytes) = hear(&mut client) {
        answers::count(&bytes);
    }
    drop(client);
    place.end(server);
}

fuzz_target!(
    init: tine_fuzz::begin(seeds),
    |data: &[u8]| PLACE.with(|place| run(place, data))
);
