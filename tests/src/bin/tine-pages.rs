//! Serves a memory file to the machine that comes for it: `tine-pages SOCKET MEMORY [PAGES]`. With a
//! number of pages, it ends when it is asked for one more.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener;

use tine::pages::{PageSource, serve};

struct Limited(File, u64);

impl PageSource for Limited {
    fn read_page(&mut self, offset: u64, page: &mut [u8]) -> io::Result<()> {
        self.1 = self.1.checked_sub(1).ok_or(io::ErrorKind::Other)?;
        self.0.read_page(offset, page)
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [socket, memory, rest @ ..] = &words[..] else {
        panic!("tine-pages SOCKET MEMORY [PAGES]");
    };
    let limit = rest
        .first()
        .map_or(u64::MAX, |pages| pages.parse().expect("a number"));
    let memory = File::open(memory).expect("the memory file can be opened");
    let listener = UnixListener::bind(socket).expect("the socket can be made");
    println!("ready");
    let (stream, _) = listener.accept().expect("a monitor comes");
    match serve(&stream, &mut Limited(memory, limit)) {
        Ok(given) => println!("{given}"),
        Err(err) => panic!("{err}"),
    }
}
