//! A sandbox that stands still: its memory is kept, and no time passes for it.

use std::time::Duration;

use cabana_sandbox::{
    Base, Code, Error, Event, ExecSpec, Found, Lifetime, Provider, Read, SandboxPath, SandboxSpec, State, Status,
};
use futures_util::{StreamExt, TryStreamExt};

use crate::inside::Inside;

/// Counts in its memory, and writes down how far it has come.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo $n > /tmp/count.new; mv /tmp/count.new /tmp/count; done";

async fn persistent() -> Inside {
    Inside::with(SandboxSpec { lifetime: Lifetime::Persistent, ..SandboxSpec::new(Base::Host) }).await
}

async fn count(inside: &Inside) -> u64 {
    let path: SandboxPath = "/tmp/count".parse().unwrap();
    loop {
        if let Ok((_, body)) = inside.files("root").read(&path, Read::default()).await {
            let bytes: Vec<_> = body.try_collect().await.unwrap();
            if let Ok(number) = String::from_utf8(bytes.concat()).unwrap().trim().parse() {
                return number;
            }
        }
        tokio::task::yield_now().await;
    }
}

async fn state(inside: &Inside) -> State {
    let all: Vec<_> = inside.engine.list().await.unwrap().try_collect().await.unwrap();
    all.into_iter().find(|(id, _)| id == inside.sandbox.id()).expect("it is listed").1
}

#[tokio::test]
async fn what_is_paused_does_nothing_and_goes_on_where_it_was() {
    let inside = persistent().await;
    let id = inside.sandbox.id().clone();
    let counter = inside.sandbox.exec(ExecSpec::shell(COUNTER, SandboxPath::root())).await.unwrap();
    let before = count(&inside).await;
    inside.engine.pause(&id).await.unwrap();
    inside.engine.pause(&id).await.unwrap();
    assert!(matches!(inside.engine.attach(&id).await.unwrap(), Found::Paused(_)));
    assert_eq!(state(&inside).await, State::Paused);
    let at = count(&inside).await;
    assert!(at >= before);
    let used = async || inside.sandbox.usage().await.unwrap().cpu;
    let mut stands_still = false;
    // The kernel's books of what was used before may close a moment later.
    for _ in 0..100 {
        let cpu = used().await;
        for _ in 0..200 {
            assert_eq!(count(&inside).await, at, "it counts on");
        }
        stands_still = used().await == cpu;
        if stands_still {
            break;
        }
    }
    assert!(stands_still, "it uses the processor");

    let awake = inside.engine.start(&id).await.unwrap();
    assert_eq!(state(&inside).await, State::Running);
    while count(&inside).await <= at + 10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(awake.processes().await.unwrap().len(), 1);
    drop(counter);
    inside.end().await;
}

#[tokio::test]
async fn a_paused_sandbox_takes_files_and_refuses_commands_and_connections() {
    let inside = persistent().await;
    inside.engine.pause(inside.sandbox.id()).await.unwrap();
    let refused = inside.sandbox.exec(ExecSpec::argv(["true"], SandboxPath::root())).await.err().unwrap();
    assert!(matches!(refused, Error::Paused) && refused.code() == Code::SandboxPaused);
    assert!(matches!(inside.sandbox.connect(80).await.err().unwrap(), Error::Paused));
    let path: SandboxPath = "/tmp/made".parse().unwrap();
    let write = cabana_sandbox::Write::new(cabana_sandbox::WriteMode::Replace);
    let body = futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"meanwhile"))]).boxed();
    inside.files("root").write(&path, write, body).await.unwrap();
    inside.engine.start(inside.sandbox.id()).await.unwrap();
    assert_eq!(inside.root("cat /tmp/made").await.ok(), "meanwhile");
    inside.end().await;
}

#[tokio::test]
async fn the_time_of_a_pause_does_not_count_for_a_timeout() {
    let inside = persistent().await;
    let mut spec = ExecSpec::shell("echo begun; sleep 1; echo done", SandboxPath::root());
    spec.timeout = Some(Duration::from_secs(10)); // ample for what comes before and after the pause
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    assert!(matches!(process.events.next().await.unwrap().unwrap(), Event::Output(_)));
    inside.engine.pause(inside.sandbox.id()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await; // longer than the timeout: that is what is shown
    inside.engine.start(inside.sandbox.id()).await.unwrap();
    let mut last = None;
    while let Some(event) = process.events.next().await {
        last = Some(event.unwrap());
    }
    let Some(Event::Exit(exit)) = last else { panic!("an exit comes last") };
    assert_eq!(exit.status, Status::Code(0));
    inside.end().await;
}

#[tokio::test]
async fn what_is_paused_can_be_stopped_and_deleted_and_the_next_one_moves() {
    let inside = persistent().await;
    let id = inside.sandbox.id().clone();
    for _ in 0..20 {
        inside.engine.pause(&id).await.unwrap();
        inside.engine.stop(&id).await.unwrap();
        assert_eq!(state(&inside).await, State::Stopped);
        assert!(matches!(inside.engine.pause(&id).await.unwrap_err(), Error::Gone));
        let awake = inside.engine.start(&id).await.unwrap();
        assert_eq!(crate::inside::shell(&*awake, "root", "echo well").await.ok(), "well");
    }
    inside.engine.pause(&id).await.unwrap();
    inside.end().await;
}

#[tokio::test]
async fn nothing_that_is_not_there_is_paused() {
    let inside = persistent().await;
    let nobody = cabana_sandbox::SandboxId::random();
    assert_eq!(inside.engine.pause(&nobody).await.unwrap_err().code(), Code::SandboxNotFound);
    assert!(matches!(inside.engine.attach(&nobody).await.unwrap(), Found::Absent));
    inside.end().await;
}
