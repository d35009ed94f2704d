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

#[test]
fn a_copy_out_is_open_to_nobody_that_the_umask_keeps_out() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let script = "cd /workspace && mkdir -p t/open && echo x > t/open/wide && chmod 6777 t/open/wide && chmod 7777 t t/open && \
                  echo x > t/private && chmod 600 t/private";
    says(&server, &["exec", "box", "--", "sh", "-c", script]);
    let copy = |umask: &str, to: &Path| {
        let script = format!("umask {umask} && exec \"$@\"");
        let mut copy = std::process::Command::new("sh");
        copy.args(["-c", &script, "sh", crate::stage::CABANA, "cp", "box:/workspace/t", text(to)]);
        copy.env("CABANA_URL", &server.url).env("CABANA_API_KEY", &server.key);
        assert!(copy.status().unwrap().success());
        let mode = |name: &str| fs::metadata(to.join(name)).unwrap().permissions().mode() & 0o7777;
        ["", "open", "open/wide", "private"].map(mode)
    };
    assert_eq!(copy("027", &home.path().join("some")), [0o750, 0o750, 0o750, 0o600]);
    assert_eq!(copy("000", &home.path().join("all")), [0o777, 0o777, 0o777, 0o600], "the control");
}

#[test]
fn names_of_a_sandbox_do_not_command_the_terminal() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let name = "x\u{1b}]0;pwned\u{7}\u{1b}[31mRED";
    says(
        &server,
        &["exec", "box", "--", "sh", "-c", "mkdir -p /workspace/o && echo file > \"/workspace/o/$1\"", "sh", name],
    );
    // What is there under the name is a directory, so that it cannot be written.
    fs::create_dir_all(home.path().join("o").join(name).join("full")).unwrap();
    let ended = ends(cabana(&server, &["cp", "box:/workspace/o", text(home.path())]));
    assert!(ended.code == Some(1) && ended.stderr.contains("]0;pwned"), "{ended:?}");
    assert!(!ended.stderr.contains(['\u{1b}', '\u{7}']), "{ended:?}");
}

/// A directory of this machine that a sandbox may write to, for instance: what is copied there must not leave it.
#[test]
fn a_copy_out_follows_no_link_below_its_target() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    says(
        &server,
        &["exec", "box", "--", "sh", "-c", "cd /workspace && mkdir -p t/d && echo new > t/d/f && echo new > t/g"],
    );
    let (outside, shared) = (home.path().join("outside"), home.path().join("shared"));
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("g"), "old").unwrap();
    for (name, to) in [("t/d", "../../outside"), ("t", "../outside")] {
        fs::create_dir_all(shared.join(name).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, shared.join(name)).unwrap();
        assert!(shared.join(name).is_dir(), "the control: by its path it is a directory");
        fails(cabana(&server, &["cp", "box:/workspace/t", text(&shared)]), 1, "permission_denied");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{name}");
        assert_eq!(fs::read_to_string(outside.join("g")).unwrap(), "old", "{name}");
        fs::remove_dir_all(&shared).unwrap();
    }
    fs::create_dir_all(shared.join("t")).unwrap();
    std::os::unix::fs::symlink("../../outside/g", shared.join("t/g")).unwrap();
    says(&server, &["cp", "box:/workspace/t", text(&shared)]);
    assert_eq!(fs::read_to_string(shared.join("t/g")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(outside.join("g")).unwrap(), "old", "a link is replaced, and not written through");
    let way = home.path().join("way");
    std::os::unix::fs::symlink(&shared, &way).unwrap();
    says(&server, &["cp", "box:/workspace/t/g", &format!("{}/named", text(&way))]);
    assert!(shared.join("named").is_file(), "how the target itself is reached is whoever names it to say");
}

/// The last name of a target may be in a directory that a sandbox writes to.
#[test]
fn a_copy_out_goes_into_the_directory_behind_a_link_only_where_a_slash_says_so() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    says(&server, &["exec", "box", "--", "sh", "-c", "cd /workspace && mkdir -p t && echo new > t/f && echo new > g"]);
    let (outside, out) = (home.path().join("outside"), home.path().join("out"));
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, &out).unwrap();
    for from in ["box:/workspace/t", "box:/workspace/g"] {
        fails(cabana(&server, &["cp", from, text(&out)]), 1, "permission_denied");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{from}");
    }
    // The control: whoever means it says so.
    for (from, to) in [("box:/workspace/t", "t/f"), ("box:/workspace/g", "g")] {
        says(&server, &["cp", from, &format!("{}/", text(&out))]);
        assert_eq!(fs::read_to_string(outside.join(to)).unwrap(), "new\n", "{from}");
    }
    says(&server, &["cp", "box:/workspace/g", text(&home.path().join("outside/t"))]);
    assert!(outside.join("t/g").is_file(), "a directory needs no slash");
}

#[test]
fn a_copy_in_follows_no_link_that_takes_the_place_of_a_directory() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let (tree, outside) = (home.path().join("tree"), home.path().join("outside"));
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(tree.join("d/f"), "mine").unwrap();
    fs::write(outside.join("f"), "outside").unwrap();
    std::os::unix::fs::symlink("../outside", tree.join("l")).unwrap();
    let (over, names) = (std::sync::atomic::AtomicBool::new(false), [tree.join("d"), tree.join("l")]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &names[0], CWD, &names[1], RenameFlags::EXCHANGE).unwrap();
            }
        });
        let astray = || {
            let is_dir = fs::symlink_metadata(&names[0]).is_ok_and(|meta| meta.is_dir());
            is_dir && fs::read_to_string(names[0].join("f")).is_ok_and(|text| text == "outside")
        };
        let began = std::time::Instant::now();
        while !astray() {
            assert!(began.elapsed().as_secs() < 60, "a copy by paths is never led astray");
        }
        let mut taken = 0;
        for round in 0..30 {
            let ended = ends(cabana(&server, &["cp", text(&tree), &format!("box:/workspace/{round}")]));
            taken += u32::from(ended.code == Some(0));
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(taken > 0, "nothing was ever copied");
    });
    let found = says(
        &server,
        &["exec", "box", "--", "sh", "-c", "cat /workspace/*/d/f /workspace/*/l/f 2>/dev/null | sort -u"],
    );
    assert!(!found.contains("outside") && found.contains("mine"), "{found}");
}
