//! Users, groups and capabilities that commands run with.

use std::{fs, path::PathBuf, process::Command};

use cabana_engine::TemplateSource;
use cabana_sandbox::{Base, Code, ExecSpec, Overrides, Provider, SandboxPath, SandboxSpec, User, run};

use super::stage::{python, shell};
use crate::{
    archives::{EVIL, engine_with, small_root},
    inside::{Inside, named, passing, path, unique},
};

/// What root inside is left with.
const KEPT: &str = "00000000a00404fb";
const NONE: &str = "0000000000000000";

async fn with_sudo() -> Inside {
    Inside::with(SandboxSpec { sudo: true, ..passing() }).await
}

async fn uid_of(inside: &Inside, user: &str) -> String {
    inside.command(user, shell("id -u")).await.ok()
}

/// One line of `/proc/self/status`.
fn set(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
}

/// CVE-2022-2989 and its kin: a file that denies the user's group and allows everybody else. A set-group-id program changes
/// the effective group, and the user's own must still be among the supplementary ones.
#[tokio::test]
async fn setgid_program_does_not_drop_the_primary_group() {
    let inside = with_sudo().await;
    let make = "echo secret > /srv/denied && chown 0:1000 /srv/denied && chmod 604 /srv/denied && \
        for tool in cat id; do cp /usr/bin/$tool /srv/$tool && chgrp nogroup /srv/$tool && chmod 2755 /srv/$tool; done";
    inside.root(make).await.ok();
    assert_eq!(inside.command("nobody", shell("cat /srv/denied")).await.ok(), "secret", "everybody else may read it");
    assert_eq!(inside.user("/srv/id -g").await.ok(), "65534", "a set-group-id program has another group");
    inside.user("cat /srv/denied").await.refused();
    inside.user("/srv/cat /srv/denied").await.refused();
    inside.end().await;
}

/// CVE-2016-3697: whoever writes `/etc/passwd` names a root account like the number that commands are run as.
#[tokio::test]
async fn numeric_user_is_a_uid_before_it_is_a_name() {
    let inside = Inside::new().await;
    inside
        .root("echo '1234:x:0:0::/root:/bin/sh' >> /etc/passwd && echo 'toor:x:0:0::/root:/bin/sh' >> /etc/passwd")
        .await
        .ok();
    assert_eq!(uid_of(&inside, "toor").await, "0", "the file is read");
    assert_eq!(uid_of(&inside, "1234").await, "1234");
    inside.root("mkdir -m 777 /srv/open").await.ok();
    cabana_sandbox::write_all(&*inside.files("1234"), &path("/srv/open/made"), "x").await.unwrap();
    assert_eq!(inside.root("stat -c %u /srv/open/made").await.ok(), "1234", "by the file API");
    inside.end().await;
}

/// CVE-2024-40635: ids that overflow a signed or an unsigned number, or the sandbox's range.
#[tokio::test]
async fn overflowing_uids_are_unknown_users() {
    let inside = Inside::new().await;
    assert_eq!(uid_of(&inside, "65535").await, "65535", "the last id of the range is a user");
    let names = [
        "65536",
        "131072",
        "2147483647",
        "2147483648",
        "4294901760",
        "4294967294",
        "4294967295",
        "4294967296",
        "18446744073709551616",
        "340282366920938463463374607431768211456",
    ];
    for name in names {
        let spec = ExecSpec { user: Some(named(name)), ..shell("id -u") };
        let refused = run(&*inside.sandbox, spec, 100).await.map(|ran| ran.stdout.head);
        assert_eq!(refused.map_err(|error| error.code()), Err(Code::UnknownUser), "{name}");
        let stat = inside.files(name).stat(&path("/")).await.map(drop);
        assert_eq!(stat.map_err(|error| error.code()), Err(Code::UnknownUser), "{name}");
    }
    inside.end().await;
}

/// The same in what a template says of its user.
#[tokio::test(flavor = "multi_thread")]
async fn template_user_with_an_overflowing_uid_is_not_root() {
    for (name, expected) in [("7", Some("7")), ("65536", None), ("4294967295", None), ("4294967296", None)] {
        let work = tempfile::tempdir().unwrap();
        let root = work.path().join("root");
        small_root(&root);
        let wishes = Overrides { user: Some(named(name)), ..Overrides::default() };
        let engine = engine_with(work.path(), &TemplateSource::Directory(root), &wishes).await;
        let Some(engine) = engine else {
            assert_eq!(expected, None, "{name} is refused");
            continue;
        };
        let inside = Inside::of(engine, &SandboxSpec { base: Base::Named(EVIL.into()), ..passing() }).await;
        let ran = run(&*inside.sandbox, ExecSpec::argv(["/bin/id", "-u"], SandboxPath::root()), 100).await;
        let uid = ran.ok().map(|ran| String::from_utf8_lossy(&ran.stdout.head).trim().to_owned());
        assert_eq!(uid.as_deref(), expected, "{name}");
        inside.end().await;
    }
}

/// CVE-2026-30892: `1` is not the beginning of something that means root.
#[tokio::test]
async fn small_uids_are_not_parsed_as_root() {
    let inside = Inside::new().await;
    assert_eq!(uid_of(&inside, "0").await, "0");
    for uid in ["1", "2", "9", "10", "100", "999", "1001", "10000", "60000"] {
        let said = inside.command(uid, shell("id -u; touch /tmp/$$ && stat -c %u /tmp/$$")).await.ok();
        assert_eq!(said, format!("{uid}\n{uid}"));
    }
    // Neither are other spellings, which the type of a user refuses or which are nobody's name.
    for spelling in ["+0", " 0", "0 ", "-0", "0:0", "1:0", "0x0", "0b0", "0o0", "1e0", "\u{660}"] {
        let Ok(user) = User::new(spelling) else { continue };
        let refused = run(&*inside.sandbox, ExecSpec { user: Some(user), ..shell("id -u") }, 100).await;
        assert_eq!(refused.err().map(|error| error.code()), Some(Code::UnknownUser), "{spelling}");
    }
    inside.end().await;
}

/// CVE-2019-11245: the first start had the right user, and the next one root.
#[tokio::test]
async fn default_user_is_the_same_after_a_restart() {
    let spec = SandboxSpec { user: Some(named("nobody")), ..SandboxSpec::new(Base::Host) };
    let inside = Inside::with(spec).await;
    let (engine, id) = (inside.engine.clone(), inside.sandbox.id().clone());
    let uid = async |sandbox: &dyn cabana_sandbox::Sandbox| {
        let ran = run(sandbox, shell("id -u"), 100).await.unwrap();
        String::from_utf8_lossy(&ran.stdout.head).trim().to_owned()
    };
    assert_eq!(uid(&*inside.sandbox).await, "65534");
    for _ in 0..2 {
        engine.stop(&id).await.unwrap();
        let again = engine.start(&id).await.unwrap();
        assert_eq!(uid(&*again).await, "65534");
    }
    assert_eq!(
        uid_of(&Inside { engine: engine.clone(), sandbox: engine.start(&id).await.unwrap() }, "root").await,
        "0"
    );
    inside.end().await;
}

/// Gives a copy of a program file capabilities: permitted and inheritable ones, with the effective bit.
fn grant(permitted: u32, inheritable: u32) -> String {
    format!(
        "import os, shutil, struct\nshutil.copy('/usr/bin/cat', '/srv/probe')\nos.chmod('/srv/probe', 0o755)\n\
         os.setxattr('/srv/probe', 'security.capability', struct.pack('<5I', 0x02000001, {permitted}, {inheritable}, 0, 0))"
    )
}

/// CVE-2022-24769 and its kin: a process with inheritable capabilities gets those that a file has as inheritable ones, too.
#[tokio::test]
async fn inheritable_file_capabilities_grant_nothing() {
    const NET_BIND_SERVICE: u32 = 1 << 10;
    let inside = with_sudo().await;
    inside.command("root", python(&grant(NET_BIND_SERVICE, 0))).await.ok();
    let status = inside.user("/srv/probe /proc/self/status").await.ok();
    assert_eq!(set(&status, "CapEff"), "0000000000000400", "permitted ones are granted");
    inside.command("root", python(&grant(0, u32::MAX))).await.ok();
    let status = inside.user("/srv/probe /proc/self/status").await.ok();
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(set(&status, name), NONE, "{name}");
    }
    for user in ["root", "user"] {
        let status = inside.command(user, shell("cat /proc/self/status")).await.ok();
        assert_eq!(set(&status, "CapInh"), NONE, "as {user}");
    }
    inside.end().await;
}

/// CVE-2016-8867, CVE-2018-10856: ambient capabilities made a user root in all but name.
#[tokio::test]
async fn unprivileged_user_has_no_capability_in_any_set() {
    for inside in [Inside::new().await, with_sudo().await] {
        let root = inside.root("cat /proc/self/status").await.ok();
        assert_eq!((set(&root, "CapEff"), set(&root, "CapAmb")), (KEPT.into(), NONE.into()));
        for user in ["user", "nobody", "7777"] {
            let status = inside.command(user, shell("cat /proc/self/status")).await.ok();
            for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
                assert_eq!(set(&status, name), NONE, "{name} of {user}");
            }
        }
        inside.end().await;
    }
}

/// CVE-2021-3493: capabilities that a file got in a user namespace counted outside of it, in the layer below.
#[tokio::test]
async fn file_capabilities_are_bound_to_the_user_namespace() {
    let inside = with_sudo().await;
    let name = unique("granted");
    inside.command("root", python(&grant(1 << 10, 0))).await.ok();
    inside.root(&format!("cp --preserve=all /srv/probe /srv/{name}")).await.ok();
    let status = inside.user(&format!("/srv/{name} /proc/self/status")).await.ok();
    assert_eq!(set(&status, "CapEff"), "0000000000000400", "inside they count");
    let file = on_host(&inside, &name);
    let raw = xattr(&file, "security.capability");
    let word = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().unwrap());
    assert_eq!(word(0) >> 24, 3, "the revision that names a user namespace: {raw:x?}");
    assert_ne!(word(20), 0, "whose root is not the host's");
    inside.end().await;
}

/// Where the writable layer of a sandbox has a file of this name.
fn on_host(inside: &Inside, name: &str) -> PathBuf {
    let data = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("data");
    let id = inside.sandbox.id().as_str();
    let said =
        Command::new("find").arg(data.join("ephemeral")).args(["-path", &format!("*/{id}/*/{name}")]).output().unwrap();
    let found = String::from_utf8(said.stdout).unwrap();
    found.lines().next().unwrap_or_else(|| panic!("{name} is in no layer of {id}")).into()
}

fn xattr(file: &PathBuf, name: &str) -> Vec<u8> {
    assert!(fs::metadata(file).unwrap().is_file());
    let mut value = vec![0; 64];
    let length = rustix::fs::getxattr(file, name, value.as_mut_slice()).unwrap();
    value.truncate(length);
    value
}
