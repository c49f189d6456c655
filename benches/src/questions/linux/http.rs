//! A client of one connection that is kept: small, so that it is no part of what is measured.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// How long anything may take that is waited for here.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// One connection.
pub struct Connection {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

impl Connection {
    /// To a socket that accepts connections now.
    pub fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let reader = BufReader::with_capacity(256 << 10, stream.try_clone()?);
        Ok(Self { stream, reader })
    }

    /// To a port of the guest, by the socket of its vsock device; waits until somebody listens there.
    pub fn to_port(socket: &Path, port: u32) -> anyhow::Result<Self> {
        let begun = Instant::now();
        loop {
            let mut connection = Self::open(socket)?;
            writeln!(connection.stream, "CONNECT {port}")?;
            let mut line = String::new();
            // A port where nobody listens ends the connection.
            let told = connection.reader.read_line(&mut line);
            if told.is_ok() && line.starts_with("OK") {
                return Ok(connection);
            }
            ensure!(begun.elapsed() < PATIENCE, "nobody listens on port {port}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sends a request, and reads the answer.
    pub fn call(&mut self, method: &str, target: &str, body: &[u8]) -> anyhow::Result<Answer> {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if body.len() < 4096 {
            self.stream.write_all(&[head.as_bytes(), body].concat())?;
        } else {
            self.stream.write_all(head.as_bytes())?;
            self.stream.write_all(body)?;
        }
        self.answer().with_context(|| format!("{method} {target}"))
    }

    /// The same, with JSON both ways; an answer from 300 on is an error.
    pub fn json(&mut self, method: &str, target: &str, body: &Value) -> anyhow::Result<Value> {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let answer = self.call(method, target, body.as_bytes())?;
        if answer.status >= 300 {
            let text = String::from_utf8_lossy(&answer.body);
            bail!("{method} {target}: {}: {text}", answer.status);
        }
        match answer.body.as_slice() {
            [] => Ok(Value::Null),
            body => Ok(serde_json::from_slice(body)?),
        }
    }

    fn answer(&mut self) -> anyhow::Result<Answer> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let status = line.get(9..12).and_then(|word| word.parse().ok());
        let status = status.with_context(|| format!("no status in {line:?}"))?;
        let (mut length, mut chunked) = (0, false);
        loop {
            line.clear();
            self.reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse()?;
            }
            chunked |= name.eq_ignore_ascii_case("transfer-encoding") && value == "chunked";
        }
        let mut body = Vec::new();
        if !chunked {
            body.resize(length, 0);
            self.reader.read_exact(&mut body)?;
            return Ok(Answer { status, body });
        }
        loop {
            line.clear();
            self.reader.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16)?;
            let at = body.len();
            body.resize(at + size + 2, 0);
            self.reader.read_exact(&mut body[at..])?;
            body.truncate(at + size);
            if size == 0 {
                return Ok(Answer { status, body });
            }
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.reader.read(bytes)
    }
}

impl Connection {
    /// Says that nothing more will come.
    pub fn end(&self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }
}
