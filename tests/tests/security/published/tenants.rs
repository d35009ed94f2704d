//! From one command, sandbox or tenant to another: variables, leftovers, identifiers, and the data directory.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use cabana_engine::TemplateSource;
use cabana_sandbox::{Base, Event, Overrides, Provider, SandboxId, SandboxSpec, SnapshotId, VolumeId};
use futures_util::StreamExt;

use super::stage::shell;
use crate::{
    archives::{EVIL, engine_with, small_root},
    inside::{Inside, engine, named, passing, unique},
};

/// CVE-2020-14370, CVE-2021-21334: variables of one container were found in the next.
#[tokio::test]
async fn environment_of_one_command_does_not_reach_another() {
    let (inside, secret) = (Inside::new().await, unique("secret"));
    let neighbour = Inside::of(inside.engine.clone(), &passing()).await;
    let mut holder = shell("echo $SECRET; sleep 300");
    holder.env = [("SECRET".to_owned(), secret.clone())].into();
    holder.user = Some(named("root"));
    let mut process = inside.sandbox.exec(holder).await.unwrap();
    let Some(Ok(Event::Output(first))) = process.events.next().await else { panic!("it did not begin") };
    assert_eq!(String::from_utf8_lossy(&first.bytes).trim(), secret, "the command itself has it");
    let look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; true";
    assert!(inside.root(look).await.ok().contains(&secret), "root inside sees its own processes");
    for inside in [&inside, &neighbour] {
        assert!(!inside.root("env").await.ok().contains(&secret));
        assert!(!inside.user(look).await.ok().contains(&secret), "another user");
    }
    assert!(!neighbour.root(look).await.ok().contains(&secret), "another sandbox");
    let newcomer = Inside::of(inside.engine.clone(), &passing()).await;
    assert!(!newcomer.root(look).await.ok().contains(&secret), "a new sandbox");
    for other in [newcomer, neighbour] {
        other.engine.destroy(other.sandbox.id()).await.unwrap();
    }
    inside.end().await;
}

/// CVE-2020-2025, CVE-2026-24834: what a guest wrote was in what the next one started from.
#[tokio::test]
async fn nothing_survives_into_the_next_sandbox() {
    let (engine, mark) = (engine().await, unique("mark"));
    let leave = format!(
        "for dir in / /etc /usr /usr/bin /usr/lib /bin /lib /opt /srv /root /home /home/user /tmp /var/tmp /var/lib /run /dev/shm \
           /workspace; do echo {mark} > $dir/{mark}; done 2>/dev/null; echo {mark} >> /etc/passwd; echo {mark} >> /usr/bin/env; \
         ipcmk -M 4096 >/dev/null; ipcmk -Q >/dev/null; (setsid sleep 300 >/dev/null 2>&1 &)"
    );
    let look = format!(
        "find / -xdev -name '{mark}' 2>/dev/null; find /dev/shm /tmp -name '{mark}'; grep -l {mark} /etc/passwd /usr/bin/env; \
         tail -qn +2 /proc/sysvipc/shm /proc/sysvipc/msg; pgrep -a sleep; true"
    );
    for round in 0..3 {
        let inside = Inside::of(engine.clone(), &passing()).await;
        assert_eq!(inside.root(&look).await.ok(), "", "round {round}");
        inside.root(&leave).await.ok();
        let found = inside.root(&look).await.ok();
        assert!(found.lines().count() > 15 && found.contains("sleep"), "it finds its own: {found}");
        engine.destroy(inside.sandbox.id()).await.unwrap();
    }
    engine.close().await;
}

/// CVE-2026-54319, CVE-2025-54293: an identifier became a part of a path.
#[tokio::test(flavor = "multi_thread")]
async fn path_traversal_in_identifiers_is_refused() {
    let odd = [
        "..",
        ".",
        "",
        "/",
        "../x",
        "../../etc",
        "a/../b",
        "a/b",
        "/etc/passwd",
        "a\\..\\b",
        "%2e%2e%2fx",
        "..%2fx",
        "a\0b",
        "a\nb",
        " ",
        "-rf",
        "\u{2024}\u{2024}/x",
        "vol_../../x",
    ];
    assert!(SandboxId::new(SandboxId::random().as_str()).is_ok());
    assert!(VolumeId::now().to_string().parse::<VolumeId>().is_ok());
    assert!(SnapshotId::now().to_string().parse::<SnapshotId>().is_ok());
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("root");
    small_root(&root);
    let source = TemplateSource::Directory(root);
    let engine = engine_with(work.path(), &source, &Overrides::default()).await.expect("a plain name is taken");
    let before = listing(work.path());
    for name in odd {
        assert!(SandboxId::new(name).is_err(), "sandbox {name:?}");
        assert!(name.parse::<VolumeId>().is_err(), "volume {name:?}");
        assert!(name.parse::<SnapshotId>().is_err(), "snapshot {name:?}");
        let added =
            tokio::task::block_in_place(|| engine.templates().add(name, &source, &Overrides::default(), &mut |_| {}));
        assert!(added.is_err(), "template {name:?}");
        assert!(engine.remove_template(name).await.is_err(), "template {name:?}");
        let spec = SandboxSpec { base: Base::Named(name.into()), ..passing() };
        assert!(engine.create(&SandboxId::random(), &spec).await.is_err(), "a sandbox of {name:?}");
    }
    assert_eq!(listing(work.path()), before, "something was made or removed");
    engine.close().await;
}

/// What lies in a directory and in the folders right below it.
fn listing(dir: &Path) -> Vec<String> {
    let said = Command::new("find")
        .arg(dir)
        .args(["-mindepth", "1", "-maxdepth", "3", "-not", "-path", "*/root/*"])
        .output()
        .unwrap();
    let mut names: Vec<String> = String::from_utf8(said.stdout).unwrap().lines().map(str::to_owned).collect();
    names.sort();
    names
}

fn as_user(uid: u32, command: &[&str]) -> Output {
    let id = uid.to_string();
    let identity = ["--reuid", &id, "--regid", &id, "--clear-groups", "--"];
    Command::new("setpriv").args(identity).args(command).output().unwrap()
}

/// CVE-2021-21284, CVE-2021-41091, CVE-2021-41103: other users of the host, and the ids of a sandbox, in the daemon's directory.
#[tokio::test(flavor = "multi_thread")]
async fn guest_uids_cannot_enter_the_data_directory() {
    let work = tempfile::tempdir().unwrap();
    fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let root = work.path().join("root");
    small_root(&root);
    let source = TemplateSource::Directory(root);
    let engine = engine_with(work.path(), &source, &Overrides::default()).await.expect("a template");
    let inside = Inside::of(engine, &SandboxSpec { base: Base::Named(EVIL.into()), ..passing() }).await;
    let mark = unique("sleeper");
    let mut spec = shell(&format!("echo up; read -r x < <(:) ; : {mark}; while :; do read -r -t 300 x || exit; done"));
    spec.stdio = cabana_sandbox::Stdio::InputOutput;
    spec.user = Some(named("root"));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    assert!(matches!(process.events.next().await, Some(Ok(Event::Output(_)))), "it runs");
    let live = host_uid_of(&mark);
    assert!(live >= 65_536, "root inside is an id of its own outside: {live}");
    let data = work.path().join("data");
    let data = data.to_str().unwrap();
    assert!(fs::read_dir(data).unwrap().count() > 0, "root reads it");
    for uid in [live, live + 1000, live + 65_535, 65_534, 1000] {
        assert!(as_user(uid, &["ls", work.path().to_str().unwrap()]).status.success(), "{uid} comes up to it");
        for attempt in
            [vec!["ls", data], vec!["touch", &format!("{data}/made")], vec!["stat", &format!("{data}/layers")]]
        {
            assert!(!as_user(uid, &attempt).status.success(), "{attempt:?} as {uid}");
        }
    }
    inside.end().await;
}

/// The uid, outside, of the process whose command line holds this.
fn host_uid_of(mark: &str) -> u32 {
    use std::os::unix::fs::MetadataExt;
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let marked =
        |path: &Path| fs::read(path.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark));
    let mut found = processes.filter(|path| marked(path));
    fs::metadata(found.next().expect("the process is there").join("stat")).unwrap().uid()
}
