//! At most once, whatever happens to connections.

mod common;

use std::io::Read;
use std::net::Shutdown;

use common::{Agent, read_answer, request, send, unique};
use serde_json::json;

#[test]
fn the_same_request_gets_the_same_record() {
    let agent = Agent::start();
    let file = agent.dir().join("count");
    let body = request(
        &[
            "sh",
            "-c",
            &format!("echo x >> {}; cat {0}", file.display()),
        ],
        json!({}),
    );
    let first = agent.json("POST", "/v1/exec", body.clone());
    let second = agent.json("POST", "/v1/exec", body.clone());
    assert_eq!(first.value(), second.value());
    let id = body["request_id"].as_str().unwrap();
    assert_eq!(
        agent.call("GET", &format!("/v1/exec/{id}"), b"").value(),
        first.value()
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x\n");
    let mut other = body.clone();
    other["argv"] = json!(["true"]);
    let conflict = agent.json("POST", "/v1/exec", other);
    assert_eq!(conflict.status, 409, "{}", conflict.text());
    // As a stream it is shown the same command, too.
    let whole = agent.upgrade("/v1/exec", &body).finish();
    assert_eq!(whole.stdout, b"x\n");
    assert_eq!(whole.record()["exit_code"], 0);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x\n");
}

#[test]
fn fifty_clients_with_connections_cut_at_random() {
    let agent = Agent::start();
    let file = agent.dir().join("count");
    let script = format!("echo x >> {}; sleep 0.3; echo done", file.display());
    let body = request(&["sh", "-c", &script], json!({}));
    std::thread::scope(|scope| {
        for number in 0..50u32 {
            let (agent, body) = (&agent, &body);
            scope.spawn(move || {
                let text = body.to_string();
                let mut conn = agent.connect();
                match number % 5 {
                    // Cut in the middle of the request.
                    0 => {
                        let head = format!(
                            "POST /v1/exec HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                            text.len()
                        );
                        let half = &text.as_bytes()[..text.len() * (number as usize) / 50];
                        std::io::Write::write_all(&mut conn, &[head.as_bytes(), half].concat())
                            .unwrap();
                        let _ = conn.shutdown(Shutdown::Both);
                    }
                    // Cut after the request.
                    1 => {
                        send(&mut conn, "POST", "/v1/exec", "", text.as_bytes());
                        drop(conn);
                    }
                    // A stream, cut after its head.
                    2 => {
                        let upgrade = "Connection: Upgrade\r\nUpgrade: tine-stream/1\r\n";
                        send(&mut conn, "POST", "/v1/exec", upgrade, text.as_bytes());
                        let _ = conn.read(&mut [0; 16]);
                    }
                    // Half closed: still answered.
                    3 => {
                        send(&mut conn, "POST", "/v1/exec", "", text.as_bytes());
                        conn.shutdown(Shutdown::Write).unwrap();
                        assert_eq!(read_answer(&mut conn).value()["stdout"], "done\n");
                    }
                    _ => {
                        send(&mut conn, "POST", "/v1/exec", "", text.as_bytes());
                        assert_eq!(read_answer(&mut conn).value()["stdout"], "done\n");
                    }
                }
            });
        }
    });
    assert_eq!(
        agent.json("POST", "/v1/exec", body).value()["stdout"],
        "done\n"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x\n");
}

#[test]
fn records_are_bounded_and_dropped_ids_refused() {
    let agent = Agent::start_with(&["--records", "3"]);
    let bodies: Vec<_> = (0..5).map(|_| request(&["true"], json!({}))).collect();
    for body in &bodies {
        assert_eq!(agent.json("POST", "/v1/exec", body.clone()).status, 200);
    }
    let again = agent.json("POST", "/v1/exec", bodies[0].clone());
    assert_eq!(again.status, 410, "{}", again.text());
    let path = format!("/v1/exec/{}", bodies[0]["request_id"].as_str().unwrap());
    assert_eq!(agent.call("GET", &path, b"").status, 410);
    assert_eq!(
        agent.json("POST", "/v1/exec", bodies[4].clone()).status,
        200
    );
}

#[test]
fn output_kept_is_bounded_over_all_records() {
    let agent = Agent::start_with(&["--record-bytes", "1000000"]);
    let mut bodies = Vec::new();
    for _ in 0..10 {
        let body = request(
            &["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' a"],
            json!({}),
        );
        let record = agent.json("POST", "/v1/exec", body.clone()).value();
        assert_eq!(record["stdout"].as_str().unwrap().len(), 300_000);
        bodies.push(body);
    }
    let statuses = bodies
        .into_iter()
        .map(|body| agent.json("POST", "/v1/exec", body).status);
    let statuses: Vec<_> = statuses.collect();
    assert_eq!(statuses, [410, 410, 410, 410, 410, 410, 410, 200, 200, 200]);
    // One command alone cannot hold more either.
    let more = json!({ "output_limit": 4_000_000 });
    let record = agent.exec(
        &["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' a"],
        more,
    );
    assert_eq!(record["stdout_truncated"], true);
    assert!(record["stdout"].as_str().unwrap().len() < 1_100_000);
}

#[test]
fn started_without_waiting_and_looked_at_later() {
    let agent = Agent::start();
    let body = request(&["sh", "-c", "sleep 0.2; echo hi"], json!({}));
    let id = body["request_id"].as_str().unwrap().to_owned();
    let answer = agent.json("POST", "/v1/exec?wait=false", body);
    assert_eq!(answer.status, 202);
    assert_eq!(answer.value()["state"], "running");
    let path = format!("/v1/exec/{id}");
    assert_eq!(
        agent.call("GET", &format!("{path}?wait=1"), b"").value()["state"],
        "running"
    );
    let record = agent.call("GET", &format!("{path}?wait"), b"").value();
    assert_eq!(
        (&record["state"], &record["stdout"]),
        (&json!("exited"), &json!("hi\n"))
    );
    assert_eq!(agent.call("GET", "/v1/exec/unknown", b"").status, 404);
}

#[test]
fn cancel_ends_the_tree() {
    let agent = Agent::start();
    let mark = unique("5");
    let script = format!("setsid sh -c 'sleep 305; : {mark}' & echo ready; sleep 306");
    let mut live = agent.stream(&["sh", "-c", &script], json!({}));
    let id = live.control()["request_id"].as_str().unwrap().to_owned();
    live.frame().unwrap();
    let record = agent.call("DELETE", &format!("/v1/exec/{id}"), b"").value();
    assert_eq!(
        (&record["state"], &record["reason"]),
        (&json!("killed"), &json!("cancelled"))
    );
    assert!(
        !agent
            .call("GET", "/v1/processes", b"")
            .text()
            .contains(&mark)
    );
    assert_eq!(live.finish().record()["state"], "killed");
    // Cancelling what has ended changes nothing.
    let body = request(&["true"], json!({}));
    let first = agent.json("POST", "/v1/exec", body.clone()).value();
    let path = format!("/v1/exec/{}", body["request_id"].as_str().unwrap());
    assert_eq!(agent.call("DELETE", &path, b"").value(), first);
}

#[test]
fn clients_that_have_gone_keep_no_place() {
    let agent = Agent::start();
    let body = request(&["sleep", "600"], json!({})).to_string();
    let half = agent.connect();
    // More than there are places for.
    for _ in 0..300 {
        let mut conn = agent.connect();
        common::send(&mut conn, "POST", "/v1/exec", "", body.as_bytes());
    }
    assert_eq!(agent.call("GET", "/v1/health", b"").status, 200);
    // One that only has nothing more to say gets its answer.
    let mut half = half;
    let short = request(&["sleep", "0.3"], json!({})).to_string();
    common::send(&mut half, "POST", "/v1/exec", "", short.as_bytes());
    half.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(common::read_answer(&mut half).status, 200);
}
