//! The document that describes the interface: served, checked in, and true.

use std::{fs, path::Path};

use serde_json::Value;

use crate::stage::Server;

fn checked_in() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")).unwrap()
}

/// `CABANA_BLESS=1` writes it.
#[test]
fn the_document_that_is_checked_in_is_that_of_the_routes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os("CABANA_BLESS").is_some() {
        fs::write(&path, cabana_server::openapi()).unwrap();
    }
    assert!(checked_in() == cabana_server::openapi(), "docs/openapi.json is old: run this test with CABANA_BLESS=1");
}

#[tokio::test]
async fn it_is_served_to_everybody() {
    let server = Server::start();
    let served: Value =
        crate::stage::client().get(format!("{}/openapi.json", server.url)).send().await.unwrap().json().await.unwrap();
    assert_eq!(served, serde_json::from_str::<Value>(&checked_in()).unwrap());
}

#[test]
fn every_route_says_what_it_answers_and_who_may_ask() {
    let document: Value = serde_json::from_str(&checked_in()).unwrap();
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, route) in methods.as_object().unwrap() {
            let answers = route["responses"].as_object().unwrap();
            assert!(answers.keys().any(|status| status.starts_with('2') || status == "101"), "{method} {path}");
            assert!(path.ends_with('z') || answers.contains_key("default"), "{method} {path} names no error");
            assert!(
                !route["summary"].as_str().unwrap_or_default().is_empty(),
                "{method} {path} says nothing of itself"
            );
            count += 1;
        }
    }
    assert!(count > 20, "{count} routes");
}
