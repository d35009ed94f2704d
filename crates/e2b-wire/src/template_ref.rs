//! How a template is named: `name`, or `name:tag`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What is meant where no tag is named.
pub const DEFAULT_TAG: &str = "default";
const LONGEST: usize = 128;

/// Why something names no template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTemplateRef;

impl fmt::Display for BadTemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a template is `name` or `name:tag`: each of 1 to {LONGEST} letters, digits, dots, dashes and underscores, a letter \
             or a digit first"
        )
    }
}

impl std::error::Error for BadTemplateRef {}

/// A name or a tag.
pub fn is_plain(word: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=LONGEST).contains(&word.len())
        && word.bytes().all(fits)
        && word.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateRef {
    pub name: String,
    pub tag: Option<String>,
}

impl TemplateRef {
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(DEFAULT_TAG)
    }
}

impl FromStr for TemplateRef {
    type Err = BadTemplateRef;

    fn from_str(text: &str) -> Result<Self, BadTemplateRef> {
        let (name, tag) = match text.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (text, None),
        };
        if is_plain(name) && tag.is_none_or(is_plain) {
            Ok(Self { name: name.to_owned(), tag: tag.map(str::to_owned) })
        } else {
            Err(BadTemplateRef)
        }
    }
}

impl TryFrom<String> for TemplateRef {
    type Error = BadTemplateRef;

    fn try_from(text: String) -> Result<Self, BadTemplateRef> {
        text.parse()
    }
}

impl From<TemplateRef> for String {
    fn from(named: TemplateRef) -> String {
        named.to_string()
    }
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tag {
            Some(tag) => write!(f, "{}:{tag}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_tag() {
        let bare: TemplateRef = "my-env_1.0".parse().unwrap();
        assert_eq!((bare.name.as_str(), bare.tag()), ("my-env_1.0", DEFAULT_TAG));
        let tagged: TemplateRef = "my-env:v1".parse().unwrap();
        assert_eq!((tagged.name.as_str(), tagged.tag(), tagged.to_string().as_str()), ("my-env", "v1", "my-env:v1"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "a".repeat(129);
        for bad in ["", ":", ":v1", "a:", "a:b:c", "a/b", "a b", "-a", "a:-b", "ü", "a\0", long.as_str()] {
            assert_eq!(bad.parse::<TemplateRef>(), Err(BadTemplateRef), "{bad:?}");
        }
    }
}
