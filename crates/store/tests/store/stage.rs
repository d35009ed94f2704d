//! What most tests need: a store in a directory of its own, and rows to put into it.

use std::{
    path::Path,
    process::{Command, Output},
};

use cabana_model::{CallId, KeyId, Outcome, SandboxId, TaskId, Tenant, Time};
use cabana_store::{Claim, Done, Durability, Entry, LedgerRow, NewCall, NewTask, Store};
use tempfile::TempDir;

pub(crate) struct Stage {
    pub(crate) store: Store,
    pub(crate) dir: TempDir,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: open(dir.path()), dir }
    }

    /// As after a restart.
    pub(crate) async fn again(self) -> Self {
        self.store.close().await;
        Self { store: open(self.dir.path()), dir: self.dir }
    }
}

pub(crate) fn open(dir: &Path) -> Store {
    Store::open(dir, Durability::Kill).unwrap()
}

pub(crate) fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

pub(crate) fn at(second: i64) -> Time {
    Time::from_second(1_800_000_000 + second).unwrap()
}

pub(crate) fn claim(tenant: &Tenant, second: i64) -> Claim {
    Claim {
        tenant: tenant.clone(),
        scope: None,
        id: SandboxId::random(),
        physical: SandboxId::random(),
        spec: "{}".into(),
        key: KeyId::now(),
        user: None,
        disk: None,
        at: at(second),
    }
}

pub(crate) fn call(tenant: &Tenant) -> NewCall {
    NewCall {
        id: CallId::now(),
        tenant: tenant.clone(),
        key: KeyId::now(),
        sandbox: None,
        user: None,
        made: false,
        verb: "exec",
        front: "rest",
        digest: [1; 32],
        once: None,
        argv: vec!["echo".into(), "é\n\"".into()],
        at: at(0),
    }
}

pub(crate) fn entry(call: &NewCall) -> Entry {
    Entry {
        tenant: call.tenant.clone(),
        key: call.key,
        sandbox: call.sandbox.clone(),
        call: call.id,
        verb: call.verb.into(),
        argv: call.argv.clone(),
        input_digest: Some(call.digest),
        output_digest: None,
        outcome: "answered".into(),
        exit: Some(0),
        duration_ms: 3,
        policy: None,
        at: at(1),
    }
}

pub(crate) fn done(call: &NewCall) -> Done {
    Done { id: call.id, outcome: Outcome::Answered("{\"exit\":0}".into()), output: None, entry: entry(call) }
}

pub(crate) fn task(call: &NewCall, sandbox: &SandboxId) -> NewTask {
    NewTask {
        id: TaskId::now(),
        tenant: call.tenant.clone(),
        call: call.id,
        key: call.key,
        sandbox: sandbox.clone(),
        argv: call.argv.clone(),
        about: None,
        at: at(0),
    }
}

pub(crate) async fn chain(store: &Store, tenant: &Tenant) -> Vec<LedgerRow> {
    store.ledger(tenant, 0, u32::MAX).await.unwrap()
}

/// Runs one test of this binary again, as a process of its own that may be killed or have mounts of its own.
pub(crate) fn rerun(through: &[&str], test: &str, told: &Path) -> Command {
    let binary = std::env::current_exe().unwrap();
    let mut command = match through {
        [] => Command::new(&binary),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(&binary);
            command
        }
    };
    command.args([test, "--exact", "--nocapture"]).env(TOLD, told).env("RUST_BACKTRACE", "0");
    command
}

/// The directory that a test which was run again works in; `None` for one that was not told to do anything.
pub(crate) fn told() -> Option<std::path::PathBuf> {
    std::env::var_os(TOLD).map(Into::into)
}

const TOLD: &str = "CABANA_TEST_STORE";

pub(crate) fn assert_passed(run: &Output) {
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
}
