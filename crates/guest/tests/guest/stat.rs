use std::{collections::BTreeSet, fs};

use cabana_guest::IdMap;
use cabana_sandbox::{Alter, Error, Kind};

use super::kit::{Kit, fifo, path, set_mode, set_xattr};

#[test]
fn a_file_is_described() {
    let kit = Kit::new();
    kit.file("a/f", "12345");
    set_mode(&kit.at("a/f"), 0o4751);
    let info = kit.rooted.stat(&path("/a/f")).unwrap();
    assert_eq!((info.kind, info.size, info.mode), (Kind::File, 5, 0o4751));
    assert_eq!(info.modified, fs::metadata(kit.at("a/f")).unwrap().modified().unwrap());
    assert_eq!(kit.rooted.stat(&path("/")).unwrap().kind, Kind::Directory);
    fifo(&kit.at("p"));
    assert_eq!(kit.rooted.stat(&path("/p")).unwrap().kind, Kind::Other);
}

#[test]
fn what_is_missing_or_no_directory_says_so() {
    let kit = Kit::new();
    kit.file("f", "");
    assert!(matches!(kit.rooted.stat(&path("/no")), Err(Error::NotFound(p)) if p == path("/no")));
    assert!(matches!(kit.rooted.stat(&path("/f/x")), Err(Error::NotDirectory(_))));
    assert!(matches!(kit.rooted.list(&path("/f")), Err(Error::NotDirectory(_))));
    kit.link("loop", "loop");
    assert!(matches!(kit.rooted.read(&path("/loop"), Default::default()), Err(Error::Loop(_))));
}

#[test]
fn a_link_is_a_link_and_tells_its_canonical_target() {
    let kit = Kit::new();
    kit.file("real/dir/f", "x");
    set_mode(&kit.at("real/dir/f"), 0o640);
    kit.link("d1", "/real");
    kit.link("real/up", "../d1/dir/../dir");
    kit.link("l", "d1/up/f");
    let info = kit.rooted.stat(&path("/l")).unwrap();
    assert_eq!(info.kind, Kind::Symlink);
    let link = info.link.unwrap();
    assert_eq!(link.text, b"d1/up/f");
    assert_eq!(link.target, Some((path("/real/dir/f"), Kind::File, 0o640)));
    for (name, text) in [("gone", "/nowhere"), ("round", "round")] {
        kit.link(name, text);
        assert_eq!(kit.rooted.stat(&path(&format!("/{name}"))).unwrap().link.unwrap().target, None);
    }
}

#[test]
fn links_and_dots_end_at_the_root() {
    let kit = Kit::new();
    kit.file("etc/hosts", "inside");
    kit.link("abs", "/etc/hosts");
    kit.link("up", "../../../../../../etc/hosts");
    kit.link("out", kit.temp.path().join("canary"));
    for name in ["/abs", "/up"] {
        assert_eq!(kit.read(name).unwrap(), b"inside");
        let target = kit.rooted.stat(&path(name)).unwrap().link.unwrap().target.unwrap();
        assert_eq!(target.0, path("/etc/hosts"));
    }
    assert!(matches!(kit.read("/out"), Err(Error::NotFound(_))));
    assert!(matches!(kit.replace("/out", "x"), Err(Error::NotFound(_))));
    kit.canary_is_well();
}

#[test]
fn owners_are_shown_as_inside_sees_them() {
    let me = rustix::process::geteuid().as_raw();
    let kit = Kit::with(IdMap { base: me, count: 1 });
    kit.file("etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    assert_eq!(kit.rooted.stat(&path("/etc")).unwrap().owner, "root");
    let elsewhere = Kit::with(IdMap { base: me + 1, count: 100 });
    elsewhere.file("f", "");
    assert_eq!(elsewhere.rooted.stat(&path("/f")).unwrap().owner, "65534");
    assert_eq!(IdMap { base: 100, count: 10 }.outside(10), None);
    assert_eq!(IdMap { base: 100, count: 10 }.outside(9), Some(109));
}

#[test]
fn tags_are_read_and_set_as_a_whole() {
    let kit = Kit::new();
    kit.file("f", "");
    set_xattr(&kit.at("f"), "user.other", b"1");
    let tags = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let set = |pairs: &[(&str, &str)]| kit.rooted.alter(&Alter::SetTags(path("/f"), tags(pairs)));
    set(&[("a", "1"), ("b", "ä")]).unwrap();
    assert_eq!(kit.rooted.stat(&path("/f")).unwrap().tags, tags(&[("a", "1"), ("b", "ä")]));
    set(&[("b", "2")]).unwrap();
    let listed = kit.rooted.list(&path("/")).unwrap().next_batch().unwrap().unwrap();
    assert_eq!(listed[0].tags, tags(&[("b", "2")]));
    // A value that no file system takes: the old set stays.
    assert!(set(&[("a", "x"), ("b", &"v".repeat(1 << 17))]).is_err());
    assert_eq!(kit.rooted.stat(&path("/f")).unwrap().tags, tags(&[("b", "2")]));
    assert!(matches!(set(&[("", "x")]), Err(Error::Invalid { field: "tags", .. })));
}

#[test]
fn a_huge_directory_comes_in_batches_and_vanished_entries_are_left_out() {
    let kit = Kit::new();
    kit.dir("many");
    for n in 0..3000 {
        fs::write(kit.at(&format!("many/{n}")), "").unwrap();
    }
    let mut listing = kit.rooted.list(&path("/many")).unwrap();
    let mut names = BTreeSet::new();
    let first = listing.next_batch().unwrap().unwrap();
    assert!(first.len() <= 256);
    names.extend(first.into_iter().map(|info| info.path.as_path().to_owned()));
    for entry in fs::read_dir(kit.at("many")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    while let Some(batch) = listing.next_batch().unwrap() {
        assert!(batch.is_empty(), "all were removed");
    }
    assert!(names.len() <= 256);
}

#[test]
fn a_name_that_is_no_text_is_listed_and_read() {
    use std::os::unix::ffi::OsStrExt;
    let kit = Kit::new();
    fs::write(kit.at("").join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), "odd").unwrap();
    let info = &kit.rooted.list(&path("/")).unwrap().next_batch().unwrap().unwrap()[0];
    assert_eq!(info.path.name(), b"\xff\xfe");
    let (_, mut reader) = kit.rooted.read(&info.path, Default::default()).unwrap();
    assert_eq!(&reader.next_chunk().unwrap().unwrap()[..], b"odd");
}
