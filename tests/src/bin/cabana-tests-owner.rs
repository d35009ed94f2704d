//! A process that owns sandboxes, to be killed by a test. It does what it is told, line by line, and says when it is done.
//!
//! `create ID LIFETIME`, `attach ID`, `start ID`, `stop ID`, `destroy ID`, `pause ID`, `snapshot ID`,
//! `archive ID` (and back), `limit ID PIDS`, `show ID VOLUME AT`,
//! `exec ID EXEC STDIO SCRIPT`, `type EXEC TEXT`. What commands say is read, as a server would, and not shown.

use std::{collections::HashMap, sync::Arc};

use cabana_engine::{Config, Engine};
use cabana_sandbox::{
    Base, ExecId, ExecSpec, Found, Lifetime, Limits, Provider, Sandbox, SandboxId, SandboxPath, SandboxSpec,
    SnapshotId, Source, Stdin, Stdio, TermSize, View, VolumeId, Wanted,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::io::AsyncWriteExt;

type Failure = Box<dyn std::error::Error>;

struct Owner {
    engine: Arc<Engine>,
    sandboxes: HashMap<SandboxId, Arc<dyn Sandbox>>,
    inputs: HashMap<String, Stdin>,
    readers: tokio::task::JoinSet<()>,
}

fn main() -> Result<(), Failure> {
    cabana_engine::helper_main();
    let data = std::env::args_os().nth(1).ok_or("a data directory")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let engine = Engine::open(Config::new(data)).await?;
        let mut owner =
            Owner { engine, sandboxes: HashMap::new(), inputs: HashMap::new(), readers: tokio::task::JoinSet::new() };
        // This thread waits for lines; the others do the work.
        for line in std::io::stdin().lines() {
            let line = line?;
            let words: Vec<&str> = line.splitn(5, ' ').collect();
            match owner.obey(&words).await {
                Ok(said) => println!("{said}"),
                Err(error) => println!("failed: {error}"),
            }
        }
        owner.engine.close().await;
        Ok(())
    })
}

impl Owner {
    async fn obey(&mut self, words: &[&str]) -> Result<String, Failure> {
        let id = || -> Result<SandboxId, Failure> { Ok(SandboxId::new(*words.get(1).ok_or("an id")?)?) };
        match words {
            ["create", _, lifetime] => {
                let lifetime = if *lifetime == "ephemeral" { Lifetime::Ephemeral } else { Lifetime::Persistent };
                let spec = SandboxSpec { lifetime, ..SandboxSpec::new(Base::Host) };
                let sandbox = self.engine.create(&id()?, &spec).await?;
                self.sandboxes.insert(id()?, sandbox);
            }
            ["attach", _] => {
                return Ok(match self.engine.attach(&id()?).await? {
                    Found::Running(sandbox) => {
                        self.sandboxes.insert(id()?, sandbox);
                        "running"
                    }
                    Found::Paused(_) => "paused",
                    Found::Stopped => "stopped",
                    Found::Absent => "absent",
                }
                .to_owned());
            }
            ["start", _] => {
                let sandbox = self.engine.start(&id()?).await?;
                self.sandboxes.insert(id()?, sandbox);
            }
            ["stop", _] => self.engine.stop(&id()?).await?,
            ["destroy", _] => self.engine.destroy(&id()?).await?,
            ["pause", _] => self.engine.pause(&id()?).await?,
            ["snapshot", _] => drop(self.engine.snapshot(&id()?, SnapshotId::now()).await?),
            ["archive", _] => {
                let saved: Vec<_> = self.engine.save(&id()?).await?.try_collect().await?;
                self.engine.shelve(&id()?).await?;
                let saved = stream::iter(saved.into_iter().map(Ok)).boxed();
                self.engine.restore(&id()?, &SandboxSpec::new(Base::Host), saved).await?;
            }
            ["limit", _, pids] => {
                let limits = Limits { pids: Some(pids.parse()?), ..Limits::default() };
                self.sandbox(&id()?)?.update(Wanted::Limits(limits)).await?;
            }
            ["show", _, volume, at] => {
                let volume: VolumeId = volume.parse()?;
                self.engine.make_volume(volume).await?;
                let view = View { source: Source::Volume(volume), at: at.parse()?, writable: true };
                self.sandbox(&id()?)?.update(Wanted::Views(vec![view])).await?;
            }
            ["exec", _, exec, stdio, script] => self.exec(&id()?, exec, stdio, script).await?,
            ["type", exec, text @ ..] => {
                let input = self.inputs.get_mut(*exec).ok_or("no such input")?;
                input.write_all(text.join(" ").as_bytes()).await?;
                input.write_all(b"\n").await?;
            }
            other => return Err(format!("what is {other:?}?").into()),
        }
        Ok("done".to_owned())
    }

    fn sandbox(&self, id: &SandboxId) -> Result<&Arc<dyn Sandbox>, Failure> {
        self.sandboxes.get(id).ok_or_else(|| "no such sandbox here".into())
    }

    async fn exec(&mut self, id: &SandboxId, exec: &str, stdio: &str, script: &str) -> Result<(), Failure> {
        let mut spec = ExecSpec::shell(script, SandboxPath::root());
        spec.id = exec_id(exec)?;
        spec.stdio = match stdio {
            "input" => Stdio::InputOutput,
            "terminal" => Stdio::Terminal(TermSize { cols: 80, rows: 24 }),
            _ => Stdio::Output,
        };
        let mut process = self.sandbox(id)?.exec(spec).await?;
        if let Some(input) = process.stdin.take() {
            self.inputs.insert(exec.to_owned(), input);
        }
        self.readers.spawn(async move { while let Some(Ok(_)) = process.events.next().await {} });
        Ok(())
    }
}

/// 32 hex digits.
fn exec_id(text: &str) -> Result<ExecId, Failure> {
    Ok(ExecId::from(uuid::Uuid::from_u128(u128::from_str_radix(text, 16)?)))
}
