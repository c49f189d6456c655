//! The client against sockets that lie: the guest may be behind any of them.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tine_guest_agent::frame::{self, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::*;

const UPGRADE: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
    Upgrade: tine-stream/1\r\n\r\n";

/// A socket that reads a request's head and then says what it is told to, on every connection.
struct Liar {
    _dir: TempDir,
    path: PathBuf,
}

impl Liar {
    fn saying(words: impl Into<Vec<u8>>) -> Self {
        let words = words.into();
        Self::acting(move |mut stream| {
            let words = words.clone();
            async move {
                let _ = stream.write_all(&words).await;
            }
        })
    }

    fn acting<F: Future<Output = ()> + Send + 'static>(
        act: impl Fn(UnixStream) -> F + Send + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).await.is_ok() {
                    head.push(byte[0]);
                }
                tokio::spawn(act(stream));
            }
        });
        Self { _dir: dir, path }
    }

    fn machine(&self) -> Machine {
        Machine::at(&self.path)
    }
}

fn lie<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(20), test).await })
        .expect("the client is not held up")
}

fn frames(frames: &[(Stream, &[u8])]) -> Vec<u8> {
    let mut bytes = UPGRADE.as_bytes().to_vec();
    for (stream, payload) in frames {
        frame::encode(*stream, payload, &mut bytes);
    }
    bytes
}

fn request() -> ExecRequest {
    ExecRequest {
        request_id: "r".into(),
        argv: argv(["true"]),
        ..Default::default()
    }
}

#[test]
fn answers_that_are_none_are_errors() {
    lie(async {
        let flood = [b"HTTP/1.1 200 OK\r\n".to_vec(), vec![b'x'; 1 << 20]].concat();
        let lines: String = (0..1000).map(|n| format!("X-{n}: y\r\n")).collect();
        for bad in [
            flood,
            b"SSH-2.0-x\r\n\r\n".to_vec(),
            format!("HTTP/1.1 200 OK\r\n{lines}\r\n").into_bytes(),
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_vec(),
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{]}".to_vec(),
        ] {
            let liar = Liar::saying(bad.clone());
            let result = liar.machine().status().await;
            let shown = String::from_utf8_lossy(&bad[..bad.len().min(40)]).into_owned();
            assert!(
                matches!(result, Err(Error::Protocol(_))),
                "{shown}: {result:?}"
            );
        }
        let liar = Liar::saying("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{");
        assert!(matches!(
            liar.machine().status().await,
            Err(Error::Broken(_))
        ));
    });
}

#[test]
fn an_endless_answer_is_cut_off() {
    lie(async {
        let liar = Liar::acting(|mut stream| async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n[").await;
            let spaces = vec![b' '; 1 << 20];
            while stream.write_all(&spaces).await.is_ok() {}
        });
        let result = liar.machine().processes().await;
        assert!(matches!(result, Err(Error::Protocol(_))), "{result:?}");
        let liar = Liar::acting(|mut stream| async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        });
        let mut events = liar.machine().events().await.unwrap();
        assert!(matches!(events.next().await, Err(Error::Protocol(_))));
    });
}

#[test]
fn frames_that_lie_end_the_command_with_an_error() {
    lie(async {
        let started =
            br#"{"state":"running","request_id":"r","pid":1,"stdout_offset":0,"stderr_offset":0}"#;
        let other =
            br#"{"request_id":"x","state":"exited","exit_code":0,"signal":null,"reason":null,
            "stdout":"","stderr":"","stdout_truncated":false,"stderr_truncated":false,
            "started_at":null,"ended_at":null,"usage":null}"#;
        for bad in [
            [UPGRADE.as_bytes(), &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]].concat(),
            [UPGRADE.as_bytes(), &[9, 0, 0, 0, 0, 0, 0, 1, 1]].concat(),
            [UPGRADE.as_bytes(), &[1, 1, 0, 0, 0, 0, 0, 1, 1]].concat(),
            frames(&[(Stream::Stdin, b"x")]),
            frames(&[(Stream::Control, other)]),
            // It announces an offset before what it has sent.
            frames(&[
                (Stream::Control, started),
                (Stream::Stdout, b"x"),
                (Stream::Control, started),
            ]),
        ] {
            let liar = Liar::saying(bad);
            let exec = liar.machine().exec(request()).await.unwrap();
            let result = exec.wait().await;
            assert!(matches!(result, Err(Error::Protocol(_))), "{result:?}");
        }
    });
}

#[test]
fn another_protocol_than_asked_for_is_refused() {
    lie(async {
        for head in [
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ] {
            let liar = Liar::saying(head);
            let result = liar.machine().exec(request()).await;
            assert!(matches!(result, Err(Error::Protocol(_))), "{result:?}");
            assert!(liar.machine().port(80).await.is_err());
        }
    });
}

#[test]
fn a_flood_that_nobody_reads_is_held_back() {
    lie(async {
        let (sender, mut sent) = tokio::sync::watch::channel(0);
        let sender = std::sync::Arc::new(sender);
        let liar = Liar::acting(move |mut stream| {
            let sender = sender.clone();
            async move {
                let _ = stream.write_all(UPGRADE.as_bytes()).await;
                let mut frame = Vec::new();
                frame::encode(Stream::Stdout, &[0; 65536], &mut frame);
                while stream.write_all(&frame).await.is_ok() {
                    sender.send_modify(|count| *count += frame.len());
                }
            }
        });
        let exec = liar.machine().exec(request()).await.unwrap();
        // It comes to a stop by itself.
        while tokio::time::timeout(Duration::from_millis(200), sent.changed())
            .await
            .is_ok()
        {}
        assert!(*sent.borrow() < 4 << 20, "{} bytes", *sent.borrow());
        drop(exec);
    });
}

#[test]
fn refusals_keep_their_words() {
    lie(async {
        let body =
            r#"{"error":{"code":"wrong_state","message":"it is starting","state":"starting"}}"#;
        let len = body.len();
        let liar = Liar::saying(format!(
            "HTTP/1.1 409 Conflict\r\nContent-Length: {len}\r\n\r\n{body}"
        ));
        let err = liar.machine().exec(request()).await.unwrap_err();
        assert_eq!(err.status(), Some(409));
        assert_eq!(err.to_string(), "it is starting");
        let gone = Machine::connect(liar.path.with_extension("no")).await;
        assert!(gone.is_err_and(|err| err.is_gone()));
        let bad = liar.machine().record("a/../b").await.unwrap_err();
        assert_eq!(bad.status(), Some(400));
    });
}
