//! A server that is started again serves before it has taken up what the last one left: no tenant decides how long a start takes.

use cabana_model::{SandboxId, Tenant};
use cabana_store::{Durability, Store};
use reqwest::{Method, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::stage::{Server, good, refused, until};

/// As a sandbox whose first process does not get the processor.
fn signal(inits: &[u32], signal: Signal) {
    for pid in inits {
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    }
}

#[tokio::test]
async fn a_sandbox_that_does_not_answer_holds_up_calls_to_itself_alone() {
    let mut server = Server::start();
    let task = server.begin("hangs", "until [ -e go ]; do sleep 0.05; done").await;
    server.stdout("hangs", "echo kept > file").await;
    let hangs = server.inits();
    server.stdout("one", "echo kept > file").await;
    server.kill();
    signal(&hangs, Signal::STOP);
    server.run();
    let live = server.request(Method::GET, "/livez").send().await.unwrap();
    assert_eq!(live.status(), StatusCode::OK);
    assert_eq!(server.stdout("one", "cat file").await, "kept\n");
    assert_eq!(server.record("hangs").await["state"], "running");
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await["state"], "running");
    let metrics = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(!metrics.contains("\ncabana_recovering 0\n"), "{metrics}");
    let mut call = Box::pin(server.stdout("hangs", "cat file; touch go"));
    tokio::select! {
        answer = &mut call => panic!("{answer}"),
        made = server.stdout("new", "echo works") => assert_eq!(made, "works\n"),
    }
    signal(&hangs, Signal::CONT);
    assert_eq!(call.await, "kept\n");
    assert_eq!(server.ended(&task).await["state"], "succeeded", "it is the same sandbox, and its task went on");
    until(|| async {
        let metrics = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
        metrics.contains("\ncabana_recovering 0\n").then_some(())
    })
    .await;
}

#[tokio::test]
async fn quotas_count_sandboxes_that_are_not_attached_to_yet() {
    let mut server = Server::start();
    let quota = json!({ "running": 2, "tasks": 1 });
    good(server.request(Method::PUT, "/v1/quotas/default").json(&quota).send().await.unwrap()).await;
    server.begin("hangs", "sleep 600").await;
    let hangs = server.inits();
    server.kill();
    signal(&hangs, Signal::STOP);
    server.run();
    server.ensure("second").await;
    let third = json!({ "scope": { "scheme": "fixed", "name": "third" } });
    let third = server.post("/v1/sandboxes:ensure", &third).send().await.unwrap();
    assert_eq!(refused(third).await, (429, "quota_exceeded".into()));
    let task = json!({ "scope": { "scheme": "fixed", "name": "second" }, "command": "true", "background": true });
    let task = server.post("/v1/exec", &task).send().await.unwrap();
    assert_eq!(refused(task).await, (429, "quota_exceeded".into()));
    signal(&hangs, Signal::CONT);
    server.stdout("hangs", "true").await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_keeps_no_server_from_its_start() {
    let mut server = Server::start();
    for scope in ["odd", "one"] {
        server.stdout(scope, "echo kept > file").await;
    }
    let odd = server.record("odd").await["id"].as_str().unwrap().to_owned();
    server.stop();
    let store = Store::open(server.data(), Durability::Kill).unwrap();
    let record = store.sandbox(&Tenant::default(), &SandboxId::new(odd.as_str()).unwrap()).await.unwrap().unwrap();
    let changed = store.change_spec(&record.physical, record.version, "{}".into(), None, record.changed).await;
    assert!(changed.unwrap().is_some());
    store.close().await;
    server.run();
    assert_eq!(server.stdout("one", "cat file").await, "kept\n");
    let asked = server.exec_in("odd", "cat file").await;
    assert!(asked.status().is_server_error(), "{asked:?}");
    until(|| async { server.said().iter().any(|line| line.contains(&odd)).then_some(()) }).await;
}
