//! The SDKs that people already have, as they come from PyPI and npm: scripts in their languages do what users do, and say what is
//! wrong. Of each generation one: the first of them is led by a domain, since it knows nothing else.

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
    succeeds(command.env_remove("E2B_DOMAIN").env_remove("E2B_DEBUG"));
}

fn succeeds(command: &mut Command) {
    let done = command.output().unwrap();
    let [said, wrong] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(done.status.success(), "{}: {command:?}\n{said}\n{wrong}", done.status);
}

/// By names below a domain, over TLS.
fn by_domain(command: &mut Command) {
    let server = Server::start_with(&["--dev-tls", "--preview-domain", "sbx.test"]);
    let (_, port) = server.url.rsplit_once(':').unwrap();
    let authority = server.data().join("dev-tls/ca.pem");
    command.env("E2B_DOMAIN", format!("sbx.test:{port}")).env("E2B_API_KEY", &server.key);
    command.env("SSL_CERT_FILE", &authority).env("NODE_EXTRA_CA_CERTS", &authority);
    command.env_remove("E2B_API_URL").env_remove("E2B_SANDBOX_URL").env_remove("E2B_DEBUG");
    succeeds(command);
}

fn python_by_domain(area: &str) {
    let python = installed("python-2.5.0/bin/python");
    by_domain(Command::new(python).arg(format!("{SCRIPTS}/domain.py")).arg(area));
}

fn node_by_domain(area: &str) {
    let [before, script] = ["domain.cjs", "node.mjs"].map(|name| format!("{SCRIPTS}/{name}"));
    let module = installed("node/node_modules/e2b-2.5.0");
    by_domain(Command::new("node").args(["--require", &before, &script, area]).env("E2B_MODULE", module));
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

#[test]
fn python_takes_snapshots_and_forks() {
    python(&Server::start(), "sync", "snapshots");
}

#[test]
fn python_measures_sandboxes() {
    python(&Server::start(), "sync", "measures");
}

#[test]
fn python_pauses_memory_and_files() {
    python(&Server::start(), "sync", "pauses");
}

#[test]
fn python_says_what_is_reached() {
    python(&Server::start(), "sync", "network");
}

#[test]
fn python_builds_templates() {
    python(&Server::start(), "sync", "templates");
}

#[test]
fn python_takes_snapshots_without_threads() {
    python(&Server::start(), "aio", "snapshots");
}

#[test]
fn python_builds_templates_without_threads() {
    python(&Server::start(), "aio", "templates");
}

#[test]
fn node_takes_snapshots() {
    node(&Server::start(), "snapshots");
}

#[test]
fn node_builds_templates() {
    node(&Server::start(), "templates");
}

#[test]
fn the_first_python_runs_commands_by_a_domain() {
    python_by_domain("commands");
}

#[test]
fn the_first_node_runs_commands_by_a_domain() {
    node_by_domain("commands");
}

#[test]
fn the_first_python_has_files_by_a_domain() {
    python_by_domain("files");
}

#[test]
fn the_first_node_has_files_by_a_domain() {
    node_by_domain("files");
}

#[test]
fn the_first_python_lives_with_sandboxes_by_a_domain() {
    python_by_domain("lifecycle");
}

#[test]
fn the_first_node_lives_with_sandboxes_by_a_domain() {
    node_by_domain("lifecycle");
}
