//! Trees from elsewhere: what they claim to overlayfs and to the kernel is left behind, by every way in.

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use cabana_guest::tree::{self, Allowance};

use super::kit::{HOST, Kit, dir_fd, is_root, path, set_xattr};

/// What no tree from elsewhere may say, with values that would mean something.
const CLAIMS: [(&str, &[u8]); 9] = [
    ("user.overlay.redirect", b"/etc"),
    ("user.overlay.metacopy", b""),
    ("user.overlay.opaque", b"y"),
    ("user.overlay.whiteout", b"y"),
    ("user.overlay.overlay.opaque", b"y"),
    ("trusted.overlay.redirect", b"/etc"),
    ("trusted.overlay.opaque", b"y"),
    ("security.capability", &[1, 0, 0, 2, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]),
    ("security.ima", b"\x01"),
];
const KEPT: (&str, &[u8]) = ("user.overlaid", b"kept");

/// Each file and directory below has what users set and nothing else.
fn only_what_users_set(at: &Path) {
    for name in ["f", "d"] {
        let mut list = [0_u8; 4096];
        let length = rustix::fs::llistxattr(at.join(name), &mut list).unwrap();
        let names: Vec<_> = list[..length].split(|b| *b == 0).filter(|name| !name.is_empty()).collect();
        let shown: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        assert_eq!(shown, [KEPT.0], "{name}");
    }
}

fn pax(tar: &mut tar::Builder<Vec<u8>>) {
    let claims = CLAIMS.iter().chain([&KEPT]).map(|(name, value)| (format!("SCHILY.xattr.{name}"), *value));
    let claims: Vec<_> = claims.collect();
    tar.append_pax_extensions(claims.iter().map(|(name, value)| (name.as_str(), *value))).unwrap();
}

/// A file and a directory that claim all of it.
fn claiming_tar() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, kind, mode) in [("f", tar::EntryType::Regular, 0o644), ("d/", tar::EntryType::Directory, 0o755)] {
        pax(&mut tar);
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_path(name).unwrap();
        header.set_mode(mode);
        header.set_size(0);
        header.set_cksum();
        tar.append(&header, &b""[..]).unwrap();
    }
    tar.into_inner().unwrap()
}

#[test]
fn a_tar_of_a_root_file_system_says_nothing_to_overlayfs() {
    let kit = Kit::new();
    kit.dir("into");
    tree::import_tar(
        dir_fd(&kit.at("into")).as_fd(),
        &mut &claiming_tar()[..],
        HOST,
        &mut Allowance::of_holes(u64::MAX),
        &mut |_| (),
    )
    .unwrap();
    only_what_users_set(&kit.at("into"));
}

#[test]
fn an_archive_of_a_user_says_nothing_to_overlayfs() {
    let kit = Kit::new();
    kit.dir("into");
    kit.rooted.unpack(&path("/into"), &mut &claiming_tar()[..]).unwrap();
    only_what_users_set(&kit.at("into"));
}

/// What it says of opaqueness is a layer's to say, and what a guest set itself comes with overlayfs' own prefix.
#[test]
fn a_saved_layer_says_no_more_to_overlayfs_than_that_a_directory_is_opaque() {
    let kit = Kit::new();
    kit.dir("into");
    if !is_root() {
        return;
    }
    tree::unpack_layer(dir_fd(&kit.at("into")).as_fd(), HOST, &mut &claiming_tar()[..]).unwrap();
    let mut list = [0_u8; 4096];
    let length = rustix::fs::llistxattr(kit.at("into/d"), &mut list).unwrap();
    let mut names: Vec<_> = list[..length].split(|b| *b == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let wanted: [&[u8]; 4] =
        [b"security.capability", b"user.overlaid", b"user.overlay.opaque", b"user.overlay.overlay.opaque"];
    assert_eq!(names, wanted);
}

#[test]
fn a_directory_of_the_host_says_nothing_to_overlayfs() {
    let kit = Kit::new();
    kit.file("from/f", "");
    kit.dir("from/d");
    let both: [PathBuf; 2] = [kit.at("from/f"), kit.at("from/d")];
    for at in &both {
        set_xattr(at, KEPT.0, KEPT.1);
        // The rest takes rights over the file system, or a kernel that judges it.
        for (name, value) in CLAIMS {
            let set = rustix::fs::setxattr(at, name, value, rustix::fs::XattrFlags::empty());
            assert!(set.is_ok() || !name.starts_with("user."), "{name}: {set:?}");
        }
    }
    kit.dir("into");
    tree::copy(dir_fd(&kit.at("from")).as_fd(), dir_fd(&kit.at("into")).as_fd(), HOST, &mut |_, _| true, &mut |_| ())
        .unwrap();
    only_what_users_set(&kit.at("into"));
}

/// The kernel takes no value of this length: it is passed over, like everything that the archive's file system could and ours cannot.
#[test]
fn attributes_of_directories_count_as_what_an_archive_keeps_waiting() {
    let value = vec![b'v'; 1_000_000];
    let unpack = |times: usize| {
        let kit = Kit::new();
        kit.dir("into");
        let mut tar = tar::Builder::new(Vec::new());
        for _ in 0..times {
            tar.append_pax_extensions([("SCHILY.xattr.user.x", &value[..])]).unwrap();
            let mut head = tar::Header::new_ustar();
            head.set_entry_type(tar::EntryType::Directory);
            head.set_mode(0o755);
            head.set_size(0);
            tar.append_data(&mut head, "d", &b""[..]).unwrap();
        }
        kit.rooted.unpack(&path("/into"), &mut &tar.into_inner().unwrap()[..])
    };
    unpack(50).unwrap();
    let refused = unpack(80).unwrap_err();
    assert!(matches!(&refused, cabana_sandbox::Error::Archive(why) if why.contains("attributes")), "{refused}");
}
