//! What decides which sandbox a call belongs to. A caller names a scope; which sandbox is behind it, the server knows.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::SandboxId;

/// Who made the value up, and by which rule: the same value of two schemes is two scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// One for each chat of an app's user (FP-1).
    Chat,
    /// What a template gives (LB-3).
    Template,
    /// One for each agent of a project (SK-8).
    ProjectAgent,
    User,
    /// A plain name.
    Fixed,
}

impl Scheme {
    pub const ALL: [Self; 5] = [Self::Chat, Self::Template, Self::ProjectAgent, Self::User, Self::Fixed];

    /// Of what a scope of it is made, as callers name it.
    fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["app", "user", "chat"],
            Self::ProjectAgent => &["project", "agent"],
            Self::User => &["user"],
            Self::Fixed => &["name"],
            Self::Template => &["value"],
        }
    }

    /// Between parts. A scheme without one is known by its value alone, which its caller puts together.
    fn separator(self) -> Option<char> {
        match self {
            Self::Chat => Some('-'),
            Self::ProjectAgent => Some('_'),
            Self::User | Self::Fixed | Self::Template => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Template => "template",
            Self::ProjectAgent => "project_agent",
            Self::User => "user",
            Self::Fixed => "fixed",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One use of one sandbox over time, inside its tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scope {
    scheme: Scheme,
    /// Of a scheme with parts: these, escaped, with the separator between them. So other parts are another key.
    #[serde(rename = "value")]
    key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    #[error("{0} is empty")]
    Empty(&'static str),
    #[error("{0} is longer than {MAX_VALUE} bytes")]
    Long(&'static str),
    #[error("{0} holds a control character")]
    Control(&'static str),
    #[error("the template has a brace without its partner at byte {0}")]
    Brace(usize),
    #[error("the template's {{{0}}} is no plain name: neither attributes nor formats are taken")]
    Name(String),
}

const MAX_VALUE: usize = 1024;

impl Scope {
    fn new(scheme: Scheme, key: String) -> Result<Self, ScopeError> {
        Ok(Self { scheme, key: plain("the scope's value", key)? })
    }

    fn of_parts<const N: usize>(scheme: Scheme, parts: [(&'static str, &str); N]) -> Result<Self, ScopeError> {
        for (what, part) in parts {
            plain(what, part.to_owned())?;
        }
        let separator = scheme.separator();
        let escaped = parts.iter().enumerate().map(|(number, (_, part))| escaped(part, separator, number + 1 == N));
        Self::new(scheme, escaped.collect::<Vec<_>>().join(&separator.map(String::from).unwrap_or_default()))
    }

    pub fn chat_of(app: &str, user: &str, chat: &str) -> Result<Self, ScopeError> {
        Self::of_parts(Scheme::Chat, [("the app", app), ("the user", user), ("the chat", chat)])
    }

    pub fn project_agent(project: &str, agent: &str) -> Result<Self, ScopeError> {
        Self::of_parts(Scheme::ProjectAgent, [("the project", project), ("the agent", agent)])
    }

    pub fn user(user: &str) -> Result<Self, ScopeError> {
        plain("the user", user.to_owned())?;
        Self::new(Scheme::User, user.to_owned())
    }

    pub fn fixed(name: &str) -> Result<Self, ScopeError> {
        plain("the name", name.to_owned())?;
        Self::new(Scheme::Fixed, name.to_owned())
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// What tells it from all others of its scheme.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The string that callers know it by. Two scopes with parts can have the same.
    pub fn value(&self) -> String {
        let parts: Vec<_> = self.parts().into_iter().map(|(_, part)| part).collect();
        parts.join(&self.scheme.separator().map(String::from).unwrap_or_default())
    }

    /// As the caller named them.
    pub fn parts(&self) -> Vec<(&'static str, String)> {
        let names = self.scheme.parts();
        match self.scheme.separator() {
            None => names.iter().map(|name| (*name, self.key.clone())).collect(),
            Some(separator) => {
                let parts = self.key.splitn(names.len(), separator).map(|part| unescaped(part, separator));
                names.iter().copied().zip(parts).collect()
            }
        }
    }

    fn part(&self, name: &str) -> Option<String> {
        self.parts().into_iter().find(|(it, _)| *it == name).map(|(_, part)| part)
    }

    /// App and chat, where a scope has them: some routes name no user (FP-18).
    pub fn chat(&self) -> Option<(String, String)> {
        self.part("app").zip(self.part("chat"))
    }

    /// Whose it is, where the scheme names a user.
    pub fn named_user(&self) -> Option<String> {
        self.part("user")
    }

    /// The public id of its sandbox, where the scheme computes one; else it is random. It is that of the value, so two scopes can have
    /// the same.
    pub fn sandbox_id(&self) -> Option<SandboxId> {
        let Scheme::Chat = self.scheme else { return None };
        let digest = Sha256::digest(self.value());
        let id: String = digest.iter().take(SandboxId::COMPUTED / 2).map(|byte| format!("{byte:02x}")).collect();
        SandboxId::new(id).ok()
    }
}

/// A part of a key, without what parts it from the next one: else one user's chat would be another user's with another name.
fn escaped(part: &str, separator: Option<char>, is_last: bool) -> String {
    let escape = |c: char| match (c, separator) {
        ('%', Some(_)) => "%25".to_owned(),
        (c, Some(separator)) if c == separator && !is_last => format!("%{:02X}", c as u32),
        (c, _) => c.to_string(),
    };
    part.chars().map(escape).collect()
}

fn unescaped(part: &str, separator: char) -> String {
    part.replace(&format!("%{:02X}", separator as u32), &separator.to_string()).replace("%25", "%")
}

fn plain(what: &'static str, value: String) -> Result<String, ScopeError> {
    match () {
        () if value.is_empty() => Err(ScopeError::Empty(what)),
        () if value.len() > MAX_VALUE => Err(ScopeError::Long(what)),
        () if value.chars().any(char::is_control) => Err(ScopeError::Control(what)),
        () => Ok(value),
    }
}

/// A text with `{names}` in it. `{{` and `}}` are braces of the text itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ScopeTemplate {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(String),
}

/// What stands for a variable without a value (LB-5).
const UNKNOWN: &str = "unknown";

impl ScopeTemplate {
    /// Refuses at once what would be a surprise later.
    pub fn new(text: impl Into<String>) -> Result<Self, ScopeError> {
        let text = plain("the template", text.into())?;
        let (mut parts, mut literal) = (Vec::new(), String::new());
        let mut rest = text.char_indices().peekable();
        while let Some((at, c)) = rest.next() {
            let doubled = matches!(c, '{' | '}') && rest.next_if(|(_, next)| *next == c).is_some();
            match c {
                '{' if !doubled => {
                    let length = text[at..].find('}').ok_or(ScopeError::Brace(at))?;
                    let name = &text[at + 1..at + length];
                    if !is_identifier(name) {
                        return Err(ScopeError::Name(name.to_owned()));
                    }
                    if !literal.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut literal)));
                    }
                    parts.push(Part::Name(name.to_owned()));
                    while rest.next_if(|(next, _)| *next <= at + length).is_some() {}
                }
                '}' if !doubled => return Err(ScopeError::Brace(at)),
                c => literal.push(c),
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { text, parts })
    }

    /// A variable that is missing or empty is `unknown`, never an error.
    pub fn fill(&self, variables: &BTreeMap<String, String>) -> Result<Scope, ScopeError> {
        let mut filled = String::new();
        for part in &self.parts {
            filled.push_str(match part {
                Part::Text(text) => text.as_str(),
                Part::Name(name) => match variables.get(name).map_or("", String::as_str) {
                    "" => UNKNOWN,
                    value => value,
                },
            });
            // What is too long is not made longer: a name can stand in it hundreds of times.
            if filled.len() > MAX_VALUE {
                break;
            }
        }
        Scope::new(Scheme::Template, filled)
    }
}

fn is_identifier(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl TryFrom<String> for ScopeTemplate {
    type Error = ScopeError;
    fn try_from(text: String) -> Result<Self, ScopeError> {
        Self::new(text)
    }
}

impl From<ScopeTemplate> for String {
    fn from(template: ScopeTemplate) -> String {
        template.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn filled(template: &str, pairs: &[(&str, &str)]) -> String {
        ScopeTemplate::new(template).unwrap().fill(&variables(pairs)).unwrap().value()
    }

    #[test]
    fn fp_01_the_id_is_the_first_half_of_the_digest_of_app_user_and_chat() {
        let scope = Scope::chat_of("app", "user", "chat").unwrap();
        assert_eq!(scope.value(), "app-user-chat");
        // printf %s app-user-chat | sha256sum | head -c 16
        assert_eq!(scope.sandbox_id().unwrap().as_str(), "6dc28d76e2cef331");
        assert!(scope.sandbox_id().unwrap().is_computed());
        assert_eq!(scope.chat(), Some(("app".to_owned(), "chat".to_owned())));
        assert_eq!(Scope::fixed("app-user-chat").unwrap().sandbox_id(), None);
    }

    #[test]
    fn fp_02_no_chat_is_that_of_a_user_with_another_name() {
        let alice = Scope::chat_of("shop", "alice", "smith-7").unwrap();
        let other = Scope::chat_of("shop", "alice-smith", "7").unwrap();
        assert_ne!(alice.key(), other.key());
        assert_eq!((alice.value(), other.value()), ("shop-alice-smith-7".into(), "shop-alice-smith-7".into()));
        // printf %s shop-alice-smith-7 | sha256sum | head -c 16
        assert_eq!(alice.sandbox_id().unwrap().as_str(), "cbdccfca11f2b4e0");
        assert_eq!(other.sandbox_id(), alice.sandbox_id());
        let [one, two] = [("a_b", "c"), ("a", "b_c")].map(|(p, agent)| Scope::project_agent(p, agent).unwrap());
        assert_ne!(one.key(), two.key());
        assert_eq!([one.value(), two.value()], ["a_b_c", "a_b_c"]);
        assert_eq!(Scope::project_agent("demo", "main_agent").unwrap().value(), "demo_main_agent");
    }

    #[test]
    fn lb_05_a_variable_without_a_value_is_unknown() {
        assert_eq!(
            filled("{launcher_type}_{launcher_id}", &[("launcher_type", "group"), ("launcher_id", "7")]),
            "group_7"
        );
        assert_eq!(filled("{launcher_type}_{anything_else}", &[("launcher_type", "person")]), "person_unknown");
        assert_eq!(filled("{sender_id}", &[("sender_id", "")]), "unknown");
        assert_eq!(filled("{{x}}-{x}", &[("x", "{y}")]), "{x}-{y}");
    }

    #[test]
    fn a_long_variable_that_is_named_often_is_refused_before_it_is_copied_often() {
        let (template, long) = (ScopeTemplate::new("{a}".repeat(341)).unwrap(), "x".repeat(64 << 20));
        // Some twenty gigabytes, if they were made.
        assert_eq!(template.fill(&variables(&[("a", &long)])), Err(ScopeError::Long("the scope's value")));
    }

    #[test]
    fn lb_06_the_eight_scenarios_can_be_said() {
        let all = [
            ("launcher_type", "group"),
            ("launcher_id", "g1"),
            ("sender_id", "s1"),
            ("conversation_id", "c1"),
            ("query_id", "q1"),
        ];
        for (template, value) in [
            ("{launcher_type}_{launcher_id}", "group_g1"),
            ("{launcher_type}_{launcher_id}_{sender_id}", "group_g1_s1"),
            ("{launcher_type}_{launcher_id}_{conversation_id}", "group_g1_c1"),
            ("{query_id}", "q1"),
            ("{sender_id}", "s1"),
            ("{conversation_id}", "c1"),
            ("employee-{sender_id}", "employee-s1"),
            ("everybody", "everybody"),
        ] {
            assert_eq!(filled(template, &all), value);
        }
    }

    #[test]
    fn a_template_that_cannot_be_meant_is_refused_when_it_is_set() {
        for bad in
            ["{", "}", "{a", "a}", "{a}}", "{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{0}", "{ a }", "", "a\nb"]
        {
            assert!(ScopeTemplate::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_part_that_says_nothing_is_refused() {
        assert_eq!(Scope::chat_of("app", "", "chat"), Err(ScopeError::Empty("the user")));
        assert_eq!(Scope::user("a\0b"), Err(ScopeError::Control("the user")));
        assert!(Scope::fixed(&"x".repeat(2000)).is_err());
    }

    proptest! {
        #[test]
        fn no_template_panics_and_what_is_taken_reads_back(text in "[a-z{}_. é\"]{0,24}") {
            if let Ok(template) = ScopeTemplate::new(text.clone()) {
                prop_assert_eq!(String::from(template.clone()), text);
                prop_assert!(template.fill(&BTreeMap::new()).is_ok());
            }
        }

        #[test]
        fn fp_01_scopes_of_other_parts_are_others_and_their_ids_are_those_of_the_parts(
            one in ["[ab%D25-]{1,4}", "[ab%D25-]{1,4}", "[ab%D25-]{1,4}"],
            other in ["[ab%D25-]{1,4}", "[ab%D25-]{1,4}", "[ab%D25-]{1,4}"],
        ) {
            let of = |parts: &[String; 3]| Scope::chat_of(&parts[0], &parts[1], &parts[2]).unwrap();
            prop_assert_eq!(one == other, of(&one).key() == of(&other).key());
            prop_assert_eq!(of(&one).parts().into_iter().map(|(_, part)| part).collect::<Vec<_>>(), one.clone());
            let agent = |parts: &[String; 3]| Scope::project_agent(&parts[0].replace('-', "_"), &parts[1].replace('-', "_"));
            prop_assert_eq!(one[..2] == other[..2], agent(&one).unwrap() == agent(&other).unwrap());
            let digest = Sha256::digest(one.join("-"));
            let id: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            let told = of(&one).sandbox_id().unwrap();
            prop_assert_eq!(told.as_str(), id);
        }

        #[test]
        fn a_value_is_never_read_as_a_template(value in "[a-z{}]{1,12}") {
            prop_assert_eq!(filled("<{a}>", &[("a", &value)]), format!("<{value}>"));
        }
    }
}
