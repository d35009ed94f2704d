use std::{fs, os::unix::fs::MetadataExt};

use cabana_sandbox::{Error, Result};

use super::kit::{Kit, is_root, mode, path, set_mode};

struct Item<'a> {
    name: &'a [u8],
    kind: tar::EntryType,
    link: &'a [u8],
    body: &'a [u8],
    mode: u32,
}

fn file<'a>(name: &'a str, body: &'a str) -> Item<'a> {
    Item { name: name.as_bytes(), kind: tar::EntryType::Regular, link: b"", body: body.as_bytes(), mode: 0o644 }
}

fn link<'a>(name: &'a str, to: &'a str) -> Item<'a> {
    Item { name: name.as_bytes(), kind: tar::EntryType::Symlink, link: to.as_bytes(), body: b"", mode: 0o777 }
}

fn hard<'a>(name: &'a str, to: &'a str) -> Item<'a> {
    Item { kind: tar::EntryType::Link, ..link(name, to) }
}

fn dir(name: &str, mode: u32) -> Item<'_> {
    Item { name: name.as_bytes(), kind: tar::EntryType::Directory, link: b"", body: b"", mode }
}

/// Written by hand: the tar crate refuses to write what an attacker would.
fn tar_of(items: &[Item<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for item in items {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(item.kind);
        header.as_old_mut().name[..item.name.len()].copy_from_slice(item.name);
        header.as_old_mut().linkname[..item.link.len()].copy_from_slice(item.link);
        header.set_mode(item.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(item.body.len() as u64);
        header.set_cksum();
        tar.append(&header, item.body).unwrap();
    }
    tar.into_inner().unwrap()
}

fn unpack(kit: &Kit, items: &[Item<'_>]) -> Result<()> {
    kit.dir("in");
    kit.rooted.unpack(&path("/in"), &mut &tar_of(items)[..])
}

#[test]
fn files_directories_and_links_are_made_with_parents_modes_and_times() {
    let kit = Kit::new();
    let run = Item { mode: 0o4755, ..file("a/b/run", "#!") };
    unpack(
        &kit,
        &[run, dir("closed/", 0o500), file("closed/f", "in"), link("l", "/nowhere"), hard("a/second", "a/b/run")],
    )
    .unwrap();
    let meta = fs::metadata(kit.at("in/a/b/run")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.nlink(), meta.mtime()), (0o4755, 2, 1_000_000_000));
    assert_eq!(mode(&kit.at("in/closed")), 0o500);
    assert_eq!(fs::metadata(kit.at("in/closed")).unwrap().mtime(), 1_000_000_000);
    assert_eq!(fs::read(kit.at("in/closed/f")).unwrap(), b"in");
    assert_eq!(fs::read_link(kit.at("in/l")).unwrap().to_str(), Some("/nowhere"));
}

#[test]
fn names_that_lead_out_are_refused_before_anything_is_written() {
    for bad in ["/etc/x", "../x", "a/../../x", "..", "a/.."] {
        let kit = Kit::new();
        let result = unpack(&kit, &[file("good", "1"), file(bad, "2"), file("never", "3")]);
        assert!(matches!(result, Err(Error::Archive(_))), "{bad}: {result:?}");
        assert_eq!(kit.names("in"), ["good"], "{bad}");
        kit.canary_is_well();
    }
    for bad in ["../f", "/in/f"] {
        let kit = Kit::new();
        kit.file("f", "x");
        assert!(matches!(unpack(&kit, &[hard("h", bad)]), Err(Error::Archive(_))), "{bad}");
        assert_eq!(kit.names("in"), Vec::<String>::new());
    }
}

#[test]
fn an_archives_own_links_are_never_followed() {
    let kit = Kit::new();
    kit.file("etc/passwd", "inside");
    let out = kit.temp.path().display().to_string();
    for to in ["/etc", "../etc", out.as_str()] {
        let result = unpack(&kit, &[link("a", to), file("a/passwd", "evil")]);
        assert!(matches!(result, Err(Error::Archive(_))), "{result:?}");
        let result = unpack(&kit, &[link("a", to), file("a/new/passwd", "evil")]);
        assert!(matches!(result, Err(Error::Archive(_))), "{result:?}");
        let result = unpack(&kit, &[link("a", to), hard("h", "a/passwd")]);
        assert!(matches!(result, Err(Error::Archive(_))), "{result:?}");
    }
    // A file over a link replaces the link; a directory over it too.
    unpack(
        &kit,
        &[link("a", "/etc/passwd"), file("a", "new"), link("b", "/etc"), dir("b/", 0o755), file("b/passwd", "x")],
    )
    .unwrap();
    assert_eq!(fs::read(kit.at("in/a")).unwrap(), b"new");
    assert_eq!(fs::read(kit.at("etc/passwd")).unwrap(), b"inside");
    kit.canary_is_well();
}

#[test]
fn what_is_there_is_replaced_but_not_a_directory() {
    let kit = Kit::new();
    kit.file("in/f", "old");
    kit.file("in/d/keep", "kept");
    set_mode(&kit.at("in"), 0o711);
    unpack(&kit, &[dir("./", 0o700), file("f", "new"), dir("d/", 0o750), file("./d/more", "x")]).unwrap();
    assert_eq!(fs::read(kit.at("in/f")).unwrap(), b"new");
    assert_eq!(kit.names("in/d"), ["keep", "more"]);
    assert_eq!(mode(&kit.at("in/d")), 0o750);
    assert_eq!(mode(&kit.at("in")), 0o711, "the directory itself is not the archive's to change");
    assert!(matches!(unpack(&kit, &[file("d", "x")]), Err(Error::IsDirectory(p)) if p == path("/in/d")));
    assert!(matches!(unpack(&kit, &[file("f/x", "x")]), Err(Error::Archive(_))));
}

#[test]
fn a_hard_link_to_nothing_and_an_unknown_kind_are_refused() {
    let kit = Kit::new();
    assert!(matches!(unpack(&kit, &[hard("h", "not-there")]), Err(Error::Archive(_))));
    let odd = Item { kind: tar::EntryType::new(b'Q'), ..file("q", "") };
    assert!(matches!(unpack(&kit, &[odd]), Err(Error::Archive(_))));
    let missing = kit.rooted.unpack(&path("/no"), &mut &tar_of(&[])[..]);
    assert!(matches!(missing, Err(Error::NotFound(_))));
}

#[test]
fn pipes_and_devices_of_an_archive_are_left_out() {
    let kit = Kit::new();
    let pipe = Item { kind: tar::EntryType::Fifo, ..file("pipe", "") };
    let null = Item { kind: tar::EntryType::Char, ..file("null", "") };
    unpack(&kit, &[pipe, null, file("f", "x")]).unwrap();
    assert_eq!(kit.names("in"), ["f"]);
}

#[test]
fn a_size_that_is_a_lie_takes_no_memory_and_is_an_error() {
    let kit = Kit::new();
    kit.dir("in");
    for kind in [b'0', b'L', b'x'] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::new(kind));
        header.as_old_mut().name[0] = b'f';
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(1 << 60);
        header.set_cksum();
        let result = kit.rooted.unpack(&path("/in"), &mut &header.as_bytes()[..]);
        assert!(matches!(result, Err(Error::Archive(_))), "{result:?}");
    }
}

#[test]
fn a_size_that_overflows_with_its_padding_is_an_archive_cut_off() {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::new(b'D'));
    header.as_old_mut().name[..1].copy_from_slice(b"d");
    header.set_mode(0o755);
    header.as_old_mut().size = [0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    header.set_cksum();
    let tar = [&header.as_bytes()[..], &tar_of(&[file("after", "x")])].concat();
    let kit = Kit::new();
    let refused = kit.rooted.unpack(&path("/"), &mut &tar[..]).unwrap_err();
    assert!(matches!(&refused, Error::Archive(why) if why.contains("cut off")), "{refused}");
    assert!(!kit.at("/after").exists());
}

#[test]
fn owners_are_the_archives_for_root_alone() {
    let kit = Kit::with(cabana_guest::IdMap { base: rustix::process::geteuid().as_raw(), count: 65536 });
    kit.dir("in");
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[0] = b'f';
    header.set_mode(0o644);
    header.set_uid(42);
    header.set_gid(43);
    header.set_mtime(0);
    header.set_size(0);
    header.set_cksum();
    tar.append(&header, &[][..]).unwrap();
    let tar = tar.into_inner().unwrap();
    if is_root() {
        kit.rooted.unpack(&path("/in"), &mut &tar[..]).unwrap();
        let meta = fs::metadata(kit.at("in/f")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (42, 43));
    }
    // Somebody who is not root inside: the files are theirs.
    let other = Kit::with(cabana_guest::IdMap { base: rustix::process::geteuid().as_raw() + 1, count: 65536 });
    other.dir("in");
    // The directory is not of the sandbox: only what everybody may is done there.
    assert!(matches!(other.rooted.unpack(&path("/in"), &mut &tar[..]), Err(Error::Denied(_))));
    fs::set_permissions(other.at("in"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    other.rooted.unpack(&path("/in"), &mut &tar[..]).unwrap();
    assert_eq!(fs::metadata(other.at("in/f")).unwrap().uid(), rustix::process::geteuid().as_raw());
}

/// The same header for ever.
struct Endless(Vec<u8>, usize);

impl std::io::Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = buffer.len().min(self.0.len() - self.1);
        buffer[..n].copy_from_slice(&self.0[self.1..self.1 + n]);
        self.1 = (self.1 + n) % self.0.len();
        Ok(n)
    }
}

#[test]
fn an_endless_archive_ends_at_a_million_entries() {
    let kit = Kit::new();
    let pipe = Item { kind: tar::EntryType::Fifo, ..file("pipe", "") };
    let header = tar_of(&[pipe])[..512].to_vec();
    let result = kit.rooted.unpack(&path("/"), &mut Endless(header.repeat(128), 0));
    assert!(matches!(result, Err(Error::Archive(why)) if why.contains("1000000")));
}

#[test]
fn many_files_are_whole_and_the_later_of_two_with_one_name_wins() {
    let kit = Kit::new();
    let long = "y".repeat(200_000);
    let names: Vec<String> = (0..300).map(|n| format!("d{}/f{n}", n % 7)).collect();
    let mut items: Vec<_> =
        names.iter().enumerate().map(|(n, name)| file(name, if n % 50 == 0 { &long } else { name })).collect();
    items.push(file("d1/f1", "later"));
    unpack(&kit, &items).unwrap();
    for (n, name) in names.iter().enumerate().filter(|(n, _)| *n != 1) {
        let expected = if n % 50 == 0 { &long } else { name };
        assert_eq!(&fs::read_to_string(kit.at(&format!("in/{name}"))).unwrap(), expected);
        assert_eq!(fs::metadata(kit.at(&format!("in/{name}"))).unwrap().mtime(), 1_000_000_000);
    }
    assert_eq!(fs::read_to_string(kit.at("in/d1/f1")).unwrap(), "later");
}
