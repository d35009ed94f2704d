//! Engines for tests. All share one data directory, as processes on one machine do: the host base is made once.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use cabana_engine::{Config, Engine};
use cabana_sandbox::{Base, Provider, SandboxSpec};
use cabana_testkit::conformance::Subject;

pub(crate) fn config(data: PathBuf) -> Config {
    Config { helper: env!("CARGO_BIN_EXE_cabana-spawner").into(), ..Config::new(data) }
}

pub(crate) fn shared_data() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("data")
}

/// Drafts of sandboxes that come next are the engine's to make and to take.
pub(crate) fn entries_in(dir: &Path) -> Vec<OsString> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| !name.as_encoded_bytes().starts_with(b".draft-")).collect()
}

pub(crate) async fn engine() -> Arc<Engine> {
    Engine::open(config(shared_data())).await.expect("an engine on this host")
}

pub(crate) struct OnHost(Arc<Engine>);

impl OnHost {
    pub(crate) async fn open(cgroups: bool) -> Self {
        Self(Engine::open(Config { cgroups, ..config(shared_data()) }).await.expect("an engine on this host"))
    }
}

impl Subject for OnHost {
    fn provider(&self) -> Arc<dyn Provider> {
        self.0.clone()
    }

    fn spec(&self) -> SandboxSpec {
        SandboxSpec::new(Base::Host)
    }
}
