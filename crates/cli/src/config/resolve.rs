//! Which of several says a value: the flag, then the variable, then the file, then the default.

use std::collections::BTreeMap;

use super::{
    file::{File, meant},
    named::Named,
    table::{SETTINGS, Setting, sections},
};

/// Each setting with what it is, and who said so.
#[derive(Debug)]
pub(crate) struct Resolved(pub(crate) Vec<Found>, pub(crate) Named);

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) setting: &'static Setting,
    pub(crate) text: Option<String>,
    pub(crate) from: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Variable,
    File { path: String, line: usize },
    Default,
}

/// By the name of the flag.
pub(crate) type Flags = BTreeMap<&'static str, String>;

/// All that is wrong, not only the first.
pub(crate) fn resolve(
    flags: &Flags,
    variables: &BTreeMap<String, String>,
    file: &File,
) -> Result<Resolved, Vec<String>> {
    let mut wrong = file.wrong.clone();
    wrong.extend(unknown_variables(variables));
    let found = SETTINGS.iter().map(|setting| {
        let mut said = Vec::new();
        said.extend(flags.get(setting.flag).map(|text| (text, Origin::Flag)));
        said.extend(variables.get(setting.variable).map(|text| (text, Origin::Variable)));
        said.extend(
            file.said
                .get(&setting.key())
                .map(|said| (&said.text, Origin::File { path: file.path.clone(), line: said.line })),
        );
        // What loses is looked at too: it wins on the day when the other is gone.
        for (text, from) in &said {
            if let Err(why) = setting.kind.check(text) {
                wrong.push(format!("{}: {why}", place(setting, from)));
            }
        }
        match said.into_iter().next() {
            Some((text, from)) => Found { setting, text: Some(text.clone()), from },
            None => Found { setting, text: setting.default.map(str::to_owned), from: Origin::Default },
        }
    });
    let found = found.collect();
    if wrong.is_empty() { Ok(Resolved(found, file.named.clone())) } else { Err(wrong) }
}

fn place(setting: &Setting, from: &Origin) -> String {
    match from {
        Origin::Flag => format!("--{}", setting.flag),
        Origin::Variable => setting.variable.to_owned(),
        Origin::File { path, line } => format!("{path}:{line}: {}", setting.key()),
        Origin::Default => setting.key(),
    }
}

/// Those that begin like ours and are none.
fn unknown_variables(variables: &BTreeMap<String, String>) -> Vec<String> {
    let ours = |name: &str| sections().any(|section| name.starts_with(&format!("CABANA_{}_", section.to_uppercase())));
    let known = SETTINGS.iter().map(|setting| setting.variable);
    let unknown = variables.keys().filter(|name| ours(name) && !known.clone().any(|known| known == name.as_str()));
    unknown.map(|name| format!("there is no variable {name}{}", meant(name, known.clone()))).collect()
}

impl Resolved {
    pub(crate) fn get(&self, setting: &Setting) -> Option<&Found> {
        self.0.iter().find(|found| found.setting == setting)
    }

    /// `None` where it is not set.
    pub(crate) fn read<T>(
        &self,
        setting: &Setting,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let Some(found) = self.get(setting) else { return Ok(None) };
        let text = found.text.as_deref();
        text.map(|text| read(text).map_err(|why| format!("{}: {why}", place(setting, &found.from)))).transpose()
    }
}
