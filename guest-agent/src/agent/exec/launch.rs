//! From a request to a process: environment, lookup, identity; and from a failure to the words and the code that a
//! shell would use.
//!
//! Runs on a thread of its own, as it reads files and as starting a program waits for the disk.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI32;

use tine_guest_agent::exec::ExecRequest;
use tine_guest_agent::octets::Octets;

use super::child::{self, Failure, Plan, Step};
use super::users::User;

/// Where programs are looked for unless the request's environment says otherwise.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Exit codes of a shell for a command that cannot be started.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

/// Why a command could not be started.
#[derive(Debug)]
pub struct Refusal {
    pub exit_code: i32,
    pub reason: String,
}

/// Starts the command. Blocks until it runs.
pub fn launch(
    request: &ExecRequest,
    defaults: &BTreeMap<String, Octets>,
    stdio: [RawFd; 3],
    cgroup: Option<RawFd>,
    born: &AtomicI32,
) -> Result<i32, Refusal> {
    let user = match &request.user {
        None => User::root(),
        Some(spec) => User::resolve(spec).map_err(|reason| refusal(NOT_EXECUTABLE, reason))?,
    };
    let mut plan = plan(request, defaults, user, stdio, cgroup)?;
    let mut result = child::start(&plan, born);
    if let Err(Failure {
        step: Step::Clone, ..
    }) = result
        && plan.cgroup.take().is_some()
    {
        // A program with the right to do so has taken the group away or made it a threaded one.
        result = child::start(&plan, born);
    }
    result.map_err(|failure| explain(failure, request, &plan))
}

fn plan(
    request: &ExecRequest,
    defaults: &BTreeMap<String, Octets>,
    user: User,
    stdio: [RawFd; 3],
    cgroup: Option<RawFd>,
) -> Result<Plan, Refusal> {
    let env = environment(request, defaults, &user);
    let path = env.get(b"PATH".as_slice()).cloned();
    let env = env
        .into_iter()
        .map(|(name, value)| string([name, value].join(&b'=')));
    Ok(Plan {
        candidates: candidates(&request.argv[0].0, path)?,
        argv: request
            .argv
            .iter()
            .map(|argument| string(argument.0.clone()))
            .collect::<Result<_, _>>()?,
        env: env.collect::<Result<_, _>>()?,
        cwd: request
            .cwd
            .as_ref()
            .map(|cwd| string(cwd.0.clone()))
            .transpose()?,
        identity: user.identity,
        stdio,
        terminal: request.tty.is_some(),
        cgroup,
    })
}

/// The agent's own defaults, then those of the host (`defaults`), then the request's variables.
fn environment(
    request: &ExecRequest,
    defaults: &BTreeMap<String, Octets>,
    user: &User,
) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut env = BTreeMap::new();
    if !request.clear_env {
        let terminal = request.tty.map(|_| ("TERM", "xterm-256color"));
        let usual = [
            ("PATH", DEFAULT_PATH),
            ("HOME", &user.home),
            ("USER", &user.name),
        ];
        for (name, value) in usual.into_iter().chain(terminal) {
            env.insert(name.into(), value.into());
        }
        for (name, value) in defaults {
            env.insert(name.clone().into_bytes(), value.0.clone());
        }
    }
    for (name, value) in &request.env {
        env.insert(name.clone().into_bytes(), value.0.clone());
    }
    env
}

/// The paths that a program's name may stand for.
fn candidates(program: &[u8], path: Option<Vec<u8>>) -> Result<Vec<CString>, Refusal> {
    if program.contains(&b'/') {
        return Ok(vec![string(program.to_vec())?]);
    }
    let path = path.unwrap_or_else(|| DEFAULT_PATH.into());
    let folders = path.split(|byte| *byte == b':');
    // An empty entry means the working directory.
    folders
        .map(|folder| {
            if folder.is_empty() {
                b".".as_slice()
            } else {
                folder
            }
        })
        .map(|folder| string([folder, program].join(&b'/')))
        .collect()
}

/// The request was checked for NUL bytes; what comes from the guest's files was not.
fn string(bytes: Vec<u8>) -> Result<CString, Refusal> {
    CString::new(bytes).map_err(|_| refusal(NOT_EXECUTABLE, "a NUL byte in the environment".into()))
}

fn refusal(exit_code: i32, reason: String) -> Refusal {
    Refusal { exit_code, reason }
}

fn explain(failure: Failure, request: &ExecRequest, plan: &Plan) -> Refusal {
    let error = crate::agent::fault::describe(failure.errno);
    let program = String::from_utf8_lossy(&request.argv[0].0);
    match failure.step {
        Step::Clone => refusal(NOT_EXECUTABLE, format!("cannot start a process: {error}")),
        Step::Stdio => refusal(
            NOT_EXECUTABLE,
            format!("cannot set up the command's streams: {error}"),
        ),
        Step::Identity => {
            let user = request.user.as_deref().unwrap_or_default();
            refusal(
                NOT_EXECUTABLE,
                format!("cannot become user `{user}`: {error}"),
            )
        }
        Step::Cwd => {
            let cwd = request
                .cwd
                .as_ref()
                .map(|cwd| cwd.0.as_slice())
                .unwrap_or_default();
            let cwd = String::from_utf8_lossy(cwd);
            refusal(
                NOT_EXECUTABLE,
                format!("working directory `{cwd}`: {error}"),
            )
        }
        Step::Exec => {
            let path = std::ffi::OsStr::from_bytes(plan.candidates[failure.candidate].as_bytes());
            let path = match &request.cwd {
                Some(cwd) => Path::new(std::ffi::OsStr::from_bytes(&cwd.0)).join(path),
                None => PathBuf::from(path),
            };
            let found = path.symlink_metadata().is_ok();
            match failure.errno {
                libc::ENOENT if found => refusal(NOT_FOUND, missing_interpreter(&path)),
                libc::ENOENT if !program.contains('/') => {
                    refusal(NOT_FOUND, format!("{program}: command not found"))
                }
                libc::ENOENT | libc::ENOTDIR => refusal(NOT_FOUND, format!("{program}: {error}")),
                _ => refusal(NOT_EXECUTABLE, format!("{}: {error}", path.display())),
            }
        }
    }
}

/// The file is there and the kernel says "not found": it is what the file asks for that is missing.
fn missing_interpreter(path: &Path) -> String {
    let mut head = [0; 256];
    let count = File::open(path)
        .and_then(|mut file| file.read(&mut head))
        .unwrap_or_default();
    let line = head[..count]
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let path = path.display();
    match line.strip_prefix(b"#!") {
        Some(line) => {
            let line = String::from_utf8_lossy(line);
            let interpreter = line.split_ascii_whitespace().next().unwrap_or_default();
            format!("{path}: bad interpreter `{interpreter}`: No such file or directory")
        }
        None => format!("{path}: the loader that it asks for is missing, or it is a dangling link"),
    }
}
