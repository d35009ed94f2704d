//! The JSON of proto3, in one place: what a field looks like on the wire, by its type.
//!
//! A field that is missing or `null` has its default, and one that has its default is not written. Bytes are base64, 64-bit
//! numbers are strings, enums are names; a reader also takes the other spellings that the specification allows. Unknown fields
//! are ignored. A oneof is an enum, and two of its fields at once are refused.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use bytes::Bytes;
use jiff::{Timestamp, fmt::temporal::DateTimePrinter};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

/// What can stand in a message: a number, bytes, a list, another message.
pub(crate) trait Field: Default + PartialEq {
    /// Reads what is there and is not `null`.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
}

/// For `deserialize_with`.
pub(crate) fn read<'de, D: Deserializer<'de>, T: Field>(deserializer: D) -> Result<T, D::Error> {
    let read = Option::<Read<T>>::deserialize(deserializer)?;
    Ok(read.map_or_else(T::default, |Read(value)| value))
}

/// For `serialize_with`.
pub(crate) fn write<S: Serializer, T: Field>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    value.write(serializer)
}

/// For `skip_serializing_if`.
pub(crate) fn is_default<T: Field>(value: &T) -> bool {
    *value == T::default()
}

struct Read<T>(T);

impl<'de, T: Field> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::read(deserializer).map(Self)
    }
}

pub(crate) struct Written<'a, T>(pub(crate) &'a T);

impl<T: Field> Serialize for Written<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.write(serializer)
    }
}

/// One that says whether it is there.
impl<T: Field> Field for Option<T> {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::read(deserializer).map(Some)
    }

    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Some(value) => value.write(serializer),
            None => serializer.serialize_none(),
        }
    }
}

impl<T: Field> Field for Box<T> {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::read(deserializer).map(Self::new)
    }

    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        T::write(self, serializer)
    }
}

impl<T: Field> Field for Vec<T> {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Vec::<Read<T>>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|Read(value)| value).collect())
    }

    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Written))
    }
}

macro_rules! as_serde_does {
    ($($kind:ty),*) => {$(
        impl Field for $kind {
            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::deserialize(deserializer)
            }

            fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.serialize(serializer)
            }
        }
    )*};
}

as_serde_does!(bool, String, BTreeMap<String, String>);

macro_rules! number {
    ($($kind:ty: $write:expr;)*) => {$(
        impl Field for $kind {
            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Number(PhantomData))
            }

            fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let write: fn(&Self, S) -> Result<S::Ok, S::Error> = $write;
                write(self, serializer)
            }
        }
    )*};
}

number! {
    u32: |value, serializer| serializer.serialize_u32(*value);
    i32: |value, serializer| serializer.serialize_i32(*value);
    // A number of JavaScript's would lose the last digits.
    i64: |value, serializer| serializer.collect_str(value);
}

/// As a number or as a string, also with a point where nothing follows it.
struct Number<T>(PhantomData<T>);

impl<T: TryFrom<i64>> Visitor<'_> for Number<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or a string of one")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        T::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        let number = i64::try_from(value).ok().and_then(|value| T::try_from(value).ok());
        number.ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        // Up to here each whole number is one of its own.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let whole = value.fract() == 0.0 && value.abs() <= EXACT;
        let number = whole.then_some(value as i64).and_then(|value| T::try_from(value).ok());
        number.ok_or_else(|| E::invalid_value(de::Unexpected::Float(value), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        let number = text.parse::<i64>().ok().and_then(|value| T::try_from(value).ok());
        number.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl Field for Bytes {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Base64)
    }

    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self))
    }
}

struct Base64;

impl Visitor<'_> for Base64 {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes in base64")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
        const CONFIG: GeneralPurposeConfig =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        const PLAIN: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
        const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);
        let engine = if text.contains(['-', '_']) { &URL_SAFE } else { &PLAIN };
        engine.decode(text).map(Bytes::from).map_err(|error| E::custom(format_args!("no base64: {error}")))
    }
}

impl Field for Timestamp {
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }

    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits = match self.subsec_nanosecond() {
            0 => 0,
            nanos if nanos % 1_000_000 == 0 => 3,
            nanos if nanos % 1_000 == 0 => 6,
            _ => 9,
        };
        let printer = DateTimePrinter::new().precision(Some(digits));
        serializer.serialize_str(&printer.timestamp_to_string(self))
    }
}

/// Messages: structs whose fields all follow the rules above.
macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {$(
            $(#[$field_meta])*
            #[serde(
                default,
                deserialize_with = "crate::proto::read",
                serialize_with = "crate::proto::write",
                skip_serializing_if = "crate::proto::is_default"
            )]
            pub $field: $kind,
        )*}

        impl crate::proto::Field for $name {
            fn read<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                serde::Deserialize::deserialize(deserializer)
            }

            fn write<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serde::Serialize::serialize(self, serializer)
            }
        }
    )*};
}

/// Oneofs: each is a field of the type `Option`, since none of it may be set.
macro_rules! oneofs {
    ($($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $field:ident: $variant:ident($kind:ty),)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name { $($(#[$variant_meta])* $variant($kind),)* }

        impl crate::proto::Field for Option<$name> {
            fn read<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                struct Fields {$(
                    #[serde(default, deserialize_with = "crate::proto::read")]
                    $field: Option<$kind>,
                )*}
                let fields: Fields = serde::Deserialize::deserialize(deserializer)?;
                let mut set = [$(fields.$field.map($name::$variant)),*].into_iter().flatten();
                match (set.next(), set.next()) {
                    (one, None) => Ok(one),
                    _ => {
                        let names = [$(stringify!($field)),*].join(", ");
                        Err(serde::de::Error::custom(format_args!("only one of {names} may be set")))
                    }
                }
            }

            fn write<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Some($name::$variant(value)) => {
                        serializer.collect_map([(stringify!($field), crate::proto::Written(value))])
                    })*
                    None => serializer.collect_map([("", ""); 0]),
                }
            }
        }
    )*};
}

/// Messages that consist of one oneof.
macro_rules! choices {
    ($($(#[$meta:meta])* $name:ident { $field:ident: $oneof:ident, })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            pub $field: Option<$oneof>,
        }

        impl From<$oneof> for $name {
            fn from($field: $oneof) -> Self {
                Self { $field: Some($field) }
            }
        }

        impl crate::proto::Field for $name {
            fn read<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let $field = crate::proto::Field::read(deserializer)?;
                Ok(Self { $field })
            }

            fn write<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                crate::proto::Field::write(&self.$field, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::proto::Field::read(deserializer)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                crate::proto::Field::write(self, serializer)
            }
        }
    )*};
}

/// An enum of proto3. The first of its values, number 0, is the one that nobody chose.
pub(crate) trait Enum: Copy + 'static {
    const ALL: &'static [Self];
    fn number(self) -> i32;
    fn name(self) -> &'static str;
}

/// Takes a name or a number. What is neither is refused: a guess could be the wrong signal.
pub(crate) struct EnumVisitor<T>(pub(crate) PhantomData<T>);

impl<T: Enum> Visitor<'_> for EnumVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = T::ALL.iter().map(|value| value.name()).collect::<Vec<_>>();
        write!(f, "one of {}", names.join(", "))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        let value = T::ALL.iter().find(|value| value.name() == text);
        value.copied().ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        let value = T::ALL.iter().find(|value| i64::from(value.number()) == number);
        value.copied().ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

macro_rules! enums {
    ($($(#[$meta:meta])* $name:ident { $($variant:ident = $number:literal $text:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($variant = $number,)* }

        impl Default for $name {
            fn default() -> Self {
                Self::Unspecified
            }
        }

        impl crate::proto::Enum for $name {
            const ALL: &'static [Self] = &[$($name::$variant,)*];

            fn number(self) -> i32 {
                self as i32
            }

            fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }

        impl crate::proto::Field for $name {
            fn read<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(crate::proto::EnumVisitor(std::marker::PhantomData))
            }

            fn write<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(crate::proto::Enum::name(*self))
            }
        }
    )*};
}

pub(crate) use {choices, enums, messages, oneofs};

#[cfg(test)]
mod tests {
    #![allow(unreachable_pub)] // the macros make what others see

    use proptest::prelude::*;

    use super::*;

    messages! {
        Sample {
            data: Bytes,
            small: u32,
            signed: i32,
            large: i64,
            time: Option<Timestamp>,
            color: Color,
            list: Vec<String>,
            map: BTreeMap<String, String>,
            maybe: Option<String>,
            flag: bool,
            choice: Option<Choice>,
            inner: Option<Inner>,
        }
        Inner {
            text: String,
        }
    }

    oneofs! {
        Choice {
            number: Number(u32),
            text: Text(String),
            inner: Inner(Inner),
        }
    }

    enums! {
        Color {
            Unspecified = 0 "COLOR_UNSPECIFIED",
            Red = 1 "COLOR_RED",
            Blue = 5 "COLOR_BLUE",
        }
    }

    fn read(json: &str) -> Sample {
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
    }

    fn refused(json: &str) -> String {
        serde_json::from_str::<Sample>(json).unwrap_err().to_string()
    }

    fn written(sample: &Sample) -> String {
        serde_json::to_string(sample).unwrap()
    }

    #[test]
    fn missing_null_and_empty_are_the_default_and_nothing_is_written_of_it() {
        let nulls = r#"{"data":null,"small":null,"signed":null,"large":null,"time":null,"color":null,"list":null,
            "map":null,"maybe":null,"flag":null,"choice":null,"inner":null}"#;
        let zeros =
            r#"{"data":"","small":0,"signed":0,"large":"0","color":0,"list":[],"map":{},"flag":false,"choice":{}}"#;
        for json in ["{}", nulls, zeros] {
            assert_eq!(read(json), Sample::default(), "{json}");
        }
        assert_eq!(written(&Sample::default()), "{}");
    }

    #[test]
    fn what_is_optional_says_that_it_is_there_even_if_it_is_empty() {
        let sample = read(r#"{"maybe":"","choice":{"number":0},"inner":{}}"#);
        assert_eq!(sample.maybe.as_deref(), Some(""));
        assert_eq!(sample.choice, Some(Choice::Number(0)));
        assert_eq!(sample.inner, Some(Inner::default()));
        assert_eq!(written(&sample), r#"{"maybe":"","choice":{"number":0},"inner":{}}"#);
    }

    #[test]
    fn bytes_are_read_in_each_spelling_of_base64() {
        for text in ["+/+/+w==", "+/+/+w", "-_-_-w==", "-_-_-w"] {
            assert_eq!(&*read(&format!(r#"{{"data":"{text}"}}"#)).data, b"\xfb\xff\xbf\xfb", "{text}");
        }
        for text in ["-/-/", "a", "a b=", "é", "aGk=="] {
            assert!(refused(&format!(r#"{{"data":"{text}"}}"#)).contains("base64"), "{text}");
        }
        assert_eq!(written(&read(r#"{"data":"-_-_-w"}"#)), r#"{"data":"+/+/+w=="}"#);
        assert!(refused(r#"{"data":[1,2]}"#).contains("bytes in base64"));
    }

    #[test]
    fn numbers_are_read_as_numbers_and_as_strings() {
        for json in [r#"{"large":5,"small":7,"signed":-1}"#, r#"{"large":"5","small":"7","signed":"-1"}"#] {
            let sample = read(json);
            assert_eq!((sample.large, sample.small, sample.signed), (5, 7, -1), "{json}");
        }
        assert_eq!(read(r#"{"small":7.0,"large":1e3}"#), Sample { small: 7, large: 1000, ..Sample::default() });
        let largest = Sample { large: i64::MAX, small: u32::MAX, signed: i32::MIN, ..Sample::default() };
        assert_eq!(written(&largest), r#"{"small":4294967295,"signed":-2147483648,"large":"9223372036854775807"}"#);
        assert_eq!(read(&written(&largest)), largest);
    }

    #[test]
    fn a_number_that_does_not_fit_is_refused() {
        for json in [
            r#"{"small":-1}"#,
            r#"{"small":4294967296}"#,
            r#"{"small":1.5}"#,
            r#"{"small":"seven"}"#,
            r#"{"small":""}"#,
            r#"{"signed":2147483648}"#,
            r#"{"large":18446744073709551615}"#,
            r#"{"large":1e300}"#,
            r#"{"large":true}"#,
        ] {
            assert!(refused(json).contains("a whole number"), "{json}");
        }
    }

    #[test]
    fn enums_are_read_by_name_or_number() {
        for json in [r#"{"color":"COLOR_BLUE"}"#, r#"{"color":5}"#] {
            assert_eq!(read(json).color, Color::Blue);
        }
        for json in [r#"{"color":"BLUE"}"#, r#"{"color":2}"#, r#"{"color":-1}"#, r#"{"color":18446744073709551615}"#] {
            assert!(refused(json).contains("one of COLOR_UNSPECIFIED, COLOR_RED, COLOR_BLUE"), "{json}");
        }
        assert_eq!(written(&Sample { color: Color::Red, ..Sample::default() }), r#"{"color":"COLOR_RED"}"#);
    }

    #[test]
    fn a_oneof_has_one() {
        assert_eq!(read(r#"{"choice":{"text":"x","number":null}}"#).choice, Some(Choice::Text("x".into())));
        assert_eq!(read(r#"{"choice":{"of_tomorrow":1}}"#).choice, None);
        let error = refused(r#"{"choice":{"text":"","number":0}}"#);
        assert!(error.contains("only one of number, text, inner may be set"), "{error}");
        let nested = r#"{"choice":{"inner":{"text":"deep"}}}"#;
        assert_eq!(written(&read(nested)), nested);
    }

    #[test]
    fn what_is_unknown_is_ignored() {
        assert_eq!(read(r#"{"newer":{"deep":[1,{}]},"small":3}"#).small, 3);
    }

    #[test]
    fn a_time_is_written_with_as_many_digits_as_other_writers_use() {
        for (text, expected) in [
            ("2026-11-17T02:00:00Z", "2026-11-17T02:00:00Z"),
            ("2026-11-17T03:00:00.5+01:00", "2026-11-17T02:00:00.500Z"),
            ("2026-11-17T02:00:00.000120Z", "2026-11-17T02:00:00.000120Z"),
            ("2026-11-17T02:00:00.123456789Z", "2026-11-17T02:00:00.123456789Z"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.500Z"),
        ] {
            assert_eq!(written(&read(&format!(r#"{{"time":"{text}"}}"#))), format!(r#"{{"time":"{expected}"}}"#));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            data in any::<Vec<u8>>(), small: u32, signed: i32, large: i64, list: Vec<String>, maybe: Option<String>,
            map: BTreeMap<String, String>, flag: bool, text: Option<String>,
        ) {
            let choice = text.map(Choice::Text);
            let sample = Sample {
                data: data.into(), small, signed, large, list, maybe, map, flag, choice, ..Sample::default()
            };
            prop_assert_eq!(read(&written(&sample)), sample);
        }
    }
}
