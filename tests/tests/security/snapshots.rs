//! A guest that prepares its files for the moment when they become a layer, a copy or a stream.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use cabana_engine::Engine;
use cabana_sandbox::{Base, Code, Provider, SandboxId, SandboxSpec, SnapshotId};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::inside::{Inside, SOON, config, soon};

async fn prepared(script: &str) -> Inside {
    let inside = Inside::with(SandboxSpec::new(Base::Host)).await;
    inside.root(script).await.ok();
    inside
}

/// A fork of each kind: of the running sandbox, of the stopped one, and one that was saved and restored.
async fn forks(inside: &Inside) -> Vec<Inside> {
    let (engine, id) = (&inside.engine, inside.sandbox.id());
    let mut forks = Vec::new();
    let running = soon("a snapshot", engine.snapshot(id, SnapshotId::now())).await.unwrap();
    let saved: Vec<Bytes> = engine.save(id).await.unwrap().try_collect().await.unwrap();
    engine.stop(id).await.unwrap();
    let stopped = soon("a snapshot", engine.snapshot(id, SnapshotId::now())).await.unwrap();
    for base in [running, stopped] {
        forks.push(Inside::of(engine.clone(), &SandboxSpec::new(base.clone())).await);
        remove(engine, &base);
    }
    let restored = SandboxId::random();
    let body = stream::iter(saved.into_iter().map(Ok)).boxed();
    engine.restore(&restored, &SandboxSpec::new(Base::Host), body).await.unwrap();
    let sandbox = engine.start(&restored).await.unwrap();
    forks.push(Inside { engine: engine.clone(), sandbox });
    forks
}

fn remove(engine: &Engine, base: &Base) {
    let Base::Snapshot(name) = base else { panic!("a snapshot has a name") };
    engine.snapshots().rm(*name).unwrap();
}

async fn end(inside: Inside, forks: Vec<Inside>) {
    for fork in forks {
        fork.still_works().await;
        fork.engine.destroy(fork.sandbox.id()).await.unwrap();
    }
    inside.end().await;
}

/// Every layer that a snapshot kept, of all tests: they are looked at and left alone.
fn kept() -> Vec<PathBuf> {
    let layers = Path::new(env!("CARGO_TARGET_TMPDIR")).join("data/layers");
    let all = fs::read_dir(layers).unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("kept-")).collect()
}

#[tokio::test]
async fn marks_of_overlays_that_a_guest_sets_itself() {
    let script = r#"python3 - <<'end'
import os
os.makedirs('/srv/marked', exist_ok=True)
open('/srv/marked/file', 'w').write('content')
for path in '/srv/marked', '/srv/marked/file', '/usr/share', '/etc', '/usr/bin/env':
    for name in 'opaque', 'redirect', 'metacopy', 'origin', 'impure', 'whiteout', 'whiteouts', 'nlink', 'upper', 'uuid':
        for prefix in 'user.overlay.', 'trusted.overlay.', 'user.overlay.overlay.':
            for value in b'y', b'/../../../etc', b'x':
                try: os.setxattr(path, prefix + name, value)
                except OSError: pass
for device in (0, 0), (1, 3), (0, 1):
    try: os.mknod(f'/srv/marked/device{device}', 0o20666, os.makedev(*device))
    except OSError: pass
end
ls /usr/share | wc -l; ls /etc | wc -l"#;
    let inside = prepared("true").await;
    let was = inside.root(script).await.ok();
    // Where an overlay believes such marks, they hide what lies below.
    let believed = "cd $(mktemp -d) && mkdir low up work all low/dir && touch low/dir/file && mkdir up/dir \
        && setfattr -n user.overlay.opaque -v y up/dir \
        && mount -t overlay none -o lowerdir=low,upperdir=up,workdir=work,userxattr all && ls all/dir | wc -l";
    assert_eq!(crate::attacks::in_own(&["--mount"], believed).ok(), "0");
    let forks = forks(&inside).await;
    for fork in &forks {
        let look = "ls /usr/share | wc -l; ls /etc | wc -l; test -x /usr/bin/env && cat /srv/marked/file";
        assert_eq!(fork.root(look).await.ok(), format!("{was}\ncontent"));
        assert_eq!(fork.root("ls -A /srv/marked").await.ok(), "file", "nobody makes devices");
    }
    end(inside, forks).await;
}

#[tokio::test]
async fn names_and_links_that_look_like_ours() {
    let canary = tempfile::tempdir().unwrap();
    fs::write(canary.path().join("secret"), "of the host").unwrap();
    symlink(canary.path().join("secret"), canary.path().join("link")).unwrap();
    let was = fs::metadata(canary.path()).unwrap();
    assert_eq!(fs::read_to_string(canary.path().join("link")).unwrap(), "of the host", "outside the links lead there");
    let at = canary.path().display();
    let script = format!(
        "cd / && for name in tree upper0 upper1 upper.new work0 work record.json record.new kept-0 .tmp-0 fs layers; do \
           ln -s {at} /$name && ln -s ../../../../../../../../..{at} /srv/$name && ln -s {at}/secret /home/user/$name; done; \
         ln -s / /srv/root; ln -s .. /srv/up; ln -s /proc/1/root /srv/one; ln -s /proc/self/fd/3 /srv/fd; \
         echo x > /srv/a; ln /srv/a /srv/b; ln -s a /srv/l; ln /srv/l /srv/m; mkfifo /srv/pipe; chmod 000 /srv/pipe"
    );
    let inside = prepared(&script).await;
    let forks = forks(&inside).await;
    for fork in &forks {
        assert_eq!(
            fork.root("readlink /tree; cat /tree/secret 2>/dev/null; cat /srv/b").await.ok(),
            format!("{at}\nx")
        );
        assert_eq!(fork.root("stat -c %h /srv/b; test -p /srv/pipe && stat -c %a /srv/pipe").await.ok(), "2\n0");
    }
    let is = fs::metadata(canary.path()).unwrap();
    assert_eq!((is.mtime_nsec(), is.uid(), is.mode()), (was.mtime_nsec(), was.uid(), was.mode()));
    assert_eq!(fs::read_to_string(canary.path().join("secret")).unwrap(), "of the host");
    assert_eq!(fs::read_dir(canary.path()).unwrap().count(), 2);
    end(inside, forks).await;
}

#[tokio::test]
async fn setuid_programs_in_a_layer_are_nobodys_outside() {
    let inside = prepared("cp /bin/sh /srv/shell && chmod 6777 /srv/shell && chmod 777 / /srv").await;
    let forks = forks(&inside).await;
    for fork in &forks {
        let gained = "/srv/shell -p -c 'id -u; cat /etc/shadow >/dev/null 2>&1 && echo read' || true";
        assert_eq!(fork.user(gained).await.ok(), "1000", "without sudo nothing is gained");
    }
    let allowed = Inside::of(inside.engine.clone(), &SandboxSpec { sudo: true, ..SandboxSpec::new(Base::Host) }).await;
    allowed.root("cp /bin/sh /srv/shell && chmod 6777 /srv/shell").await.ok();
    assert_eq!(allowed.user("/srv/shell -p -c 'id -u'").await.ok(), "0", "where it is asked for, it is");
    allowed.engine.destroy(allowed.sandbox.id()).await.unwrap();
    let shells: Vec<_> =
        kept().into_iter().map(|layer| layer.join("tree/srv/shell")).filter(|path| path.exists()).collect();
    assert!(!shells.is_empty());
    for shell in shells {
        let owner = fs::metadata(&shell).unwrap();
        assert!((0x7ffe_0000..0x7fff_0000).contains(&owner.uid()), "it belongs to {}", owner.uid());
        // And nobody of the host comes that far.
        let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("data");
        assert_eq!(fs::metadata(data).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(shell.ancestors().nth(3).unwrap()).unwrap().mode() & 0o777, 0o700);
    }
    end(inside, forks).await;
}

#[tokio::test]
async fn trees_deeper_than_any_path() {
    let deep = "python3 - <<'end'
import os
os.mkdir('/srv/deep'); os.chdir('/srv/deep')
for _ in range(3000): os.mkdir('d' * 20); os.chdir('d' * 20)
open('bottom', 'w').write('here')
end";
    let inside = prepared(deep).await;
    let (engine, id) = (inside.engine.clone(), inside.sandbox.id().clone());
    let running = engine.snapshot(&id, SnapshotId::now()).await.unwrap();
    // A stream has names in it, and none is that long: it says so, and all goes on.
    let saved: Result<Vec<Bytes>, _> = match engine.save(&id).await {
        Ok(parts) => parts.try_collect().await,
        Err(error) => Err(error),
    };
    assert!(saved.unwrap_err().to_string().contains("longer than"));
    inside.still_works().await;
    engine.stop(&id).await.unwrap();
    let stopped = engine.snapshot(&id, SnapshotId::now()).await.unwrap();
    for base in [running, stopped] {
        let fork = Inside::of(engine.clone(), &SandboxSpec::new(base.clone())).await;
        let walk = "python3 - <<'end'
import os
os.chdir('/srv/deep')
for _ in range(3000): os.chdir('d' * 20)
print(open('bottom').read())
end";
        assert_eq!(fork.root(walk).await.ok(), "here");
        engine.destroy(fork.sandbox.id()).await.unwrap();
        remove(&engine, &base);
    }
    inside.end().await;
}

#[tokio::test]
async fn processes_that_breed_and_write_while_the_snapshot_is_taken() {
    let inside = Inside::with(SandboxSpec {
        limits: cabana_sandbox::Limits { pids: Some(200), ..Default::default() },
        ..SandboxSpec::new(Base::Host)
    })
    .await;
    let breed = "cd /home/user && i=0; while :; do i=$((i+1)); (echo $i > f$((i % 50)); mv f$((i % 50)) g$((i % 50)); \
        ln -sf / l$((i % 50)); mkdir -p d$((i % 50)); rmdir d$((i % 7)) 2>/dev/null; setsid sh -c true) & \
        [ $((i % 100)) = 0 ] && wait; done";
    let spec = cabana_sandbox::ExecSpec::shell(breed, cabana_sandbox::SandboxPath::root());
    let bred = inside.sandbox.exec(spec).await.unwrap();
    while inside.sandbox.usage().await.unwrap().pids < 4 {
        tokio::task::yield_now().await;
    }
    for _ in 0..10 {
        let base = tokio::time::timeout(SOON, inside.engine.snapshot(inside.sandbox.id(), SnapshotId::now()))
            .await
            .unwrap()
            .unwrap();
        let fork = Inside::of(inside.engine.clone(), &SandboxSpec::new(base.clone())).await;
        fork.still_works().await;
        fork.engine.destroy(fork.sandbox.id()).await.unwrap();
        remove(&inside.engine, &base);
    }
    drop(bred);
    inside.end().await;
}

#[tokio::test]
async fn layers_and_records_of_a_neighbour_by_name() {
    let victim = prepared("echo secret > /srv/secret").await;
    let base = victim.engine.snapshot(victim.sandbox.id(), SnapshotId::now()).await.unwrap();
    let Base::Snapshot(name) = &base else { panic!("a snapshot has a name") };
    let digits = name.uuid().simple().to_string();
    let layers = kept();
    let layer = layers[0].file_name().unwrap().to_str().unwrap();
    let names = [
        name.to_string(),
        digits.clone(),
        format!("snapshot:{digits}"),
        format!("../snapshots/{digits}"),
        format!("../snapshots/{digits}.json"),
        layer.to_owned(),
        format!("../layers/{layer}/tree"),
    ];
    for name in names {
        let refused = victim.engine.create(&SandboxId::random(), &SandboxSpec::new(Base::Named(name.clone()))).await;
        let code = refused.err().map(|error| error.code());
        assert!(matches!(code, Some(Code::TemplateNotFound | Code::BadRequest)), "{name:?}: {code:?}");
    }
    let fork = Inside::of(victim.engine.clone(), &SandboxSpec::new(base.clone())).await;
    assert_eq!(fork.root("cat /srv/secret").await.ok(), "secret", "whoever is given it has it");
    fork.engine.destroy(fork.sandbox.id()).await.unwrap();
    remove(&victim.engine, &base);
    victim.end().await;
}

#[tokio::test]
async fn a_disk_filled_so_that_no_snapshot_fits() {
    let disk = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        let done = std::process::Command::new("mount").args(arguments).arg(disk.path()).status().unwrap();
        assert!(done.success());
    };
    mount(&["-t", "tmpfs", "-o", "size=96m,mode=0700", "none"]);
    let _unmount = Unmount(disk.path().into());
    let small = Engine::open(config(disk.path().join("data"))).await.unwrap();
    let inside = match small.create(&SandboxId::random(), &SandboxSpec::new(Base::Host)).await {
        Ok(sandbox) => Inside { engine: small.clone(), sandbox },
        Err(error) => panic!("a sandbox on a small disk: {error}"),
    };
    let free = rustix::fs::statvfs(disk.path()).unwrap();
    let half = free.f_bavail * free.f_frsize * 6 / 10;
    inside.root(&format!("head -c {half} /dev/urandom > /home/user/large")).await.ok();
    let before = names(&disk.path().join("data"));
    let refused = small.snapshot(inside.sandbox.id(), SnapshotId::now()).await.unwrap_err();
    assert_eq!(refused.code(), Code::NoSpace, "{refused}");
    assert_eq!(names(&disk.path().join("data")), before);
    inside.still_works().await;
    // What needs no room can still be done.
    small.stop(inside.sandbox.id()).await.unwrap();
    small.snapshot(inside.sandbox.id(), SnapshotId::now()).await.unwrap();
    let after = names(&disk.path().join("data"));
    let layer = after.iter().find(|name| !before.contains(name) && name.join("tree").is_dir()).expect("a layer");
    assert_eq!(fs::metadata(layer.join("tree/home/user/large")).unwrap().len(), half);
    small.close().await;
}

fn names(data: &Path) -> Vec<PathBuf> {
    let parts = ["layers", "snapshots", "sandboxes"].map(|part| data.join(part));
    // Drafts of sandboxes that come next are the engine's to make and to take.
    let is_named = |entry: &fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".draft-");
    let entries = parts.iter().flat_map(|part| fs::read_dir(part).unwrap().flatten().filter(is_named));
    let mut all: Vec<_> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Runs the program that takes snapshots as somebody without an account, and so with one id; or, with one, with a range.
fn as_ordinary_user(uid: u32, account: Option<&str>) -> String {
    let home = tempfile::tempdir().unwrap();
    let mine = |path: &Path| std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    mine(home.path());
    let program = home.path().join("snapshots");
    fs::copy(env!("CARGO_BIN_EXE_cabana-tests-snapshots"), &program).unwrap();
    let _account = account.map(|name| Account::new(name, uid));
    let id = uid.to_string();
    let said = std::process::Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .arg(&program)
        .arg(home.path().join("data"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", home.path())
        .current_dir(home.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(said.status.success(), "{}{}", text(&said.stdout), text(&said.stderr));
    text(&said.stdout)
}

/// One with a range of ids, for as long as the test runs.
struct Account(String);

impl Account {
    fn new(name: &str, uid: u32) -> Self {
        let _ = std::process::Command::new("userdel").arg(name).output(); // left by a test that was killed
        let made =
            std::process::Command::new("useradd").args(["--no-create-home", "--uid", &uid.to_string(), name]).output();
        assert!(made.unwrap().status.success());
        Self(name.to_owned())
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = std::process::Command::new("userdel").arg(&self.0).output();
    }
}

#[test]
fn an_ordinary_user_with_one_id_has_snapshots() {
    let said = as_ordinary_user(47_111, None);
    assert!(said.starts_with("identities Single") && said.contains("snapshot true"), "{said}");
    assert!(said.ends_with("all is as it was\n"), "{said}");
}

#[test]
fn an_ordinary_user_with_a_range_of_ids_has_snapshots() {
    let said = as_ordinary_user(47_112, Some("cabana47112"));
    assert!(said.starts_with("identities Shared") && said.contains("snapshot true"), "{said}");
    assert!(said.ends_with("all is as it was\n"), "{said}");
}

/// A file with many names takes room once, also where its path is longer than the kernel takes at once. An archive cannot
/// hold such a path, and says so.
#[tokio::test]
async fn many_names_of_a_file_at_the_end_of_a_long_path() {
    let name = "n".repeat(240);
    let script = format!(
        r#"python3 - <<'end'
import os
os.chdir('/srv')
for level in range(20):
    os.mkdir('{name}')
    os.chdir('{name}')
with open('first', 'wb') as file:
    file.write(b'x' * (4 << 20))
for other in range(40):
    os.link('first', f'other-{{other}}')
end
du -sm /srv | cut -f 1"#
    );
    let inside = prepared("mkdir -p /srv").await;
    let used: u32 = inside.root(&script).await.ok().trim().parse().unwrap();
    assert!((4..8).contains(&used), "{used}");
    let (engine, id) = (&inside.engine, inside.sandbox.id());
    let base = soon("a snapshot", engine.snapshot(id, SnapshotId::now())).await.unwrap();
    let saved = match engine.save(id).await {
        Ok(stream) => stream.try_collect::<Vec<Bytes>>().await,
        Err(error) => Err(error),
    };
    assert_eq!(saved.unwrap_err().code(), Code::Unsupported);
    let fork = Inside::of(engine.clone(), &SandboxSpec::new(base.clone())).await;
    remove(engine, &base);
    let used: u32 = fork.root("du -sm /srv | cut -f 1").await.ok().trim().parse().unwrap();
    assert!((4..8).contains(&used), "{used}");
    fork.root("find /srv -name 'other-*' -links 41 | wc -l | grep -qx 40").await.ok();
    end(inside, vec![fork]).await;
}
