use std::{
    fs,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use cabana_guest::Below;

use super::kit::{Exchange, Kit, comes_about, fifo, mode};

/// For what has to happen at least once while two race.
const PATIENCE: Duration = Duration::from_secs(60);

fn put(below: &Below, at: &str, content: &str) -> std::io::Result<()> {
    let mut draft = below.draft(Path::new(at))?;
    draft.write_all(content.as_bytes())?;
    draft.finish(0o640)
}

fn read(below: &Below, at: &str) -> std::io::Result<String> {
    std::io::read_to_string(below.read(Path::new(at))?)
}

#[test]
fn what_is_made_and_read_lies_below() {
    let kit = Kit::new();
    kit.dir("top");
    kit.link("way", "top");
    let below = Below::open(&kit.at("way")).unwrap();
    for _ in 0..2 {
        below.make_dirs(Path::new("a/b/c")).unwrap();
    }
    put(&below, "a/b/f", "one").unwrap();
    put(&below, "a/b/f", "two").unwrap();
    assert_eq!((read(&below, "a/b/f").unwrap().as_str(), mode(&kit.at("top/a/b/f"))), ("two", 0o640));
    drop(below.draft(Path::new("a/b/f")).unwrap());
    assert_eq!(kit.names("top/a/b"), ["c", "f"], "a draft that is dropped leaves nothing");
    let mut seen = Vec::new();
    below
        .walk(&mut |path, _| {
            seen.push(path.to_str().unwrap().to_owned());
            path != Path::new("a/b/c")
        })
        .unwrap();
    assert_eq!(seen, ["a", "a/b", "a/b/c", "a/b/f"]);
}

#[test]
fn no_name_leads_through_a_link_or_upwards() {
    let kit = Kit::new();
    kit.dir("top/d");
    kit.file("outside/f", "outside");
    kit.link("top/l", "../outside");
    kit.link("top/d/f", "../../outside/f");
    let below = Below::open(&kit.at("top")).unwrap();
    assert_eq!(fs::read(kit.at("top/l/f")).unwrap(), b"outside", "by a path it is reached");
    for name in ["l/f", "../outside/f", "l/../../outside/f", "/outside/f", ".."] {
        assert!(put(&below, name, "changed").is_err(), "{name}");
        assert!(read(&below, name).is_err(), "{name}");
        assert!(below.make_dirs(&Path::new(name).join("made")).is_err(), "{name}");
    }
    assert!(read(&below, "d/f").is_err() && read(&below, "d").is_err());
    fifo(&kit.at("top/pipe"));
    assert!(read(&below, "pipe").is_err(), "nor is a pipe waited for");
    put(&below, "d/f", "new").unwrap();
    assert!(fs::symlink_metadata(kit.at("top/d/f")).unwrap().is_file(), "a link is replaced, and not written through");
    assert_eq!(kit.names("outside"), ["f"]);
    assert_eq!(fs::read(kit.at("outside/f")).unwrap(), b"outside");
    let mut seen = Vec::new();
    below
        .walk(&mut |path, _| {
            seen.push(path.to_str().unwrap().to_owned());
            true
        })
        .unwrap();
    assert_eq!(seen, ["d", "l", "pipe", "d/f"]);
}

#[test]
fn a_directory_that_becomes_a_link_while_files_are_put_there_leads_nowhere() {
    let kit = Kit::light();
    kit.dir("outside");
    kit.dir("top/d");
    kit.link("top/l", "../outside");
    let _exchange = Exchange::of(kit.at("top/d"), kit.at("top/l"));
    comes_about("a write by its path is led astray", || {
        let at = kit.at("top/d");
        // The check, and then the use: what a careful copy by paths does.
        if fs::symlink_metadata(&at).is_ok_and(|meta| meta.is_dir()) {
            let _ = fs::write(at.join("f"), "astray");
        }
        kit.at("outside/f").exists()
    });
    fs::remove_file(kit.at("outside/f")).unwrap();
    let below = Below::open(&kit.at("top")).unwrap();
    let mut put_there = 0;
    let (begun, mut round) = (Instant::now(), 0);
    while round < 5_000 || (put_there == 0 && begun.elapsed() < PATIENCE) {
        put_there += usize::from(put(&below, "d/f", "mine").is_ok());
        let _ = below.make_dirs(Path::new("d/sub"));
        assert!(kit.names("outside").is_empty(), "round {round}");
        round += 1;
    }
    assert!(put_there > 0, "nothing was ever put there");
}

#[test]
fn a_directory_that_becomes_a_link_while_files_are_read_there_leads_nowhere() {
    let kit = Kit::light();
    kit.file("outside/f", "outside");
    kit.file("top/d/f", "mine");
    kit.link("top/l", "../outside");
    let _exchange = Exchange::of(kit.at("top/d"), kit.at("top/l"));
    comes_about("a read by its path is led astray", || {
        let is_dir = fs::symlink_metadata(kit.at("top/d")).is_ok_and(|meta| meta.is_dir());
        is_dir && fs::read(kit.at("top/d/f")).is_ok_and(|text| text == b"outside")
    });
    let below = Below::open(&kit.at("top")).unwrap();
    let mut mine = 0;
    let (begun, mut round) = (Instant::now(), 0);
    while round < 5_000 || (mine == 0 && begun.elapsed() < PATIENCE) {
        let text = read(&below, "d/f").unwrap_or_default();
        assert_ne!(text, "outside");
        mine += usize::from(text == "mine");
        round += 1;
    }
    assert!(mine > 0, "nothing was ever read");
}
