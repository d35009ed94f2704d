//! Quotas and usage by the command line.

use serde_json::{Value, json};

use super::{cabana, fails, says};
use crate::stage::Server;

#[test]
fn the_operator_sets_quotas_by_the_command_line() {
    let server = Server::start();
    let told = says(&server, &["quota", "set", "team-7", "--running", "3", "--memory", "2G", "--calls-per-sec", "50"]);
    assert!(told.contains("memory_bytes") && told.contains("2147483648"), "{told}");
    assert!(says(&server, &["quota", "ls"]).contains("team-7"));
    let shown: Value = serde_json::from_str(&says(&server, &["quota", "show", "team-7", "--json"])).unwrap();
    assert_eq!((&shown["set"]["running"], &shown["limits"]["tasks"]), (&json!(3), &Value::Null));
    says(&server, &["quota", "rm", "team-7"]);
    assert!(!says(&server, &["quota", "ls"]).contains("team-7"));
    says(&server, &["exec", "box", "--", "true"]);
    let usage = says(&server, &["usage"]);
    assert!(usage.contains("exec") && usage.contains("CALLS"), "{usage}");
    let keys: Value = serde_json::from_str(&says(&server, &["key", "ls", "--json"])).unwrap();
    let key = keys[0]["id"].as_str().unwrap();
    assert!(says(&server, &["quota", "set", "--key", key, "--tasks", "9"]).contains("tasks"));
    for words in [&["quota", "set", "team-7"][..], &["quota", "show", "../x"], &["usage", "--from", "x"]] {
        fails(cabana(&server, words), 1, "bad_request");
    }
}
