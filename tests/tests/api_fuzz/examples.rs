//! The description's own examples.

use std::fs::File;
use std::path::Path;

use serde_json::Value;

/// One request before anything is wrong with it.
#[derive(Debug, Clone)]
pub struct Example {
    /// The method, in capitals.
    pub method: String,
    /// The path.
    pub target: String,
    /// JSON.
    pub body: Option<String>,
}

impl Example {
    /// Behind it there is less to ask for.
    pub fn ends(&self) -> bool {
        self.method == "DELETE" || self.target == "/actions"
    }
}

/// All that have an end to wait for.
pub fn all() -> Vec<Example> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vmm/openapi.yaml");
    let all: Value = serde_yaml_ng::from_reader(File::open(path).unwrap()).unwrap();
    let mut examples = Vec::new();
    for (path, item) in all["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "parameters" || operation["x-needs"] == "stream" {
                continue;
            }
            let json = &operation["requestBody"]["content"]["application/json"];
            let id = path.split(['{', '}']).nth(1).unwrap_or_default();
            examples.push(Example {
                method: method.to_uppercase(),
                target: path.replace(&format!("{{{id}}}"), "eth0"),
                body: json.get("example").map(Value::to_string),
            });
        }
    }
    examples
}
