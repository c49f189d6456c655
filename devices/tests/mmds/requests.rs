//! What is asked, and what is answered.

use serde_json::json;
use tine_devices::mmds::{Mmds, MmdsConfig, MmdsError, MmdsVersion};

use super::client::{Answer, Client, Direct, store};

fn guest(version: MmdsVersion) -> Client<Direct> {
    Client::new(Direct::to(&store(version)))
}

fn token(guest: &mut Client<Direct>, ttl: &str) -> Answer {
    guest.ask(&format!(
        "PUT /latest/api/token HTTP/1.1\r\nX-metadata-token-ttl-seconds: {ttl}\r\n\r\n"
    ))
}

#[test]
fn values_are_text_or_json_as_the_guest_wants() {
    let mut guest = guest(MmdsVersion::V1);
    let answer = guest.get("/latest/meta-data");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "ami-id\ncpus\nnetwork/")
    );
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    assert_eq!(guest.get("/latest/meta-data/ami-id/").body, "ami-1");
    assert_eq!(
        guest.get("//latest//user-data").body,
        "#!/bin/sh\necho hi\n"
    );
    assert_eq!(guest.get("/").body, "latest/\nodd");
    assert_eq!(
        guest
            .get("http://169.254.169.254/latest/user-data?x=1")
            .status,
        200
    );
    assert_eq!(
        guest.get_json("/latest/meta-data"),
        json!({"ami-id": "ami-1", "cpus": 2, "network": {"ip": "172.16.0.2"}})
    );
    assert_eq!(guest.get_json("/odd/1"), json!(null));
    let accept = "Accept: application/json;q=0.9, text/plain";
    let answer = guest.get_with("/latest/meta-data/cpus", accept);
    assert_eq!(
        (answer.body.as_str(), answer.header("content-type")),
        ("2", Some("application/json"))
    );
    assert_eq!(guest.get_with("/", "Accept: */*").body, "latest/\nodd");
}

#[test]
fn what_cannot_be_answered_says_why() {
    let mut guest = guest(MmdsVersion::V1);
    let answer = guest.get("/latest/nothing");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (404, "Resource not found: /latest/nothing.")
    );
    assert_eq!(guest.get("/latest/meta-data/cpus").status, 501);
    assert_eq!(guest.get_with("/", "Accept: image/png").status, 406);
    for method in ["POST", "DELETE", "PATCH", "HEAD", "OPTIONS"] {
        let answer = guest.ask(&format!("{method} / HTTP/1.1\r\n\r\n"));
        assert_eq!(
            (answer.status, answer.header("allow")),
            (405, Some("GET, PUT"))
        );
    }
    assert_eq!(
        guest.ask("PUT /latest/meta-data HTTP/1.1\r\n\r\n").status,
        404
    );
}

#[test]
fn an_empty_store_has_nothing() {
    let mut guest = Client::new(Direct::to(&Mmds::default()));
    assert_eq!(guest.get("/").status, 404);
}

#[test]
fn changes_are_seen_at_once_by_all() {
    let mmds = store(MmdsVersion::V1);
    let mut guest = Client::new(Direct::to(&mmds));
    assert_eq!(guest.get("/latest/meta-data/ami-id").body, "ami-1");
    mmds.patch(json!({"latest": {"meta-data": {"ami-id": "ami-2", "cpus": null}}}))
        .unwrap();
    assert_eq!(guest.get("/latest/meta-data").body, "ami-id\nnetwork/");
    assert_eq!(guest.get("/latest/meta-data/ami-id").body, "ami-2");
    assert_eq!(mmds.get("/latest/meta-data/ami-id"), Some(json!("ami-2")));
    mmds.put(json!({"new": "x"})).unwrap();
    assert_eq!(guest.get("/").body, "new");
    assert_eq!(mmds.document(), Some(json!({"new": "x"})));
}

#[test]
fn version_2_answers_those_with_a_token() {
    let mut guest = guest(MmdsVersion::V2);
    let answer = guest.get("/");
    assert_eq!(answer.status, 401);
    assert!(
        answer.body.starts_with("No MMDS token provided."),
        "{}",
        answer.body
    );
    let answer = token(&mut guest, "60");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-metadata-token-ttl-seconds"), Some("60"));
    let good = answer.body;
    for name in ["X-metadata-token", "x-aws-ec2-metadata-token"] {
        let answer = guest.get_with("/", &format!("{name}: {good}"));
        assert_eq!((answer.status, answer.body.as_str()), (200, "latest/\nodd"));
    }
    for bad in [
        "",
        "x",
        &good[1..],
        &good.replace(['0', '1', '2', '3'], "a"),
    ] {
        let answer = guest.get_with("/", &format!("X-metadata-token: {bad}"));
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (401, "MMDS token not valid.")
        );
    }
}

#[test]
fn a_token_expires() {
    let mut guest = guest(MmdsVersion::V2);
    let token = token(&mut guest, "1").body;
    let header = format!("X-metadata-token: {token}");
    assert_eq!(guest.get_with("/", &header).status, 200);
    std::thread::sleep(std::time::Duration::from_millis(1_050));
    assert_eq!(guest.get_with("/", &header).status, 401);
}

#[test]
fn a_token_is_not_given_without_a_life_or_through_a_proxy() {
    let mut guest = guest(MmdsVersion::V2);
    for ttl in ["1", "21600"] {
        assert_eq!(token(&mut guest, ttl).status, 200);
    }
    for ttl in ["0", "21601", "-1", "x", "", "99999999999999"] {
        let answer = token(&mut guest, ttl);
        assert_eq!(answer.status, 400, "{ttl:?}");
        assert!(
            answer.body.contains("between 1 and 21600"),
            "{}",
            answer.body
        );
    }
    let answer = guest.ask("PUT /latest/api/token HTTP/1.1\r\n\r\n");
    assert_eq!(answer.status, 400);
    assert!(
        answer
            .body
            .starts_with("Token time to live value not found.")
    );
    let answer = guest.ask(
        "PUT /latest/api/token HTTP/1.1\r\nX-metadata-token-ttl-seconds: 60\r\n\
         x-forwarded-for: 1.2.3.4\r\n\r\n",
    );
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("X-Forwarded-For"), "{}", answer.body);
}

#[test]
fn a_store_like_ec2s_answers_in_text_whatever_is_accepted() {
    let mmds = store(MmdsVersion::V1);
    let config = MmdsConfig {
        imds_compat: true,
        ..MmdsConfig::default()
    };
    mmds.configure(config).unwrap();
    let mut guest = Client::new(Direct::to(&mmds));
    for accept in ["application/json", "image/png"] {
        let answer = guest.get_with("/", &format!("Accept: {accept}"));
        assert_eq!(answer.body, "latest/\nodd");
    }
}

#[test]
fn configuration_is_that_of_the_api() {
    let config: MmdsConfig = serde_json::from_str(r#"{"version":"V2"}"#).unwrap();
    let expected = MmdsConfig {
        version: MmdsVersion::V2,
        ..MmdsConfig::default()
    };
    assert_eq!(config, expected);
    assert!(serde_json::from_str::<MmdsConfig>(r#"{"v":1}"#).is_err());
    for addr in [
        "169.254.0.1",
        "169.254.255.1",
        "10.0.0.1",
        "127.0.0.1",
        "255.255.255.255",
    ] {
        let ipv4_address = addr.parse().unwrap();
        let config = MmdsConfig {
            ipv4_address,
            ..MmdsConfig::default()
        };
        let refused = Mmds::default().configure(config);
        assert_eq!(refused, Err(MmdsError::Address(ipv4_address)));
    }
}

#[test]
fn a_document_as_large_as_its_limit_arrives_whole() {
    let mmds = Mmds::default();
    let text: String = (0..51_200 - 8)
        .map(|n| char::from(b'a' + (n % 23) as u8))
        .collect();
    mmds.put(json!({"k": format!("{text}x")})).unwrap_err();
    mmds.put(json!({ "k": text })).unwrap();
    let mut guest = Client::new(Direct::to(&mmds));
    assert!(guest.get("/k").body == text);
    assert!(guest.get_json("/") == json!({ "k": text }));
}
