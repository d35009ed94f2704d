//! The code interpreter, as `cabana template build code-interpreter` makes it, with the SDKs that people have for it.

use std::process::Command;

use crate::{
    clients::{SCRIPTS, examine, installed},
    recipes,
    stage::Server,
};

fn python(area: &str) {
    let python = installed("python-2.63.0/bin/python");
    let server = Server::prepared(&[], recipes::interpreter);
    examine(&server, Command::new(python).arg(format!("{SCRIPTS}/interpreter.py")).arg(area));
}

#[test]
fn it_runs_code_and_keeps_what_it_made() {
    python("code");
}

#[test]
fn contexts_have_their_own_names_and_directories() {
    python("contexts");
}

#[test]
fn who_goes_away_has_its_code_interrupted_and_what_was_lost_is_begun_anew() {
    python("ends");
}

#[test]
fn charts_are_told_as_data() {
    python("charts");
}

#[test]
fn contexts_work_at_the_same_time() {
    python("aio");
}

#[test]
fn node_runs_code() {
    let module = installed("node/node_modules/@e2b/code-interpreter");
    let server = Server::prepared(&[], recipes::interpreter);
    examine(&server, Command::new("node").arg(format!("{SCRIPTS}/interpreter.mjs")).env("E2B_MODULE", module));
}
