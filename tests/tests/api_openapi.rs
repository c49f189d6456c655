//! `vmm/openapi.yaml` and the server say the same: every route, every field, both ways; and the
//! examples work.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use serde_json::{Map, Value, json};
use tine::api::{Owner, table};
use tine_tests::api::{Answer, Vmm};
use tine_tests::guest;

fn description() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vmm/openapi.yaml");
    let file = File::open(path).expect("the description");
    serde_yaml_ng::from_reader(file).expect("YAML")
}

/// One operation of the description.
struct Operation {
    method: String,
    path: String,
    /// The path with its example's values.
    target: String,
    value: Value,
}

impl Operation {
    fn needs(&self) -> &str {
        self.value["x-needs"].as_str().unwrap_or("created")
    }

    fn is_agents(&self) -> bool {
        self.value["x-owner"] == "agent"
    }

    /// Schema and example of the body.
    fn body(&self) -> Option<(&Value, &Value)> {
        let json = self.value["requestBody"]["content"].get("application/json")?;
        Some((&json["schema"], &json["example"]))
    }

    /// The first documented success, or the first error where there is none.
    fn status(&self) -> u16 {
        let responses = self.value["responses"].as_object().expect("responses");
        let codes = responses.keys().filter_map(|code| code.parse().ok());
        codes.min().expect("a status")
    }
}

fn operations(all: &Value) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (path, item) in all["paths"].as_object().expect("paths") {
        let mut target = path.clone();
        for parameter in item["parameters"].as_array().into_iter().flatten() {
            let parameter = resolve(all, parameter);
            let name = parameter["name"].as_str().expect("a name");
            let example = &parameter["example"];
            let example = example.as_str().map_or(example.to_string(), str::to_owned);
            target = target.replace(&format!("{{{name}}}"), &example);
        }
        for (method, value) in item.as_object().expect("operations") {
            if method != "parameters" {
                operations.push(Operation {
                    method: method.to_uppercase(),
                    path: path.clone(),
                    target: target.clone(),
                    value: value.clone(),
                });
            }
        }
    }
    operations
}

fn resolve<'a>(all: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => all
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or_else(|| panic!("{reference}")),
        None => value,
    }
}

/// Examples name files below /srv; here they are in the test's directory.
fn local(value: &Value, dir: &Path) -> Value {
    match value {
        Value::String(text) if text == "/srv/vmlinux" => json!(guest("hang")),
        Value::String(text) => match text.strip_prefix("/srv/") {
            Some(name) => json!(dir.join(name)),
            None => value.clone(),
        },
        Value::Array(list) => list.iter().map(|value| local(value, dir)).collect(),
        Value::Object(map) => {
            let map: Map<_, _> = map
                .iter()
                .map(|(name, value)| (name.clone(), local(value, dir)))
                .collect();
            Value::Object(map)
        }
        _ => value.clone(),
    }
}

fn files(dir: &Path) {
    for name in ["disk.img", "other.img", "initramfs.cpio"] {
        File::create(dir.join(name)).unwrap().set_len(4096).unwrap();
    }
}

/// A process whose machine has been started, with a drive, a balloon and a metrics file.
fn started() -> Vmm {
    let vmm = Vmm::start([] as [&str; 0]);
    files(vmm.dir.path());
    let drive = json!({
        "drive_id": "scratch", "is_root_device": false,
        "path_on_host": vmm.dir.path().join("disk.img"),
    });
    vmm.put("/drives/scratch", &drive).expect(204);
    let balloon = json!({
        "amount_mib": 0, "deflate_on_oom": true, "stats_polling_interval_s": 1,
        "free_page_hinting": true, "free_page_reporting": true,
    });
    vmm.put("/balloon", &balloon).expect(204);
    let metrics = json!({"metrics_path": vmm.dir.path().join("m")});
    vmm.put("/metrics", &metrics).expect(204);
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    vmm
}

/// A process whose machine stands still.
fn paused() -> Vmm {
    let vmm = Vmm::start([] as [&str; 0]);
    vmm.boot_source("hang");
    vmm.start_machine().expect(204);
    let body = json!({"state": "Paused"}).to_string();
    vmm.request("PATCH", "/vm", Some(&body)).expect(204);
    vmm
}

fn send(vmm: &Vmm, operation: &Operation, body: Option<&Value>) -> Answer {
    let body = body.map(Value::to_string);
    vmm.request(&operation.method, &operation.target, body.as_deref())
}

#[test]
fn every_route_is_described_and_every_description_has_a_route() {
    let all = description();
    let described: BTreeSet<_> = operations(&all)
        .iter()
        .map(|op| (op.method.clone(), op.path.clone(), op.is_agents()))
        .collect();
    let served: BTreeSet<_> = table()
        .map(|route| {
            let agents = matches!(route.owner, Owner::Agent);
            (route.method.to_owned(), route.path.to_owned(), agents)
        })
        .collect();
    let missing: Vec<_> = served.difference(&described).collect();
    assert!(missing.is_empty(), "not described: {missing:?}");
    let missing: Vec<_> = described.difference(&served).collect();
    assert!(missing.is_empty(), "not served: {missing:?}");
}

#[test]
fn every_field_of_a_request_is_described_and_every_described_one_is_known() {
    let all = description();
    let vmm = Vmm::start([] as [&str; 0]);
    files(vmm.dir.path());
    for operation in operations(&all).iter().filter(|op| !op.is_agents()) {
        let Some((schema, example)) = operation.body() else {
            continue;
        };
        let schema = resolve(&all, schema);
        let Some(properties) = schema["properties"].as_object() else {
            continue;
        };
        let name = format!("{} {}", operation.method, operation.path);
        assert_eq!(schema["additionalProperties"], false, "{name}");
        let mut body = local(example, vmm.dir.path());
        body["not_a_field"] = json!(1);
        let message = send(&vmm, operation, Some(&body)).expect(400).body;
        assert!(message.contains("`not_a_field`"), "{name}: {message}");
        let (_, list) = message.split_once("there are ").expect(&message);
        let known: BTreeSet<_> = list.split('`').skip(1).step_by(2).collect();
        let described: BTreeSet<_> = properties.keys().map(String::as_str).collect();
        assert_eq!(known, described, "{name}");
        for required in schema["required"].as_array().into_iter().flatten() {
            let required = required.as_str().expect("a name");
            let mut body = local(example, vmm.dir.path());
            body.as_object_mut().expect("an object").remove(required);
            let message = send(&vmm, operation, Some(&body)).expect(400).body;
            let named = format!("`{required}`: is missing");
            assert!(message.contains(&named), "{name}: {message}");
        }
    }
}

#[test]
fn the_examples_work_and_answers_are_as_described() {
    let all = description();
    let mut created = Vmm::start([] as [&str; 0]);
    files(created.dir.path());
    let started = started();
    let paused = paused();
    let mut operations = operations(&all);
    // What is set stands before it is read, and interfaces before what names them.
    operations.sort_by_key(|op| {
        let late = op.path == "/mmds/config";
        (
            op.needs() == "last",
            op.needs() == "snapshot",
            op.method == "GET",
            op.method == "PATCH",
            late,
        )
    });
    for operation in operations.iter().filter(|op| !op.is_agents()) {
        let name = format!("{} {}", operation.method, operation.path);
        let own;
        let mut dir = None;
        let vmm = match operation.needs() {
            "paused" => &paused,
            "snapshot" => {
                own = Vmm::start([] as [&str; 0]);
                dir = Some(paused.dir.path());
                &own
            }
            "created" | "nothing" | "last" => &created,
            "started" | "tap" | "driver" | "running" => &started,
            "stream" => {
                check_stream(&started, operation);
                continue;
            }
            other => panic!("{name}: x-needs: {other}"),
        };
        let expected = match operation.needs() {
            "tap" | "driver" => 400,
            "running" => 409,
            _ => operation.status(),
        };
        let body = operation
            .body()
            .map(|(_, example)| local(example, dir.unwrap_or(vmm.dir.path())));
        let answer = send(vmm, operation, body.as_ref());
        assert_eq!(answer.status, expected, "{name}: {}", answer.body);
        check_answer(&all, operation, &answer);
    }
    assert_eq!(created.wait().code(), Some(0), "it was deleted in the end");
}

fn check_stream(vmm: &Vmm, operation: &Operation) {
    let mut stream = vmm.connect();
    let head = format!("{} {} HTTP/1.1\r\n\r\n", operation.method, operation.target);
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 15];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
}

fn check_answer(all: &Value, operation: &Operation, answer: &Answer) {
    let name = format!("{} {}", operation.method, operation.path);
    let response = resolve(
        all,
        &operation.value["responses"][answer.status.to_string()],
    );
    match response["content"].get("application/json") {
        Some(content) => check(all, &content["schema"], &answer.json(), &name),
        None => assert!(answer.body.is_empty() || answer.status == 200, "{name}"),
    }
}

/// Checks a value against the parts of JSON Schema that the description uses.
fn check(all: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = resolve(all, schema);
    if let Some(choices) = schema["oneOf"].as_array() {
        let chosen = usize::from(!value.is_null());
        return check(all, &choices[chosen], value, at);
    }
    let types: Vec<_> = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(
        types.contains(&kind),
        "{at}: {kind}, described as {types:?}"
    );
    if let Some(choices) = schema["enum"].as_array() {
        assert!(choices.contains(value), "{at}: {value}");
    }
    if let Value::Array(list) = value {
        for value in list {
            check(all, &schema["items"], value, at);
        }
    }
    let (Value::Object(map), Some(properties)) = (value, schema["properties"].as_object()) else {
        return;
    };
    for (name, value) in map {
        let at = format!("{at}: {name}");
        let described = properties.get(name);
        check(
            all,
            described.unwrap_or_else(|| panic!("{at} is not described")),
            value,
            &at,
        );
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        let required = required.as_str().expect("a name");
        assert!(map.contains_key(required), "{at}: {required} is missing");
    }
}
