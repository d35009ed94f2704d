//! Account files of a sandbox that say what cannot be: an answer to whoever asks, and no fault of the server.

use serde_json::{Value, json};

use crate::stage::{Server, good, refused};

async fn exec(server: &Server, user: &str, command: &str) -> reqwest::Response {
    let body = json!({ "scope": { "scheme": "fixed", "name": "one" }, "user": user, "cwd": "/", "command": command });
    server.post("/v1/exec", &body).send().await.unwrap()
}

fn stdout(answer: &Value) -> &str {
    answer["stdout"].as_str().unwrap()
}

#[tokio::test]
async fn a_group_beyond_the_ids_of_a_sandbox_is_left_out_and_a_user_beyond_them_is_refused() {
    let server = Server::start();
    let script = "echo far:x:131072:user,root >> /etc/group; echo near:x:65535:user >> /etc/group; \
        echo odd:x:131072:5::/:/bin/sh >> /etc/passwd; echo other:x:5:131072::/:/bin/sh >> /etc/passwd";
    good(exec(&server, "root", script).await).await;
    assert_eq!(stdout(&good(exec(&server, "user", "id -G").await).await), "1000 65535\n");
    assert_eq!(stdout(&good(exec(&server, "root", "id -G").await).await), "0\n");
    for user in ["odd", "other", "131072"] {
        assert_eq!(refused(exec(&server, user, "true").await).await, (400, "unknown_user".into()), "{user}");
    }
    assert!(server.said().iter().all(|line| !line.contains("ERROR")), "{:?}", server.said());
}

#[tokio::test]
async fn a_sandbox_whose_account_file_is_none_is_repaired_by_number() {
    let server = Server::start();
    for way in ["mkfifo $f", "ln -s /proc/1/environ $f", "ln -s /dev/zero $f", "mkdir $f"] {
        good(exec(&server, "0", &format!("cp -n /etc/passwd /tmp/good; f=/etc/passwd; rm -rf $f; {way}")).await).await;
        assert_eq!(refused(exec(&server, "user", "true").await).await, (400, "unknown_user".into()), "{way}");
        good(exec(&server, "0", "rm -rf /etc/passwd; cp /tmp/good /etc/passwd").await).await;
        assert_eq!(stdout(&good(exec(&server, "user", "id -un").await).await), "user\n", "{way}");
    }
}
