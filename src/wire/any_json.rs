//! Any JSON that somebody posts and everybody else reads: text flows in, the same text flows out, checked.
//!
//! Always true: every reader that keeps to RFC 7493 (I-JSON) can read it. What is JSON by its grammar alone can still end a
//! careful reader: a number beyond what 64 bits of floating point hold, half of a surrogate pair, a thousand brackets. One
//! such post would go to all who watch, so it is refused where it comes in.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// JSON text that was checked: numbers are finite, strings are Unicode, and nothing is nested deeper than 127 levels.
#[derive(Clone, Copy, Debug)]
pub struct AnyJson<'a>(&'a RawValue);

impl<'a> AnyJson<'a> {
    /// The text as it was written.
    #[must_use]
    pub fn get(self) -> &'a str {
        self.0.get()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for AnyJson<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        match serde_json::from_str::<Plain>(raw.get()) {
            Ok(Plain) => Ok(Self(raw)),
            Err(error) => Err(D::Error::custom(format!("data that not every reader reads: {error}"))),
        }
    }
}

/// A value of which nothing is kept but that it could be read.
struct Plain;

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Plain {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        while members.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_reader_reads_passes_as_it_was_written() {
        for good in [
            "null",
            "true",
            "-0.5e-7",
            "1.7976931348623157e308",
            "18446744073709551615",
            "123456789012345678901234567890",
            "1e-999",
            r#""\ud834\udd1e\u0000""#,
            r#" {"a": [1, {"b" : []}], "a": 2} "#,
        ] {
            assert_eq!(serde_json::from_str::<AnyJson<'_>>(good).expect(good).get(), good.trim(), "{good}");
        }
        let deep = format!("{}{}", "[".repeat(127), "]".repeat(127));
        assert_eq!(serde_json::from_str::<AnyJson<'_>>(&deep).expect("deep enough").get(), deep);
    }

    #[test]
    fn what_ends_a_careful_reader_is_refused() {
        let too_deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
        let far_too_deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for bad in [
            "1e400",
            r#"{"n":-1e400}"#,
            r#""\ud800""#,
            r#"{"\udc00":1}"#,
            r#"["\ud834x"]"#,
            &too_deep,
            &far_too_deep,
            "[1,]",
            "nan",
        ] {
            assert!(serde_json::from_str::<AnyJson<'_>>(bad).is_err(), "{}", &bad[..bad.len().min(40)]);
        }
    }
}
