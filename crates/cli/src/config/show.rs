//! The settings as they are, each with where it comes from. The text is a file that says the same.

use serde::Serialize;

use super::{
    kind::{Kind, NONE, list},
    named,
    resolve::{Found, Origin, Resolved},
    table::sections,
};

const HIDDEN: &str = "(hidden)";

pub(crate) fn text(resolved: &Resolved) -> String {
    let mut text = String::new();
    for section in sections() {
        let gap = if text.is_empty() { "" } else { "\n" };
        text += &format!("{gap}[{section}]\n");
        let found: Vec<_> = resolved.0.iter().filter(|found| found.setting.section == section).collect();
        let lines: Vec<_> = found.iter().map(|found| line(found)).collect();
        let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        for (line, found) in lines.iter().zip(found) {
            text += &format!("{line:<width$}  # {}\n", origin(found));
        }
    }
    match named::text(&resolved.1) {
        named if named.is_empty() => text,
        named => text + "\n" + &named,
    }
}

/// What is not set, or not to be seen, is a comment.
fn line(found: &Found) -> String {
    let name = found.setting.name;
    match (&found.text, found.setting.kind) {
        (None, _) => format!("# {name} is not set"),
        (Some(_), Kind::Secret) => format!("# {name} = {HIDDEN}"),
        (Some(text), Kind::Switch | Kind::Number) => format!("{name} = {text}"),
        (Some(text), Kind::NumberOrNone) if text != NONE => format!("{name} = {text}"),
        (Some(text), Kind::List) => {
            let parts = list(text).into_iter().map(|part| toml::Value::String(part).to_string());
            format!("{name} = [{}]", parts.collect::<Vec<_>>().join(", "))
        }
        (Some(text), _) => format!("{name} = {}", toml::Value::String(text.clone())),
    }
}

fn origin(found: &Found) -> String {
    match &found.from {
        Origin::Flag => format!("--{}", found.setting.flag),
        Origin::Variable => found.setting.variable.to_owned(),
        Origin::File { path, line } => format!("{path}:{line}"),
        Origin::Default => "default".to_owned(),
    }
}

#[derive(Serialize)]
struct Row<'a> {
    key: String,
    value: Option<&'a str>,
    /// `flag`, `variable`, `file` or `default`.
    from: &'static str,
    /// Which one.
    place: String,
}

pub(crate) fn json(resolved: &Resolved) -> String {
    let rows: Vec<_> = resolved
        .0
        .iter()
        .map(|found| Row {
            key: found.setting.key(),
            value: found.text.as_deref().map(|text| if found.setting.kind == Kind::Secret { HIDDEN } else { text }),
            from: match found.from {
                Origin::Flag => "flag",
                Origin::Variable => "variable",
                Origin::File { .. } => "file",
                Origin::Default => "default",
            },
            place: origin(found),
        })
        .collect();
    serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n"
}
