//! What is open in the processes of a sandbox, at rest and between clone and exec: none of it leads out, by `..` or by what
//! it lists (the class of CVE-2024-21626). Looked at from the host, with all of its rights.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use cabana_sandbox::{ExecSpec, Lifetime, SandboxPath, Stdio, TermSize};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};

use crate::{
    inside::{Inside, named, passing, soon},
    lease::Lease,
};

/// A directory as the kernel knows it, whatever it is called.
type Place = (u64, u64);

/// One process of a sandbox, as the host sees it.
struct Seen(PathBuf);

impl Seen {
    /// All of the sandbox, by its pid namespace.
    async fn all(inside: &Inside) -> Vec<Self> {
        let namespace = inside.root("readlink /proc/self/ns/pid").await.ok();
        let here = |process: &PathBuf| {
            fs::read_link(process.join("ns/pid")).is_ok_and(|link| link.as_os_str() == namespace.as_str())
        };
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        processes.filter(here).map(Self).collect()
    }

    fn comm(&self) -> String {
        fs::read_to_string(self.0.join("comm")).unwrap_or_default().trim().to_owned()
    }

    /// Process 1 of its namespace.
    fn is_init(&self) -> bool {
        let status = fs::read_to_string(self.0.join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    }

    /// Also where its parent has not waited for it yet.
    fn has_ended(&self) -> bool {
        let status = fs::read_to_string(self.0.join("status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("State:\t")).is_none_or(|state| state.starts_with(['Z', 'X']))
    }

    /// Descriptors with their names; the working directory and the root are held just as well.
    fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        let numbers = self.numbers().into_iter().map(|number| self.0.join("fd").join(number));
        let held = numbers.chain([self.0.join("cwd"), self.0.join("root")]);
        let open = |path: PathBuf| {
            let fd = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
            Some((path.display().to_string(), fd))
        };
        held.filter_map(open).collect()
    }

    /// The numbers of what is open beside standard input, output and errors.
    fn beyond_stdio(&self) -> Vec<String> {
        self.numbers().into_iter().filter(|number| !["0", "1", "2"].contains(&number.as_str())).collect()
    }

    /// Of all that is open. A process that has ended since it was found has nothing open.
    fn numbers(&self) -> Vec<String> {
        let listed = fs::read_dir(self.0.join("fd")).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        match listed {
            Ok(entries) => entries.into_iter().map(|entry| entry.file_name().into_string().unwrap()).collect(),
            Err(_) if self.has_ended() => Vec::new(),
            Err(error) => panic!("{}: {error}", self.0.display()),
        }
    }

    fn target(&self, number: &str) -> String {
        fs::read_link(self.0.join("fd").join(number)).unwrap().display().to_string()
    }

    /// Where no `..` leads any further from here.
    fn tops(&self) -> Vec<(String, Place)> {
        let directories = self.descriptors().into_iter().filter(|(_, fd)| is_directory(&stat(fd)));
        directories.map(|(name, fd)| (name, top(fd))).collect()
    }
}

fn stat(fd: &OwnedFd) -> Stat {
    rustix::fs::fstat(fd).unwrap()
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn place(stat: &Stat) -> Place {
    (stat.st_dev, stat.st_ino)
}

fn place_of(path: &Path) -> Place {
    place(&rustix::fs::stat(path).unwrap())
}

fn mount(fd: &OwnedFd) -> u64 {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).unwrap().stx_mnt_id
}

fn top(mut fd: OwnedFd) -> Place {
    loop {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::openat(fd.as_fd(), c"..", flags, Mode::empty()).unwrap();
        if place(&stat(&above)) == place(&stat(&fd)) && mount(&above) == mount(&fd) {
            return place(&stat(&fd));
        }
        fd = above;
    }
}

/// Where the cgroup of version 2 is mounted.
fn groups() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("cgroups of version 2");
    line.split(' ').nth(4).unwrap().into()
}

/// The directory of the sandbox's own group: a command's group is `run/N` below it.
fn group_of(process: &Seen) -> Option<PathBuf> {
    let text = fs::read_to_string(process.0.join("cgroup")).unwrap();
    let own = text.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
    let own = own.split("/run").next().unwrap().to_owned();
    own.contains("cabana/").then(|| groups().join(own))
}

/// Everything that any process of the sandbox holds ends in the sandbox's root or in its own cgroup.
async fn nothing_leads_out(inside: &Inside) {
    let processes = Seen::all(inside).await;
    let init = processes.iter().find(|process| process.is_init()).expect("an init");
    let mut ends = vec![place_of(&init.0.join("root"))];
    ends.extend(group_of(init).map(|group| place_of(&group)));
    assert_ne!(ends[0], place_of(Path::new("/")), "the sandbox has a root of its own");
    for process in &processes {
        for (name, top) in process.tops() {
            assert!(ends.contains(&top), "{name} of {} leads out: {top:?}, not {ends:?}", process.comm());
        }
    }
}

async fn both() -> [Inside; 2] {
    [Inside::new().await, Inside::without_cgroups().await]
}

#[test]
fn walking_up_from_an_ordinary_directory_of_the_host_reaches_its_root() {
    // The control: this is what a descriptor on a mount of the host gives to who can name it.
    let group = rustix::fs::open(groups().join("cabana"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let held = group.unwrap_or_else(|_| rustix::fs::open("/usr/lib", OFlags::PATH, Mode::empty()).unwrap());
    assert_eq!(top(held), place_of(Path::new("/")));
}

#[tokio::test]
async fn climbing_from_a_descriptor_of_a_sandbox_at_rest() {
    for inside in both().await {
        inside.user("true").await.ok();
        let _rests = inside.sandbox.exec(ExecSpec::shell("sleep 600", SandboxPath::root())).await.unwrap();
        nothing_leads_out(&inside).await;
        inside.end().await;
    }
}

#[tokio::test]
async fn climbing_from_a_descriptor_of_a_sandbox_that_outlives_its_server() {
    let persistent = cabana_sandbox::SandboxSpec { lifetime: Lifetime::Persistent, ..passing() };
    let inside = Inside::with(persistent).await;
    let stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
    let mut spec = ExecSpec::shell("sleep 600", SandboxPath::root());
    spec.stdio = stdio;
    let _rests = inside.sandbox.exec(spec).await.unwrap();
    nothing_leads_out(&inside).await;
    inside.end().await;
}

/// Holds a command up between clone and exec by a lease on its program, and looks at it there.
async fn held_before_its_exec(inside: &Inside, user: &str, stdio: Stdio, look: impl AsyncFn(&[Seen])) {
    inside.user("cp /bin/true /tmp/held && chmod 755 /tmp/held").await.ok();
    let mut lease = Lease::on(inside, &["/tmp/held"]).await;
    let mut held = ExecSpec::argv(["/tmp/held"], SandboxPath::root());
    (held.user, held.stdio) = (Some(named(user)), stdio);
    let start = inside.sandbox.exec(held);
    tokio::select! {
        biased;
        () = async {
            let stopped = async || {
                let processes = Seen::all(inside).await;
                let begun = |process: &Seen| process.comm() == "cabana-init" && !process.is_init();
                processes.into_iter().filter(begun).collect::<Vec<_>>()
            };
            // The supervisor, where there is one, is named as init, too; and has come as far before the command has.
            soon("the exec asks for the lease", lease.asked()).await;
            // One that closes something of an earlier command's is named so as well, and has nothing open any more when it ends.
            let held = soon("others have ended", async {
                loop {
                    let held = stopped().await;
                    if held.iter().all(|process| !process.beyond_stdio().is_empty()) {
                        return held;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            })
            .await;
            assert!(!held.is_empty(), "it is between clone and exec");
            look(&held).await;
            nothing_leads_out(inside).await;
        } => {}
        _ = start => panic!("it was not held up"),
    }
}

#[tokio::test]
async fn climbing_from_a_descriptor_between_clone_and_exec() {
    for user in ["root", "user"] {
        for stdio in [Stdio::Output, Stdio::Terminal(TermSize { cols: 80, rows: 24 })] {
            for inside in both().await {
                held_before_its_exec(&inside, user, stdio, async |held| {
                    for process in held {
                        // Only the pipe that tells init of the exec, or of the command's end.
                        let [one] = &process.beyond_stdio()[..] else {
                            panic!("{:?} are open before the exec", process.beyond_stdio())
                        };
                        assert!(process.target(one).starts_with("pipe:"), "{}", process.target(one));
                    }
                })
                .await;
                inside.end().await;
            }
        }
    }
}
