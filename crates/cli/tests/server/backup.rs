//! A backup that is taken while others work, and a server on what is made of it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    retention::{cabana, ledger_is_whole},
    root,
    stage::{Server, good, until},
    verdict::output,
};

fn restore(file: &Path, data: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
    command.env_remove("CABANA_DATA").arg("restore").arg(file).arg("--data").arg(data).output().unwrap()
}

fn told(ended: &Output) -> String {
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

async fn stop(server: &Server, scope: &str) {
    let id = server.ensure(scope).await["id"].as_str().unwrap().to_owned();
    good(server.post(&format!("/v1/sandboxes/{id}/stop"), &json!({})).send().await.unwrap()).await;
}

/// Template, snapshot, fork, sandboxes that run and that are stopped, outputs and tasks.
async fn furnish(server: &Server) -> (String, String, String) {
    let (dir, tar) = (server.data().join("root"), server.data().join("root.tar"));
    root::make(&dir);
    root::tar(&dir, &tar);
    let made = server.request(Method::POST, "/v1/templates?name=mine&workdir=/srv/work").body(fs::read(&tar).unwrap());
    good(made.send().await.unwrap()).await;
    server.stdout("stopped", "echo of stopped > note; ln -s note link; mkdir -p deep/er; chmod 751 deep").await;
    stop(server, "stopped").await;
    server.stdout("running", "echo of running > note").await;
    let running = server.ensure("running").await["id"].as_str().unwrap().to_owned();
    let snapshot =
        good(server.request(Method::POST, &format!("/v1/sandboxes/{running}/snapshots")).send().await.unwrap());
    let snapshot = snapshot.await["id"].as_str().unwrap().to_owned();
    let fork = json!({ "scope": { "scheme": "fixed", "name": "fork" }, "spec": { "snapshot": snapshot }, "command": "echo of fork >> note" });
    good(server.post("/v1/exec", &fork).send().await.unwrap()).await;
    let based = json!({ "scope": { "scheme": "fixed", "name": "based" }, "spec": { "template": "mine" }, "command": "echo of based > note" });
    good(server.post("/v1/exec", &based).send().await.unwrap()).await;
    let packed = json!({ "scope": { "scheme": "fixed", "name": "packed" }, "spec": { "template": "mine" }, "command": "echo of packed > note" });
    good(server.post("/v1/exec", &packed).send().await.unwrap()).await;
    let packed = server.ensure("packed").await["id"].as_str().unwrap().to_owned();
    good(server.request(Method::POST, &format!("/v1/sandboxes/{packed}/archive")).send().await.unwrap()).await;
    let call = server.exec("running", "seq 1 20000").await["call_id"].as_str().unwrap().to_owned();
    let task = server.begin("running", "echo begun; sleep 600").await;
    (snapshot, call, task)
}

#[tokio::test]
async fn a_backup_under_load_becomes_a_server_that_serves() {
    let server = Server::start();
    let (snapshot, call, task) = furnish(&server).await;
    let file = server.data().join("whole.backup");
    let done = AtomicBool::new(false);
    // Others go on meanwhile.
    let load = async {
        let mut count = 0;
        while !done.load(Ordering::Relaxed) {
            server.stdout("running", &format!("echo {count} >> log; seq 1 5000 > /dev/null")).await;
            count += 1;
        }
        count
    };
    let taken = async {
        until(|| async { (server.exec("running", "test -s log").await["exit_code"] == 0).then_some(()) }).await;
        let bytes = server.request(Method::GET, "/v1/backup").send().await.unwrap().bytes().await.unwrap();
        done.store(true, Ordering::Relaxed);
        fs::write(&file, &bytes).unwrap();
    };
    let (count, ()) = tokio::join!(load, taken);
    assert!(count > 0);
    // What others put beside it is not written through.
    let (other, again) = (server.data().join("other"), server.data().join("again.backup"));
    fs::write(&other, "of others").unwrap();
    std::os::unix::fs::symlink(&other, server.data().join("again.backup.part")).unwrap();
    let ended = cabana(&server, &["backup", again.to_str().unwrap()]);
    assert!(ended.status.success(), "{}", told(&ended));
    assert!(again.symlink_metadata().unwrap().is_file() && fs::read(&other).unwrap() == b"of others");
    let drafts = fs::read_dir(server.data()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name().into_string().unwrap();
        name.starts_with("again.backup.") && name != "again.backup.part"
    });
    assert_eq!(drafts.count(), 0);

    let mut second = Server::start_after(|data| {
        let ended = restore(&file, data);
        assert!(ended.status.success(), "{}", told(&ended));
        assert!(!told(&ended).contains("warning"), "{}", told(&ended));
    });
    assert_eq!(second.key, server.key);
    ledger_is_whole(&second);
    let listed = second.get("/v1/sandboxes").await;
    let listed = listed["sandboxes"].as_array().unwrap();
    let states = |state: &str| listed.iter().filter(|sandbox| sandbox["state"] == state).count();
    assert_eq!((listed.len(), states("stopped"), states("archived")), (5, 4, 1), "{listed:?}");
    assert_eq!(second.get(&format!("/v1/tasks/{task}")).await["state"], "unknown");
    let whole: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(output(&second, &format!("/v1/calls/{call}/output")).await, whole);
    let stopped = second.stdout("stopped", "cat link; stat -c %a deep; ls deep").await;
    assert_eq!(stopped, "of stopped\n751\ner\n");
    assert_eq!(second.stdout("running", "cat note").await, "of running\n");
    assert_eq!(second.stdout("fork", "cat note").await, "of running\nof fork\n");
    assert_eq!(second.stdout("based", "cat note; pwd").await, "of based\n/srv/work\n");
    assert_eq!(second.stdout("packed", "cat note; pwd").await, "of packed\n/srv/work\n");
    // What was there when it began is there, without a hole.
    let log = second.stdout("running", "cat log").await;
    let lines: Vec<usize> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert!(!lines.is_empty() && lines.iter().copied().eq(0..lines.len()), "{lines:?}");
    // And goes on: forks, templates, a restart.
    let fork = json!({ "scope": { "scheme": "fixed", "name": "new" }, "spec": { "snapshot": snapshot }, "command": "cat note" });
    assert_eq!(good(second.post("/v1/exec", &fork).send().await.unwrap()).await["stdout"], "of running\n");
    let based = json!({ "spec": { "template": "mine" }, "command": "pwd" });
    assert_eq!(good(second.post("/v1/exec", &based).send().await.unwrap()).await["stdout"], "/srv/work\n");
    second.kill();
    second.run();
    assert_eq!(second.stdout("fork", "cat note").await, "of running\nof fork\n");
    ledger_is_whole(&second);
    // The first one knows nothing of it.
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
    let rows: Vec<Value> = server.get("/v1/ledger?limit=1000").await["rows"].as_array().unwrap().clone();
    assert_eq!(rows.iter().filter(|row| row["verb"] == "backup").count(), 2);
}

#[tokio::test]
async fn what_is_no_whole_backup_makes_nothing() {
    let server = Server::start();
    server.stdout("one", "echo text > note").await;
    let good = server.request(Method::GET, "/v1/backup").send().await.unwrap().bytes().await.unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (file, data) = (dir.path().join("file"), dir.path().join("data"));
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("empty".into(), Vec::new()),
        ("something else".into(), b"PK\x03\x04 and so on, for long enough".to_vec()),
        ("of another version".into(), b"cabana backup 2\nand so on".to_vec()),
        ("longer".into(), [&good[..], b"x"].concat()),
    ];
    for part in 1..8 {
        let at = good.len() * part / 8;
        cases.push((format!("cut at {at}"), good[..at].to_vec()));
        let mut changed = good.to_vec();
        changed[at] ^= 0x10;
        cases.push((format!("changed at {at}"), changed));
    }
    cases.push(("without its end".into(), good[..good.len() - 40].to_vec()));
    for (what, bytes) in cases {
        fs::write(&file, bytes).unwrap();
        let ended = restore(&file, &data);
        let told = told(&ended);
        assert_eq!(ended.status.code(), Some(1), "{what}: {told}");
        assert!(told.contains("code: archive_invalid"), "{what}: {told}");
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "{what}");
    }
    // Nothing that is there is touched.
    fs::write(&file, &good).unwrap();
    fs::write(data.join("mine"), "").unwrap();
    let ended = restore(&file, &data);
    assert!(told(&ended).contains("code: data_dir_not_ours"), "{}", told(&ended));
    assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
    fs::remove_file(data.join("mine")).unwrap();
    let ended = restore(&file, &data);
    assert!(ended.status.success(), "{}", told(&ended));
    assert!(data.join("version").is_file() && !data.join("restoring").exists());
    let ended = restore(&file, &data);
    assert!(told(&ended).contains("code: data_dir_not_ours"), "not over another one: {}", told(&ended));
}

#[tokio::test]
async fn a_restore_that_is_killed_leaves_what_no_server_takes_for_its_own() {
    let server = Server::start();
    server.stdout("one", "echo text > note").await;
    let good = server.request(Method::GET, "/v1/backup").send().await.unwrap().bytes().await.unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data = dir.path().join("data");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
    command.env_remove("CABANA_DATA").args(["restore", "-", "--data"]).arg(&data);
    let mut child = command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, &good[..good.len() - 100]).unwrap();
    // It has the first parts, and waits for the last.
    until(|| async { data.join("restoring/db/cabana.db").is_file().then_some(()) }).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!data.join("version").exists());
    let serve = Command::new(env!("CARGO_BIN_EXE_cabana"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(told(&serve).contains("code: data_dir_not_ours"), "{}", told(&serve));
    let file = dir.path().join("file");
    fs::write(&file, &good).unwrap();
    assert!(told(&restore(&file, &data)).contains("code: data_dir_not_ours"), "it says that it is not empty");
}
