//! Recipes: how templates are made by one command, as data. What they say lies in `recipes/`, and is built into the binary.

use std::collections::BTreeMap;

use cabana_engine::TemplateSource;
use cabana_sandbox::{Overrides, SandboxPath, Service, User};
use serde::Deserialize;

use crate::failure::Failure;

struct Built {
    name: &'static str,
    text: &'static str,
    /// What its files name.
    parts: &'static [(&'static str, &'static str)],
}

const ALL: [Built; 2] = [
    Built { name: "base", text: include_str!("../../recipes/base.toml"), parts: &[] },
    Built {
        name: "code-interpreter",
        text: include_str!("../../recipes/code-interpreter.toml"),
        parts: &[
            ("ipython_kernel_config.py", include_str!("../../recipes/code-interpreter/ipython_kernel_config.py")),
            ("server.py", include_str!("../../recipes/code-interpreter/server.py")),
            ("shown.py", include_str!("../../recipes/code-interpreter/shown.py")),
        ],
    },
];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|built| built.name)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recipe {
    /// What the template is called, unless somebody says otherwise.
    pub(super) template: String,
    pub(super) from: From,
    user: Option<String>,
    workdir: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    sudo: bool,
    service: Option<Service>,
    /// Packages of Python, each with its version: they are fetched outside and lie in [`WHEELS`] inside.
    pub(super) wheels: Option<Wheels>,
    /// Written before the first command runs.
    #[serde(default)]
    pub(super) files: Vec<File>,
    #[serde(default)]
    pub(super) run: Vec<Step>,
}

/// Where commands of a recipe find its wheels.
pub(super) const WHEELS: &str = "/tmp/wheels";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum From {
    Debian {
        suite: String,
        packages: Vec<String>,
    },
    /// The template of another recipe, which is made first where it is not there.
    Recipe(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wheels {
    /// Of the Python inside: `3.11`.
    pub(super) python: String,
    pub(super) packages: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) at: String,
    pub(super) mode: u32,
    #[serde(flatten)]
    pub(super) content: Content,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Text(String),
    /// A file beside the recipe.
    Part(String),
}

/// A command of root, inside a sandbox without a network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) why: String,
    pub(super) script: String,
}

impl Recipe {
    pub(super) fn of(name: &str) -> Result<Self, Failure> {
        let known = || names().collect::<Vec<_>>().join(", ");
        let Some(built) = ALL.iter().find(|built| built.name == name) else {
            return Err(Failure::bad(format!("there is no recipe {name:?}: there are {}", known())));
        };
        let mut recipe: Self =
            toml::from_str(built.text).map_err(|error| Failure::bad(format!("the recipe {name}: {error}")))?;
        for file in &mut recipe.files {
            if let Content::Part(part) = &file.content {
                let text = built.parts.iter().find(|(name, _)| name == part).map(|(_, text)| (*text).to_owned());
                file.content = Content::Text(text.ok_or_else(|| {
                    Failure::bad(format!("the recipe {name} names a part {part:?}, and has none of that name"))
                })?);
            }
        }
        Ok(recipe)
    }

    pub(super) fn wishes(&self) -> cabana_sandbox::Result<Overrides> {
        Ok(Overrides {
            user: self.user.as_deref().map(User::new).transpose()?,
            workdir: self.workdir.as_deref().map(SandboxPath::new).transpose()?,
            env: self.env.clone(),
            sudo: self.sudo,
            service: self.service.clone(),
        })
    }
}

impl From {
    /// `None`: it stands on another recipe's template.
    pub(super) fn source(&self) -> Option<TemplateSource> {
        match self {
            Self::Debian { suite, packages } => {
                Some(TemplateSource::Debian { suite: suite.clone(), packages: packages.clone() })
            }
            Self::Recipe(_) => None,
        }
    }
}

impl File {
    pub(super) fn text(&self) -> &str {
        match &self.content {
            Content::Text(text) | Content::Part(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_reads_and_stands_on_one_that_is_there() {
        for name in names() {
            let recipe = Recipe::of(name).unwrap();
            recipe.wishes().unwrap();
            if let From::Recipe(other) = &recipe.from {
                assert!(names().any(|known| known == other) && other != name, "{name} stands on {other}");
            }
            if let Some(source) = recipe.from.source() {
                let TemplateSource::Debian { suite, packages } = &source else { panic!("{source:?}") };
                let said = packages.iter().fold(format!("debian:{suite}"), |text, package| text + "," + package);
                assert_eq!(said.parse::<TemplateSource>().unwrap(), source, "{name}");
            }
            for file in &recipe.files {
                SandboxPath::new(file.at.clone()).unwrap();
                assert!(file.mode <= 0o7777 && !file.text().is_empty());
            }
        }
    }

    #[test]
    fn an_unknown_recipe_is_told_with_those_that_there_are() {
        let told = Recipe::of("bass").unwrap_err().to_string();
        assert!(told.contains("bass") && told.contains("base"), "{told}");
    }
}
