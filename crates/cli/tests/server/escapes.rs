//! A client's paths and a guest's links that lead through `/proc/self/fd`: whatever way a command comes in by, what starts it
//! holds nothing that leads to the host (the class of CVE-2024-21626).

use std::{os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};

use crate::{
    sdk::Sdk,
    stage::{Server, client},
};

const NUMBERS: std::ops::Range<u32> = 3..20;
const UP: &str = "../../../../../../../..";

/// A file of the host that every user may read, and nothing shows inside.
struct Canary(tempfile::NamedTempFile);

impl Canary {
    fn new() -> Self {
        let file = tempfile::Builder::new().prefix("canary").tempfile_in("/tmp").unwrap();
        std::fs::write(file.path(), "sings\n").unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        Self(file)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// From a directory of the host, whichever it is.
    fn above(&self) -> String {
        format!("{UP}{}", self.path().display())
    }
}

#[tokio::test]
async fn a_working_directory_over_http_through_a_descriptor() {
    let (server, canary) = (Server::start(), Canary::new());
    let key = server.key_for("acme", "use").await;
    let exec = async |extra: Value| {
        let mut body = json!({ "scope": { "scheme": "fixed", "name": "one" } });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let request = client().post(format!("{}/v1/exec", server.url)).bearer_auth(&key).json(&body);
        request.send().await.unwrap().text().await.unwrap()
    };
    for number in NUMBERS {
        let door = format!("/proc/self/fd/{number}");
        for user in ["root", "user"] {
            let said = [
                exec(json!({ "cwd": door, "user": user, "argv": ["cat", canary.above()] })).await,
                exec(json!({ "user": user, "argv": [format!("{door}/{UP}/bin/cat"), canary.path()] })).await,
                exec(json!({ "user": user, "argv": ["cat", canary.path()], "env": { "PATH": format!("{door}/{UP}/bin") } })).await,
            ];
            assert!(!said.concat().contains("sings"), "{door} as {user}: {said:?}");
        }
    }
    // The control: what lies inside is read by the same words.
    let said = exec(json!({ "cwd": "/tmp", "command": "echo sings > mine; cat mine" })).await;
    assert!(said.contains("sings"), "{said}");
}

#[tokio::test]
async fn a_link_in_place_of_the_default_working_directory() {
    let (server, canary) = (Server::start(), Canary::new());
    let home = server.stdout("one", "pwd").await.trim().to_owned();
    for number in NUMBERS {
        let body = json!({
            "scope": { "scheme": "fixed", "name": "one" }, "user": "root", "cwd": "/",
            "command": format!("[ -L {home} ] || mv {home} /moved; ln -sfn /proc/self/fd/{number} {home}"),
        });
        let linked = server.post("/v1/exec", &body).send().await.unwrap().text().await.unwrap();
        assert!(linked.contains("\"exit_code\":0"), "{linked}");
        let body =
            json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": format!("cat {}", canary.above()) });
        let said = server.post("/v1/exec", &body).send().await.unwrap().text().await.unwrap();
        assert!(!said.contains("sings"), "{number}: {said}");
    }
    // The control: a link to a directory inside is an ordinary working directory.
    let body = json!({
        "scope": { "scheme": "fixed", "name": "one" }, "user": "root", "cwd": "/",
        "command": format!("ln -sfn /moved {home}"),
    });
    server.post("/v1/exec", &body).send().await.unwrap();
    assert_eq!(server.stdout("one", "pwd -P").await, "/moved\n");
}

#[tokio::test]
async fn a_working_directory_by_e2bs_agent_through_a_descriptor() {
    let (sdk, canary) = (Sdk::start().await, Canary::new());
    for number in NUMBERS {
        let process = json!({ "cmd": "/bin/cat", "args": [canary.above()], "cwd": format!("/proc/self/fd/{number}") });
        let pty = json!({ "process": process.clone(), "pty": { "size": { "cols": 80, "rows": 24 } } });
        for asked in [json!({ "process": process }), pty] {
            let request = sdk.streaming("/process.Process/Start");
            let body = crate::sdk::frame(0, asked.to_string().as_bytes());
            let said = request.body(body).send().await.unwrap().text().await.unwrap();
            // Output is base64 in the frames.
            assert!(!said.contains("c2luZ3"), "{number}: {said}");
        }
    }
    let (said, _) = sdk.run("echo sings").await;
    assert_eq!(said, "sings\n", "the control");
}

/// A hook runs where every command does, and nobody is there to see where that is.
#[tokio::test]
async fn a_link_in_place_of_the_working_directory_of_a_hook() {
    let (server, canary) = (Server::start(), Canary::new());
    let hook =
        json!({ "command": format!("pwd -P > /tmp/ran; cat {} > /tmp/found", canary.above()), "timeout_sec": 5 });
    let scope = json!({ "scheme": "fixed", "name": "one" });
    let made = json!({ "scope": scope, "spec": { "lifecycle": { "after_start": hook } } });
    let made = crate::stage::good(server.post("/v1/sandboxes:ensure", &made).send().await.unwrap()).await;
    let home = server.stdout("one", "pwd").await.trim().to_owned();
    let run = async |command: String| {
        let body = json!({ "scope": scope, "user": "root", "cwd": "/", "command": command });
        let ran = crate::stage::good(server.post("/v1/exec", &body).send().await.unwrap()).await;
        ran["stdout"].as_str().unwrap().to_owned()
    };
    let restart = async |leads: &str| {
        let link = format!(
            "rm -f /tmp/ran /tmp/found; [ -L {home} ] || mv {home} /moved; ln -sfn {leads} {home}; chmod 777 /tmp"
        );
        run(link).await;
        let stop = format!("/v1/sandboxes/{}/stop", made["id"].as_str().unwrap());
        crate::stage::good(server.request(reqwest::Method::POST, &stop).send().await.unwrap()).await;
        run("cat /tmp/ran /tmp/found 2>&1".into()).await
    };
    for number in 3..14 {
        let said = restart(&format!("/proc/self/fd/{number}")).await;
        assert!(!said.contains("sings"), "{number}: {said}");
    }
    let said = restart("/moved").await;
    assert!(said.starts_with("/moved\n") && !said.contains("sings"), "the control: where it may, it runs: {said}");
}
