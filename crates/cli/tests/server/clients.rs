//! The SDKs that people already have, as they come from PyPI and npm: scripts in their languages do what users do, and say what is
//! wrong. Of each generation that speaks plain HTTP, the last and the newest.

use std::{path::PathBuf, process::Command};

use crate::stage::{Server, cache};

pub(crate) const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/clients");
/// As scripts/setup installs them.
const PYTHON: [&str; 2] = ["2.45.1", "2.63.0"];
const NODE: [&str; 2] = ["e2b-2.45.0", "e2b-2.51.0"];

/// Where scripts/setup puts what speaks E2B's protocol.
pub(crate) fn installed(what: &str) -> PathBuf {
    let found = cache().join("e2b").join(what);
    assert!(found.exists(), "there is no {}: run scripts/setup", found.display());
    found
}

/// Three variables are all that is changed.
pub(crate) fn examine(server: &Server, command: &mut Command) {
    for (name, value) in [("E2B_API_URL", &server.url), ("E2B_SANDBOX_URL", &server.url), ("E2B_API_KEY", &server.key)]
    {
        command.env(name, value);
    }
    command.env_remove("E2B_DOMAIN").env_remove("E2B_DEBUG");
    let done = command.output().unwrap();
    let [said, wrong] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(done.status.success(), "{command:?}\n{said}\n{wrong}");
}

fn python(server: &Server, script: &str, area: &str) {
    for version in PYTHON {
        let python = installed(&format!("python-{version}/bin/python"));
        examine(server, Command::new(python).arg(format!("{SCRIPTS}/{script}.py")).arg(area));
    }
}

fn node(server: &Server, area: &str) {
    for version in NODE {
        let module = installed(&format!("node/node_modules/{version}"));
        examine(server, Command::new("node").arg(format!("{SCRIPTS}/node.mjs")).arg(area).env("E2B_MODULE", module));
    }
}

#[test]
fn python_runs_commands() {
    python(&Server::start(), "sync", "commands");
}

#[test]
fn python_has_files() {
    python(&Server::start(), "sync", "files");
}

#[test]
fn python_signs_urls_of_files() {
    python(&Server::start(), "sync", "signed");
}

#[test]
fn python_has_terminals() {
    python(&Server::start(), "sync", "pty");
}

#[test]
fn python_lives_with_sandboxes() {
    python(&Server::start(), "sync", "lifecycle");
}

#[test]
fn python_is_told_what_is_refused() {
    python(&Server::start_with(&["--quotas-sandboxes", "2"]), "sync", "limits");
}

#[test]
fn python_runs_commands_without_threads() {
    python(&Server::start(), "aio", "commands");
}

#[test]
fn python_has_files_without_threads() {
    python(&Server::start(), "aio", "files");
}

#[test]
fn python_has_terminals_without_threads() {
    python(&Server::start(), "aio", "pty");
}

#[test]
fn python_lives_with_sandboxes_without_threads() {
    python(&Server::start(), "aio", "lifecycle");
}

#[test]
fn node_runs_commands() {
    node(&Server::start(), "commands");
}

#[test]
fn node_has_files() {
    node(&Server::start(), "files");
}

#[test]
fn node_has_terminals() {
    node(&Server::start(), "pty");
}

#[test]
fn node_lives_with_sandboxes() {
    node(&Server::start(), "lifecycle");
}
