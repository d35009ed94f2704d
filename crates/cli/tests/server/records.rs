//! What calls leave in the ledger and beside it is bounded, whoever makes them and however many.

use futures_util::{StreamExt, stream};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    e2b::signed,
    sdk::Sdk,
    stage::{Server, client, good, refused, until},
};

/// Of the tenant `us`.
async fn rows(server: &Server) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let request = server.request(Method::GET, &format!("/v1/ledger?limit=1000&after={after}"));
        let page = good(request.header("Cabana-Tenant", "us").send().await.unwrap()).await;
        let page = page["rows"].as_array().unwrap().clone();
        let Some(last) = page.last() else { return all };
        after = last["seq"].as_u64().unwrap();
        all.extend(page);
    }
}

async fn sandbox_of_us(server: &Server, key: &str) -> String {
    let made = client().post(format!("{}/v1/sandboxes", server.url)).bearer_auth(key).json(&json!({}));
    good(made.send().await.unwrap()).await["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn reads_of_one_key_leave_few_short_rows_and_the_rest_is_summed_up() {
    const READS: u64 = 1500;
    let mut server = Server::start();
    let (using, reading) = (server.key_for("us", "use").await, server.key_for("us", "read").await);
    let sandbox = sandbox_of_us(&server, &using).await;
    let path = ["d".repeat(200).as_str(); 19].join("/");
    let url = format!("{}/v1/sandboxes/{sandbox}/files/stat?path=/{path}", server.url);
    let began = std::time::Instant::now();
    let (url, reading, client) = (&url, &reading, &client());
    let reads = stream::iter(0..READS).map(|_| async move {
        let answer = client.get(url).bearer_auth(reading).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    });
    reads.buffer_unordered(16).collect::<()>().await;
    let spent = began.elapsed().as_secs();
    // What is summed up by then is recorded at the end of the server.
    server.stop();
    server.run();
    let rows = rows(&server).await;
    let of = |verb: &str| rows.iter().filter(|row| row["verb"] == verb).collect::<Vec<_>>();
    let (own, more) = (of("file.stat"), of("read.more"));
    assert!((600..=601 + spent).contains(&(own.len() as u64)), "{} rows after {spent} s", own.len());
    let summed: u64 = more.iter().map(|row| row["argv"][0].as_str().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(own.len() as u64 + summed, READS, "none is forgotten");
    for row in &own {
        assert!(row.to_string().len() < 1500 && row["argv"].to_string().contains(" bytes, sha256"), "{row}");
    }
    assert_eq!(own[0]["key"], more[0]["key"], "it says whose they were");
    let told = server.get("/v1/quotas/us").await["use"]["ledger_bytes"].as_u64().unwrap();
    let texts: usize = rows.iter().map(|row| row.to_string().len()).sum();
    assert!(told > texts as u64 / 2 && told < 2 * texts as u64, "{told} bytes of {texts}");
}

#[tokio::test]
async fn a_tenant_whose_records_are_long_enough_may_read_and_delete() {
    const MOST: u64 = 96 << 10;
    let mut server = Server::start();
    let key = server.key_for("us", "use").await;
    let sandbox = sandbox_of_us(&server, &key).await;
    let send = async |server: &Server, method: Method, path: &str, body: Value| {
        client().request(method, format!("{}{path}", server.url)).bearer_auth(&key).json(&body).send().await.unwrap()
    };
    let limit = |most: u64| json!({ "ledger_bytes": most });
    good(server.request(Method::PUT, "/v1/quotas/us").json(&limit(MOST)).send().await.unwrap()).await;
    let exec = format!("/v1/sandboxes/{sandbox}/exec");
    let long = json!({ "argv": ["true", "x".repeat(7000)] });
    let mut made = 0;
    let refusal = loop {
        let answer = send(&server, Method::POST, &exec, long.clone()).await;
        if !answer.status().is_success() {
            break answer;
        }
        made += 1;
        assert!(made < 20, "nothing bounds what is recorded");
    };
    let told: Value = refusal.json().await.unwrap();
    assert_eq!(
        (&told["error"]["code"], &told["error"]["details"]["quota"]),
        (&json!("quota_exceeded"), &json!("ledger_bytes"))
    );
    // Also by the next server, which counts anew.
    server.kill();
    server.run();
    assert_eq!(refused(send(&server, Method::POST, &exec, long.clone()).await).await, (429, "quota_exceeded".into()));
    let before = rows(&server).await.len();
    let stat = format!("/v1/sandboxes/{sandbox}/files/stat?path=/etc");
    for _ in 0..20 {
        good(send(&server, Method::GET, &stat, Value::Null).await).await;
    }
    assert_eq!(rows(&server).await.len(), before, "what is only read is summed up");
    let gone = send(&server, Method::DELETE, &format!("/v1/sandboxes/{sandbox}"), Value::Null).await;
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    assert_eq!(rows(&server).await.len(), before + 1, "what removes something has its row");
    let use_now = server.get("/v1/quotas/us").await["use"]["ledger_bytes"].as_u64().unwrap();
    assert!(use_now > MOST / 2 && use_now < 2 * MOST, "{use_now}");
    good(server.request(Method::PUT, "/v1/quotas/us").json(&limit(10 * MOST)).send().await.unwrap()).await;
    good(send(&server, Method::POST, "/v1/sandboxes", json!({})).await).await;
    let keys = server.get("/v1/keys?tenant=us").await;
    let of_key = format!("/v1/keys/{}/quota", keys["keys"][0]["id"].as_str().unwrap());
    let of_key = server.request(Method::PUT, &of_key).json(&limit(MOST)).send().await.unwrap();
    assert_eq!(refused(of_key).await, (400, "bad_request".into()), "the ledger is the tenant's");
}

#[tokio::test]
async fn removals_that_find_nothing_take_none_of_what_a_full_ledger_keeps_for_removals() {
    const MOST: u64 = 96 << 10;
    let server = Server::start();
    let key = server.key_for("us", "use").await;
    let sandbox = sandbox_of_us(&server, &key).await;
    let send = async |method: Method, path: &str, body: Value| {
        client().request(method, format!("{}{path}", server.url)).bearer_auth(&key).json(&body).send().await.unwrap()
    };
    good(send(Method::POST, &format!("/v1/sandboxes/{sandbox}/exec"), json!({ "command": "touch there" })).await).await;
    good(send(Method::POST, "/v1/volumes", json!({ "name": "v" })).await).await;
    let none = format!("/v1/sandboxes/{sandbox}/files?path=none");
    let removals = [
        (Method::DELETE, "/v1/volumes/none", Value::Null, false),
        (Method::DELETE, none.as_str(), Value::Null, false),
        (Method::DELETE, "/v1/snapshots/snap_01890a5dac96774bbcceb302099a8057", Value::Null, false),
        (Method::POST, "/v1/sandboxes:delete", json!({ "app": "none" }), true),
    ];
    let before = rows(&server).await.len();
    for (method, path, body, _) in &removals {
        send(method.clone(), path, body.clone()).await;
    }
    assert_eq!(rows(&server).await.len(), before + removals.len(), "each has its row while there is room");
    let limit = json!({ "ledger_bytes": MOST });
    good(server.request(Method::PUT, "/v1/quotas/us").json(&limit).send().await.unwrap()).await;
    let long = json!({ "argv": ["true", "x".repeat(7000)] });
    let mut made = 0;
    while send(Method::POST, &format!("/v1/sandboxes/{sandbox}/exec"), long.clone()).await.status().is_success() {
        made += 1;
        assert!(made < 20, "nothing bounds what is recorded");
    }
    // The rest, to the last byte that is not for removals.
    let short = json!({ "argv": ["true"] });
    while send(Method::POST, &format!("/v1/sandboxes/{sandbox}/exec"), short.clone()).await.status().is_success() {
        made += 1;
        assert!(made < 1000, "nothing bounds what is recorded");
    }
    let full = rows(&server).await.len();
    // What is recorded may be counted anew meanwhile, and be a little less than was thought.
    let is_kept = |now: usize| now <= full + 40;
    for _ in 0..25 {
        for (method, path, body, is_answered) in &removals {
            assert_eq!(send(method.clone(), path, body.clone()).await.status().is_success(), *is_answered, "{path}");
        }
    }
    assert!(is_kept(rows(&server).await.len()), "a hundred of them found nothing");
    let stop = format!("/v1/sandboxes/{sandbox}/stop");
    for _ in 0..100 {
        good(send(Method::POST, &stop, json!({})).await).await; // it is that already, but for the first time
    }
    let stopped = rows(&server).await;
    assert!(is_kept(stopped.len()), "it was stopped once");
    assert!(stopped.iter().any(|row| row["argv"] == json!(["stopped"])), "what ends something has its row");
    let gone = send(Method::DELETE, "/v1/volumes/v", Value::Null).await;
    assert!(gone.status().is_success(), "{gone:?}");
    assert_eq!(rows(&server).await.len(), stopped.len() + 1, "and so has what removes something");
}

#[tokio::test]
async fn uploads_by_a_signed_url_leave_few_rows_and_the_rest_is_summed_up() {
    const UPLOADS: u64 = 60;
    let mut sdk = Sdk::start().await;
    let url = signed(&sdk.token, "a.txt", "write", None);
    let upload = async |sdk: &Sdk, text: String| {
        until(|| async {
            let request = sdk.inside(Method::POST, &url).header("content-type", "application/octet-stream");
            let answer = request.body(text.clone()).send().await.unwrap();
            if answer.status() == StatusCode::TOO_MANY_REQUESTS {
                return None; // fifty of them a second
            }
            assert!(answer.status().is_success(), "{answer:?}");
            Some(())
        })
        .await;
    };
    for number in 0..UPLOADS {
        upload(&sdk, number.to_string()).await;
    }
    assert_eq!(sdk.read("a.txt").await.text().await.unwrap(), (UPLOADS - 1).to_string(), "each was done");
    // What is summed up by then is recorded at the end of the server.
    sdk.server.stop();
    sdk.server.run();
    let (own, summed, name_sandbox) = own_and_summed(&sdk.server, "file.write", "file.write.more").await;
    let own = own as u64;
    assert_eq!(own + summed, UPLOADS, "none is forgotten");
    assert!(name_sandbox, "each sum is of one sandbox");
    assert!((20..UPLOADS).contains(&own), "{own} rows of their own");
}

/// Of the tenant `default`: more than there is, of which half is there then.
pub(crate) async fn fill_ledger(server: &Server) {
    let used = server.get("/v1/quotas/default").await["use"]["ledger_bytes"].as_u64().unwrap();
    let most = json!({ "ledger_bytes": used + used / 2 });
    good(server.request(Method::PUT, "/v1/quotas/default").json(&most).send().await.unwrap()).await;
}

/// How many rows of this verb there are, how many calls are summed up in those of the other, and whether each of these names a sandbox.
pub(crate) async fn own_and_summed(server: &Server, own: &str, more: &str) -> (usize, u64, bool) {
    let ledger = server.get("/v1/ledger?limit=1000").await["rows"].as_array().unwrap().clone();
    let of = |verb: &str| ledger.iter().filter(|row| row["verb"] == verb).cloned().collect::<Vec<_>>();
    let (own, more) = (of(own), of(more));
    let summed = more.iter().map(|row| row["argv"][0].as_str().unwrap().parse::<u64>().unwrap()).sum();
    (own.len(), summed, more.iter().all(|row| row["sandbox"].is_string()))
}

#[tokio::test]
async fn reads_by_a_signed_url_leave_no_rows_of_their_own_where_half_of_the_ledger_is_there() {
    const READS: u64 = 8;
    let mut sdk = Sdk::start().await;
    good(sdk.write("a.txt", "hello").await).await;
    let url = signed(&sdk.token, "a.txt", "read", None);
    let read = async |sdk: &Sdk| {
        for _ in 0..READS {
            let answer = sdk.inside(Method::GET, &url).send().await.unwrap();
            assert_eq!((answer.status(), answer.text().await.unwrap().as_str()), (StatusCode::OK, "hello"));
        }
    };
    let counted = async |sdk: &Sdk| own_and_summed(&sdk.server, "file.read", "file.read.more").await;
    read(&sdk).await;
    let own = counted(&sdk).await.0;
    assert_eq!(own as u64, READS, "the control: each has its row while there is room");
    fill_ledger(&sdk.server).await;
    read(&sdk).await;
    // What is summed up by then is recorded at the end of the server.
    sdk.server.stop();
    sdk.server.run();
    assert_eq!(counted(&sdk).await, (own, READS, true));
}

/// Who makes a key, takes one back, or says what a tenant may have, is in the ledger as who runs a command.
#[tokio::test]
async fn what_the_operator_does_has_a_row_each_and_keys_that_open_nothing_have_one_together() {
    let server = Server::start();
    let body = json!({ "role": "use", "tenant": "theirs", "subject": "ann" });
    let made = good(server.post("/v1/keys", &body).send().await.unwrap()).await;
    let (id, text) = (made["id"].as_str().unwrap().to_owned(), made["key"].as_str().unwrap().to_owned());
    let send = async |method: Method, path: &str, body: Option<Value>| {
        let request = server.request(method, path);
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
        good(request.send().await.unwrap()).await
    };
    send(Method::PUT, "/v1/quotas/theirs", Some(json!({ "running": 3 }))).await;
    send(Method::DELETE, "/v1/quotas/theirs", None).await;
    send(Method::PUT, &format!("/v1/keys/{id}/quota"), Some(json!({ "running": 2 }))).await;
    for _ in 0..2 {
        send(Method::DELETE, &format!("/v1/keys/{id}"), None).await;
    }
    for _ in 0..3 {
        let refused = server.request(Method::GET, "/v1/sandboxes").header("X-API-KEY", &text);
        assert_eq!(refused.send().await.unwrap().status(), 401);
    }
    // The row of those that were refused is written beside their answers.
    let ledger = until(|| async {
        let ledger = server.get("/v1/ledger").await;
        let has_all = ledger["rows"].as_array().unwrap().iter().any(|row| row["verb"] == "key.refused");
        has_all.then_some(ledger)
    })
    .await;
    let rows = ledger["rows"].as_array().unwrap();
    let said = |verb: &str| {
        let of = rows.iter().filter(|row| row["verb"] == verb);
        of.map(|row| row["argv"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(said("key.add"), [json!([id, "theirs", "use", "for ann"])]);
    assert_eq!(said("key.revoke"), [json!([id])], "the second time changed nothing");
    let set = said("quota.set");
    assert_eq!((set[0][0].as_str(), set[1][0].as_str()), (Some("theirs"), Some(id.as_str())));
    assert!(set[0][1].as_str().unwrap().contains("\"running\":3"), "{set:?}");
    assert_eq!(said("quota.remove"), [json!(["theirs"])]);
    assert_eq!(said("key.refused"), [json!(["1 keys", "the last from 127.0.0.1"])], "the next row comes in a minute");
    assert!(!ledger.to_string().contains(&text), "no key is in it");
}
