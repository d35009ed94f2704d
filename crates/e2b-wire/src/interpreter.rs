//! The code interpreter inside a sandbox: contexts, and code that runs in them.
//!
//! What code does is told as lines of JSON, one [`Event`] each, the last of which is the end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json::or_default;

/// The port that it listens on.
pub const PORT: u16 = 49999;

/// `POST /execute`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execute {
    pub code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
}

/// Where code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// The default context of the default language.
    Default,
    /// The default context of this language.
    Language(&'a str),
    Context(&'a str),
}

/// A context has a language already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Only one of context_id or language can be provided")]
pub struct ContextAndLanguage;

impl Execute {
    /// An empty text is as good as none.
    pub fn place(&self) -> Result<Place<'_>, ContextAndLanguage> {
        let said = |text: &'_ Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        match (&self.context_id, &self.language) {
            (context, language) if said(context) && said(language) => Err(ContextAndLanguage),
            (Some(context), _) if !context.is_empty() => Ok(Place::Context(context)),
            (_, Some(language)) if !language.is_empty() => Ok(Place::Language(language)),
            _ => Ok(Place::Default),
        }
    }
}

/// `POST /contexts`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewContext {
    #[serde(deserialize_with = "or_python")]
    pub language: String,
    #[serde(deserialize_with = "or_home")]
    pub cwd: String,
}

const PYTHON: &str = "python";
const HOME: &str = "/home/user";

impl Default for NewContext {
    fn default() -> Self {
        Self { language: PYTHON.into(), cwd: HOME.into() }
    }
}

fn or_python<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    or_text(deserializer, PYTHON)
}

fn or_home<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    or_text(deserializer, HOME)
}

fn or_text<'de, D: serde::Deserializer<'de>>(deserializer: D, default: &str) -> Result<String, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned()))
}

/// What `POST /contexts` answers, and one of `GET /contexts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    pub id: String,
    pub language: String,
    pub cwd: String,
}

/// One line of what `POST /execute` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    NumberOfExecutions {
        execution_count: u64,
    },
    Stdout(Said),
    Stderr(Said),
    Result(Box<Output>),
    Error(Exception),
    /// The kernel was lost.
    UnexpectedEndOfExecution,
    EndOfExecution,
}

impl Event {
    /// As a line, with its end.
    pub fn line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    #[serde(default, deserialize_with = "or_default")]
    pub text: String,
    /// When. Carried as it is: clients hand it on and read nothing into it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub timestamp: Value,
}

/// Something to show, in as many forms as there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Output {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markdown: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub svg: Option<String>,
    /// In base64, as are the next two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub png: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jpeg: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdf: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latex: Option<String>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub json: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub javascript: Option<String>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub chart: Value,
    /// Forms that have no name here, by their media type.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Whether it is the value of the last line, and not something that was displayed on the way.
    #[serde(default, deserialize_with = "or_default")]
    pub is_main_result: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub value: String,
    #[serde(default, deserialize_with = "or_default")]
    pub traceback: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn execute(json: Value) -> Execute {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn code_runs_where_it_says() {
        let plain = execute(json!({"code": "1+1", "context_id": null, "language": null, "env_vars": null}));
        assert_eq!((&*plain.code, plain.place()), ("1+1", Ok(Place::Default)));
        assert_eq!(execute(json!({"code": "", "language": "r"})).place(), Ok(Place::Language("r")));
        assert_eq!(execute(json!({"code": "", "context_id": "c"})).place(), Ok(Place::Context("c")));
        assert_eq!(execute(json!({"code": "", "context_id": "", "language": ""})).place(), Ok(Place::Default));
        assert_eq!(execute(json!({"code": "", "context_id": "", "language": "r"})).place(), Ok(Place::Language("r")));
        let both = execute(json!({"code": "", "context_id": "c", "language": "r"}));
        assert_eq!(both.place(), Err(ContextAndLanguage));
        assert!(serde_json::from_value::<Execute>(json!({})).is_err());
    }

    #[test]
    fn a_context_has_defaults() {
        for json in [json!({}), json!({"language": null, "cwd": null}), json!({"cwd": ""})] {
            assert_eq!(serde_json::from_value::<NewContext>(json).unwrap(), NewContext::default());
        }
        let new: NewContext = serde_json::from_value(json!({"language": "r", "cwd": "/tmp"})).unwrap();
        assert_eq!(new, NewContext { language: "r".into(), cwd: "/tmp".into() });
        let context = Context { id: "c".into(), language: "python".into(), cwd: "/home/user".into() };
        let json = json!({"id": "c", "language": "python", "cwd": "/home/user"});
        assert_eq!(serde_json::to_value(context).unwrap(), json);
    }

    #[test]
    fn events_are_as_the_sdks_read_them() {
        let stamp = json!("2026-11-17T02:00:00Z");
        let main = Output { text: Some("2".into()), is_main_result: true, ..Output::default() };
        let chart = Output {
            png: Some("iVBO".into()),
            chart: json!({"type": "bar"}),
            extra: [("x/y".to_owned(), json!("z"))].into_iter().collect(),
            ..Output::default()
        };
        let exception = Exception { name: "ValueError".into(), value: "no".into(), traceback: "Traceback".into() };
        for (event, json) in [
            (
                Event::NumberOfExecutions { execution_count: 1 },
                json!({"type": "number_of_executions", "execution_count": 1}),
            ),
            (
                Event::Stdout(Said { text: "hi\n".into(), timestamp: stamp.clone() }),
                json!({"type": "stdout", "text": "hi\n", "timestamp": stamp}),
            ),
            (
                Event::Stderr(Said { text: "no\n".into(), timestamp: json!(1_794_880_800) }),
                json!({"type": "stderr", "text": "no\n", "timestamp": 1_794_880_800}),
            ),
            (Event::Result(main.into()), json!({"type": "result", "text": "2", "is_main_result": true})),
            (
                Event::Result(chart.into()),
                json!({
                    "type": "result", "png": "iVBO", "chart": {"type": "bar"}, "extra": {"x/y": "z"},
                    "is_main_result": false,
                }),
            ),
            (
                Event::Error(exception),
                json!({"type": "error", "name": "ValueError", "value": "no", "traceback": "Traceback"}),
            ),
            (Event::UnexpectedEndOfExecution, json!({"type": "unexpected_end_of_execution"})),
            (Event::EndOfExecution, json!({"type": "end_of_execution"})),
        ] {
            assert_eq!(serde_json::to_value(&event).unwrap(), json);
            assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
        }
    }

    #[test]
    fn what_a_server_leaves_out_or_says_is_null_is_empty() {
        let json = json!({"type": "result", "text": null, "json": null, "extra": null, "is_main_result": null});
        assert_eq!(serde_json::from_value::<Event>(json).unwrap(), Event::Result(Box::default()));
        let json = json!({"type": "error", "name": null});
        assert_eq!(serde_json::from_value::<Event>(json).unwrap(), Event::Error(Exception::default()));
        assert_eq!(serde_json::from_value::<Event>(json!({"type": "stdout"})).unwrap(), Event::Stdout(Said::default()));
    }

    #[test]
    fn an_event_is_one_line() {
        let event = Event::Stdout(Said { text: "two\nlines\n".into(), timestamp: Value::Null });
        let line = event.line().unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(line.last(), Some(&b'\n'));
    }
}
