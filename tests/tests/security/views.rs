//! Directories of the host that are shown inside: what lies in them and beside them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    time::Duration,
};

use cabana_sandbox::{Alter, Hit, SandboxSpec, Search, Source, View, write_all};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    archives::tar_of,
    attacks::{CLIMB, IOCTLS, PAGE_CACHE},
    inside::{Inside, passing, path, rest, unique},
};

/// Somebody on the host: the owner of what is shown.
const OWNER: u32 = 4321;
/// Somebody else, whose files lie there too.
const OTHER: u32 = 8765;
const SEEN: &str = "/workspace/seen";

fn give(path: &Path, owner: u32, mode: u32) {
    chown(path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A directory of the owner's, with things of somebody else in it.
struct Shown {
    dir: tempfile::TempDir,
    secret: String,
}

impl Shown {
    fn new() -> Self {
        let (dir, secret) = (tempfile::tempdir().unwrap(), unique("secret"));
        give(dir.path(), OWNER, 0o755);
        let shown = Self { dir, secret };
        shown.file("note", OWNER, 0o644);
        // A file that is closed, an open file behind a closed door, and a place where each may remove only what is theirs.
        shown.file("closed", OTHER, 0o600);
        shown.directory("door", OTHER, 0o700);
        shown.file("door/behind", OTHER, 0o644);
        shown.directory("sticky", OTHER, 0o1777);
        shown.file("sticky/theirs", OTHER, 0o644);
        shown
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str, owner: u32, mode: u32) {
        fs::write(self.at(name), &self.secret).unwrap();
        give(&self.at(name), owner, mode);
    }

    fn directory(&self, name: &str, owner: u32, mode: u32) {
        fs::create_dir(self.at(name)).unwrap();
        give(&self.at(name), owner, mode);
    }

    async fn inside(&self, writable: bool) -> Inside {
        let view = View { source: Source::Host(self.dir.path().into()), at: path(SEEN), writable };
        let inside = Inside::with(SandboxSpec { views: vec![view], ..passing() }).await;
        assert_eq!(inside.root(&format!("cat {SEEN}/note")).await.ok(), self.secret, "what is shown can be read");
        inside
    }
}

#[tokio::test]
async fn files_of_somebody_else_in_a_view() {
    let shown = Shown::new();
    let inside = shown.inside(true).await;
    for user in ["root", "user"] {
        for name in ["closed", "door/behind"] {
            let at = format!("{SEEN}/{name}");
            let ran = inside.command(user, cabana_sandbox::ExecSpec::argv(["cat", &at], path("/"))).await;
            assert!(!ran.out.contains(&shown.secret), "{name} as {user}, inside");
            let read = inside.read(user, &at).await.unwrap_or_default();
            assert!(!String::from_utf8_lossy(&read).contains(&shown.secret), "{name} as {user}, by the server's hands");
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn packing_files_of_somebody_else_in_a_view() {
    let shown = Shown::new();
    fs::remove_file(shown.at("note")).unwrap();
    fs::remove_file(shown.at("sticky/theirs")).unwrap();
    shown.file("note", OWNER, 0o644);
    fs::write(shown.at("note"), "of the owner").unwrap();
    let view = View { source: Source::Host(shown.dir.path().into()), at: path(SEEN), writable: true };
    let inside = Inside::with(SandboxSpec { views: vec![view], ..passing() }).await;
    inside.root(&format!("tar -cf /tmp/all.tar -C {SEEN} .")).await.refused();
    for user in ["root", "user"] {
        let packed = match inside.files(user).pack(&path(SEEN)).await {
            Ok(packed) => packed.filter_map(|part| async { part.ok() }).collect::<Vec<_>>().await.concat(),
            Err(_) => Vec::new(),
        };
        assert!(!String::from_utf8_lossy(&packed).contains(&shown.secret), "as {user}");
    }
    for closed in ["closed", "door/behind", "door"] {
        let at = shown.at(closed);
        let gone = if at.is_dir() { fs::remove_dir(at) } else { fs::remove_file(at) };
        gone.unwrap();
    }
    let packed = inside.files("user").pack(&path(SEEN)).await.unwrap();
    let packed = packed.try_collect::<Vec<_>>().await.unwrap().concat();
    assert!(String::from_utf8_lossy(&packed).contains("of the owner"), "what is open is packed");
    inside.end().await;
}

#[tokio::test]
async fn searching_files_of_somebody_else_in_a_view() {
    let shown = Shown::new();
    let inside = shown.inside(false).await;
    for user in ["root", "user"] {
        let what = Search {
            root: path(SEEN),
            globs: Vec::new(),
            grep: Some(shown.secret.clone()),
            ignore_files: false,
            max_hits: 100,
            budget: Duration::from_secs(5),
        };
        let hits = inside.files(user).search(what).await.unwrap().try_collect::<Vec<_>>().await.unwrap().concat();
        let named: Vec<String> = hits
            .iter()
            .map(|hit| match hit {
                Hit::Line { path, .. } => path.to_string(),
                Hit::Entry(info) => info.path.to_string(),
            })
            .collect();
        assert!(named.iter().any(|name| name.ends_with("/note")), "what is open is found: {named:?}");
        for closed in ["closed", "behind"] {
            assert!(!named.iter().any(|name| name.ends_with(closed)), "{closed} as {user}");
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn moving_a_file_of_somebody_else_out_of_a_view() {
    let shown = Shown::new();
    let inside = shown.inside(true).await;
    inside.root(&format!("cp {SEEN}/closed /tmp/stolen")).await.refused();
    for (number, name) in ["closed", "door", "door/behind"].iter().enumerate() {
        let stolen = format!("/tmp/stolen{number}");
        let _ = inside.files("root").alter(Alter::Rename(path(&format!("{SEEN}/{name}")), path(&stolen))).await;
        let found = inside.root(&format!("cat {stolen} {stolen}/behind 2>/dev/null")).await.out;
        assert!(!found.contains(&shown.secret), "{name} was copied to where it can be read");
        assert!(shown.at(name).exists(), "{name} is gone");
    }
    let (note, moved) = (path(&format!("{SEEN}/note")), path("/tmp/moved"));
    inside.files("user").alter(Alter::Rename(note, moved)).await.unwrap(); // what is the owner's is the owner's to move
    assert_eq!(inside.user("cat /tmp/moved").await.ok(), shown.secret);
    inside.end().await;
}

#[tokio::test]
async fn removing_what_lies_behind_a_closed_door_in_a_view() {
    let shown = Shown::new();
    let inside = shown.inside(true).await;
    inside.root(&format!("rm -rf {SEEN}/door")).await.refused();
    assert!(shown.at("door/behind").exists());
    let _ = inside.files("root").alter(Alter::Remove(path(&format!("{SEEN}/door/behind")))).await;
    assert!(shown.at("door/behind").exists(), "removed by itself");
    let _ = inside.files("root").alter(Alter::RemoveAll(path(&format!("{SEEN}/door")))).await;
    assert!(shown.at("door/behind").exists(), "removed with its tree");
    inside.user(&format!("mkdir -p {SEEN}/own/deep && touch {SEEN}/own/deep/file")).await.ok();
    inside.files("user").alter(Alter::RemoveAll(path(&format!("{SEEN}/own")))).await.unwrap();
    assert!(!shown.at("own").exists(), "its own tree goes");
    inside.end().await;
}

#[tokio::test]
async fn removing_a_file_of_somebody_else_from_a_sticky_directory_in_a_view() {
    let shown = Shown::new();
    let inside = shown.inside(true).await;
    let theirs = format!("{SEEN}/sticky/theirs");
    inside.root(&format!("rm -f {theirs}")).await.refused();
    inside.root(&format!("mv {theirs} {SEEN}/sticky/moved")).await.refused();
    for user in ["user", "root"] {
        let files = inside.files(user);
        let _ = files.alter(Alter::Rename(path(&theirs), path(&format!("{SEEN}/sticky/moved")))).await;
        assert!(shown.at("sticky/theirs").exists(), "renamed as {user}");
        let _ = write_all(&*files, &path(&theirs), "changed").await;
        assert_eq!(fs::read_to_string(shown.at("sticky/theirs")).unwrap(), shown.secret, "replaced as {user}");
        let _ = files.alter(Alter::Remove(path(&theirs))).await;
        assert!(shown.at("sticky/theirs").exists(), "removed as {user}");
        let _ = files.alter(Alter::RemoveAll(path(&format!("{SEEN}/sticky")))).await;
        assert!(shown.at("sticky/theirs").exists(), "removed with its tree as {user}");
    }
    shown.directory("own", OWNER, 0o1777);
    shown.file("own/file", OWNER, 0o644);
    inside.files("user").alter(Alter::Remove(path(&format!("{SEEN}/own/file")))).await.unwrap();
    assert!(!shown.at("own/file").exists(), "a file of one's own goes");
    inside.end().await;
}

#[tokio::test]
async fn unpacking_into_a_directory_of_somebody_else_in_a_view() {
    let shown = Shown::new();
    let inside = shown.inside(true).await;
    inside.root(&format!("touch {SEEN}/door/new")).await.refused();
    for name in ["door/new", "door/behind", "sticky/theirs"] {
        let tar = tar_of(&[(name, "unpacked")]);
        let body = stream::once(async move { Ok(tar.into()) }).boxed();
        let _ = inside.files("root").unpack(&path(SEEN), body).await;
    }
    assert!(!shown.at("door/new").exists(), "made behind a closed door");
    for name in ["door/behind", "sticky/theirs"] {
        assert_eq!(fs::read_to_string(shown.at(name)).unwrap(), shown.secret, "{name}");
    }
    let tar = tar_of(&[("plain", "unpacked")]);
    let body = stream::once(async move { Ok(tar.into()) }).boxed();
    inside.files("user").unpack(&path(SEEN), body).await.unwrap();
    assert_eq!(fs::read_to_string(shown.at("plain")).unwrap(), "unpacked", "where it may, it unpacks");
    inside.end().await;
}

#[tokio::test]
async fn writing_behind_a_closed_door_in_a_view() {
    let shown = Shown::new();
    shown.directory("door/open", OTHER, 0o777);
    shown.file("door/everybodys", OTHER, 0o666);
    let inside = shown.inside(true).await;
    inside.root(&format!("echo x > {SEEN}/door/everybodys")).await.refused();
    let files = inside.files("root");
    let _ = write_all(&*files, &path(&format!("{SEEN}/door/open/new")), "made").await;
    assert!(!shown.at("door/open/new").exists(), "made in an open directory behind a closed door");
    let how = cabana_sandbox::Write::new(cabana_sandbox::WriteMode::InPlace);
    let body = stream::once(async { Ok("changed".into()) }).boxed();
    let _ = files.write(&path(&format!("{SEEN}/door/everybodys")), how, body).await;
    assert_eq!(fs::read_to_string(shown.at("door/everybodys")).unwrap(), shown.secret);
    write_all(&*inside.files("user"), &path(&format!("{SEEN}/new")), "made").await.unwrap();
    assert_eq!(fs::read_to_string(shown.at("new")).unwrap(), "made", "where it may, it writes");
    inside.end().await;
}

/// As with CVE-2015-2925: whoever stands in a directory that is moved out of what is shown can go up from there.
#[tokio::test]
async fn climbing_out_of_a_directory_that_the_host_moves_away() {
    let outer = tempfile::tempdir().unwrap();
    let (shown, away) = (outer.path().join("shown"), outer.path().join("away"));
    fs::create_dir_all(shown.join("sub/deep")).unwrap();
    fs::write(outer.path().join("canary"), "of the host").unwrap();
    for dir in [outer.path().to_owned(), shown.clone(), shown.join("sub"), shown.join("sub/deep")] {
        give(&dir, OWNER, 0o777);
    }
    let view = View { source: Source::Host(shown.clone()), at: path(SEEN), writable: true };
    let inside = Inside::with(SandboxSpec { views: vec![view], ..passing() }).await;
    let climb = inside.start("root", &CLIMB, &[&format!("{SEEN}/sub/deep"), "canary", "/tmp/go"]).await;
    fs::rename(shown.join("sub"), &away).unwrap();
    inside.root("touch /tmp/go").await.ok();
    assert_eq!(rest(climb).await.0.trim(), "not found");
    // The same where nothing is mounted: up is up.
    let go = outer.path().join("go");
    fs::write(&go, "").unwrap();
    let host = CLIMB.run_on_host(&[away.join("deep").to_str().unwrap(), "canary", go.to_str().unwrap()]).ok();
    assert!(host.ends_with("found 2 levels up"), "{host}");
    inside.end().await;
}

#[tokio::test]
async fn changing_a_read_only_file_through_the_kernels_memory() {
    let shown = Shown::new();
    let inside = shown.inside(false).await;
    let said = inside.attack("root", &PAGE_CACHE, &[&format!("{SEEN}/note")]).await.ok();
    assert_eq!(said, "piped\nmapped", "both ways were gone");
    assert_eq!(fs::read_to_string(shown.at("note")).unwrap(), shown.secret);
    inside.end().await;
}

#[tokio::test]
async fn a_hard_link_from_a_view_to_keep_what_it_shows() {
    let shown = Shown::new();
    let inside = shown.inside(true).await;
    for target in ["/tmp/kept", "/workspace/kept", "/dev/shm/kept"] {
        let said = inside.root(&format!("ln {SEEN}/note {target}")).await.refused();
        assert!(said.contains("cross-device"), "{said}");
    }
    inside.user(&format!("ln {SEEN}/note {SEEN}/second")).await.ok();
    inside.end().await;
}

#[tokio::test]
async fn a_link_in_a_view_that_leads_out_of_it() {
    let shown = Shown::new();
    let canary = tempfile::NamedTempFile::new().unwrap();
    fs::write(canary.path(), "of the host").unwrap();
    fs::set_permissions(canary.path(), fs::Permissions::from_mode(0o666)).unwrap();
    std::os::unix::fs::symlink(canary.path(), shown.at("link")).unwrap();
    assert_eq!(fs::read_to_string(shown.at("link")).unwrap(), "of the host", "on the host it leads there");
    let inside = shown.inside(true).await;
    inside.root(&format!("cat {SEEN}/link")).await.refused();
    assert_eq!(inside.read("root", &format!("{SEEN}/link")).await, None);
    let _ = write_all(&*inside.files("root"), &path(&format!("{SEEN}/link")), "changed").await;
    assert_eq!(fs::read_to_string(canary.path()).unwrap(), "of the host");
    inside.end().await;
}

#[tokio::test]
async fn commands_to_the_hosts_file_system_through_a_view() {
    let own = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    assert_eq!(IOCTLS.run_on_host(&[own.path().to_str().unwrap()]).report().of("pin"), "done");
    let shown = Shown::new();
    let inside = shown.inside(true).await;
    for user in ["root", "user"] {
        let report = inside.attack(user, &IOCTLS, &[&format!("{SEEN}/note")]).await.report();
        report.all_refused(&["EPERM", "EACCES", "ENOTTY", "EOPNOTSUPP"]);
    }
    inside.end().await;
}

/// The kernel shows where in its file system a view lies, and nothing can hide that. It must be all that is shown.
#[tokio::test]
async fn paths_of_the_host_beside_a_view_in_the_table_of_mounts() {
    let shown = Shown::new();
    let inside = shown.inside(true).await;
    let table = inside.root("cat /proc/self/mountinfo").await.ok();
    let (seen, rest): (Vec<&str>, Vec<&str>) = table.lines().partition(|line| line.contains(SEEN));
    assert_eq!(seen.len(), 1, "{table}");
    for name in [inside.sandbox.id().as_str(), "/tmp", "/data", "sandboxes", "ephemeral"] {
        assert!(rest.iter().all(|line| !line.contains(name)), "{name} is in {table}");
    }
    inside.end().await;
}

#[tokio::test]
async fn a_socket_of_somebody_else_in_a_view() {
    let shown = Shown::new();
    let listeners = [("theirs", OTHER, 0o755), ("mine", OWNER, 0o755)].map(|(name, owner, mode)| {
        let listener = std::os::unix::net::UnixListener::bind(shown.at(name)).unwrap();
        give(&shown.at(name), owner, mode);
        listener
    });
    let inside = shown.inside(true).await;
    let script =
        |name: &str| format!("python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{SEEN}/{name}\")'");
    inside.user(&script("mine")).await.ok(); // the owner's are the owner's to show
    for user in ["root", "user"] {
        let spec = cabana_sandbox::ExecSpec::shell(script("theirs"), path("/"));
        let said = inside.command(user, spec).await.refused();
        assert!(said.contains("Permission denied"), "{said}");
    }
    inside.end().await;
    drop(listeners);
}

/// To the kernel, a mount of the sandbox is none of the server's own: what is refused inside, because something is mounted
/// there, may be possible from outside.
#[tokio::test]
async fn taking_a_mount_off_through_the_servers_hands() {
    let shown = Shown::new();
    let mut done = Vec::new();
    for (number, place) in [SEEN, "/proc", "/dev", "/usr"].iter().enumerate() {
        let inside = shown.inside(true).await;
        let mounted = format!("awk '$5 == \"{place}\"' /proc/self/mountinfo | grep -q .");
        inside.root(&mounted).await.ok();
        inside.root(&format!("rmdir {place}")).await.refused();
        inside.root(&format!("mv {place} /tmp/away")).await.refused();
        inside.user("mkdir /tmp/empty /tmp/plain").await.ok();
        let files = inside.files("root");
        files.alter(Alter::RemoveAll(path("/tmp/plain"))).await.unwrap(); // where nothing is mounted, it goes
        let (at, away, empty) = (path(place), path(&format!("/tmp/away{number}")), path("/tmp/empty"));
        let steps = [
            Alter::RemoveAll(at.clone()),
            Alter::Rename(at.clone(), away),
            Alter::Rename(empty, at.clone()),
            Alter::Remove(at.clone()),
        ];
        for step in steps {
            let what = format!("{step:?}");
            if files.alter(step).await.is_ok() {
                done.push(what);
                break; // nothing is where it was
            }
        }
        inside.end().await;
    }
    assert!(done.is_empty(), "{done:?}");
}

/// A directory is not gone into where something is mounted on it; a file is just a name among others.
#[tokio::test]
async fn taking_a_mounted_file_off_with_the_tree_around_it() {
    let shown = Shown::new();
    let at = "/home/user/around/note";
    let view = View { source: Source::Host(shown.at("note")), at: path(at), writable: false };
    let inside = Inside::with(SandboxSpec { views: vec![view], ..passing() }).await;
    let around = path("/home/user/around");
    assert_eq!(inside.root(&format!("cat {at}")).await.ok(), shown.secret);
    inside.root("touch /home/user/around/beside; mkdir /home/user/apart; touch /home/user/apart/note").await.ok();
    let files = inside.files("root");
    let apart = Alter::RemoveAll(path("/home/user/apart"));
    files.alter(apart).await.unwrap();
    for step in [Alter::RemoveAll(around.clone()), Alter::Rename(around.clone(), path("/dev/shm/away"))] {
        let refused = files.alter(step).await.unwrap_err();
        assert_eq!(refused.code(), cabana_sandbox::Code::PermissionDenied, "{refused}");
    }
    assert_eq!(inside.root(&format!("cat {at}")).await.ok(), shown.secret);
    inside.root(&format!("awk '$5 == \"{at}\"' /proc/self/mountinfo | grep -q .")).await.ok();
    inside.end().await;
}
