//! What root and the ordinary user may do, with sudo and without.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use cabana_engine::{Engine, TemplateSource};
use cabana_sandbox::{Base, Lifetime, Overrides, Provider, SandboxId, SandboxSpec};

use super::fails;
use crate::{
    inside::{Inside, host, passing, shell, tiny_root},
    stage,
};

/// By the kernel's numbers: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE, SYS_CHROOT,
/// AUDIT_WRITE, SETFCAP.
const KEPT: [u32; 11] = [0, 1, 3, 4, 5, 6, 7, 10, 18, 29, 31];

fn set(bits: &str) -> Vec<u32> {
    let bits = u64::from_str_radix(bits.trim(), 16).unwrap();
    (0..64).filter(|bit| bits >> bit & 1 == 1).collect()
}

fn with_sudo() -> SandboxSpec {
    SandboxSpec { sudo: true, ..passing() }
}

fn of_template(name: &str) -> SandboxSpec {
    SandboxSpec { lifetime: Lifetime::Ephemeral, ..SandboxSpec::new(Base::Named(name.into())) }
}

const EFFECTIVE: &str = "sed -n 's/^CapEff:\t//p' /proc/self/status";

#[tokio::test]
async fn root_has_the_eleven_and_the_user_has_none_with_sudo_and_without() {
    for spec in [passing(), with_sudo()] {
        let inside = Inside::with(spec).await;
        assert_eq!(set(&inside.root(EFFECTIVE).await.ok()), KEPT);
        assert_eq!(set(&inside.user(EFFECTIVE).await.ok()), [] as [u32; 0]);
        assert_eq!(inside.root("cat /proc/sys/user/max_user_namespaces").await.ok(), "0");
        inside.end().await;
    }
}

#[tokio::test]
async fn sudo_follows_the_sandboxs_own_rules() {
    let inside = Inside::with(with_sudo()).await;
    assert_eq!(inside.user("sudo -n id -u; sudo -n -u daemon id -un").await.ok(), "0\ndaemon");
    assert_eq!(set(&inside.user(&format!("sudo -n {EFFECTIVE}")).await.ok()), KEPT);
    let rule = "user ALL=(root) NOPASSWD: /usr/bin/id";
    inside.root(&format!("echo '{rule}' > /etc/sudoers && chmod 440 /etc/sudoers")).await.ok();
    assert_eq!(inside.user("sudo -n id -u").await.ok(), "0");
    let said = inside.user("sudo -n cat /etc/shadow").await.refused();
    assert!(said.contains("password is required"), "{said}");
    inside.end().await;
}

#[tokio::test]
async fn sudo_says_why_it_cannot_where_it_was_not_wished() {
    fails("user", &[("sudo -n true", "no new privileges"), ("su -c true </dev/null", "")]).await;
    let inside = Inside::new().await;
    assert_eq!(inside.root("su user -c 'id -un'; sudo -u user id -un").await.ok(), "user\nuser");
    inside.end().await;
}

#[tokio::test]
async fn a_capability_on_a_file_counts_where_sudo_is_wished_and_never_beyond_the_eleven() {
    let bind = "import socket; socket.socket().bind(('127.0.0.1', 80)); print('bound')";
    let prepare = "cp /usr/bin/python3 /home/user/py && setcap cap_net_bind_service+ep /home/user/py
        cp /usr/bin/python3 /home/user/raw && setcap cap_net_raw+ep /home/user/raw";
    for (spec, bound) in [(passing(), false), (with_sudo(), true)] {
        let inside = Inside::with(spec).await;
        inside.root(prepare).await.ok();
        let ran = inside.user(&format!("/home/user/py -c \"{bind}\"")).await;
        assert_eq!(ran.out.trim() == "bound", bound, "{ran:?}");
        let raw = "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('raw')";
        let ran = inside.user(&format!("/home/user/raw -c \"{raw}\"")).await;
        assert!(ran.out.is_empty() && ran.err.contains("not permitted"), "{ran:?}");
        inside.end().await;
    }
}

/// A template with a program that belongs to root and has the set-user-id bit.
#[tokio::test]
async fn a_setuid_program_of_a_template_counts_where_sudo_is_wished() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    tiny_root(&root);
    fs::copy(root.join("bin/id"), root.join("bin/suid")).unwrap();
    fs::set_permissions(root.join("bin/suid"), fs::Permissions::from_mode(0o4755)).unwrap();
    let engine = Engine::open(stage::config(dir.path().join("data"))).await.unwrap();
    let source = TemplateSource::Directory(root);
    engine.templates().add("suid", &source, &Overrides::default(), &mut |_| {}).unwrap();
    for (sudo, effective) in [(false, "1000"), (true, "0")] {
        let spec = SandboxSpec { sudo, ..of_template("suid") };
        let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
        assert_eq!(shell(&*sandbox, "user", "suid -u; suid -ru").await.ok(), format!("{effective}\n1000"));
        engine.destroy(sandbox.id()).await.unwrap();
    }
    engine.close().await;
}

/// The host's own sudo in a template, with as little around it as it needs.
fn root_with_sudo(root: &Path) {
    tiny_root(root);
    let package = host("dpkg", &["-L", "sudo"]);
    let plugins = package.lines().filter(|file| file.contains(".so"));
    let found = host("find", &["/usr/lib", "-name", "pam_permit.so"]);
    let permit = found.lines().next().expect("the host has PAM");
    for file in plugins.chain([permit, "/usr/bin/sudo", "/usr/bin/sed"]) {
        let libraries = host("ldd", &[file]);
        for from in libraries.split_whitespace().filter(|word| word.starts_with('/')).chain([file]) {
            let to = root.join(&from[1..]);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
    }
    fs::create_dir_all(root.join("etc/pam.d")).unwrap();
    let pam = ["auth", "account", "session"].map(|step| format!("{step} required {permit}\n")).concat();
    fs::write(root.join("etc/pam.d/sudo"), pam).unwrap();
    fs::write(root.join("etc/sudoers"), "root ALL=(ALL) ALL\nuser ALL=(ALL) NOPASSWD: ALL\n").unwrap();
    fs::set_permissions(root.join("etc/sudoers"), fs::Permissions::from_mode(0o440)).unwrap();
    fs::set_permissions(root.join("usr/bin/sudo"), fs::Permissions::from_mode(0o4755)).unwrap();
}

#[tokio::test]
async fn sudo_of_a_template_works_where_it_is_wished() {
    let dir = tempfile::tempdir().unwrap();
    root_with_sudo(&dir.path().join("root"));
    let engine = Engine::open(stage::config(dir.path().join("data"))).await.unwrap();
    let source = TemplateSource::Directory(dir.path().join("root"));
    engine.templates().add("sudo", &source, &Overrides::default(), &mut |_| {}).unwrap();
    let spec = |sudo| SandboxSpec { sudo, ..of_template("sudo") };
    let sandbox = engine.create(&SandboxId::random(), &spec(true)).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "sudo -n id -u").await.ok(), "0");
    assert_eq!(set(&shell(&*sandbox, "user", &format!("sudo -n {EFFECTIVE}")).await.ok()), KEPT);
    let sandbox = engine.create(&SandboxId::random(), &spec(false)).await.unwrap();
    let said = shell(&*sandbox, "user", "sudo -n id -u").await.refused();
    assert!(said.contains("no new privileges"), "{said}");
    engine.close().await;
}

#[tokio::test]
async fn a_template_can_wish_for_sudo_in_all_of_its_sandboxes() {
    let dir = tempfile::tempdir().unwrap();
    root_with_sudo(&dir.path().join("root"));
    let engine = Engine::open(stage::config(dir.path().join("data"))).await.unwrap();
    let source = TemplateSource::Directory(dir.path().join("root"));
    let wishes = Overrides { sudo: true, ..Overrides::default() };
    engine.templates().add("sudo", &source, &wishes, &mut |_| {}).unwrap();
    assert!(engine.templates().get("sudo").unwrap().sudo);
    let spec = SandboxSpec { lifetime: Lifetime::Persistent, ..of_template("sudo") };
    let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "sudo -n id -u").await.ok(), "0");
    // What it was made with stays, whatever becomes of the template.
    engine.templates().rm("sudo", &|_| false).unwrap();
    engine.stop(sandbox.id()).await.unwrap();
    let sandbox = engine.start(sandbox.id()).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "sudo -n id -u").await.ok(), "0");
    engine.close().await;
}

#[tokio::test]
async fn root_makes_users_serves_low_ports_and_changes_its_root() {
    let inside = Inside::new().await;
    let script = "set -e; useradd -m bob; su - bob -c 'id -un; pwd'; chown bob /home/user; stat -c %U /home/user
        python3 -c \"import socket; socket.socket().bind(('127.0.0.1', 80)); print('bound')\"
        mkdir -p /tmp/r/bin; cp /usr/bin/busybox /tmp/r/bin/ 2>/dev/null; ldd /usr/bin/busybox | grep -o '/[^ ]*' | xargs -r cp --parents -t /tmp/r
        chroot /tmp/r /bin/busybox ls /; touch /usr/bin/mine; rm /usr/bin/mine";
    assert_eq!(inside.root(script).await.ok(), "bob\n/home/bob\nbob\nbound\nbin\nlib\nlib64");
    inside.end().await;
}
