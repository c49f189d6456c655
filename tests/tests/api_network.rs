//! A Linux guest behind the socket with a network: a real TAP device in a network namespace of the
//! test's own, the metadata store, and a snapshot that goes on behind another TAP device.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tine_tests::api::Vmm;
use tine_tests::linux::image;
use tine_tests::text;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 16, 77, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(172, 16, 77, 2);
/// What the host's HTTP server answers: more than fits in a window.
const BODY: usize = 300_000;

/// Runs `test` on a thread in a network namespace of its own; processes that it starts are there
/// too.
fn in_namespace(test: impl FnOnce() + Send) {
    let run = || {
        // SAFETY: no memory is passed; the calling thread alone moves.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        let error = std::io::Error::last_os_error();
        assert!(moved == 0, "no network namespace ({error}): be root");
        ip("link set lo up");
        test();
    };
    thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("ip(8) of iproute2 is installed");
    let errors = text(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
    text(&output.stdout)
}

/// A TAP device that is the guest's gateway.
fn tap(name: &str, mac: &str) {
    ip(&format!("tuntap add {name} mode tap"));
    ip(&format!("link set {name} address {mac}"));
    ip(&format!("addr add {GATEWAY}/24 dev {name}"));
    ip(&format!("link set {name} up"));
}

/// Answers each connection with the same bytes.
fn serve(listener: TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).unwrap();
        let answer = format!("HTTP/1.0 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
        stream.write_all(&vec![b'x'; BODY]).unwrap();
    }
}

/// What the guest says on a port of its own.
fn listen_in_guest(vmm: &Vmm, port: u16) -> String {
    let script = format!("echo hello from the guest | nc -l -p {port} >/dev/null 2>&1 &");
    vmm.guest_sh(&script);
    let start = Instant::now();
    loop {
        // The listener is there a moment later, on a guest that takes its time.
        if let Ok(mut stream) = TcpStream::connect((GUEST, port)) {
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            return said;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nobody listens");
        thread::sleep(Duration::from_millis(50));
    }
}

fn metadata(vmm: &Vmm, answer: &str) {
    vmm.put("/mmds", &json!({"latest": {"answer": answer}}))
        .expect(204);
    // busybox's wget has no PUT.
    let put = "PUT /latest/api/token HTTP/1.1\\r\\nHost: 169.254.169.254\\r\\n\
        X-metadata-token-ttl-seconds: 60\\r\\nConnection: close\\r\\n\\r\\n";
    let token = vmm.guest_sh(&format!(
        "printf '{put}' | nc 169.254.169.254 80 | tail -n 1"
    ));
    assert!(token.len() > 20, "{token}");
    let wget = "wget -q -O -";
    let url = "http://169.254.169.254/latest/answer";
    let header = format!("--header 'X-metadata-token: {token}'");
    assert_eq!(vmm.guest_sh(&format!("{wget} {header} {url}")), answer);
    vmm.patch("/mmds", &json!({"latest": {"answer": "another"}}))
        .expect(204);
    assert_eq!(vmm.guest_sh(&format!("{wget} {header} {url}")), "another");
    let refused = vmm.guest_sh(&format!("{wget} {url} 2>&1 || true"));
    assert!(refused.contains("401"), "without a token: {refused}");
}

fn pings(vmm: &Vmm) -> String {
    vmm.guest_sh(&format!("ping -c 1 -W 2 {GATEWAY} 2>&1"))
}

/// Field case 28, and all of the network before it. One boot.
#[test]
fn a_guest_reaches_its_gateway_and_the_metadata_store_also_behind_another_tap() {
    let (kernel, initramfs) = image();
    in_namespace(|| {
        tap("tap0", "02:00:00:00:00:01");
        let listener = TcpListener::bind((GATEWAY, 8000)).unwrap();
        thread::spawn(move || serve(listener));
        let vmm = Vmm::start([] as [&str; 0]);
        let source = json!({"kernel_image_path": kernel, "initrd_path": initramfs});
        vmm.put("/boot-source", &source).expect(204);
        let interface = json!({
            "iface_id": "eth0", "host_dev_name": "tap0", "guest_mac": "06:00:AC:10:4D:02",
            "mtu": 1400,
        });
        vmm.put("/network-interfaces/eth0", &interface).expect(204);
        let config = json!({"version": "V2", "network_interfaces": ["eth0"]});
        vmm.put("/mmds/config", &config).expect(204);
        vmm.start_machine().expect(204);
        vmm.wait_until_running();

        let seen = vmm.guest_sh(&format!(
            "ip addr add {GUEST}/24 dev eth0 && ip link set eth0 up && \
             ip route add default via {GATEWAY} && ip route add 169.254.169.254 dev eth0 && \
             cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu"
        ));
        assert_eq!(seen, "06:00:ac:10:4d:02\n1400");
        assert!(pings(&vmm).contains(" 0% packet loss"));
        let fetch = format!("wget -q -O - http://{GATEWAY}:8000/ | wc -c");
        assert_eq!(vmm.guest_sh(&fetch), BODY.to_string());
        assert_eq!(listen_in_guest(&vmm, 9000), "hello from the guest\n");
        metadata(&vmm, "forty-two");
        let limits = json!({
            "iface_id": "eth0", "tx_rate_limiter": {"bandwidth": {"size": 1_000_000, "refill_time": 100}},
        });
        vmm.patch("/network-interfaces/eth0", &limits).expect(204);
        assert!(pings(&vmm).contains(" 0% packet loss"));

        let dir = vmm.dir.path();
        let (state, memory) = (dir.join("state"), dir.join("memory"));
        vmm.patch("/vm", &json!({"state": "Paused"})).expect(204);
        let create = json!({"snapshot_path": state, "mem_file_path": memory});
        vmm.put("/snapshot/create", &create).expect(204);
        let load = json!({
            "snapshot_path": state, "resume_vm": true,
            "mem_backend": {"backend_type": "File", "backend_path": memory},
        });
        let busy = Vmm::start([] as [&str; 0]);
        let fault = busy.put("/snapshot/load", &load).expect(400).fault();
        assert!(fault.contains("tap0"), "it is in use: {fault}");
        let mut first = vmm;
        first.signal(libc::SIGKILL);
        first.wait();

        // Another device with another address, on the process that was refused before.
        ip("link del tap0");
        tap("tap1", "02:00:00:00:00:99");
        let fault = busy.put("/snapshot/load", &load).expect(400).fault();
        assert!(fault.contains("tap0"), "it is gone: {fault}");
        let mut load = load;
        load["network_overrides"] = json!([{"iface_id": "eth1", "host_dev_name": "tap1"}]);
        let fault = busy.put("/snapshot/load", &load).expect(400).fault();
        assert!(fault.contains("eth1"), "{fault}");
        load["network_overrides"] = json!([{"iface_id": "eth0", "host_dev_name": "tap1"}]);
        busy.put("/snapshot/load", &load).expect(204);
        let second = busy;
        second.wait_until_running();
        let first_ping = pings(&second);
        assert!(first_ping.contains(" 0% packet loss"), "{first_ping}");
        assert_eq!(second.guest_sh(&fetch), BODY.to_string());
        assert_eq!(listen_in_guest(&second, 9001), "hello from the guest\n");
        metadata(&second, "after the restore");
        let config = second.get("/vm/config").expect(200).json();
        assert_eq!(config["network-interfaces"][0]["host_dev_name"], "tap1");
        assert_eq!(config["mmds-config"]["version"], "V2");
        copies_have_addresses_of_their_own(&second);
    });
}

/// Two copies of a machine, each in a network namespace of its own, where the TAP device has the same name.
fn copies_have_addresses_of_their_own(vmm: &Vmm) {
    let body = json!({ "count": 2 }).to_string();
    let forked = vmm.request("POST", "/v1/fork", Some(&body)).expect(201);
    let socket = forked.json()["socket"].clone();
    let address = |network: serde_json::Value| {
        in_namespace(|| {
            tap("tap1", "02:00:00:00:00:01");
            let copy = Vmm::start([] as [&str; 0]);
            let mut request = json!({ "fork": socket });
            request["network"] = network.clone();
            copy.put("/v1/restore", &request).expect(204);
            copy.wait_until_running();
            let first_ping = pings(&copy);
            assert!(first_ping.contains(" 0% packet loss"), "{first_ping}");
            let config = copy.get("/vm/config").expect(200).json();
            let offered = config["network-interfaces"][0]["guest_mac"].clone();
            let seen = copy
                .guest_sh("cat /sys/class/net/eth0/address; ip -4 addr show dev eth0; ip route");
            let (mac, rest) = seen.split_once('\n').unwrap();
            assert_eq!(
                offered.as_str().map(str::to_lowercase).as_deref(),
                Some(mac)
            );
            MACS.lock().unwrap().push(mac.to_owned());
            let own = network[0]["address"].as_str();
            let own = own.map_or(format!("{GUEST}/24"), str::to_owned);
            assert_eq!(rest.matches("inet ").count(), 1, "{rest}");
            assert!(rest.contains(&format!("inet {own} ")), "{rest}");
            assert!(rest.contains(&format!("default via {GATEWAY} ")), "{rest}");
        });
    };
    static MACS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    address(json!(null));
    address(json!([{ "id": "eth0", "address": "172.16.77.9/24", "gateway": GATEWAY }]));
    let mut macs = MACS.lock().unwrap().clone();
    macs.push(vmm.guest_sh("cat /sys/class/net/eth0/address"));
    assert_eq!(macs[2], "06:00:ac:10:4d:02", "the machine keeps its own");
    macs.sort();
    macs.dedup();
    assert_eq!(macs.len(), 3, "{macs:?}");
}
