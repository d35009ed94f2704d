//! The lines that the server writes.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::stage::{Server, good, until};

/// Values that nobody may read in a log.
const SECRETS: [&str; 4] = ["topsecretvalue", "typedsecret", "saidsecret", "sessionsecret"];

async fn busy(server: &Server) -> Value {
    let scope = json!({ "scheme": "fixed", "name": "one" });
    let ensure = json!({ "scope": scope, "spec": { "env": { "SESSION": "sessionsecret" } } });
    good(server.post("/v1/sandboxes:ensure", &ensure).send().await.unwrap()).await;
    let exec = json!({
        "scope": scope, "command": "cat; echo said$END", "stdin": "typedsecret\n",
        "env": { "TOKEN": "topsecretvalue", "END": "secret" },
    });
    let call = good(server.post("/v1/exec", &exec).send().await.unwrap()).await;
    assert!(call["stdout"].as_str().unwrap().contains("saidsecret"));
    let bad = json!({ "scope": scope, "argv": ["/no/such/program"], "env": { "TOKEN": "topsecretvalue" } });
    assert_eq!(server.post("/v1/exec", &bad).send().await.unwrap().status(), StatusCode::BAD_REQUEST);
    call
}

fn lines(server: &Server) -> Vec<Value> {
    server.said().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_no_secret(server: &Server) {
    let all = server.said().join("\n");
    for secret in SECRETS.iter().copied().chain([server.key.as_str()]) {
        assert!(!all.contains(secret), "{secret} in: {all}");
    }
}

#[tokio::test]
async fn in_json_every_line_is_an_object_and_one_about_a_call_says_which() {
    let mut server = Server::start_with(&["--log-format", "json", "--log-level", "debug"]);
    let call = busy(&server).await;
    let sandbox = server.ensure("one").await["id"].clone();
    let of_call = || async { lines(&server).into_iter().find(|line| line["span"]["call"] == call["call_id"]) };
    let line = until(of_call).await;
    assert_eq!((&line["message"], &line["outcome"]), (&json!("a call has ended"), &json!("answered")));
    assert_eq!(line["span"]["tenant"], "default");
    assert_eq!(line["span"]["verb"], "exec");
    assert_eq!(line["span"]["sandbox"], sandbox);
    let refused = || async { lines(&server).into_iter().find(|line| line["message"] == "a call was refused") };
    let refused = until(refused).await;
    assert_eq!(refused["code"], "program_not_found");
    assert_eq!(refused["span"]["sandbox"], sandbox);
    // What goes on in the background says which task and call it is.
    let task = server.begin("one", "sleep 0.1").await;
    server.ended(&task).await;
    server.stop();
    assert_no_secret(&server);
    let about = lines(&server).into_iter().filter(|line| line["message"].as_str().unwrap().starts_with("a call "));
    for line in about {
        assert!(line["span"]["call"].is_string() && line["span"]["tenant"].is_string(), "{line}");
    }
}

#[tokio::test]
async fn a_failure_of_ours_is_said_once_with_its_call_at_every_level() {
    let server = Server::start_with(&["--log-level", "error"]);
    busy(&server).await;
    assert_eq!(server.said().iter().filter(|line| line.contains("call=")).count(), 0, "nothing failed");
    // A sandbox whose files cannot be made: the place where they lie is gone.
    std::fs::rename(server.data().join("sandboxes"), server.data().join("elsewhere")).unwrap();
    let body = json!({ "scope": { "scheme": "fixed", "name": "two" }, "command": "true" });
    let answers = || async {
        let answer = server.post("/v1/exec", &body).send().await.unwrap();
        let (status, body) = (answer.status(), answer.json::<Value>().await.unwrap());
        status.is_server_error().then(|| body["error"]["call_id"].as_str().unwrap().to_owned())
    };
    let call = until(answers).await;
    std::fs::rename(server.data().join("elsewhere"), server.data().join("sandboxes")).unwrap();
    let about = || async { Some(server.said()).filter(|said| said.iter().any(|line| line.contains(&call))) };
    let said: Vec<String> = until(about).await.into_iter().filter(|line| line.contains(&call)).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("a call failed") && said[0].contains("tenant=default") && said[0].contains("sandbox="));
    assert_no_secret(&server);
}
