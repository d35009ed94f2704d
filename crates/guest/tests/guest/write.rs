use std::{fs, os::unix::fs::MetadataExt};

use cabana_sandbox::{Error, Write, WriteMode};

use super::kit::{Kit, is_root, mode, path, set_mode};

fn how(mode: WriteMode) -> Write {
    Write::new(mode)
}

#[test]
fn a_new_file_has_the_mode_asked_for_whatever_the_umask() {
    let kit = Kit::new();
    for (n, way) in
        [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append, WriteMode::CreateNew].into_iter().enumerate()
    {
        let info = kit.write(&format!("/{n}"), how(way), "x").unwrap();
        assert_eq!((info.mode, info.size), (0o644, 1), "{way:?}");
        let info = kit.write(&format!("/{n}m"), Write { perm: Some(0o666), ..how(way) }, "x").unwrap();
        assert_eq!(info.mode, 0o666, "{way:?}");
    }
    let info = kit.write("/x", Write { perm: Some(0o100_640), ..how(WriteMode::Replace) }, "").unwrap();
    assert_eq!(info.mode, 0o640, "the bits of the kind are left out");
}

#[test]
fn replace_keeps_mode_and_owner_and_makes_a_new_inode() {
    let kit = Kit::new();
    kit.file("f", "old");
    set_mode(&kit.at("f"), 0o4711);
    if is_root() {
        std::os::unix::fs::chown(kit.at("f"), Some(1234), Some(4321)).unwrap();
        set_mode(&kit.at("f"), 0o4711);
    }
    let before = fs::metadata(kit.at("f")).unwrap();
    kit.replace("/f", "new").unwrap();
    let after = fs::metadata(kit.at("f")).unwrap();
    assert_eq!(fs::read(kit.at("f")).unwrap(), b"new");
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino());
    assert_eq!(kit.names(""), ["f"]);
}

#[test]
fn replace_goes_through_a_link_to_its_target() {
    let kit = Kit::new();
    kit.file("data/f", "old");
    kit.link("l2", "data/../data/f");
    kit.link("data/l1", "/l2");
    kit.replace("/data/l1", "new").unwrap();
    assert_eq!(fs::read(kit.at("data/f")).unwrap(), b"new");
    assert!(fs::symlink_metadata(kit.at("data/l1")).unwrap().is_symlink());
    // One that leads nowhere yet: the file is made there.
    kit.link("ahead", "data/made");
    kit.replace("/ahead", "1").unwrap();
    assert_eq!(fs::read(kit.at("data/made")).unwrap(), b"1");
    kit.link("ahead2", "data/made2");
    kit.write("/ahead2", how(WriteMode::InPlace), "2").unwrap();
    assert_eq!(fs::read(kit.at("data/made2")).unwrap(), b"2");
    kit.link("round", "round");
    assert!(matches!(kit.replace("/round", ""), Err(Error::Loop(_))));
    kit.link("dir", "data/.");
    assert!(matches!(kit.replace("/dir", ""), Err(Error::IsDirectory(_))));
}

#[test]
fn a_write_that_is_not_finished_is_undone() {
    let kit = Kit::new();
    kit.file("f", "old");
    for way in [WriteMode::Replace, WriteMode::CreateNew] {
        let at = if way == WriteMode::Replace { "/f" } else { "/g" };
        let mut writer = kit.rooted.write(&path(at), how(way)).unwrap();
        writer.put(b"half").unwrap();
        drop(writer);
    }
    assert_eq!(kit.names(""), ["f"]);
    assert_eq!(fs::read(kit.at("f")).unwrap(), b"old");
    let mut writer = kit.rooted.write(&path("/f"), how(WriteMode::InPlace)).unwrap();
    writer.put(b"half").unwrap();
    drop(writer);
    assert_eq!(fs::read(kit.at("f")).unwrap(), b"half");
}

#[test]
fn another_length_than_promised_is_an_error_and_undone() {
    let kit = Kit::new();
    kit.file("f", "old");
    for len in [2, 4] {
        let result = kit.write("/f", Write { len: Some(len), ..how(WriteMode::Replace) }, "abc");
        assert!(matches!(result, Err(Error::Invalid { field: "body", .. })));
        assert_eq!(fs::read(kit.at("f")).unwrap(), b"old");
        assert_eq!(kit.names(""), ["f"]);
    }
    kit.write("/f", Write { len: Some(3), ..how(WriteMode::Replace) }, "abc").unwrap();
}

#[test]
fn a_body_over_the_cap_is_too_large_and_undone() {
    let kit = Kit::new();
    let capped = Write { cap: 4, ..how(WriteMode::Replace) };
    assert!(matches!(kit.write("/f", capped, "12345"), Err(Error::TooLarge { cap: 4 })));
    assert!(matches!(kit.rooted.write(&path("/f"), Write { len: Some(5), ..capped }), Err(Error::TooLarge { cap: 4 })));
    assert_eq!(kit.names(""), Vec::<String>::new());
    kit.write("/f", capped, "1234").unwrap();
}

#[test]
fn create_new_never_replaces() {
    let kit = Kit::new();
    kit.write("/f", how(WriteMode::CreateNew), "first").unwrap();
    assert!(matches!(kit.write("/f", how(WriteMode::CreateNew), "second"), Err(Error::Exists(_))));
    kit.link("dangling", "nowhere");
    assert!(matches!(kit.write("/dangling", how(WriteMode::CreateNew), "x"), Err(Error::Exists(_))));
    // It appears while the body comes.
    let mut writer = kit.rooted.write(&path("/late"), how(WriteMode::CreateNew)).unwrap();
    writer.put(b"mine").unwrap();
    kit.file("late", "theirs");
    assert!(matches!(writer.finish(), Err(Error::Exists(_))));
    assert_eq!(fs::read(kit.at("late")).unwrap(), b"theirs");
    assert_eq!(kit.names(""), ["dangling", "f", "late"]);
}

#[test]
fn in_place_keeps_the_inode_and_append_the_content() {
    let kit = Kit::new();
    kit.file("f", "a long old text");
    let inode = fs::metadata(kit.at("f")).unwrap().ino();
    kit.write("/f", how(WriteMode::InPlace), "new").unwrap();
    kit.write("/f", how(WriteMode::Append), "+").unwrap();
    let info = kit.write("/f", Write { perm: Some(0o600), ..how(WriteMode::Append) }, "+").unwrap();
    assert_eq!((info.mode, info.size), (0o600, 5));
    kit.write("/f", Write { perm: Some(0o640), ..how(WriteMode::InPlace) }, "again").unwrap();
    assert_eq!(mode(&kit.at("f")), 0o640);
    assert_eq!(fs::read(kit.at("f")).unwrap(), b"again");
    assert_eq!(fs::metadata(kit.at("f")).unwrap().ino(), inode);
}

#[test]
fn xb_05_parents_are_never_made() {
    let kit = Kit::new();
    for way in [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append, WriteMode::CreateNew] {
        assert!(matches!(kit.write("/no/f", how(way), "x"), Err(Error::NotFound(p)) if p == path("/no/f")));
    }
    kit.file("file", "");
    assert!(matches!(kit.replace("/file/f", "x"), Err(Error::NotDirectory(_))));
    assert_eq!(kit.names(""), ["file"]);
}

#[test]
fn a_full_disk_is_no_space_and_undone() {
    if !is_root() {
        return;
    }
    let kit = Kit::new();
    kit.dir("small");
    let target = kit.at("small");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(&target)
        .status()
        .unwrap();
    assert!(mounted.success());
    let result = kit.replace("/small/f", vec![7; 1 << 20]);
    let left = kit.names("small");
    assert!(std::process::Command::new("umount").arg(&target).status().unwrap().success());
    assert!(matches!(result, Err(Error::NoSpace)));
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn who_may_not_write_a_file_may_not_replace_it() {
    if is_root() {
        return;
    }
    let kit = Kit::new();
    kit.file("f", "old");
    set_mode(&kit.at("f"), 0o444);
    assert!(matches!(kit.replace("/f", "new"), Err(Error::Denied(_))));
    assert_eq!(fs::read(kit.at("f")).unwrap(), b"old");
}

#[test]
fn a_new_file_has_no_name_until_it_is_whole() {
    let kit = Kit::new();
    for way in [WriteMode::Replace, WriteMode::CreateNew] {
        let mut writer = kit.rooted.write(&path("/f"), how(way)).unwrap();
        writer.put(b"half").unwrap();
        assert!(!kit.names("").contains(&"f".to_owned()), "{way:?}");
        drop(writer);
        assert!(kit.names("").is_empty(), "{way:?}");
    }
}

#[test]
fn who_makes_the_file_meanwhile_is_replaced_by_replace_and_kept_by_create_new() {
    let kit = Kit::new();
    for (way, content) in [(WriteMode::Replace, "ours"), (WriteMode::CreateNew, "theirs")] {
        let mut writer = kit.rooted.write(&path("/f"), how(way)).unwrap();
        writer.put(b"ours").unwrap();
        kit.file("f", "theirs");
        let done = writer.finish();
        assert_eq!(done.is_ok(), way == WriteMode::Replace, "{done:?}");
        assert_eq!(fs::read_to_string(kit.at("f")).unwrap(), content);
        assert_eq!(kit.names(""), ["f"]);
        fs::remove_file(kit.at("f")).unwrap();
    }
}
