//! JSON values whose objects are objects.
//!
//! Serde takes an array for a struct as well, its fields in their order; no description of a
//! request says so, and a caller who sends one has made a mistake.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// Reads a value.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(Objects(value))
}

struct Objects(Value);

impl<'de> Deserializer<'de> for Objects {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(list) => {
                let mut items = SeqDeserializer::new(list.into_iter().map(Objects));
                let value = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(value)
            }
            Value::Object(map) => {
                let fields = map.into_iter().map(|(name, value)| (name, Objects(value)));
                let mut fields = MapDeserializer::new(fields);
                let value = visitor.visit_map(&mut fields)?;
                fields.end()?;
                Ok(value)
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(_) => Err(Error::custom("invalid type: an array, expected an object")),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl IntoDeserializer<'_, Error> for Objects {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        a: Option<u8>,
        b: Option<String>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Word {
        One,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        inner: Option<Inner>,
        list: Vec<Inner>,
        map: BTreeMap<String, (u8, Word)>,
    }

    #[test]
    fn an_array_is_no_object_however_deep() {
        let whole = json!({
            "inner": {"a": 1, "b": "x"}, "list": [{"a": null}, {}], "map": {"m": [7, "One"]},
        });
        let outer: Outer = read(whole.clone()).unwrap();
        assert_eq!(outer.inner.as_ref().unwrap().b.as_deref(), Some("x"));
        assert_eq!(outer, serde_json::from_value(whole.clone()).unwrap());
        for (at, wrong) in [
            ("/inner", json!([1, "x"])),
            ("/inner", json!([])),
            ("/list/1", json!([1, "x"])),
            ("/inner/a", json!("1")),
            ("/inner/a", json!(300)),
            ("/map/m/1", json!("Two")),
            ("/map/m", json!([7, "One", 8])),
            ("/inner", json!({"c": 1})),
        ] {
            let mut value = whole.clone();
            *value.pointer_mut(at).unwrap() = wrong;
            assert!(read::<Outer>(value.clone()).is_err(), "{value}");
        }
        assert!(read::<Outer>(json!([null, [], {}])).is_err());
    }
}
