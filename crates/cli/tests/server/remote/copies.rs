//! Files and directories, into a sandbox and out of it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::{cabana, ends, fails, says};
use crate::stage::Server;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_file_goes_in_and_out_byte_for_byte_with_its_mode() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (from, to) = (home.path().join("a b.bin"), home.path().join("back"));
    fs::write(&from, &bytes).unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o750)).unwrap();
    says(&server, &["cp", text(&from), "box:/workspace/deep/er/"]);
    assert_eq!(
        says(&server, &["exec", "box", "--", "stat", "-c", "%a %s", "/workspace/deep/er/a b.bin"]),
        "750 5000000\n"
    );
    says(&server, &["cp", "box:/workspace/deep/er/a b.bin", text(&to)]);
    assert!(fs::read(&to).unwrap() == bytes);
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o7777, 0o750);
    let into = home.path().join("dir");
    fs::create_dir(&into).unwrap();
    says(&server, &["cp", "--scope", "fixed:box", ":/workspace/deep/er/a b.bin", text(&into)]);
    assert!(fs::read(into.join("a b.bin")).unwrap() == bytes, "a directory gets it inside");
    fails(cabana(&server, &["cp", "box:/nowhere", text(&to)]), 1, "not_found");
    assert!(fs::read(&to).unwrap() == bytes, "what was there stays");
    fails(cabana(&server, &["cp", "/no/such/file", "box:/tmp/"]), 1, "not_found");
    fails(cabana(&server, &["cp", "a", "b"]), 1, "bad_request");
}

#[test]
fn a_directory_goes_with_all_that_is_below_it() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let tree = home.path().join("tree");
    fs::create_dir_all(tree.join("a/empty")).unwrap();
    fs::write(tree.join("top"), "1").unwrap();
    fs::write(tree.join("a/ü"), "2").unwrap();
    std::os::unix::fs::symlink("/etc/shadow", tree.join("link")).unwrap();
    let ended = ends(cabana(&server, &["cp", text(&tree), "box:/workspace/"]));
    assert!(ended.code == Some(0) && ended.stderr.contains("tree/link was not copied"), "{ended:?}");
    let find = "cd /workspace/tree && find . | sort && cat top a/*ü";
    assert_eq!(says(&server, &["exec", "box", "--", "sh", "-c", find]), ".\n./a\n./a/empty\n./a/ü\n./top\n12");
    let back = home.path().join("back");
    says(&server, &["cp", "box:/workspace/tree", text(&back)]);
    assert_eq!(fs::read_to_string(back.join("a/ü")).unwrap(), "2");
    assert!(back.join("a/empty").is_dir() && back.join("top").is_file());
}

#[test]
fn what_is_hostile_inside_stays_inside() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let script = "cd /workspace && mkdir -p t/d && ln -s /etc t/d/etc && ln -s ../../.. t/up && mkfifo t/pipe && echo x > 't/a\\..b' && \
                  echo x > t/set && chmod 4755 t/set";
    says(&server, &["exec", "box", "--", "sh", "-c", script]);
    let to = home.path().join("t");
    let ended = ends(cabana(&server, &["cp", "box:/workspace/t", text(&to)]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for left_out in ["t/d/etc", "t/up", "t/pipe"] {
        assert!(ended.stderr.contains(left_out) && !home.path().join(left_out).exists(), "{left_out}: {ended:?}");
    }
    assert_eq!(fs::metadata(to.join("set")).unwrap().permissions().mode() & 0o7777, 0o755, "no rights come out");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "nothing beside the target");
}
