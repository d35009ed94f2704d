//! What a template has running in its sandboxes from their start on: it is started, and waited for until it is there.

use std::time::Duration;

use cabana_model::{SandboxId, TaskId, TaskState};
use cabana_sandbox::{Error as SandboxError, Service, User};
use cabana_store::Stream;
use serde_json::{Value, json};

use crate::{
    Ask, Caller, Error, IdempotencyKey, Place, Result, Runtime,
    acts::{
        Asked,
        exec::{Answer, Ending, Exec, Keep, Said},
        start::Start,
    },
};

/// So long a service has to become ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much of its last words explains a failure.
const WORDS: u32 = 2 << 10;

/// A service, and the sandbox that is to have it: one that was made or started anew a moment ago.
pub struct BringUp<'a> {
    pub caller: &'a Caller,
    pub front: &'static str,
    pub sandbox: &'a SandboxId,
    /// What the sandbox was made from, for whoever hears of a failure.
    pub template: &'a str,
    pub service: &'a Service,
    /// Both `None`: as every command of the sandbox.
    pub user: Option<User>,
    pub cwd: Option<String>,
}

impl Runtime {
    /// One that runs already is left as it is, so it does no harm to ask once too often. What does not become ready is an error
    /// that says why; the sandbox stays, for the caller to delete or to look into.
    pub async fn bring_up(&self, what: BringUp<'_>) -> Result<()> {
        let task = self.started(&what).await?;
        let Some(ready) = what.service.ready.as_deref() else { return Ok(()) };
        let mut asked = what.asked(&format!("until (\n{ready}\n); do sleep 0.1; done"));
        asked.timeout = Some(PATIENCE);
        let exec = Exec { asked, keep: Keep::tail(WORDS), clamped: Vec::new() };
        let waiting = self.call(what.ask(None), exec).await?;
        let cancel = waiting.0.cancel.clone();
        tokio::select! {
            answer = waiting.answer() => what.judge(&answer?),
            why = self.failed(&what, task) => {
                cancel.cancel();
                Err(what.bad(why?))
            }
        }
    }

    async fn started(&self, what: &BringUp<'_>) -> Result<TaskId> {
        let (tenant, note) = (&what.caller.tenant, what.note());
        let runs = self
            .seen_tasks(tenant, what.sandbox)
            .await?
            .into_iter()
            .find(|seen| !seen.has_ended && seen.note.as_deref() == note.as_ref());
        if let Some(seen) = runs {
            return Ok(seen.task);
        }
        // Whoever asks at the same time asks for the same call: once for each time that the sandbox began to run.
        let began = self.sandbox(what.caller, what.sandbox).await?.started;
        let key = IdempotencyKey::new(format!("service {} {began:?}", what.sandbox).as_bytes());
        let start = Start { note, ..Start::new(what.asked(&what.service.start)) };
        Ok(self.call(what.ask(Some(key)), start).await?.answer().await?.task)
    }

    /// Comes back when the command has ended badly, and says how. One that ends well has left what it started behind.
    async fn failed(&self, what: &BringUp<'_>, task: TaskId) -> Result<String> {
        let ended = self.ended_task(what.caller, task).await?;
        if ended.state == TaskState::Succeeded {
            return std::future::pending().await;
        }
        let log = self.task_output(what.caller, task).await?;
        let mut words = String::new();
        for stream in [Stream::Stdout, Stream::Stderr] {
            words += &text(&Said::of(&log, stream, Keep::tail(WORDS)).await?);
        }
        Ok(format!("its start command ended ({}){}", ended.state, quoted(&words)))
    }
}

impl BringUp<'_> {
    fn asked(&self, script: &str) -> Asked {
        Asked { user: self.user.clone(), cwd: self.cwd.clone(), ..Asked::shell(script) }
    }

    fn ask(&self, key: Option<IdempotencyKey>) -> Ask {
        let place = Place::Sandbox(self.sandbox.clone());
        Ask { caller: self.caller.clone(), place, key, lease: None, front: self.front }
    }

    /// By which its task is found again.
    fn note(&self) -> Option<Value> {
        Some(json!({ "service": self.service.start }))
    }

    fn judge(&self, answer: &Answer) -> Result<()> {
        if answer.exit.exit_code == Some(0) {
            return Ok(());
        }
        let how = match answer.exit.status {
            Ending::TimedOut => format!("its ready command has not succeeded within {} seconds", PATIENCE.as_secs()),
            _ => "its ready command cannot be tried".to_owned(),
        };
        Err(self.bad(how + &quoted(&(text(&answer.stdout) + &text(&answer.stderr)))))
    }

    fn bad(&self, why: String) -> Error {
        SandboxError::BadTemplate { name: self.template.to_owned(), why }.into()
    }
}

fn text(said: &Said) -> String {
    String::from_utf8_lossy(&[&*said.head.0, &*said.tail.0].concat()).into_owned()
}

fn quoted(words: &str) -> String {
    match words.trim() {
        "" => ", and said nothing".to_owned(),
        words => format!(". Its last words:\n{words}"),
    }
}
