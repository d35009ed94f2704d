//! Layers of sandboxes: copied, merged, packed and unpacked.

use std::{
    fs,
    os::{fd::AsFd, unix::fs::MetadataExt},
};

use cabana_guest::tree;
use cabana_sandbox::Error;
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use super::kit::{HOST, Kit, dir_fd, fifo, is_root, set_mode, set_xattr, sh};

fn whiteout(kit: &Kit, at: &str) {
    kit.dir(at.rsplit_once('/').expect("it has a parent").0);
    rustix::fs::mknodat(CWD, kit.at(at), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

fn opaque(kit: &Kit, at: &str) {
    kit.dir(at);
    rustix::fs::setxattr(kit.at(at), c"user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
}

fn is_opaque(kit: &Kit, at: &str) -> bool {
    rustix::fs::getxattr(kit.at(at), c"user.overlay.opaque", &mut [0_u8; 8]) == Ok(1)
}

fn is_whiteout(kit: &Kit, at: &str) -> bool {
    let found = fs::symlink_metadata(kit.at(at));
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.mode()) == FileType::CharacterDevice && stat.rdev() == 0)
}

fn merge(kit: &Kit, upper: &str, into: &str) {
    tree::merge_layer(dir_fd(&kit.at(upper)).as_fd(), dir_fd(&kit.at(into)).as_fd()).unwrap();
}

#[test]
fn the_upper_layer_wins_and_what_both_hide_stays_hidden() {
    let kit = Kit::light();
    for (name, content) in
        [("both", "low"), ("low", "low"), ("gone", "low"), ("kept/low", "low"), ("covered/low", "low")]
    {
        kit.file(&format!("low/{name}"), content);
    }
    kit.file("low/file becomes directory", "low");
    kit.file("low/directory becomes file/x", "low");
    whiteout(&kit, "low/hidden below");
    whiteout(&kit, "low/made again");
    opaque(&kit, "low/was opaque");
    kit.file("up/both", "up");
    kit.file("up/kept/up", "up");
    whiteout(&kit, "up/gone");
    opaque(&kit, "up/covered");
    kit.file("up/file becomes directory/x", "up");
    kit.file("up/directory becomes file", "up");
    kit.file("up/made again/x", "up");
    kit.file("up/was opaque/x", "up");
    set_mode(&kit.at("up/kept"), 0o1750);
    set_xattr(&kit.at("low/kept"), "user.old", b"x");
    set_xattr(&kit.at("up/kept"), "user.new", b"y");
    let time = fs::metadata(kit.at("up/kept")).unwrap().mtime_nsec();
    merge(&kit, "up", "low");

    let read = |name: &str| fs::read_to_string(kit.at(&format!("low/{name}"))).unwrap();
    assert_eq!(
        (read("both"), read("low"), read("kept/low"), read("kept/up")),
        ("up".into(), "low".into(), "low".into(), "up".into())
    );
    assert_eq!((read("directory becomes file"), read("made again/x")), ("up".into(), "up".into()));
    assert!(is_whiteout(&kit, "low/gone") && is_whiteout(&kit, "low/hidden below"));
    assert_eq!(kit.names("low/covered"), Vec::<String>::new());
    for name in ["covered", "file becomes directory", "made again", "was opaque"] {
        assert!(is_opaque(&kit, &format!("low/{name}")), "{name}");
    }
    assert!(!is_opaque(&kit, "low/kept"));
    let kept = fs::metadata(kit.at("low/kept")).unwrap();
    assert_eq!((kept.mode() & 0o7777, kept.mtime_nsec()), (0o1750, time));
    let mut names = [0_u8; 64];
    let length = rustix::fs::listxattr(kit.at("low/kept"), &mut names).unwrap();
    assert_eq!(&names[..length], b"user.new\0");
}

#[test]
fn several_names_of_one_file_stay_one_file() {
    let kit = Kit::light();
    kit.file("low/a", "low");
    fs::hard_link(kit.at("low/a"), kit.at("low/b")).unwrap();
    kit.file("up/dir/c", "up");
    fs::hard_link(kit.at("up/dir/c"), kit.at("up/d")).unwrap();
    std::os::unix::fs::symlink("nowhere", kit.at("up/l")).unwrap();
    fs::hard_link(kit.at("up/l"), kit.at("up/m")).unwrap();
    kit.dir("copy");
    tree::copy_layer(dir_fd(&kit.at("low")).as_fd(), dir_fd(&kit.at("copy")).as_fd()).unwrap();
    merge(&kit, "up", "copy");
    let inode = |name: &str| fs::symlink_metadata(kit.at(&format!("copy/{name}"))).unwrap().ino();
    assert!(inode("a") == inode("b") && inode("dir/c") == inode("d") && inode("l") == inode("m"));
    assert!(inode("a") != inode("d"));
}

#[test]
fn what_overlayfs_notes_for_itself_does_not_go_along() {
    let kit = Kit::light();
    kit.file("layer/f", "");
    for name in ["origin", "impure", "redirect", "metacopy", "overlay.mine"] {
        set_xattr(&kit.at("layer/f"), &format!("user.overlay.{name}"), b"y");
    }
    kit.dir("copy");
    tree::copy_layer(dir_fd(&kit.at("layer")).as_fd(), dir_fd(&kit.at("copy")).as_fd()).unwrap();
    let mut names = [0_u8; 256];
    let length = rustix::fs::listxattr(kit.at("copy/f"), &mut names).unwrap();
    assert_eq!(&names[..length], b"user.overlay.overlay.mine\0");
}

#[test]
fn whiteouts_stay_only_where_a_directory_lies_below() {
    let kit = Kit::light();
    for at in ["layer/w", "layer/there/w", "layer/only here/w", "layer/behind/w", "layer/masked/w", "layer/covered/w"] {
        whiteout(&kit, at);
    }
    opaque(&kit, "layer/covered");
    kit.file("low/there/f", "");
    kit.file("low/covered/f", "");
    kit.file("low/behind/f", "");
    kit.file("low/masked/f", "");
    whiteout(&kit, "mask/masked");
    kit.file("mask/behind", "a file");
    let (layer, mask, low) = (dir_fd(&kit.at("layer")), dir_fd(&kit.at("mask")), dir_fd(&kit.at("low")));
    let was = fs::metadata(kit.at("layer/covered")).unwrap().mtime_nsec();
    tree::drop_vain_whiteouts(layer.as_fd(), &[mask.as_fd(), low.as_fd()]).unwrap();
    assert!(is_whiteout(&kit, "layer/w") && is_whiteout(&kit, "layer/there/w"));
    for at in ["layer/only here", "layer/behind", "layer/masked", "layer/covered"] {
        assert_eq!(kit.names(at), Vec::<String>::new(), "{at}");
    }
    assert_eq!(fs::metadata(kit.at("layer/covered")).unwrap().mtime_nsec(), was);
}

#[test]
fn a_layer_comes_out_of_its_archive_as_it_went_in() {
    let kit = Kit::light();
    kit.file("layer/dir/f", "content");
    fs::hard_link(kit.at("layer/dir/f"), kit.at("layer/g")).unwrap();
    whiteout(&kit, "layer/gone");
    fs::hard_link(kit.at("layer/gone"), kit.at("layer/gone too")).unwrap();
    opaque(&kit, "layer/opaque");
    fifo(&kit.at("layer/pipe"));
    set_mode(&kit.at("layer/pipe"), 0o4626);
    set_mode(&kit.at("layer/dir/f"), 0o6711);
    kit.file(&format!("layer/{}/f", "long".repeat(50)), "long");
    set_xattr(&kit.at("layer/dir"), "user.bytes", b"\x01\n=");
    sh(
        &kit.at("layer"),
        "truncate -s 64M sparse && printf island | dd of=sparse bs=1 seek=33554432 conv=notrunc status=none \
        && truncate -s 5M hole && : > empty && ln -s /nowhere link && touch -h -d '1931-07-01 12:34:56.789' link dir/f && touch -d @7.25 .",
    );
    if is_root() {
        sh(&kit.at("layer"), "chown -h 7:8 link dir/f");
    }
    let mut tar = Vec::new();
    tree::pack_layer(dir_fd(&kit.at("layer")).as_fd(), HOST, &mut tar).unwrap();
    assert!(tar.len() < 100_000, "holes are no data: {}", tar.len());
    kit.dir("again");
    tree::unpack_layer(dir_fd(&kit.at("again")).as_fd(), HOST, &mut &tar[..]).unwrap();
    // The size of a directory says how it came about.
    let list = "(find . ! -type d -printf '%p %y %m %U %G %s %T@ %n %l\\n'; find . -type d -printf '%p %m %U %G %T@\\n') | sort";
    for dir in ["layer", "again"] {
        sh(&kit.at(dir), &format!("{list} > ../{dir}.list"));
    }
    let read = |name: &str| fs::read_to_string(kit.at(name)).unwrap();
    assert_eq!(read("layer.list"), read("again.list"));
    assert_eq!(kit.digest("layer"), kit.digest("again"));
    assert!(is_opaque(&kit, "again/opaque") && is_whiteout(&kit, "again/gone too"));
    assert!(fs::metadata(kit.at("again/sparse")).unwrap().blocks() < 100);
}

#[test]
fn an_archive_of_a_layer_that_was_cut_is_refused() {
    let kit = Kit::light();
    kit.file("layer/dir/f", "content");
    let mut tar = Vec::new();
    tree::pack_layer(dir_fd(&kit.at("layer")).as_fd(), HOST, &mut tar).unwrap();
    for length in (0..tar.len() - 1024).step_by(100) {
        let into = format!("into-{length}");
        kit.dir(&into);
        let refused = tree::unpack_layer(dir_fd(&kit.at(&into)).as_fd(), HOST, &mut &tar[..length]);
        assert!(matches!(refused, Err(Error::Archive(_))), "{length}: {refused:?}");
    }
}
