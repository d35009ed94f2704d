//! Layers of sandboxes: copied, merged, packed and unpacked.

use std::{
    fs,
    os::{fd::AsFd, unix::fs::MetadataExt},
};

use cabana_guest::tree;
use cabana_sandbox::Error;
use proptest::{collection::vec, prelude::*};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use super::{
    identity::as_user,
    kit::{HOST, Kit, dir_fd, fifo, is_root, set_mode, set_xattr, sh},
};

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

fn packed(kit: &Kit, at: &str) -> Vec<u8> {
    let mut tar = Vec::new();
    tree::pack_layer(dir_fd(&kit.at(at)).as_fd(), HOST, &mut tar).unwrap();
    tar
}

fn unpacked(kit: &Kit, at: &str, tar: &[u8]) -> cabana_sandbox::Result<Vec<String>> {
    kit.dir(at);
    tree::unpack_layer(dir_fd(&kit.at(at)).as_fd(), HOST, &mut &tar[..])
}

/// Names, kinds, modes, owners, times, numbers of names and lists of access; the rest says the digest.
fn listing(kit: &Kit, at: &str) -> String {
    let list = "(find . ! -type d -printf '%p %y %m %U %G %s %T@ %n %l\\n'; find . -type d -printf '%p %m %U %G %T@\\n') | sort";
    sh(&kit.at(at), &format!("{list} > ../{at}.list"));
    fs::read_to_string(kit.at(&format!("{at}.list"))).unwrap()
}

/// The names of all of them, with their paths, are more memory than an archive may keep waiting.
#[test]
fn any_number_of_directories_with_long_paths_comes_back() {
    let kit = Kit::light();
    let deep = format!("layer/{}", vec!["d".repeat(240); 15].join("/"));
    kit.dir(&deep);
    let name = |n: usize| format!("{deep}/{n:x<230}");
    for n in 0..20_000 {
        match n % 100 {
            0 => fs::write(kit.at(&name(n)), "").unwrap(),
            _ => fs::create_dir(kit.at(&name(n))).unwrap(),
        }
    }
    set_mode(&kit.at(&name(7)), 0o1);
    let tar = packed(&kit, "layer");
    assert_eq!(unpacked(&kit, "again", &tar).unwrap(), [""; 0]);
    assert_eq!(kit.digest("layer"), kit.digest("again"));
    let time = |at: &str| fs::metadata(kit.at(at)).map(|meta| (meta.mtime(), meta.mtime_nsec())).unwrap();
    assert_eq!(time(&deep), time(&deep.replacen("layer", "again", 1)));
}

#[test]
fn a_layer_in_another_order_is_refused() {
    let kit = Kit::light();
    for names in [&["a/", "b/", "a/f"][..], &["a/f"], &["./", "a/", "a/b/", "f", "a/b/c"], &["a/", "a/"]] {
        let mut tar = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_ustar();
            let is_dir = name.ends_with('/');
            header.set_entry_type(if is_dir { tar::EntryType::Directory } else { tar::EntryType::Regular });
            header.set_path(name).unwrap();
            header.set_mode(0o755);
            header.set_size(0);
            header.set_cksum();
            tar.append(&header, &b""[..]).unwrap();
        }
        let into = names.concat().replace('/', "");
        let refused = unpacked(&kit, &into, &tar.into_inner().unwrap());
        assert!(matches!(refused, Err(Error::Archive(_))), "{names:?}: {refused:?}");
    }
}

/// In memory, where attributes may take as much as a guest likes.
#[test]
fn attributes_that_no_archive_holds_are_named_and_keep_nothing_else_out() {
    let kit = Kit::light();
    kit.file("layer/heavy", "heavy");
    kit.file("layer/other", "other");
    for n in 0..20 {
        set_xattr(&kit.at("layer/heavy"), &format!("user.{n:02}"), &[n; 60_000]);
    }
    let layer = dir_fd(&kit.at("layer"));
    let refused = tree::pack_layer(layer.as_fd(), HOST, &mut std::io::sink()).unwrap_err();
    assert!(refused.to_string().contains("\"heavy\""), "{refused}");
    let mut tar = Vec::new();
    let left_out = tree::pack_changing(layer.as_fd(), HOST, u64::MAX, &mut tar).unwrap();
    assert!(left_out.len() == 1 && left_out[0].starts_with("\"heavy\": attributes"), "{left_out:?}");
    assert_eq!(unpacked(&kit, "again", &tar).unwrap(), [""; 0]);
    assert_eq!(fs::read_to_string(kit.at("again/heavy")).unwrap(), "heavy");
    assert_eq!(fs::read_to_string(kit.at("again/other")).unwrap(), "other");
    let kept = rustix::fs::listxattr(kit.at("again/heavy"), &mut [0_u8; 4096]).unwrap() / "user.00\0".len();
    assert_eq!(kept, 8, "those that come first");
    assert!(kit.rooted.pack(&super::kit::path("/layer"), &mut std::io::sink()).is_err());
}

/// A file system that keeps less than the one that the archive is of: ext4, of which few attributes fit into a block.
#[test]
fn attributes_that_this_file_system_cannot_have_are_told() {
    let light = Kit::light();
    light.file("layer/dir/f", "content");
    for at in ["layer/dir", "layer/dir/f"] {
        set_xattr(&light.at(at), "user.large", &[1; 60_000]);
        set_xattr(&light.at(at), "user.small", b"small");
    }
    let tar = packed(&light, "layer");
    let kit = Kit::new();
    kit.file("probe", "");
    if rustix::fs::setxattr(kit.at("probe"), c"user.large", &[1; 60_000], XattrFlags::empty()).is_ok() {
        return; // it can have them
    }
    let lost = unpacked(&kit, "again", &tar).unwrap();
    assert!(lost.len() == 2 && lost.iter().all(|what| what.contains("user.large")), "{lost:?}");
    assert_eq!(fs::read_to_string(kit.at("again/dir/f")).unwrap(), "content");
    for at in ["again/dir", "again/dir/f"] {
        assert_eq!(rustix::fs::getxattr(kit.at(at), c"user.small", &mut [0_u8; 8]), Ok(5), "{at}");
    }
}

#[test]
fn what_cannot_be_read_is_left_out_by_name_and_nothing_else() {
    if !is_root() {
        return; // an ordinary user's own files are open to them
    }
    let kit = Kit::light();
    set_mode(kit.temp.path(), 0o755);
    for name in ["a", "closed/in it", "dir/b", "dir/secret", "z"] {
        kit.file(&format!("layer/{name}"), name);
    }
    set_mode(&kit.at("layer/closed"), 0);
    set_mode(&kit.at("layer/dir/secret"), 0);
    let mut tar = Vec::new();
    as_user(|| {
        let layer = dir_fd(&kit.at("layer"));
        let left_out = tree::pack_changing(layer.as_fd(), HOST, u64::MAX, &mut tar).unwrap();
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        for (told, name) in left_out.iter().zip(["\"closed\"", "\"dir/secret\""]) {
            assert!(told.starts_with(name), "{left_out:?}");
        }
        let refused = tree::pack_layer(layer.as_fd(), HOST, &mut std::io::sink()).unwrap_err();
        assert!(refused.to_string().contains("closed"), "{refused}");
    });
    assert_eq!(unpacked(&kit, "again", &tar).unwrap(), [""; 0]);
    assert_eq!(
        (kit.names("again"), kit.names("again/dir")),
        (vec!["a".into(), "dir".into(), "z".into()], vec!["b".into()])
    );
}

#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>, u32),
    Sparse(Vec<u32>),
    Dir(u32),
    Link(String),
    Hard(usize),
    Pipe(u32),
    Whiteout,
}

type Attribute = (String, Vec<u8>);

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        3 => (vec(any::<u8>(), 0..3000), 0..0o10000u32).prop_map(|(body, mode)| Node::File(body, mode)),
        1 => vec(0..4_000_000u32, 0..4).prop_map(Node::Sparse),
        4 => (0..0o10000u32).prop_map(Node::Dir),
        1 => "[a-z./%=\\n]{1,300}".prop_map(Node::Link),
        2 => any::<usize>().prop_map(Node::Hard),
        1 => (0..0o10000u32).prop_map(Node::Pipe),
        1 => Just(Node::Whiteout),
    ]
}

/// A name, of a node that lies in one of the directories before it.
fn nodes() -> impl Strategy<Value = Vec<(usize, String, Node, Vec<Attribute>)>> {
    let name =
        prop_oneof!["[a-c%= \\n]{1,3}", "[a-zä]{60,120}", "[a-c]-?[a-c/]?".prop_map(|name| name.replace('/', "-"))];
    let attribute = ("user\\.[a-c%=.3D25 \\n]{1,40}", vec(any::<u8>(), 0..200));
    vec((any::<usize>(), name, node(), vec(attribute, 0..4)), 0..40)
}

fn make(kit: &Kit, nodes: &[(usize, String, Node, Vec<Attribute>)]) {
    use std::os::unix::fs::FileExt;
    let mut dirs = vec!["layer".to_owned()];
    let (mut files, mut modes) = (Vec::<String>::new(), Vec::new());
    kit.dir("layer");
    for (above, name, node, attributes) in nodes {
        let at = format!("{}/{name}", dirs[above % dirs.len()]);
        let real = kit.at(&at);
        if matches!(name.as_str(), "." | "..") || real.symlink_metadata().is_ok() {
            continue;
        }
        let is_plain = matches!(node, Node::File(..) | Node::Sparse(_) | Node::Dir(_));
        match node {
            Node::File(body, mode) => {
                fs::write(&real, body).unwrap();
                modes.push((at.clone(), *mode));
                files.push(at.clone());
            }
            Node::Sparse(places) => {
                let file = fs::File::create(&real).unwrap();
                places.iter().for_each(|place| file.write_all_at(b"here", u64::from(*place)).unwrap());
                file.set_len(5_000_000).unwrap();
                files.push(at.clone());
            }
            Node::Dir(mode) => {
                fs::create_dir(&real).unwrap();
                modes.push((at.clone(), *mode));
                dirs.push(at.clone());
            }
            Node::Link(text) => std::os::unix::fs::symlink(text, &real).unwrap(),
            Node::Hard(n) if !files.is_empty() => fs::hard_link(kit.at(&files[n % files.len()]), &real).unwrap(),
            Node::Hard(_) => {}
            Node::Pipe(mode) => {
                fifo(&real);
                modes.push((at.clone(), *mode));
                files.push(at.clone());
            }
            Node::Whiteout if is_root() => whiteout(kit, &at),
            Node::Whiteout => {}
        }
        for (name, value) in attributes.iter().filter(|_| is_plain) {
            set_xattr(&real, name, value);
        }
    }
    // Root alone reads what is closed to all.
    modes.into_iter().rev().for_each(|(at, mode)| set_mode(&kit.at(&at), if is_root() { mode } else { mode | 0o700 }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_a_guest_makes_comes_out_of_the_archive_as_it_went_in(nodes in nodes(), changing in any::<bool>()) {
        let kit = Kit::light();
        make(&kit, &nodes);
        let tar = match changing {
            false => packed(&kit, "layer"),
            true => {
                let mut tar = Vec::new();
                let layer = dir_fd(&kit.at("layer"));
                prop_assert_eq!(tree::pack_changing(layer.as_fd(), HOST, u64::MAX, &mut tar).unwrap(), [""; 0]);
                tar
            }
        };
        prop_assert_eq!(unpacked(&kit, "again", &tar).unwrap(), [""; 0]);
        prop_assert_eq!(listing(&kit, "layer"), listing(&kit, "again"));
        prop_assert_eq!(kit.digest("layer"), kit.digest("again"));
    }
}
