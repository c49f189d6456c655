//! The document: replaced, merged, looked into, and never larger than its limit.

use std::io;

use serde_json::Value;

use super::MmdsError;

/// A JSON object, or none yet.
pub(super) struct Document {
    value: Option<Value>,
    limit: usize,
}

impl Document {
    pub fn new(limit: usize) -> Self {
        Self { value: None, limit }
    }

    pub fn put(&mut self, value: Value) -> Result<(), MmdsError> {
        if !value.is_object() {
            return Err(MmdsError::NotAnObject);
        }
        let limit = self.limit;
        match len(&value) {
            len if len > limit => Err(MmdsError::TooLarge { len, limit }),
            _ => {
                self.value = Some(value);
                Ok(())
            }
        }
    }

    pub fn patch(&mut self, patch: Value) -> Result<(), MmdsError> {
        let mut merged = self.value.clone().ok_or(MmdsError::Empty)?;
        merge(&mut merged, patch);
        self.put(merged)
    }

    pub fn whole(&self) -> Option<&Value> {
        self.value.as_ref()
    }

    /// The value at a path. More slashes than needed are no matter; `~1` stands for a slash and
    /// `~0` for a tilde in a key (RFC 6901).
    pub fn get(&self, path: &str) -> Option<&Value> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.fold(self.value.as_ref(), |value, part| match value? {
            Value::Object(fields) => match part.contains('~') {
                true => fields.get(&part.replace("~1", "/").replace("~0", "~")),
                false => fields.get(part),
            },
            Value::Array(items) => items.get(index(part)?),
            _ => None,
        })
    }
}

/// A place in an array, written without a sign or zeroes in front.
fn index(part: &str) -> Option<usize> {
    let plain = part.bytes().all(|byte| byte.is_ascii_digit());
    let padded = part.len() > 1 && part.starts_with('0');
    part.parse().ok().filter(|_| plain && !padded)
}

/// RFC 7396.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Default::default());
    }
    let Value::Object(fields) = target else {
        return;
    };
    for (key, value) in patch {
        match value {
            Value::Null => {
                fields.remove(&key);
            }
            value => merge(fields.entry(key).or_insert(Value::Null), value),
        }
    }
}

/// Length as compact JSON.
fn len(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(value: Value) -> Document {
        let mut document = Document::new(1000);
        document.put(value).unwrap();
        document
    }

    // The examples of RFC 7396, appendix A, as far as the document stays an object.
    #[test]
    fn patches_are_merged_as_the_standard_says() {
        for (target, patch, result) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (
                json!({"a":"b","b":"c"}),
                json!({"a":null}),
                json!({"b":"c"}),
            ),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (
                json!({"a":{"b":"c"}}),
                json!({"a":{"b":"d","c":null}}),
                json!({"a":{"b":"d"}}),
            ),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (
                json!({}),
                json!({"a":{"bb":{"ccc":null}}}),
                json!({"a":{"bb":{}}}),
            ),
        ] {
            let mut document = with(target);
            document.patch(patch).unwrap();
            assert_eq!(document.whole(), Some(&result));
        }
    }

    #[test]
    fn a_document_that_is_too_large_leaves_the_old_one() {
        let mut document = Document::new(20);
        let full = json!({"a":"0123456789abc"});
        document.put(full.clone()).unwrap_err();
        document.put(json!({"a":"0123456789ab"})).unwrap();
        let (len, limit) = (21, 20);
        let refused = document.patch(full);
        assert_eq!(refused, Err(MmdsError::TooLarge { len, limit }));
        assert!(document.patch(json!({"b":1})).is_err());
        assert_eq!(document.whole(), Some(&json!({"a":"0123456789ab"})));
    }

    #[test]
    fn only_objects_are_documents_and_a_patch_needs_one() {
        let mut document = Document::new(100);
        assert_eq!(document.patch(json!({"a":1})), Err(MmdsError::Empty));
        for value in [json!(null), json!([1]), json!("text"), json!(7)] {
            assert_eq!(document.put(value), Err(MmdsError::NotAnObject));
        }
        document.put(json!({"a":1})).unwrap();
        assert_eq!(document.patch(json!([1])), Err(MmdsError::NotAnObject));
        assert_eq!(document.whole(), Some(&json!({"a":1})));
    }

    #[test]
    fn values_are_found_by_their_path() {
        let document = with(json!({"a":{"b":[10,{"c":"d"}]},"x/y":1,"p~q":2,"":3}));
        let get = |path| document.get(path);
        assert_eq!(get("/a/b/0"), Some(&json!(10)));
        assert_eq!(get("//a//b/1/c/"), Some(&json!("d")));
        assert_eq!(get("/x~1y"), Some(&json!(1)));
        assert_eq!(get("/p~0q"), Some(&json!(2)));
        assert_eq!(get("/"), document.whole());
        for path in [
            "/a/b/2", "/a/b/00", "/a/b/+1", "/a/b/-1", "/a/b/0/x", "/z", "/A",
        ] {
            assert_eq!(get(path), None, "{path}");
        }
    }
}
