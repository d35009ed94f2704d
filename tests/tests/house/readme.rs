//! The commands that the README shows are there: each `make` target and each verb of `cabana`. That they also work is
//! shown by `scripts/readme`, which runs them.

use std::{collections::BTreeSet, fs};

use crate::workspace::root;

const VERBS: [&str; 4] = ["run", "doctor", "template", "help"];
const TEMPLATE_VERBS: [&str; 3] = ["add", "ls", "rm"];

fn breaches(readme: &str, makefile: &str) -> Vec<String> {
    let targets = targets(makefile);
    let mut breaches = Vec::new();
    for line in code_lines(readme) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            match *pair {
                ["make", target] if !targets.contains(target) => breaches.push(format!("there is no `make {target}`")),
                [program, verb] if is_cabana(program) && !VERBS.contains(&verb) && !verb.starts_with('-') => {
                    breaches.push(format!("there is no `cabana {verb}`"));
                }
                _ => {}
            }
        }
        for three in words.windows(3).filter(|three| is_cabana(three[0]) && three[1] == "template") {
            if !TEMPLATE_VERBS.contains(&three[2]) {
                breaches.push(format!("there is no `cabana template {}`", three[2]));
            }
        }
    }
    breaches
}

fn is_cabana(word: &str) -> bool {
    word == "cabana" || word.ends_with("/cabana")
}

/// The lines of the fenced blocks that hold commands.
fn code_lines(readme: &str) -> Vec<&str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in readme.lines() {
        match line.strip_prefix("```") {
            Some(language) => inside = !inside && language == "sh",
            None if inside => lines.push(line),
            None => {}
        }
    }
    lines
}

fn targets(makefile: &str) -> BTreeSet<&str> {
    let heads = makefile.lines().filter(|line| !line.starts_with(['\t', '#', '.', ' ']) && !line.contains("="));
    heads.filter_map(|line| line.split_once(':')).map(|(target, _)| target.trim()).collect()
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_command_of_the_readme_is_there() {
    let breaches = breaches(&read("README.md"), &read("Makefile"));
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn the_first_command_of_the_readme_is_cabana_run() {
    let readme = read("README.md");
    let first = code_lines(&readme).first().copied().unwrap_or_default();
    assert!(first.starts_with("cabana run "), "it is {first:?}");
}

#[test]
fn the_makefile_has_the_commands_of_the_project() {
    let makefile = read("Makefile");
    let targets = targets(&makefile);
    for wanted in ["run", "test", "soak", "bench", "fmt", "lint"] {
        assert!(targets.contains(wanted), "there is no `make {wanted}`");
    }
}

#[test]
fn ci_runs_make_test_and_nothing_else() {
    let script = read(".ci/run");
    let commands: Vec<&str> = script.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert_eq!(commands, ["set -euo pipefail", "cd \"$(dirname \"$0\")/..\"", "exec make test"]);
}

#[test]
fn a_command_that_is_not_there_is_a_breach() {
    let readme = "```sh\nmake fly\ncabana dance -- x\ncabana template paint\n```\n```text\nmake nothing\n```\n";
    let told = breaches(readme, "test:\n\ttrue\n");
    assert_eq!(told, ["there is no `make fly`", "there is no `cabana dance`", "there is no `cabana template paint`"]);
}

#[test]
fn a_command_that_is_there_is_no_breach() {
    let readme = "```sh\nmake test\ntarget/release/cabana run -- ls\ncabana --help\ncabana template ls\n```\n";
    assert!(breaches(readme, "X := 1\n.PHONY: test\ntest: setup\n\ttrue\n").is_empty());
}
