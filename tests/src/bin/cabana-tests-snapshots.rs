//! Snapshots as whoever starts this: a program of its own, since a test has threads when it begins, and the kernel moves no
//! process with threads into a user namespace. Says what it found, and ends with 1 if that is not what it should be.

use std::{error::Error, process::ExitCode, sync::Arc};

use bytes::Bytes;
use cabana_engine::{Config, Engine};
use cabana_sandbox::{Base, ExecSpec, Provider, Sandbox, SandboxId, SandboxPath, SandboxSpec, SnapshotId, Status, run};
use futures_util::{StreamExt, TryStreamExt, stream};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// More than can lie on each other without being merged.
const ROUNDS: usize = 20;

fn main() -> ExitCode {
    cabana_engine::helper_main();
    let data = std::env::args_os().nth(1).unwrap_or_default();
    let done = cabana_engine::enter_user_namespace().map_err(Into::into).and_then(|()| {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(take(Config::new(data)))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn take(config: Config) -> Outcome {
    let engine = Engine::open(config).await?;
    let can = engine.capabilities();
    println!("identities {:?}, pause {}, snapshot {}", can.identities, can.pause, can.snapshot);
    let mut sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await?;
    say(&*sandbox, "mkdir /srv/dir && echo 0 > /srv/dir/0 && rm -r /etc/pam.d && mkdir /etc/pam.d").await?;
    for round in 1..ROUNDS {
        if !can.pause || round % 2 == 0 {
            engine.stop(sandbox.id()).await?;
        }
        let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await?;
        engine.destroy(sandbox.id()).await?;
        sandbox = engine.create(&SandboxId::random(), &SandboxSpec::new(base)).await?;
        say(&*sandbox, &format!("echo {round} > /srv/dir/{round} && rm /srv/dir/{}", round - 1)).await?;
    }
    let look = "ls /srv/dir; cat /srv/dir/*; ls /etc/pam.d";
    let wanted = format!("{0}\n{0}\n", ROUNDS - 1);
    same(&say(&*sandbox, look).await?, &wanted)?;

    engine.stop(sandbox.id()).await?;
    let saved: Vec<Bytes> = engine.save(sandbox.id()).await?.try_collect().await?;
    let restored = SandboxId::random();
    let body = stream::iter(saved.into_iter().map(Ok)).boxed();
    engine.restore(&restored, &SandboxSpec::new(Base::Host), body).await?;
    let restored: Arc<dyn Sandbox> = engine.start(&restored).await?;
    same(&say(&*restored, look).await?, &wanted)?;
    engine.close().await;
    println!("all is as it was");
    Ok(())
}

async fn say(sandbox: &dyn Sandbox, script: &str) -> Outcome<String> {
    let mut spec = ExecSpec::shell(script, SandboxPath::root());
    spec.user = Some(cabana_sandbox::User::root());
    let outcome = run(sandbox, spec, 1 << 20).await?;
    let text = |kept: cabana_sandbox::Kept| kept.whole().map(|all| String::from_utf8_lossy(&all).into_owned());
    match outcome.exit.status {
        Status::Code(0) => Ok(text(outcome.stdout).unwrap_or_default()),
        status => Err(format!("{script:?} ended with {status:?}: {:?}", text(outcome.stderr)).into()),
    }
}

fn same(is: &str, wanted: &str) -> Outcome {
    if is == wanted { Ok(()) } else { Err(format!("{is:?} is not {wanted:?}").into()) }
}
