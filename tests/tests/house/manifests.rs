//! Every package takes its lints, edition and licence from the workspace, so that there is one place to change them.

use std::fs;

use crate::workspace::packages;

/// Whether the key stands in the table, for example `workspace = true` in `[lints]`.
struct Inherited {
    table: &'static str,
    line: &'static str,
}

const INHERITED: &[Inherited] = &[
    Inherited { table: "[lints]", line: "workspace=true" },
    Inherited { table: "[package]", line: "edition.workspace=true" },
    Inherited { table: "[package]", line: "license.workspace=true" },
    Inherited { table: "[package]", line: "rust-version.workspace=true" },
    Inherited { table: "[package]", line: "publish.workspace=true" },
];

fn breaches(manifest: &str) -> Vec<String> {
    let missing = |wanted: &&Inherited| !lines_of(manifest, wanted.table).any(|line| line == wanted.line);
    INHERITED.iter().filter(missing).map(|wanted| format!("{} lacks {}", wanted.table, wanted.line)).collect()
}

fn lines_of<'a>(manifest: &'a str, table: &'a str) -> impl Iterator<Item = String> + 'a {
    let after_head = manifest.lines().skip_while(move |line| line.trim() != table).skip(1);
    let body = after_head.take_while(|line| !line.trim_start().starts_with('['));
    body.map(|line| line.split('#').next().unwrap_or_default().split_whitespace().collect())
}

#[test]
fn every_package_inherits_from_the_workspace() {
    for package in packages() {
        let manifest = fs::read_to_string(&package.manifest).expect("a manifest can be read");
        let breaches = breaches(&manifest);
        assert!(breaches.is_empty(), "{}: {}", package.name, breaches.join(", "));
    }
}

/// Whether what is shipped can be told where to die.
fn is_armed(manifest: &str) -> bool {
    ["[dependencies]", "[features]"].iter().any(|table| {
        lines_of(manifest, table).any(|line| line.starts_with("cabana-fault=") || line.contains("cabana-fault/"))
    })
}

#[test]
fn only_tests_can_be_told_where_to_die() {
    for package in packages().iter().filter(|package| package.name != "cabana-tests") {
        let manifest = fs::read_to_string(&package.manifest).expect("a manifest can be read");
        assert!(!is_armed(&manifest), "{} arms the places of cabana-fault in what it ships", package.name);
    }
}

#[test]
fn a_manifest_that_arms_what_it_ships_is_a_breach() {
    let sample = |table: &str, line: &str| format!("[package]\n{table}\n{line}\n");
    let armed = "cabana-fault = { workspace = true, features = [\"armed\"] }";
    assert!(is_armed(&sample("[dependencies]", armed)));
    assert!(is_armed(&sample("[features]", "faults = [\"cabana-fault/armed\"]")));
    assert!(!is_armed(&sample("[dependencies]", "cabana-fault.workspace = true")));
    assert!(!is_armed(&sample("[dev-dependencies]", armed)));
}

#[test]
fn a_manifest_that_inherits_nothing_is_a_breach_in_each_point() {
    assert_eq!(breaches("[package]\nname = \"x\"\nedition = \"2024\"\n").len(), INHERITED.len());
}

#[test]
fn a_key_in_the_wrong_table_or_in_a_comment_does_not_count() {
    let sample = "[package]\nedition.workspace = true\nlicense.workspace = true\nrust-version.workspace = true\n\
                  publish.workspace = true\n# [lints]\n[dependencies]\nworkspace = true\n";
    assert_eq!(breaches(sample), ["[lints] lacks workspace=true"]);
}
