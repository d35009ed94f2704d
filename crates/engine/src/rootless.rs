//! Running as an ordinary user: the way into a user namespace of our own, and what was reached.
//!
//! As root there is nothing to do. Everybody else becomes uid 0 of a new user namespace, in place: the process keeps its
//! pid, its terminal and its descriptors. With `newuidmap` and a line in `/etc/subuid` that namespace has 65,537 ids, one
//! for us and 65,536 for all our sandboxes together; without, it has one. What was reached is read back from the kernel
//! ([`mode`]), never from what was tried.

#![allow(unsafe_code)] // unshare and fork have no safe form

use std::{
    ffi::CStr,
    fs,
    io::{self, Read, Write},
    mem::MaybeUninit,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    ptr,
};

use cabana_model::Code;
use rustix::process::Pid;
use serde::Serialize;

use crate::host::Obstacle;

/// How many ids a sandbox has.
const RANGE: u64 = 65_536;

const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SYS_ADMIN: u32 = 21;

/// Whose ids sandboxes can be given here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Root of the machine: each live sandbox has a range of its own.
    Root,
    /// Uid 0 of a smaller namespace: the ids 1..=65536 in it serve all sandboxes.
    Shared,
    /// One id: no second user inside, no chown.
    Single,
}

/// The host forbids a step of the way into a user namespace.
#[derive(Debug, thiserror::Error)]
#[error("this host does not let us make a user namespace of our own: {step} failed: {cause}{}", Because(.obstacle))]
pub struct Refused {
    pub step: &'static str,
    #[source]
    pub cause: io::Error,
    /// The setting of the host that is known to forbid it, if one was found.
    pub obstacle: Option<Obstacle>,
}

impl Refused {
    fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self { step, cause, obstacle: Obstacle::find() }
    }

    pub fn code(&self) -> Code {
        Code::HostUnsupported
    }
}

struct Because<'a>(&'a Option<Obstacle>);

impl std::fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(obstacle) => write!(f, " ({})", obstacle.what()),
            None => Ok(()),
        }
    }
}

/// What this process has now.
pub fn mode() -> io::Result<Mode> {
    Ok(mode_of(&fs::read_to_string("/proc/self/uid_map")?))
}

/// Call it first in `main`: the kernel moves no process with threads into a user namespace. Does nothing for root.
pub fn enter_user_namespace() -> Result<(), Refused> {
    let who = Who::now().map_err(Refused::at("reading /proc/self/status"))?;
    if who.rules_here() {
        return Ok(());
    }
    single_thread().map_err(Refused::at("entering a user namespace"))?;
    // newuidmap looks at who owns our files in /proc: root, for a process that may not be dumped.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
        .map_err(|e| Refused::at("preparing the id map")(e.into()))?;
    let mapper = Mapper::start(&Plan::of(&who)).map_err(Refused::at("starting the id mapper"))?;
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).map_err(Refused::at("making a user namespace"))?;
    match mapper.map() {
        Mapped::Done => {}
        Mapped::Nothing => map_only_ourselves(who.uid, who.gid).map_err(Refused::at("writing the id map"))?,
        Mapped::Half(why) => return Err(Refused::at("newgidmap")(io::Error::other(why))),
    }
    // No mount of ours may travel back to the host, nor one of the host's to us.
    use rustix::mount::{MountPropagationFlags, mount_change};
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| Refused::at("making the mounts private")(e.into()))
}

/// What entering will reach, without entering.
pub(crate) fn outlook() -> io::Result<(Mode, Ids)> {
    let who = Who::now()?;
    let ids = Ids::of(&who);
    let mode = match Plan::of(&who) {
        _ if who.rules_here() => who.mode,
        Plan::Helpers { .. } | Plan::Directly => Mode::Shared,
        Plan::OnlyOurselves => Mode::Single,
    };
    Ok((mode, ids))
}

/// What an ordinary user needs for a range of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ids {
    pub user: Option<String>,
    pub newuidmap: Option<PathBuf>,
    pub newgidmap: Option<PathBuf>,
    pub subuid: Option<u32>,
    pub subgid: Option<u32>,
    /// Set-uid programs gain nothing, so neither does newuidmap.
    pub no_new_privs: bool,
}

impl Ids {
    fn of(who: &Who) -> Self {
        let first = |file| {
            let text = fs::read_to_string(file).ok()?;
            first_of_range(&text, who.name.as_deref(), who.uid)
        };
        Self {
            user: who.name.clone(),
            newuidmap: helper("newuidmap"),
            newgidmap: helper("newgidmap"),
            subuid: first("/etc/subuid"),
            subgid: first("/etc/subgid"),
            no_new_privs: who.no_new_privs,
        }
    }
}

struct Who {
    uid: u32,
    gid: u32,
    /// Of the namespace that we are in now.
    mode: Mode,
    name: Option<String>,
    capabilities: u64,
    no_new_privs: bool,
}

impl Who {
    fn now() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
        let uid = rustix::process::geteuid().as_raw();
        Ok(Self {
            uid,
            gid: rustix::process::getegid().as_raw(),
            mode: mode()?,
            name: name_of(uid),
            capabilities: u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0),
            no_new_privs: field("NoNewPrivs:") == "1",
        })
    }

    fn has(&self, capability: u32) -> bool {
        self.capabilities & (1 << capability) != 0
    }

    /// Uid 0 is not enough: in a container it has no right to mount.
    fn rules_here(&self) -> bool {
        self.uid == 0 && self.has(CAP_SYS_ADMIN)
    }
}

/// Who writes the id map, and which.
enum Plan {
    Helpers {
        newuidmap: PathBuf,
        newgidmap: PathBuf,
        uids: String,
        gids: String,
    },
    /// Root of a container, without the right to mount but with the right to map.
    Directly,
    OnlyOurselves,
}

impl Plan {
    fn of(who: &Who) -> Self {
        if who.uid == 0 && who.has(CAP_SETUID) && who.has(CAP_SETGID) && who.mode != Mode::Single {
            return Self::Directly;
        }
        match Ids::of(who) {
            // newuidmap itself wants to know its caller by name.
            Ids {
                user: Some(_),
                newuidmap: Some(newuidmap),
                newgidmap: Some(newgidmap),
                subuid: Some(uids),
                subgid: Some(gids),
                no_new_privs: false,
                ..
            } => Self::Helpers {
                newuidmap,
                newgidmap,
                uids: format!("0 {} 1 1 {uids} {RANGE}", who.uid),
                gids: format!("0 {} 1 1 {gids} {RANGE}", who.gid),
            },
            _ => Self::OnlyOurselves,
        }
    }
}

/// A child that stays outside: only from there a map of more than one id can be written.
struct Mapper(Option<Channel>);

struct Channel {
    go: io::PipeWriter,
    answer: io::PipeReader,
    child: Pid,
}

#[derive(Debug, PartialEq, Eq)]
enum Mapped {
    Done,
    /// No map at all: a smaller one can still be written.
    Nothing,
    /// Uids, but no gids: the kernel lets neither be written twice.
    Half(String),
}

impl Mapper {
    fn start(plan: &Plan) -> io::Result<Self> {
        if matches!(plan, Plan::OnlyOurselves) {
            return Ok(Self(None));
        }
        let (mut asked, go) = io::pipe()?;
        let (answer, mut say) = io::pipe()?;
        let parent = std::process::id();
        // SAFETY: the caller made sure that this process has one thread, so the child may do all that the parent may.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(go); // or the end of the parent would never be seen
                drop(answer);
                let mut byte = [0];
                if asked.read_exact(&mut byte).is_ok() {
                    let said = match write_maps(plan, parent) {
                        Mapped::Done => "done".to_owned(),
                        Mapped::Nothing => "nothing".to_owned(),
                        Mapped::Half(why) => why,
                    };
                    let _ = say.write_all(said.as_bytes());
                }
                // SAFETY: ends the child at once, without the exit handlers that belong to the parent.
                unsafe { libc::_exit(0) }
            }
            child => {
                let child = Pid::from_raw(child).ok_or_else(|| io::Error::other("fork gave no pid"))?;
                Ok(Self(Some(Channel { go, answer, child })))
            }
        }
    }

    /// Once this process is in its new namespace.
    fn map(self) -> Mapped {
        let Some(Channel { mut go, mut answer, child }) = self.0 else { return Mapped::Nothing };
        let mut said = String::new();
        let heard = go.write_all(b"!").and_then(|()| answer.read_to_string(&mut said));
        let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        match said.as_str() {
            "done" => Mapped::Done,
            "nothing" => Mapped::Nothing,
            _ if heard.is_err() => Mapped::Nothing,
            why => Mapped::Half(why.to_owned()),
        }
    }
}

/// In the child, of the parent.
fn write_maps(plan: &Plan, parent: u32) -> Mapped {
    match plan {
        Plan::OnlyOurselves => Mapped::Nothing,
        Plan::Helpers { newuidmap, newgidmap, uids, gids } => match call(newuidmap, parent, uids) {
            Err(_) => Mapped::Nothing,
            Ok(()) => call(newgidmap, parent, gids).map_or_else(Mapped::Half, |()| Mapped::Done),
        },
        Plan::Directly => {
            let map = format!("0 0 {}\n", RANGE + 1);
            match fs::write(format!("/proc/{parent}/uid_map"), &map) {
                Err(_) => Mapped::Nothing,
                Ok(()) => match fs::write(format!("/proc/{parent}/gid_map"), &map) {
                    Ok(()) => Mapped::Done,
                    Err(error) => Mapped::Half(error.to_string()),
                },
            }
        }
    }
}

fn call(helper: &Path, pid: u32, map: &str) -> Result<(), String> {
    let mut command = Command::new(helper);
    command.arg(pid.to_string()).args(map.split(' ')).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// One id is what everybody may map. The kernel wants setgroups given up first: a group that was dropped could
/// otherwise be the one that a file denies something to.
fn map_only_ourselves(uid: u32, gid: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

fn unshare(namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointer and touches no memory or descriptor of this process.
    match unsafe { libc::unshare(namespaces) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn single_thread() -> io::Result<()> {
    match fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("this process has several threads: do it first in main")),
    }
}

/// The whole of a machine's ids, a range beside our own, or less.
fn mode_of(uid_map: &str) -> Mode {
    let mut extents: Vec<[u64; 3]> = uid_map
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(|n| n.parse().ok());
            Some([numbers.next()??, numbers.next()??, numbers.next()??])
        })
        .collect();
    extents.sort_unstable();
    if extents == [[0, 0, u64::from(u32::MAX)]] {
        return Mode::Root;
    }
    let without_gap =
        extents.iter().fold(0, |next, [inside, _, count]| if *inside == next { next + count } else { next });
    if without_gap > RANGE { Mode::Shared } else { Mode::Single }
}

/// The first id of the first range that is large enough: `name:first:count` or `uid:first:count`.
fn first_of_range(subids: &str, name: Option<&str>, uid: u32) -> Option<u32> {
    let uid = uid.to_string();
    subids.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let whose = fields.next()?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse::<u64>().ok()?);
        (count >= RANGE && (whose == uid || Some(whose) == name)).then_some(first)
    })
}

/// As the system's own look-up says it, which asks more than `/etc/passwd`.
fn name_of(uid: u32) -> Option<String> {
    let mut buffer = vec![0; 16 * 1024];
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut found = ptr::null_mut();
    // SAFETY: every pointer is to a live value of this function, and the length is the buffer's own.
    unsafe { libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    if found.is_null() {
        return None;
    }
    // SAFETY: a found entry was written whole, and its name is a C string within the buffer, which is still alive.
    let name = unsafe { CStr::from_ptr((*found).pw_name) };
    Some(name.to_string_lossy().into_owned())
}

fn helper(name: &str) -> Option<PathBuf> {
    let runs = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    ["/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin"].iter().map(|dir| Path::new(dir).join(name)).find(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_read_from_the_map() {
        assert_eq!(mode_of("         0          0 4294967295\n"), Mode::Root);
        assert_eq!(mode_of("0 1000 1\n1 100000 65536\n"), Mode::Shared);
        assert_eq!(mode_of("1 100000 65536\n0 1000 1\n"), Mode::Shared);
        assert_eq!(mode_of("0 1000 1\n"), Mode::Single);
        assert_eq!(mode_of("0 100000 65536\n"), Mode::Single, "one id too few for a sandbox beside ourselves");
        assert_eq!(mode_of("0 1000 1\n5 100000 65536\n"), Mode::Single, "with a gap");
        assert_eq!(mode_of(""), Mode::Single);
    }

    #[test]
    fn a_range_is_found_by_name_or_number_if_it_is_large_enough() {
        let text = "# comment\nbob:1:10\nbob:100000:65536\n12345:300000:65536\nbroken:x:y\n";
        assert_eq!(first_of_range(text, Some("bob"), 1000), Some(100_000));
        assert_eq!(first_of_range(text, None, 12345), Some(300_000));
        assert_eq!(first_of_range(text, Some("eve"), 1001), None);
        assert_eq!(first_of_range(text, Some("broken"), 1002), None);
    }

    #[test]
    fn a_name_is_looked_up_by_number() {
        assert_eq!(name_of(0).as_deref(), Some("root"));
        assert_eq!(name_of(4_000_000_000), None);
    }
}
