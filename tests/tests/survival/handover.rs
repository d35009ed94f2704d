//! One owner after the other, and what they find.

use cabana_sandbox::{
    ExecId, ExecSpec, Found, Provider, Reattached, SandboxId, SandboxPath, SandboxSpec, State, Status, Target, run,
};
use futures_util::TryStreamExt;
use tokio::io::AsyncWriteExt;

use crate::{
    owner::Owner,
    stage::{all_of, data, engine, found, running, says, until},
};

/// A sandbox that a process had which was killed since, and the command that runs in it.
fn left_behind(stdio: &str, script: &str) -> (SandboxId, ExecId) {
    let (id, exec) = (SandboxId::random(), ExecId::now());
    let mut owner = Owner::start(&data());
    owner.tell(&format!("create {id} persistent"));
    owner.exec(&id, exec, stdio, script);
    owner.kill();
    (id, exec)
}

#[tokio::test]
async fn commands_go_on_when_their_server_is_killed_and_nothing_of_what_they_say_is_lost() {
    let script =
        "for i in $(seq 1 400); do echo out $i; echo err $i >&2; [ $((i % 50)) -eq 0 ] && sleep 0.02; done; exit 7";
    let (id, exec) = left_behind("output", script);
    let engine = engine().await;
    let sandbox = found(&engine, &id).await;
    let said = all_of(&*sandbox, exec).await.unwrap();
    let lines = |word: &str| (1..=400).map(|i| format!("{word} {i}\n")).collect::<String>();
    assert_eq!(said.out(), lines("out"));
    assert_eq!(String::from_utf8_lossy(&said.err), lines("err"));
    assert_eq!(said.exit.unwrap().status, Status::Code(7));
    assert_eq!(said.gaps, 0);
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_command_that_ended_meanwhile_is_found_with_its_output_and_its_status() {
    let (id, exec) = left_behind("output", "sleep 0.3; echo late; touch /tmp/over; exit 3");
    // Nobody is there when it ends: that is seen from outside.
    let upper = data().join("sandboxes").join(id.as_str()).join("fs/upper0/tmp/over");
    until("it has ended without us", async || upper.exists()).await;
    let engine = engine().await;
    let sandbox = found(&engine, &id).await;
    let said = all_of(&*sandbox, exec).await.unwrap();
    assert_eq!((said.out().as_str(), said.exit.unwrap().status), ("late\n", Status::Code(3)));
    let again = sandbox.exec(ExecSpec { id: exec, ..ExecSpec::shell("true", SandboxPath::root()) }).await;
    assert_eq!(again.err().map(|error| error.code().as_str()), Some("duplicate_exec"), "no command runs twice");
    sandbox.forget(&exec).await.unwrap();
    assert!(all_of(&*sandbox, exec).await.is_none());
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_command_that_is_found_can_be_typed_to_and_ended() {
    let (id, exec) = left_behind("input", "while read line; do echo \"heard $line\"; done; echo over; exec sleep 1000");
    let engine = engine().await;
    let sandbox = found(&engine, &id).await;
    assert_eq!(sandbox.processes().await.unwrap().len(), 1);
    let mut process = running(&*sandbox, exec).await;
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"you\n").await.unwrap();
    says(&mut process, "heard you\n").await;
    stdin.shutdown().await.unwrap();
    says(&mut process, "over\n").await;
    process.control.signal(9, Target::Tree).await.unwrap();
    assert_eq!(all_of(&*sandbox, exec).await.unwrap().exit.unwrap().status, Status::Signal(9));
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_terminal_outlives_its_server_with_all_that_it_shows() {
    let script = "echo one; read a; echo \"got $a\"; read b; echo \"got $b\"; stty size";
    let (id, exec) = left_behind("terminal", script);
    let engine = engine().await;
    let sandbox = found(&engine, &id).await;
    let mut process = running(&*sandbox, exec).await;
    let mut stdin = process.stdin.take().unwrap();
    says(&mut process, "one").await;
    stdin.write_all(b"x\n").await.unwrap();
    says(&mut process, "got x").await;
    drop((stdin, process));
    engine.leave().await;

    let engine = crate::stage::engine().await;
    let sandbox = found(&engine, &id).await;
    let mut process = running(&*sandbox, exec).await;
    process.control.resize(cabana_sandbox::TermSize { cols: 99, rows: 33 }).await.unwrap();
    process.stdin.take().unwrap().write_all(b"y\n").await.unwrap();
    let said = all_of(&*sandbox, exec).await.unwrap();
    assert_eq!(said.out(), "one\r\nx\r\ngot x\r\ny\r\ngot y\r\n33 99\r\n");
    assert_eq!((said.exit.unwrap().status, said.gaps), (Status::Code(0), 0));
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_timeout_holds_while_nobody_is_there() {
    let id = SandboxId::random();
    let engine = engine().await;
    let sandbox = engine.create(&id, &SandboxSpec::new(cabana_sandbox::Base::Host)).await.unwrap();
    let mut spec = ExecSpec::shell("sleep 1000", SandboxPath::root());
    spec.timeout = Some(std::time::Duration::from_millis(300));
    let exec = spec.id;
    drop(sandbox.exec(spec).await.unwrap());
    engine.leave().await;
    let engine = crate::stage::engine().await;
    let sandbox = found(&engine, &id).await;
    assert_eq!(all_of(&*sandbox, exec).await.unwrap().exit.unwrap().status, Status::TimedOut);
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn who_leaves_takes_nothing_along_and_says_so_to_its_readers() {
    let (id, engine) = (SandboxId::random(), engine().await);
    let sandbox = engine.create(&id, &SandboxSpec::new(cabana_sandbox::Base::Host)).await.unwrap();
    let spec = ExecSpec::shell(
        "echo first; read x < /tmp/go || until [ -e /tmp/go ]; do sleep 0.01; done; echo last",
        SandboxPath::root(),
    );
    let exec = spec.id;
    let mut process = sandbox.exec(spec).await.unwrap();
    says(&mut process, "first\n").await;
    engine.leave().await;
    let told = futures_util::StreamExt::next(&mut process.events).await.unwrap();
    assert_eq!(told.unwrap_err().code().as_str(), "provider_offline");
    assert_eq!(sandbox.usage().await.unwrap_err().code().as_str(), "sandbox_gone");

    let engine = crate::stage::engine().await;
    let sandbox = found(&engine, &id).await;
    run(&*sandbox, ExecSpec::shell("touch /tmp/go", SandboxPath::root()), 100).await.unwrap();
    assert_eq!(all_of(&*sandbox, exec).await.unwrap().out(), "first\nlast\n");
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

/// Init waits for something of each command, and so does who moves their output on: more than the filter lets a guest wait for.
#[tokio::test]
async fn a_thousand_commands_are_heard_with_a_server_and_without_one() {
    const COMMANDS: usize = 1100;
    let (id, engine) = (SandboxId::random(), engine().await);
    let sandbox = engine.create(&id, &SandboxSpec::new(cabana_sandbox::Base::Host)).await.unwrap();
    run(&*sandbox, ExecSpec::shell("mkfifo /tmp/never", SandboxPath::root()), 100).await.unwrap();
    for _ in 0..COMMANDS {
        let waits = ExecSpec::argv(["cat", "/tmp/never"], SandboxPath::root());
        drop(sandbox.exec(waits).await.unwrap()); // it goes on
    }
    let said = run(&*sandbox, ExecSpec::shell("echo heard", SandboxPath::root()), 100).await.unwrap();
    assert_eq!(said.stdout.whole().unwrap(), b"heard\n");
    // More than a pipe holds, from when there is no server.
    let talks = ExecSpec::shell("sleep 1; seq 1 100000; touch /tmp/over", SandboxPath::root());
    let exec = talks.id;
    drop(sandbox.exec(talks).await.unwrap());
    engine.leave().await;
    let upper = data().join("sandboxes").join(id.as_str()).join("fs/upper0/tmp/over");
    until("all of it is taken", async || upper.exists()).await;

    let engine = crate::stage::engine().await;
    let sandbox = found(&engine, &id).await;
    assert!(all_of(&*sandbox, exec).await.unwrap().out().ends_with("99999\n100000\n"));
    let said = run(&*sandbox, ExecSpec::shell("pgrep -cx cat", SandboxPath::root()), 100).await.unwrap();
    assert_eq!(said.stdout.whole().unwrap(), format!("{COMMANDS}\n").into_bytes());
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_sandbox_has_one_owner_at_a_time() {
    let id = SandboxId::random();
    let mut owner = Owner::start(&data());
    owner.tell(&format!("create {id} persistent"));
    let engine = engine().await;
    let in_use = |error: cabana_sandbox::Error| assert_eq!(error.code().as_str(), "sandbox_in_use", "{error}");
    in_use(engine.attach(&id).await.err().unwrap());
    in_use(engine.start(&id).await.err().unwrap());
    in_use(engine.stop(&id).await.unwrap_err());
    in_use(engine.pause(&id).await.unwrap_err());
    in_use(engine.destroy(&id).await.unwrap_err());
    in_use(engine.create(&id, &SandboxSpec::new(cabana_sandbox::Base::Host)).await.err().unwrap());
    let listed: Vec<_> = engine.list().await.unwrap().try_collect().await.unwrap();
    assert!(listed.contains(&(id.clone(), State::Running)), "it is seen, though");

    owner.tell(&format!("stop {id}"));
    assert!(matches!(engine.attach(&id).await.unwrap(), Found::Stopped), "a stopped one is nobody's");
    engine.start(&id).await.unwrap();
    assert_eq!(
        owner.ask(&format!("start {id}")).unwrap(),
        format!("failed: sandbox {id} is in the hands of another process")
    );
    assert_eq!(
        owner.ask(&format!("destroy {id}")).unwrap(),
        format!("failed: sandbox {id} is in the hands of another process")
    );
    engine.destroy(&id).await.unwrap();
    assert_eq!(owner.ask(&format!("attach {id}")).unwrap(), "absent");
    owner.kill();
    engine.close().await;
}

#[tokio::test]
async fn a_paused_sandbox_is_found_paused_and_goes_on() {
    let (id, exec) = (SandboxId::random(), ExecId::now());
    let mut owner = Owner::start(&data());
    owner.tell(&format!("create {id} persistent"));
    owner.exec(&id, exec, "output", "i=0; while [ ! -e /tmp/go ]; do i=$((i+1)); done; echo over");
    owner.tell(&format!("pause {id}"));
    owner.kill();
    let engine = engine().await;
    let listed: Vec<_> = engine.list().await.unwrap().try_collect().await.unwrap();
    assert!(listed.contains(&(id.clone(), State::Paused)));
    assert!(matches!(engine.attach(&id).await.unwrap(), Found::Paused(_)));
    let sandbox = engine.start(&id).await.unwrap();
    run(&*sandbox, ExecSpec::shell("touch /tmp/go", SandboxPath::root()), 100).await.unwrap();
    assert_eq!(all_of(&*sandbox, exec).await.unwrap().out(), "over\n");
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn limits_are_in_force_for_who_comes_next() {
    let (id, exec) = (SandboxId::random(), ExecId::now());
    let mut owner = Owner::start(&data());
    owner.tell(&format!("create {id} persistent"));
    owner.exec(&id, exec, "output", "exec sleep 1000");
    owner.tell(&format!("limit {id} 20"));
    owner.kill();
    let engine = engine().await;
    let sandbox = found(&engine, &id).await;
    let outcome = run(
        &*sandbox,
        ExecSpec::shell("for i in $(seq 50); do sleep 1000 & done 2>/dev/null; exit 5", SandboxPath::root()),
        100_000,
    );
    assert_ne!(outcome.await.unwrap().exit.status, Status::Code(5), "50 processes fit into 20");
    assert!(sandbox.usage().await.unwrap().pids <= 20);
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_daemon_left_by_a_command_writes_on_without_being_killed() {
    let script = "(while [ ! -e /tmp/go ]; do echo noise; sleep 0.001; done; touch /tmp/lived) & echo said; exit 0";
    let (id, exec) = left_behind("output", script);
    let engine = engine().await;
    let sandbox = found(&engine, &id).await;
    let said = all_of(&*sandbox, exec).await.unwrap();
    assert_eq!(said.exit.unwrap().status, Status::Code(0));
    let again = all_of(&*sandbox, exec).await.unwrap();
    assert_eq!(again.out(), said.out(), "what comes after the exit is nobody's");
    run(
        &*sandbox,
        ExecSpec::shell("touch /tmp/go; until [ -e /tmp/lived ]; do sleep 0.01; done", SandboxPath::root()),
        100,
    )
    .await
    .unwrap();
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn more_than_is_kept_shows_as_a_gap_and_the_command_is_not_held_up() {
    let (id, exec) = left_behind("output", "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end");
    let engine = engine().await;
    let sandbox = found(&engine, &id).await;
    let said = all_of(&*sandbox, exec).await.unwrap();
    assert!(said.out().ends_with("x\nend\n"));
    assert_eq!(said.gaps + said.out.len() as u64, 3_000_005);
    assert!(said.out.len() >= 1 << 20, "{} of it are kept", said.out.len());
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_sandbox_whose_init_ends_without_an_owner_is_stopped_and_keeps_its_files() {
    let (id, exec) = left_behind("output", "echo kept > /tmp/file; sync; exec sleep 1000");
    let home = data().join("sandboxes").join(id.as_str());
    until("the file is there", async || home.join("fs/upper0/tmp/file").exists()).await;
    let note: serde_json::Value = serde_json::from_slice(&std::fs::read(home.join("live.json")).unwrap()).unwrap();
    let init = rustix::process::Pid::from_raw(note["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    let engine = engine().await;
    until("it has ended", async || matches!(engine.attach(&id).await, Ok(Found::Stopped))).await;
    let sandbox = engine.start(&id).await.unwrap();
    let outcome = run(&*sandbox, ExecSpec::shell("cat /tmp/file", SandboxPath::root()), 100).await.unwrap();
    assert_eq!(outcome.stdout.whole().unwrap(), b"kept\n");
    assert!(matches!(sandbox.reattach(&exec, 0).await.unwrap(), Reattached::Missing), "nobody knows what became of it");
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

/// As a newer binary does that does not speak the old one's protocol, and as for an init that does not know us.
#[tokio::test]
async fn an_init_that_cannot_be_talked_to_is_ended_and_the_files_are_kept() {
    for same_protocol in [false, true] {
        let (id, _) = left_behind("output", "echo kept > /tmp/file; sync; exec sleep 1000");
        let home = data().join("sandboxes").join(id.as_str());
        until("the file is there", async || home.join("fs/upper0/tmp/file").exists()).await;
        if same_protocol {
            let note = home.join("live.json");
            let mut text: serde_json::Value = serde_json::from_slice(&std::fs::read(&note).unwrap()).unwrap();
            text["token"] = "00000000-0000-4000-8000-000000000000".into();
            std::fs::write(&note, serde_json::to_vec(&text).unwrap()).unwrap();
        }
        let other = if same_protocol { "1" } else { "4000000000" };
        let mut newer = Owner::start_with(&data(), &[("CABANA_FAULT_PROTOCOL", other)]);
        assert_eq!(newer.ask(&format!("attach {id}")).unwrap(), "stopped");
        newer.tell(&format!("start {id}"));
        newer.kill();
        let engine = engine().await;
        let sandbox = found(&engine, &id).await;
        let look = "cat /tmp/file; ps ax | grep -c '[s]leep 1000'";
        let outcome = run(&*sandbox, ExecSpec::shell(look, SandboxPath::root()), 100).await.unwrap();
        assert_eq!(outcome.stdout.whole().unwrap(), b"kept\n0\n");
        engine.destroy(&id).await.unwrap();
        engine.close().await;
    }
}

#[tokio::test]
async fn an_ephemeral_sandbox_ends_with_its_owner() {
    let (id, exec) = (SandboxId::random(), ExecId::now());
    let mut owner = Owner::start(&data());
    owner.tell(&format!("create {id} ephemeral"));
    let marker = format!("1000.{}", exec.as_u128() % 1_000_000_000);
    owner.exec(&id, exec, "output", &format!("exec sleep {marker}"));
    let alive = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
            .any(|line| line.split(|byte| *byte == 0).any(|word| word == marker.as_bytes()))
    };
    until("it runs", async || alive()).await;
    owner.kill();
    until("it is gone", async || !alive()).await;
    let engine = engine().await;
    assert!(matches!(engine.attach(&id).await.unwrap(), Found::Absent));
    engine.close().await;
}
