//! The known API by name: each of its requests has a route here, and each field of their bodies is
//! described, or the route is refused by its name (see `known_api.txt`). That what is described is
//! what the server knows, and the other way round, is `api_openapi.rs`'s business.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};
use tine::api::table;
use tine_tests::api::Vmm;

/// What a path is refused for.
const REFUSED: &[(&str, &str)] = &[
    ("/cpu-config", "CPU templates are not supported"),
    ("/pmem/{id}", "pmem devices are not supported"),
    ("/hotplug/memory", "memory hotplug is not supported"),
];

fn described(all: &Value, method: &str, path: &str) -> BTreeSet<String> {
    let operation = &all["paths"][path][method.to_lowercase()];
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let schema = match schema["$ref"].as_str() {
        Some(reference) => all.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    let fields = schema["properties"].as_object();
    fields
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect()
}

#[test]
fn every_field_of_the_known_api_works_or_is_refused_by_name() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vmm/openapi.yaml");
    let all: Value = serde_yaml_ng::from_reader(File::open(path).unwrap()).unwrap();
    let lines = include_str!("known_api.txt").lines();
    let lines: Vec<_> = lines.filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 38);
    let vmm = Vmm::start([] as [&str; 0]);
    for line in lines {
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let fields: BTreeSet<_> = words.map(str::to_owned).collect();
        let has_route = table().any(|route| (route.method, route.path) == (method, path));
        assert!(has_route, "{line}");
        if let Some((_, words)) = REFUSED.iter().find(|(refused, _)| *refused == path) {
            let target = path.replace("{id}", "pmem0");
            for field in &fields {
                let body = json!({ field: 1 }).to_string();
                let fault = vmm
                    .request(method, &target, Some(&body))
                    .expect(400)
                    .fault();
                assert!(fault.contains(words), "{line}: {fault}");
            }
            continue;
        }
        let described = described(&all, method, path);
        let unknown: Vec<_> = fields.difference(&described).collect();
        assert!(unknown.is_empty(), "{method} {path}: {unknown:?}");
    }
}
