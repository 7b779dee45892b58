//! Functions that read and write numbers, handles and objects in JSON.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// Reads a whole number that is written as 6 or as 6.0, because JSON (RFC 8259 §6) and JSON Schema treat the two as
/// equal.
pub(crate) fn whole<'de, D: Deserializer<'de>, T: TryFrom<u32>>(from: D) -> Result<T, D::Error> {
    let number = f64::deserialize(from)?;
    let is_whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    let whole = is_whole.then_some(number as u32).and_then(|whole| T::try_from(whole).ok());
    whole.ok_or_else(|| D::Error::custom(format_args!("{number} is not a whole number in the permitted range")))
}

/// Reads a whole number, written as 6 or as 6.0; `null` becomes `None`.
pub(crate) fn some_whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let number = Option::<f64>::deserialize(from)?;
    number.map(|number| whole(number.into_deserializer())).transpose()
}

/// Reads an object; `null` becomes `None`. Rejects an array of the fields' values: serde's derived reader would accept
/// it, but the API's description does not allow it.
pub(crate) fn some_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = Option<T>;

        fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
            text.write_str("an object")
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    from.deserialize_any(Object(PhantomData))
}

pub(crate) mod handles_hex {
    //! Writes and reads a list of handles, each in the notation of [`super::handle_hex`].
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Handle(#[serde(with = "super::handle_hex")] u64);

    pub fn serialize<S: Serializer>(handles: &[u64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(handles.iter().copied().map(Handle))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
        let handles = Vec::<Handle>::deserialize(from)?;
        Ok(handles.into_iter().map(|Handle(handle)| handle).collect())
    }
}

pub(crate) mod handle_hex {
    //! Writes and reads a 64-bit handle as 16 hex digits, because many JSON readers lose bits of numbers beyond 2^53.
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(handle: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{handle:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || D::Error::custom("a handle has 16 hex digits");
        let is_handle = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_handle { u64::from_str_radix(&text, 16).map_err(|_| wrong()) } else { Err(wrong()) }
    }
}
