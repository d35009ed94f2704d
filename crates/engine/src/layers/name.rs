//! What a layer is called in the store.

use std::{fmt, str::FromStr};

use cabana_sandbox::LayerId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const KEPT: &str = "kept-";

/// By what is in it, or by chance: to read all that a sandbox wrote, only to find a name for it, would make a snapshot as
/// slow as a copy. So equal layers of the second kind are stored twice, and they mean nothing to another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LayerName {
    Content(LayerId),
    /// What a sandbox wrote until a snapshot was taken of it.
    Kept(Uuid),
}

impl LayerName {
    pub(crate) fn new() -> Self {
        Self::Kept(Uuid::new_v4())
    }

    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept(_))
    }
}

impl From<LayerId> for LayerName {
    fn from(id: LayerId) -> Self {
        Self::Content(id)
    }
}

impl From<&LayerId> for LayerName {
    fn from(id: &LayerId) -> Self {
        Self::Content(*id)
    }
}

impl From<&LayerName> for LayerName {
    fn from(name: &LayerName) -> Self {
        *name
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no name of a layer")]
pub struct NoLayerName(String);

impl FromStr for LayerName {
    type Err = NoLayerName;
    fn from_str(text: &str) -> Result<Self, NoLayerName> {
        let bad = || NoLayerName(text.to_owned());
        let Some(digits) = text.strip_prefix(KEPT) else { return text.parse().map(Self::Content).map_err(|_| bad()) };
        // One name, one text: the parser takes other forms too.
        let name = Uuid::try_parse(digits).map(Self::Kept).map_err(|_| bad())?;
        if name.to_string() == text { Ok(name) } else { Err(bad()) }
    }
}

impl TryFrom<String> for LayerName {
    type Error = NoLayerName;
    fn try_from(text: String) -> Result<Self, NoLayerName> {
        text.parse()
    }
}

impl From<LayerName> for String {
    fn from(name: LayerName) -> String {
        name.to_string()
    }
}

impl fmt::Display for LayerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content(id) => id.fmt(f),
            Self::Kept(chance) => write!(f, "{KEPT}{}", chance.simple()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_and_has_one_text() {
        for name in [LayerName::new(), LayerId::from_digest([7; 32]).into()] {
            assert_eq!(name.to_string().parse::<LayerName>().unwrap(), name);
        }
        for bad in [
            "",
            "kept-",
            "kept-../x",
            "kept-67e55044-10b1-426f-9247-bb680e5fe0c8",
            "kept-67E5504410B1426F9247BB680E5FE0C8",
            ".tmp-67e5504410b1426f9247bb680e5fe0c8",
        ] {
            assert!(bad.parse::<LayerName>().is_err(), "{bad}");
        }
    }
}
