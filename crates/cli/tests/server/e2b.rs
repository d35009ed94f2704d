//! What E2B's SDKs send, as they send it: the control plane, and the agent of a sandbox.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    sdk::{Frames, Sdk, frame, typed},
    stage::{Server, good},
};

#[tokio::test]
async fn a_command_says_its_number_then_all_else_then_its_end() {
    let sdk = Sdk::start().await;
    let (said, end) = sdk.run("echo hi; pwd; id -un; echo $HOME $GIVEN; cat").await;
    assert_eq!(said, "hi\n/home/user\nuser\n/home/user sandbox\n", "its input is at an end from the start");
    assert_eq!((&end["exited"], &end["status"]), (&json!(true), &json!("exit status 0")));
    for _ in 0..30 {
        assert_eq!(sdk.run("echo hi").await.0, "hi\n", "also of one that ends at once");
    }
    let (_, end) = sdk.run("exit 3").await;
    assert_eq!((&end["exitCode"], &end["error"]), (&json!(3), &json!("exit status 3")));
    let (_, end) = sdk.run("kill -9 $$").await;
    assert_eq!((&end["exitCode"], &end["status"]), (&json!(-1), &json!("signal: killed")));
    let (said, _) = sdk.run("head -c 200000 /dev/zero | tr '\\0' x").await;
    assert_eq!(said.len(), 200_000);
}

#[tokio::test]
async fn a_command_that_cannot_begin_is_told_in_the_last_frame() {
    let sdk = Sdk::start().await;
    let process = |cwd| json!({ "process": { "cmd": "true", "cwd": cwd } });
    let (flags, last) = sdk.stream("/process.Process/Start", process("/nowhere")).await.next().await.unwrap();
    assert_eq!(flags, 2);
    let error = json!({ "code": "invalid_argument", "message": "cwd '/nowhere' does not exist" });
    assert_eq!(last["error"], error);
    let stranger = sdk.streaming("/process.Process/Start").basic_auth("eve", Some(""));
    let body = frame(0, process("/tmp").to_string().as_bytes());
    let mut frames = Frames::of(stranger.body(body).send().await.unwrap());
    assert_eq!(frames.next().await.unwrap().1["error"]["code"], "unauthenticated");
    let nobody = json!({ "process": { "pid": 99_999_999 } });
    let mut frames = sdk.stream("/process.Process/Connect", nobody.clone()).await;
    assert_eq!(frames.next().await.unwrap().1["error"]["code"], "not_found");
    assert_eq!(sdk.refused("/process.Process/CloseStdin", nobody).await, (404, "not_found".into()));
    assert_eq!(sdk.refused("/process.Process/Nothing", json!({})).await, (501, "unimplemented".into()));
}

#[tokio::test]
async fn what_is_typed_arrives_and_its_end_too() {
    let sdk = Sdk::start().await;
    let mut frames = sdk.begin("cat; echo done", json!({ "stdin": true, "tag": "mine" })).await;
    let pid = frames.pid().await;
    sdk.call("/process.Process/SendInput", typed(pid, "one\n")).await;
    frames.until("one\n").await;
    let listed = sdk.call("/process.Process/List", json!({})).await;
    assert_eq!((&listed["processes"][0]["pid"], &listed["processes"][0]["tag"]), (&json!(pid), &json!("mine")));
    let start = json!({ "start": { "process": { "tag": "mine" } } });
    let data = json!({ "data": { "input": { "stdin": STANDARD.encode("two\n") } } });
    let body = [start, data, json!({ "keepalive": {} })].map(|one| frame(0, one.to_string().as_bytes())).concat();
    let mut answer = Frames::of(sdk.streaming("/process.Process/StreamInput").body(body).send().await.unwrap());
    assert_eq!(answer.next().await.unwrap(), (0, json!({})));
    assert_eq!(answer.next().await.unwrap(), (2, json!({})));
    frames.until("two\n").await;
    sdk.call("/process.Process/CloseStdin", json!({ "process": { "pid": pid } })).await;
    let (said, end) = frames.rest().await;
    assert_eq!((said.as_str(), &end["exited"]), ("done\n", &json!(true)));
    assert_eq!(sdk.call("/process.Process/List", json!({})).await, json!({}));
}

#[tokio::test]
async fn a_command_goes_on_without_its_client_and_is_killed_by_a_signal() {
    let sdk = Sdk::start().await;
    let mut frames = sdk.begin("echo up; until [ -e go ]; do sleep 0.05; done; echo more; sleep 600", json!({})).await;
    let pid = frames.pid().await;
    frames.until("up\n").await;
    drop(frames);
    let select = json!({ "process": { "pid": pid } });
    let mut again = sdk.stream("/process.Process/Connect", select.clone()).await;
    assert_eq!(again.pid().await, pid);
    sdk.run("touch go").await;
    again.until("more\n").await;
    let signal = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
    sdk.call("/process.Process/SendSignal", signal.clone()).await;
    let (said, end) = again.rest().await;
    assert_eq!((said.as_str(), &end["status"]), ("", &json!("signal: killed")));
    let mut late = sdk.stream("/process.Process/Connect", select).await;
    assert_eq!(late.pid().await, pid);
    assert_eq!(late.rest().await.1["status"], "signal: killed", "its end is kept for a while");
    assert_eq!(sdk.refused("/process.Process/SendSignal", signal).await.0, 404);
}

#[tokio::test]
async fn the_time_of_whoever_began_it_ends_a_command() {
    let sdk = Sdk::start().await;
    let asked = json!({ "process": { "cmd": "sleep", "args": ["600"] } }).to_string();
    let request = sdk.streaming("/process.Process/Start").header("Connect-Timeout-Ms", "300");
    let mut frames = Frames::of(request.body(frame(0, asked.as_bytes())).send().await.unwrap());
    frames.pid().await;
    assert_eq!(frames.next().await.unwrap().1["error"]["code"], "deadline_exceeded");
    let request = sdk.streaming("/process.Process/Start").header("Keepalive-Ping-Interval", "1");
    let mut frames = Frames::of(request.body(frame(0, asked.as_bytes())).send().await.unwrap());
    frames.pid().await;
    assert_eq!(frames.event().await, json!({ "keepalive": {} }));
}

#[tokio::test]
async fn a_terminal_has_a_size_and_takes_another() {
    let sdk = Sdk::start().await;
    let asked = json!({ "process": { "cmd": "/bin/sh", "envs": { "PS1": "" } }, "pty": { "size": { "cols": 80, "rows": 24 } } });
    let mut frames = sdk.stream("/process.Process/Start", asked).await;
    let pid = frames.pid().await;
    let send = async |text: &str| {
        let input = json!({ "process": { "pid": pid }, "input": { "pty": STANDARD.encode(text) } });
        sdk.call("/process.Process/SendInput", input).await;
    };
    send("stty size\n").await;
    frames.until("24 80").await;
    let update = json!({ "process": { "pid": pid }, "pty": { "size": { "cols": 100, "rows": 30 } } });
    sdk.call("/process.Process/Update", update).await;
    send("stty size\n").await;
    frames.until("30 100").await;
    assert_eq!(sdk.refused("/process.Process/SendInput", typed(pid, "x")).await.1, "failed_precondition");
    send("exit\n").await;
    assert_eq!(frames.rest().await.1["exited"], true);
}

#[tokio::test]
async fn after_a_kill_the_next_server_types_on() {
    let mut sdk = Sdk::start().await;
    let mut frames = sdk.begin("read a; echo got $a; read b; echo got $b", json!({ "stdin": true, "tag": "t" })).await;
    let pid = frames.pid().await;
    sdk.call("/process.Process/SendInput", typed(pid, "one\n")).await;
    frames.until("got one\n").await;
    drop(frames);
    sdk.server.kill();
    sdk.server.run();
    let mut again = sdk.stream("/process.Process/Connect", json!({ "process": { "tag": "t" } })).await;
    assert_eq!(again.pid().await, pid);
    sdk.call("/process.Process/SendInput", typed(pid, "two\n")).await;
    let (said, end) = again.rest().await;
    assert_eq!((said.as_str(), &end["exited"]), ("got two\n", &json!(true)));
}

#[tokio::test]
async fn a_stream_whose_sandbox_is_killed_has_no_end() {
    let sdk = Sdk::start().await;
    let mut frames = sdk.begin("sleep 600", json!({})).await;
    frames.pid().await;
    let path = format!("/sandboxes/{}", sdk.sandbox);
    let killed = sdk.server.request(Method::DELETE, &path).header("x-api-key", &sdk.server.key).send().await.unwrap();
    assert_eq!(killed.status(), 204);
    let broken = frames.next().await.unwrap_err();
    assert!(broken.contains("reset") || broken.contains("ConnectionReset"), "{broken}");
    let health = sdk.inside(Method::GET, "/health").send().await.unwrap();
    assert_eq!(health.status(), 502);
    assert!(health.text().await.unwrap().contains("was not found"));
}

#[tokio::test]
async fn only_its_token_opens_a_sandbox() {
    let sdk = Sdk::start().await;
    assert_eq!(sdk.inside(Method::GET, "/health").send().await.unwrap().status(), 204);
    for path in ["/process.Process/List", "/filesystem.Filesystem/Stat"] {
        let bare = sdk.inside(Method::POST, path).json(&json!({}));
        assert_eq!(bare.send().await.unwrap().status(), 401, "{path}");
        let wrong = sdk.inside(Method::POST, path).header("X-Access-Token", "wrong").json(&json!({}));
        assert_eq!(wrong.send().await.unwrap().status(), 401, "{path}");
    }
    assert_eq!(sdk.inside(Method::GET, "/files?path=/etc/passwd").send().await.unwrap().status(), 401);
    let other = sdk.server.key_for("other", "use").await;
    let path = format!("{}/sandboxes/{}", sdk.server.url, sdk.sandbox);
    let foreign = reqwest::Client::new().get(&path).header("x-api-key", &other).send().await.unwrap();
    assert_eq!(foreign.status(), 404);
    let foreign = reqwest::Client::new().delete(&path).header("x-api-key", &other).send().await.unwrap();
    assert_eq!(foreign.status(), 404);
    assert_eq!(sdk.run("true").await.1["exited"], true, "it is still there");
}

/// How a sandbox answers that was made without a word about its token, to a client without one and to one with it.
async fn answers_of_unasked(server: Server) -> Vec<u16> {
    let made = server.post("/sandboxes", &json!({ "templateID": "base", "envVars": { "SECRET": "hunter2" } }));
    let made = good(made.header("x-api-key", &server.key).send().await.unwrap()).await;
    let token = made["envdAccessToken"].as_str().unwrap_or_default().to_owned();
    let sdk = Sdk { sandbox: made["sandboxID"].as_str().unwrap().to_owned(), token, server };
    let mut statuses = Vec::new();
    for request in [sdk.inside(Method::GET, "/envs"), sdk.ask(Method::GET, "/envs")] {
        statuses.push(request.send().await.unwrap().status().as_u16());
    }
    statuses
}

#[tokio::test]
async fn a_sandbox_asks_for_its_token_unless_the_operator_leaves_that_to_clients() {
    assert_eq!(answers_of_unasked(Server::start()).await, [401, 200]);
    assert_eq!(answers_of_unasked(Server::start_with(&["--e2b-secure", "as_asked"])).await, [200, 200]);
}

#[tokio::test]
async fn broken_envelopes_are_refused_in_the_last_frame() {
    let sdk = Sdk::start().await;
    for (body, code) in [
        (b"{\"process\":{}}".to_vec(), "invalid_argument"),
        (frame(1, b"{}"), "unimplemented"),
        (b"\0\xff\xff\xff\xff".to_vec(), "resource_exhausted"),
        (b"\0\0\0\0\x09{}".to_vec(), "invalid_argument"),
        (frame(0, b"no json"), "invalid_argument"),
        (Vec::new(), "invalid_argument"),
    ] {
        for path in ["/process.Process/Start", "/process.Process/StreamInput", "/filesystem.Filesystem/WatchDir"] {
            let response = sdk.streaming(path).body(body.clone()).send().await.unwrap();
            let (flags, last) = Frames::of(response).next().await.unwrap();
            assert_eq!((flags, last["error"]["code"].as_str()), (2, Some(code)), "{path} {last}");
        }
    }
    assert_eq!(sdk.run("true").await.1["exited"], true);
}

#[tokio::test]
async fn files_go_up_and_down() {
    let sdk = Sdk::start().await;
    let written = good(sdk.write("deep/er/a.txt", "hello").await).await;
    assert_eq!(written, json!([{ "path": "/home/user/deep/er/a.txt", "name": "a.txt", "type": "file" }]));
    assert_eq!(sdk.read("~/deep/er/a.txt").await.text().await.unwrap(), "hello");
    let part = sdk.ask(Method::GET, "/files?path=deep/er/a.txt").header("Range", "bytes=1-2").send().await.unwrap();
    assert_eq!((part.status().as_u16(), part.text().await.unwrap().as_str()), (206, "el"));
    let packed =
        sdk.ask(Method::GET, "/files?path=deep/er/a.txt").header("Accept-Encoding", "gzip").send().await.unwrap();
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    let packed = packed.bytes().await.unwrap();
    let again = sdk.ask(Method::POST, "/files?path=b.txt").header("content-type", "application/octet-stream");
    good(again.header("Content-Encoding", "gzip").body(packed).send().await.unwrap()).await;
    assert_eq!(sdk.read("b.txt").await.text().await.unwrap(), "hello", "unpacked as it came");
    let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/m/one\"\r\n\r\n1\r\n\
                --x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"two\"\r\n\r\n2\r\n--x--\r\n";
    let several = sdk.ask(Method::POST, "/files").header("content-type", "multipart/form-data; boundary=x");
    let several = several.header("X-Metadata-Author", "me").body(form);
    let several = good(several.send().await.unwrap()).await;
    assert_eq!((&several[0]["path"], &several[1]["path"]), (&json!("/tmp/m/one"), &json!("/home/user/two")));
    assert_eq!(several[0]["metadata"], json!({ "author": "me" }));
    let entry = &sdk.call("/filesystem.Filesystem/Stat", json!({ "path": "/tmp/m/one" })).await["entry"];
    assert_eq!((&entry["size"], &entry["metadata"]), (&json!("1"), &json!({ "author": "me" })));
    good(sdk.write("/tmp/m/one", "again").await).await;
    let entry = &sdk.call("/filesystem.Filesystem/Stat", json!({ "path": "/tmp//m/./one" })).await["entry"];
    assert_eq!((&entry["size"], &entry["metadata"]), (&json!("5"), &Value::Null), "each upload says all of it");
    let missing = sdk.read("/nowhere").await;
    assert_eq!(missing.status(), 404);
    let missing: Value = missing.json().await.unwrap();
    assert_eq!(missing["message"], "path '/nowhere' does not exist");
    assert_eq!(sdk.read("/tmp").await.status(), 400);
    let usage = good(sdk.ask(Method::GET, "/metrics").send().await.unwrap()).await;
    assert!(usage["mem_used"].as_u64().unwrap() > 0, "{usage}");
    assert_eq!(good(sdk.ask(Method::GET, "/envs").send().await.unwrap()).await, json!({ "GIVEN": "sandbox" }));
}

pub(crate) fn signed(token: &str, path: &str, operation: &str, until: Option<i64>) -> String {
    let end = until.map(|until| format!(":{until}")).unwrap_or_default();
    let digest = Sha256::digest(format!("{path}:{operation}::{token}{end}"));
    let signature = STANDARD_NO_PAD.encode(digest).replace('+', "%2B").replace('/', "%2F");
    let end = until.map(|until| format!("&signature_expiration={until}")).unwrap_or_default();
    format!("/files?path={path}&signature=v1_{signature}{end}")
}

#[tokio::test]
async fn a_signed_url_opens_one_file_without_a_header() {
    let sdk = Sdk::start().await;
    good(sdk.write("a.txt", "hello").await).await;
    let bare = |path: String| reqwest::Client::new().get(format!("{}{path}", sdk.server.url)).send();
    let read = bare(signed(&sdk.token, "a.txt", "read", None)).await.unwrap();
    assert_eq!((read.status().as_u16(), read.text().await.unwrap().as_str()), (200, "hello"));
    let late = bare(signed(&sdk.token, "a.txt", "read", Some(1000))).await.unwrap();
    let body: Value = late.json().await.unwrap();
    assert_eq!(body, json!({ "code": 401, "message": "signature is already expired" }));
    for other in [signed("wrong", "a.txt", "read", None), signed(&sdk.token, "a.txt", "write", None)] {
        assert_ne!(bare(other).await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn names_are_made_moved_listed_and_removed() {
    let sdk = Sdk::start().await;
    let call =
        async |method: &str, message: Value| sdk.call(&format!("/filesystem.Filesystem/{method}"), message).await;
    let refused =
        async |method: &str, message: Value| sdk.refused(&format!("/filesystem.Filesystem/{method}"), message).await.1;
    let made = call("MakeDir", json!({ "path": "d/e" })).await;
    assert_eq!(
        (&made["entry"]["path"], &made["entry"]["permissions"]),
        (&json!("/home/user/d/e"), &json!("drwxr-xr-x"))
    );
    assert_eq!(refused("MakeDir", json!({ "path": "d" })).await, "already_exists");
    sdk.write("d/e/deep", "x").await;
    sdk.write("d/b", "x").await;
    sdk.run("ln -s b d/link; ln -s e d/dir").await;
    assert_eq!(refused("MakeDir", json!({ "path": "d/b" })).await, "invalid_argument");
    assert_eq!(refused("ListDir", json!({ "path": "d/b" })).await, "invalid_argument");
    assert_eq!(refused("ListDir", json!({ "path": "none" })).await, "not_found");
    let names = |listed: &Value| -> Vec<String> {
        listed["entries"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&call("ListDir", json!({ "path": "d" })).await), ["b", "dir", "e", "link"]);
    let deep = call("ListDir", json!({ "path": "d", "depth": 2 })).await;
    assert_eq!(names(&deep), ["b", "dir", "e", "deep", "link"], "links are not followed");
    let link = &deep["entries"][4];
    assert_eq!((&link["type"], &link["symlinkTarget"]), (&json!("FILE_TYPE_FILE"), &json!("/home/user/d/b")));
    let moved = call("Move", json!({ "source": "d/b", "destination": "new/place/c" })).await;
    assert_eq!(moved["entry"]["path"], "/home/user/new/place/c");
    assert_eq!(refused("Move", json!({ "source": "d/b", "destination": "c" })).await, "not_found");
    call("Remove", json!({ "path": "d" })).await;
    call("Remove", json!({ "path": "d" })).await;
    assert_eq!(refused("Stat", json!({ "path": "d" })).await, "not_found");
}

#[tokio::test]
async fn an_upload_is_three_events_for_whoever_watches() {
    let sdk = Sdk::start().await;
    sdk.call("/filesystem.Filesystem/MakeDir", json!({ "path": "w/nested" })).await;
    let watcher = sdk.call("/filesystem.Filesystem/CreateWatcher", json!({ "path": "w" })).await;
    let mut stream = sdk
        .stream("/filesystem.Filesystem/WatchDir", json!({ "path": "w", "recursive": true, "includeEntry": true }))
        .await;
    assert_eq!(stream.next().await.unwrap(), (0, json!({ "start": {} })));
    sdk.write("w/new.txt", "hello").await;
    let heard = sdk.call("/filesystem.Filesystem/GetWatcherEvents", watcher.clone()).await;
    let kinds: Vec<_> = heard["events"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds, ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"], "{heard}");
    assert_eq!(heard["events"][0]["name"], "new.txt");
    assert_eq!(sdk.call("/filesystem.Filesystem/GetWatcherEvents", watcher.clone()).await, json!({}));
    sdk.write("w/nested/deep.txt", "x").await;
    let deep = until_heard(&mut stream, "nested/deep.txt").await;
    assert_eq!(deep["entry"]["path"], "/home/user/w/nested/deep.txt");
    sdk.call("/filesystem.Filesystem/RemoveWatcher", watcher.clone()).await;
    assert_eq!(sdk.refused("/filesystem.Filesystem/GetWatcherEvents", watcher).await.1, "not_found");
    let file = json!({ "path": "w/new.txt" });
    assert_eq!(sdk.refused("/filesystem.Filesystem/CreateWatcher", file).await.1, "invalid_argument");
    let none = json!({ "path": "none" });
    assert_eq!(sdk.refused("/filesystem.Filesystem/CreateWatcher", none).await.1, "not_found");
}

async fn until_heard(stream: &mut Frames, name: &str) -> Value {
    loop {
        let (_, message) = stream.next().await.unwrap();
        if message["filesystem"]["name"] == name {
            return message["filesystem"].clone();
        }
    }
}
