//! Reading a JSON object field by field, so that an error names the field.
//!
//! Serde's own messages name missing and unknown fields but not the one whose value is wrong; a caller that gets 400
//! needs the name each time. Unknown fields are refused.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::objects;

/// A request body that is not what it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The field at fault; empty when the body as a whole is.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl FieldError {
    /// An error about one field.
    pub fn new(field: &str, message: impl fmt::Display) -> Self {
        Self {
            field: field.to_owned(),
            message: message.to_string(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "request body: {}", self.message)
        } else {
            write!(f, "field `{}`: {}", self.field, self.message)
        }
    }
}

impl std::error::Error for FieldError {}

/// The fields of one object that have not been taken yet, and the names of those that were asked for.
#[derive(Debug)]
pub struct Fields {
    left: Map<String, Value>,
    known: Vec<String>,
}

impl Fields {
    /// Parses a body that must be one JSON object. An empty body counts as `{}`.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let value = match body {
            [] => Value::Object(Map::new()),
            body => serde_json::from_slice(body).map_err(|error| FieldError::new("", error))?,
        };
        match value {
            Value::Object(left) => Ok(Self {
                left,
                known: Vec::new(),
            }),
            _ => Err(FieldError::new("", "must be a JSON object")),
        }
    }

    /// Takes a field that may be missing or null.
    pub fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, FieldError> {
        self.known.push(name.to_owned());
        match self.left.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => objects::read(value)
                .map(Some)
                .map_err(|error| FieldError::new(name, error)),
        }
    }

    /// Takes a field that must be there.
    pub fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, FieldError> {
        self.optional(name)?.ok_or_else(|| {
            // What is there instead may be a misspelling of it.
            let left: Vec<_> = self.left.keys().take(5).map(String::as_str).collect();
            match left.is_empty() {
                true => FieldError::new(name, "is missing"),
                false => {
                    let left = left.join("`, `");
                    FieldError::new(name, format_args!("is missing; the request has `{left}`"))
                }
            }
        })
    }

    /// Ends the reading: whatever is left is unknown, and the error says what is known.
    pub fn finish(self) -> Result<(), FieldError> {
        match self.left.keys().next() {
            Some(name) => {
                let known = self.known.join("`, `");
                Err(FieldError::new(
                    name,
                    format_args!("is not known; there are `{known}`"),
                ))
            }
            None => Ok(()),
        }
    }
}
