//! Mounts that are changed under the eyes of a hostile guest, and under the hands of a hostile neighbour of their source.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use cabana_sandbox::{Provider, SandboxSpec, Source, View, VolumeId, Wanted};

use crate::inside::{Inside, passing, path, unique};

fn view(source: &Path, at: &str, writable: bool) -> View {
    View { source: Source::Host(source.into()), at: path(at), writable }
}

/// Somebody who may write beside the source swaps it for a link, as fast as can be: whatever is mounted is never what the link
/// leads to.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_swapped_for_a_link_between_the_check_and_the_mount() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad, source) = (dir.path().join("good"), dir.path().join("bad"), dir.path().join("source"));
    let secret = unique("secret");
    for (path, note) in [(&good, "good"), (&bad, secret.as_str())] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("note"), note).unwrap();
    }
    fs::rename(&good, &source).unwrap();
    symlink(&bad, dir.path().join("link")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let (over, dir, source) = (over.clone(), dir.path().to_owned(), source.clone());
        move || {
            let exchange = || {
                let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
                rustix::fs::renameat_with(here, &source, here, dir.join("link"), flags).unwrap();
            };
            while !over.load(Ordering::Relaxed) {
                exchange();
            }
        }
    });
    let naive = || fs::read_to_string(source.join("note")).unwrap_or_default();
    crate::inside::until("whoever opens it by its path is led away", async || naive() == secret).await;
    let inside = Inside::new().await;
    let (mut shown, mut refused) = (0, 0);
    while (shown < 10 || refused < 10) && shown + refused < 2000 {
        match inside.sandbox.update(Wanted::Views(vec![view(&source, "/workspace/seen", true)])).await {
            Ok(()) => {
                shown += 1;
                assert_eq!(inside.root("cat /workspace/seen/note").await.ok(), "good");
                inside.sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
            }
            Err(_) => refused += 1,
        }
    }
    over.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    assert!(shown > 0 && refused > 0, "{shown} times it was mounted, and {refused} times refused");
    inside.end().await;
}

/// The place of a view, swapped for a link by the guest as fast as can be, while it comes and goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_the_guest_swaps_for_a_link() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("note"), "x").unwrap();
    let inside = Inside::new().await;
    let swap = "import os
os.chdir('/tmp')
os.makedirs('place', exist_ok=True)
swapped = 0
while not os.path.exists('/tmp/over'):
    try:
        if os.path.isdir('place/sys'): os.rmdir('place/sys')
        os.rmdir('place')
        os.symlink('/proc', 'place')
        os.unlink('place')
        os.mkdir('place')
        swapped += 1
    except OSError:
        pass
print(swapped)";
    let mut spec = cabana_sandbox::ExecSpec::argv(["python3", "-c", swap], path("/"));
    spec.user = Some(crate::inside::named("root")); // a place that the server made is root's
    let comes_and_goes = async {
        for _ in 0..100 {
            let _ = inside.sandbox.update(Wanted::Views(vec![view(dir.path(), "/tmp/place/sys", true)])).await;
            let mounted = inside.root("grep -c ' /proc/sys ' /proc/self/mountinfo").await.ok();
            assert_eq!(mounted, "1", "there is the sandbox's own, and nothing on it");
            inside.sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
        }
        inside.root("touch /tmp/over").await.ok();
    };
    let (swapped, ()) = tokio::join!(cabana_sandbox::run(&*inside.sandbox, spec, 1 << 16), comes_and_goes);
    let swapped = String::from_utf8(swapped.unwrap().stdout.whole().unwrap()).unwrap();
    assert!(swapped.trim().parse::<u32>().unwrap() > 100, "it was swapped all the time: {swapped}");
    inside.end().await;
}

#[tokio::test]
async fn a_read_only_mount_is_so_for_root_whenever_it_came() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("note"), "as it was").unwrap();
    let inside = Inside::new().await;
    let volume = VolumeId::now();
    inside.engine.make_volume(volume).await.unwrap();
    let kept = View { source: Source::Volume(volume), ..view(dir.path(), "/workspace/volume", true) };
    inside.sandbox.update(Wanted::Views(vec![kept.clone()])).await.unwrap();
    inside.root("echo 'as it was' > /workspace/volume/note").await.ok();
    let closed = [view(dir.path(), "/workspace/seen", false), View { writable: false, ..kept }];
    inside.sandbox.update(Wanted::Views(closed.to_vec())).await.unwrap();
    for place in ["/workspace/seen", "/workspace/volume"] {
        for attack in [
            "echo x > note",
            "rm note",
            "chmod 777 .",
            "mv note other",
            "ln note other",
            "touch note",
            "mount -o remount,rw,bind .",
            "umount .",
            "unshare -m mount -o remount,rw,bind .",
        ] {
            inside.root(&format!("cd {place} && {attack}")).await.refused();
        }
        assert_eq!(inside.root(&format!("cat {place}/note")).await.ok(), "as it was");
    }
    inside.sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
    inside.engine.remove_volume(volume).await.unwrap();
    inside.end().await;
}

/// A set-user-id program and a device that one sandbox leaves in a volume gain another one nothing, though it has sudo.
#[tokio::test]
async fn what_a_sandbox_leaves_in_a_volume_gains_nobody_anything() {
    let inside = Inside::with(SandboxSpec { sudo: true, ..passing() }).await;
    let volume = VolumeId::now();
    inside.engine.make_volume(volume).await.unwrap();
    let kept = View { source: Source::Volume(volume), at: path("/workspace/volume"), writable: true };
    inside.sandbox.update(Wanted::Views(vec![kept])).await.unwrap();
    inside.root("cp /usr/bin/id /workspace/volume/id").await.ok();
    inside.root("chmod 6755 /workspace/volume/id").await.refused();
    // As if it had been left there before that was refused.
    let left = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("data/volumes/{volume}/tree/id"));
    fs::set_permissions(&left, fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(inside.root("stat -c %a /workspace/volume/id").await.ok(), "6755");
    assert_eq!(inside.user("/workspace/volume/id -u").await.ok(), "1000");
    inside.root("cp /usr/bin/id /srv/id && chmod 6755 /srv/id").await.ok();
    assert_eq!(inside.user("/srv/id -u").await.ok(), "0", "in the sandbox's own files it does");
    inside.root("mknod /workspace/volume/disk b 8 0").await.refused();
    inside.sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
    inside.engine.remove_volume(volume).await.unwrap();
    inside.end().await;
}

/// What was taken away is not reached by a directory that was open around it.
#[tokio::test]
async fn a_view_that_went_is_not_reached_by_what_was_open_around_it() {
    let (dir, secret) = (tempfile::tempdir().unwrap(), unique("secret"));
    fs::write(dir.path().join("note"), &secret).unwrap();
    let inside = Inside::new().await;
    inside.sandbox.update(Wanted::Views(vec![view(dir.path(), "/workspace/a/seen", false)])).await.unwrap();
    let code = "import os, time
around = os.open('/workspace/a', os.O_RDONLY)
def look():
    seen = os.open('seen', os.O_RDONLY, dir_fd=around)
    print(os.listdir(seen), flush=True)
    os.close(seen) # who holds it would end with the view
look()
open('/tmp/begun', 'w').close()
while not os.path.exists('/tmp/gone'): time.sleep(0.02)
look()";
    let spec = cabana_sandbox::ExecSpec::argv(["python3", "-c", code], path("/"));
    let takes_away = async {
        while inside.user("test -e /tmp/begun").await.status != cabana_sandbox::Status::Code(0) {}
        inside.sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
        inside.user("touch /tmp/gone").await.ok();
    };
    let (held, ()) = tokio::join!(cabana_sandbox::run(&*inside.sandbox, spec, 1 << 16), takes_away);
    let said = held.unwrap().stdout.whole().unwrap();
    assert_eq!(String::from_utf8_lossy(&said).trim(), "['note']\n[]", "it was there, and is not any more");
    inside.end().await;
}
