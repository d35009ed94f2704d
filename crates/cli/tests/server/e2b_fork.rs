//! Forks of a sandbox, as E2B's SDKs ask for them.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    sdk::Sdk,
    stage::{client, good},
};

async fn fork(sdk: &Sdk, body: &Value) -> Response {
    let path = format!("/sandboxes/{}/fork", sdk.sandbox);
    sdk.control(Method::POST, &path).json(body).send().await.unwrap()
}

async fn read(sdk: &Sdk, fork: &Value, path: &str) -> String {
    let request = client().get(format!("{}/files?path={path}", sdk.server.url));
    let request = request.header("E2b-Sandbox-Id", fork["sandboxID"].as_str().unwrap());
    let answer = request.header("X-Access-Token", fork["envdAccessToken"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap()
}

async fn snapshots(sdk: &Sdk) -> usize {
    sdk.server.get("/v1/snapshots").await["snapshots"].as_array().unwrap().len()
}

#[tokio::test]
async fn forks_begin_with_the_files_and_go_their_own_way() {
    let sdk = Sdk::start().await;
    sdk.write("state.txt", "before").await;
    let mut goes_on = sdk.begin("echo up; cat", json!({ "stdin": true })).await;
    goes_on.pid().await;
    goes_on.until("up\n").await;
    let answer = fork(&sdk, &json!({ "count": 2, "timeout": 60 })).await;
    assert_eq!(answer.status(), 201);
    let forks = good(answer).await;
    let forks: Vec<&Value> = forks.as_array().unwrap().iter().map(|fork| &fork["sandbox"]).collect();
    assert_eq!(forks.len(), 2);
    assert_ne!(forks[0]["sandboxID"], forks[1]["sandboxID"]);
    assert_eq!(snapshots(&sdk).await, 0, "what they were made from is nobody's");
    sdk.write("state.txt", "after").await;
    for fork in &forks {
        assert_eq!(read(&sdk, fork, "state.txt").await, "before");
        assert_ne!(fork["envdAccessToken"], sdk.token.as_str(), "each has a token of its own");
        let path = format!("/sandboxes/{}", fork["sandboxID"].as_str().unwrap());
        let detail = good(sdk.control(Method::GET, &path).send().await.unwrap()).await;
        assert_eq!((&detail["state"], &detail["templateID"]), (&json!("running"), &json!("base")));
    }
    let running = sdk.call("/process.Process/List", json!({})).await;
    assert_eq!(running["processes"].as_array().unwrap().len(), 1, "the first one goes on");
}

#[tokio::test]
async fn what_cannot_be_forked_is_refused() {
    let sdk = Sdk::start().await;
    for count in [0, 101] {
        assert_eq!(fork(&sdk, &json!({ "count": count })).await.status(), 400);
    }
    let stranger = sdk.server.key_for("other", "use").await;
    for (key, sandbox) in [(&sdk.server.key, "i0123456789abcdefghij"), (&stranger, sdk.sandbox.as_str())] {
        let request = client().post(format!("{}/sandboxes/{sandbox}/fork", sdk.server.url)).header("x-api-key", key);
        assert_eq!(request.json(&json!({})).send().await.unwrap().status(), 404);
    }
    let pause = format!("/sandboxes/{}/pause", sdk.sandbox);
    assert_eq!(sdk.control(Method::POST, &pause).send().await.unwrap().status(), 204);
    let answer = fork(&sdk, &json!({})).await;
    assert_eq!(answer.status(), 409);
    assert_eq!(answer.json::<Value>().await.unwrap()["code"], 409);
    assert_eq!(snapshots(&sdk).await, 0);
}

#[tokio::test]
async fn of_forks_beyond_a_quota_each_that_is_too_much_fails_by_itself() {
    let sdk = Sdk::start().await;
    let quota = sdk.server.request(Method::PUT, "/v1/quotas/default").json(&json!({ "sandboxes": 2 }));
    good(quota.send().await.unwrap()).await;
    let answer = fork(&sdk, &json!({ "count": 3 })).await;
    assert_eq!(answer.status(), 201);
    let forks = good(answer).await;
    let forks = forks.as_array().unwrap();
    assert_eq!(forks.iter().filter(|fork| !fork["sandbox"].is_null()).count(), 1, "{forks:?}");
    let refused: Vec<_> = forks.iter().filter(|fork| !fork["error"].is_null()).collect();
    assert_eq!(refused.len(), 2);
    assert!(refused.iter().all(|fork| fork["error"]["code"] == 429), "{refused:?}");
    assert_eq!(snapshots(&sdk).await, 0);
}
