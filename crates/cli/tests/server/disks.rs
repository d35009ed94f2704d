//! Disks that are full or take nothing, and a database that somebody else holds: errors while it lasts, and all is right after.
//!
//! Each disk is one of the test's own, in a mount namespace of its own.

use std::{
    ffi::CStr,
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use reqwest::{Method, Response};
use rustix::{
    mount::{MountFlags, mount, mount_remount},
    process::{Signal, kill_process},
};
use serde_json::{Value, json};

use crate::{
    stage::{self, Server, client, good, until},
    verdict::output,
};

/// Where it can mount what it likes. False: that is done.
fn alone(test: &str) -> bool {
    stage::alone(&format!("disks::{test}"))
}

fn small_disk(at: &Path) {
    std::fs::create_dir_all(at).unwrap();
    disk(at, c"size=8m");
}

fn disk(at: &Path, size: &CStr) {
    mount("small", at, "tmpfs", MountFlags::empty(), size).unwrap();
}

/// As much as there is room for.
fn fill(disk: &Path) -> PathBuf {
    let filler = disk.join("filler");
    let mut file = std::fs::File::options().append(true).create(true).open(&filler).unwrap();
    for piece in [1 << 20, 4096] {
        while file.write_all(&vec![0; piece]).is_ok() {}
    }
    filler
}

/// The code of an answer that says no for now.
async fn told_to_come_back(response: Response) -> (u16, String) {
    let (status, later) = (response.status().as_u16(), response.headers().contains_key("retry-after"));
    let error = response.json::<Value>().await.unwrap()["error"].clone();
    assert!(later && error["retryable"] == true, "{status} {error}");
    (status, error["code"].as_str().unwrap().to_owned())
}

fn away() -> (u16, String) {
    (503, "store_unavailable".into())
}

async fn exec(server: &Server, command: &str, key: &str) -> Response {
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": command });
    server.post("/v1/exec", &body).header("Idempotency-Key", key).send().await.unwrap()
}

async fn head(server: &Server) -> Value {
    server.get("/v1/ledger/head").await["head"].clone()
}

/// All that was acknowledged is there, also for the next server, and nothing is open.
async fn all_is_right(server: &mut Server, first: &Value) {
    assert_eq!(good(exec(server, "date +%N", "first").await).await, *first);
    until(|| async {
        let calls = server.get("/v1/calls?limit=1000").await;
        calls["calls"].as_array().unwrap().iter().all(|call| call["state"] != "running").then_some(())
    })
    .await;
    let before = head(server).await;
    server.kill();
    server.run();
    assert_eq!(head(server).await, before);
    assert_eq!(good(exec(server, "date +%N", "first").await).await, *first);
}

#[tokio::test]
async fn a_full_disk_of_the_database() {
    if !alone("a_full_disk_of_the_database") {
        return;
    }
    let mut server = Server::start_after(|data| small_disk(&data.join("db")));
    let first = good(exec(&server, "date +%N", "first").await).await;
    let db = server.data().join("db");
    // Of what is kept for a full disk nothing is left any more.
    std::fs::remove_file(db.join("reserve")).unwrap();
    let tries = AtomicU32::new(0);
    let refused = until(|| async {
        fill(&db);
        let key = tries.fetch_add(1, Ordering::Relaxed).to_string();
        let answer = exec(&server, &format!("echo {key} >> log"), &key).await;
        if answer.status().is_success() {
            return None;
        }
        assert_eq!(told_to_come_back(answer).await, away());
        Some(key)
    });
    let refused = refused.await;
    assert!(server.get("/v1/sandboxes").await["sandboxes"].is_array(), "what only looks is answered");
    let ready = || async { server.request(Method::GET, "/readyz").send().await.unwrap() };
    assert_eq!(told_to_come_back(ready().await).await, away());
    std::fs::remove_file(db.join("filler")).unwrap();
    until(|| async { ready().await.status().is_success().then_some(()) }).await;
    // The very same request, and it is run once.
    let again = || exec(&server, "echo LAST >> log", "last");
    until(|| async { again().await.status().is_success().then_some(()) }).await;
    // Whoever waits for the first of it hears that the store is away, until that has tried again.
    let command = format!("echo {refused} >> log");
    let again = || exec(&server, &command, &refused);
    until(|| async { again().await.status().is_success().then_some(()) }).await;
    assert_eq!(server.stdout("one", "grep -v LAST log | sort | uniq -d").await, "", "nothing ran twice");
    assert_eq!(server.stdout("one", &format!("grep -cx {refused} log")).await, "1\n");
    all_is_right(&mut server, &first).await;
}

#[tokio::test]
async fn a_full_or_read_only_disk_of_the_outputs() {
    if !alone("a_full_or_read_only_disk_of_the_outputs") {
        return;
    }
    let mut server = Server::start_after(|data| small_disk(&data.join("outputs")));
    let first = good(exec(&server, "date +%N", "first").await).await;
    let outputs = server.data().join("outputs");
    for n in 0..2 {
        if n == 0 {
            fill(&outputs);
        } else {
            mount_remount(&outputs, MountFlags::RDONLY, "").unwrap();
        }
        // What is small needs no file.
        assert_eq!(server.stdout("one", "echo small").await, "small\n");
        let (long, key) = ("echo run >> log; seq 1 20000", format!("long{n}"));
        let task = server.begin("one", long).await;
        for _ in 0..2 {
            assert_eq!(told_to_come_back(exec(&server, long, &key).await).await, away());
        }
        assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
        if n == 0 {
            std::fs::remove_file(outputs.join("filler")).unwrap();
        } else {
            mount_remount(&outputs, MountFlags::empty(), "").unwrap();
        }
        assert_eq!(server.ended(&task).await["state"], "succeeded");
        let again =
            until(|| async { Some(exec(&server, long, &key).await).filter(|answer| answer.status().is_success()) });
        let call = good(again.await).await["call_id"].as_str().unwrap().to_owned();
        let whole: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
        for path in [format!("/v1/calls/{call}/output"), format!("/v1/tasks/{task}/output")] {
            assert_eq!(output(&server, &path).await, whole);
        }
    }
    assert_eq!(server.stdout("one", "wc -l < log").await, "4\n", "each ran once");
    all_is_right(&mut server, &first).await;
}

#[tokio::test]
async fn a_disk_that_an_upload_fills() {
    if !alone("a_disk_that_an_upload_fills") {
        return;
    }
    let mut server = Server::start_after(|data| disk(data, c"size=256m"));
    let first = good(exec(&server, "date +%N", "first").await).await;
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let put = async |name: &str, bytes: usize| {
        let request = server.request(Method::PUT, &format!("/v1/sandboxes/{sandbox}/files?path={name}"));
        request.body(vec![7; bytes]).send().await.unwrap()
    };
    good(put("kept", 1 << 20).await).await;
    let filler = fill(server.data());
    let filled = std::fs::metadata(&filler).unwrap().len();
    std::fs::File::options().write(true).open(&filler).unwrap().set_len(filled - (8 << 20)).unwrap();
    for bytes in [20 << 20, 9 << 20] {
        assert_eq!(told_to_come_back(put("kept", bytes).await).await, (507, "no_space".into()));
    }
    assert_eq!(server.stdout("one", "ls; wc -c < kept").await, "kept\n1048576\n", "nothing is half written");
    good(put("other", 1 << 20).await).await;
    std::fs::remove_file(&filler).unwrap();
    good(put("kept", 20 << 20).await).await;
    assert_eq!(server.stdout("one", "wc -c < kept; wc -c < other").await, "20971520\n1048576\n");
    all_is_right(&mut server, &first).await;
}

/// What nobody may make where little is left, and what goes on.
#[tokio::test]
async fn a_disk_that_is_nearly_full_takes_nothing_new() {
    if !alone("a_disk_that_is_nearly_full_takes_nothing_new") {
        return;
    }
    let mut server = Server::start_after(|data| disk(data, c"size=256m"));
    let first = good(exec(&server, "date +%N", "first").await).await;
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    server.stdout("two", "echo text > note").await;
    let two = server.ensure("two").await["id"].as_str().unwrap().to_owned();
    good(server.post(&format!("/v1/sandboxes/{two}/stop"), &json!({})).send().await.unwrap()).await;
    let key = server.key_for("us", "use").await;
    good(server.post("/v1/volumes", &json!({ "name": "v" })).send().await.unwrap()).await;
    let filler = fill(server.data());
    let filled = std::fs::metadata(&filler).unwrap().len();
    // A fiftieth of the disk is more than this.
    std::fs::File::options().write(true).open(&filler).unwrap().set_len(filled - (3 << 20)).unwrap();
    let full = || (507, "no_space".to_owned());
    let ensure = json!({ "scope": { "scheme": "fixed", "name": "three" } });
    let metrics = async || server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    until(|| async { metrics().await.contains("\ncabana_disk_low 1\n").then_some(()) }).await;
    let new = server.post("/v1/sandboxes:ensure", &ensure).send().await.unwrap();
    assert_eq!(told_to_come_back(new).await, full());
    let put = server.request(Method::PUT, &format!("/v1/sandboxes/{sandbox}/files?path=new")).body("text");
    assert_eq!(told_to_come_back(put.send().await.unwrap()).await, full());
    let take = server.request(Method::POST, &format!("/v1/sandboxes/{sandbox}/snapshots"));
    assert_eq!(told_to_come_back(take.send().await.unwrap()).await, full());
    let add = server.request(Method::POST, "/v1/templates?name=new").body("text");
    assert_eq!(told_to_come_back(add.send().await.unwrap()).await, full());
    let once = server.post("/v1/exec", &json!({ "command": "true" }));
    assert_eq!(told_to_come_back(once.send().await.unwrap()).await, full());
    // Volumes that were made ahead are not filled one after the other.
    let at = format!("/v1/sandboxes/{sandbox}");
    let mount = async |mode: &str| {
        let mounts = json!({ "extra_mounts": [{ "volume": "v", "mount_path": "/v", "mode": mode }] });
        server.request(Method::PATCH, &at).json(&mounts).send().await.unwrap()
    };
    assert_eq!(told_to_come_back(mount("rw").await).await, full());
    good(mount("ro").await).await;
    let told = server.post("/v1/sandboxes", &json!({})).send().await.unwrap().json::<Value>().await.unwrap();
    assert!(told["error"]["message"].as_str().unwrap().contains("are kept free"), "{told}");
    // What all of them take together is nothing that one tenant learns.
    let ours = client().post(format!("{}/v1/sandboxes", server.url)).bearer_auth(key).json(&json!({}));
    let told = ours.send().await.unwrap().json::<Value>().await.unwrap();
    let message = told["error"]["message"].as_str().unwrap();
    assert!(message.contains("nearly full") && !message.contains(char::is_numeric), "{message}");
    // What is only read then is summed up: it takes nothing of what is left.
    let before = head(&server).await;
    for _ in 0..20 {
        server.get(&format!("/v1/sandboxes/{sandbox}/files/stat?path=/etc")).await;
    }
    assert_eq!(head(&server).await, before);
    // What is there goes on, wakes up, and can be deleted.
    assert_eq!(server.stdout("one", "ls").await, "");
    assert_eq!(server.stdout("two", "cat note; rm note").await, "text\n");
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"].as_array().unwrap().len(), 2, "nothing was half made");
    let gone = server.request(Method::DELETE, &format!("/v1/sandboxes/{two}")).send().await.unwrap();
    assert!(gone.status().is_success());
    good(server.post("/v1/gc", &json!({ "dry_run": true })).send().await.unwrap()).await;
    std::fs::remove_file(&filler).unwrap();
    until(|| async {
        let answer = server.post("/v1/sandboxes:ensure", &ensure).send().await.unwrap();
        answer.status().is_success().then_some(())
    })
    .await;
    good(mount("rw").await).await;
    all_is_right(&mut server, &first).await;
}

#[tokio::test]
async fn on_a_full_disk_what_frees_room_is_done_and_recorded() {
    if !alone("on_a_full_disk_what_frees_room_is_done_and_recorded") {
        return;
    }
    let mut server = Server::start_after(|data| disk(data, c"size=256m"));
    let first = good(exec(&server, "date +%N", "first").await).await;
    server.stdout("two", "head -c 60000000 /dev/zero > large").await;
    let two = server.record("two").await["id"].as_str().unwrap().to_owned();
    let key = server.key_for("us", "use").await;
    let tries = AtomicU32::new(0);
    // Calls are recorded with what is kept for that, and then are no more.
    let refused = until(|| async {
        fill(server.data());
        let answer = exec(&server, "true", &tries.fetch_add(1, Ordering::Relaxed).to_string()).await;
        (!answer.status().is_success()).then_some(answer)
    });
    assert_eq!(told_to_come_back(refused.await).await, (507, "no_space".into()));
    // Nor does a tenant use up what is kept with removals of what is not there.
    let removals = (0..40).map(|_| {
        let request = client().delete(format!("{}/v1/volumes/none", server.url)).bearer_auth(&key);
        async move { request.send().await.unwrap().status().as_u16() }
    });
    let answers = futures_util::future::join_all(removals).await;
    assert!(answers.contains(&404) && answers.contains(&429), "{answers:?}");
    let ready = server.request(Method::GET, "/readyz").send().await.unwrap();
    assert!(ready.status().is_success(), "{ready:?}");
    good(server.post("/v1/gc", &json!({ "dry_run": false })).send().await.unwrap()).await;
    good(server.request(Method::DELETE, &format!("/v1/sandboxes/{two}")).send().await.unwrap()).await;
    until(|| async { exec(&server, "true", "again").await.status().is_success().then_some(()) }).await;
    // A thirty-second of the disk is kept again.
    let reserve = server.data().join("db/reserve");
    until(|| async { (std::fs::metadata(&reserve).unwrap().len() == 8 << 20).then_some(()) }).await;
    all_is_right(&mut server, &first).await;
}

#[tokio::test]
async fn a_server_starts_on_a_full_disk() {
    if !alone("a_server_starts_on_a_full_disk") {
        return;
    }
    let mut server = Server::start_after(|data| {
        let script = "truncate -s 512M \"$0.disk\"; mkfs.ext4 -q -F -m 0 \"$0.disk\"; mount -o loop \"$0.disk\" \"$0\"; rm \"$0.disk\"";
        let mounted = Command::new("sh").args(["-ec", script]).arg(data).status().unwrap();
        assert!(mounted.success());
    });
    let first = good(exec(&server, "date +%N", "first").await).await;
    server.stdout("two", "head -c 60000000 /dev/zero > large").await;
    let two = server.record("two").await["id"].as_str().unwrap().to_owned();
    let task = server.begin("one", "until [ -e go ]; do sleep 0.05; done").await;
    server.kill();
    fill(server.data());
    server.run();
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
    good(server.request(Method::DELETE, &format!("/v1/sandboxes/{two}")).send().await.unwrap()).await;
    until(|| async { exec(&server, "touch go", "go").await.status().is_success().then_some(()) }).await;
    assert_eq!(server.ended(&task).await["state"], "succeeded");
    all_is_right(&mut server, &first).await;
    drop(server); // before its disk
}

fn free_inodes(disk: &Path) -> u64 {
    rustix::fs::statvfs(disk).unwrap().f_favail
}

/// A guest that makes a name of each inode that becomes free, through a volume: no limit of its sandbox counts those.
#[tokio::test]
async fn a_guest_that_takes_all_inodes_keeps_no_server_from_starting_and_deleting() {
    if !alone("a_guest_that_takes_all_inodes_keeps_no_server_from_starting_and_deleting") {
        return;
    }
    // Where nothing is kept free, nobody is kept from taking all.
    let flags = ["--retention-min-free", "none"];
    let mut server = Server::prepared(&flags, |data| disk(data, c"size=256m,nr_inodes=10000"));
    let first = good(exec(&server, "date +%N", "first").await).await;
    good(server.post("/v1/volumes", &json!({ "name": "names" })).send().await.unwrap()).await;
    let command = "cd /workspace; exec 2>/dev/null; n=0; while :; do n=$((n + 1)); true > $n; done";
    let spec = json!({ "mount": { "volume": "names" } });
    let scope = json!({ "scheme": "fixed", "name": "taker" });
    let body = json!({ "scope": scope, "spec": spec, "command": command, "background": true });
    let task = good(server.post("/v1/exec", &body).send().await.unwrap()).await["id"].as_str().unwrap().to_owned();
    until(|| async { (free_inodes(server.data()) == 0).then_some(()) }).await;
    // Each name counts as a block: else a quota of bytes would hold none of them.
    let volume = std::fs::read_dir(server.data().join("volumes")).unwrap().next().unwrap().unwrap().path();
    let names = std::fs::read_dir(volume.join("tree")).unwrap().count() as u64;
    assert!(names > 0 && server.get("/v1/volumes/names").await["bytes"].as_u64().unwrap() >= names * 4096);
    for end in [Server::kill, Server::stop] {
        end(&mut server);
        server.run();
        assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
    }
    // One that keeps some free says what is short.
    server.stop();
    server.set_flags(&[]);
    server.run();
    until(|| async {
        let answer = server.post("/v1/sandboxes", &json!({})).send().await.unwrap();
        let told = answer.json::<Value>().await.unwrap();
        told["error"]["message"].as_str()?.contains("inodes left").then_some(())
    })
    .await;
    let taker = server.record("taker").await["id"].as_str().unwrap().to_owned();
    for path in [format!("/v1/sandboxes/{taker}"), "/v1/volumes/names".into()] {
        let gone = server.request(Method::DELETE, &path).send().await.unwrap();
        assert!(gone.status().is_success(), "{path}: {gone:?}");
    }
    until(|| async { exec(&server, "true", "again").await.status().is_success().then_some(()) }).await;
    all_is_right(&mut server, &first).await;
}

#[tokio::test]
async fn a_volume_is_removed_when_its_files_are_and_not_said_to_be_before() {
    let server = Server::start();
    good(server.post("/v1/volumes", &json!({ "name": "v" })).send().await.unwrap()).await;
    let spec = json!({ "spec": { "mount": { "volume": "v" } }, "command": "cd /workspace; echo more > file" });
    good(server.post("/v1/exec", &spec).send().await.unwrap()).await;
    let delete = async || server.request(Method::DELETE, "/v1/volumes/v").send().await.unwrap();
    let volumes = server.data().join("volumes");
    let volume = std::fs::read_dir(&volumes).unwrap().next().unwrap().unwrap().path();
    let file = until(|| async {
        let is_free = server.get("/v1/sandboxes").await["sandboxes"].as_array().unwrap().is_empty();
        is_free.then(|| [volume.join("tree/file")])
    });
    let file = file.await;
    set_immutable(&file, "+i");
    for _ in 0..2 {
        assert_eq!(delete().await.status().as_u16(), 500, "some of its files are there");
    }
    assert_eq!(server.get("/v1/volumes").await["volumes"], json!([]), "no sandbox can have half of it");
    let left = std::fs::read_dir(&volumes).unwrap().next().unwrap().unwrap().path();
    set_immutable(&[left.join("tree/file")], "-i");
    assert!(delete().await.status().is_success());
    assert_eq!(std::fs::read_dir(&volumes).unwrap().count(), 0);
    assert_eq!(delete().await.status().as_u16(), 404);
}

/// Nothing is written to these files any more, not even by whoever has them open.
fn set_immutable(files: &[PathBuf], how: &str) {
    assert!(Command::new("chattr").arg(how).args(files).status().unwrap().success());
}

#[tokio::test]
async fn a_database_that_takes_nothing_for_a_while() {
    let mut server = Server::start();
    let first = good(exec(&server, "date +%N", "first").await).await;
    let files = ["cabana.db", "cabana.db-wal", "journal"].map(|name| server.data().join("db").join(name));
    let waits = |up: &str| format!("trap 'echo said; exit 0' USR1; touch {up}; while :; do sleep 0.05; done");
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": waits("call") });
    let under_way = server.post("/v1/exec", &body).header("Idempotency-Key", "under way").send();
    let task = server.begin("one", &waits("task")).await;
    let meanwhile = async {
        until(|| async { (server.exec("one", "ls call task").await["exit_code"] == 0).then_some(()) }).await;
        set_immutable(&files, "+i");
        assert_eq!(told_to_come_back(exec(&server, "echo run >> log", "once").await).await, away());
        assert!(server.get("/v1/sandboxes").await["sandboxes"].is_array(), "what only looks is answered");
        // The commands go on, and end: nobody but the machine itself can tell them to.
        server.commands().into_iter().for_each(|pid| kill_process(pid, Signal::USR1).unwrap());
    };
    let (answer, ()) = tokio::join!(under_way, meanwhile);
    assert_eq!(told_to_come_back(answer.unwrap()).await, away(), "nobody hears what is not recorded");
    set_immutable(&files, "-i");
    assert_eq!(server.ended(&task).await["state"], "succeeded");
    let again = until(|| async {
        let again = server.post("/v1/exec", &body).header("Idempotency-Key", "under way").send().await.unwrap();
        Some(again).filter(|answer| answer.status().is_success())
    });
    assert_eq!(good(again.await).await["stdout"], "said\n");
    good(exec(&server, "echo run >> log", "once").await).await;
    assert_eq!(server.stdout("one", "cat log").await, "run\n");
    all_is_right(&mut server, &first).await;
}

/// A disk that broke, as the kernel treats it: it can be read, and not be written to until it is mounted anew.
#[tokio::test]
async fn a_disk_that_became_read_only() {
    if !alone("a_disk_that_became_read_only") {
        return;
    }
    let shell = |script: &str, data: &Path| {
        let run = Command::new("sh").args(["-ec", script]).current_dir(data).output().unwrap();
        assert!(run.status.success(), "{script}: {}", String::from_utf8_lossy(&run.stderr));
    };
    const MOUNT: &str = "mount -o loop,errors=remount-ro disk db";
    let mut server = Server::prepared(&["--durability", "full"], |data| {
        shell(&format!("truncate -s 64M disk; mkfs.ext4 -q -F disk; mkdir db; {MOUNT}"), data);
    });
    let first = good(exec(&server, "date +%N", "first").await).await;
    let task = server.begin("one", "echo said").await;
    server.ended(&task).await;
    let before = head(&server).await;
    shell("echo 1 > /sys/fs/ext4/$(basename $(findmnt -n -o SOURCE db))/trigger_fs_error", server.data());
    for key in ["once", "once", "twice"] {
        assert_eq!(told_to_come_back(exec(&server, "echo run >> log", key).await).await, away());
    }
    assert_eq!(head(&server).await, before, "what is there can be read");
    server.kill();
    shell(&format!("umount db; e2fsck -p disk || [ $? -lt 4 ]; {MOUNT}"), server.data());
    server.run();
    assert_eq!(head(&server).await, before, "all that was acknowledged is there");
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "succeeded");
    good(exec(&server, "echo run >> log", "once").await).await;
    assert_eq!(server.stdout("one", "cat log").await, "run\n", "what was refused had not begun");
    all_is_right(&mut server, &first).await;
    drop(server); // before its disk
}

/// Another process that has the database for itself.
struct Holder(Child);

impl Holder {
    fn of(database: &Path) -> Self {
        let script = "import sqlite3, sys\n\
                      db = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                      db.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.readline(); db.execute('ROLLBACK')";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(database).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }

    fn let_go(mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

#[tokio::test]
async fn a_database_that_somebody_else_holds() {
    let mut server = Server::start();
    let first = good(exec(&server, "date +%N", "first").await).await;
    let task = server.begin("one", "until [ -e go ]; do sleep 0.05; done; echo said").await;
    let holder = Holder::of(&server.data().join("db/cabana.db"));
    assert_eq!(told_to_come_back(exec(&server, "echo run >> log", "once").await).await, away());
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running", "readers wait for nobody");
    holder.let_go();
    good(exec(&server, "echo run >> log; touch go", "once").await).await;
    assert_eq!(server.stdout("one", "cat log").await, "run\n", "what was refused had not begun");
    assert_eq!(server.ended(&task).await["state"], "succeeded");
    // Who holds it for a moment is waited for.
    let holder = Holder::of(&server.data().join("db/cabana.db"));
    let (answer, ()) = tokio::join!(exec(&server, "echo waited", "waits"), async { holder.let_go() });
    assert_eq!(good(answer).await["stdout"], "waited\n");
    all_is_right(&mut server, &first).await;
}
