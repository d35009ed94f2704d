//! The process that owns the sandboxes of a test: started as root or as an ordinary user, in a mount namespace of its own,
//! in which it finds the control groups that it should find. Nothing of the host is changed for it: its account is written
//! into copies of the files of users, which it alone sees.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use cabana_tests::remote::{Answer, Request};

use super::{
    combination::{Cgroups, Identity},
    sources,
};

const RANGED: u32 = 47_301;
const SINGLE: u32 = 47_302;
const ACCOUNT: &str = "cabana-matrix";
/// Of nobody else: neither accounts nor the engine's own ranges are near.
const FIRST_ID: u32 = 0x6f00_0000;

/// Where the process sees its own directory, wherever the tests lie and whoever may go there.
const HERE: &str = "/mnt";

/// What is done in the new mount namespace before the program is started. Words come as variables.
const ENTER: &str = r#"
set -e
mount --bind "$HOME_DIR" /mnt
mount --bind "$SOURCES" /mnt/sources
mount --bind "$ATTACKS" /mnt/attacks
mount --bind "$PROGRAM" /mnt/program
for file in passwd group subuid subgid; do
    [ ! -e "$ACCOUNTS/$file" ] || mount --bind "$ACCOUNTS/$file" "/etc/$file"
done
[ -z "$GROUP" ] || echo $$ > "$GROUP/cgroup.procs"
case $CGROUPS in
unified) umount --recursive --lazy /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup ;;
absent) umount --recursive --lazy /sys/fs/cgroup ;;
esac
cd /
exec setpriv --reuid "$ID" --regid "$ID" --clear-groups --pdeathsig KILL env -i PATH=/usr/bin:/bin HOME=/mnt /mnt/program /mnt
"#;

/// A process that owns sandboxes.
pub(crate) struct Remote {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    _group: Option<Group>,
}

impl Remote {
    pub(crate) fn start(identity: Identity, cgroups: Cgroups) -> Self {
        let grounds = grounds();
        let (id, name) = match identity {
            Identity::Root => (0, "root"),
            Identity::Ranged => (RANGED, "ranged"),
            Identity::Single => (SINGLE, "single"),
        };
        let home = home(&grounds, name, id);
        let delegates = identity != Identity::Root && cgroups != Cgroups::Absent;
        let group = delegates.then(|| Group::delegated_to(id));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER]);
        command.env("HOME_DIR", &home).env("SOURCES", grounds.join("sources")).env("ATTACKS", attacks());
        command.env("PROGRAM", grounds.join("program")).env("ID", id.to_string());
        command
            .env("ACCOUNTS", if identity == Identity::Ranged { grounds.join("accounts") } else { "/dev/null".into() });
        command.env("GROUP", group.as_ref().map_or(Path::new(""), |group| &group.0));
        command.env("CGROUPS", format!("{cgroups:?}").to_lowercase());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare is there");
        let (requests, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("a pipe")));
        Self { child, requests, answers, _group: group }
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Answer {
        let requests = self.requests.as_mut().expect("it goes on");
        writeln!(requests, "{}", serde_json::to_string(request).expect("JSON")).expect("the owner of sandboxes lives");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        assert!(!line.is_empty(), "the owner of sandboxes has ended at {request:?}");
        serde_json::from_str(&line).expect("an answer")
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        drop(self.requests.take()); // it takes its sandboxes away
        let _ = self.child.wait();
    }
}

/// Where a program that is installed inside lies for the process: `HERE` and below.
pub(crate) fn seen(attack: &Path) -> PathBuf {
    Path::new(HERE).join("attacks").join(attack.file_name().expect("a name"))
}

/// A directory of its own that it may show to its sandboxes.
pub(crate) fn shared() -> PathBuf {
    Path::new(HERE).join("shared")
}

fn attacks() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("attacks")
}

/// What all of them need, made once. Each test is a process of its own.
fn grounds() -> PathBuf {
    let grounds = Path::new(env!("CARGO_TARGET_TMPDIR")).join("matrix");
    for dir in [&grounds, &grounds.join("accounts"), &attacks()] {
        fs::create_dir_all(dir).expect("a directory");
    }
    let lock = File::create(grounds.join("lock")).expect("a lock");
    lock.lock().expect("the lock");
    sources::make(&grounds.join("sources"));
    strip(Path::new(env!("CARGO_BIN_EXE_cabana-tests-remote")), &grounds.join("program"));
    let account = format!("{ACCOUNT}:x:{RANGED}:{RANGED}::/mnt:/bin/sh\n");
    let known = |file: &str| fs::read_to_string(file).expect("the host has users");
    let range = format!("{ACCOUNT}:{FIRST_ID}:65536\n");
    for (file, text) in [
        ("passwd", known("/etc/passwd") + &account),
        ("group", known("/etc/group") + &format!("{ACCOUNT}:x:{RANGED}:\n")),
        ("subuid", range.clone()),
        ("subgid", range),
    ] {
        let path = grounds.join("accounts").join(file);
        if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            fs::write(&path, text).expect("a file of users");
        }
    }
    grounds
}

/// The engine starts its helper from a copy in memory, and most of a program that is tested is what debuggers want.
fn strip(program: &Path, into: &Path) {
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    if changed(into).is_ok_and(|made| changed(program).is_ok_and(|built| built < made)) {
        return;
    }
    let draft = into.with_extension("new");
    let done = Command::new("strip").arg("-o").arg(&draft).arg(program).status().expect("strip is there");
    assert!(done.success());
    fs::rename(draft, into).expect("it takes its place"); // whoever has the old one mounted keeps it
}

fn home(grounds: &Path, name: &str, id: u32) -> PathBuf {
    let home = grounds.join(name);
    for part in ["sources", "attacks", "shared"] {
        fs::create_dir_all(home.join(part)).expect("a place to mount at");
    }
    chown(home.join("shared"), Some(id), Some(id)).expect("it is given to its owner");
    if !home.join("program").exists() {
        File::create(home.join("program")).expect("a place to mount at");
    }
    chown(&home, Some(id), Some(id)).expect("it is given to its owner");
    fs::set_permissions(&home, PermissionsExt::from_mode(0o755)).expect("a mode");
    home
}

/// A control group that is an ordinary user's, as a service manager would delegate one.
struct Group(PathBuf);

impl Group {
    fn delegated_to(id: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = unified().join(format!("cabana-matrix-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("a group");
        for part in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(path.join(part), Some(id), Some(id)).expect("it is delegated");
        }
        Self(path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let mut groups = vec![self.0.clone()];
        let mut next = 0;
        while next < groups.len() {
            let below = fs::read_dir(&groups[next]).into_iter().flatten().flatten();
            let below: Vec<_> = below.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
            groups.extend(below);
            next += 1;
        }
        for group in groups.iter().rev() {
            // What was killed may need a moment to be gone.
            for _ in 0..200 {
                match fs::remove_dir(group) {
                    Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Where version 2 of control groups is mounted.
pub(crate) fn unified() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the host has mounts");
    let mut groups = mounts.lines().filter(|line| line.split(' ').nth(2) == Some("cgroup2"));
    groups.next().and_then(|line| line.split(' ').nth(1)).expect("version 2 of control groups is mounted").into()
}
