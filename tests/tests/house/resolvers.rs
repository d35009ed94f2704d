//! The table of SECURITY.md that says what our processes resolve for others names tests that exist.

use std::{collections::BTreeSet, fs};

use crate::{
    lexer::code_of,
    workspace::{files_ending, root},
};

const SECTION: &str = "## What our processes resolve for others";
const MIN_ROWS: usize = 20;

/// The rows of the section's table: what is resolved, and the tests in the last column.
fn rows(page: &str) -> Vec<(String, Vec<String>)> {
    let section = page.split(SECTION).nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap_or_default();
    let table = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let tests = cells.last().copied().unwrap_or_default().split('`').skip(1).step_by(2);
        (cells[0].to_owned(), tests.map(str::to_owned).collect())
    };
    table.map(row).collect()
}

/// The functions that have a test's attribute.
fn tests_of(source: &str) -> BTreeSet<String> {
    let (mut names, mut is_test) = (BTreeSet::new(), false);
    for line in code_of(source).lines().map(str::trim) {
        let name = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
        match name {
            _ if line.starts_with("#[") => is_test |= line.contains("test]") || line.contains("test("),
            Some(name) if is_test || source.contains("proptest!") => {
                names.insert(name.to_owned());
                is_test = false;
            }
            _ => is_test = false,
        }
    }
    names
}

fn breaches(rows: &[(String, Vec<String>)], known: &BTreeSet<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    if rows.len() < MIN_ROWS {
        breaches.push(format!("the table has {} rows, and {MIN_ROWS} are expected", rows.len()));
    }
    for (what, tests) in rows {
        if tests.is_empty() {
            breaches.push(format!("{what}: no test tries it"));
        }
        breaches.extend(
            tests.iter().filter(|test| !known.contains(*test)).map(|test| format!("{what}: there is no test {test}")),
        );
    }
    breaches
}

#[test]
fn every_row_of_what_is_resolved_for_others_names_tests_that_exist() {
    let page = fs::read_to_string(root().join("SECURITY.md")).expect("the page is there");
    let known: BTreeSet<String> = files_ending(".rs").iter().flat_map(|file| tests_of(&file.text())).collect();
    let breaches = breaches(&rows(&page), &known);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn a_row_without_a_test_and_one_with_a_test_that_is_gone_are_breaches() {
    let page = format!(
        "{SECTION}\n\n| what | who | bounds | tests |\n|---|---|---|---|\n| a | b | `c` | `one` `two` |\n| d | e | f | g |\n\n## Next\n| h |"
    );
    let rows = rows(&page);
    assert_eq!(rows, [("a".to_owned(), vec!["one".to_owned(), "two".to_owned()]), ("d".to_owned(), Vec::new())]);
    let known = tests_of("#[test]\nfn one() {}\nfn two() {}\n#[tokio::test(flavor = \"x\")]\nasync fn three() {}");
    assert_eq!(known, ["one".to_owned(), "three".to_owned()].into());
    let told = breaches(&rows, &known);
    assert!(told.iter().any(|breach| breach == "a: there is no test two"), "{told:?}");
    assert!(told.iter().any(|breach| breach == "d: no test tries it") && told.len() == 3, "{told:?}");
}
