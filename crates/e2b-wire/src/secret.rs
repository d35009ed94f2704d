//! Text that no log shows: tokens, passwords, keys of registries.

use std::fmt;

use serde::{Deserialize, Serialize};

/// On the wire it is plain text. Only `Debug` keeps it back.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_shown_to_those_who_ask_for_it() {
        let secret: Secret = serde_json::from_str(r#""hush""#).unwrap();
        assert_eq!(secret.reveal(), "hush");
        assert_eq!(serde_json::to_string(&secret).unwrap(), r#""hush""#);
        assert!(!format!("{secret:?}").contains("hush"));
    }
}
