//! Views and volumes whose places a guest prepares: links, swaps and moves.

use std::{fs, os::unix::fs::symlink, path::Path};

use cabana_sandbox::{Base, Provider, SandboxId, SandboxSpec, Source, Status, View, VolumeId, Wanted};

use super::stage::Canary;
use crate::{
    attacks::SWAP,
    inside::{Inside, engine, passing, path, rest},
};

fn of_host(source: &Path, at: &str) -> View {
    View { source: Source::Host(source.into()), at: path(at), writable: true }
}

fn of_volume(volume: VolumeId, at: &str) -> View {
    View { source: Source::Volume(volume), at: path(at), writable: true }
}

/// What the inner views of the tests show.
fn shown() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("note"), "shown").unwrap();
    dir
}

/// A sandbox that can write to a volume, which another one will have a view in.
async fn with_volume() -> (Inside, VolumeId) {
    let engine = engine().await;
    let volume = VolumeId::now();
    engine.make_volume(volume).await.unwrap();
    let spec = SandboxSpec { views: vec![of_volume(volume, "/v")], ..passing() };
    (Inside::of(engine, &spec).await, volume)
}

async fn end(inside: Inside, volume: VolumeId) {
    inside.engine.destroy(inside.sandbox.id()).await.unwrap();
    inside.engine.remove_volume(volume).await.unwrap();
    inside.engine.close().await;
}

/// Another sandbox with the volume and a view at `/v/sub/x`: at its create, and late. Says how often it was made.
async fn nest(attacker: &Inside, volume: VolumeId, inner: &Path) -> u32 {
    let views = vec![of_volume(volume, "/v"), of_host(inner, "/v/sub/x")];
    let mut made = 0;
    let id = SandboxId::random();
    if attacker.engine.create(&id, &SandboxSpec { views: views.clone(), ..passing() }).await.is_ok() {
        made += 1;
    }
    attacker.engine.destroy(&id).await.unwrap();
    let late = Inside::of(attacker.engine.clone(), &SandboxSpec { views: vec![views[0].clone()], ..passing() }).await;
    if late.sandbox.update(Wanted::Views(views)).await.is_ok() {
        made += 1;
        assert_eq!(late.root("cat /v/sub/x/note 2>/dev/null || echo elsewhere").await.status, Status::Code(0));
        // Who shares the volume may have put a link in its way by now: then it is refused, and goes with the sandbox.
        let _ = late.sandbox.update(Wanted::Views(Vec::new())).await;
    }
    attacker.engine.destroy(late.sandbox.id()).await.unwrap();
    made
}

/// CVE-2021-30465, CVE-2024-45310: the directories of the inner mount are made by the host, in what a guest has prepared.
#[tokio::test]
async fn nested_view_behind_a_symlink_of_a_shared_volume_is_refused() {
    let (canary, shown) = (Canary::new(), shown());
    let (attacker, volume) = with_volume().await;
    let up = format!("../../../../../../../..{}", canary.dir());
    for link in [canary.dir(), &up, "/", "..", "../..", "/proc/self/root", "/tmp", "/proc/1/cwd", "sub"] {
        attacker.root(&format!("rm -rf /v/sub && ln -s {link} /v/sub")).await.ok();
        assert_eq!(nest(&attacker, volume, shown.path()).await, 0, "{link}");
        canary.is_untouched(link);
    }
    attacker.root("rm -f /v/sub && mkdir /v/sub").await.ok();
    assert_eq!(nest(&attacker, volume, shown.path()).await, 2, "in a directory it is made");
    end(attacker, volume).await;
}

/// The same while the directory and a link to the host change places all the time.
#[tokio::test(flavor = "multi_thread")]
async fn nested_view_survives_a_symlink_exchange_race() {
    let (canary, shown) = (Canary::new(), shown());
    let (attacker, volume) = with_volume().await;
    attacker.root(&format!("mkdir -m 777 /v/sub && ln -s {} /v/link && chmod 777 /v", canary.dir())).await.ok();
    let swap = attacker.start("root", &SWAP, &["/v/sub", "/v/link", "/tmp/stop"]).await;
    let (mut made, mut rounds) = (0, 0);
    while (made == 0 || made == 2 * rounds || rounds < 15) && rounds < 100 {
        made += nest(&attacker, volume, shown.path()).await;
        rounds += 1;
    }
    attacker.root("touch /tmp/stop").await.ok();
    assert!(rest(swap).await.0.trim().parse::<u64>().unwrap() > 100, "the names were exchanged");
    assert!((1..2 * rounds).contains(&made), "{made} views in {rounds} rounds: the race was not run");
    canary.is_untouched("the host's");
    end(attacker, volume).await;
}

/// Links to the host in all forms, below a directory.
fn full_of_links(at: &str, canary: &Canary) -> String {
    let (dir, file) = (canary.dir(), canary.file());
    format!(
        "mkdir -p {at}/deep/er && cd {at} && ln -s {dir} dir && ln -s {file} file && ln -s ../../../../../../../../..{dir} up && \
         ln -s / root && ln -s /proc/self/root{dir} door && ln -s {dir} deep/dir && ln -s {dir} deep/er/dir && \
         mkdir -m 000 closed && echo x > plain && ln plain hard && ln -s plain deep/plain"
    )
}

/// CVE-2017-1002102.
#[tokio::test]
async fn removing_a_volume_follows_no_symlink() {
    let canary = Canary::new();
    let (inside, volume) = with_volume().await;
    inside.root(&full_of_links("/v/tree", &canary)).await.ok();
    inside.root(&full_of_links("/v", &canary)).await.ok();
    assert!(inside.engine.volume_usage(volume).await.unwrap() > 0);
    inside.engine.destroy(inside.sandbox.id()).await.unwrap();
    inside.engine.remove_volume(volume).await.unwrap();
    canary.is_untouched("the host's");
    assert!(inside.engine.volume_usage(volume).await.is_err(), "it is gone");
    inside.engine.close().await;
}

/// The same for a sandbox's own files, with its home and other places of note as links.
#[tokio::test]
async fn destroying_a_sandbox_follows_no_symlink() {
    let canary = Canary::new();
    for spec in [passing(), SandboxSpec::new(Base::Host)] {
        let inside = Inside::with(spec).await;
        inside.root(&full_of_links("/srv/tree", &canary)).await.ok();
        let dir = canary.dir();
        let replace = format!(
            "for place in /home/user /workspace /var /opt /srv/tree/deep; do rm -rf $place; ln -s {dir} $place; done; \
             for place in upper0 work0 fs tmp; do ln -s {dir} /$place 2>/dev/null; done; true"
        );
        inside.root(&replace).await.ok();
        inside.sandbox.usage().await.unwrap();
        let (engine, id) = (inside.engine.clone(), inside.sandbox.id().clone());
        inside.end().await;
        canary.is_untouched("the host's");
        assert!(matches!(engine.attach(&id).await, Ok(cabana_sandbox::Found::Absent) | Err(_)), "it is gone");
    }
}

/// CVE-2024-42472: a directory that is mounted to was replaced by a link for the next start.
#[tokio::test]
async fn restart_with_symlinked_mount_points_stays_inside() {
    let (canary, shown) = (Canary::new(), shown());
    let inside = Inside::with(SandboxSpec::new(Base::Host)).await;
    let (engine, id, dir) = (inside.engine.clone(), inside.sandbox.id().clone(), canary.dir());
    let replace = format!(
        "rm -rf /workspace /home/user /srv /mnt; ln -s {dir} /workspace; ln -s ../../../../../../..{dir} /home/user; \
         ln -s /proc/self/root{dir} /srv; ln -s / /mnt"
    );
    inside.root(&replace).await.ok();
    for at in ["/workspace/x", "/home/user/x", "/srv/x", "/workspace", "/mnt/etc/x"] {
        engine.stop(&id).await.unwrap();
        let started = match engine.set_views(&id, &[of_host(shown.path(), at)]).await {
            Ok(()) => engine.start(&id).await.ok(),
            Err(_) => None,
        };
        canary.is_untouched(at);
        if let Some(sandbox) = started {
            assert_eq!(sandbox.files(None).stat(&path("/bin/sh")).await.map(drop).ok(), Some(()), "{at}");
            engine.stop(&id).await.unwrap();
        }
        engine.set_views(&id, &[]).await.unwrap();
        engine.start(&id).await.unwrap();
    }
    engine.stop(&id).await.unwrap();
    engine.set_views(&id, &[of_host(shown.path(), "/opt/x")]).await.unwrap();
    let sandbox = engine.start(&id).await.unwrap();
    let seen = cabana_sandbox::read_all(&*sandbox.files(None), &path("/opt/x/note"), 100).await.unwrap();
    assert_eq!(seen, "shown", "where no link is, it is seen");
    inside.end().await;
}

/// CVE-2017-1002101, and CVE-2024-21626 from the other side: the kernel's own links to what a process has open.
#[tokio::test]
async fn view_sources_behind_procfs_magic_links_are_refused() {
    use std::os::fd::AsRawFd;
    let shown = shown();
    let (dir, pid) = (shown.path().to_str().unwrap(), std::process::id());
    let open = fs::File::open(shown.path()).unwrap();
    let link = shown.path().with_extension("link");
    symlink(shown.path(), &link).unwrap();
    let sources = [
        format!("/proc/self/root{dir}"),
        format!("/proc/{pid}/root{dir}"),
        format!("/proc/self/fd/{}", open.as_raw_fd()),
        format!("/dev/fd/{}", open.as_raw_fd()),
        "/proc/self/cwd".into(),
        "/proc/thread-self/root/tmp".into(),
        format!("{dir}/../{}", shown.path().file_name().unwrap().to_str().unwrap()),
        link.to_str().unwrap().to_owned(),
    ];
    let inside = Inside::new().await;
    for source in sources {
        let view = of_host(Path::new(&source), "/workspace/seen");
        assert!(inside.sandbox.update(Wanted::Views(vec![view.clone()])).await.is_err(), "late: {source}");
        let id = SandboxId::random();
        let created = inside.engine.create(&id, &SandboxSpec { views: vec![view], ..passing() }).await.is_ok();
        inside.engine.destroy(&id).await.unwrap();
        assert!(!created, "{source}");
    }
    fs::remove_file(link).unwrap();
    inside.sandbox.update(Wanted::Views(vec![of_host(shown.path(), "/workspace/seen")])).await.unwrap();
    assert_eq!(inside.root("cat /workspace/seen/note").await.ok(), "shown");
    inside.end().await;
}

/// CVE-2024-23652: what was made for a mount was removed after it, by a path that led elsewhere by then.
#[tokio::test]
async fn unmounting_a_moved_view_removes_nothing_else() {
    let shown = shown();
    fs::create_dir(shown.path().join("empty")).unwrap();
    let inside = Inside::new().await;
    inside.sandbox.update(Wanted::Views(vec![of_host(shown.path(), "/srv/p/q")])).await.unwrap();
    assert_eq!(inside.root("cat /srv/p/q/note").await.ok(), "shown");
    let steer = "mv /srv/p /srv/away && mkdir -p /etc/q /srv/other/q && ln -s /etc /srv/p && ls -d /etc/q /srv/away/q";
    inside.root(steer).await.ok();
    inside.sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
    let left =
        "ls -d /etc/q /srv/other/q && readlink /srv/p && ! grep -q away /proc/self/mountinfo && ls -A /srv/away/q";
    assert_eq!(inside.root(left).await.ok(), "/etc/q\n/srv/other/q\n/etc", "all is there but the view");
    let names = fs::read_dir(shown.path()).unwrap().count();
    assert_eq!(names, 2, "and what it showed is as it was");
    inside.end().await;
}
