//! A command in the background: a task.

use cabana_model::TaskId;
use cabana_store::NewTask;
use serde::{Deserialize, Serialize};

use super::Asked;
use crate::{
    Act, Cx, Error, Kind, Needs, Result,
    fault::{self, Point},
};

pub struct Start {
    pub asked: Asked,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub task: TaskId,
}

impl Act for Start {
    const VERB: &'static str = "start";
    type Answer = Answer;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn digest(&self) -> [u8; 32] {
        self.asked.digest()
    }

    fn argv(&self) -> Vec<String> {
        self.asked.argv()
    }

    /// The task has the call's own number, so that whoever finds the call after a crash finds the task.
    async fn run(self, cx: Cx) -> Result<Answer> {
        let id = TaskId::from(cx.call.uuid());
        let (argv, timeout) = (self.asked.argv(), self.asked.timeout);
        let (spec, input) = self.asked.spec(id.into(), &cx, timeout)?;
        let record = cx.record()?;
        let task = NewTask {
            id,
            tenant: cx.caller.tenant.clone(),
            call: cx.call,
            key: cx.caller.key,
            sandbox: record.id.clone(),
            argv,
            at: cx.runtime.clock().now(),
        };
        let sandbox = cx.sandbox()?;
        cx.runtime.store().add_task(task.clone()).await?;
        fault::at(Point::TaskNoted);
        match sandbox.exec(spec).await {
            Ok(process) => {
                fault::at(Point::TaskBegun);
                cx.runtime.begin_task(
                    task,
                    sandbox.clone(),
                    process,
                    input,
                    cx.awake.as_ref().map(|awake| awake.and(Kind::Task)),
                );
                Ok(Answer { task: id })
            }
            Err(error) => {
                let error = Error::from(error);
                cx.runtime.task_never_began(&task, &error).await?;
                Err(error)
            }
        }
    }
}
