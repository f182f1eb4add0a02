//! The names of a struct's fields, asked of serde, so that no list of them can fall behind.
use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// What `T` calls its fields, other names among them.
pub fn of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // It holds no value, so that this fails whatever `T` is.
    let _ = T::deserialize(Names(&mut names));
    names
}

struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[test]
    fn all_names_are_known() {
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "asked for its names alone")]
        struct Two {
            one: u8,
            #[serde(alias = "deux", rename = "zwei")]
            two: Option<String>,
        }
        let mut names = of::<Two>().to_vec();
        names.sort_unstable();
        assert_eq!(names, ["deux", "one", "zwei"]);
        assert!(of::<Vec<u8>>().is_empty());
    }
}
