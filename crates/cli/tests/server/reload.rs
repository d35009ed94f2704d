//! Settings that are read again while the server serves.

use std::{fs, path::Path, process::Command};

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::stage::{Server, client, good, refused, until};

struct Stage {
    home: tempfile::TempDir,
    server: Server,
}

impl Stage {
    fn new(text: &str, flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("cabana.toml");
        fs::write(&file, text).unwrap();
        let server = Server::start_with(&[&["--config", file.to_str().unwrap()], flags].concat());
        Self { home, server }
    }

    fn write(&self, text: &str) {
        fs::write(self.home.path().join("cabana.toml"), text).unwrap();
    }

    async fn reload(&self) -> Value {
        good(self.server.request(Method::POST, "/v1/config:reload").send().await.unwrap()).await
    }
}

#[tokio::test]
async fn what_can_change_counts_for_what_begins_then_and_the_rest_is_named() {
    let stage = Stage::new("[limits]\npids = 64\n[log]\nlevel = \"warn\"\n", &["--open-files", "512"]);
    let server = &stage.server;
    let old = server.ensure("old").await;
    assert_eq!(old["limits"]["pids"], 64);
    let text = "[limits]\npids = 128\nopen_files = 1000\nexec_timeout = \"300ms\"\n[network]\nmode = \"off\"\n\
                [server]\nlisten = \"127.0.0.1:1\"\nmax_body = \"64K\"\nmax_streams = 0\n[engine]\nspares = 0\n";
    stage.write(text);
    let told = stage.reload().await;
    let changed = ["server.max_streams", "server.max_body", "network.mode", "limits.pids", "limits.exec_timeout"];
    assert_eq!(told["changed"], json!(changed), "a flag beats the file: {told}");
    assert_eq!(told["needs_restart"], json!(["engine.spares"]), "the flag says where to listen");
    let new = server.ensure("new").await;
    assert_eq!((&new["limits"]["pids"], &new["limits"]["open_files"]), (&json!(128), &json!(512)));
    assert_eq!(new["network"]["mode"], "off");
    assert_eq!(server.ensure("old").await["limits"]["pids"], 64, "what is there stays as it is");
    assert_eq!(server.exec("new", "sleep 600").await["status"], "timed_out");
    let events = server.request(Method::GET, "/v1/events").send().await.unwrap();
    assert_eq!(refused(events).await, (429, "too_many_streams".into()));
    let large = json!({ "scope": { "scheme": "fixed", "name": "new" }, "command": "a".repeat(100 << 10) });
    assert_eq!(refused(server.post("/v1/exec", &large).send().await.unwrap()).await, (413, "too_large".into()));
    // Once more changes nothing; what needs a restart still does.
    assert_eq!(stage.reload().await, json!({ "changed": [], "needs_restart": ["engine.spares"] }));
}

#[tokio::test]
async fn a_broken_file_changes_nothing_and_says_why() {
    let stage = Stage::new("[limits]\npids = 64\n", &[]);
    for (text, says) in [
        ("[limits]\npids = 128\nmemry = \"1G\"\n", "memory"),
        ("[limits]\npids = 128\nmemory = \"1K\"\n", "too little"),
        ("[limits]\npids = 128\n[webhooks]\nallow = [\"https://a.com\"]\n", "webhooks.allow"),
        ("[limits\n", "cabana.toml:1"),
    ] {
        stage.write(text);
        let answer = stage.server.request(Method::POST, "/v1/config:reload").send().await.unwrap();
        assert_eq!(answer.status(), 400);
        let told: Value = answer.json().await.unwrap();
        assert!(told["error"]["message"].as_str().unwrap().contains(says), "{text}: {told}");
    }
    fs::remove_file(stage.home.path().join("cabana.toml")).unwrap();
    let gone = stage.server.request(Method::POST, "/v1/config:reload").send().await.unwrap();
    assert_eq!(refused(gone).await, (400, "bad_request".into()));
    assert_eq!(stage.server.ensure("one").await["limits"]["pids"], 64);
}

#[tokio::test]
async fn only_the_operator_reloads_by_http_by_the_command_line_and_by_a_signal() {
    let stage = Stage::new("[limits]\npids = 64\n", &[]);
    let server = &stage.server;
    let user = server.key_for("default", "use").await;
    let by_user = client().post(format!("{}/v1/config:reload", server.url)).bearer_auth(&user).send().await.unwrap();
    assert_eq!(refused(by_user).await, (403, "forbidden".into()));
    stage.write("[limits]\npids = 65\n[engine]\nspares = 1\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
    command.args(["config", "reload"]).env("CABANA_URL", &server.url).env("CABANA_API_KEY", &server.key);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8(done.stdout).unwrap();
    assert_eq!(said, "limits.pids is as it is set now\nengine.spares needs a restart\n");
    stage.write("[limits]\npids = 66\n");
    kill_process(Pid::from_raw(server.pid().cast_signed()).unwrap(), Signal::HUP).unwrap();
    // Each name is a sandbox of its own, made with what counts by then.
    let mut number = 0;
    until(|| {
        number += 1;
        let name = format!("box {number}");
        async move { (server.ensure(&name).await["limits"]["pids"] == 66).then_some(()) }
    })
    .await;
    stage.write("nonsense");
    kill_process(Pid::from_raw(server.pid().cast_signed()).unwrap(), Signal::HUP).unwrap();
    until(|| async { server.said().iter().any(|line| line.contains("stay as they were")).then_some(()) }).await;
    assert_eq!(server.ensure("last").await["limits"]["pids"], 66);
}

#[tokio::test]
async fn another_time_to_rest_counts_for_the_sandboxes_that_are_there() {
    let stage = Stage::new("[lifecycle]\nidle = \"none\"\n", &[]);
    let sandbox = stage.server.ensure("one").await["id"].as_str().unwrap().to_owned();
    stage.write("[lifecycle]\nidle = \"1s\"\n");
    assert_eq!(stage.reload().await["changed"], json!(["lifecycle.idle"]));
    let path = format!("/v1/sandboxes/{sandbox}");
    until(|| async { (stage.server.get(&path).await["state"] == "stopped").then_some(()) }).await;
}

fn certificate(home: &Path, name: &str) {
    let words = format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name} -addext \
         subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout key -out cert"
    );
    let made = Command::new("openssl").current_dir(home).args(words.split_whitespace()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// Whom the certificate of a new connection names.
fn shown(server: &Server) -> String {
    let address = server.url.strip_prefix("https://").unwrap();
    let script = format!("openssl s_client -connect {address} </dev/null 2>/dev/null | openssl x509 -noout -subject");
    String::from_utf8(Command::new("sh").args(["-c", &script]).output().unwrap().stdout).unwrap()
}

#[tokio::test]
async fn certificates_are_read_again_and_broken_ones_are_not_taken() {
    let home = tempfile::tempdir().unwrap();
    certificate(home.path(), "first");
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let server = Server::start_with(&["--tls-cert", &at("cert"), "--tls-key", &at("key")]);
    assert!(shown(&server).contains("first"));
    let client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
    let reload = async || {
        let url = format!("{}/v1/config:reload", server.url);
        client.post(url).bearer_auth(&server.key).send().await.unwrap()
    };
    certificate(home.path(), "second");
    assert_eq!(good(reload().await).await["changed"], json!(["server.tls_cert"]));
    assert!(shown(&server).contains("second"));
    fs::write(home.path().join("key"), "no key").unwrap();
    assert_eq!(refused(reload().await).await, (400, "bad_request".into()));
    assert!(shown(&server).contains("second"));
}
