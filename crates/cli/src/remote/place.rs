//! Which sandbox is meant: by its id, or by the scope that it belongs to.

use std::collections::BTreeMap;

use cabana_model::{Code, SandboxId};
use serde::{Deserialize, Serialize};

use super::server::{At, Server};
use crate::failure::Failure;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Sandbox(SandboxId),
    Scope(Scope),
}

/// As the interface takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "scheme", rename_all = "snake_case")]
pub(super) enum Scope {
    Chat { app: String, user: String, chat: String },
    ProjectAgent { project: String, agent: String },
    User { user: String },
    Fixed { name: String },
}

/// What a listed sandbox says of itself.
#[derive(Deserialize)]
struct Listed {
    id: SandboxId,
    scope: Option<ListedScope>,
}

/// Its scheme and the parts of it that a caller names, and more.
type ListedScope = BTreeMap<String, String>;

impl Place {
    /// An id, SCHEME:VALUE, or the name of a fixed scope.
    pub(super) fn of(text: &str) -> Result<Self, Failure> {
        match (text.split_once(':'), SandboxId::new(text)) {
            (Some(_), _) => Scope::of(text).map(Self::Scope),
            (None, Ok(id)) => Ok(Self::Sandbox(id)),
            (None, Err(_)) if text.is_empty() => {
                Err(Failure::bad("no sandbox is named: give an id, a name or a scope"))
            }
            (None, Err(_)) => Ok(Self::Scope(Scope::Fixed { name: text.to_owned() })),
        }
    }

    /// From a word, or from --scope where that is given.
    pub(super) fn given(word: Option<&str>, scope: Option<&str>) -> Result<Self, Failure> {
        match (word, scope) {
            (_, Some(scope)) => Scope::of(scope).map(Self::Scope),
            (word, None) => Self::of(word.unwrap_or_default()),
        }
    }

    /// Its sandbox, which is made or started if it has to be.
    pub(super) async fn ensure(&self, server: &Server) -> Result<SandboxId, Failure> {
        #[derive(Deserialize)]
        struct Ensured {
            id: SandboxId,
        }
        match self {
            Self::Sandbox(id) => Ok(id.clone()),
            Self::Scope(scope) => {
                let body = BTreeMap::from([("scope", scope)]);
                let ensured: Ensured = server.post(At(&["v1", "sandboxes:ensure"], &[]), &body).await?;
                Ok(ensured.id)
            }
        }
    }

    /// Its sandbox, if there is one: nothing is made only to be ended.
    pub(super) async fn find(&self, server: &Server) -> Result<SandboxId, Failure> {
        let scope = match self {
            Self::Sandbox(id) => return Ok(id.clone()),
            Self::Scope(scope) => scope.key()?,
        };
        let listed: Vec<Listed> = server.all("sandboxes", &["v1", "sandboxes"], &[]).await?;
        let named: Vec<_> = [("scheme", scope.scheme().to_string())].into_iter().chain(scope.parts()).collect();
        let meant = |scope: &ListedScope| named.iter().all(|(name, value)| scope.get(*name) == Some(value));
        let found = listed.into_iter().find(|listed| listed.scope.as_ref().is_some_and(meant));
        found.map(|listed| listed.id).ok_or_else(|| {
            let why = format!("there is no sandbox of the scope {}:{}", scope.scheme(), scope.value());
            Failure::new(Code::SandboxNotFound, why).with_hint("`cabana ls` shows those that there are.")
        })
    }
}

impl Scope {
    fn of(text: &str) -> Result<Self, Failure> {
        let bad = |why: &str| Failure::bad(format!("the scope {text:?}: {why}"));
        let (scheme, value) = text.split_once(':').ok_or_else(|| bad("write SCHEME:VALUE, as in fixed:NAME"))?;
        let parts: Vec<&str> = value.split('/').collect();
        let scope = match (scheme, parts.as_slice()) {
            ("fixed", _) => Self::Fixed { name: value.to_owned() },
            ("user", _) => Self::User { user: value.to_owned() },
            ("project_agent", [project, agent]) => {
                Self::ProjectAgent { project: (*project).to_owned(), agent: (*agent).to_owned() }
            }
            ("project_agent", _) => return Err(bad("write project_agent:PROJECT/AGENT")),
            ("chat", [app, user, chat]) => {
                Self::Chat { app: (*app).to_owned(), user: (*user).to_owned(), chat: (*chat).to_owned() }
            }
            ("chat", _) => return Err(bad("write chat:APP/USER/CHAT")),
            _ => return Err(bad("the schemes are fixed, user, project_agent and chat")),
        };
        scope.key()?;
        Ok(scope)
    }

    fn key(&self) -> Result<cabana_model::Scope, Failure> {
        use cabana_model::Scope as Key;
        let key = match self {
            Self::Chat { app, user, chat } => Key::chat_of(app, user, chat),
            Self::ProjectAgent { project, agent } => Key::project_agent(project, agent),
            Self::User { user } => Key::user(user),
            Self::Fixed { name } => Key::fixed(name),
        };
        key.map_err(|error| Failure::bad(format!("the scope: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_an_id_or_a_scope_and_a_plain_name_is_a_fixed_one() {
        let fixed = |name: &str| Place::Scope(Scope::Fixed { name: name.into() });
        assert_eq!(
            Place::of("k3vq7xw2m9pd5ru8thya").unwrap(),
            Place::Sandbox(SandboxId::new("k3vq7xw2m9pd5ru8thya").unwrap())
        );
        assert_eq!(Place::of("box").unwrap(), fixed("box"));
        assert_eq!(Place::of("fixed:k3vq7xw2m9pd5ru8thya").unwrap(), fixed("k3vq7xw2m9pd5ru8thya"));
        assert_eq!(Place::of("fixed:a:b/c").unwrap(), fixed("a:b/c"));
        let agent = Scope::ProjectAgent { project: "p".into(), agent: "a".into() };
        assert_eq!(Place::of("project_agent:p/a").unwrap(), Place::Scope(agent));
        for bad in ["", "fixed:", "other:x", "chat:a/b", "project_agent:p", "user:"] {
            assert!(Place::of(bad).is_err(), "{bad:?}");
        }
    }
}
