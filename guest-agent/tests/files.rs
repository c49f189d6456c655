//! Files, archives, changes.

mod common;

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use common::{Agent, read_answer, read_chunk, read_head, send};
use serde_json::{Value, json};

fn content(path: &std::path::Path, more: &str) -> String {
    format!("/v1/files/content?path={}{more}", path.display())
}

/// Bytes that differ from block to block.
fn pattern(size: usize) -> Vec<u8> {
    (0..size)
        .map(|index| (index ^ (index >> 8) ^ (index >> 16)) as u8)
        .collect()
}

#[test]
fn uploads_and_downloads_are_exact_and_memory_bounded() {
    let agent = Agent::start();
    let path = agent.dir().join("file");
    for size in [0, 1, 18 << 10, 19 << 10, 32 << 20] {
        let bytes = pattern(size);
        let answer = agent.call("PUT", &content(&path, ""), &bytes);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.value()["size"], size);
        assert!(std::fs::read(&path).unwrap() == bytes);
        assert!(agent.call("GET", &content(&path, ""), b"").body == bytes);
    }
    assert!(agent.peak_memory() < 16 << 20, "{}", agent.peak_memory());
}

#[test]
fn chunked_upload() {
    let agent = Agent::start();
    let path = agent.dir().join("file");
    let mut conn = agent.connect();
    let target = content(&path, "");
    write!(
        conn,
        "PUT {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .unwrap();
    conn.write_all(b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
        .unwrap();
    assert_eq!(read_answer(&mut conn).status, 200);
    assert_eq!(std::fs::read(&path).unwrap(), b"abcdefg");
}

#[test]
fn who_is_refused_while_sending_may_send_the_rest() {
    let agent = Agent::start();
    let target = content(std::path::Path::new("/no/such/dir/x"), "");
    let mut conn = agent.connect();
    let size = 8 << 20;
    let length = format!("Content-Length: {size}");
    write!(conn, "PUT {target} HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n").unwrap();
    let answer = read_answer(&mut conn);
    assert_eq!(answer.status, 404, "{}", answer.text());
    conn.write_all(&vec![0; size]).unwrap();
    // It is not served any further.
    assert_eq!(conn.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_broken_upload_leaves_the_old_file_and_nothing_else() {
    let agent = Agent::start();
    let dir = agent.dir().join("d");
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("file");
    std::fs::write(&path, "old").unwrap();
    let mut conn = agent.connect();
    write!(
        conn,
        "PUT {} HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n",
        content(&path, "")
    )
    .unwrap();
    conn.write_all(&pattern(300_000)).unwrap();
    conn.shutdown(std::net::Shutdown::Write).unwrap();
    // The agent answers once it has given up.
    let mut rest = Vec::new();
    let _ = conn.read_to_end(&mut rest);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn modes_owners_append_and_offset() {
    let agent = Agent::start();
    let path = agent.dir().join("a/b/file");
    assert_eq!(agent.call("PUT", &content(&path, ""), b"x").status, 404);
    let answer = agent.call(
        "PUT",
        &content(&path, "&parents=1&mode=4750&uid=12&gid=34"),
        b"one",
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    let look = || {
        let metadata = path.metadata().unwrap();
        (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
    };
    assert_eq!(look(), (0o4750, 12, 34));
    // What is replaced keeps them.
    agent.call("PUT", &content(&path, "&sync=1"), b"two");
    assert_eq!(look(), (0o4750, 12, 34));
    agent.call("PUT", &content(&path, "&append=true"), b"three");
    assert_eq!(std::fs::read(&path).unwrap(), b"twothree");
    agent.call("PUT", &content(&path, "&offset=1"), b"WO");
    assert_eq!(std::fs::read(&path).unwrap(), b"tWOthree");
    // Through a symbolic link, which stays one.
    let link = agent.dir().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    agent.call("PUT", &content(&link, ""), b"via");
    assert_eq!(std::fs::read(&path).unwrap(), b"via");
    assert!(link.symlink_metadata().unwrap().is_symlink());
}

#[test]
fn sizes_beyond_four_gibibytes() {
    let agent = Agent::start();
    let path = agent.dir().join("sparse");
    let far = (5u64 << 30) + 17;
    let answer = agent.call("PUT", &content(&path, &format!("&offset={far}")), b"end");
    assert_eq!(answer.value()["size"], far + 3);
    let mut file = std::fs::File::open(&path).unwrap();
    file.seek(SeekFrom::Start(far)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "end");
    let answer = agent.call("GET", &content(&path, &format!("&offset={}", far - 1)), b"");
    assert_eq!(answer.body, b"\0end");
    let mut conn = agent.connect();
    send(
        &mut conn,
        "GET",
        &content(&path, ""),
        "Range: bytes=-2\r\n",
        b"",
    );
    let answer = read_answer(&mut conn);
    assert_eq!((answer.status, answer.body.as_slice()), (206, &b"nd"[..]));
    assert_eq!(
        answer.header("content-range").unwrap(),
        format!("bytes {}-{}/{}", far + 1, far + 2, far + 3)
    );
    // The length of all is told before the bytes.
    let mut conn = agent.connect();
    send(&mut conn, "GET", &content(&path, ""), "", b"");
    assert_eq!(
        read_head(&mut conn).header("content-length").unwrap(),
        (far + 3).to_string()
    );
}

#[test]
fn files_that_do_not_know_their_size() {
    let agent = Agent::start();
    let answer = agent.call("GET", "/v1/files/content?path=/proc/version", b"");
    assert!(
        answer.body.starts_with(b"Linux version"),
        "{}",
        answer.text()
    );
}

#[test]
fn errors_carry_the_name_and_the_path() {
    let agent = Agent::start();
    let dir = agent.dir().display().to_string();
    let check = |answer: common::Answer, status, errno: Value, path: &str| {
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.value()["error"]["errno"], errno, "{}", answer.text());
        assert!(answer.text().contains(path), "{}", answer.text());
    };
    check(
        agent.call("GET", "/v1/files/content?path=/no/x", b""),
        404,
        json!("ENOENT"),
        "/no/x",
    );
    check(
        agent.call("GET", "/v1/files/content?path=/etc", b""),
        409,
        json!("EISDIR"),
        "/etc",
    );
    check(
        agent.call("PUT", &content(agent.dir(), ""), b"x"),
        409,
        json!("EISDIR"),
        &dir,
    );
    check(
        agent.call("PUT", "/v1/files/content?path=/", b"x"),
        409,
        json!("EISDIR"),
        "/",
    );
    check(
        agent.call("GET", "/v1/files/list?path=/etc/passwd", b""),
        409,
        json!("ENOTDIR"),
        "/etc/passwd",
    );
    check(
        agent.call("GET", "/v1/files/content?path=/dev/zero", b""),
        409,
        json!(null),
        "/dev/zero",
    );
    let remove = json!({ "path": "/no/x" });
    check(
        agent.json("POST", "/v1/files/remove", remove),
        404,
        json!("ENOENT"),
        "/no/x",
    );
    for (query, field) in [
        ("", "path"),
        ("?path=etc", "path"),
        ("?path=/a&ofset=1", "ofset"),
        ("?path=/a&offset=-1", "offset"),
    ] {
        let answer = agent.call("GET", &format!("/v1/files/content{query}"), b"");
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.value()["error"]["field"], field);
    }
}

#[test]
fn names() {
    let agent = Agent::start();
    let path = |name: &str| agent.dir().join(name).display().to_string();
    let post = |what: &str, body: Value| {
        let answer = agent.json("POST", &format!("/v1/files/{what}"), body);
        (answer.status, answer.text())
    };
    assert_eq!(
        post("mkdir", json!({ "path": path("d"), "mode": 0o1777 })).0,
        204
    );
    assert_eq!(
        agent
            .dir()
            .join("d")
            .metadata()
            .unwrap()
            .permissions()
            .mode()
            & 0o7777,
        0o1777
    );
    assert_eq!(post("mkdir", json!({ "path": path("d") })).0, 409);
    assert_eq!(
        post("mkdir", json!({ "path": path("d/e/f"), "parents": true })).0,
        204
    );
    assert_eq!(
        post(
            "symlink",
            json!({ "path": path("d/l"), "target": "some where" })
        )
        .0,
        204
    );
    assert_eq!(
        post("symlink", json!({ "path": path("d/l"), "target": "other" })).0,
        409
    );
    std::fs::write(path("d/x"), "abc").unwrap();
    assert_eq!(
        post("rename", json!({ "from": path("d/x"), "to": path("d/y") })).0,
        204
    );
    assert_eq!(
        post(
            "chmod",
            json!({ "path": path("d/y"), "mode": 0o600, "uid": 7 })
        )
        .0,
        204
    );
    let list = agent
        .call("GET", &format!("/v1/files/list?path={}", path("d")), b"")
        .value();
    let mut names: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["name"].as_str().unwrap(),
                entry["kind"].as_str().unwrap(),
            )
        })
        .collect();
    names.sort_unstable();
    assert_eq!(names, [("e", "directory"), ("l", "symlink"), ("y", "file")]);
    let stat = agent.call(
        "GET",
        &format!("/v1/files/stat?path={}&follow=0", path("d/l")),
        b"",
    );
    assert_eq!(stat.value()["target"], "some where");
    let stat = agent
        .call("GET", &format!("/v1/files/stat?path={}", path("d/y")), b"")
        .value();
    assert_eq!(
        (&stat["size"], &stat["mode"], &stat["uid"]),
        (&json!(3), &json!(0o600), &json!(7))
    );
    let (status, text) = post("remove", json!({ "path": path("d") }));
    assert_eq!(status, 409, "{text}");
    assert!(text.contains("ENOTEMPTY"));
    assert_eq!(
        post("remove", json!({ "path": path("d"), "recursive": true })).0,
        204
    );
    assert!(!agent.dir().join("d").exists());
    // An empty directory lists as an empty array.
    post("mkdir", json!({ "path": path("z") }));
    let list = agent.call("GET", &format!("/v1/files/list?path={}", path("z")), b"");
    assert_eq!(list.value(), json!([]));
}

#[test]
fn archives_agree_with_tar() {
    let agent = Agent::start();
    let run = |script: &str| {
        let status = std::process::Command::new("sh")
            .arg("-ec")
            .arg(script)
            .current_dir(agent.dir())
            .status();
        assert!(status.unwrap().success(), "{script}");
    };
    run("mkdir -p one/sub one/empty; head -c 300000 /dev/urandom > one/sub/big; echo hi > one/hi; chown 12:34 one/hi; chmod 4711 one/hi
         ln -s hi one/link; ln one/hi one/hard; mkfifo one/fifo
         mkdir -p one/$(printf 'l%.0s' $(seq 200)); : > one/$(printf 'l%.0s' $(seq 200))/$(printf 'm%.0s' $(seq 200))
         mkdir -p one/sub/deep; : > one/sub/deep/f; touch -d @1000 one/sub/deep; touch -d @2000 one/sub; touch -d @3000 one/empty
         tar -cf in.tar -C one .");
    let archive = std::fs::read(agent.dir().join("in.tar")).unwrap();
    let two = agent.dir().join("two");
    let target = format!("/v1/files/tar?path={}&parents=1", two.display());
    let answer = agent.call("PUT", &target, &archive);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.value()["entries"], 12);
    // Without the fifo, that diff would read.
    run("rm one/fifo; test -p two/fifo; rm two/fifo; diff -r --no-dereference one two; test $(stat -c %a.%u.%g two/hi) = 4711.12.34
         test two/hi -ef two/hard; test $(stat -c %Y one/hi) = $(stat -c %Y two/hi)
         test \"$(stat -c %Y two/sub/deep two/sub two/empty | xargs)\" = '1000 2000 3000'");
    let answer = agent.call("GET", &format!("/v1/files/tar?path={}", two.display()), b"");
    std::fs::write(agent.dir().join("out.tar"), &answer.body).unwrap();
    run(
        "mkdir three; tar -xf out.tar -C three; diff -r --no-dereference one three; test $(stat -c %a.%u three/hi) = 4711.12
         test \"$(stat -c %Y three/sub/deep three/sub three/empty | xargs)\" = '1000 2000 3000'",
    );
    // One file alone.
    let answer = agent.call(
        "GET",
        &format!("/v1/files/tar?path={}", two.join("hi").display()),
        b"",
    );
    std::fs::write(agent.dir().join("hi.tar"), &answer.body).unwrap();
    run("test \"$(tar -xOf hi.tar hi)\" = hi");
}

#[test]
fn archives_stay_below_their_directory() {
    let agent = Agent::start();
    let outside = agent.dir().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let base = agent.dir().join("base");
    std::fs::create_dir(&base).unwrap();
    let run = |script: &str| {
        let status = std::process::Command::new("sh")
            .arg("-ec")
            .arg(script)
            .current_dir(agent.dir())
            .status();
        assert!(status.unwrap().success(), "{script}");
    };
    run("mkdir s; ln -s ../outside s/way; tar -cf evil.tar -C s way; rm s/way; mkdir s/way; echo x > s/way/x
         tar -rf evil.tar -C s way/x; tar -cPf up.tar --transform 's,^s,../outside,' s/way/x");
    for (name, errno) in [("evil.tar", json!("EXDEV")), ("up.tar", json!(null))] {
        let archive = std::fs::read(agent.dir().join(name)).unwrap();
        let answer = agent.call(
            "PUT",
            &format!("/v1/files/tar?path={}", base.display()),
            &archive,
        );
        assert!(answer.status >= 400, "{name}: {}", answer.text());
        assert_eq!(answer.value()["error"]["errno"], errno, "{}", answer.text());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "{name}");
    }
    for broken in [vec![7; 600], vec![0; 100], Vec::new()] {
        let answer = agent.call(
            "PUT",
            &format!("/v1/files/tar?path={}", base.display()),
            &broken,
        );
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
}

#[test]
fn changes_are_told_as_they_happen() {
    let agent = Agent::start();
    let dir = agent.dir().join("w");
    std::fs::create_dir_all(dir.join("old")).unwrap();
    let mut conn = agent.connect();
    send(
        &mut conn,
        "GET",
        &format!("/v1/files/watch?path={}&recursive=1", dir.display()),
        "",
        b"",
    );
    assert_eq!(read_head(&mut conn).status, 200);
    let mut text = String::new();
    let mut until = |change: &str, name: &str| {
        let line =
            json!({ "change": change, "path": dir.join(name).display().to_string() }).to_string();
        while !text.lines().any(|other| other == line) {
            text += std::str::from_utf8(&read_chunk(&mut conn).unwrap()).unwrap();
        }
    };
    std::fs::write(dir.join("old/f"), "x").unwrap();
    until("created", "old/f");
    until("modified", "old/f");
    std::fs::create_dir(dir.join("new")).unwrap();
    until("created", "new");
    std::fs::create_dir_all(dir.join("new/deep/er")).unwrap();
    until("created", "new/deep/er");
    std::fs::rename(dir.join("old/f"), dir.join("new/deep/er/g")).unwrap();
    until("removed", "old/f");
    until("created", "new/deep/er/g");
    std::fs::remove_dir_all(dir.join("new")).unwrap();
    until("removed", "new/deep/er/g");
    until("removed", "new");
}
