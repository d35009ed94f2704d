//! A command in the background: a task.

use std::sync::Arc;

use cabana_model::TaskId;
use cabana_sandbox::Stdio;
use cabana_store::NewTask;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Asked;
use crate::{
    Act, Cx, Error, Kind, Needs, Result,
    fault::{self, Point},
    tasks::{About, Staying, Typed},
    words,
};

pub struct Start {
    pub asked: Asked,
    pub typed: Typed,
    /// Whatever the front wants to find again when it lists what runs. Not for secrets: it is kept.
    pub note: Option<Value>,
}

impl Start {
    /// What nobody types to.
    pub fn new(asked: Asked) -> Self {
        Self { asked, typed: Typed::Whole, note: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub task: TaskId,
    /// As seen inside, unless a crash came between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl Act for Start {
    const VERB: &'static str = "start";
    const BEGINS_TASK: bool = true;
    type Answer = Answer;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn digest(&self) -> [u8; 32] {
        match self.typed {
            Typed::Whole => self.asked.digest(),
            typed => {
                Sha256::new().chain_update(self.asked.digest()).chain_update(format!("{typed:?}")).finalize().into()
            }
        }
    }

    fn argv(&self) -> Vec<String> {
        self.asked.argv()
    }

    fn held_bytes(&self) -> usize {
        self.asked.held_bytes()
    }

    /// The task has the call's own number, so that whoever finds the call after a crash finds the task.
    async fn run(self, cx: Cx) -> Result<Answer> {
        let id = TaskId::from(cx.call.uuid());
        let (argv, timeout) = (words::recorded(self.asked.argv()), self.asked.timeout);
        let env = Arc::new(words::shown_env(&self.asked.env));
        let (mut spec, input) = self.asked.spec(id.into(), &cx, timeout)?;
        match self.typed {
            Typed::Whole => {}
            Typed::Open => spec.stdio = Stdio::InputOutput,
            Typed::Terminal(size) => spec.stdio = Stdio::Terminal(size),
        }
        let record = cx.record()?;
        let task = NewTask {
            id,
            tenant: cx.caller.tenant.clone(),
            call: cx.call,
            key: cx.caller.key,
            sandbox: record.id.clone(),
            argv,
            about: About { typed: self.typed, note: self.note.map(Arc::new) }.written(),
            at: cx.runtime.clock().now(),
        };
        let sandbox = cx.sandbox()?;
        cx.runtime.store().add_task(task.clone()).await?;
        fault::at(Point::TaskNoted);
        match sandbox.exec(spec).await {
            Ok(process) => {
                fault::at(Point::TaskBegun);
                let awake = cx.awake.as_ref().map(|awake| awake.and(Kind::Task));
                let staying = Staying { awake, pass: cx.note(|notes| notes.task.take()), hands: None, env };
                let pid = process.pid;
                cx.runtime.begin_task(task, sandbox.clone(), process, input, staying);
                Ok(Answer { task: id, pid })
            }
            Err(error) => {
                let error = Error::from(error);
                cx.runtime.task_never_began(&task, &error).await?;
                Err(error)
            }
        }
    }
}
