//! What a server may answer, whatever it was asked.

/// How many answers there are, none of which may say that something went wrong here.
pub fn count(bytes: &[u8]) -> usize {
    let all = statuses(bytes);
    for status in &all {
        let meant = *status < 500 || [501, 503].contains(status);
        assert!(meant, "{}", bytes.escape_ascii());
    }
    all.len()
}

/// Looks at answers one behind the other: a head, and a body of its length. Gives their statuses.
pub fn statuses(mut bytes: &[u8]) -> Vec<u16> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else {
            panic!("no answer: {}", bytes.escape_ascii())
        };
        let head = std::str::from_utf8(&bytes[..end]).expect("a head of text");
        // A client of HTTP/1.0 is answered as one.
        let version = head.strip_prefix("HTTP/1.1 ");
        let version = version.or_else(|| head.strip_prefix("HTTP/1.0 "));
        let status = version.and_then(|rest| rest.get(..3)?.parse().ok());
        let status: u16 = status.expect(head);
        bytes = &bytes[end + 4..];
        all.push(status);
        // What follows an upgrade is another protocol; what has no end is a stream.
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is = name.eq_ignore_ascii_case("content-length");
            is.then(|| value.trim().parse::<usize>().expect(head))
        });
        match length {
            _ if status == 204 || status == 100 => {}
            // The answer to a HEAD has no body.
            Some(_) if bytes.starts_with(b"HTTP/1.") => {}
            Some(length) => bytes = &bytes[length.min(bytes.len())..],
            None => return all,
        }
    }
    all
}
