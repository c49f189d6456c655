//! `tine forward`: connections to a port here are connections to a port there. The "machine" is
//! the agent on this host, and so its ports are this host's.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::thread;

use tine_tests::cli::{HostAgent, Place, signal};
use tine_tests::text;

/// A server that answers with what it was sent, once it has all of it.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut all = Vec::new();
                let _ = client.read_to_end(&mut all);
                let _ = client.write_all(&all);
            });
        }
    });
    port
}

/// Starts forwarding to the ports, and says where it listens.
fn forward(place: &Place, ports: &[u16]) -> (Child, Vec<u16>) {
    let pairs: Vec<String> = ports.iter().map(|port| format!("0:{port}")).collect();
    let mut args = vec!["forward", "--json", "m"];
    args.extend(pairs.iter().map(String::as_str));
    let mut child = place.tine(args).spawn().unwrap();
    let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let lines = std::io::BufRead::lines(stdout).take(ports.len());
    let host = lines.map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(line["host"], "127.0.0.1");
        line["host_port"].as_u64().unwrap() as u16
    });
    let host = host.collect();
    (child, host)
}

fn machine() -> (Place, HostAgent) {
    let place = Place::new();
    let agent = place.agent("m");
    (place, agent)
}

#[test]
fn bytes_pass_both_ways_and_each_direction_ends_by_itself() {
    let (place, _agent) = machine();
    let port = echo();
    let (mut child, host) = forward(&place, &[port, port]);
    for port in host {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                thread::spawn(move || {
                    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
                    let data = vec![number; 300_000];
                    client.write_all(&data).unwrap();
                    client.shutdown(Shutdown::Write).unwrap();
                    let mut back = Vec::new();
                    client.read_to_end(&mut back).unwrap();
                    assert!(back == data);
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
    }
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_closed_port_resets_that_connection_and_says_so() {
    let (place, _agent) = machine();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let (mut child, host) = forward(&place, &[port]);
    let mut client = TcpStream::connect(("127.0.0.1", host[0])).unwrap();
    let end = client.read(&mut [0]);
    assert!(
        matches!(&end, Ok(0))
            || end
                .as_ref()
                .is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "{end:?}"
    );
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    assert!(errors.contains(&format!("m:{port}")), "{errors}");
    assert!(errors.contains("refused"), "{errors}");
}

#[test]
fn a_port_in_use_is_named() {
    let (place, _agent) = machine();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let pair = format!("{}:80", address.port());
    let error = place.fails(1, ["forward", "m", &pair]);
    assert!(error.contains(&address.to_string()), "{error}");
    place.fails(2, ["forward", "m", "80:0"]);
    std::fs::create_dir(place.run().join("gone")).unwrap();
    let gone = place.fails(1, ["forward", "gone", "0:80"]);
    assert!(gone.contains("does not run"), "{gone}");
    let plain = place.tine(["forward", "m", "0:80"]).spawn();
    let mut plain = plain.unwrap();
    let line = tine_tests::cli::read_until(plain.stdout.as_mut().unwrap(), "\n");
    assert!(line.ends_with(" -> m:80\n"), "{}", text(line.as_bytes()));
    signal(&plain, libc::SIGINT);
    plain.wait().unwrap();
}
