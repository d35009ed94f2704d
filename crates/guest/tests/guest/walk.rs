use std::{fs, path::Path};

use cabana_sandbox::{Error, Kind, Result, TreeItem, Walk};

use super::kit::{Exchange, Kit, comes_about, fifo, path, set_mode};

/// What is walked: names with their kinds, and the content of each file.
fn walked(kit: &Kit, dir: &str, what: Walk) -> Result<Vec<(String, Kind, Vec<u8>)>> {
    let mut walker = kit.rooted.walk(&path(dir), what)?;
    let mut all: Vec<(String, Kind, Vec<u8>)> = Vec::new();
    while let Some(batch) = walker.next_batch()? {
        assert!(batch.len() <= 256);
        for item in batch {
            match item {
                TreeItem::Entry(entry) => all.push((entry.path.to_string(), entry.kind, Vec::new())),
                TreeItem::Content(bytes) => all.last_mut().unwrap().2.extend_from_slice(&bytes),
            }
        }
    }
    Ok(all)
}

fn names(kit: &Kit, dir: &str, what: Walk) -> Vec<String> {
    walked(kit, dir, what).unwrap().into_iter().map(|(name, ..)| name).collect()
}

#[test]
fn each_directory_comes_before_what_it_holds_and_each_file_with_its_content() {
    let kit = Kit::new();
    let large: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    kit.file("t/b/large", &large);
    kit.file("t/b/c/deep", "deep");
    kit.file("t/a", "first");
    kit.file("t/empty-file", "");
    kit.dir("t/empty");
    kit.link("t/b/up", "..");
    kit.link("t/out", "/../../canary");
    fifo(&kit.at("t/pipe"));
    let (file, dir, link) = (Kind::File, Kind::Directory, Kind::Symlink);
    let wanted = [
        ("/t/a", file, &b"first"[..]),
        ("/t/b", dir, b""),
        ("/t/b/c", dir, b""),
        ("/t/b/c/deep", file, b"deep"),
        ("/t/b/large", file, &large),
        ("/t/b/up", link, b""),
        ("/t/empty", dir, b""),
        ("/t/empty-file", file, b""),
        ("/t/out", link, b""),
        ("/t/pipe", Kind::Other, b""),
    ];
    let content = walked(&kit, "/t", Walk::Content).unwrap();
    assert!(content == wanted.map(|(name, kind, bytes)| (name.to_owned(), kind, bytes.to_vec())));
    assert_eq!(names(&kit, "/t", Walk::ALL), wanted.map(|(name, ..)| name));
    assert!(walked(&kit, "/t", Walk::ALL).unwrap().iter().all(|(_, _, content)| content.is_empty()));
    kit.link("way", "t/b");
    assert_eq!(names(&kit, "/way", Walk::ALL)[0], "/way/c", "the directory itself may be named by a link");
}

#[test]
fn a_walk_goes_as_many_levels_down_as_it_is_asked_to() {
    let kit = Kit::new();
    kit.file("t/a/b/c/f", "");
    let levels = |levels| names(&kit, "/t", Walk::Entries { levels });
    assert_eq!(levels(1), ["/t/a"]);
    assert_eq!(levels(2), ["/t/a", "/t/a/b"]);
    assert_eq!(levels(4), ["/t/a", "/t/a/b", "/t/a/b/c", "/t/a/b/c/f"]);
}

#[test]
fn what_is_no_directory_is_not_walked() {
    let kit = Kit::new();
    kit.file("f", "");
    assert!(matches!(kit.rooted.walk(&path("/f"), Walk::ALL), Err(Error::NotDirectory(_))));
    assert!(matches!(kit.rooted.walk(&path("/no"), Walk::ALL), Err(Error::NotFound(_))));
}

#[test]
fn a_directory_that_is_nobodys_inside_is_an_entry_and_never_entered() {
    use cabana_guest::IdMap;
    if !super::kit::is_root() {
        return;
    }
    let kit = Kit::with(IdMap { base: 200_000, count: 65_536 });
    kit.file("t/closed/f", "secret");
    set_mode(&kit.at("t/closed"), 0o700);
    assert_eq!(names(&kit, "/t", Walk::ALL), ["/t/closed"]);
    assert!(matches!(walked(&kit, "/t", Walk::Content), Err(Error::Denied(_))), "an archive would not be whole");
    set_mode(&kit.at("t/closed"), 0o755);
    set_mode(&kit.at("t/closed/f"), 0o600);
    assert!(matches!(walked(&kit, "/t", Walk::Content), Err(Error::Denied(_))));
}

/// As a walk by paths does it: looks what an entry is, and then goes there by its name.
fn walked_by_path(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match fs::symlink_metadata(entry.path()) {
            Ok(meta) if meta.is_dir() => all.extend(walked_by_path(&entry.path())),
            Ok(meta) if meta.is_file() => all.extend(fs::read(entry.path()).unwrap_or_default()),
            _ => {}
        }
    }
    all
}

#[test]
fn a_directory_that_becomes_a_link_while_it_is_walked_leads_nowhere() {
    let kit = Kit::light();
    kit.file("secret/f", "secret");
    kit.file("t/d/f", "mine");
    kit.link("t/l", "../secret");
    let _exchange = Exchange::of(kit.at("t/d"), kit.at("t/l"));
    let secret = |bytes: &[u8]| bytes.windows(6).any(|window| window == b"secret");
    comes_about("a walk by paths is led astray", || secret(&walked_by_path(&kit.at("t"))));
    let mut seen = 0;
    for _ in 0..5_000 {
        let all = walked(&kit, "/t", Walk::Content).unwrap();
        assert!(all.iter().all(|(_, _, content)| !secret(content)), "{all:?}");
        seen += usize::from(all.iter().any(|(_, _, content)| content == b"mine"));
    }
    assert!(seen > 0, "its own content was never there");
}

#[test]
fn a_file_that_becomes_a_link_while_it_is_walked_leads_nowhere() {
    let kit = Kit::light();
    kit.file("secret", "secret");
    kit.file("t/f", "mine");
    kit.link("t/l", "../secret");
    let _exchange = Exchange::of(kit.at("t/f"), kit.at("t/l"));
    comes_about("a walk by paths is led astray", || walked_by_path(&kit.at("t")).starts_with(b"secret"));
    for _ in 0..5_000 {
        let all = walked(&kit, "/t", Walk::Content).unwrap();
        assert!(all.iter().all(|(_, _, content)| content != b"secret"), "{all:?}");
    }
}

/// More of them than a walk holds in memory at once.
#[test]
fn a_directory_of_very_many_long_names_comes_whole_and_in_order() {
    let kit = Kit::new();
    let name = |n: usize| format!("/t/{n:05}{}", "n".repeat(225));
    for n in 0..6000 {
        let path = if n % 1000 == 0 { format!("{}/file", name(n)) } else { name(n) };
        kit.file(&path[1..], "");
    }
    let all = (0..6000).flat_map(|n| [Some(name(n)), (n % 1000 == 0).then(|| format!("{}/file", name(n)))]);
    assert!(names(&kit, "/t", Walk::Content).into_iter().eq(all.flatten()));
}
