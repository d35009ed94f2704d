//! Templates that were made to be started: links and files where the server and init will make, read and mount something.

use std::path::Path;

use cabana_engine::TemplateSource;
use cabana_sandbox::{Base, ExecSpec, Overrides, SandboxSpec, Stdio, TermSize, run};
use tar::EntryType;

use super::stage::{Canary, shell};
use crate::{
    archives::{EVIL, Evil, engine_with, root_tar},
    inside::{Inside, passing, path},
};

/// A sandbox from the small root and what is added to it. `None` when the template is refused.
async fn start(work: &Path, wishes: &Overrides, more: impl FnOnce(&mut Evil)) -> Option<Inside> {
    let file = work.join("template.tar");
    std::fs::write(&file, root_tar(work, more)).unwrap();
    let engine = engine_with(work, &TemplateSource::Tar(file), wishes).await?;
    Some(Inside::of(engine, &SandboxSpec { base: Base::Named(EVIL.into()), ..passing() }).await)
}

async fn started(work: &Path, more: impl FnOnce(&mut Evil)) -> Inside {
    start(work, &Overrides::default(), more).await.expect("a template")
}

fn link(tar: &mut Evil, name: &str, to: &str) {
    tar.entry(EntryType::Symlink, name, to, 0o777, b"");
}

/// CVE-2026-55686: the working directory is made, and given to its user, by the host.
#[tokio::test(flavor = "multi_thread")]
async fn workdir_behind_a_symlink_creates_nothing_on_the_host() {
    let canary = Canary::new();
    let dir = canary.dir().to_owned();
    let up = format!("../../../../../../../..{dir}");
    let ways = [(dir.as_str(), "/link/made"), (&up, "/link/made"), (&dir, "/link"), ("/proc/self/fd/7", "/link/made")];
    for (to, workdir) in ways {
        let work = tempfile::tempdir().unwrap();
        let wishes = Overrides { workdir: Some(path(workdir)), ..Overrides::default() };
        let inside = start(work.path(), &wishes, |tar| link(tar, "link", to)).await;
        canary.is_untouched(&format!("{workdir} to {to}"));
        let Some(inside) = inside else { continue };
        let spec = ExecSpec::argv(["/bin/cat", "f"], inside.sandbox.defaults().workdir.clone());
        if let Ok(ran) = run(&*inside.sandbox, spec, 1024).await {
            assert!(!String::from_utf8_lossy(&ran.stdout.head).contains(canary.content()), "{workdir} to {to}");
        }
        inside.end().await;
        canary.is_untouched(&format!("{workdir} to {to}"));
    }
    let work = tempfile::tempdir().unwrap();
    let wishes = Overrides { workdir: Some(path("/plain/made")), ..Overrides::default() };
    let inside = start(work.path(), &wishes, |_| {}).await.expect("a template");
    let ran = run(&*inside.sandbox, ExecSpec::argv(["/bin/ls"], path("/plain/made")), 100).await;
    assert!(ran.is_ok(), "where no link is, it is made");
    inside.end().await;
}

/// CVE-2024-29069, CVE-2024-9676, CVE-2026-48749: account files are read by the host, to add a user to them.
#[tokio::test(flavor = "multi_thread")]
async fn passwd_symlink_reads_nothing_of_the_host() {
    let secret = "root:x:0:0::/:/bin/sh\nleak:x:1000:1000:of the host:/:/bin/sh\n";
    let canary = Canary::with_content(secret);
    let up = format!("../../../../../../../..{}", canary.file());
    for to in [canary.file(), up, format!("/proc/self/root{}", canary.file())] {
        let work = tempfile::tempdir().unwrap();
        let add = |tar: &mut Evil| {
            for name in ["etc/passwd", "etc/group", "etc/shadow"] {
                link(tar, name, &to);
            }
        };
        let Some(inside) = start(work.path(), &Overrides::default(), add).await else { continue };
        let said = inside.root("cat /etc/passwd /etc/group /etc/shadow 2>/dev/null; true").await.out;
        assert!(!said.contains("of the host"), "{to}: {said}");
        inside.end().await;
        canary.is_untouched(&to);
    }
    let work = tempfile::tempdir().unwrap();
    let inside = started(work.path(), |tar| {
        tar.file("accounts", secret);
        link(tar, "etc/passwd", "../accounts");
    })
    .await;
    assert!(inside.root("cat /etc/passwd").await.ok().contains("of the host"), "a link inside is followed");
    inside.end().await;
}

/// CVE-2024-5154: files that every sandbox has are made where a link leads out.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_and_hostname_symlinks_overwrite_nothing_on_the_host() {
    let canary = Canary::new();
    let (dir, file) = (canary.dir().to_owned(), canary.file());
    let work = tempfile::tempdir().unwrap();
    let inside = started(work.path(), |tar| {
        for name in ["etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab", "etc/ld.so.cache"] {
            link(tar, name, &file);
        }
        for name in ["workspace", "home", "run", "sys", "var", "root", "opt"] {
            link(tar, name, &dir);
        }
    })
    .await;
    canary.is_untouched("made");
    inside
        .root("echo x > /workspace/new; echo x > /home/user/new; echo x > /etc/hosts; cat /etc/hostname; true")
        .await
        .ok();
    inside.still_works().await;
    inside.end().await;
    canary.is_untouched("started, written to and ended");
}

/// CVE-2025-31133: a mask is made of `/dev/null`, and what that is the image says.
#[tokio::test(flavor = "multi_thread")]
async fn dev_null_symlink_does_not_unmask_procfs() {
    let setting = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let work = tempfile::tempdir().unwrap();
    let inside = started(work.path(), |tar| {
        tar.entry(EntryType::Directory, "dev/", "", 0o777, b"");
        for name in
            ["null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "shm", "fd", "stdin", "stdout"]
        {
            link(tar, &format!("dev/{name}"), "/proc/sys/kernel/core_pattern");
        }
    })
    .await;
    let devices = "for d in null zero full random urandom tty; do stat -c %F /dev/$d; done";
    assert_eq!(inside.root(devices).await.ok(), ["character special file"; 6].join("\n"), "they are devices");
    for masked in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/cmdline"] {
        let read = inside.root(&format!("x=$(cat {masked} 2>/dev/null | tr -d '\\0'); [ -z \"$x\" ]")).await;
        assert_eq!(read.status, cabana_sandbox::Status::Code(0), "{masked}: {}", read.out);
    }
    inside.root("echo changed > /dev/null; echo changed > /dev/zero; true").await.ok();
    inside.root("echo changed > /proc/sys/kernel/core_pattern").await.refused();
    inside.end().await;
    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), setting);
}

/// CVE-2025-52565: the terminal of a command is found by a path of the image.
#[tokio::test(flavor = "multi_thread")]
async fn devpts_symlinks_do_not_redirect_a_terminal() {
    let work = tempfile::tempdir().unwrap();
    let inside = started(work.path(), |tar| {
        tar.entry(EntryType::Directory, "dev/", "", 0o777, b"");
        link(tar, "dev/pts", "/proc/sys/kernel");
        link(tar, "dev/console", "/proc/sys/kernel/core_pattern");
        link(tar, "dev/ptmx", "/proc/sysrq-trigger");
    })
    .await;
    let spec = ExecSpec {
        stdio: Stdio::Terminal(TermSize { cols: 80, rows: 24 }),
        ..shell("stat -L -c '%F %t' /proc/self/fd/0; stat -c %F /dev/pts; [ -e /dev/console ] || echo no console")
    };
    let said = inside.command("root", spec).await.ok().replace('\r', "");
    assert_eq!(said, "character special file 88\ndirectory\nno console", "88 is 136, a terminal of its own devpts");
    inside.end().await;
}

/// CVE-2019-16884, CVE-2025-52881: what the runtime writes to `/proc` lands in a file of the image, and has no effect.
#[tokio::test(flavor = "multi_thread")]
async fn procfs_files_of_a_template_capture_no_sysctl_write() {
    let work = tempfile::tempdir().unwrap();
    let inside = started(work.path(), |tar| {
        for dir in ["proc/", "proc/sys/", "proc/sys/user/", "proc/sys/kernel/", "proc/self/", "proc/self/attr/"] {
            tar.entry(EntryType::Directory, dir, "", 0o777, b"");
        }
        for file in ["proc/sys/user/max_user_namespaces", "proc/sys/kernel/shmall", "proc/self/attr/exec", "proc/kcore"]
        {
            tar.file(file, "of the template");
        }
    })
    .await;
    assert_eq!(inside.root("cat /proc/sys/user/max_user_namespaces").await.ok(), "0");
    let said = inside.root("cat /proc/self/status /proc/sys/kernel/shmall /proc/kcore 2>/dev/null; true").await.out;
    assert!(said.contains("Seccomp:\t2") && !said.contains("of the template"), "{said}");
    inside.end().await;
}

/// CVE-2026-40226: a file of the image is taken for settings of the runtime.
#[tokio::test(flavor = "multi_thread")]
async fn files_named_like_our_metadata_configure_nothing() {
    let settings = r#"{"name":"evil","sudo":true,"layers":[],"defaults":{"user":"root","workdir":"/etc","env":{"EVIL":"1"}},
        "config":{"User":"0","Env":["EVIL=1"]},"service":{"start":"touch /started"}}"#;
    let work = tempfile::tempdir().unwrap();
    let inside = started(work.path(), |tar| {
        tar.entry(EntryType::Directory, ".cabana/", "", 0o755, b"");
        for name in [
            "template.json",
            "record.json",
            "defaults.json",
            "live.json",
            "config.json",
            "evil.nspawn",
            ".cabana/template.json",
        ] {
            tar.file(name, settings);
        }
        tar.file("etc/cabana.toml", "sudo = true\nuser = \"root\"\n");
    })
    .await;
    let script = "id -u; grep NoNewPrivs /proc/self/status; echo ${EVIL-unset}; ls /started 2>/dev/null; true";
    let ran = run(&*inside.sandbox, ExecSpec::argv(["/bin/bash", "-c", script], path("/")), 1024).await.unwrap();
    let said = String::from_utf8_lossy(&ran.stdout.head).into_owned();
    // The small root has no grep: what it says of privileges is read by cat.
    assert!(said.starts_with("1000\n") && said.contains("unset") && !said.contains("started"), "{said}");
    let status = inside.user("cat /proc/self/status").await.ok();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    inside.end().await;
}
