use std::{fs, os::unix::fs::MetadataExt, process::Command};

use cabana_guest::{IdMap, Rooted};
use cabana_sandbox::{Alter, Error, User};

use super::kit::{HOST, Kit, dir_fd, is_root, mode, path, set_mode, set_xattr, sh};

#[test]
fn a_directory_has_the_mode_asked_for() {
    let kit = Kit::new();
    kit.rooted.alter(&Alter::MakeDir(path("/d"), 0o1777)).unwrap();
    assert_eq!(mode(&kit.at("d")), 0o1777);
    assert!(matches!(kit.rooted.alter(&Alter::MakeDir(path("/d"), 0o755)), Err(Error::Exists(_))));
    assert!(matches!(kit.rooted.alter(&Alter::MakeDir(path("/"), 0o755)), Err(Error::Exists(_))));
    assert!(
        matches!(kit.rooted.alter(&Alter::MakeDir(path("/a/b"), 0o755)), Err(Error::NotFound(p)) if p == path("/a/b"))
    );
}

#[test]
fn rename_replaces_as_the_kernel_does() {
    let kit = Kit::new();
    let rename = |a: &str, b: &str| kit.rooted.alter(&Alter::Rename(path(a), path(b)));
    kit.file("a", "a");
    kit.file("b", "b");
    rename("/a", "/b").unwrap();
    assert_eq!(fs::read(kit.at("b")).unwrap(), b"a");
    kit.file("d/x", "");
    kit.dir("e");
    assert!(matches!(rename("/e", "/d"), Err(Error::NotEmpty(p)) if p == path("/d")));
    assert!(matches!(rename("/b", "/d"), Err(Error::IsDirectory(_))));
    assert!(matches!(rename("/d", "/b"), Err(Error::NotDirectory(_))));
    assert!(matches!(rename("/no", "/x"), Err(Error::NotFound(p)) if p == path("/no")));
    assert!(matches!(rename("/b", "/no/x"), Err(Error::NotFound(p)) if p == path("/no/x")));
    assert!(matches!(rename("/d", "/d/in"), Err(Error::Invalid { .. })));
    assert!(matches!(rename("/", "/x"), Err(Error::Denied(_))));
}

#[test]
fn remove_takes_files_links_and_empty_directories() {
    let kit = Kit::new();
    let remove = |at: &str| kit.rooted.alter(&Alter::Remove(path(at)));
    kit.file("d/f", "");
    kit.link("l", "d");
    assert!(matches!(remove("/d"), Err(Error::NotEmpty(_))));
    remove("/l").unwrap();
    remove("/d/f").unwrap();
    remove("/d").unwrap();
    assert!(matches!(remove("/d"), Err(Error::NotFound(_))));
    assert!(matches!(remove("/"), Err(Error::Denied(_))));
    assert_eq!(kit.names(""), Vec::<String>::new());
}

#[test]
fn remove_all_removes_links_and_not_their_targets() {
    let kit = Kit::new();
    kit.file("keep/f", "");
    kit.file("t/a/b/f", "");
    kit.link("t/a/l", "/keep");
    kit.link("t/out", kit.temp.path());
    kit.rooted.alter(&Alter::RemoveAll(path("/t"))).unwrap();
    assert_eq!(kit.names(""), ["keep"]);
    assert!(kit.at("keep/f").exists());
    assert!(matches!(kit.rooted.alter(&Alter::RemoveAll(path("/t"))), Err(Error::NotFound(_))));
    kit.canary_is_well();
}

#[test]
fn remove_all_stops_at_a_mount_point() {
    if !is_root() {
        return;
    }
    let kit = Kit::new();
    kit.file("view/precious", "x");
    kit.dir("t/mnt");
    let status = Command::new("mount").arg("--bind").arg(kit.at("view")).arg(kit.at("t/mnt")).status().unwrap();
    assert!(status.success());
    let result = kit.rooted.alter(&Alter::RemoveAll(path("/t")));
    assert!(Command::new("umount").arg(kit.at("t/mnt")).status().unwrap().success());
    assert!(matches!(result, Err(Error::Denied(_))), "{result:?}");
    assert!(kit.at("view/precious").exists());
}

#[test]
fn modes_and_owners_are_set_through_links() {
    let kit = Kit::new();
    kit.file("f", "");
    kit.link("l", "f");
    kit.rooted.alter(&Alter::SetMode(path("/l"), 0o4750)).unwrap();
    assert_eq!(mode(&kit.at("f")), 0o4750);
    kit.rooted.alter(&Alter::SetMode(path("/f"), 0o100_640)).unwrap();
    assert_eq!(kit.rooted.stat(&path("/f")).unwrap().mode, 0o640, "the bits of the kind are left out");
    let nobody = User::new("no-such-user").unwrap();
    assert!(matches!(kit.rooted.alter(&Alter::SetOwner(path("/f"), nobody)), Err(Error::UnknownUser(_))));
    if is_root() {
        kit.file("etc/passwd", "agent:x:1000:1001::/:/bin/sh\n");
        let rooted = Rooted::new(dir_fd(&kit.at("")), IdMap { base: 100_000, count: 65536 });
        let agent = || Alter::SetOwner(path("/l"), User::new("agent").unwrap());
        assert!(matches!(rooted.alter(&agent()), Err(Error::Denied(_))), "what is the host's stays the host's");
        std::os::unix::fs::chown(kit.at("f"), Some(100_000), Some(100_000)).unwrap();
        rooted.alter(&agent()).unwrap();
        let meta = fs::metadata(kit.at("f")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (101_000, 101_001));
        let beyond = rooted.alter(&Alter::SetOwner(path("/f"), User::new("70000").unwrap()));
        assert!(matches!(beyond, Err(Error::UserBeyondIds { .. })));
    }
}

#[test]
fn a_link_is_made_with_any_text() {
    let kit = Kit::new();
    let make = |at: &str, text: &[u8]| kit.rooted.alter(&Alter::Symlink { at: path(at), text: text.to_vec() });
    make("/l", b"../../anywhere\xff").unwrap();
    assert_eq!(kit.rooted.stat(&path("/l")).unwrap().link.unwrap().text, b"../../anywhere\xff");
    assert!(matches!(make("/l", b"x"), Err(Error::Exists(_))));
    for bad in [&b""[..], b"a\0b", &[b'x'; 5000]] {
        assert!(matches!(make("/m", bad), Err(Error::Invalid { .. })));
    }
}

/// Runs with an overlay mounted over two fresh directories: `(root of the overlay, kit)`.
fn on_overlay(test: impl FnOnce(&Kit, &Rooted, &std::path::Path)) {
    let kit = Kit::new();
    for dir in ["lower", "upper", "work", "merged"] {
        kit.dir(dir);
    }
    kit.file("lower/tpl/sub/f", "text");
    kit.file("lower/tpl/g", "g");
    sh(&kit.at("lower/tpl"), "ln g h; ln -s /etc l; mkfifo p; chmod 2751 sub; chmod 4755 g");
    set_xattr(&kit.at("lower/tpl/g"), "user.mine", b"1");
    let options = format!(
        "userxattr,lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work",
        kit.at("").display().to_string().trim_end_matches('/')
    );
    let merged = kit.at("merged");
    let status =
        Command::new("mount").args(["-t", "overlay", "-o", &options, "overlay"]).arg(&merged).status().unwrap();
    assert!(status.success());
    let rooted = Rooted::new(dir_fd(&merged), HOST);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&kit, &rooted, &merged)));
    drop(rooted);
    assert!(Command::new("umount").arg("-l").arg(&merged).status().unwrap().success());
    result.unwrap();
}

#[test]
fn a_directory_of_a_layer_below_is_renamed_by_copy() {
    if !is_root() {
        return;
    }
    on_overlay(|kit, rooted, merged| {
        let before = cabana_guest::tree::digest(std::os::fd::AsFd::as_fd(&dir_fd(&merged.join("tpl"))), HOST).unwrap();
        assert_eq!(fs::rename(merged.join("tpl"), merged.join("x")).unwrap_err().raw_os_error(), Some(18));
        rooted.alter(&Alter::Rename(path("/tpl"), path("/moved"))).unwrap();
        let after = cabana_guest::tree::digest(std::os::fd::AsFd::as_fd(&dir_fd(&merged.join("moved"))), HOST).unwrap();
        assert_eq!(before, after);
        assert_eq!(fs::metadata(merged.join("moved/g")).unwrap().nlink(), 2);
        assert_eq!(kit.names("merged"), ["moved"]);
    });
}

#[test]
fn a_rename_by_copy_that_fails_leaves_all_as_it_was() {
    if !is_root() {
        return;
    }
    on_overlay(|kit, rooted, merged| {
        fs::create_dir(merged.join("full")).unwrap();
        fs::write(merged.join("full/x"), "").unwrap();
        let result = rooted.alter(&Alter::Rename(path("/tpl"), path("/full")));
        assert!(matches!(result, Err(Error::NotEmpty(_))), "{result:?}");
        assert_eq!(kit.names("merged"), ["full", "tpl"]);
        assert_eq!(kit.names("merged/tpl"), ["g", "h", "l", "p", "sub"]);
    });
}

#[test]
fn what_may_not_be_done_is_denied() {
    if is_root() {
        return;
    }
    let kit = Kit::new();
    kit.dir("closed");
    set_mode(&kit.at("closed"), 0o555);
    assert!(matches!(kit.rooted.alter(&Alter::MakeDir(path("/closed/d"), 0o755)), Err(Error::Denied(_))));
    assert!(matches!(kit.replace("/closed/f", "x"), Err(Error::Denied(_))));
}
