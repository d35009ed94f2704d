//! The list of published escapes (`tests/tests/security/cves.toml`) names tests that exist, and its page is generated from it.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use serde::Deserialize;

use crate::{
    lexer::code_of,
    workspace::{files_ending, root},
};

const LIST: &str = "tests/tests/security/cves.toml";
const PAGE: &str = "docs/security/cves.md";

/// How many rows have to name a test that tries what happened there.
const MIN_TESTED_ROWS: usize = 80;
const FIRST_YEAR: u16 = 2016;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    class: Vec<Class>,
    row: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    key: String,
    title: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    ids: Vec<String>,
    system: String,
    /// Of the first of the ids.
    year: u16,
    class: String,
    what: String,
    /// Whether Cabana has a part of the kind that failed.
    exists: bool,
    why: String,
    /// Each as `path/of/file.rs::function`.
    tests: Vec<String>,
}

impl Row {
    fn name(&self) -> &str {
        self.ids.first().map_or("a row without an id", String::as_str)
    }
}

fn parse(text: &str) -> List {
    toml::from_str(text).unwrap_or_else(|error| panic!("{LIST}: {error}"))
}

fn row_breaches(list: &List, known_tests: &BTreeSet<String>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut seen = BTreeSet::new();
    for row in &list.row {
        let name = row.name();
        let ids = row.ids.iter();
        breaches.extend(ids.clone().filter(|id| !is_advisory(id)).map(|id| format!("{id:?} is no id of an advisory")));
        breaches.extend(ids.filter(|id| !seen.insert(*id)).map(|id| format!("{id} has two rows")));
        if !list.class.iter().any(|class| class.key == row.class) {
            breaches.push(format!("{name}: no class is called {:?}", row.class));
        }
        if row.year < FIRST_YEAR {
            breaches.push(format!("{name}: the list begins in {FIRST_YEAR}"));
        }
        let texts = [("system", &row.system), ("what", &row.what), ("why", &row.why)];
        let bad = |text: &str| text.trim().is_empty() || text.contains(['|', '\n']);
        breaches.extend(texts.iter().filter(|(_, text)| bad(text)).map(|(key, _)| format!("{name}: {key} is no line")));
        if row.exists && row.tests.is_empty() {
            breaches.push(format!("{name} is possible here, and no test tries it"));
        }
        let lost = row.tests.iter().filter(|test| !known_tests.contains(*test));
        breaches.extend(lost.map(|test| format!("{name} names a test that does not exist: {test}")));
    }
    let tested = list.row.iter().filter(|row| !row.tests.is_empty()).count();
    if tested < MIN_TESTED_ROWS {
        breaches.push(format!("{tested} rows name a test, and {MIN_TESTED_ROWS} must"));
    }
    breaches
}

/// `CVE-2024-21626` or `GHSA-xr7r-f8xq-vfvv`.
fn is_advisory(id: &str) -> bool {
    let digits = |text: &str, least: usize| text.len() >= least && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = id.split('-').collect();
    match parts[..] {
        ["CVE", year, number] => year.len() == 4 && digits(year, 4) && digits(number, 4),
        ["GHSA", a, b, c] => [a, b, c].iter().all(|part| part.len() == 4),
        _ => false,
    }
}

/// The tests of one source file: functions with a test's attribute, and those that a macro makes (`name: "argument",`).
fn tests_of(source: &str) -> BTreeSet<String> {
    let code = code_of(source);
    let mut names = BTreeSet::new();
    let mut is_test = false;
    for line in code.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if let (true, Some(name)) = (is_test, function_name(line)) {
            names.insert(name.to_owned());
            is_test = false;
        } else if !line.is_empty() {
            is_test = false;
        }
    }
    if code.contains("fn $name()") {
        let made = source.lines().filter_map(|line| line.trim().split_once(": \"")).map(|(name, _)| name);
        names.extend(made.filter(|name| is_name(name)).map(str::to_owned));
    }
    names
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let name = after.split('(').next()?;
    (before.split_whitespace().all(|word| matches!(word, "pub" | "async")) && is_name(name)).then_some(name)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

fn known_tests() -> BTreeSet<String> {
    let of_file = |path: &str, text: &str| -> Vec<String> {
        tests_of(text).iter().map(|name| format!("{path}::{name}")).collect()
    };
    files_ending(".rs").iter().flat_map(|file| of_file(&file.path, &file.text())).collect()
}

fn page_of(list: &List) -> String {
    let tested = list.row.iter().filter(|row| !row.tests.is_empty()).count();
    let ids: usize = list.row.iter().map(|row| row.ids.len()).sum();
    let mut page = format!(
        "# Published escapes, and whether they exist here\n\n\
         Generated from [`{file}`](../../{LIST}); change that.\n\n\
         {ids} advisories of sandboxes, container runtimes, orchestrators and the kernel since {FIRST_YEAR}, in {rows} rows: \
         advisories with one cause share a row. *Here* says whether Cabana has a part of the kind that failed, and what holds \
         there. {tested} rows name tests that try it. No advisory of nsjail, and none of E2B's sandboxes, was found.\n",
        file = LIST.rsplit('/').next().unwrap_or(LIST),
        rows = list.row.len(),
    );
    for class in &list.class {
        let mut rows: Vec<&Row> = list.row.iter().filter(|row| row.class == class.key).collect();
        rows.sort_by(|one, other| (&one.system, one.year, &one.ids).cmp(&(&other.system, other.year, &other.ids)));
        let head = "| advisory | system | year | what happened | here | tests |\n|---|---|---|---|---|---|";
        let _ = write!(page, "\n## {}\n\n{head}\n", class.title);
        for row in rows {
            page.push_str(&line_of(row));
        }
    }
    page
}

fn line_of(row: &Row) -> String {
    let ids: Vec<String> = row.ids.iter().map(|id| format!("[{id}]({})", address_of(id))).collect();
    let tests: Vec<String> = row.tests.iter().map(|test| link_to(test)).collect();
    let here = if row.exists { "yes" } else { "no" };
    let Row { system, year, what, why, .. } = row;
    format!("| {} | {system} | {year} | {what} | **{here}.** {why} | {} |\n", ids.join(" "), tests.join(" "))
}

fn address_of(id: &str) -> String {
    match id.starts_with("GHSA-") {
        true => format!("https://github.com/advisories/{id}"),
        false => format!("https://www.cve.org/CVERecord?id={id}"),
    }
}

fn link_to(test: &str) -> String {
    let (path, name) = test.split_once("::").unwrap_or((test, test));
    format!("[`{name}`](../../{path})")
}

fn list() -> List {
    parse(&fs::read_to_string(root().join(LIST)).expect("the list is there"))
}

#[test]
fn every_published_escape_names_tests_that_exist() {
    let breaches = row_breaches(&list(), &known_tests());
    assert!(breaches.is_empty(), "{LIST}:\n{}", breaches.join("\n"));
}

/// `CABANA_BLESS=1` writes it.
#[test]
fn the_page_of_published_escapes_is_generated_from_the_list() {
    let page = root().join(PAGE);
    let expected = page_of(&list());
    if std::env::var_os("CABANA_BLESS").is_some() {
        fs::create_dir_all(page.parent().expect("a page lies in a folder")).expect("a folder for the page");
        fs::write(&page, &expected).expect("the page can be written");
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    assert!(found == expected, "{PAGE} is not what {LIST} says: run this test with CABANA_BLESS=1");
}

#[test]
fn the_security_policy_links_to_the_page() {
    let policy = fs::read_to_string(root().join("SECURITY.md")).expect("there is a policy");
    assert!(policy.contains(&format!("({PAGE})")), "SECURITY.md does not link to {PAGE}");
}

mod a_rule_can_fail {
    use super::*;

    const GOOD: &str = r#"
        [[class]]
        key = "mounts"
        title = "Mounts"

        [[row]]
        ids = ["CVE-2021-30465"]
        system = "runc"
        year = 2021
        class = "mounts"
        what = "A race."
        exists = true
        why = "By descriptor."
        tests = ["tests/a.rs::races"]
    "#;

    /// Without the one breach that every short list has.
    fn breaches(text: &str) -> Vec<String> {
        let known = BTreeSet::from(["tests/a.rs::races".to_owned()]);
        let mut breaches = row_breaches(&parse(text), &known);
        assert_eq!(breaches.pop().as_deref().map(|last| last.ends_with("rows name a test, and 80 must")), Some(true));
        breaches
    }

    #[test]
    fn a_good_row_has_no_breach() {
        assert_eq!(breaches(GOOD), [""; 0]);
    }

    #[test]
    fn too_few_rows_with_tests_are_a_breach() {
        let text = GOOD.replace("[\"tests/a.rs::races\"]", "[]").replace("exists = true", "exists = false");
        assert_eq!(row_breaches(&parse(&text), &BTreeSet::new()), ["0 rows name a test, and 80 must"]);
    }

    #[test]
    fn a_test_that_does_not_exist_is_a_breach() {
        assert_eq!(breaches(&GOOD.replace("::races", "::raced")).len(), 1);
    }

    #[test]
    fn a_possible_escape_without_a_test_is_a_breach() {
        assert_eq!(breaches(&GOOD.replace("[\"tests/a.rs::races\"]", "[]")).len(), 1);
    }

    #[test]
    fn a_row_of_no_class_of_no_advisory_or_of_another_time_is_a_breach() {
        for (good, bad) in [("\"CVE-2021-30465\"", "\"runc-1\""), ("= \"mounts\"\n        what", "= \"x\"\n what")] {
            assert_eq!(breaches(&GOOD.replace(good, bad)).len(), 1, "{bad}");
        }
        assert_eq!(breaches(&GOOD.replace("year = 2021", "year = 2014")).len(), 1);
        assert_eq!(breaches(&GOOD.replace("A race.", "A | race.")).len(), 1);
    }

    #[test]
    fn an_advisory_with_two_rows_is_a_breach() {
        let (_, row) = GOOD.split_once("[[row]]").expect("there is a row");
        assert_eq!(breaches(&format!("{GOOD}\n[[row]]{row}")), ["CVE-2021-30465 has two rows"]);
    }

    #[test]
    fn tests_are_found_by_their_attribute_or_in_the_list_of_a_macro() {
        let source = "fn helper() {}\n#[test]\nfn one() {}\n#[tokio::test(flavor = \"multi_thread\")]\nasync fn two() {}\n\
                      #[cfg(unix)]\nfn other() {}\n// #[test]\nfn commented() {}\n";
        assert_eq!(tests_of(source), ["one", "two"].map(String::from).into());
        let made = "macro_rules! all { ($($name:ident: $kind:literal,)*) => { $(#[tokio::test]\nasync fn $name() {})* }; }\n\
                    all! {\n    forks: \"forks\",\n}\n";
        assert!(tests_of(made).contains("forks"));
    }

    #[test]
    fn a_row_becomes_a_line_with_links() {
        let page = page_of(&parse(GOOD));
        let line = page.lines().last().expect("there is a row");
        assert!(
            line.contains("[CVE-2021-30465](https://www.cve.org/CVERecord?id=CVE-2021-30465) | runc | 2021"),
            "{line}"
        );
        assert!(line.ends_with("**yes.** By descriptor. | [`races`](../../tests/a.rs) |"), "{line}");
    }
}
