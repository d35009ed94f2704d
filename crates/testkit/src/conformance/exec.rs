//! Commands from their start to their end.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use cabana_sandbox::{Channel, Error, Event, ExecSpec, Kind, Status, Stdio, User, run, write_all};
use futures_util::{
    StreamExt,
    future::{try_join, try_join_all},
};
use tokio::io::AsyncWriteExt;

use super::{
    stage::{Stage, pattern},
    verdict::{Failure, Outcome, ensure, refused, same},
};

pub(super) async fn xb_01_argv_is_run_as_it_is(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let done = room.run(&stage, room.argv(&["printf", "%s|", "a b", "$HOME", "*", "", "`id`", "é"])).await?;
    same!((done.status, done.out.as_str(), done.err.as_str()), (Status::Code(0), "a b|$HOME|*||`id`|é|", ""));
    Ok(())
}

pub(super) async fn xb_01_a_shell_script_is_run_by_a_shell(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let done = room.sh(&stage, "x=two\nfor i in one $x; do echo $i; done | tr a-z A-Z").await?;
    same!((done.status, done.out.as_str()), (Status::Code(0), "ONE\nTWO\n"));
    Ok(())
}

pub(super) async fn the_exit_code_is_told(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for code in [0, 1, 7, 255] {
        same!(room.sh(&stage, &format!("exit {code}")).await?.status, Status::Code(code));
    }
    same!(room.run(&stage, room.argv(&["false"])).await?.status, Status::Code(1));
    Ok(())
}

pub(super) async fn a_deadly_signal_is_told(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for signal in [9, 15, 6] {
        let done = room.sh(&stage, &format!("echo before; kill -{signal} $$; sleep 1000")).await?;
        same!((done.status, done.out.as_str()), (Status::Signal(signal), "before\n"));
    }
    Ok(())
}

pub(super) async fn stdout_and_stderr_keep_their_channels(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let done = room.sh(&stage, "echo out; echo err >&2; echo out again").await?;
    same!((done.out.as_str(), done.err.as_str()), ("out\nout again\n", "err\n"));
    Ok(())
}

pub(super) async fn positions_have_no_gaps(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let spec = room.shell("for i in 1 2 3 4 5 6 7 8 9; do seq 1 500; seq 1 500 >&2; done");
    let mut running = room.start(&stage, spec).await?;
    loop {
        let end = running.end;
        match running.next().await? {
            Some(Event::Output(output)) => {
                same!(output.at, end, "each chunk begins where the last one ended");
                ensure!(!output.bytes.is_empty(), "an empty chunk says nothing");
            }
            Some(Event::Exit(exit)) => break same!(exit.status, Status::Code(0)),
            None => return Err(Failure::new("the events ended without an exit")),
        }
    }
    let one: u64 = (1..=500).map(|n: u32| n.to_string().len() as u64 + 1).sum();
    same!(running.end, 18 * one);
    Ok(())
}

pub(super) async fn env_is_data(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let values =
        ["$(touch pwned)", "`touch pwned`", "a'b\"c\\d", "two\nlines\n", "", "tab\t; touch pwned", "é✓", "$HOME", "="];
    for value in values {
        let env = BTreeMap::from([("VALUE".to_owned(), value.to_owned())]);
        let done = room.run(&stage, ExecSpec { env: env.clone(), ..room.shell("printf '%s|' \"$VALUE\"") }).await?;
        same!(done.out, format!("{value}|"));
        let done = room.run(&stage, ExecSpec { env, ..room.argv(&["printenv", "VALUE"]) }).await?;
        same!(done.out, format!("{value}\n"));
    }
    same!(room.names().await?.len(), 0, "no value was run");
    Ok(())
}

pub(super) async fn home_user_and_path_are_set(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let person = stage.subject().user();
    let done = room.run(&stage, room.argv(&["printenv", "HOME", "USER"])).await?;
    same!(done.out, format!("{}\n{}\n", person.home, person.name));
    let done = room.run(&stage, room.argv(&["printenv", "PATH"])).await?;
    ensure!(done.out.split(':').any(|dir| dir.trim() == "/usr/bin"), "PATH is {:?}", done.out);
    let env = BTreeMap::from([("HOME".to_owned(), "/elsewhere".to_owned())]);
    let done = room.run(&stage, ExecSpec { env, ..room.argv(&["printenv", "HOME"]) }).await?;
    same!(done.out, "/elsewhere\n", "what the caller says wins");
    Ok(())
}

pub(super) async fn the_working_directory_is_what_was_asked_for(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("with space").await?;
    let dir = room.path("with space")?;
    same!(room.run(&stage, ExecSpec::shell("pwd", dir.clone())).await?.out, format!("{dir}\n"));
    same!(room.run(&stage, ExecSpec::argv(["pwd"], dir.clone())).await?.out, format!("{dir}\n"));
    Ok(())
}

pub(super) async fn a_missing_working_directory_is_named(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    for name in ["missing", "file"] {
        let started = room.sandbox.exec(ExecSpec::shell("pwd", room.path(name)?)).await;
        refused!(started, Error::NoWorkdir(_));
    }
    Ok(())
}

pub(super) async fn a_missing_program_is_named(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("plain", "no program").await?;
    let (plain, dir) = (room.path("plain")?.to_string(), room.dir.to_string());
    for program in ["no-such-program", "/no/such/program", &plain, &dir] {
        match room.sandbox.exec(room.argv(&[program])).await {
            Err(Error::NoProgram { program: said, .. }) => same!(said, program),
            Err(other) => ensure!(false, "{program} must be NoProgram, and is {other:?}"),
            Ok(_) => ensure!(false, "{program} was started"),
        }
    }
    Ok(())
}

pub(super) async fn what_no_program_can_be_given_is_invalid(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let env = |name: &str, value: &str| ExecSpec {
        env: BTreeMap::from([(name.to_owned(), value.to_owned())]),
        ..room.shell("true")
    };
    let bad = [
        room.argv(&[]),
        room.argv(&[""]),
        room.argv(&["echo", "a\0b"]),
        room.shell("echo a\0b"),
        env("A=B", "x"),
        env("", "x"),
        env("A", "a\0b"),
        env("A\0", "x"),
        ExecSpec { timeout: Some(Duration::ZERO), ..room.shell("true") },
    ];
    for spec in bad {
        refused!(room.sandbox.exec(spec).await, Error::Invalid { .. });
    }
    Ok(())
}

pub(super) async fn an_unknown_user_of_a_command_is_named(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let spec = ExecSpec { user: Some(User::new("no-such-user")?), ..room.shell("touch ran") };
    refused!(room.sandbox.exec(spec).await, Error::UnknownUser(_));
    same!(room.names().await?.len(), 0);
    Ok(())
}

pub(super) async fn a_command_runs_as_the_user_who_was_named(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let person = stage.subject().user();
    let uid = person.uid.to_string();
    let asked = [
        (None, uid.as_str()),
        (Some(person.name.as_str()), &uid),
        (Some(&uid), &uid),
        (Some("root"), "0"),
        (Some("0"), "0"),
    ];
    for (user, wanted) in asked {
        let user = user.map(User::new).transpose()?;
        let done = room.run(&stage, ExecSpec { user: user.clone(), ..room.shell("id -u; id -ru") }).await?;
        same!(done.out, format!("{wanted}\n{wanted}\n"), "as {user:?}");
    }
    let root = ExecSpec { user: Some(User::root()), ..room.shell("touch of-root; printenv HOME USER") };
    same!(room.run(&stage, root).await?.out, "/root\nroot\n");
    same!(room.stat("of-root").await?.owner, "root");
    write_all(&*room.root(), &room.path("secret")?, "of root").await?;
    room.root().alter(cabana_sandbox::Alter::SetMode(room.path("secret")?, 0o600)).await?;
    ensure!(room.sh(&stage, "cat secret").await?.status != Status::Code(0), "the user read root's file");
    Ok(())
}

pub(super) async fn stdin_round_trips_and_ends(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let content = pattern(5 * 1024 * 1024);
    let spec = ExecSpec { stdio: Stdio::InputOutput, ..room.argv(&["cat"]) };
    let mut process = room.sandbox.exec(spec).await?;
    let Some(mut stdin) = process.stdin.take() else { return Err(Failure::new("InputOutput has a stdin")) };
    let writing = async {
        stdin.write_all(&content).await?;
        stdin.shutdown().await?;
        Ok::<_, Failure>(())
    };
    let reading = async {
        let mut back = Vec::new();
        while let Some(event) = process.events.next().await {
            match event? {
                Event::Output(output) => {
                    same!(output.channel, Channel::Stdout);
                    back.extend_from_slice(&output.bytes);
                }
                Event::Exit(exit) => return Ok((back, exit.status)),
            }
        }
        Err(Failure::new("the events ended without an exit"))
    };
    let ((), (back, status)) = stage.soon("all of it back", try_join(writing, reading)).await??;
    same!(status, Status::Code(0));
    ensure!(back == content, "other bytes came back: {} of {}", back.len(), content.len());
    Ok(())
}

pub(super) async fn stdin_is_closed_when_there_is_none(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let done = room.run(&stage, room.argv(&["cat"])).await?;
    same!((done.status, done.out.as_str()), (Status::Code(0), ""));
    Ok(())
}

pub(super) async fn a_slow_reader_loses_nothing(stage: Arc<Stage>) -> Outcome {
    const LAST: u32 = 7_000_000;
    let room = stage.room().await?;
    let mut process = room.sandbox.exec(room.argv(&["seq", "1", "7000000"])).await?;
    let mut check = Counting { next: 1, rest: Vec::new() };
    for chunk in 0.. {
        match stage.soon("the next chunk", process.events.next()).await?.transpose()? {
            Some(Event::Output(output)) => check.push(&output.bytes)?,
            Some(Event::Exit(exit)) => {
                same!(exit.status, Status::Code(0));
                break;
            }
            None => return Err(Failure::new("the events ended without an exit")),
        }
        if chunk % 100 == 0 {
            // A pause as long as another command takes: the pipe is full meanwhile.
            same!(room.sh(&stage, "echo in between").await?.out, "in between\n");
        }
    }
    same!(check.next, LAST + 1, "54 MB came, and not a line less");
    Ok(())
}

/// Reads the output of `seq` and knows which number comes next.
struct Counting {
    next: u32,
    rest: Vec<u8>,
}

impl Counting {
    fn push(&mut self, bytes: &[u8]) -> Outcome {
        for byte in bytes {
            if *byte != b'\n' {
                self.rest.push(*byte);
                continue;
            }
            let number = std::str::from_utf8(&self.rest).ok().and_then(|text| text.parse().ok());
            same!(number, Some(self.next));
            self.next += 1;
            self.rest.clear();
        }
        Ok(())
    }
}

pub(super) async fn output_is_kept_at_both_ends(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let outcome = run(&*room.sandbox, room.argv(&["seq", "1", "100000"]), 10).await?;
    same!(
        (outcome.stdout.head.as_slice(), outcome.stdout.tail.as_slice()),
        (&b"1\n2\n3\n4\n5\n"[..], &b"99\n100000\n"[..])
    );
    same!((outcome.stdout.total, outcome.stdout.whole()), (588_895, None));
    same!(outcome.stderr.whole(), Some(Vec::new()));
    Ok(())
}

pub(super) async fn fifty_commands_at_once(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let (stage, room) = (&stage, &room);
    let all = (0..50).map(|number| async move {
        let done = room.sh(stage, &format!("echo {number}; echo -{number} >&2; exit {number}")).await?;
        same!((done.status, done.out, done.err), (Status::Code(number), format!("{number}\n"), format!("-{number}\n")));
        Ok(())
    });
    try_join_all(all).await.map(drop)
}

pub(super) async fn what_a_command_writes_the_files_show(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let done = room
        .sh(&stage, "printf hello > file && chmod 640 file && ln -s file link && mkdir -p d/e && touch d/e/.f")
        .await?;
    same!((done.status, done.err.as_str()), (Status::Code(0), ""));
    let info = room.stat("file").await?;
    same!((info.kind, info.size, info.mode, info.owner), (Kind::File, 5, 0o640, stage.subject().user().name));
    same!(room.read("link").await?, "hello");
    same!(room.stat("link").await?.kind, Kind::Symlink);
    same!(room.stat("d/e/.f").await?.size, 0);
    same!(room.sh(&stage, "rm -r d file link").await?.status, Status::Code(0));
    same!(room.names().await?.len(), 0);
    Ok(())
}

pub(super) async fn what_the_files_write_a_command_reads(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", Bytes::from_static(b"written from outside")).await?;
    room.set_mode("file", 0o700).await?;
    room.link("link", "file").await?;
    let done = room.sh(&stage, "cat link; stat -c ' %U %a' file; readlink link; ls -A").await?;
    same!(done.out, format!("written from outside {} 700\nfile\nfile\nlink\n", stage.subject().user().name));
    room.write("file", "#!/bin/sh\necho I run\n").await?;
    same!(room.sh(&stage, "./file").await?.out, "I run\n", "a replace keeps it a program");
    Ok(())
}
