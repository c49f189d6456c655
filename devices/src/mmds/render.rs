//! Values as the guest reads them.

use serde_json::Value;

/// A form of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// As it is.
    Json,
    /// As EC2's store has it: a text is given bare, an object as a list of its keys, those of
    /// objects with a slash behind.
    Text,
}

impl Format {
    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Text => "text/plain",
        }
    }
}

/// Writes a value; `None` if the form has no way to.
pub(super) fn render(value: &Value, format: Format) -> Option<String> {
    match (format, value) {
        (Format::Json, value) => serde_json::to_string(value).ok(),
        (Format::Text, Value::String(text)) => Some(text.clone()),
        (Format::Text, Value::Object(fields)) => {
            let lines = fields.iter().map(|(key, value)| match value.is_object() {
                true => format!("{key}/"),
                false => key.clone(),
            });
            Some(lines.collect::<Vec<_>>().join("\n"))
        }
        (Format::Text, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_bare_and_objects_are_lists() {
        let value = json!({"age":43,"name":{"first":"John"},"phones":["a"],"note":"hi\nthere"});
        let text = |value: &Value| render(value, Format::Text);
        assert_eq!(text(&value).unwrap(), "age\nname/\nnote\nphones");
        assert_eq!(text(&value["note"]).unwrap(), "hi\nthere");
        assert_eq!(text(&json!({})).unwrap(), "");
        for value in [json!(43), json!(true), json!(null), json!(["a"])] {
            assert_eq!(text(&value), None);
            assert_eq!(render(&value, Format::Json), Some(value.to_string()));
        }
    }
}
