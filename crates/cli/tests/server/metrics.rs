//! What is counted, and who sees it.

use crate::stage::{Server, client, refused};

async fn page(server: &Server, key: &str) -> String {
    let answer = client().get(format!("{}/metrics", server.url)).bearer_auth(key).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4");
    answer.text().await.unwrap()
}

fn value(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn calls_are_counted_by_verb_and_outcome() {
    let server = Server::start();
    for _ in 0..3 {
        server.stdout("one", "true").await;
    }
    server.begin("one", "sleep 1000").await;
    let bad = serde_json::json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "x", "cwd": "/nowhere" });
    refused(server.post("/v1/exec", &bad).send().await.unwrap()).await;
    let page = page(&server, &server.key).await;
    let calls = |verb, outcome| {
        value(&page, &format!("cabana_calls_total{{tenant=\"default\",verb=\"{verb}\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!((calls("exec", "answered"), calls("exec", "failed")), (Some(3.0), Some(1.0)), "{page}");
    assert_eq!(calls("start", "answered"), Some(1.0));
    let of_exec = "{tenant=\"default\",verb=\"exec\"";
    assert_eq!(value(&page, &format!("cabana_call_duration_seconds_count{of_exec}}}")), Some(4.0));
    assert_eq!(value(&page, &format!("cabana_call_duration_seconds_bucket{of_exec},le=\"+Inf\"}}")), Some(4.0));
    assert!(value(&page, &format!("cabana_call_duration_seconds_sum{of_exec}}}")).unwrap() > 0.0);
    assert_eq!((value(&page, "cabana_sandboxes_live"), value(&page, "cabana_tasks_live")), (Some(1.0), Some(1.0)));
    assert_eq!(value(&page, "cabana_ledger_rows_total"), Some(5.0));
    assert_eq!(value(&page, "cabana_calls_under_way"), Some(0.0));
    assert!(value(&page, "cabana_http_connections").unwrap() >= 1.0);
    assert!(value(&page, "process_resident_memory_bytes").unwrap() > 1e6);
}

#[tokio::test]
async fn a_tenant_sees_its_own_numbers_alone() {
    let server = Server::start();
    server.stdout("one", "true").await;
    let other = server.key_for("other", "read").await;
    let page = page(&server, &other).await;
    assert_eq!(value(&page, "cabana_sandboxes_live"), Some(0.0));
    assert!(!page.contains("default") && !page.contains("process_") && !page.contains("connections"), "{page}");
    let nobody = client().get(format!("{}/metrics", server.url)).send().await.unwrap();
    assert_eq!(refused(nobody).await, (401, "unauthorized".into()));
}

#[tokio::test]
async fn the_guide_names_all_that_is_served_and_nothing_else() {
    let server = Server::start_with(&["--telemetry-endpoint", "http://127.0.0.1:9"]);
    let served: Vec<String> = page(&server, &server.key)
        .await
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned()))
        .collect();
    let guide = include_str!("../../../../docs/guides/metrics.md");
    let named: Vec<&str> = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(named, served);
}
