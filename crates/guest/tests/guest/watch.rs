use std::{collections::BTreeSet, fs, os::fd::AsFd};

use cabana_guest::{MAX_WATCHES, Watch};
use cabana_sandbox::{Alter, Change, Depth, SandboxPath, WatchEvent, Write, WriteMode};

use super::kit::{Kit, path, set_mode, sh};

fn changed(change: Change, at: &str) -> WatchEvent {
    WatchEvent::Changed(change, path(at))
}

fn is_readable(watch: &Watch) -> bool {
    let mut fds = [rustix::event::PollFd::new(watch, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// All that is there to be told.
fn drain(watch: &mut Watch) -> Vec<WatchEvent> {
    let mut all = Vec::new();
    loop {
        match watch.take().unwrap() {
            none if none.is_empty() => return all,
            some => all.extend(some),
        }
    }
}

#[test]
fn a_write_in_place_shows_as_create_and_write() {
    let kit = Kit::new();
    kit.dir("w");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Here).unwrap();
    assert!(!is_readable(&watch));
    fs::write(kit.at("w/f"), "one").unwrap();
    assert!(is_readable(&watch));
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/f"), changed(Change::Write, "/w/f")]);
    set_mode(&kit.at("w/f"), 0o600);
    fs::remove_file(kit.at("w/f")).unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Chmod, "/w/f"), changed(Change::Remove, "/w/f")]);
    assert!(drain(&mut watch).is_empty());
}

#[test]
fn many_small_writes_are_one() {
    let kit = Kit::new();
    kit.file("w/f", "");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Here).unwrap();
    let mut writer = kit.rooted.write(&path("/w/f"), Write::new(WriteMode::Append)).unwrap();
    for _ in 0..100 {
        writer.put(b"x").unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Write, "/w/f")]);
}

#[test]
fn a_replace_shows_its_target_alone() {
    let kit = Kit::new();
    kit.dir("w");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
    kit.replace("/w/f", "new").unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/f")]);
    kit.replace("/w/f", "newer").unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Write, "/w/f")]);
    kit.write("/w/g", Write::new(WriteMode::CreateNew), "x").unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/g")]);
    drop(kit.rooted.write(&path("/w/h"), Write::new(WriteMode::Replace)).unwrap());
    assert!(drain(&mut watch).is_empty());
}

#[test]
fn renames_are_pairs_and_halves_are_creates_and_removes() {
    let kit = Kit::new();
    kit.file("w/a", "");
    kit.file("out", "");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Here).unwrap();
    fs::rename(kit.at("w/a"), kit.at("w/b")).unwrap();
    assert_eq!(drain(&mut watch), [WatchEvent::Renamed(path("/w/a"), path("/w/b"))]);
    fs::rename(kit.at("w/b"), kit.at("gone")).unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Remove, "/w/b")]);
    fs::rename(kit.at("out"), kit.at("w/in")).unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/in")]);
}

#[test]
fn here_does_not_look_below() {
    let kit = Kit::new();
    kit.dir("w/sub");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Here).unwrap();
    kit.file("w/sub/f", "");
    kit.dir("w/new");
    kit.file("w/new/f", "");
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/new")]);
}

#[test]
fn what_was_put_into_a_new_directory_before_it_was_armed_is_told_once() {
    let kit = Kit::new();
    kit.dir("w/old");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
    kit.file("w/old/f", "x");
    kit.file("w/new/sub/f", "x");
    kit.file("w/new/g", "x");
    let events = drain(&mut watch);
    for at in ["/w/old/f", "/w/new", "/w/new/sub", "/w/new/sub/f", "/w/new/g"] {
        assert_eq!(events.iter().filter(|e| **e == changed(Change::Create, at)).count(), 1, "{at}: {events:?}");
    }
    kit.file("w/new/sub/later", "");
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/new/sub/later")]);
}

#[test]
fn a_renamed_directory_is_watched_under_its_new_name() {
    let kit = Kit::new();
    kit.dir("w/a/deep");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
    fs::rename(kit.at("w/a"), kit.at("w/b")).unwrap();
    kit.file("w/b/deep/f", "");
    assert_eq!(
        drain(&mut watch),
        [WatchEvent::Renamed(path("/w/a"), path("/w/b")), changed(Change::Create, "/w/b/deep/f")]
    );
    // Away: nothing more is told from there.
    fs::rename(kit.at("w/b"), kit.at("away")).unwrap();
    kit.file("away/deep/g", "");
    let events = drain(&mut watch);
    assert!(events.contains(&changed(Change::Remove, "/w/b")));
    kit.file("away/deep/h", "");
    assert!(drain(&mut watch).is_empty());
    // And in again, with all that is in it.
    fs::rename(kit.at("away"), kit.at("w/c")).unwrap();
    let events = drain(&mut watch);
    for at in ["/w/c", "/w/c/deep", "/w/c/deep/g"] {
        assert!(events.contains(&changed(Change::Create, at)), "{at}: {events:?}");
    }
}

#[test]
fn the_end_of_the_directory_itself_is_told() {
    let kit = Kit::new();
    kit.dir("w");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
    fs::remove_dir(kit.at("w")).unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Remove, "/w")]);
    kit.dir("v");
    let mut watch = kit.rooted.watch(&path("/v"), Depth::Here).unwrap();
    fs::rename(kit.at("v"), kit.at("u")).unwrap();
    assert_eq!(drain(&mut watch), [changed(Change::Remove, "/v")]);
    kit.file("u/f", "");
    assert!(drain(&mut watch).is_empty());
}

#[test]
fn a_full_queue_is_an_overflow_and_the_watch_goes_on() {
    let kit = Kit::new();
    kit.dir("w");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    kit.file("w/a", "");
    kit.file("w/b", "");
    for _ in 0..=most / 2 {
        set_mode(&kit.at("w/a"), 0o600);
        set_mode(&kit.at("w/b"), 0o600);
    }
    kit.dir("w/missed");
    let events = drain(&mut watch);
    assert_eq!(events.iter().filter(|e| **e == WatchEvent::Overflow).count(), 1);
    kit.file("w/missed/f", "");
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/missed/f")]);
}

#[test]
fn too_many_directories_are_told_at_once() {
    let kit = Kit::light();
    kit.dir("w");
    sh(&kit.at("w"), &format!("seq 1 {} | xargs mkdir", MAX_WATCHES + 10));
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
    assert!(is_readable(&watch), "who waits for the descriptor must hear of it");
    assert_eq!(drain(&mut watch), [WatchEvent::Overflow]);
}

#[test]
fn a_link_to_the_directory_is_followed_and_links_below_are_not() {
    let kit = Kit::new();
    kit.dir("real");
    kit.dir("other");
    kit.link("w", "/real");
    kit.link("real/l", "/other");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
    kit.file("other/f", "");
    kit.link("real/m", "/other");
    kit.file("real/f", "");
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/m"), changed(Change::Create, "/w/f")]);
    assert!(kit.rooted.watch(&path("/real/f"), Depth::Here).is_err());
    let _ = watch.as_fd();
}

#[test]
fn a_name_taken_again_right_after_a_move_out_of_sight_is_there() {
    let kit = Kit::light();
    kit.dir("w/old");
    let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
    // One whose watch is not armed yet when the other moves into it: only half of the rename is told.
    kit.dir("w/new");
    fs::rename(kit.at("w/old"), kit.at("w/new/in")).unwrap();
    kit.dir("w/old");
    let told = [
        changed(Change::Create, "/w/new"),
        changed(Change::Create, "/w/new/in"),
        changed(Change::Remove, "/w/old"),
        changed(Change::Create, "/w/old"),
    ];
    assert_eq!(drain(&mut watch), told);
    kit.file("w/old/f", "");
    assert_eq!(drain(&mut watch), [changed(Change::Create, "/w/old/f")]);
}

/// What a listener believes to be there, from what it is told alone.
#[derive(Default)]
struct Belief(BTreeSet<SandboxPath>);

impl Belief {
    fn hear(&mut self, event: &WatchEvent) {
        match event {
            WatchEvent::Changed(Change::Create | Change::Write, at) => drop(self.0.insert(at.clone())),
            WatchEvent::Changed(Change::Remove, at) => self.0.retain(|known| !known.is_in(at)),
            WatchEvent::Renamed(from, to) => {
                let moved: Vec<_> = self.0.iter().filter(|known| known.is_in(from)).cloned().collect();
                self.0.retain(|known| !known.is_in(from) && !known.is_in(to));
                for old in moved {
                    let rest = &old.as_bytes()[from.as_bytes().len()..];
                    self.0.insert(SandboxPath::new([to.as_bytes(), rest].concat()).unwrap());
                }
                self.0.insert(to.clone());
            }
            _ => {}
        }
    }
}

fn truth(kit: &Kit) -> BTreeSet<SandboxPath> {
    let mut all = BTreeSet::new();
    let mut ahead = vec![path("/w")];
    while let Some(dir) = ahead.pop() {
        let mut listing = kit.rooted.list(&dir).unwrap();
        while let Some(batch) = listing.next_batch().unwrap() {
            for info in batch {
                if info.kind == cabana_sandbox::Kind::Directory {
                    ahead.push(info.path.clone());
                }
                all.insert(info.path);
            }
        }
    }
    all
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]
    #[test]
    fn who_only_listens_knows_what_is_there(steps in proptest::collection::vec((0u8..6, 0u8..12, 0u8..12), 1..40), take_every in 1usize..8) {
        let name = |n: u8| match n {
            0..4 => format!("/w/{n}"),
            4..8 => format!("/w/{}/{n}", n - 4),
            _ => format!("/w/{}/{}/{n}", n - 8, n - 4),
        };
        let kit = Kit::light();
        kit.dir("w");
        let mut watch = kit.rooted.watch(&path("/w"), Depth::Below).unwrap();
        let mut belief = Belief::default();
        for (n, (step, a, b)) in steps.into_iter().enumerate() {
            let (a, b) = (name(a), name(b));
            // Refusals are part of life.
            let _ = match step {
                0 | 1 => kit.rooted.alter(&Alter::MakeDir(path(&a), 0o755)),
                2 => kit.replace(&a, "x").map(drop),
                3 => kit.write(&a, Write::new(WriteMode::InPlace), "y").map(drop),
                4 => kit.rooted.alter(&Alter::Rename(path(&a), path(&b))),
                _ => kit.rooted.alter(&Alter::RemoveAll(path(&a))),
            };
            if n % take_every == 0 {
                drain(&mut watch).iter().for_each(|event| belief.hear(event));
            }
        }
        drain(&mut watch).iter().for_each(|event| belief.hear(event));
        proptest::prop_assert_eq!(belief.0, truth(&kit));
    }
}
