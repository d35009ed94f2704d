//! What a setting takes, and what is wrong with what it was given.

use std::net::SocketAddr;

use crate::amounts;

/// What "no limit" is written as.
pub(crate) const NONE: &str = "none";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Address,
    File,
    DomainOrNone,
    Switch,
    Number,
    NumberOrNone,
    Size,
    SizeOrNone,
    ProcessorsOrNone,
    Time,
    TimeOrNone,
    Choice(&'static [&'static str]),
    /// With commas between, where there is only text.
    List,
    /// A URL that may hold a password: never shown.
    Secret,
}

impl Kind {
    pub(crate) fn check(self, text: &str) -> Result<(), String> {
        match self {
            Self::NumberOrNone | Self::SizeOrNone | Self::ProcessorsOrNone | Self::TimeOrNone if text == NONE => Ok(()),
            Self::DomainOrNone => domain(text).map(|_| ()),
            Self::Address => address(text).map(|_| ()),
            Self::Switch => switch(text).map(|_| ()),
            Self::Number | Self::NumberOrNone => number::<u64>(text).map(|_| ()),
            Self::Size | Self::SizeOrNone => amounts::size(text).map(|_| ()),
            Self::ProcessorsOrNone => amounts::processors(text).map(|_| ()),
            Self::Time | Self::TimeOrNone => amounts::duration(text).map(|_| ()),
            Self::Choice(choices) if choices.contains(&text) => Ok(()),
            Self::Choice(choices) => Err(format!("is one of {}", choices.join(", "))),
            Self::File | Self::Secret if text.is_empty() => Err("is empty".into()),
            Self::File | Self::Secret => Ok(()),
            Self::List => match list(text).iter().any(|part| part.is_empty() || part.contains(char::is_whitespace)) {
                true => Err("has an empty part, or one with a space in it".into()),
                false => Ok(()),
            },
        }
    }

    /// As the page and the help call it.
    pub(crate) fn shape(self) -> String {
        let or_none = |what: &str| format!("{what}, or `none`");
        match self {
            Self::Address => "address and port".into(),
            Self::File => "path".into(),
            Self::DomainOrNone => or_none("host name"),
            Self::Switch => "`true` or `false`".into(),
            Self::Number => "number".into(),
            Self::NumberOrNone => or_none("number"),
            Self::Size => "size, as `512M`".into(),
            Self::SizeOrNone => or_none("size, as `512M`"),
            Self::ProcessorsOrNone => or_none("number, as `0.5`"),
            Self::Time => "time, as `30s`".into(),
            Self::TimeOrNone => or_none("time, as `30d`"),
            Self::Choice(choices) => choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", "),
            Self::List => "list of texts".into(),
            Self::Secret => "URL, never shown".into(),
        }
    }

    /// What stands for it in the help of a flag.
    pub(crate) fn placeholder(self) -> &'static str {
        match self {
            Self::Address => "ADDRESS",
            Self::File => "PATH",
            Self::DomainOrNone => "DOMAIN",
            Self::Switch => "BOOL",
            Self::Number | Self::NumberOrNone | Self::ProcessorsOrNone => "NUMBER",
            Self::Size | Self::SizeOrNone => "SIZE",
            Self::Time | Self::TimeOrNone => "TIME",
            Self::Choice(_) => "CHOICE",
            Self::List => "RULE",
            Self::Secret => "URL",
        }
    }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an address and a port, as in 127.0.0.1:7070 or [::1]:7070".to_owned())
}

/// `None` where it is none.
pub(crate) fn domain(text: &str) -> Result<Option<String>, String> {
    let label = |label: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty() && label.len() <= 63 && label.chars().all(plain)
    };
    match text {
        NONE => Ok(None),
        text if text.split('.').all(label) => Ok(Some(text.to_ascii_lowercase())),
        _ => Err("give a host name, as in sandboxes.example.com".to_owned()),
    }
}

pub(crate) fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "is true or false".to_owned())
}

pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "give a whole number that is not too large".to_owned())
}

pub(crate) fn list(text: &str) -> Vec<String> {
    text.split(',').map(|part| part.trim().to_owned()).collect()
}
