//! Machines in jails, through the jailer as a program.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Jails;
use crate::api::tine_vmm;
use crate::guest;

/// For `tine-vmm`.
pub fn jails() -> Jails {
    Jails::of(tine_vmm())
}

/// Starts one in a PID namespace of its own, with further arguments for the jailer.
pub fn start(jails: &Jails, id: &str, arguments: &[&str]) -> Output {
    let mut command = jails.command(id);
    command.arg("--new-pid-ns").args(arguments);
    command.args(["--", "--api-sock", "/run/api.sock"]);
    // What it prints goes nowhere: a pipe would stay open for as long as the machine lives.
    let null = || {
        fs::OpenOptions::new()
            .write(true)
            .open("/dev/null")
            .unwrap()
    };
    let errors = jails.dir.path().join("errors");
    let status = command
        .stdout(null())
        .stderr(fs::File::create(&errors).unwrap())
        .status()
        .unwrap();
    Output {
        status,
        stdout: Vec::new(),
        stderr: fs::read(&errors).unwrap(),
    }
}

/// A connection to the API of one, as soon as there is one.
pub fn connect(jails: &Jails, id: &str) -> UnixStream {
    let socket = jails.of_id(id).join("root/run/api.sock");
    let start = Instant::now();
    loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => return stream,
            Err(err) => assert!(start.elapsed() < Duration::from_secs(60), "{id}: {err}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The whole answer to a request.
pub fn request(jails: &Jails, id: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = connect(jails, id);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Boots the bare-metal guest `spin` in it.
pub fn boot(jails: &Jails, id: &str) {
    fs::copy(guest("spin"), jails.of_id(id).join("root/kernel")).unwrap();
    let source = json!({"kernel_image_path": "/kernel"}).to_string();
    let put = request(jails, id, "PUT", "/boot-source", &source);
    assert!(put.contains("204"), "{put}");
    let action = json!({"action_type": "InstanceStart"}).to_string();
    let put = request(jails, id, "PUT", "/actions", &action);
    assert!(put.contains("204"), "{put}");
    assert!(request(jails, id, "GET", "/", "").contains(r#""state":"Running""#));
}

/// Cgroups whose paths contain `name`.
pub fn groups(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(entry.path());
                let path = entry.path().display().to_string();
                found.extend(Some(path).filter(|path| path.contains(name)));
            }
        }
    }
    found
}

/// All files below `dir`, no directories.
pub fn walk(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.into_iter()
}
