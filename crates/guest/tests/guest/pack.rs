use std::{collections::BTreeMap, fs, io};

use cabana_sandbox::Error;

use super::kit::{Kit, fifo, is_root, path, set_mode, set_xattr, sh};

fn pack(kit: &Kit, dir: &str) -> Vec<u8> {
    let mut tar = Vec::new();
    kit.rooted.pack(&path(dir), &mut tar).unwrap();
    tar
}

#[test]
fn gnu_tar_reads_what_is_packed() {
    let kit = Kit::new();
    let long = "n".repeat(200);
    kit.file(&format!("d/{long}/ü"), "deep");
    kit.file("d/f", "x");
    sh(&kit.at("d"), "ln f g; ln -s ../../out l; chmod 4751 f; mkdir -m 1777 tmp; touch -h -d 2001-01-01 l");
    fifo(&kit.at("d/pipe"));
    fs::write(kit.at("t.tar"), pack(&kit, "/d")).unwrap();
    kit.dir("out");
    sh(&kit.at("out"), "tar xpf ../t.tar");
    fs::remove_file(kit.at("d/pipe")).unwrap();
    set_mode(&kit.at("out"), 0o755);
    set_mode(&kit.at("d"), 0o755);
    assert_eq!(kit.digest("d"), kit.digest("out"));
}

#[test]
fn entries_have_relative_names_inside_owners_and_an_order() {
    let kit = Kit::new();
    kit.file("etc/passwd", format!("me:x:{}:0::/:/bin/sh\n", rustix::process::geteuid().as_raw()));
    kit.file("d/b/x", "1");
    kit.file("d/a", "22");
    let tar = pack(&kit, "/d");
    let mut archive = tar::Archive::new(&tar[..]);
    let entries: Vec<_> = archive
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            assert_eq!(entry.header().username().unwrap(), Some("me"));
            (entry.path().unwrap().display().to_string(), entry.size())
        })
        .collect();
    assert_eq!(entries, [("a".into(), 2), ("b/".into(), 0), ("b/x".into(), 1)]);
}

#[test]
fn attributes_travel_along() {
    let kit = Kit::new();
    kit.file("d/f", "x");
    kit.dir("d/e");
    for name in ["d/f", "d/e"] {
        set_xattr(&kit.at(name), "user.e2b.tag", b"value");
    }
    let tar = pack(&kit, "/d");
    kit.dir("out");
    kit.rooted.unpack(&path("/out"), &mut &tar[..]).unwrap();
    let tags: BTreeMap<String, String> = [("tag".into(), "value".into())].into();
    assert_eq!(kit.rooted.stat(&path("/out/f")).unwrap().tags, tags);
    assert_eq!(kit.rooted.stat(&path("/out/e")).unwrap().tags, tags);
}

/// Calls something once, when so much was written.
struct At<F: FnMut()> {
    left: usize,
    then: Option<F>,
    out: Vec<u8>,
}

impl<F: FnMut()> io::Write for At<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.extend_from_slice(bytes);
        self.left = self.left.saturating_sub(bytes.len());
        if self.left == 0
            && let Some(mut then) = self.then.take()
        {
            then();
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_that_changes_while_it_is_packed_leaves_a_valid_archive() {
    for new_size in [10_u64, 5 << 20] {
        let kit = Kit::new();
        kit.file("d/a", vec![7; 3 << 20]);
        kit.file("d/b", "after");
        let file = kit.at("d/a");
        let then = || fs::File::options().write(true).open(&file).unwrap().set_len(new_size).unwrap();
        let mut out = At { left: 1, then: Some(then), out: Vec::new() };
        kit.rooted.pack(&path("/d"), &mut out).unwrap();
        kit.dir("out");
        kit.rooted.unpack(&path("/out"), &mut &out.out[..]).unwrap();
        assert_eq!(fs::metadata(kit.at("out/a")).unwrap().len(), 3 << 20);
        assert_eq!(fs::read(kit.at("out/b")).unwrap(), b"after");
    }
}

#[test]
fn what_may_not_be_read_is_denied_by_name() {
    if is_root() {
        return;
    }
    let kit = Kit::new();
    kit.file("d/closed", "x");
    set_mode(&kit.at("d/closed"), 0);
    let result = kit.rooted.pack(&path("/d"), &mut io::sink());
    assert!(matches!(result, Err(Error::Denied(p)) if p == path("/d/closed")));
}

#[test]
fn the_kernels_own_files_are_left_out() {
    if !is_root() {
        return;
    }
    let kit = Kit::new();
    kit.file("d/f", "x");
    kit.dir("d/proc");
    let at = kit.at("d/proc");
    let mounted = std::process::Command::new("mount").args(["-t", "proc", "proc"]).arg(&at).status().unwrap();
    assert!(mounted.success());
    let mut tar = Vec::new();
    let result = kit.rooted.pack(&path("/d"), &mut tar);
    assert!(std::process::Command::new("umount").arg(&at).status().unwrap().success());
    result.unwrap();
    let mut archive = tar::Archive::new(&tar[..]);
    let names: Vec<_> =
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
    assert_eq!(names, ["f", "proc/"]);
}

#[test]
fn a_directory_that_is_not_there_gives_no_archive() {
    let kit = Kit::new();
    let mut out = Vec::new();
    assert!(matches!(kit.rooted.pack(&path("/no"), &mut out), Err(Error::NotFound(_))));
    assert!(out.is_empty());
}

/// Of a tree that is as deep as there are directories, an archive would be as long as the square of that.
#[test]
fn a_path_that_is_longer_than_any_is_refused() {
    let kit = Kit::new();
    kit.dir("d");
    let mut at = fs::File::open(kit.at("d")).unwrap();
    let name = "n".repeat(200);
    for depth in 1..=30 {
        rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let below = rustix::fs::openat(&at, &name, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        at = below.into();
        let packed = kit.rooted.pack(&path("/d"), &mut io::sink());
        match depth * 201 <= 4096 {
            true => packed.unwrap(),
            false => assert!(matches!(packed, Err(Error::Path(_))), "{depth}: {packed:?}"),
        }
    }
}
