//! What may stand in which source file.

use std::path::Path;

use crate::{
    lexer::{code_of, lines_with_word},
    workspace::{File, files, files_ending, root},
};

/// Talking to the kernel by hand is the engine's business alone.
const UNSAFE_HOME: &str = "crates/engine/";

/// A dialect is data (`dialects/*.toml`), never a branch in the code.
const DIALECTS: &[&str] = &["fastgpt", "langbot", "commonground", "xbot"];

/// What reaches around the interfaces, and the places of `crates/` that may.
const REACHES: &[(&str, &[&str])] = &[
    // Settings are declared in one file of the cli; the doctor looks at the host as it is; a test says where to die.
    ("env::var", &["crates/cli/", "crates/testkit/", "crates/engine/src/host/", "crates/fault/"]),
    ("env::var_os", &["crates/cli/", "crates/testkit/", "crates/engine/src/host/", "crates/fault/"]),
    // The async process never forks.
    ("process::Command", &["crates/cli/", "crates/testkit/", "crates/engine/"]),
    // Time is given, so that tests can give it; but a template says when it was made.
    ("SystemTime::now", &["crates/cli/", "crates/testkit/", "crates/engine/src/layers/templates.rs"]),
    // A record may be long: what it says is parsed once for each version of it, or where many are listed, off the workers.
    (
        "Wanted::of",
        &[
            "crates/runtime/src/sandboxes/slot.rs",
            "crates/server/src/e2b/signers.rs",
            "crates/server/src/rest/sandboxes.rs",
        ],
    ),
];

fn unsafe_breaches(file: &File) -> Vec<String> {
    if file.path.starts_with(UNSAFE_HOME) {
        return Vec::new();
    }
    at_lines(file, &lines_with_word(&code_of(&file.text()), "unsafe"), "unsafe outside of the engine")
}

fn dialect_breaches(file: &File) -> Vec<String> {
    let text = outside_inline_tests(&file.text()).to_lowercase();
    let named = DIALECTS.iter().filter(|name| text.contains(**name));
    named.map(|name| format!("{} names the dialect {name}", file.path)).collect()
}

/// A test that is switched off hides what it would show.
fn ignore_breaches(file: &File) -> Vec<String> {
    let code = code_of(&file.text());
    let ignored = |line: &str| line.contains("#[ignore") || line.contains(", ignore)]");
    let lines: Vec<usize> = code.lines().enumerate().filter(|(_, l)| ignored(l)).map(|(at, _)| at + 1).collect();
    at_lines(file, &lines, "a test that is ignored")
}

fn reach_breaches(file: &File) -> Vec<String> {
    if !file.path.starts_with("crates/") {
        return Vec::new();
    }
    let code = code_of(&outside_inline_tests(&file.text()));
    let foreign = REACHES.iter().filter(|(_, homes)| !homes.iter().any(|home| file.path.starts_with(home)));
    foreign.flat_map(|(what, _)| at_lines(file, &lines_with_word(&code, what), what)).collect()
}

/// A path of the machine that wrote it is of no use to anybody else, and tells about that machine.
fn machine_breaches(file: &File, checkout: &Path, inside: &[String]) -> Vec<String> {
    let checkout = checkout.to_string_lossy();
    let text = file.text();
    // A checkout in a folder such as /workspace shares its name with paths that the documents rightly speak of: then
    // only what lies in it gives it away.
    let told_by_itself = checkout.matches('/').count() > 1;
    let gives_away = |rest: &str| {
        let name_ends = !rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
        let goes_on = rest.strip_prefix('/').is_some_and(|rest| inside.iter().any(|name| rest.starts_with(name)));
        goes_on || (told_by_itself && name_ends)
    };
    let found = text.match_indices(&*checkout).any(|(at, _)| gives_away(&text[at + checkout.len()..]));
    found.then(|| format!("{} holds a path of the machine that wrote it", file.path)).into_iter().collect()
}

/// The source files that are more than tests: not in a folder of tests, and not a module that only tests have.
fn shipped(files: Vec<File>) -> Vec<File> {
    let of_tests: Vec<String> = files.iter().flat_map(test_modules).collect();
    let is_test = |path: &str| {
        path.split('/').any(|part| matches!(part, "tests" | "tests.rs"))
            || of_tests.iter().any(|module| {
                path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            })
    };
    files.into_iter().filter(|file| !is_test(&file.path)).collect()
}

/// The modules that the file declares for tests (`#[cfg(test)] mod live;`), as paths without `.rs`.
fn test_modules(file: &File) -> Vec<String> {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let below = match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
        _ => file.path.trim_end_matches(".rs").to_owned(),
    };
    let code = file.text();
    let marked = code.match_indices(TEST_ONLY).map(|(at, mark)| code[at + mark.len()..].trim_start());
    let declared = marked.filter_map(|item| match item.strip_prefix("#[path = \"") {
        Some(path) => Some(format!("{folder}/{}", path.split(".rs\"]").next()?)),
        None => Some(format!("{below}/{}", item.strip_prefix("mod ")?.split_once(';')?.0)),
    });
    declared.filter(|module| !module.contains(['{', ' ', '\n'])).collect()
}

const TEST_ONLY: &str = "#[cfg(test)]";

/// Inline tests stand at the end of a file.
fn outside_inline_tests(text: &str) -> String {
    let opens_block = |rest: &str| {
        let item = rest.trim_start().strip_prefix("mod ");
        item.and_then(|item| item.find(['{', ';']).map(|at| item[at..].starts_with('{'))).unwrap_or(false)
    };
    let inline = text.match_indices(TEST_ONLY).find(|(at, mark)| opens_block(&text[at + mark.len()..]));
    text[..inline.map_or(text.len(), |(at, _)| at)].to_owned()
}

fn at_lines(file: &File, lines: &[usize], what: &str) -> Vec<String> {
    lines.iter().map(|line| format!("{}:{line}: {what}", file.path)).collect()
}

fn assert_holds(rule: impl Fn(&File) -> Vec<String>, files: &[File]) {
    assert!(!files.is_empty(), "no file was found: nothing would be checked");
    let breaches: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn unsafe_stands_only_in_the_engine() {
    assert_holds(unsafe_breaches, &files_ending(".rs"));
}

#[test]
fn no_dialect_is_named_outside_of_tests() {
    assert_holds(dialect_breaches, &shipped(files_ending(".rs")));
}

#[test]
fn no_test_is_ignored() {
    assert_holds(ignore_breaches, &files_ending(".rs"));
}

#[test]
fn only_their_homes_reach_for_environment_processes_and_clock() {
    assert_holds(reach_breaches, &shipped(files_ending(".rs")));
}

#[test]
fn no_file_holds_a_path_of_the_machine_that_wrote_it() {
    let files = files();
    let inside: Vec<String> = files.iter().filter_map(|file| file.path.split('/').next().map(String::from)).collect();
    assert_holds(|file| machine_breaches(file, &root(), &inside), &files);
}

mod a_rule_can_fail {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), bytes: text.into() }
    }

    #[test]
    fn unsafe_outside_of_the_engine_is_a_breach() {
        let text = "// unsafe in prose\nfn f() { unsafe { g() } }";
        let told = unsafe_breaches(&file("crates/guest/src/lib.rs", text));
        assert_eq!(told, ["crates/guest/src/lib.rs:2: unsafe outside of the engine"]);
        assert!(unsafe_breaches(&file("crates/engine/src/lib.rs", text)).is_empty());
        assert_eq!(unsafe_breaches(&file("crates/engineering/src/lib.rs", text)).len(), 1);
    }

    #[test]
    fn a_dialect_in_the_code_is_a_breach_and_in_inline_tests_is_none() {
        let text = "match dialect { \"FastGPT\" => 1 }";
        let told = |text: &str| dialect_breaches(&file("crates/x/src/lib.rs", text)).len();
        assert_eq!(told(text), 1);
        assert_eq!(told(&format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{ {text} }}")), 0);
        assert_eq!(told(&format!("#[cfg(test)]\nuse x;\nfn f() {{ {text} }}")), 1);
        assert_eq!(told(&format!("#[cfg(test)]\nmod live;\nfn f() {{ {text} }}")), 1);
    }

    #[test]
    fn only_files_of_tests_are_left_out() {
        let files = vec![
            file("crates/x/src/walls/mod.rs", "mod arch;\n#[cfg(test)]\nmod live;\n#[cfg(test)]\nmod tests { use x; }"),
            file("crates/x/src/walls/live.rs", ""),
            file("crates/x/src/walls/live/deep.rs", ""),
            file("crates/x/src/walls/liveness.rs", ""),
            file("crates/x/src/walls/arch.rs", "#[cfg(test)]\n#[path = \"arch_tests.rs\"]\nmod tests;"),
            file("crates/x/src/walls/arch_tests.rs", ""),
            file("crates/x/tests/all.rs", ""),
            file("tests/tests/house/main.rs", ""),
        ];
        let left: Vec<String> = shipped(files).into_iter().map(|file| file.path).collect();
        assert_eq!(left, ["crates/x/src/walls/mod.rs", "crates/x/src/walls/liveness.rs", "crates/x/src/walls/arch.rs"]);
    }

    #[test]
    fn an_ignored_test_is_a_breach() {
        let text = "// #[ignore]\n#[test]\n#[ignore]\nfn f() {}\n#[ignore = \"slow\"]\nfn g() {}\n#[cfg_attr(miri, ignore)]\nfn h() {}";
        assert_eq!(ignore_breaches(&file("crates/x/tests/all.rs", text)).len(), 3);
    }

    #[test]
    fn a_library_that_reads_the_environment_is_a_breach() {
        let text = "let x = std::env::var(\"X\");\nlet y = std::process::Command::new(\"y\");";
        let told = reach_breaches(&file("crates/guest/src/a.rs", text));
        assert_eq!(told, ["crates/guest/src/a.rs:1: env::var", "crates/guest/src/a.rs:2: process::Command"]);
        assert!(reach_breaches(&file("crates/cli/src/a.rs", text)).is_empty());
        assert_eq!(reach_breaches(&file("crates/engine/src/a.rs", text)).len(), 1);
        assert!(reach_breaches(&file("bench/src/main.rs", text)).is_empty());
    }

    #[test]
    fn a_path_of_the_machine_is_a_breach() {
        let inside = ["crates".to_owned(), "target".to_owned()];
        let told =
            |text: &str, checkout: &str| machine_breaches(&file("a.md", text), Path::new(checkout), &inside).len();
        assert_eq!(told("see /home/me/cabana/crates/model", "/home/me/cabana"), 1);
        assert_eq!(told("cd /home/me/cabana", "/home/me/cabana"), 1);
        assert_eq!(told("cd /home/me/cabana-two", "/home/me/cabana"), 0);
        assert_eq!(told("cd /workspace && ls /workspace/notes", "/workspace"), 0);
        assert_eq!(told("run /workspace/target/debug/cabana", "/workspace"), 1);
    }
}
