//! Which SDK asks, and so which of the API's generations it speaks.
//!
//! All generations are served at once: this is for what looks the same and is not, and for the log. Nobody is refused for what
//! the header says or lacks.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Language {
    Python,
    JavaScript,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sdk {
    pub language: Language,
    pub major: u32,
    pub minor: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Generation {
    /// Until 2.5: finds a sandbox again with `timeout`, `resume` and a look at it.
    Resume,
    /// 2.6 to 2.50: `POST /sandboxes/{id}/connect`.
    Connect,
    /// From 2.51: creates and connects under `/v2`.
    V2,
}

impl Sdk {
    /// From a User-Agent such as `e2b-python-sdk/2.45.1 e2b-code-interpreter/2.11.5`.
    pub fn of_user_agent(header: &str) -> Option<Self> {
        header.split_ascii_whitespace().find_map(|product| {
            let (name, version) = product.split_once('/')?;
            let language = match name {
                "e2b-python-sdk" => Language::Python,
                "e2b-js-sdk" => Language::JavaScript,
                _ => return None,
            };
            let (major, rest) = version.split_once('.')?;
            // `2.51b1` and `2.51-rc.1` are on their way to 2.51 and speak as it will.
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            Some(Self { language, major: number(major)?, minor: number(&rest[..end])? })
        })
    }

    pub fn generation(self) -> Generation {
        match (self.major, self.minor) {
            (..=1, _) | (2, ..=5) => Generation::Resume,
            (2, ..=50) => Generation::Connect,
            _ => Generation::V2,
        }
    }
}

fn number(text: &str) -> Option<u32> {
    // Not `+2`, which Rust would take.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_generation() {
        for (version, generation) in [
            ("0.17.2", Generation::Resume),
            ("1.11.0", Generation::Resume),
            ("2.0.0", Generation::Resume),
            ("2.5.9", Generation::Resume),
            ("2.6.0", Generation::Connect),
            ("2.45.1", Generation::Connect),
            ("2.50.0", Generation::Connect),
            ("2.51.0", Generation::V2),
            ("2.63.0", Generation::V2),
            ("2.51.0-rc.1", Generation::V2),
            ("2.51b1", Generation::V2),
            ("3.0.0", Generation::V2),
        ] {
            for (name, language) in [("e2b-python-sdk", Language::Python), ("e2b-js-sdk", Language::JavaScript)] {
                let sdk = Sdk::of_user_agent(&format!("{name}/{version}")).unwrap();
                assert_eq!((sdk.language, sdk.generation()), (language, generation), "{version}");
            }
        }
    }

    #[test]
    fn the_sdk_is_found_beside_others() {
        let sdk = Sdk::of_user_agent("e2b-python-sdk/2.45.1 e2b-code-interpreter/2.11.5");
        assert_eq!(sdk, Some(Sdk { language: Language::Python, major: 2, minor: 45 }));
        let sdk = Sdk::of_user_agent("Mozilla/5.0 (X11) e2b-js-sdk/2.51.0");
        assert_eq!(sdk.map(Sdk::generation), Some(Generation::V2));
    }

    #[test]
    fn what_is_unknown_is_nobody() {
        for header in [
            "",
            "curl/8.5.0",
            "e2b-python-sdk",
            "e2b-python-sdk/",
            "e2b-python-sdk/2",
            "e2b-js-sdk/x.y",
            "e2b-js-sdk/2.",
        ] {
            assert_eq!(Sdk::of_user_agent(header), None, "{header}");
        }
        assert_eq!(Sdk::of_user_agent("e2b-js-sdk/+2.51.0"), None);
        assert_eq!(Sdk::of_user_agent("e2b-js-sdk/99999999999.1"), None);
    }
}
