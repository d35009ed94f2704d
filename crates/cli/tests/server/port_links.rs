//! Links to a port: what they open, for whom, and until when.

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::{
    inside::{by_host, by_path, client, host_of, listening, open_socket, seen},
    port_attacks::raw,
    stage::{Server, good, refused, until},
};

async fn link(server: &Server, sandbox: &str, port: u16, body: Value) -> Value {
    good(server.post(&format!("/v1/sandboxes/{sandbox}/ports/{port}/link"), &body).send().await.unwrap()).await
}

fn token(link: &Value) -> String {
    link["url"].as_str().unwrap().split_once("cabana_link=").unwrap().1.to_owned()
}

/// The cookie that a link becomes.
fn cookie(answer: &Response) -> (String, String) {
    assert_eq!(answer.status(), StatusCode::FOUND);
    let (pair, attributes) = answer.headers()["set-cookie"].to_str().unwrap().split_once("; ").unwrap();
    (pair.to_owned(), attributes.to_owned())
}

#[tokio::test]
async fn a_link_becomes_a_cookie_and_an_address_that_can_be_shown() {
    let mut server = Server::start();
    let sandbox = listening(&server, "one").await;
    let made = link(&server, &sandbox, 8000, json!({ "expires_sec": 600 })).await;
    let host = host_of(&server, &sandbox);
    assert_eq!(made["url"], format!("http://{host}/?cabana_link={}", token(&made)));
    // By path: the cookie is for that path.
    let answer = client().get(made["path_url"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(answer.headers()["location"], format!("/p/{sandbox}/8000/").as_str());
    let (pair, attributes) = cookie(&answer);
    assert!(attributes.starts_with(&format!("Path=/p/{sandbox}/8000/; Max-Age=")), "{attributes}");
    assert!(attributes.ends_with("; HttpOnly; SameSite=Lax"), "{attributes}");
    let sent = format!("{pair}; cabana_page_a=1");
    let told = good(by_path(&server, &sandbox, "echo").header("Cookie", sent).send().await.unwrap());
    assert_eq!(seen(&told.await, "cookie"), ["a=1"]);
    // By host name: for that host.
    let visit = by_host(&server, Method::GET, &sandbox, &format!("deep?a=1&cabana_link={}&b=2", token(&made)));
    let answer = visit.send().await.unwrap();
    assert_eq!(answer.headers()["location"], "/deep?a=1&b=2");
    let (pair, attributes) = cookie(&answer);
    assert!(attributes.starts_with("Path=/; Max-Age="), "{attributes}");
    let with = || by_host(&server, Method::GET, &sandbox, "echo").header("Cookie", &pair);
    good(with().send().await.unwrap()).await;
    let (socket, _) = open_socket(&server, "/socket", &[("host", &host), ("cookie", &pair)]).await.unwrap();
    drop(socket);
    // And leads nowhere else, however it is written.
    for path in ["/evil.example/", "\\evil.example/", "/\\evil.example/"] {
        let asked =
            format!("GET /{path}?cabana_link={} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n", token(&made));
        let answer = raw(&server, &asked).await;
        assert!(answer.contains("\r\nlocation: /evil.example/\r\n"), "{path}: {answer}");
    }
    // A program may post with the link itself.
    let posted = by_host(&server, Method::POST, &sandbox, &format!("echo?cabana_link={}&c=3", token(&made)));
    assert_eq!(good(posted.send().await.unwrap()).await["target"], "/echo?c=3");
    // The next server knows it too.
    server.stop();
    server.run();
    good(by_host(&server, Method::GET, &sandbox, "echo").header("Cookie", &pair).send().await.unwrap()).await;
    let ledger = server.get("/v1/ledger").await;
    let rows: Vec<&Value> = ledger["rows"].as_array().unwrap().iter().filter(|row| row["verb"] == "link").collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["argv"], json!(["8000", "600s"]));
    assert!(!ledger.to_string().contains(&token(&made)));
}

#[tokio::test]
async fn a_link_that_is_forged_ended_or_for_something_else_opens_nothing() {
    let server = Server::start();
    let (one, two) = (listening(&server, "one").await, listening(&server, "two").await);
    let (right, short) = (
        token(&link(&server, &one, 8000, json!({})).await),
        token(&link(&server, &one, 8000, json!({ "expires_sec": 1 })).await),
    );
    let other_port = token(&link(&server, &one, 8001, json!({})).await);
    let nobody = (401, "unauthorized".to_owned());
    let nothing = (404, "sandbox_not_found".to_owned());
    let visit = |sandbox: &str, token: &str| {
        let (by_query, by_cookie) = (
            by_path(&server, sandbox, &format!("echo?cabana_link={token}")),
            by_host(&server, Method::GET, sandbox, "echo").header("Cookie", format!("cabana_link={token}")),
        );
        async { (refused(by_query.send().await.unwrap()).await, refused(by_cookie.send().await.unwrap()).await) }
    };
    let (said, proof) = right.split_once('.').unwrap();
    let (other_said, _) = other_port.split_once('.').unwrap();
    let flipped = format!("{}{}", if proof.starts_with('A') { "B" } else { "A" }, &proof[1..]);
    let forged = [
        format!("{said}.{flipped}"),
        format!("{other_said}.{proof}"),
        format!("{said}."),
        said.to_owned(),
        format!("{said}.{}", &proof[..20]),
        ".".to_owned(),
        "%00".to_owned(),
        "x".repeat(5000),
    ];
    for token in &forged {
        assert_eq!(visit(&one, token).await, (nobody.clone(), nobody.clone()), "{token}");
    }
    assert_eq!(visit(&one, &other_port).await, (nothing.clone(), nothing.clone()));
    assert_eq!(visit(&two, &right).await, (nothing.clone(), nothing.clone()));
    let ended = || async {
        let answer = by_path(&server, &one, "echo").header("Cookie", format!("cabana_link={short}")).send().await;
        Some(answer.unwrap()).filter(|answer| !answer.status().is_success())
    };
    assert_eq!(refused(until(ended).await).await, nobody);
    // One that pages put beside it does no harm.
    let both = format!("cabana_link={other_port}; cabana_link={right}");
    good(by_path(&server, &one, "echo").header("Cookie", both).send().await.unwrap()).await;
    // But not so many that the server would compute for nothing.
    for (count, status) in [(7, StatusCode::OK), (8, StatusCode::UNAUTHORIZED), (3000, StatusCode::UNAUTHORIZED)] {
        let junk = format!("{}cabana_link={right}", "cabana_link=a.AA; ".repeat(count));
        let answer = by_path(&server, &one, "echo").header("Cookie", junk).send().await.unwrap();
        assert_eq!(answer.status(), status, "behind {count} others");
    }
    for bad in [json!({ "expires_sec": 0 }), json!({ "expires_sec": 2_592_001 }), json!({ "expires": 1 })] {
        let answer = server.post(&format!("/v1/sandboxes/{one}/ports/8000/link"), &bad).send().await.unwrap();
        assert_eq!(answer.status().as_u16() / 100, 4, "{bad}");
    }
    for port in ["0", "65536", "+80", "080", "x"] {
        let answer = server.post(&format!("/v1/sandboxes/{one}/ports/{port}/link"), &json!({})).send().await.unwrap();
        assert_eq!(refused(answer).await, (400, "bad_request".into()), "{port}");
        let answer = server.request(Method::GET, &format!("/p/{one}/{port}/")).send().await.unwrap();
        assert_eq!(refused(answer).await, (400, "bad_request".into()), "{port}");
    }
}

#[tokio::test]
async fn a_cookie_does_nothing_for_the_pages_of_others() {
    let server = Server::start();
    let (one, two) = (listening(&server, "one").await, server.ensure("two").await["id"].as_str().unwrap().to_owned());
    let pair = format!("cabana_link={}", token(&link(&server, &one, 8000, json!({})).await));
    let (own, other) = (host_of(&server, &one), host_of(&server, &two));
    let asked = |headers: &[(&'static str, String)]| {
        let request = by_host(&server, Method::POST, &one, "echo").header("Cookie", &pair);
        headers.iter().fold(request, |request, (name, value)| request.header(*name, value)).send()
    };
    let framed = |kind: &str, page: String| {
        [
            ("Sec-Fetch-Site", "same-site".to_owned()),
            ("Sec-Fetch-Mode", "navigate".to_owned()),
            ("Sec-Fetch-Dest", kind.to_owned()),
            ("Referer", page),
        ]
    };
    let (frame, object) = (framed("iframe", format!("http://{other}/")), framed("object", format!("http://{other}/x")));
    let of_platform = framed("iframe", "https://platform.example/agents".to_owned());
    let foreign: [&[(&str, String)]; 9] = [
        &frame,
        &object,
        &frame[..3],
        &[("Referer", format!("http://{other}/page"))],
        &[("Origin", format!("http://{other}"))],
        &[("Origin", "null".into())],
        &[("Origin", "https://example.com".into())],
        &[("Sec-Fetch-Site", "same-site".into()), ("Sec-Fetch-Mode", "no-cors".into())],
        &[("Sec-Fetch-Site", "cross-site".into()), ("Sec-Fetch-Mode", "cors".into())],
    ];
    for headers in foreign {
        assert_eq!(refused(asked(headers).await.unwrap()).await, (401, "unauthorized".into()), "{headers:?}");
    }
    let near = own.replace("8000-", "3000-");
    let fine: [&[(&str, String)]; 7] = [
        &of_platform,
        &[("Referer", "http://platform.example/".into())],
        &[("Referer", format!("http://{near}/page"))],
        &[("Origin", format!("http://{own}"))],
        &[("Origin", format!("http://{near}"))],
        &[("Sec-Fetch-Site", "cross-site".into()), ("Sec-Fetch-Mode", "navigate".into())],
        &[("Sec-Fetch-Site", "same-origin".into()), ("Sec-Fetch-Mode", "cors".into())],
    ];
    for headers in fine {
        good(asked(headers).await.unwrap()).await;
    }
    let evil = [("host", own.as_str()), ("cookie", &pair), ("origin", "http://evil.example")];
    assert!(open_socket(&server, "/socket", &evil).await.is_err());
}

#[tokio::test]
async fn links_are_taken_back_all_at_once_and_end_with_their_key_and_their_sandbox() {
    let mut server = Server::start();
    let (one, two) = (listening(&server, "one").await, listening(&server, "two").await);
    let visit = async |server: &Server, sandbox: &str, token: &str| {
        let cookie = format!("cabana_link={token}");
        by_path(server, sandbox, "echo").header("Cookie", cookie).send().await.unwrap()
    };
    let (first, second) = (link(&server, &one, 8000, json!({})).await, link(&server, &one, 8000, json!({})).await);
    let other = token(&link(&server, &two, 8000, json!({})).await);
    let nobody = (401, "unauthorized".to_owned());
    for token in [token(&first), token(&second)] {
        good(visit(&server, &one, &token).await).await;
    }
    let back = server.request(Method::DELETE, &format!("/v1/sandboxes/{one}/links")).send().await.unwrap();
    assert_eq!(back.status(), StatusCode::NO_CONTENT);
    for token in [token(&first), token(&second)] {
        assert_eq!(refused(visit(&server, &one, &token).await).await, nobody);
        let asked = by_path(&server, &one, &format!("echo?cabana_link={token}")).send().await.unwrap();
        assert_eq!(refused(asked).await, nobody);
    }
    good(visit(&server, &two, &other).await).await;
    // What is made later stands, and what was taken back stays so for the next server.
    let later = token(&link(&server, &one, 8000, json!({})).await);
    server.kill();
    server.run();
    good(visit(&server, &one, &later).await).await;
    assert_eq!(refused(visit(&server, &one, &token(&first)).await).await, nobody);
    // With the key that made it.
    let made = good(server.post("/v1/keys", &json!({ "role": "use" })).send().await.unwrap()).await;
    let path = format!("{}/v1/sandboxes/{one}/ports/8000/link", server.url);
    let by_key = client().post(path).bearer_auth(made["key"].as_str().unwrap()).send().await.unwrap();
    let by_key = token(&good(by_key).await);
    good(visit(&server, &one, &by_key).await).await;
    let key = format!("/v1/keys/{}", made["id"].as_str().unwrap());
    good(server.request(Method::DELETE, &key).send().await.unwrap()).await;
    assert_eq!(refused(visit(&server, &one, &by_key).await).await, nobody);
    // With its sandbox, also where the next one has the same id.
    let scope = json!({ "scope": { "scheme": "chat", "app": "a", "user": "u", "chat": "c" } });
    let ensure = async || {
        good(server.post("/v1/sandboxes:ensure", &scope).send().await.unwrap()).await["id"].as_str().unwrap().to_owned()
    };
    let chat = ensure().await;
    let old = token(&link(&server, &chat, 8000, json!({})).await);
    assert_eq!(refused(visit(&server, &chat, &old).await).await, (502, "port_closed".into()));
    server.request(Method::DELETE, &format!("/v1/sandboxes/{chat}")).send().await.unwrap();
    assert_eq!(refused(visit(&server, &chat, &old).await).await, (404, "sandbox_not_found".into()));
    assert_eq!(ensure().await, chat);
    assert_eq!(refused(visit(&server, &chat, &old).await).await, nobody);
    let reader = server.key_for("default", "read").await;
    let asked = client().delete(format!("{}/v1/sandboxes/{one}/links", server.url)).bearer_auth(&reader);
    assert_eq!(refused(asked.send().await.unwrap()).await, (403, "forbidden".into()));
}

#[tokio::test]
async fn the_ledger_says_who_came_to_a_port_and_not_how_often() {
    let server = Server::start();
    let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
    let closed = server.request(Method::GET, &format!("/p/{sandbox}/8001/")).send().await.unwrap();
    assert_eq!(refused(closed).await, (502, "port_closed".into()));
    listening(&server, "one").await;
    let pair = format!("cabana_link={}", token(&link(&server, &sandbox, 8000, json!({})).await));
    for _ in 0..20 {
        good(crate::inside::at_path(&server, &sandbox, "echo").send().await.unwrap()).await;
        good(by_path(&server, &sandbox, "echo").header("Cookie", &pair).send().await.unwrap()).await;
    }
    let ledger = server.get("/v1/ledger?limit=1000").await;
    let rows = ledger["rows"].as_array().unwrap();
    let visits: Vec<&Value> = rows.iter().filter(|row| row["verb"] == "visit").collect();
    let count = |port: &str, way: &str| visits.iter().filter(|row| row["argv"] == json!([port, way])).count();
    assert_eq!(count("8001", "by key"), 1);
    // The test may take more than a minute: then there is one for each.
    assert!((1..=10).contains(&count("8000", "by key")), "{visits:?}");
    assert!((1..=10).contains(&count("8000", "by link")), "{visits:?}");
    let key = &rows.iter().find(|row| row["verb"] == "link").unwrap()["key"];
    assert!(visits.iter().all(|row| row["sandbox"] == sandbox && row["key"] == *key));
    assert_eq!(visits[0]["outcome"], "port_closed");
}

/// Ids that are computed of names are the same in two tenants, and pages of one host name have one origin: storage, caches, workers.
#[tokio::test]
async fn chats_of_the_same_names_in_two_tenants_have_no_host_name_in_common() {
    let server = Server::start();
    let other = server.key_for("other", "use").await;
    // One whose id could be the beginning of a host name, as that of every other scope.
    let scope = json!({ "scheme": "chat", "app": "app", "user": "user", "chat": "chat" });
    let link = async |key: &str| {
        let post = |path: &str, body: Value| {
            client().post(format!("{}{path}", server.url)).bearer_auth(key).json(&body).send()
        };
        let sandbox = good(post("/v1/sandboxes:ensure", json!({ "scope": scope })).await.unwrap()).await;
        let id = sandbox["id"].as_str().unwrap().to_owned();
        let link = good(post(&format!("/v1/sandboxes/{id}/ports/8000/link"), json!({})).await.unwrap()).await;
        (id, link["url"].as_str().unwrap().to_owned())
    };
    let ((mine, my_url), (theirs, their_url)) = (link(&server.key).await, link(&other).await);
    assert_eq!(mine, theirs);
    let host = |url: &str| url.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
    let (my_host, their_host) = (host(&my_url), host(&their_url));
    assert_ne!(my_host, their_host);
    let plain = format!("8000-{mine}.localhost:{}", server.url.rsplit(':').next().unwrap());
    let query = their_url.split_once("/?").unwrap().1;
    let status = async |host: &str, key: Option<&str>| {
        let query = if key.is_some() { "" } else { query };
        let request = client().get(format!("{}/?{query}", server.url)).header("host", host);
        let request = match key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        request.send().await.unwrap().status()
    };
    assert_eq!(status(&their_host, None).await, StatusCode::FOUND, "the control");
    for host in [&my_host, &plain] {
        assert_eq!(status(host, None).await, StatusCode::NOT_FOUND, "{host} by the other tenant's link");
        assert_eq!(status(host, Some(&other)).await, StatusCode::NOT_FOUND, "{host} by the other tenant's key");
    }
    assert_eq!(status(&their_host, Some(&server.key)).await, StatusCode::NOT_FOUND);
}
