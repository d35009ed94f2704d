//! Settings: what is wrong with them, and who says them.

use std::fs;

use crate::kit::{Ends, cabana};

#[test]
fn a_file_is_checked_with_all_that_is_wrong() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("cabana.toml");
    let check = || {
        let mut command = cabana();
        command.args(["config", "check", "--config"]).arg(&file);
        command
    };
    assert!(check().ends().fails(1, "bad_request").contains("cabana.toml"), "one that was named must be there");
    fs::write(&file, "[server]\nlissten = 1\nmax_body = \"big\"\n").unwrap();
    let told = check().ends().fails(1, "bad_request");
    for says in ["cabana.toml:2: ", "`listen`", "cabana.toml:3: server.max_body"] {
        assert!(told.contains(says), "{says} is not in {told}");
    }
    fs::write(&file, "[server]\ntls_cert = \"/none\"\ntls_key = \"/none\"\n").unwrap();
    assert!(check().ends().fails(1, "bad_request").contains("/none"));
    fs::write(&file, "[server]\nlisten = \"127.0.0.1:0\"\n[limits]\nmemory = \"1G\"\n").unwrap();
    check().ends().well();
    let bad = check().env("CABANA_LIMITS_PIDS", "many").ends().fails(1, "bad_request");
    assert!(bad.contains("CABANA_LIMITS_PIDS"), "{bad}");
}

#[test]
fn each_value_is_shown_with_its_origin_and_no_secret() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("cabana.toml");
    fs::write(&file, "[limits]\nmemory = \"1G\"\n[network]\nupstream_proxy = \"http://me:hunter2@proxy:1\"\n").unwrap();
    let show = |words: &[&str]| {
        let mut command = cabana();
        command.args(["config", "show", "--config"]).arg(&file).args(words).env("CABANA_ENGINE_SPARES", "7");
        command.ends().well()
    };
    let (text, json) = (show(&[]), show(&["--json"]));
    assert!(!text.contains("hunter2") && !json.contains("hunter2"), "{text}{json}");
    let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
    assert!(line("memory").contains("\"1G\"") && line("memory").contains("cabana.toml:2"), "{text}");
    assert!(line("spares").contains("= 7") && line("spares").contains("CABANA_ENGINE_SPARES"), "{text}");
    assert!(line("listen").contains("default") && line("data").contains("CABANA_DATA"), "{text}");
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    let memory = rows.iter().find(|row| row["key"] == "limits.memory").unwrap();
    assert_eq!((&memory["value"], &memory["from"]), (&"1G".into(), &"file".into()));
}

#[test]
fn a_server_does_not_start_on_settings_that_are_wrong() {
    let told = cabana().args(["serve", "--memory", "1K", "--listen", "127.0.0.1:0"]).ends().fails(125, "bad_request");
    assert!(told.contains("too little"), "{told}");
    let told = cabana().args(["serve", "--listen", "0.0.0.0:0"]).ends().fails(125, "bad_request");
    assert!(told.contains("--insecure-http"), "{told}");
}

#[test]
fn shells_and_manuals_know_every_verb() {
    for shell in ["bash", "zsh", "fish"] {
        let text = cabana().args(["completions", shell]).ends().well();
        for word in ["exec", "ledger", "preview-domain"] {
            assert!(text.contains(word), "{shell} does not know {word}");
        }
    }
    let home = tempfile::tempdir().unwrap();
    cabana().arg("man").arg(home.path()).ends().well();
    for page in ["cabana.1", "cabana-run.1", "cabana-exec.1", "cabana-ledger-verify.1"] {
        assert!(home.path().join(page).exists(), "there is no {page}");
    }
}
