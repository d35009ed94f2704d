use std::{
    fs,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
};

use cabana_guest::{
    IdMap,
    tree::{self, Allowance, Measured},
};
use cabana_sandbox::{Error, PathError};

use super::kit::{Exchange, HOST, Kit, c, comes_about, dir_fd, fifo, is_root, mode, set_mode, set_xattr, sh};

fn copy(kit: &Kit, from: &str, into: &str) {
    kit.dir(into);
    tree::copy(dir_fd(&kit.at(from)).as_fd(), dir_fd(&kit.at(into)).as_fd(), mine(), &mut |_, _| true, &mut |_| ())
        .unwrap();
}

/// All files are this user's: what an ordinary user can make too.
fn mine() -> IdMap {
    if is_root() { HOST } else { IdMap { base: 0, count: u32::MAX } }
}

#[test]
fn a_tree_of_ten_thousand_levels_is_counted_copied_named_and_removed() {
    let kit = Kit::light();
    kit.dir("deep");
    let mut at = dir_fd(&kit.at("deep"));
    for _ in 0..10_000 {
        rustix::fs::mkdirat(&at, c"d", rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        at = rustix::fs::openat(&at, c"d", flags, rustix::fs::Mode::empty()).unwrap();
    }
    fs::write(format!("/proc/self/fd/{}/f", std::os::fd::AsRawFd::as_raw_fd(&at)), "bottom").unwrap();
    drop(at);
    let usage = tree::usage(dir_fd(&kit.at("deep")).as_fd()).unwrap().found();
    assert_eq!(usage.entries, 10_001);
    copy(&kit, "deep", "copy");
    assert_eq!(kit.digest("deep"), kit.digest("copy"));
    // As an archive nobody takes such paths back.
    let packed = kit.rooted.pack(&super::kit::path("/deep"), &mut Vec::new());
    assert!(matches!(packed, Err(Error::Path(PathError::Long))), "{packed:?}");
    for name in ["deep", "copy"] {
        tree::remove(dir_fd(&kit.at("")).as_fd(), &c(name)).unwrap();
    }
    assert_eq!(kit.names(""), Vec::<String>::new());
}

#[test]
fn remove_opens_closed_directories_and_absent_is_fine() {
    let kit = Kit::new();
    kit.file("t/a/b/f", "");
    kit.file("t/ro/f", "");
    set_mode(&kit.at("t/ro"), 0o555);
    set_mode(&kit.at("t/a/b"), 0);
    set_mode(&kit.at("t/a"), 0);
    set_mode(&kit.at("t"), 0);
    let root = dir_fd(&kit.at(""));
    tree::remove(root.as_fd(), c"t").unwrap();
    tree::remove(root.as_fd(), c"t").unwrap();
    assert_eq!(kit.names(""), Vec::<String>::new());
}

#[test]
fn remove_goes_on_while_somebody_moves_the_tree_about() {
    let kit = Kit::new();
    for n in 0..20 {
        kit.file(&format!("t/{n}/x/y/z/f"), "");
    }
    kit.file("keep/precious", "x");
    let (stop, base) = (std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)), kit.at("t"));
    let mover = std::thread::spawn({
        let stop = stop.clone();
        move || {
            for n in (0..20).cycle() {
                let _ = fs::rename(base.join(format!("{n}/x/y")), base.join(format!("{}/moved", (n + 1) % 20)));
                let _ = fs::rename(base.join(format!("{n}/moved")), base.join(format!("{}/back", (n + 7) % 20)));
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
            }
        }
    });
    tree::remove(dir_fd(&kit.at("")).as_fd(), c"t").unwrap();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    mover.join().unwrap();
    assert_eq!(kit.names(""), ["keep"]);
    assert!(kit.at("keep/precious").exists());
}

#[test]
fn usage_counts_blocks_and_a_hard_link_once() {
    let kit = Kit::new();
    kit.file("t/f", vec![1; 1 << 20]);
    let one = tree::usage(dir_fd(&kit.at("t")).as_fd()).unwrap().found();
    assert!((1 << 20..(1 << 20) + 65536).contains(&one.bytes), "{one:?}");
    fs::hard_link(kit.at("t/f"), kit.at("t/g")).unwrap();
    fs::File::create(kit.at("t/hole")).unwrap().set_len(1 << 40).unwrap();
    let three = tree::usage(dir_fd(&kit.at("t")).as_fd()).unwrap().found();
    assert_eq!((three.bytes, three.entries), (one.bytes, 3));
}

#[test]
fn usage_goes_on_beside_a_directory_that_is_moved_while_it_is_walked() {
    let kit = Kit::light();
    let chain = vec!["c"; 300].join("/");
    for n in 0..2 {
        kit.dir(&format!("t/{n}/there/x"));
        kit.dir(&format!("t/{n}/here/x/{chain}"));
        kit.file(&format!("t/{n}/data/f"), vec![1; 1 << 20]);
    }
    let measured = || {
        let measured = tree::usage(dir_fd(&kit.at("t")).as_fd()).unwrap();
        assert!(measured.found().bytes >= 2 << 20, "{measured:?}");
        measured
    };
    let moves = [0, 1].map(|n| Exchange::of(kit.at(&format!("t/{n}/here/x")), kit.at(&format!("t/{n}/there/x"))));
    comes_about("a walk that does not find back", || matches!(measured(), Measured::AtLeast(_)));
    drop(moves);
    assert!(matches!(measured(), Measured::Whole(_)));
}

#[test]
fn a_time_of_access_does_not_tell_where_the_walk_is() {
    let kit = Kit::new();
    kit.file("t/d/f", "");
    let accessed = |path: &str| fs::metadata(kit.at(path)).map(|found| (found.atime(), found.atime_nsec())).unwrap();
    sh(&kit.at("t"), "touch -a -d 2001-01-01 d .");
    let then = (accessed("t"), accessed("t/d"));
    tree::usage(dir_fd(&kit.at("t")).as_fd()).unwrap();
    assert_eq!((accessed("t"), accessed("t/d")), then);
    // An ordinary walk is told, or this would show nothing.
    fs::read_dir(kit.at("t/d")).unwrap().count();
    assert_ne!(accessed("t/d"), then.1, "times of access are not kept here");
}

#[test]
fn names_of_a_file_far_down_are_names_of_one_copy() {
    let kit = Kit::light();
    let long = vec!["n".repeat(200); 30].join("/");
    kit.dir("from");
    let mut at = dir_fd(&kit.at("from"));
    for part in long.split('/') {
        rustix::fs::mkdirat(&at, part, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        at = rustix::fs::openat(&at, part, flags, rustix::fs::Mode::empty()).unwrap();
    }
    fs::write(format!("/proc/self/fd/{}/f", std::os::fd::AsRawFd::as_raw_fd(&at)), vec![1; 1 << 20]).unwrap();
    for n in 0..8 {
        rustix::fs::linkat(&at, "f", &at, format!("g{n}"), rustix::fs::AtFlags::empty()).unwrap();
    }
    copy(&kit, "from", "copy");
    kit.dir("layer");
    tree::copy_layer(dir_fd(&kit.at("from")).as_fd(), dir_fd(&kit.at("layer")).as_fd()).unwrap();
    let used = |name: &str| tree::usage(dir_fd(&kit.at(name)).as_fd()).unwrap().found();
    for name in ["copy", "layer"] {
        assert_eq!(used(name), used("from"), "{name}");
    }
}

/// The most memory that this process has had, in MiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn linked_files_far_down_take_no_memory_for_their_whole_paths() {
    let kit = Kit::light();
    kit.dir("from");
    let name = "n".repeat(250);
    let mut at = dir_fd(&kit.at("from"));
    for _ in 0..1200 {
        rustix::fs::mkdirat(&at, &*name, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        at = rustix::fs::openat(&at, &*name, flags, rustix::fs::Mode::empty()).unwrap();
    }
    for n in 0..500 {
        fs::write(format!("/proc/self/fd/{}/f{n}", std::os::fd::AsRawFd::as_raw_fd(&at)), "").unwrap();
        rustix::fs::linkat(&at, format!("f{n}"), &at, format!("g{n}"), rustix::fs::AtFlags::empty()).unwrap();
    }
    let before = peak_memory();
    kit.dir("layer");
    tree::copy_layer(dir_fd(&kit.at("from")).as_fd(), dir_fd(&kit.at("layer")).as_fd()).unwrap();
    assert_eq!(kit.digest("from"), kit.digest("layer"));
    let more = peak_memory() - before;
    assert!(more < 40, "{more} MiB for 500 files at a path of 300 KB"); // whole paths would be 150 in each of them
}

#[test]
fn the_digest_knows_every_difference_but_times() {
    let kit = Kit::new();
    let base = |dir: &str| {
        kit.file(&format!("{dir}/d/f"), "text");
        kit.file(&format!("{dir}/g"), "text");
        kit.link(&format!("{dir}/l"), "g");
    };
    base("a");
    base("b");
    sh(&kit.at("b"), "touch -d 2001-01-01 g d");
    assert_eq!(kit.digest("a"), kit.digest("b"));
    let changes: &[&str] = &[
        "chmod 600 g",
        "printf x > g",
        "mv g h",
        "ln -sfn h l",
        "chmod 700 d",
        "rm g; ln d/f g",
        "mkdir e",
        "mkfifo p",
        "chmod 711 .",
    ];
    let mut seen = vec![kit.digest("a")];
    for (n, change) in changes.iter().enumerate() {
        let dir = format!("c{n}");
        base(&dir);
        sh(&kit.at(&dir), change);
        let digest = kit.digest(&dir);
        assert!(!seen.contains(&digest), "{change}");
        seen.push(digest);
    }
    set_xattr(&kit.at("b/d"), "user.overlay.opaque", b"y");
    assert!(!seen.contains(&kit.digest("b")));
    if is_root() {
        std::os::unix::fs::lchown(kit.at("a/l"), Some(5), None).unwrap();
        assert_ne!(kit.digest("a"), seen[0]);
    }
}

#[test]
fn a_copy_keeps_what_a_template_needs() {
    let kit = Kit::new();
    kit.file("from/bin/su", "program");
    set_mode(&kit.at("from/bin/su"), 0o4755);
    sh(
        &kit.at("from"),
        "ln bin/su second; ln -s /nowhere l; touch -h -d 2001-02-03 l bin/su; mkdir -m 1777 tmp; mkdir skipped",
    );
    kit.file("from/skipped/x", "x");
    set_xattr(&kit.at("from/bin/su"), "user.k", b"v");
    fifo(&kit.at("from/pipe"));
    let sparse = fs::File::create(kit.at("from/sparse")).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, b"end", 50 << 20).unwrap();
    kit.dir("into");
    let mut told = 0;
    let keep = &mut |path: &Path, stat: &tree::Stat| {
        assert!(stat.st_nlink > 0);
        path != Path::new("skipped")
    };
    tree::copy(dir_fd(&kit.at("from")).as_fd(), dir_fd(&kit.at("into")).as_fd(), mine(), keep, &mut |n| told = n)
        .unwrap();
    assert_eq!(kit.names("into"), ["bin", "l", "second", "sparse", "tmp"]);
    let (old, new) = (fs::metadata(kit.at("from/bin/su")).unwrap(), fs::metadata(kit.at("into/bin/su")).unwrap());
    assert_eq!((old.mode(), old.mtime(), 2), (new.mode(), new.mtime(), new.nlink()));
    assert_eq!(new.ino(), fs::metadata(kit.at("into/second")).unwrap().ino());
    assert_eq!(mode(&kit.at("into/tmp")), 0o1777);
    let sparse = fs::metadata(kit.at("into/sparse")).unwrap();
    assert_eq!(sparse.len(), (50 << 20) + 3);
    assert!(sparse.blocks() < 1000, "holes stay holes");
    assert!(told > 0);
    fs::remove_file(kit.at("from/pipe")).unwrap();
    fs::remove_dir_all(kit.at("from/skipped")).unwrap();
    assert_eq!(kit.digest("from"), kit.digest("into"));
}

#[test]
fn owners_are_mapped_and_strangers_belong_to_nobody() {
    if !is_root() {
        return;
    }
    let kit = Kit::new();
    kit.file("from/root", "");
    kit.file("from/far", "");
    std::os::unix::fs::chown(kit.at("from/far"), Some(1_000_000), Some(7)).unwrap();
    kit.dir("into");
    let ids = IdMap { base: 200_000, count: 65536 };
    tree::copy(dir_fd(&kit.at("from")).as_fd(), dir_fd(&kit.at("into")).as_fd(), ids, &mut |_, _| true, &mut |_| ())
        .unwrap();
    let owner = |name: &str| fs::metadata(kit.at(name)).map(|m| (m.uid(), m.gid())).unwrap();
    assert_eq!(owner("into"), (200_000, 200_000));
    assert_eq!(owner("into/root"), (200_000, 200_000));
    assert_eq!(owner("into/far"), (265_534, 200_007));
}

/// GNU tar's archive of a tree, imported.
fn import(kit: &Kit, tar: &[u8], into: &str, ids: IdMap) -> cabana_sandbox::Result<u64> {
    kit.dir(into);
    let mut told = 0;
    tree::import_tar(
        dir_fd(&kit.at(into)).as_fd(),
        &mut &tar[..],
        ids,
        &mut Allowance::of_holes(u64::MAX),
        &mut |n| told = n,
    )?;
    Ok(told)
}

#[test]
fn what_gnu_tar_packs_in_every_format_is_imported() {
    let kit = Kit::new();
    kit.file("from/bin/su", "program");
    set_mode(&kit.at("from/bin/su"), 0o4755);
    let long = "long-name-".repeat(20);
    kit.file(&format!("from/{long}/{long}/f"), "deep");
    kit.file("from/ä/ö", "umlauts");
    sh(&kit.at("from"), "ln bin/su second; ln -s /etc/passwd l; mkdir -m 1777 tmp; mkdir -m 555 closed");
    kit.link("from/long-link", "x/".repeat(120));
    let sparse = fs::File::create(kit.at("from/sparse")).unwrap();
    for n in 0..40u64 {
        std::os::unix::fs::FileExt::write_at(&sparse, b"piece", n << 20).unwrap();
    }
    sparse.set_len(100 << 20).unwrap();
    let formats = [
        "--format=gnu",
        "--format=gnu -S",
        "--format=pax",
        "--format=pax -S",
        "--format=pax -S --sparse-version=0.1",
        "--format=pax -S --sparse-version=0.0",
    ];
    for (n, format) in formats.iter().enumerate() {
        sh(&kit.at(""), &format!("tar {format} -cf {n}.tar -C from ."));
        let tar = fs::read(kit.at(&format!("{n}.tar"))).unwrap();
        let told = import(&kit, &tar, &format!("into{n}"), mine()).unwrap();
        assert_eq!(kit.digest("from"), kit.digest(&format!("into{n}")), "{format}");
        assert_eq!(told, tar.len() as u64);
        if format.contains("-S") {
            assert!(fs::metadata(kit.at(&format!("into{n}/sparse"))).unwrap().blocks() < 2000, "{format}");
        }
    }
}

#[test]
fn attributes_of_users_are_imported_and_capabilities_are_not() {
    let kit = Kit::new();
    kit.file("from/f", "x");
    set_xattr(&kit.at("from/f"), "user.k", b"binary\0=\n");
    if is_root() {
        sh(&kit.at("from"), "setcap cap_net_raw+ep f 2>/dev/null || true");
    }
    sh(&kit.at(""), "tar --xattrs --xattrs-include='*' -cf t.tar -C from .");
    import(&kit, &fs::read(kit.at("t.tar")).unwrap(), "into", mine()).unwrap();
    let mut names = [0; 256];
    let n = rustix::fs::listxattr(kit.at("into/f"), &mut names[..]).unwrap();
    assert_eq!(&names[..n], b"user.k\0");
    let mut value = [0; 64];
    let n = rustix::fs::getxattr(kit.at("into/f"), "user.k", &mut value[..]).unwrap();
    assert_eq!(&value[..n], b"binary\0=\n");
}

#[test]
fn an_import_maps_owners_drops_devices_and_lets_the_later_win() {
    if !is_root() {
        return;
    }
    let kit = Kit::new();
    let mut tar = tar::Builder::new(Vec::new());
    let mut put = |name: &str, kind: tar::EntryType, uid: u64, body: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(uid);
        header.set_gid(uid);
        header.set_mtime(1);
        header.set_size(body.len() as u64);
        if kind.is_character_special() {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        }
        header.set_cksum();
        tar.append(&header, body).unwrap();
    };
    put("/abs/f", tar::EntryType::Regular, 1000, b"absolute");
    put("dev/null", tar::EntryType::Char, 0, b"");
    put("dev/pipe", tar::EntryType::Fifo, 0, b"");
    put("twice", tar::EntryType::Regular, 0, b"first");
    put("twice", tar::EntryType::Regular, 99_999, b"second");
    put("dir/x", tar::EntryType::Regular, 0, b"");
    put("dir", tar::EntryType::Regular, 0, b"now a file");
    let ids = IdMap { base: 300_000, count: 65536 };
    import(&kit, &tar.into_inner().unwrap(), "into", ids).unwrap();
    let owner = |name: &str| fs::metadata(kit.at(name)).map(|m| m.uid()).unwrap();
    assert_eq!((owner("into/abs"), owner("into/abs/f"), owner("into/twice")), (300_000, 301_000, 365_534));
    assert_eq!(fs::read(kit.at("into/twice")).unwrap(), b"second");
    assert_eq!(fs::read(kit.at("into/dir")).unwrap(), b"now a file");
    assert!(!kit.at("into/dev/null").exists() && !kit.at("into/dev/pipe").exists());
}

#[test]
fn a_truncated_archive_is_refused_wherever_it_was_cut() {
    let kit = Kit::new();
    kit.file("from/a", vec![1; 1500]);
    kit.file("from/b", "b");
    let mut tar = Vec::new();
    kit.rooted.pack(&super::kit::path("/from"), &mut tar).unwrap();
    for cut in [0, 1, 511, 512, 513, 1024, 2048, 2560, tar.len() - 1025] {
        let result = import(&kit, &tar[..cut], &format!("into{cut}"), mine());
        assert!(matches!(result, Err(Error::Archive(_))), "{cut}: {result:?}");
    }
    import(&kit, &tar, "whole", mine()).unwrap();
}
