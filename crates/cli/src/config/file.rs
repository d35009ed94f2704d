//! The file: TOML, with sections. What it does not know is an error, told with its line.

use std::{collections::BTreeMap, io::ErrorKind, path::Path};

use toml::de::{DeTable, DeValue};

use super::{
    named::{self, Named},
    table::{SETTINGS, nearest, sections},
};

pub(crate) const USUAL: &str = "/etc/cabana/cabana.toml";

/// What a file says, by the key of the setting.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) said: BTreeMap<String, Said>,
    pub(crate) named: Named,
    /// What is not understood of it.
    pub(crate) wrong: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The usual one need not be there; one that somebody named must.
pub(crate) fn read(named: Option<&Path>) -> File {
    let path = named.unwrap_or(Path::new(USUAL));
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&path.display().to_string(), &text),
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => File::default(),
        Err(error) => File { wrong: vec![format!("{}: {error}", path.display())], ..File::default() },
    }
}

pub(crate) fn parse(path: &str, text: &str) -> File {
    let line_of = |at: usize| text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1;
    let (mut said, mut wrong) = (BTreeMap::new(), Vec::new());
    let (table, errors) = DeTable::parse_recoverable(text);
    let is_toml = errors.is_empty();
    for error in errors {
        let line = error.span().map_or(1, |span| line_of(span.start));
        wrong.push(format!("{path}:{line}: {}", error.message()));
    }
    for (section, inner) in table.get_ref().iter() {
        let (line, section) = (line_of(section.span().start), section.get_ref().as_ref());
        if named::SECTIONS.contains(&section) {
            continue;
        }
        if !sections().any(|known| known == section) {
            wrong.push(format!(
                "{path}:{line}: there is no section [{section}]{}",
                meant(section, sections().chain(named::SECTIONS))
            ));
            continue;
        }
        let DeValue::Table(inner) = inner.get_ref() else {
            wrong.push(format!("{path}:{line}: {section} is a section: write [{section}]"));
            continue;
        };
        for (name, value) in inner.iter() {
            let (line, name) = (line_of(name.span().start), name.get_ref().as_ref());
            let of_section = SETTINGS.iter().filter(|setting| setting.section == section);
            if !of_section.clone().any(|setting| setting.name == name) {
                let hint = meant(name, of_section.map(|setting| setting.name));
                wrong.push(format!("{path}:{line}: there is no {section}.{name}{hint}"));
                continue;
            }
            match plain(value.get_ref()) {
                Some(text) => drop(said.insert(format!("{section}.{name}"), Said { text, line })),
                None => wrong.push(format!("{path}:{line}: {section}.{name} is neither a text, a number, nor a list")),
            }
        }
    }
    // What is no TOML was told above.
    let named = match is_toml {
        true => {
            let (named, bad) = named::parse(path, text, line_of);
            wrong.extend(bad);
            named
        }
        false => Named::default(),
    };
    File { path: path.to_owned(), said, named, wrong }
}

/// As a flag or variable would say it.
fn plain(value: &DeValue<'_>) -> Option<String> {
    Some(match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', ""),
        DeValue::Float(number) => number.as_str().replace('_', ""),
        DeValue::Boolean(switch) => switch.to_string(),
        DeValue::Array(parts) => {
            let parts = parts.iter().map(|part| part.get_ref().as_str()).collect::<Option<Vec<_>>>()?;
            // A comma would make two of one.
            if parts.iter().any(|part| part.contains(',')) {
                return None;
            }
            parts.join(",")
        }
        _ => return None,
    })
}

pub(super) fn meant(word: &str, among: impl Iterator<Item = &'static str> + Clone) -> String {
    match nearest(word, among.clone()) {
        Some(known) => format!("; is `{known}` meant?"),
        None => format!("; there are {}", among.collect::<Vec<_>>().join(", ")),
    }
}
