//! Every public error code has a page that says what happened, why, and what to do; and every link in the documents leads
//! somewhere.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use cabana_model::Code;

use crate::workspace::{files_ending, root};

const SECTIONS: [&str; 4] = ["What happened", "Why", "What to do", "Example"];

fn page_breaches(code: &str, page: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    if page.lines().next() != Some(&format!("# {code}")) {
        breaches.push(format!("{code}: the title must be `# {code}`"));
    }
    let heads: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    if heads != SECTIONS {
        breaches.push(format!("{code}: the sections must be {SECTIONS:?}, and are {heads:?}"));
    }
    let bodies = page.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, "")));
    let empty = bodies.filter(|(_, body)| body.trim().is_empty());
    breaches.extend(empty.map(|(head, _)| format!("{code}: the section {head:?} is empty")));
    breaches
}

fn pages() -> BTreeSet<String> {
    let names = fs::read_dir(root().join("docs/errors")).expect("docs/errors is there").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "README.md").collect()
}

/// Links to files: `[text](path)`, without an anchor. Links to the web are not followed.
fn dead_links(from: &Path, text: &str) -> Vec<PathBuf> {
    let targets = text.match_indices("](").filter_map(|(at, _)| text[at + 2..].split(')').next());
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    let paths = local.map(|target| from.join(target.split('#').next().unwrap_or(target)));
    paths.filter(|path| !path.exists()).collect()
}

#[test]
fn every_code_has_a_page() {
    let missing: Vec<&str> =
        Code::ALL.iter().map(|code| code.as_str()).filter(|code| !pages().contains(&format!("{code}.md"))).collect();
    assert!(missing.is_empty(), "docs/errors has no page for: {}", missing.join(", "));
}

#[test]
fn every_page_has_a_code() {
    let known: BTreeSet<String> = Code::ALL.iter().map(|code| format!("{code}.md")).collect();
    let stray: Vec<String> = pages().difference(&known).cloned().collect();
    assert!(stray.is_empty(), "docs/errors has pages without a code: {}", stray.join(", "));
}

#[test]
fn every_page_says_what_happened_why_and_what_to_do() {
    let mut breaches = Vec::new();
    for code in Code::ALL {
        let page = root().join(format!("docs/errors/{code}.md"));
        match fs::read_to_string(&page) {
            Ok(text) => breaches.extend(page_breaches(code.as_str(), &text)),
            Err(error) => breaches.push(format!("{}: {error}", page.display())),
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn the_index_of_errors_lists_every_code() {
    let index = fs::read_to_string(root().join("docs/errors/README.md")).expect("the index is there");
    let missing: Vec<&str> = Code::ALL
        .iter()
        .map(|code| code.as_str())
        .filter(|code| !index.contains(&format!("[{code}]({code}.md)")))
        .collect();
    assert!(missing.is_empty(), "docs/errors/README.md does not list: {}", missing.join(", "));
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let mut breaches = Vec::new();
    for file in files_ending(".md") {
        let path = root().join(&file.path);
        let folder = path.parent().expect("a file lies in a folder");
        let dead = dead_links(folder, &file.text());
        breaches.extend(dead.iter().map(|target| format!("{}: no {}", file.path, target.display())));
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

mod a_rule_can_fail {
    use super::*;

    const GOOD: &str = "# x\n\n## What happened\n\na\n\n## Why\n\nb\n\n## What to do\n\nc\n\n## Example\n\nd\n";

    #[test]
    fn a_good_page_has_no_breach() {
        assert!(page_breaches("x", GOOD).is_empty());
    }

    #[test]
    fn a_page_with_another_title_is_a_breach() {
        assert_eq!(page_breaches("y", GOOD).len(), 1);
    }

    #[test]
    fn a_page_without_a_section_is_a_breach() {
        assert_eq!(page_breaches("x", &GOOD.replace("## Why\n", "")).len(), 1);
    }

    #[test]
    fn a_page_with_an_empty_section_is_a_breach() {
        assert_eq!(page_breaches("x", &GOOD.replace("\nc\n", "\n")), ["x: the section \"What to do\" is empty"]);
    }

    #[test]
    fn a_dead_link_is_a_breach() {
        let text = "[a](README.md) [b](no/such.md#part) [c](https://example.org/x) [d](#part)";
        assert_eq!(dead_links(&root(), text), [root().join("no/such.md")]);
    }
}
