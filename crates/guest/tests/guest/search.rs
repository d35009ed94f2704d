use std::time::Duration;

use cabana_sandbox::{Error, Hit, Kind, Result, Search};

use super::kit::{Kit, fifo, is_root, path, set_mode};

fn what(root: &str) -> Search {
    Search {
        root: path(root),
        globs: Vec::new(),
        grep: None,
        ignore_files: false,
        max_hits: 1000,
        budget: Duration::from_secs(60),
    }
}

fn search(kit: &Kit, what: &Search) -> Result<Vec<String>> {
    let mut found = Vec::new();
    kit.rooted.search(what, &mut |hits| {
        found.extend(hits.into_iter().map(|hit| match hit {
            Hit::Entry(info) => info.path.to_string(),
            Hit::Line { path, line, text } => format!("{path}:{line}:{}", String::from_utf8_lossy(&text)),
        }));
        true
    })?;
    Ok(found)
}

fn tree() -> Kit {
    let kit = Kit::new();
    kit.file("w/src/main.rs", "fn main() {}\n// needle\nend");
    kit.file("w/src/lib.rs", "needle");
    kit.file("w/README.md", "Needle\nneedle and needle\n");
    kit.file("w/target/out.rs", "needle");
    kit.file("w/.hidden", "needle");
    kit.link("w/link.rs", "/w/src/lib.rs");
    kit.link("w/up", "/w");
    kit
}

#[test]
fn without_globs_every_file_is_found_in_order() {
    let kit = tree();
    let all =
        ["/w/.hidden", "/w/README.md", "/w/link.rs", "/w/up", "/w/src/lib.rs", "/w/src/main.rs", "/w/target/out.rs"];
    assert_eq!(search(&kit, &what("/w")).unwrap(), all);
    let mut entries = Vec::new();
    kit.rooted
        .search(&what("/w/src"), &mut |hits| {
            entries.extend(hits);
            true
        })
        .unwrap();
    assert!(matches!(&entries[0], Hit::Entry(info) if info.kind == Kind::File && info.size == 6));
}

#[test]
fn globs_choose_and_a_bang_leaves_out() {
    let kit = tree();
    let globs = |globs: &[&str]| {
        search(&kit, &Search { globs: globs.iter().map(|g| (*g).to_owned()).collect(), ..what("/w") }).unwrap()
    };
    assert_eq!(globs(&["*.rs"]), ["/w/link.rs", "/w/src/lib.rs", "/w/src/main.rs", "/w/target/out.rs"]);
    assert_eq!(globs(&["*.rs", "!target/**"]), ["/w/link.rs", "/w/src/lib.rs", "/w/src/main.rs"]);
    assert_eq!(globs(&["/*.md"]), ["/w/README.md"]);
    assert_eq!(globs(&["src/**/m*.rs"]), ["/w/src/main.rs"]);
    assert_eq!(globs(&["!target", "!.*", "!up", "!*.rs"]), ["/w/README.md"]);
}

#[test]
fn grep_gives_lines_with_their_numbers_and_follows_no_link() {
    let kit = tree();
    let grep = Search { grep: Some("^needle|// needle".into()), globs: vec!["!target".into()], ..what("/w") };
    let lines = [
        "/w/.hidden:1:needle",
        "/w/README.md:2:needle and needle",
        "/w/src/lib.rs:1:needle",
        "/w/src/main.rs:2:// needle",
    ];
    assert_eq!(search(&kit, &grep).unwrap(), lines);
}

#[test]
fn ignore_files_are_honoured_when_asked_for() {
    let kit = tree();
    kit.file("w/.gitignore", "target/\n*.md\n");
    kit.file("w/src/.ignore", "lib.rs\n!main.rs\n");
    let plain = search(&kit, &Search { globs: vec!["*.rs".into()], ..what("/w") }).unwrap();
    assert_eq!(plain.len(), 4);
    let found = search(&kit, &Search { ignore_files: true, ..what("/w") }).unwrap();
    assert_eq!(found, ["/w/.gitignore", "/w/.hidden", "/w/link.rs", "/w/up", "/w/src/.ignore", "/w/src/main.rs"]);
}

#[test]
fn binary_files_pipes_and_closed_files_have_no_lines() {
    let kit = Kit::new();
    kit.file("w/bin", b"needle\n\0\n");
    kit.file("w/closed", "needle");
    kit.file("w/text", "needle");
    set_mode(&kit.at("w/closed"), 0);
    fifo(&kit.at("w/pipe"));
    fifo(&kit.at("w/.gitignore"));
    let found = search(&kit, &Search { grep: Some("needle".into()), ignore_files: true, ..what("/w") }).unwrap();
    let closed: &[&str] = if is_root() { &["/w/closed:1:needle"] } else { &[] };
    assert_eq!(found, [closed, &["/w/text:1:needle"]].concat());
}

#[test]
fn long_lines_are_cut() {
    let kit = Kit::new();
    kit.file("w/f", "x".repeat(1 << 20));
    let found = search(&kit, &Search { grep: Some("x".into()), ..what("/w") }).unwrap();
    assert_eq!(found[0].len(), "/w/f:1:".len() + 4096);
}

#[test]
fn hits_end_at_the_most_wanted_and_when_the_reader_has_enough() {
    let kit = Kit::new();
    for n in 0..1000 {
        kit.file(&format!("w/{n:04}"), "a\na\n");
    }
    assert_eq!(search(&kit, &Search { max_hits: 7, ..what("/w") }).unwrap().len(), 7);
    assert_eq!(search(&kit, &Search { max_hits: 7, grep: Some("a".into()), ..what("/w") }).unwrap().len(), 7);
    assert_eq!(search(&kit, &Search { max_hits: 0, ..what("/w") }).unwrap().len(), 0);
    let mut batches = 0;
    kit.rooted
        .search(&what("/w"), &mut |_| {
            batches += 1;
            false
        })
        .unwrap();
    assert_eq!(batches, 1);
}

#[test]
fn a_used_up_budget_is_told() {
    let kit = tree();
    let result = search(&kit, &Search { budget: Duration::ZERO, ..what("/w") });
    assert!(matches!(result, Err(Error::TimedOut(_))));
    // A hole that would take hours to read.
    std::fs::File::create(kit.at("w/hole")).unwrap().set_len(1 << 43).unwrap();
    let grep = Search { grep: Some("x\\b".into()), budget: Duration::from_millis(200), ..what("/w") };
    let began = std::time::Instant::now();
    let _ = search(&kit, &grep);
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_bad_pattern_says_why() {
    let kit = tree();
    let grep = search(&kit, &Search { grep: Some("(".into()), ..what("/w") });
    assert!(matches!(grep, Err(Error::Invalid { field: "grep", .. })));
    let glob = search(&kit, &Search { globs: vec!["a{b".into()], ..what("/w") });
    assert!(matches!(glob, Err(Error::Invalid { field: "globs", .. })));
    assert!(matches!(search(&kit, &what("/no")), Err(Error::NotFound(_))));
    assert!(matches!(search(&kit, &what("/w/README.md")), Err(Error::NotDirectory(_))));
}

/// Lines that no strategy but a regular expression can match, each another one.
fn bomb(bytes: usize) -> String {
    let line = |n: usize| format!("**/a{n}*[!b-z]?{{x,y,z,{n}}}**/q{n}*\n");
    (0..)
        .map(line)
        .scan(0, |sum, line| {
            *sum += line.len();
            (*sum <= bytes).then_some(line)
        })
        .collect()
}

/// The most that this process has had at a time, in MiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn an_ignore_file_full_of_patterns_takes_little_memory() {
    let (kit, bomb) = (Kit::new(), bomb(1 << 19));
    for dir in ["w", "w/d", "w/d/d", "w/d/d/d", "w/d/d/d/d"] {
        kit.file(&format!("{dir}/.gitignore"), &bomb);
        kit.file(&format!("{dir}/.ignore"), &bomb);
    }
    kit.file("w/d/d/d/d/f", "x");
    let before = peak_memory();
    let found = search(&kit, &Search { ignore_files: true, ..what("/w") }).unwrap();
    let bounded = peak_memory() - before;
    assert!(found.contains(&"/w/d/d/d/d/f".to_owned()));
    assert!(bounded < 96, "{bounded} MiB");
    // What it would take without a bound: the memory is that of the patterns, and this way of measuring sees it.
    let mut all = ignore::gitignore::GitignoreBuilder::new("/w");
    bomb.lines().for_each(|line| drop(all.add_line(None, line)));
    let _rules = all.build();
    let boundless = peak_memory() - before;
    assert!(boundless > 2 * bounded, "{boundless} MiB without a bound, {bounded} MiB with one");
}

#[test]
fn of_a_long_ignore_file_the_beginning_counts() {
    let kit = tree();
    let filler = "# a comment that says nothing\n".repeat(4000);
    kit.file("w/.gitignore", format!("*.md\n{}target/\n{filler}src/\n", &filler[..30 * 100]));
    let found = search(&kit, &Search { ignore_files: true, ..what("/w") }).unwrap();
    let expected = ["/w/.gitignore", "/w/.hidden", "/w/link.rs", "/w/up", "/w/src/lib.rs", "/w/src/main.rs"];
    assert_eq!(found, expected, "*.md and target/ count, and src/ lies behind the end");
    let long = format!("{}*.md\nREADME*\n", "[!x]".repeat(300));
    kit.file("w/.gitignore", long);
    let found = search(&kit, &Search { ignore_files: true, ..what("/w") }).unwrap();
    assert!(!found.contains(&"/w/README.md".to_owned()), "a line that is too long is passed over");
}

#[test]
fn patterns_of_the_caller_are_bounded_too() {
    let kit = tree();
    let glob = |globs: Vec<String>| search(&kit, &Search { globs, ..what("/w") });
    let one = |length: usize| format!("{}.md", "?".repeat(length - 3));
    assert!(glob(vec![one(1024); 64]).is_ok());
    assert!(matches!(glob(vec![one(1025)]), Err(Error::Invalid { field: "globs", .. })));
    assert!(matches!(glob(vec![one(1024); 65]), Err(Error::Invalid { field: "globs", .. })));
    let grep = |grep: String| search(&kit, &Search { grep: Some(grep), ..what("/w") });
    let spaced = |length: usize| format!("(?x) main{}", " ".repeat(length - 9));
    assert_eq!(grep(spaced(64 << 10)).unwrap(), grep("main".into()).unwrap());
    assert!(matches!(grep(spaced((64 << 10) + 1)), Err(Error::Invalid { field: "grep", .. })));
    assert!(grep("x".repeat(4 << 10)).is_ok());
    assert!(matches!(grep("x".repeat(16 << 10)), Err(Error::Invalid { field: "grep", .. })), "it has too many states");
}

#[test]
fn a_regular_expression_with_many_states_takes_little_memory() {
    let kit = Kit::new();
    let mut noise = 1u32;
    let lines: String = (0..400_000)
        .map(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if noise >> 30 == 0 { 'b' } else { 'a' }
        })
        .collect();
    kit.file("w/f", lines);
    let before = peak_memory();
    search(&kit, &Search { grep: Some("b[ab]{300}[^ab]".into()), ..what("/w") }).unwrap();
    let peak = peak_memory() - before;
    assert!(peak < 48, "{peak} MiB");
}

#[test]
fn a_reader_who_has_gone_ends_a_search_that_finds_nothing() {
    let kit = Kit::light();
    for n in 0..20_000 {
        kit.file(&format!("w/{:02}/{n}", n % 50), "");
    }
    let (mut asked, began) = (0, std::time::Instant::now());
    let nothing = Search { globs: vec!["no".into()], budget: Duration::from_secs(600), ..what("/w") };
    while began.elapsed() < Duration::from_secs(60) && asked == 0 {
        let gone = &mut |hits: Vec<Hit>| {
            assert!(hits.is_empty());
            asked += 1;
            false
        };
        kit.rooted.search(&nothing, gone).unwrap();
    }
    assert_eq!(asked, 1);
}

/// More of them than a search holds in memory at once.
#[test]
fn in_a_directory_of_very_many_long_names_each_file_is_found_once() {
    let kit = Kit::new();
    let name = |n: usize| format!("/t/{n:05}{}", "n".repeat(225));
    let mut wanted = Vec::new();
    for n in 0..6000 {
        let path = if n % 1000 == 0 { format!("{}/file", name(n)) } else { name(n) };
        kit.file(&path[1..], "");
        wanted.push(path);
    }
    let mut found = search(&kit, &Search { max_hits: 10_000, ..what("/t") }).unwrap();
    found.sort_unstable();
    assert!(found == wanted, "{} of {}", found.len(), wanted.len());
}
