//! `tine exec -t`, sitting at a pseudoterminal: raw while the command runs, as it was afterwards.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use tine_tests::cli::{Place, read_until, signal};
use tine_tests::text;

/// Both ends of a pseudoterminal.
struct Terminal {
    master: File,
    slave: File,
}

impl Terminal {
    fn new(rows: u16, cols: u16) -> Self {
        let (mut master, mut slave) = (0, 0);
        let size = winsize(rows, cols);
        // SAFETY: all pointers are to values that live through the call, or null where that may be.
        let made = unsafe {
            libc::openpty(
                &mut master,
                &mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &size,
            )
        };
        assert_eq!(made, 0);
        // SAFETY: both descriptors are new and nobody else's.
        unsafe {
            Self {
                master: File::from_raw_fd(master),
                slave: File::from_raw_fd(slave),
            }
        }
    }

    fn resize(&self, rows: u16, cols: u16) {
        let size = winsize(rows, cols);
        // SAFETY: TIOCSWINSZ reads the size that it is given a pointer to.
        let set = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(set, 0);
    }

    /// Input flags, output flags, control flags, local flags.
    fn modes(&self) -> [libc::tcflag_t; 4] {
        let mut mode = std::mem::MaybeUninit::<libc::termios>::uninit();
        // SAFETY: tcgetattr fills in what it is given a pointer to, or fails.
        let mode = unsafe {
            assert_eq!(
                libc::tcgetattr(self.slave.as_raw_fd(), mode.as_mut_ptr()),
                0
            );
            mode.assume_init()
        };
        [mode.c_iflag, mode.c_oflag, mode.c_cflag, mode.c_lflag]
    }

    fn is_raw(&self) -> bool {
        self.modes()[3] & (libc::ICANON | libc::ECHO | libc::ISIG) == 0
    }

    /// Starts `tine ARGS` at this terminal, as a shell's job would be.
    fn start(&self, place: &Place, args: &[&str]) -> Child {
        let end = || Stdio::from(self.slave.try_clone().unwrap());
        let mut command = place.tine(args);
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: setsid and ioctl are system calls that allocate nothing and take no lock.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        command.spawn().unwrap()
    }
}

fn winsize(rows: u16, cols: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

#[test]
fn the_command_has_a_terminal_of_this_size_and_the_mode_comes_back() {
    let place = Place::new();
    let _agent = place.agent("m");
    let mut terminal = Terminal::new(11, 77);
    let before = terminal.modes();
    let script = "stty size; trap 'stty size; exit 5' WINCH; echo go; while :; do sleep 0.05; done";
    let args = ["exec", "-t", "m", "--", "sh", "-c", script];
    let mut child = terminal.start(&place, &args);
    let said = read_until(&mut terminal.master, "go\r\n");
    assert_eq!(said, "11 77\r\ngo\r\n");
    assert!(terminal.is_raw());
    terminal.resize(40, 100);
    read_until(&mut terminal.master, "40 100\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_eq!(terminal.modes(), before);
}

#[test]
fn keys_go_to_the_command_ctrl_c_included() {
    let place = Place::new();
    let _agent = place.agent("m");
    let mut terminal = Terminal::new(24, 80);
    let script = "trap 'echo got it; exit 9' INT; echo go; read x; echo \"[$x]\"; read y";
    let mut child = terminal.start(&place, &["exec", "-t", "m", "--", "sh", "-c", script]);
    read_until(&mut terminal.master, "go\r\n");
    terminal.master.write_all(b"a\x10b\n").unwrap();
    read_until(&mut terminal.master, "[a\x10b]\r\n");
    terminal.master.write_all(b"\x03").unwrap();
    read_until(&mut terminal.master, "got it\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn the_detach_keys_leave_the_command_running() {
    let place = Place::new();
    let _agent = place.agent("m");
    let mut terminal = Terminal::new(24, 80);
    let before = terminal.modes();
    let script = "echo go; read x; echo \"[$x]\"; exit 4";
    let args = [
        "exec",
        "-t",
        "--request-id",
        "d",
        "m",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut child = terminal.start(&place, &args);
    read_until(&mut terminal.master, "go\r\n");
    terminal.master.write_all(b"\x10\x11").unwrap();
    read_until(&mut terminal.master, "tine attach m d");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(terminal.modes(), before);
    // Its terminal has still its input.
    terminal.resize(30, 90);
    let mut child = terminal.start(&place, &["attach", "-t", "m", "d"]);
    read_until(&mut terminal.master, "go\r\n");
    terminal.master.write_all(b"back\n").unwrap();
    read_until(&mut terminal.master, "[back]\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert_eq!(terminal.modes(), before);
}

#[test]
fn signals_restore_the_terminal_and_leave_the_command_running() {
    let place = Place::new();
    let _agent = place.agent("m");
    for (number, id) in [
        (libc::SIGTERM, "t"),
        (libc::SIGHUP, "h"),
        (libc::SIGINT, "i"),
    ] {
        let mut terminal = Terminal::new(24, 80);
        let before = terminal.modes();
        let args = ["exec", "-t", "--request-id", id, "m", "--", "sh", "-c"];
        let script = ["echo go; read x; exit 0"];
        let mut child = terminal.start(&place, &[&args[..], &script].concat());
        read_until(&mut terminal.master, "go\r\n");
        assert!(terminal.is_raw());
        signal(&child, number);
        assert_eq!(child.wait().unwrap().code(), Some(128 + number));
        assert_eq!(terminal.modes(), before);
        place.ok(["kill", "m", id]);
    }
}

#[test]
fn a_machine_that_goes_away_restores_the_terminal() {
    let place = Place::new();
    let agent = place.agent("m");
    let mut terminal = Terminal::new(24, 80);
    let before = terminal.modes();
    let args = ["exec", "-t", "m", "--", "sh", "-c", "echo go; sleep 2"];
    let mut child = terminal.start(&place, &args);
    read_until(&mut terminal.master, "go\r\n");
    drop(agent);
    read_until(&mut terminal.master, "does not run any more");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(terminal.modes(), before);
}

#[test]
fn a_terminal_survives_a_broken_connection() {
    let place = Place::new();
    let (_agent, cutter) = place.agent_behind_cutter("m");
    let mut terminal = Terminal::new(24, 80);
    let script = "echo go; read x; echo \"[$x]\"; read y; echo \"[$y]\"; stty size";
    let mut child = terminal.start(&place, &["exec", "-t", "m", "--", "sh", "-c", script]);
    read_until(&mut terminal.master, "go\r\n");
    terminal.master.write_all(b"one\n").unwrap();
    read_until(&mut terminal.master, "[one]\r\n");
    cutter.cut();
    terminal.resize(30, 90);
    terminal.master.write_all(b"two\n").unwrap();
    read_until(&mut terminal.master, "[two]\r\n");
    read_until(&mut terminal.master, "30 90\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// For programs that want a terminal where there is none, as in CI.
#[test]
fn without_a_terminal_here_the_command_still_has_one() {
    let place = Place::new();
    let _agent = place.agent("m");
    let mut child = place
        .tine(["exec", "-t", "m", "--", "sh", "-c", "stty size; cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"in\n").unwrap();
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    let said = text(&said);
    assert!(
        said.starts_with("24 80\r\n") || said.starts_with("in\r\n"),
        "{said:?}"
    );
    assert!(said.ends_with("in\r\n"), "{said:?}");
    assert!(child.wait().unwrap().success());
}
