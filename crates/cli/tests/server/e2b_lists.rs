//! Lists whose length a guest or a tenant decides.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    e2b_watchers::peak_memory,
    sdk::Sdk,
    stage::{good, until},
};

const LIST: &str = "/filesystem.Filesystem/ListDir";

/// Many entries of two files, with a long path and much that is attached: so many as are said instead of LINKS.
const LONG_ENTRIES: &str = "
import os
os.chdir('/home/user')
os.mkdir('few')
for n in range(3000): open(f'few/{n:04}', 'w').close()
for _ in range(14):
    os.mkdir('s' * 240)
    os.chdir('s' * 240)
for name in 'ab':
    open(name, 'w').close()
    os.setxattr(name, b'user.e2b.t', b'v' * 3300)
    for n in range(LINKS): os.link(name, f'{name}{n:05}')
print(os.getcwd())
";

#[tokio::test]
async fn a_list_of_long_entries_does_not_fill_the_server_s_memory() {
    let sdk = Sdk::start().await;
    let dir = sdk.python("/", &LONG_ENTRIES.replace("LINKS", "4000")).await.trim().to_owned();
    let before = peak_memory(&sdk);
    let lists = (0..4).map(|_| sdk.refused(LIST, json!({ "path": dir, "depth": 1 })));
    for (status, code) in join_all(lists).await {
        assert!(
            (400, "invalid_argument") == (status, &code) || (429, "resource_exhausted") == (status, &code),
            "{code}"
        );
    }
    let more = peak_memory(&sdk) - before;
    assert!(more < 200, "{more} MiB for lists of 8000 entries"); // each would take 300 and more
    // A list that is long, and has little to tell of each, is whole.
    let few = sdk.call(LIST, json!({ "path": "/home/user/few", "depth": 1 })).await;
    let names: Vec<_> = few["entries"].as_array().unwrap().iter().map(|entry| entry["name"].clone()).collect();
    assert_eq!(names, (0..3000).map(|n| Value::from(format!("{n:04}"))).collect::<Vec<_>>());
    // Pages end sooner where entries have more to tell, and nothing is left out.
    let (mut seen, mut pages, mut cursor) = (0, 0, String::new());
    loop {
        let path = format!("/v1/sandboxes/{}/files/list?path={dir}&limit=1000{cursor}", sdk.sandbox);
        let page = sdk.server.request(Method::GET, &path).send().await.unwrap();
        assert!(page.content_length().unwrap() < 20 << 20);
        let page: Value = page.json().await.unwrap();
        seen += page["entries"].as_array().unwrap().len();
        pages += 1;
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, 8_002);
    assert!(pages > 10, "{pages}: no sooner than by their number");
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_charged_to_its_tenant() {
    let sdk = Sdk::start().await;
    let dir = sdk.python("/", &LONG_ENTRIES.replace("LINKS", "1200")).await.trim().to_owned();
    // The heads of the answers come, and their bodies lie in the server.
    let asked = json!({ "path": dir, "depth": 1 });
    let mut unread = Vec::new();
    let refused = loop {
        assert!(unread.len() < 64, "so many are let be unread");
        let answer = sdk.unary(LIST, asked.clone()).await;
        if answer.status() != 200 {
            break answer;
        }
        unread.push(answer);
    };
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.json::<Value>().await.unwrap()["code"], "resource_exhausted");
    assert!(!unread.is_empty());
    drop(unread);
    until(|| async { (sdk.unary(LIST, asked.clone()).await.status() == 200).then_some(()) }).await;
}

#[tokio::test]
async fn a_search_by_name_counts_the_tags_of_what_it_finds() {
    let sdk = Sdk::start().await;
    sdk.python("/", &LONG_ENTRIES.replace("'s' * 240", "'s'").replace("LINKS", "2000")).await;
    let search = async |glob: &str| {
        let path = format!("/v1/sandboxes/{}/files/search", sdk.sandbox);
        let asked = json!({ "path": "/home/user", "globs": [glob], "limit": 10_000 });
        let found = sdk.server.request(Method::POST, &path).json(&asked).send().await.unwrap();
        let length = found.content_length().unwrap();
        (length, found.json::<Value>().await.unwrap())
    };
    let (length, found) = search("s/**").await;
    assert_eq!(found["cut_off"], "size", "{length} bytes");
    assert!(length < 6 << 20, "{length} bytes for {} entries", found["hits"].as_array().unwrap().len());
    let (_, found) = search("few/**").await;
    assert_eq!((found["cut_off"].is_null(), found["hits"].as_array().unwrap().len()), (true, 3000));
}

#[tokio::test]
async fn logs_of_very_many_lines_do_not_fill_the_server_s_memory() {
    let sdk = Sdk::start().await;
    sdk.run("echo the first").await;
    for _ in 0..40 {
        sdk.run("yes '' | head -c 32000").await;
    }
    sdk.run("echo one; echo the last").await;
    let logs = async |query: &str| {
        let path = format!("/v2/sandboxes/{}/logs{query}", sdk.sandbox);
        let logs = sdk.control(Method::GET, &path).send().await.unwrap().json::<Value>().await.unwrap();
        let logs = logs["logs"].as_array().unwrap_or_else(|| panic!("{logs}")).clone();
        logs.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let last = until(|| async {
        let last = logs("?direction=backward&limit=3").await;
        (last[0] == "the last").then_some(last)
    });
    assert_eq!(last.await[1], "one");
    let before = peak_memory(&sdk);
    let (lines, each) = (logs("?limit=1000").await, join_all((0..4).map(|_| logs("?limit=1&search=last"))).await);
    assert_eq!(lines.len(), 1000);
    assert!(lines.iter().any(|line| line == "the first") && lines.iter().filter(|line| line.is_empty()).count() > 800);
    assert!(each.iter().all(|found| found.len() == 1), "{each:?}");
    assert_eq!(logs("?search=the%20last&direction=backward&limit=1").await, ["the last"]);
    let more = peak_memory(&sdk) - before;
    assert!(more < 100, "{more} MiB for a million lines"); // each request took 900 and more
}

#[tokio::test]
async fn sandboxes_with_long_records_are_listed_in_their_order_and_none_is_left_out() {
    let sdk = Sdk::start().await;
    let mut made = vec![sdk.sandbox.clone()];
    for number in 0..14 {
        let asked = json!({
            "templateID": "base", "timeout": 300, "metadata": { "number": number.to_string(), "all": "yes" },
            "envVars": { "LONG": "\u{1}".repeat(60_000) },
        });
        let one = good(sdk.control(Method::POST, "/sandboxes").json(&asked).send().await.unwrap()).await;
        made.push(one["sandboxID"].as_str().unwrap().to_owned());
    }
    // One of another front is in no page, and ends none.
    good(sdk.server.post("/v1/sandboxes", &json!({})).send().await.unwrap()).await;
    let list = async |query: &str| {
        let (mut pages, mut seen, mut token) = (Vec::new(), Vec::new(), String::new());
        loop {
            let path = format!("/v2/sandboxes?{query}{token}");
            let page = sdk.control(Method::GET, &path).send().await.unwrap();
            assert_eq!(page.status(), 200);
            let next = page.headers().get("x-next-token").map(|next| next.to_str().unwrap().to_owned());
            let page: Value = page.json().await.unwrap();
            let ids = page.as_array().unwrap().iter().map(|one| one["sandboxID"].as_str().unwrap().to_owned());
            let ids: Vec<_> = ids.collect();
            pages.push(ids.len());
            seen.extend(ids);
            match next {
                Some(next) => token = format!("&nextToken={next}"),
                None => return (pages, seen),
            }
        }
    };
    assert_eq!(list("order=asc").await, (vec![15], made.clone()));
    assert_eq!(list("order=asc&limit=4&metadata=all%3Dyes").await, (vec![4, 4, 4, 2], made[1..].to_vec()));
    assert_eq!(list("metadata=number%3D0").await, (vec![1], vec![made[1].clone()]), "beyond the first part");
    assert_eq!(list("template=none&limit=1").await, (vec![0], Vec::new()));
    assert_eq!(list("state=paused").await.1, Vec::<String>::new());
    let paused = sdk.control(Method::POST, &format!("/sandboxes/{}/pause", made[3])).send().await.unwrap();
    assert_eq!(paused.status(), 204);
    assert_eq!(list("state=paused&limit=1").await.1, [made[3].clone()]);
    made.reverse();
    assert_eq!(list("limit=5").await, (vec![5, 5, 5], made));
    for bad in ["x", "1", "x.iabc", "99999999999999999999.iabc"] {
        let path = format!("/v2/sandboxes?nextToken={bad}");
        assert_eq!(sdk.control(Method::GET, &path).send().await.unwrap().status(), 400, "{bad}");
    }
}

#[tokio::test]
async fn lists_that_look_through_long_records_are_made_a_few_at_a_time() {
    let sdk = Sdk::start().await;
    let spec = json!({ "env": { "A": "\u{1}".repeat(60_000) } });
    for _ in 0..12 {
        good(sdk.server.post("/v1/sandboxes", &spec).send().await.unwrap()).await;
    }
    let list = async || {
        let listed = sdk.control(Method::GET, "/v2/sandboxes?metadata=name%3Dnone").send().await.unwrap();
        assert_eq!(good(listed).await, json!([]));
    };
    list().await;
    let before = peak_memory(&sdk);
    join_all((0..120).map(|_| list())).await;
    let more = peak_memory(&sdk) - before;
    assert!(more < 150, "{more} MiB for lists that look through 4 MiB"); // each would have these
}
