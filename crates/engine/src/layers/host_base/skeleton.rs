//! The generated root of the host base: everything that is not a program tree of the host.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use cabana_sandbox::Result;
use rustix::fs::Timespec;

use super::{
    super::{
        WORKSPACE,
        accounts::{self, Account, Group, NOBODY, USER_ID, parse_group, parse_passwd},
        completion::{HOSTNAME, HOSTS},
        failed,
        store::{Sealed, Store},
        writer::{Meta, Writer},
    },
    PROGRAM_DIRS, etc,
};

const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\ngshadow: files\nhosts: files dns\nnetworks: files\n\
                        protocols: files\nservices: files\nethers: files\nrpc: files\n";

/// Who may become root by a password-less `sudo` is decided outside: where set-uid gains nothing, this says nothing.
const SUDOERS: &str =
    "Defaults env_reset, !fqdn\nroot ALL=(ALL:ALL) ALL\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n@includedir /etc/sudoers.d\n";

/// More indexes of packages than this are left out: `apt-get update` brings them.
const LISTS_CAP: u64 = 96 << 20;

pub(super) fn make(store: &Store, host: &Path) -> Result<Sealed> {
    let draft = store.draft()?;
    let mut writer = Writer::new(&draft.tree, store.ids());
    fill(host, &mut writer).map_err(failed("making the root of the host base"))?;
    writer.end().map_err(failed("making the root of the host base"))?;
    draft.seal()
}

fn fill(host: &Path, writer: &mut Writer<'_>) -> io::Result<()> {
    let accounts = HostAccounts::read(host);
    directories(writer)?;
    program_dirs(host, writer)?;
    homes(host, writer)?;
    etc::copy(host, writer)?;
    generated_etc(host, &accounts, writer)?;
    variable(host, &accounts, writer)
}

fn directories(writer: &mut Writer<'_>) -> io::Result<()> {
    for dir in ["usr", "dev", "run", "mnt", "media", "opt", "srv", "boot", "home", "etc", "var"] {
        writer.dir(dir, Meta::new(0o755))?;
    }
    for (dir, mode) in [("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777), ("root", 0o700), ("run/lock", 0o1777)] {
        writer.dir(dir, Meta::new(mode))?;
    }
    writer.dir(&WORKSPACE[1..], Meta::new(0o755).owned(USER_ID, USER_ID))
}

/// `/bin` and its like, as the host has them: links into `/usr`, or places for trees of their own.
fn program_dirs(host: &Path, writer: &mut Writer<'_>) -> io::Result<()> {
    for name in PROGRAM_DIRS {
        match fs::symlink_metadata(host.join(name)) {
            Ok(entry) if entry.is_symlink() => writer.link(name, fs::read_link(host.join(name))?)?,
            Ok(entry) if entry.is_dir() => writer.dir(name, Meta::new(0o755))?,
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn homes(host: &Path, writer: &mut Writer<'_>) -> io::Result<()> {
    let owned = |meta: Meta| meta.owned(USER_ID, USER_ID);
    writer.dir("home/user", owned(Meta::new(0o755)))?;
    let Some(entries) = if_there(fs::read_dir(host.join("etc/skel")))? else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let Some((mut file, meta)) = open_public(&entry.path())? else { continue };
        let name = entry.file_name();
        writer.file_from(&Path::new("home/user").join(&name), &mut file, owned(meta))?;
    }
    Ok(())
}

fn generated_etc(host: &Path, accounts: &HostAccounts, writer: &mut Writer<'_>) -> io::Result<()> {
    let shell = if host.join("bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let files = accounts::generate(&accounts.system, &accounts.groups, shell);
    let shadow = accounts.gid("shadow");
    writer.file("etc/passwd", files.passwd, Meta::new(0o644))?;
    writer.file("etc/group", files.group, Meta::new(0o644))?;
    writer.file("etc/shadow", files.shadow, Meta::new(0o640).owned(0, shadow))?;
    writer.file("etc/gshadow", files.gshadow, Meta::new(0o640).owned(0, shadow))?;
    writer.file("etc/nsswitch.conf", NSSWITCH, Meta::new(0o644))?;
    writer.file("etc/hostname", HOSTNAME, Meta::new(0o644))?;
    writer.file("etc/hosts", HOSTS, Meta::new(0o644))?;
    writer.file("etc/timezone", "Etc/UTC\n", Meta::new(0o644))?;
    writer.link("etc/localtime", "/usr/share/zoneinfo/Etc/UTC")?;
    writer.link("etc/mtab", "/proc/self/mounts")?;
    for empty in ["environment", "fstab", "subuid", "subgid"] {
        writer.file(&format!("etc/{empty}"), "", Meta::new(0o644))?; // asked for by pam, mount and useradd
    }
    for dir in ["profile.d", "opt", "init.d", "sudoers.d", "apt/auth.conf.d"] {
        writer.dir(&format!("etc/{dir}"), Meta::new(0o755))?;
    }
    writer.file("etc/sudoers", SUDOERS, Meta::new(0o440))
}

/// What the package tools need so that they are right inside: their databases as a copy, and places to work in.
fn variable(host: &Path, accounts: &HostAccounts, writer: &mut Writer<'_>) -> io::Result<()> {
    for dir in [
        "backups",
        "cache/adduser",
        "cache/debconf",
        "lib/misc",
        "log/apt",
        "opt",
        "spool",
        "cache/apt/archives",
        "lib/apt/periodic",
    ] {
        writer.dir(&format!("var/{dir}"), Meta::new(0o755))?;
    }
    for copied in ["dpkg", "pam", "ucf", "python", "sgml-base", "xml-core", "systemd/deb-systemd-helper-enabled"] {
        copy_public(host, &Path::new("var/lib").join(copied), writer, &mut |_| true)?;
    }
    for copied in
        ["lib/apt/extended_states", "lib/shells.state", "cache/debconf/config.dat", "cache/debconf/templates.dat"]
    {
        copy_public(host, &Path::new("var").join(copied), writer, &mut |_| true)?;
    }
    copy_lists(host, writer)?;
    let apt = accounts.system.iter().find(|a| a.name == "_apt").map_or(0, |a| a.uid);
    for partial in
        ["cache/apt/archives/partial", "lib/apt/lists/partial", "lib/apt/lists/auxfiles", "lib/apt/mirrors/partial"]
    {
        writer.dir(&format!("var/{partial}"), Meta::new(0o700).owned(apt, 0))?;
    }
    writer.dir("var/cache/ldconfig", Meta::new(0o700))?;
    writer.dir("var/tmp", Meta::new(0o1777))?;
    writer.dir("var/local", Meta::new(0o2775).owned(0, accounts.gid("staff")))?;
    writer.dir("var/mail", Meta::new(0o2775).owned(0, accounts.gid("mail")))?;
    writer.link("var/spool/mail", "../mail")?;
    writer.link("var/lock", "/run/lock")?;
    writer.link("var/run", "/run")
}

fn copy_lists(host: &Path, writer: &mut Writer<'_>) -> io::Result<()> {
    writer.dir("var/lib/apt/lists", Meta::new(0o755))?;
    let lists = Path::new("var/lib/apt/lists");
    let Some(entries) = if_there(fs::read_dir(host.join(lists)))? else { return Ok(()) };
    let sizes = entries
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|file| file.len());
    if sizes.sum::<u64>() > LISTS_CAP {
        return Ok(());
    }
    copy_public(host, lists, writer, &mut |file| file.file_name().is_none_or(|name| name != "lock"))
}

/// Copies what everybody on the host may read: files, links as they are, and directories with all that. It belongs to
/// root inside, whoever has it outside.
pub(super) fn copy_public(
    host: &Path,
    path: &Path,
    writer: &mut Writer<'_>,
    keep: &mut dyn FnMut(&Path) -> bool,
) -> io::Result<()> {
    let from = host.join(path);
    let Some(entry) = if_there(fs::symlink_metadata(&from))? else { return Ok(()) };
    if entry.is_symlink() {
        return writer.link_at(path, &fs::read_link(&from)?, meta_of(&entry));
    }
    if entry.is_dir() && entry.mode() & 0o005 == 0o005 {
        writer.dir_at(path, meta_of(&entry))?;
        let Some(entries) = if_there(fs::read_dir(&from))? else { return Ok(()) };
        for child in entries {
            copy_public(host, &path.join(child?.file_name()), writer, keep)?;
        }
        return Ok(());
    }
    match open_public(&from)? {
        Some((mut file, meta)) if keep(&from) => writer.file_from(path, &mut file, meta),
        _ => Ok(()),
    }
}

/// A regular file that everybody may read, or nothing.
pub(super) fn open_public(path: &Path) -> io::Result<Option<(File, Meta)>> {
    // A pipe is not waited for; a link put there meanwhile is not followed.
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match open {
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) || e.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
        open => open,
    };
    let Some(file) = if_there(file)? else { return Ok(None) };
    let entry = file.metadata()?;
    let public = entry.is_file() && entry.mode() & 0o004 != 0;
    Ok(public.then(|| (file, meta_of(&entry))))
}

/// The host's mode without set-uid and set-gid, and its time.
fn meta_of(entry: &fs::Metadata) -> Meta {
    Meta::new(entry.mode() & 0o1777).at(Timespec { tv_sec: entry.mtime(), tv_nsec: entry.mtime_nsec() })
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        other => other.map(Some),
    }
}

struct HostAccounts {
    system: Vec<Account>,
    groups: Vec<Group>,
}

impl HostAccounts {
    fn read(host: &Path) -> Self {
        let text = |name: &str| fs::read_to_string(host.join("etc").join(name)).unwrap_or_default();
        Self { system: parse_passwd(&text("passwd")), groups: parse_group(&text("group")) }
    }

    /// Of a group that the skeleton has too; else root's.
    fn gid(&self, name: &str) -> u32 {
        self.groups.iter().find(|g| g.name == name && (g.gid < USER_ID || g.gid == NOBODY)).map_or(0, |g| g.gid)
    }
}
