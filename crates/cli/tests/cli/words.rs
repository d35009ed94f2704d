//! Help and wrong words.

use crate::kit::{Ends, cabana, run};

#[test]
fn help_is_no_error_and_names_every_verb() {
    let help = cabana().arg("--help").ends().well();
    for verb in [
        "run",
        "serve",
        "template",
        "snapshot",
        "volume",
        "doctor",
        "config",
        "exec",
        "shell",
        "cp",
        "ledger",
        "gc",
        "backup",
        "restore",
        "webhook",
        "--data",
        "CABANA_DATA",
    ] {
        assert!(help.contains(verb), "{verb} is not in {help}");
    }
    let help = run(&["--help"]).ends().well();
    for word in ["--template", "--timeout", "--user", "--env", "--mount", "--workdir", "125", "Examples"] {
        assert!(help.contains(word), "{word} is not in {help}");
    }
    assert!(cabana().arg("--version").ends().well().starts_with("cabana "));
}

#[test]
fn wrong_words_for_run_look_like_no_exit_code_of_a_command() {
    let ended = run(&["--no-such-flag", "--", "true"]).ends();
    assert_eq!(ended.code, 125, "{ended:?}");
    assert!(ended.stderr.contains("--no-such-flag"));
    assert_eq!(cabana().arg("no-such-verb").ends().code, 2);
    assert_eq!(cabana().ends().code, 2, "without a verb, help is what is missing");
}

#[test]
fn a_bad_value_is_named_with_its_flag() {
    for (words, says) in [
        (["--timeout", "10"], "unit"),
        (["--timeout", "0s"], "zero"),
        (["--user", "a/b"], "--user"),
        (["--workdir", "relative"], "--workdir"),
        (["--mount", "/tmp"], "HOST:INSIDE"),
        (["--mount", "/no/such/place:/a"], "does not exist"),
        (["--mount", "/etc:/a"], "system"),
        (["--mount", "/:/a"], "below it"),
        (["--mount", "/tmp:/proc"], "/proc"),
        (["--mount", "/tmp:relative"], "absolute"),
    ] {
        let told = run(&words).arg("true").ends().fails(125, "bad_request");
        assert!(told.contains(says), "{words:?}: {told}");
    }
}

#[test]
fn the_value_of_a_variable_is_never_told() {
    for words in ["hunter2", "=hunter2"] {
        let told = run(&["--env", words, "--", "true"]).ends().fails(125, "bad_request");
        assert!(!told.contains("hunter2"), "{told}");
    }
    let ended = run(&["--env", "SECRET=hunter2", "--no-such-flag", "--", "true"]).ends();
    assert!(!ended.stderr.contains("hunter2"), "{ended:?}");
    let ended = run(&["--env", "SECRET=hunter2", "--", "/no/such/program"]).ends();
    assert!(!ended.stderr.contains("hunter2"), "{ended:?}");
}

#[test]
fn a_data_directory_of_somebody_else_is_refused() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("thesis.txt"), "years of work").unwrap();
    let told = run(&["--", "true"]).env("CABANA_DATA", home.path()).ends().fails(125, "data_dir_not_ours");
    assert!(told.contains("thesis.txt"), "{told}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "nothing was put beside it");
}
