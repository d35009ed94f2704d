//! What may be reached, as a checked-in list, and how what was found is held against it.
//!
//! A list is made of blocks with an empty line between them. A block begins with a comment that says why what follows is
//! reachable; one without a reason is refused. Each further line is a thing as the crawler prints it. `prefix: a b c` is the
//! three things that begin with the prefix. A `?` before a line says that another kernel or host may lack it. `*` stands for
//! anything within one part of a path, and `**` for anything at all.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// The first word of the block that a rewrite adds: until somebody gives a reason instead, the list is refused.
const UNEXPLAINED: &str = "UNEXPLAINED";

/// With this variable set, the lists are rewritten instead of compared: what is gone is taken out, and what is new is added
/// at the end as unexplained.
const REWRITE: &str = "CABANA_CRAWL_REWRITE";

const WIDTH: usize = 120;

pub(crate) fn is_rewriting() -> bool {
    std::env::var_os(REWRITE).is_some()
}

#[derive(Clone, Debug)]
pub(crate) struct List {
    path: PathBuf,
    blocks: Vec<Block>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    reason: Vec<String>,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// All before the last part, by which entries share a line.
    prefix: String,
    last: String,
    optional: bool,
}

impl Entry {
    fn new(thing: &str, optional: bool) -> Self {
        let at = thing.trim_end_matches('/').rfind([' ', '/']).map_or(0, |at| at + 1);
        Self { prefix: thing[..at].to_owned(), last: thing[at..].to_owned(), optional }
    }

    fn thing(&self) -> String {
        format!("{}{}", self.prefix, self.last)
    }
}

impl List {
    pub(crate) fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/security/crawl").join(name);
        let text = fs::read_to_string(&path).unwrap_or_default();
        Self { blocks: parse(&text), path }
    }

    fn things(&self) -> impl Iterator<Item = &Entry> {
        self.blocks.iter().flat_map(|block| &block.entries)
    }

    fn unexplained(&self) -> impl Iterator<Item = String> {
        let bare = |block: &&Block| block.reason.first().is_none_or(|first| first.starts_with(UNEXPLAINED));
        self.blocks.iter().filter(bare).flat_map(|block| block.entries.iter().map(Entry::thing))
    }

    fn take_out(&mut self, gone: &BTreeSet<String>) {
        for block in &mut self.blocks {
            block.entries.retain(|entry| !gone.contains(&entry.thing()));
        }
        self.blocks.retain(|block| !block.entries.is_empty());
    }

    fn add(&mut self, new: &BTreeSet<String>) {
        if new.is_empty() {
            return;
        }
        let entries = new.iter().map(|thing| Entry::new(thing, depends_on_the_kernel(thing))).collect();
        self.blocks.push(Block { reason: vec![format!("{UNEXPLAINED}: say why this can be reached.")], entries });
    }

    pub(crate) fn write(&self) {
        fs::write(&self.path, self.text()).expect("the list can be written");
    }

    fn text(&self) -> String {
        self.blocks.iter().map(Block::text).collect::<Vec<_>>().join("\n")
    }
}

/// Whole sections are the kernel's own: another version has more or fewer of them.
fn depends_on_the_kernel(thing: &str) -> bool {
    let section = thing.split(' ').next().unwrap_or_default();
    ["proc", "call", "prctl", "ioctl", "socket", "privileged", "rlimit", "cgroup", "listener"].contains(&section)
}

impl Block {
    fn text(&self) -> String {
        let mut text: String = self.reason.iter().fold(String::new(), |text, line| text + "# " + line + "\n");
        let mut lines: BTreeMap<(&str, bool), Vec<&str>> = BTreeMap::new();
        for entry in &self.entries {
            lines.entry((&entry.prefix, entry.optional)).or_default().push(&entry.last);
        }
        for ((prefix, optional), words) in lines {
            let mark = if optional { "? " } else { "" };
            if let [word] = words.as_slice() {
                let _ = writeln!(text, "{mark}{prefix}{word}");
                continue;
            }
            let head = format!("{mark}{}:", prefix.strip_suffix(' ').unwrap_or(prefix));
            let mut line = head.clone();
            for word in words {
                if line.len() + 1 + word.len() > WIDTH && line.len() > head.len() {
                    let _ = writeln!(text, "{line}");
                    line.clone_from(&head);
                }
                let _ = write!(line, " {word}");
            }
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

fn parse(text: &str) -> Vec<Block> {
    let mut blocks = vec![Block::default()];
    for line in text.lines() {
        let block = blocks.last_mut().expect("there is always one");
        match line.trim() {
            "" => blocks.push(Block::default()),
            line => match line.strip_prefix('#') {
                Some(reason) => block.reason.push(reason.trim().to_owned()),
                None => block.entries.extend(entries_of(line)),
            },
        }
    }
    blocks.retain(|block| !block.entries.is_empty());
    blocks
}

fn entries_of(line: &str) -> Vec<Entry> {
    let (optional, line) = line.strip_prefix("? ").map_or((false, line), |line| (true, line));
    let Some((prefix, words)) = line.split_once(": ") else { return vec![Entry::new(line, optional)] };
    let prefix = if prefix.ends_with('/') { prefix.to_owned() } else { format!("{prefix} ") };
    words.split(' ').map(|word| Entry { prefix: prefix.clone(), last: word.to_owned(), optional }).collect()
}

/// What differs between what was found and what is listed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) new: BTreeSet<String>,
    pub(crate) gone: BTreeSet<String>,
    pub(crate) unexplained: BTreeSet<String>,
}

impl Difference {
    pub(crate) fn between(found: &BTreeSet<String>, lists: &[&List]) -> Self {
        let entries: Vec<&Entry> = lists.iter().flat_map(|list| list.things()).collect();
        let exact: HashSet<String> = entries.iter().map(|entry| entry.thing()).collect();
        let patterns: Vec<&String> = exact.iter().filter(|thing| thing.contains('*')).collect();
        let is_listed =
            |thing: &String| exact.contains(thing) || patterns.iter().any(|pattern| matches(pattern, thing));
        let is_found = |entry: &Entry| {
            let thing = entry.thing();
            found.contains(&thing) || (thing.contains('*') && found.iter().any(|found| matches(&thing, found)))
        };
        Self {
            new: found.iter().filter(|thing| !is_listed(thing)).cloned().collect(),
            gone: entries.iter().filter(|entry| !entry.optional && !is_found(entry)).map(|e| e.thing()).collect(),
            unexplained: lists.iter().flat_map(|list| list.unexplained()).collect(),
        }
    }

    /// Fails with everything that differs, and says what to do about it.
    #[track_caller]
    pub(crate) fn assert_empty(&self, who: &str) {
        let lines = |sign: &str, things: &BTreeSet<String>| {
            things.iter().map(|thing| format!("{sign} {thing}\n")).collect::<String>()
        };
        let said = lines("+", &self.new) + &lines("-", &self.gone) + &lines("?", &self.unexplained);
        assert!(
            said.is_empty(),
            "what {who} can reach is not what tests/tests/security/crawl says (+ new, - gone, ? without a reason):\n{said}\
             Close what should not be reachable. What should be gets a reason there: {REWRITE}=1 adds it to the list."
        );
    }
}

/// Takes what was found as what is listed: of several crawls, what all have goes to the first list.
pub(crate) fn rewrite(common: &mut List, crawls: &mut [(&BTreeSet<String>, &mut List)]) {
    let mut gone: Option<BTreeSet<String>> = None;
    let mut news = Vec::new();
    for (found, own) in crawls.iter_mut() {
        let difference = Difference::between(found, &[common, own]);
        own.take_out(&difference.gone);
        gone = Some(match gone {
            Some(before) => before.intersection(&difference.gone).cloned().collect(),
            None => difference.gone,
        });
        news.push(difference.new);
    }
    let shared = news.iter().skip(1).fold(news[0].clone(), |all, new| all.intersection(new).cloned().collect());
    common.take_out(&gone.unwrap_or_default());
    common.add(&shared);
    for ((_, own), new) in crawls.iter_mut().zip(&news) {
        own.add(&new.difference(&shared).cloned().collect());
    }
}

/// Whether the pattern is the text: `*` is anything but `/` and white space, `**` is anything.
fn matches(pattern: &str, text: &str) -> bool {
    if let Some(rest) = pattern.strip_prefix("**") {
        return (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| matches(rest, &text[at..]));
    }
    if let Some(rest) = pattern.strip_prefix('*') {
        let end = text.find(['/', ' ']).unwrap_or(text.len());
        return (0..=end).filter(|at| text.is_char_boundary(*at)).any(|at| matches(rest, &text[at..]));
    }
    let mut pattern_chars = pattern.chars();
    match (pattern_chars.next(), text.chars().next()) {
        (None, None) => true,
        (Some(one), Some(other)) if one == other => matches(pattern_chars.as_str(), &text[other.len_utf8()..]),
        _ => false,
    }
}

mod a_list {
    use super::*;

    fn list(text: &str) -> List {
        List { path: PathBuf::new(), blocks: parse(text) }
    }

    fn found(things: &[&str]) -> BTreeSet<String> {
        things.iter().map(|thing| (*thing).to_owned()).collect()
    }

    const LIST: &str =
        "# Reads only.\nproc r- /proc/: a b\n? proc r- /proc/c\nproc r- /proc/irq/*/x\n\n# Own.\nfd: 0 1\n";
    const ALL: &[&str] = &["proc r- /proc/a", "proc r- /proc/b", "proc r- /proc/irq/7/x", "fd 0", "fd 1"];

    #[test]
    fn what_is_listed_differs_in_nothing_with_and_without_what_is_optional() {
        let with = [ALL, &["proc r- /proc/c"]].concat();
        for things in [ALL, &with] {
            assert_eq!(Difference::between(&found(things), &[&list(LIST)]), Difference::default());
        }
    }

    #[test]
    fn what_is_not_listed_is_new_and_what_is_missing_is_gone() {
        for new in ["fd 2", "proc rw /proc/a", "proc r- /proc/irq/7/x/y", "proc r- /proc/irq/7/y"] {
            let things = [ALL, &[new]].concat();
            assert_eq!(Difference::between(&found(&things), &[&list(LIST)]).new, found(&[new]));
        }
        assert_eq!(Difference::between(&found(&ALL[1..]), &[&list(LIST)]).gone, found(&ALL[..1]));
        assert!(
            std::panic::catch_unwind(|| Difference::between(&found(&[]), &[&list(LIST)]).assert_empty("x")).is_err()
        );
    }

    #[test]
    fn a_block_without_a_reason_is_refused_as_is_one_that_a_rewrite_made() {
        let mut bare = list("fd 0\n");
        assert_eq!(Difference::between(&found(&["fd 0"]), &[&bare]).unexplained, found(&["fd 0"]));
        bare = list("# Own.\nfd 0\n");
        bare.add(&found(&["fd 1"]));
        let again = list(&bare.text());
        assert_eq!(Difference::between(&found(&["fd 0", "fd 1"]), &[&again]).unexplained, found(&["fd 1"]));
    }

    #[test]
    fn a_rewrite_keeps_reasons_and_says_the_same_when_it_is_read_again() {
        assert_eq!(list(LIST).text(), list(&list(LIST).text()).text());
        assert!(list(LIST).text().contains("# Reads only.\nproc r- /proc/: a b\n? proc r- /proc/c\n"));
        let (mut common, mut root, mut user) = (list(LIST), list(""), list(""));
        let (all, mine) = ([&ALL[1..], &["fd 2"]].concat(), [&ALL[1..], &["fd 2", "fd 3"]].concat());
        let (all, mine) = (found(&all), found(&mine));
        rewrite(&mut common, &mut [(&mine, &mut root), (&all, &mut user)]);
        for (found, own) in [(&mine, &root), (&all, &user)] {
            let left = Difference::between(found, &[&common, own]);
            assert_eq!((left.new, left.gone), (BTreeSet::new(), BTreeSet::new()));
        }
        assert_eq!(root.things().map(Entry::thing).collect::<Vec<_>>(), ["fd 3"]);
        assert_eq!(user.things().count(), 0);
    }
}
