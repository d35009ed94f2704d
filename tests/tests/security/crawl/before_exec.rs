//! What the processes of a sandbox have that run no program of it: init, and a command between its clone and its exec. No
//! program inside can say it of itself then, so the host looks, while a lease on the program holds the exec up.

use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use cabana_sandbox::{ExecSpec, Lifetime, SandboxPath, SandboxSpec};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat};

use super::{
    list::{Difference, List, is_rewriting, rewrite},
    normalise::whose,
};
use crate::{
    host_process::HostProcess,
    inside::{Inside, named, passing, soon, until},
    lease::Lease,
};

/// The call in which the kernel waits for the lease.
#[cfg(target_arch = "x86_64")]
const EXECVE: &str = "59 ";
#[cfg(target_arch = "aarch64")]
const EXECVE: &str = "221 ";

impl HostProcess {
    /// Whether it waits in the kernel for its program to be opened.
    fn is_in_exec(&self) -> bool {
        self.read("syscall").starts_with(EXECVE)
    }

    /// Everything that it has open or stands in, and who it is. Numbers of descriptors are not said: they differ.
    fn describe(&self) -> BTreeSet<String> {
        let mut things = BTreeSet::new();
        for entry in fs::read_dir(self.path("fd")).into_iter().flatten().flatten() {
            let number = entry.file_name().to_string_lossy().into_owned();
            things.extend(self.descriptor(&number));
        }
        for place in ["cwd", "root"] {
            things.insert(format!("{place} {} up={}", self.link(place), self.way_up(place)));
        }
        things.insert(format!("exe {}", self.link("exe")));
        for field in ["NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "SigIgn"] {
            things.insert(format!("{field} {}", self.status(field)));
        }
        // Its ids lie in a range of its own; what matters is which of them.
        let inner = |id: &str| id.parse::<u32>().map_or_else(|_| id.to_owned(), |id| (id % 65_536).to_string());
        for field in ["Uid", "Gid", "Groups"] {
            let ids: Vec<String> = self.status(field).split_whitespace().map(inner).collect();
            things.insert(format!("{field} {}", ids.join(" ")).trim_end().to_owned());
        }
        for entry in fs::read_dir(self.path("ns")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let which = self.link(&format!("ns/{name}"));
            things.insert(format!("namespace {name} {}", whose(&name, &which)));
        }
        things
    }

    fn descriptor(&self, number: &str) -> Option<String> {
        let info = self.read(&format!("fdinfo/{number}"));
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = OFlags::from_bits_retain(u32::from_str_radix(flags.trim(), 8).ok()?);
        let target: String = self.link(&format!("fd/{number}"));
        let target: String = target.chars().filter(|character| !character.is_ascii_digit()).collect();
        let access = match flags {
            flags if flags.contains(OFlags::PATH) => "path",
            flags if flags.contains(OFlags::RDWR) => "read-write",
            flags if flags.contains(OFlags::WRONLY) => "write",
            _ => "read",
        };
        let standard = if number.parse::<u32>().is_ok_and(|number| number < 3) { "stdio" } else { "fd" };
        let cloexec = if flags.contains(OFlags::CLOEXEC) { " cloexec" } else { "" };
        let place = format!("fd/{number}");
        let directory = fs::metadata(self.path(&place)).is_ok_and(|about| about.is_dir());
        let up = if directory { format!(" up={}", self.way_up(&place)) } else { String::new() };
        Some(format!("{standard} {target} {access}{cloexec}{up}"))
    }

    /// Where `..` from there ends: at the sandbox's root, at the top of a tree that is in no namespace, or at the host's.
    fn way_up(&self, place: &str) -> &'static str {
        let top = top_of(&self.path(place));
        let same = |one: &Stat, other: &Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
        let stat = |path: &Path| open_dir(path).and_then(|dir| fstat(&dir).ok());
        match (top, stat(&self.path("root")), stat(Path::new("/"))) {
            (Some(top), _, Some(host)) if same(&top, &host) => "HOST",
            (Some(top), Some(root), _) if same(&top, &root) => "root",
            (Some(_), _, _) => "detached",
            (None, _, _) => "closed",
        }
    }
}

fn open_dir(path: &Path) -> Option<OwnedFd> {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn top_of(path: &Path) -> Option<Stat> {
    let mut here = open_dir(path)?;
    loop {
        let about = fstat(&here).ok()?;
        assert_eq!(FileType::from_raw_mode(about.st_mode), FileType::Directory);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = openat(here.as_fd(), c"..", flags, Mode::empty()).ok()?;
        let next = fstat(&above).ok()?;
        if (next.st_dev, next.st_ino) == (about.st_dev, about.st_ino) {
            return Some(about);
        }
        here = above;
    }
}

/// What init and a held-up command of this user have.
async fn look(inside: Inside, user: &str) -> BTreeSet<String> {
    let make = "cp /bin/true /tmp/held && chmod 755 /tmp/held";
    inside.command(user, ExecSpec::shell(make, SandboxPath::root())).await.ok();
    let mut lease = Lease::on(&inside, &["/tmp/held"]).await;
    let mut held = ExecSpec::argv(["/tmp/held"], SandboxPath::root());
    held.user = Some(named(user));
    let start = inside.sandbox.exec(held);
    let mut things = BTreeSet::new();
    tokio::select! {
        biased;
        () = async {
            let ours = async || {
                let all = HostProcess::all_of(&inside).await;
                all.into_iter().filter(HostProcess::is_ours).collect::<Vec<_>>()
            };
            // From when the lease is asked for, the kernel waits for it, and does nothing else before.
            soon("the exec asks for the lease", lease.asked()).await;
            // Who it is, is remembered: the kernel may wake it while it waits, and for that moment it is in no call.
            let mut starting = None;
            until("the exec is held up", async || {
                starting = ours().await.into_iter().find(HostProcess::is_in_exec);
                starting.is_some()
            })
            .await;
            let starting = starting.map(|process| (process.0, process.status("PPid").trim().parse::<u32>().ok()));
            let (starting, parent) = starting.expect("it was found");
            let who = |process: &HostProcess| match process.is_init() {
                true => "init",
                false if process.0 == starting => "starting",
                false if Some(process.0) == parent => "supervisor",
                false => "other",
            };
            // Some of init's children close something of an earlier command and end. No other is there for longer.
            let mut looked_at = Vec::new();
            until("others have ended", async || {
                looked_at = ours().await;
                looked_at.iter().all(|process| who(process) != "other")
            })
            .await;
            for process in looked_at {
                let who = who(&process);
                things.extend(process.describe().into_iter().map(|thing| format!("{who} {thing}")));
            }
        } => {}
        started = start => panic!("it was not held up: {:?}", started.map(|process| process.pid)),
    }
    soon("the end of the sandbox", inside.end()).await;
    things
}

#[tokio::test]
async fn everything_that_init_and_a_starting_command_have_is_on_the_list() {
    let mut list = List::open("before-exec.txt");
    let mut found = BTreeSet::new();
    for user in ["root", "user"] {
        let persistent = SandboxSpec { lifetime: Lifetime::Persistent, ..passing() };
        found.extend(look(Inside::new().await, user).await);
        found.extend(look(Inside::with(persistent).await, user).await);
        found.extend(look(Inside::without_cgroups().await, user).await);
    }
    for who in ["init ", "starting ", "supervisor "] {
        assert!(found.iter().any(|thing| thing.starts_with(who)), "{who}was looked at: {found:?}");
    }
    if is_rewriting() {
        rewrite(&mut list, &mut [(&found, &mut List::open("none"))]);
        list.write();
    }
    Difference::between(&found, &[&list]).assert_empty("init, or a command before its exec,");
}

#[test]
fn a_process_of_the_host_has_what_is_on_no_list() {
    let _root = fs::File::open("/").unwrap();
    let found: BTreeSet<String> =
        HostProcess(std::process::id()).describe().into_iter().map(|thing| format!("starting {thing}")).collect();
    let new = Difference::between(&found, &[&List::open("before-exec.txt")]).new;
    for begin in
        ["starting fd / read cloexec up=HOST", "starting cwd ", "starting namespace mnt host", "starting Seccomp 0"]
    {
        assert!(new.iter().any(|thing| thing.starts_with(begin)), "{begin}: {new:?}");
    }
}
