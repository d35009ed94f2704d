//! Bytes that are most often text.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// As JSON, `{"text": …}` where it is text and `{"b64": …}` where it is not: nothing is lost or replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub Bytes);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Form {
    Text(String),
    B64(String),
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => Form::Text(text.to_owned()),
            Err(_) => Form::B64(STANDARD.encode(&self.0)),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Form::deserialize(deserializer)? {
            Form::Text(text) => Ok(Self(text.into())),
            Form::B64(text) => STANDARD.decode(text).map(|bytes| Self(bytes.into())).map_err(D::Error::custom),
        }
    }
}

/// Without the part of a character that a cut left at the end, and as much at the front.
pub(crate) fn whole_characters(mut bytes: Bytes, cut_before: bool, cut_after: bool) -> Bytes {
    const LONGEST: usize = 4;
    if cut_before {
        let part = bytes.iter().take(LONGEST - 1).take_while(|byte| **byte & 0xC0 == 0x80).count();
        bytes = bytes.slice(part..);
    }
    if cut_after {
        // The last byte that begins a character, if that character is not whole.
        let begin = bytes.iter().rev().take(LONGEST).position(|byte| *byte & 0xC0 != 0x80);
        if let Some(behind) = begin {
            let at = bytes.len() - 1 - behind;
            let length = match bytes[at] {
                0x00..=0x7F => 1,
                0xC0..=0xDF => 2,
                0xE0..=0xEF => 3,
                _ => 4,
            };
            if at + length > bytes.len() {
                bytes = bytes.slice(..at);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_read_back_whatever_they_are(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let text = Text(bytes.into());
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text);
        }

        #[test]
        fn a_cut_text_is_still_text_and_loses_no_whole_character(text in "\\PC{0,12}", from in 0usize..12, to in 0usize..40) {
            let bytes = Bytes::from(text.clone());
            let (from, to) = (from.min(bytes.len()), to.min(bytes.len()));
            prop_assume!(from <= to);
            let cut = whole_characters(bytes.slice(from..to), true, true);
            let cut = std::str::from_utf8(&cut);
            prop_assert!(cut.is_ok());
            let whole = text.char_indices().filter(|(at, c)| *at >= from && at + c.len_utf8() <= to).count();
            prop_assert_eq!(cut.unwrap().chars().count(), whole);
        }

        #[test]
        fn what_is_no_text_is_cut_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let length = bytes.len();
            prop_assert!(whole_characters(bytes.into(), true, true).len() + 7 >= length);
        }
    }
}
