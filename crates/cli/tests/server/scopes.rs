//! Which sandbox a call belongs to.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::stage::{Server, client, good, refused, until};

#[tokio::test]
async fn fp_01_a_chat_has_the_id_that_its_parts_give() {
    let server = Server::start();
    let scope = json!({ "scheme": "chat", "app": "app", "user": "user", "chat": "chat" });
    let made = good(server.post("/v1/sandboxes:ensure", &json!({ "scope": scope })).send().await.unwrap()).await;
    // printf %s app-user-chat | sha256sum | head -c 16
    assert_eq!(made["id"], "6dc28d76e2cef331");
    let told = json!({ "scheme": "chat", "value": "app-user-chat", "app": "app", "user": "user", "chat": "chat" });
    assert_eq!(made["scope"], told);
}

/// Two scopes whose parts give one id: the first has it, the other has no sandbox, and never the first one's.
#[tokio::test]
async fn fp_01_a_chat_whose_id_belongs_to_one_with_other_parts_is_a_conflict() {
    let server = Server::start();
    let of = |user: &str, chat: &str| json!({ "scheme": "chat", "app": "shop", "user": user, "chat": chat });
    let (alices, others) = (of("alice", "smith-7"), of("alice-smith", "7"));
    let exec = async |scope: &Value, command: &str| {
        server.post("/v1/exec", &json!({ "scope": scope, "command": command })).send().await.unwrap()
    };
    good(exec(&alices, "echo hers > note").await).await;
    let conflict = (409, "scope_conflict".to_owned());
    assert_eq!(refused(exec(&others, "cat note").await).await, conflict);
    let ensure = async || server.post("/v1/sandboxes:ensure", &json!({ "scope": others })).send().await.unwrap();
    assert_eq!(refused(ensure().await).await, conflict);
    let file = json!({ "action": "read", "appId": "shop", "chatId": "7", "path": "note" });
    let file = server.post("/api/core/ai/sandbox/file", &file).header("Cabana-User", "alice-smith");
    assert_eq!(refused(file.send().await.unwrap()).await, conflict);
    let hers = server.get("/v1/sandboxes").await["sandboxes"][0]["id"].as_str().unwrap().to_owned();
    good(server.post(&format!("/v1/sandboxes/{hers}/stop"), &json!({})).send().await.unwrap()).await;
    assert_eq!(refused(ensure().await).await, conflict, "also while it is stopped");
    // An id is one of its tenant's: it is free in another one.
    let elsewhere = server.key_for("elsewhere", "use").await;
    let body = json!({ "scope": others, "command": "cat note || true" });
    let said = client().post(format!("{}/v1/exec", server.url)).bearer_auth(elsewhere).json(&body);
    let said = good(said.send().await.unwrap()).await;
    assert_eq!(said["stdout"], "");
    server.request(Method::DELETE, &format!("/v1/sandboxes/{hers}")).send().await.unwrap();
    let made = until(|| async { Some(ensure().await).filter(|answer| answer.status().is_success()) }).await;
    assert_eq!(good(made).await["id"], hers, "the id is free");
}

#[tokio::test]
async fn sk_08_agents_of_projects_whose_names_join_to_one_value_share_nothing() {
    let server = Server::start();
    let of = |project: &str, agent: &str| json!({ "scheme": "project_agent", "project": project, "agent": agent });
    let mut ids = BTreeSet::new();
    for scope in [of("a_b", "c"), of("a", "b_c")] {
        let made = good(server.post("/v1/sandboxes:ensure", &json!({ "scope": scope })).send().await.unwrap()).await;
        assert_eq!((&made["scope"]["value"], &made["scope"]["agent"]), (&json!("a_b_c"), &scope["agent"]));
        ids.insert(made["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids.len(), 2);
}

#[tokio::test]
async fn fp_02_chats_share_nothing_and_turns_of_one_share_files() {
    let server = Server::start();
    server.stdout("one", "echo hello > note").await;
    assert_eq!(server.stdout("one", "cat note").await, "hello\n");
    assert_eq!(server.exec("two", "cat note").await["exit_code"], 1);
}

#[tokio::test]
async fn fp_04_ensure_makes_wakes_and_returns() {
    let server = Server::start();
    let first = server.ensure("one").await;
    assert_eq!((&first["created"], &first["state"]), (&json!(true), &json!("running")));
    server.stdout("one", "echo kept > file").await;
    let again = server.ensure("one").await;
    assert_eq!((&again["created"], &again["id"]), (&json!(false), &first["id"]));
    let path = format!("/v1/sandboxes/{}", first["id"].as_str().unwrap());
    let stopped = good(server.post(&format!("{path}/stop"), &json!({})).send().await.unwrap()).await;
    assert_eq!(stopped["state"], "stopped");
    let woken = server.ensure("one").await;
    assert_eq!((&woken["created"], &woken["state"]), (&json!(false), &json!("running")));
    assert_eq!(server.stdout("one", "cat file").await, "kept\n");
}

#[tokio::test]
async fn lb_14_a_hundred_at_once_make_exactly_one() {
    let server = Server::start();
    let asked = (0..100).map(|_| server.ensure("one"));
    let all: Vec<Value> = futures_util::future::join_all(asked).await;
    let ids: BTreeSet<_> = all.iter().map(|sandbox| sandbox["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(all.iter().filter(|sandbox| sandbox["created"] == true).count(), 1);
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(server.inits().len(), 1);
}

#[tokio::test]
async fn fp_03_nothing_is_made_before_it_is_used() {
    let server = Server::start();
    server.key_for("us", "use").await;
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"], json!([]));
    let absent = server.request(Method::GET, "/v1/sandboxes/s0123456789abcdef").send().await.unwrap();
    assert_eq!(refused(absent).await, (404, "sandbox_not_found".into()), "a look makes nothing");
    assert!(server.inits().is_empty());
    server.exec("one", "true").await;
    assert_eq!(server.inits().len(), 1);
}

#[tokio::test]
async fn lb_03_and_04_a_scope_is_the_launchers_unless_its_template_says_more() {
    let server = Server::start();
    let from = |sender: &str, conversation: &str, query: &str| {
        json!({
            "launcher_type": "group", "launcher_id": "7", "sender_id": sender,
            "conversation_id": conversation, "query_id": query,
        })
    };
    let id = async |template: Option<&str>, variables: Value| {
        let mut scope = json!({ "scheme": "template", "variables": variables });
        if let Some(template) = template {
            scope["template"] = json!(template);
        }
        let made = server.post("/v1/sandboxes:ensure", &json!({ "scope": scope })).send().await.unwrap();
        good(made).await["id"].as_str().unwrap().to_owned()
    };
    let chat = "{launcher_type}_{launcher_id}";
    let usual = id(None, from("a", "1", "x")).await;
    assert_eq!(usual, id(Some(chat), from("b", "2", "y")).await, "lb_07: whoever speaks in the group");
    let presets = [format!("{chat}_{{sender_id}}"), format!("{chat}_{{conversation_id}}"), "{query_id}".to_owned()];
    let mut all = BTreeSet::from([usual]);
    for preset in &presets {
        let (first, second) = (from("a", "1", "x"), from("b", "2", "y"));
        all.extend([id(Some(preset), first.clone()).await, id(Some(preset), second).await]);
        assert!(!all.insert(id(Some(preset), first).await), "the same values, the same sandbox");
    }
    assert_eq!(all.len(), 7);
}

#[tokio::test]
async fn lb_08_commands_tasks_and_files_of_a_scope_share_its_one_sandbox() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let file = format!("/v1/sandboxes/{sandbox}/files?path=note");
    good(server.request(Method::PUT, &file).body("by file").send().await.unwrap()).await;
    assert_eq!(server.stdout("one", "cat note").await, "by file");
    let task = server.begin("one", "echo by task > note").await;
    assert_eq!(server.ended(&task).await["sandbox"], sandbox.as_str());
    let read = server.request(Method::GET, &file).send().await.unwrap();
    assert_eq!(read.text().await.unwrap(), "by task\n");
    assert_eq!(server.inits().len(), 1);
}

#[tokio::test]
async fn lb_05_a_template_without_its_variables_leads_to_unknown() {
    let server = Server::start();
    let ensure = async |template: &str, variables: Value| {
        let scope = json!({ "scheme": "template", "template": template, "variables": variables });
        server.post("/v1/sandboxes:ensure", &json!({ "scope": scope })).send().await.unwrap()
    };
    let group =
        good(ensure("{launcher_type}_{launcher_id}", json!({ "launcher_type": "group", "launcher_id": "7" })).await);
    assert_eq!(group.await["scope"]["value"], "group_7");
    let bare = good(ensure("{launcher_type}_{launcher_id}", json!({})).await).await;
    assert_eq!(bare["scope"]["value"], "unknown_unknown");
    assert_eq!(refused(ensure("{launcher_type", json!({})).await).await, (400, "bad_request".into()));
    assert_eq!(refused(ensure("{a.b}", json!({})).await).await, (400, "bad_request".into()));
}

#[tokio::test]
async fn sk_08_without_a_scope_a_call_has_a_sandbox_of_its_own() {
    let server = Server::start();
    for _ in 0..2 {
        let body = json!({ "command": "ls; touch left; hostname" });
        let answer = good(server.post("/v1/exec", &body).send().await.unwrap()).await;
        assert_eq!(answer["stdout"], "cabana\n");
    }
    until(|| async {
        let left = server.get("/v1/sandboxes").await["sandboxes"].as_array().unwrap().len();
        (left == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_deleted_sandbox_is_gone_and_its_scope_begins_anew() {
    let server = Server::start();
    let first = server.ensure("one").await;
    server.stdout("one", "touch file").await;
    let path = format!("/v1/sandboxes/{}", first["id"].as_str().unwrap());
    assert!(server.request(Method::DELETE, &path).send().await.unwrap().status().is_success());
    let gone = (404, "sandbox_not_found".to_owned());
    assert_eq!(refused(server.request(Method::GET, &path).send().await.unwrap()).await, gone);
    assert_eq!(refused(server.request(Method::DELETE, &path).send().await.unwrap()).await, gone);
    assert_eq!(server.stdout("one", "ls").await, "");
    assert_ne!(server.ensure("one").await["id"], first["id"]);
}

#[tokio::test]
async fn what_a_sandbox_cannot_be_is_refused_and_leaves_nothing() {
    let server = Server::start();
    for (spec, code) in [
        (json!({ "template": "nowhere" }), "template_not_found"),
        (json!({ "limits": { "memory_bytes": 1 } }), "bad_request"),
        (json!({ "limits": { "colour": 1 } }), "bad_request"),
        (json!({ "network": { "mode": "public", "allow": ["a.b"] } }), "bad_request"),
        (json!({ "user": "no such name" }), "bad_request"),
    ] {
        // Of a scope of its own: whether the last one's is still in hand is chance.
        let body = json!({ "scope": { "scheme": "fixed", "name": spec.to_string() }, "spec": spec });
        let told = refused(server.post("/v1/sandboxes:ensure", &body).send().await.unwrap()).await;
        assert_eq!(told.1, code, "{spec}");
    }
    assert!(server.inits().is_empty());
}
