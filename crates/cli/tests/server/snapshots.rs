//! Snapshots: taken, listed, forked and let go, also by a server that is killed.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::stage::{Server, client, good, refused, until};

fn take(server: &Server, sandbox: &str) -> RequestBuilder {
    server.request(Method::POST, &format!("/v1/sandboxes/{sandbox}/snapshots"))
}

async fn taken(server: &Server, sandbox: &str) -> String {
    let answer = take(server, sandbox).send().await.unwrap();
    assert_eq!(answer.status(), 201);
    good(answer).await["id"].as_str().unwrap().to_owned()
}

async fn id_of(server: &Server, scope: &str) -> String {
    server.ensure(scope).await["id"].as_str().unwrap().to_owned()
}

fn fork(server: &Server, scope: &str, snapshot: &str) -> RequestBuilder {
    let body = json!({ "scope": { "scheme": "fixed", "name": scope }, "spec": { "snapshot": snapshot } });
    server.post("/v1/sandboxes:ensure", &body)
}

async fn delete(server: &Server, path: &str) -> reqwest::Response {
    server.request(Method::DELETE, path).send().await.unwrap()
}

/// What the engine has.
fn kept(server: &Server, folder: &str, begins: &str) -> usize {
    let names = fs::read_dir(server.data().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with(begins)).count()
}

#[tokio::test]
async fn a_fork_has_the_files_and_goes_its_own_way() {
    let server = Server::start();
    server.stdout("one", "echo first > note").await;
    let sandbox = id_of(&server, "one").await;
    let snapshot = taken(&server, &sandbox).await;
    server.stdout("one", "echo later > note").await;
    let forked = good(fork(&server, "two", &snapshot).send().await.unwrap()).await;
    assert_eq!((&forked["snapshot"], &forked["template"]), (&json!(snapshot), &Value::Null));
    assert_eq!(server.stdout("two", "cat note; echo mine > note").await, "first\n");
    assert_eq!(server.stdout("one", "cat note").await, "later\n");
    // One that belongs to no scope, and the first command at once.
    let body = json!({ "scope": { "scheme": "fixed", "name": "three" }, "spec": { "snapshot": snapshot }, "command": "cat note" });
    assert_eq!(good(server.post("/v1/exec", &body).send().await.unwrap()).await["stdout"], "first\n");
    let own = good(server.post("/v1/sandboxes", &json!({ "snapshot": snapshot })).send().await.unwrap()).await;
    assert_eq!(own["snapshot"], json!(snapshot));
    // A fork of a fork.
    let second = taken(&server, forked["id"].as_str().unwrap()).await;
    good(fork(&server, "four", &second).send().await.unwrap()).await;
    assert_eq!(server.stdout("four", "cat note").await, "mine\n");
    let rows = server.get("/v1/ledger?limit=1000").await;
    let taken = rows["rows"].as_array().unwrap().iter().filter(|row| row["verb"] == "snapshot.take").count();
    assert_eq!(taken, 2);
}

#[tokio::test]
async fn a_sandbox_stays_what_it_is_while_a_snapshot_is_taken_of_it() {
    let server = Server::start();
    server.stdout("one", "echo kept > note").await;
    let sandbox = id_of(&server, "one").await;
    let task = server.begin("one", "until [ -e go ]; do sleep 0.05; done; echo went on").await;
    let running = taken(&server, &sandbox).await;
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
    server.stdout("one", "touch go").await;
    assert_eq!(server.ended(&task).await["state"], "succeeded");
    for state in ["pause", "stop"] {
        let path = format!("/v1/sandboxes/{sandbox}");
        let was = good(server.post(&format!("{path}/{state}"), &json!({})).send().await.unwrap()).await;
        taken(&server, &sandbox).await;
        assert_eq!(server.get(&path).await["state"], was["state"]);
    }
    good(fork(&server, "two", &running).send().await.unwrap()).await;
    assert_eq!(server.stdout("two", "cat note; ls").await, "kept\nnote\n");
}

#[tokio::test]
async fn snapshots_are_listed_page_by_page_and_let_go() {
    let server = Server::start();
    let (one, two) = (id_of(&server, "one").await, id_of(&server, "two").await);
    let mut all = Vec::new();
    for sandbox in [&one, &two, &one] {
        all.insert(0, taken(&server, sandbox).await);
    }
    let ids = |list: &Value| -> Vec<String> {
        list["snapshots"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&server.get("/v1/snapshots").await), all);
    let first = server.get("/v1/snapshots?limit=2").await;
    assert_eq!(ids(&first), all[..2]);
    let rest = server.get(&format!("/v1/snapshots?limit=2&cursor={}", first["next_cursor"].as_str().unwrap())).await;
    assert_eq!((ids(&rest), &rest["next_cursor"]), (all[2..].to_vec(), &Value::Null));
    for path in [format!("/v1/sandboxes/{one}/snapshots"), format!("/v1/snapshots?sandbox={one}")] {
        assert_eq!(ids(&server.get(&path).await), [all[0].clone(), all[2].clone()]);
    }
    assert_eq!(server.get(&format!("/v1/snapshots/{}", all[1])).await["sandbox"], json!(two));

    good(fork(&server, "fork", &all[0]).send().await.unwrap()).await;
    let path = format!("/v1/snapshots/{}", all[0]);
    assert_eq!(delete(&server, &path).await.status(), 204);
    let not_found = (404, "snapshot_not_found".to_owned());
    assert_eq!(refused(delete(&server, &path).await).await, not_found);
    assert_eq!(refused(server.request(Method::GET, &path).send().await.unwrap()).await, not_found);
    assert_eq!(ids(&server.get("/v1/snapshots").await), all[1..]);
    assert_eq!(refused(fork(&server, "late", &all[0]).send().await.unwrap()).await, not_found);
    let sandboxes = server.get("/v1/sandboxes").await;
    assert_eq!(sandboxes["sandboxes"].as_array().unwrap().len(), 3, "what could not be made left nothing: {sandboxes}");
    // What was made from it is there, and asked for in the same words.
    assert_eq!(good(fork(&server, "fork", &all[0]).send().await.unwrap()).await["created"], false);
    server.stdout("fork", "true").await;
}

#[tokio::test]
async fn one_key_is_one_snapshot() {
    let server = Server::start();
    let sandbox = id_of(&server, "one").await;
    let once = || async { good(take(&server, &sandbox).header("Idempotency-Key", "k").send().await.unwrap()).await };
    let (first, second) = tokio::join!(once(), once());
    assert_eq!((&first, &once().await), (&second, &first));
    assert_eq!(kept(&server, "snapshots", ""), 1);
}

#[tokio::test]
async fn what_another_tenant_kept_cannot_be_forked() {
    let server = Server::start();
    server.stdout("one", "echo secret > note").await;
    let snapshot = taken(&server, &id_of(&server, "one").await).await;
    let thief = server.key_for("thief", "use").await;
    let mut told = Vec::new();
    for id in [snapshot.as_str(), "snap_01a1e36ddd427372ba516dbc00000000"] {
        let body = json!({ "scope": { "scheme": "fixed", "name": "mine" }, "spec": { "snapshot": id } });
        let asked = client().post(format!("{}/v1/sandboxes:ensure", server.url)).bearer_auth(&thief).json(&body);
        let answer: Value = asked.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["error"]["code"], "snapshot_not_found");
        told.push(answer["error"]["message"].as_str().unwrap().replace(id, ""));
    }
    assert_eq!(told[0], told[1]);
    let theirs = client().get(format!("{}/v1/snapshots", server.url)).bearer_auth(&thief).send().await.unwrap();
    assert_eq!(good(theirs).await["snapshots"], json!([]));
    // The names that the engine knows them by open nothing, and are told to nobody.
    let file = fs::read_dir(server.data().join("snapshots")).unwrap().next().unwrap().unwrap().file_name();
    let digits = file.to_str().unwrap().trim_end_matches(".json").to_owned();
    assert!(!snapshot.contains(&digits));
    for spec in [json!({ "snapshot": format!("snap_{digits}") }), json!({ "template": format!("snap_{digits}") })] {
        let refused = refused(server.post("/v1/sandboxes", &spec).send().await.unwrap()).await;
        assert_eq!(refused.0, 404, "{spec}: {refused:?}");
    }
}

#[tokio::test]
async fn what_is_asked_wrongly_is_said() {
    let server = Server::start();
    let sandbox = id_of(&server, "one").await;
    let snapshot = taken(&server, &sandbox).await;
    let bad = (400, "bad_request".to_owned());
    for spec in [
        json!({ "snapshot": "nothing" }),
        json!({ "snapshot": snapshot, "template": "host" }),
        json!({ "template": "snapshot:../x" }),
    ] {
        assert_eq!(refused(server.post("/v1/sandboxes", &spec).send().await.unwrap()).await, bad, "{spec}");
    }
    for path in ["/v1/snapshots/x", "/v1/snapshots?limit=0", "/v1/snapshots?cursor=x", "/v1/snapshots?sandbox=-"] {
        assert_eq!(refused(server.request(Method::GET, path).send().await.unwrap()).await, bad, "{path}");
    }
    let absent = take(&server, "aaaaaaaaaaaaaaaa").send().await.unwrap();
    assert_eq!(refused(absent).await, (404, "sandbox_not_found".into()));
}

#[tokio::test]
async fn the_space_of_what_went_is_given_back() {
    let server = Server::start();
    server.stdout("one", "echo kept > note").await;
    let sandbox = id_of(&server, "one").await;
    let snapshot = taken(&server, &sandbox).await;
    let forked = good(fork(&server, "two", &snapshot).send().await.unwrap()).await;
    assert_eq!(kept(&server, "layers", "kept-"), 1);
    delete(&server, &format!("/v1/snapshots/{snapshot}")).await;
    delete(&server, &format!("/v1/sandboxes/{sandbox}")).await;
    assert_eq!(server.stdout("two", "cat note").await, "kept\n", "the fork stands on it");
    delete(&server, &format!("/v1/sandboxes/{}", forked["id"].as_str().unwrap())).await;
    until(|| async { (kept(&server, "layers", "kept-") == 0).then_some(()) }).await;
}

/// As many files as take a while to copy.
const MANY: &str = "python3 -c \"
import os
for n in range(20000):
    if n % 1000 == 0: os.makedirs(f'many/{n}'); d = f'many/{n}'
    open(f'{d}/{n}', 'w').close()\"; echo kept > note";

/// Another process, which holds the database from the moment on when a snapshot has its record: until it has a line to read,
/// the server can record nothing.
struct Locker(Child);

impl Locker {
    fn start(server: &Server) -> Self {
        let script = "import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
while True:
    db.execute('BEGIN IMMEDIATE')
    if db.execute('SELECT count(*) FROM snapshots').fetchone()[0]: break
    db.execute('ROLLBACK')
    time.sleep(0.001)
print('locked', flush=True)
sys.stdin.readline()";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(server.data().join("db/cabana.db"));
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    async fn locked(mut self) -> Self {
        let waited = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "locked\n");
            self
        });
        waited.await.unwrap()
    }

    fn end(mut self) {
        self.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn one_that_was_taken_when_the_server_was_killed_is_there_after() {
    let mut server = Server::start();
    server.stdout("one", MANY).await;
    let sandbox = id_of(&server, "one").await;
    let locker = Locker::start(&server);
    TaskTracker::new().spawn(take(&server, &sandbox).header("Idempotency-Key", "k").send());
    let locker = locker.locked().await;
    until(|| async { (kept(&server, "snapshots", "") > 0).then_some(()) }).await;
    assert_eq!(server.get("/v1/snapshots").await["snapshots"], json!([]), "nobody has been told");
    server.kill();
    locker.end();
    server.run();
    let told = good(take(&server, &sandbox).header("Idempotency-Key", "k").send().await.unwrap()).await;
    assert_eq!(server.get("/v1/snapshots").await["snapshots"], json!([told]));
    assert_eq!(kept(&server, "snapshots", ""), 1);
    good(fork(&server, "two", told["id"].as_str().unwrap()).send().await.unwrap()).await;
    assert_eq!(server.stdout("two", "cat note; ls many | wc -l").await, "kept\n20\n");
}

#[tokio::test]
async fn one_that_was_not_taken_yet_when_the_server_was_killed_leaves_nothing() {
    let mut server = Server::start();
    server.stdout("one", MANY).await;
    let sandbox = id_of(&server, "one").await;
    let locker = Locker::start(&server);
    TaskTracker::new().spawn(take(&server, &sandbox).header("Idempotency-Key", "k").send());
    let locker = locker.locked().await;
    assert_eq!(kept(&server, "snapshots", ""), 0, "it takes a while");
    server.kill();
    locker.end();
    server.run();
    assert_eq!(
        (server.get("/v1/snapshots").await["snapshots"].clone(), kept(&server, "snapshots", "")),
        (json!([]), 0)
    );
    let again = take(&server, &sandbox).header("Idempotency-Key", "k").send().await.unwrap();
    assert_eq!(refused(again).await, (409, "outcome_unknown".into()));
    until(|| async { (kept(&server, "layers", "kept-") == 0).then_some(()) }).await;
    assert_eq!(server.stdout("one", "cat note; ls many | wc -l").await, "kept\n20\n", "it goes on");
    taken(&server, &sandbox).await;
}

#[tokio::test]
async fn snapshots_outlive_the_server_and_their_sandbox() {
    let mut server = Server::start();
    server.stdout("one", "echo kept > note").await;
    let sandbox = id_of(&server, "one").await;
    let snapshot = taken(&server, &sandbox).await;
    delete(&server, &format!("/v1/sandboxes/{sandbox}")).await;
    server.kill();
    server.run();
    good(fork(&server, "two", &snapshot).send().await.unwrap()).await;
    assert_eq!(server.stdout("two", "cat note").await, "kept\n");
    // One whose files somebody removed behind our back has no record after the next start.
    server.kill();
    remove_all(&server.data().join("snapshots"));
    server.run();
    assert_eq!(server.get("/v1/snapshots").await["snapshots"], json!([]));
    assert_eq!(server.stdout("two", "cat note").await, "kept\n");
}

fn remove_all(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}
