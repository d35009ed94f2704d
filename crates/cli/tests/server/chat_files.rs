//! The files of a chat (FP-18, FP-19), for a platform that names app and chat and no user.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::stage::{Server, good, refused};

const FILE: &str = "/api/core/ai/sandbox/file";
const DOWNLOAD: &str = "/api/core/ai/sandbox/download";

fn with(action: &str, path: &str) -> Value {
    json!({ "action": action, "appId": "app", "chatId": "chat", "path": path })
}

async fn file(server: &Server, body: &Value) -> Value {
    seen(good(server.post(FILE, body).header("Cabana-User", "user").send().await.unwrap()).await)
}

/// Without the files that every home has.
fn seen(mut told: Value) -> Value {
    if let Some(files) = told.get_mut("files").and_then(Value::as_array_mut) {
        files.retain(|file| !file["name"].as_str().unwrap().starts_with('.'));
    }
    told
}

/// In the sandbox that the chat's user has.
async fn shell(server: &Server, command: &str) -> String {
    let scope = json!({ "scheme": "chat", "app": "app", "user": "user", "chat": "chat" });
    let answer =
        good(server.post("/v1/exec", &json!({ "scope": scope, "command": command })).send().await.unwrap()).await;
    assert_eq!(answer["exit_code"], 0, "{answer}");
    answer["stdout"].as_str().unwrap().to_owned()
}

/// Users of one app may have chats of the same name: each has its own, and who names no user is not led to either.
#[tokio::test]
async fn fp_02_a_chat_of_the_same_name_is_another_users_own() {
    let server = Server::start();
    let ask = async |user: Option<&str>, body: &Value| {
        let request = server.post(FILE, body);
        user.into_iter().fold(request, |request, user| request.header("Cabana-User", user)).send().await.unwrap()
    };
    let write = json!({ "action": "write", "appId": "app", "chatId": "chat", "path": "said", "content": "alice's" });
    good(ask(Some("alice"), &write).await).await;
    assert_eq!(good(ask(None, &with("read", "said")).await).await["content"], "alice's", "the only one there is");
    assert_eq!(refused(ask(Some("mallory"), &with("read", "said")).await).await, (404, "not_found".to_owned()));
    assert_eq!(good(ask(Some("alice"), &with("read", "said")).await).await["content"], "alice's");
    assert_eq!(refused(ask(None, &with("read", "said")).await).await, (400, "user_required".to_owned()));
}

#[tokio::test]
async fn fp_18_files_are_listed_read_and_written_in_the_chats_own_sandbox() {
    let server = Server::start();
    let home = shell(&server, "pwd; mkdir d; ln -s d to_d; printf four > file").await.trim().to_owned();
    let path = |name: &str| format!("{home}/{name}");
    let write = json!({ "action": "write", "appId": "app", "chatId": "chat", "path": path("test.txt"), "content": "新 content" });
    assert_eq!(file(&server, &write).await, json!({ "action": "write", "success": true }));
    assert_eq!(shell(&server, "cat test.txt").await, "新 content");
    assert_eq!(
        file(&server, &with("read", &path("test.txt"))).await,
        json!({ "action": "read", "content": "新 content" })
    );
    let listed = file(&server, &with("list", &home)).await;
    let sizes = |name: &str| {
        let files = listed["files"].as_array().unwrap();
        files.iter().find(|file| file["name"] == name).unwrap()["size"].clone()
    };
    let expected = json!({ "action": "list", "files": [
        { "name": "d", "path": path("d"), "type": "directory", "size": sizes("d") },
        { "name": "file", "path": path("file"), "type": "file", "size": 4 },
        { "name": "test.txt", "path": path("test.txt"), "type": "file", "size": 11 },
        { "name": "to_d", "path": path("to_d"), "type": "directory", "size": sizes("to_d") },
    ]});
    assert_eq!(listed, expected);
    assert_eq!(file(&server, &with("list", "")).await, expected, "its own directory, unless one is named");
    // Once the sandbox is there, nobody has to name the user.
    let read = good(server.post(FILE, &with("read", "file")).send().await.unwrap()).await;
    assert_eq!(read["content"], "four");
}

#[tokio::test]
async fn fp_18_a_chat_without_a_sandbox_has_one_made_for_its_user() {
    let server = Server::start();
    let told = refused(server.post(FILE, &with("list", "")).send().await.unwrap()).await;
    assert_eq!(told, (400, "user_required".into()));
    let told = refused(server.post(DOWNLOAD, &with("", "x")).send().await.unwrap()).await;
    assert_eq!(told, (400, "user_required".into()));
    assert_eq!(file(&server, &with("list", "")).await, json!({ "action": "list", "files": [] }));
    assert_eq!(shell(&server, "ls").await, "", "it is the one that the user's commands run in");
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"].as_array().unwrap().len(), 1);
    // A key that stands for somebody says who it is.
    let key = json!({ "role": "use", "subject": "somebody" });
    let key = good(server.post("/v1/keys", &key).send().await.unwrap()).await["key"].as_str().unwrap().to_owned();
    let body = json!({ "action": "list", "appId": "app", "chatId": "another" });
    let answer = server.post(FILE, &body).header("X-API-KEY", key).send().await.unwrap();
    assert_eq!(seen(good(answer).await)["files"], json!([]));
    let other = server.key_for("other", "use").await;
    let theirs = server.post(FILE, &with("list", "")).header("X-API-KEY", other).send().await.unwrap();
    assert_eq!(
        refused(theirs).await,
        (400, "user_required".into()),
        "another tenant's chat of the same name is another"
    );
}

#[tokio::test]
async fn fp_18_bad_requests_say_what_is_wrong() {
    let server = Server::start();
    shell(&server, "mkdir d; head -c 100 /dev/urandom > noise; printf '\\377' >> noise; truncate -s 5M big").await;
    for (body, status, code) in [
        (with("read", "missing"), 404, "not_found"),
        (with("read", "d"), 409, "is_directory"),
        (with("list", "noise"), 409, "not_directory"),
        (with("read", "../x"), 400, "invalid_path"),
        (with("read", "noise"), 400, "bad_request"),
        (with("read", "big"), 413, "too_large"),
        (with("remove", "noise"), 422, "bad_request"),
        (with("write", "noise"), 422, "bad_request"),
        (json!({ "action": "list" }), 422, "bad_request"),
        (json!({ "action": "list", "appId": "", "chatId": "x" }), 400, "bad_request"),
    ] {
        let answer = server.post(FILE, &body).header("Cabana-User", "user").send().await.unwrap();
        assert_eq!(refused(answer).await, (status, code.to_owned()), "{body}");
    }
    // As JSON each of the first has six bytes, and each of the second two.
    shell(&server, "head -c 3000000 /dev/zero | tee >(tr '\\0' '\\1' > ones) | tr '\\0' '\\n' > lines").await;
    let answer = server.post(FILE, &with("read", "ones")).header("Cabana-User", "user").send().await.unwrap();
    assert_eq!(refused(answer).await, (413, "too_large".into()));
    assert_eq!(file(&server, &with("read", "lines")).await["content"], "\n".repeat(3_000_000));
    let reader = server.key_for("default", "read").await;
    let answer = server.post(FILE, &with("list", "")).header("X-API-KEY", reader).send().await.unwrap();
    assert_eq!(refused(answer).await, (403, "forbidden".into()));
}

#[tokio::test]
async fn fp_19_a_file_is_downloaded_and_a_directory_comes_as_a_zip() {
    let server = Server::start();
    shell(&server, "mkdir -p d/e; echo one > d/one; echo two > d/e/two; echo plain > 'a file.txt'").await;
    let answer = server.post(DOWNLOAD, &with("", "a file.txt")).send().await.unwrap();
    assert_eq!(answer.headers()["content-length"], "6");
    let disposition = answer.headers()["content-disposition"].to_str().unwrap().to_owned();
    assert_eq!(disposition, "attachment; filename=\"a file.txt\"; filename*=UTF-8''a%20file.txt");
    assert_eq!(answer.text().await.unwrap(), "plain\n");
    let answer = server.post(DOWNLOAD, &with("", "d")).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/zip");
    let archive = answer.bytes().await.unwrap();
    let place = tempfile::NamedTempFile::new().unwrap();
    place.as_file().write_all(&archive).unwrap();
    let listed = Command::new("unzip").args(["-p"]).arg(place.path()).args(["one", "e/two"]).output().unwrap();
    assert!(listed.status.success());
    let mut words: Vec<&str> = std::str::from_utf8(&listed.stdout).unwrap().lines().collect();
    words.sort_unstable();
    assert_eq!(words, ["one", "two"]);
    let missing = server.post(DOWNLOAD, &with("", "missing")).send().await.unwrap();
    assert_eq!(refused(missing).await, (404, "not_found".into()));
}

/// Another process that holds the database, until it is told to let go.
struct Held(Child);

impl Held {
    fn of(server: &Server) -> Self {
        let script = "import glob, sqlite3, sys
held = [sqlite3.connect(path, isolation_level=None) for path in sys.argv[1:]]
[db.execute('BEGIN IMMEDIATE') for db in held]
print('held', flush=True)
sys.stdin.read()";
        let databases = std::fs::read_dir(server.data().join("db")).unwrap().map(|entry| entry.unwrap().path());
        let databases = databases.filter(|path| path.extension().is_some_and(|kind| kind == "db"));
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).args(databases).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }

    fn let_go(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

#[tokio::test]
async fn fp_15_while_the_service_is_away_its_text_and_exit_code_say_so() {
    let server = Server::start();
    file(&server, &with("list", "")).await;
    let held = Held::of(&server);
    for (route, body) in [(FILE, with("list", "")), (DOWNLOAD, with("", "x"))] {
        let answer = server.post(route, &body).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.headers().contains_key("retry-after"));
        let told: Value = answer.json().await.unwrap();
        assert_eq!(
            (&told["message"], &told["exitCode"]),
            (&json!("沙盒服务暂时不可用,请稍后重试"), &json!(-1)),
            "{told}"
        );
        assert_eq!((&told["error"]["code"], &told["error"]["retryable"]), (&json!("store_unavailable"), &json!(true)));
    }
    held.let_go();
    assert_eq!(file(&server, &with("list", "")).await["files"], json!([]));
}
