//! Lists whose length a guest decides.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{e2b_watchers::peak_memory, sdk::Sdk, stage::until};

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
