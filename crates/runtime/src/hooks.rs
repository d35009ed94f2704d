//! Commands inside that go with a start or a stop.

use std::{collections::BTreeMap, time::Duration};

use cabana_model::{ExecId, Hook, Phase};
use cabana_sandbox::{ExecSpec, Sandbox, run};

use crate::{Event, acts::exec::ExitTold};

/// So much of what it says is told.
const SAID: usize = 2 << 10;
/// How long the provider may take to end one that takes too long.
const ENDING: Duration = Duration::from_secs(10);

/// Waits for its end, as long as it may take. Whatever comes of it is told, and holds nothing up.
pub(crate) async fn run_hook(
    sandbox: &dyn Sandbox,
    phase: Phase,
    hook: &Hook,
    env: &BTreeMap<String, String>,
) -> Event {
    let may_take = Duration::from_secs(hook.timeout_sec);
    let spec = ExecSpec {
        id: ExecId::now(),
        env: env.clone(),
        timeout: Some(may_take),
        ..ExecSpec::shell(hook.command.clone(), sandbox.defaults().workdir.clone())
    };
    let id = spec.id;
    let ran = tokio::time::timeout(may_take + ENDING, run(sandbox, spec, SAID)).await;
    let _ = sandbox.forget(&id).await;
    let (exit, said) = match ran {
        Ok(Ok(ran)) => {
            let said = [ran.stdout.tail, ran.stderr.head, ran.stderr.tail].concat();
            (Some(ExitTold::from(ran.exit)), String::from_utf8_lossy(&said).into_owned())
        }
        Ok(Err(error)) => (None, error.to_string()),
        Err(_) => (None, "the sandbox does not answer".to_owned()),
    };
    Event::Hook { hook: phase, exit, said }
}
