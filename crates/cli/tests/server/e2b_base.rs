//! The template `base`, as `cabana template build base` makes it: what E2B's SDKs count on is there.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    recipes,
    stage::{Server, good},
};

async fn made(server: &Server) -> String {
    let request = server.request(Method::POST, "/sandboxes").header("X-API-KEY", &server.key);
    let made: Response = request.json(&json!({"templateID": "base", "timeout": 600})).send().await.unwrap();
    good(made).await["sandboxID"].as_str().unwrap().to_owned()
}

async fn ran(server: &Server, sandbox: &str, command: &str) -> Value {
    let body = json!({ "command": command });
    good(server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &body).send().await.unwrap()).await
}

#[tokio::test]
async fn what_sdks_count_on_is_in_the_template_base() {
    let server = Server::prepared(&[], recipes::base);
    let template = server.get("/v1/templates/base").await;
    let about = ["user", "workdir", "sudo", "source"].map(|name| template[name].clone());
    assert_eq!(about, [json!("user"), json!("/home/user"), json!(true), json!("recipe base")]);
    let sandbox = made(&server).await;
    for (command, said) in [
        ("whoami", "user"),
        ("id -u; id -g; id -gn", "1000\n1000\nuser"),
        ("pwd; echo $HOME; getent passwd user", "/home/user\n/home/user\nuser:x:1000:1000::/home/user:/bin/bash"),
        ("umask", "0022"),
        ("echo $LANG", "C.UTF-8"),
        ("sudo id -u", "0"),
        ("sudo -n -u user id -u; sudo env | grep -c ^SUDO_USER=user", "1000\n1"),
        ("python -c 'print(1 + 1)'; python3 -c 'print(2 + 2)'", "2\n4"),
        ("TERM=xterm-256color tput cols > /dev/null && echo it knows", "it knows"),
        (
            "touch ~/tagged && setfattr -n user.e2b.kind -v good ~/tagged && getfattr --only-values -n user.e2b.kind ~/tagged",
            "good",
        ),
        (
            "python3 -c 'import os; os.setxattr(\"/home/user/tagged\", \"user.a\", b\"b\"); print(os.listxattr(\"/home/user/tagged\"))'",
            "['user.e2b.kind', 'user.a']",
        ),
        ("python3 -m venv ~/venv && ~/venv/bin/python -c 'import sys; print(sys.prefix)'", "/home/user/venv"),
        ("command -v mcp-gateway || echo none", "none"),
        ("stat -c '%U %a' /home/user /home/user/.bashrc", "user 755\nuser 644"),
    ] {
        let answer = ran(&server, &sandbox, command).await;
        assert_eq!(answer["stdout"].as_str().unwrap().trim(), said, "{command}: {answer}");
    }
}

#[tokio::test]
async fn git_serves_and_clones_inside_of_it() {
    let server = Server::prepared(&[], recipes::base);
    let sandbox = made(&server).await;
    let script = "set -e; git init -q --bare /tmp/served/one.git
        git daemon --reuseaddr --base-path=/tmp/served --export-all --detach --pid-file=/tmp/pid --listen=127.0.0.1
        until git clone -q git://127.0.0.1/one.git /tmp/cloned; do sleep 0.2; done
        git -C /tmp/cloned remote get-url origin; kill $(cat /tmp/pid)";
    let answer = ran(&server, &sandbox, script).await;
    assert_eq!(answer["stdout"], "git://127.0.0.1/one.git\n", "{answer}");
}
