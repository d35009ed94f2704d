//! The thin layer on top of a template's tree: what every sandbox needs and the tree lacks.
//!
//! Mount points, a user to work as with a home, `/workspace`, and the files that name the machine. What the tree has is
//! left as it is. A directory of this layer covers the metadata of the same directory below, so each is made with the
//! metadata of the one that it covers.

use std::{
    io,
    path::{Path, PathBuf},
};

use cabana_guest::IdMap;
use cabana_sandbox::{Defaults, Error, Overrides, Result, SandboxPath, User};
use rustix::fs::FileType;

use super::{
    WORKSPACE,
    accounts::{Account, NOBODY, USER, USER_ID, parse_group, parse_passwd, with_line},
    defaults, failed,
    image::ImageForm,
    rooted::{Rooted, kind},
    writer::{Meta, Writer},
};
use crate::identity::COUNT;

pub(crate) const HOSTNAME: &str = "cabana\n";
pub(crate) const HOSTS: &str = "127.0.0.1 localhost cabana\n::1 localhost ip6-localhost ip6-loopback\n";

/// Why a tree cannot be a template, if it cannot.
pub(crate) fn objection(tree: &Rooted<'_>) -> Result<Option<String>> {
    find_objection(tree).map_err(failed("looking at the template"))
}

fn find_objection(tree: &Rooted<'_>) -> io::Result<Option<String>> {
    if let Some(source) = image_source(tree)? {
        let instead = format!("give it as --from {source}:PATH, or export a container of it");
        return Ok(Some(format!("it is an image in layers, not a root file system: {instead}")));
    }
    if !tree.is_dir("/etc")? {
        return Ok(Some("it has no directory /etc: it is no root file system".into()));
    }
    let shell = tree.stat("/bin/sh")?.filter(|stat| kind(stat) == FileType::RegularFile && stat.st_mode & 0o111 != 0);
    Ok(shell.is_none().then(|| "it has no program /bin/sh: a sandbox needs a shell".into()))
}

/// As what an image that was given as it lies there would be taken.
fn image_source(tree: &Rooted<'_>) -> io::Result<Option<ImageForm>> {
    if tree.entry("/oci-layout")?.is_some() {
        return Ok(Some(ImageForm::Oci));
    }
    let saved = tree.entry("/manifest.json")?.is_some() && tree.entry("/etc")?.is_none();
    Ok(saved.then_some(ImageForm::DockerArchive))
}

/// Writes the layer into `into` and says what commands get by default.
pub(crate) fn complete(name: &str, tree: &Rooted<'_>, into: &Path, ids: IdMap, wishes: &Overrides) -> Result<Defaults> {
    let io = failed("completing the template");
    let mut layer = Completion { tree, writer: Writer::new(into, ids) };
    let passwd = layer.passwd().map_err(&io)?;
    let mut accounts = parse_passwd(&passwd);
    if !accounts.iter().any(|a| a.name == USER || a.uid == USER_ID) {
        layer.add_user(&passwd).map_err(&io)?;
        accounts.push(new_user());
    }
    let user = choose(&accounts, wishes.user.as_ref()).ok_or_else(|| Error::BadTemplate {
        name: name.into(),
        why: format!("its /etc/passwd has no user {}", wishes.user.as_ref().map_or(USER, User::as_str)),
    })?;
    if let Some(id) = [user.uid, user.gid].into_iter().find(|id| *id >= COUNT) {
        let why = format!("its user {} has the id {id}, and a sandbox has the ids 0 to {}", user.name, COUNT - 1);
        return Err(Error::BadTemplate { name: name.into(), why });
    }
    let workdir = wishes
        .workdir
        .clone()
        .or_else(|| SandboxPath::new(user.home.as_bytes()).ok())
        .unwrap_or_else(SandboxPath::root);
    layer.machine().map_err(&io)?;
    layer.owned(WORKSPACE, &user).map_err(&io)?;
    layer.owned(&user.home, &user).map_err(&io)?;
    layer.owned(&workdir.to_string(), &user).map_err(&io)?;
    layer.writer.end().map_err(&io)?;
    let mut defaults = defaults(User::new(user.name)?, workdir);
    defaults.env.extend(wishes.env.clone());
    Ok(defaults)
}

fn new_user() -> Account {
    Account { name: USER.into(), uid: USER_ID, gid: USER_ID, home: "/home/user".into() }
}

/// The wished one, by name or by number; else `user`; else whoever has its number.
fn choose(accounts: &[Account], wish: Option<&User>) -> Option<Account> {
    let named = |name: &str| accounts.iter().find(|a| a.name == name);
    let numbered = |uid: u32| accounts.iter().find(|a| a.uid == uid);
    let Some(wish) = wish.map(User::as_str) else { return named(USER).or_else(|| numbered(USER_ID)).cloned() };
    if let Some(account) = named(wish) {
        return Some(account.clone());
    }
    let uid = wish.parse().ok()?;
    let unnamed = || Account { name: wish.into(), uid, gid: uid, home: "/".into() };
    Some(numbered(uid).cloned().unwrap_or_else(unnamed))
}

struct Completion<'a> {
    tree: &'a Rooted<'a>,
    writer: Writer<'a>,
}

impl Completion<'_> {
    fn shell(&self) -> io::Result<&'static str> {
        Ok(if self.tree.stat("/bin/bash")?.is_some() { "/bin/bash" } else { "/bin/sh" })
    }

    /// The tree's accounts; where it has none, those that every system has.
    fn passwd(&self) -> io::Result<String> {
        let shell = self.shell()?;
        let bare = || format!("root:x:0:0::/root:{shell}\nnobody:x:{NOBODY}:{NOBODY}::/nonexistent:/bin/false\n");
        Ok(self.tree.text("/etc/passwd")?.unwrap_or_else(bare))
    }

    fn add_user(&mut self, passwd: &str) -> io::Result<()> {
        let line = format!("{USER}:x:{USER_ID}:{USER_ID}::/home/user:{}", self.shell()?);
        self.account_file("/etc/passwd", &with_line(passwd, &line), 0o644)?;

        let group = self.tree.text("/etc/group")?.unwrap_or_else(|| format!("root:x:0:\nnogroup:x:{NOBODY}:\n"));
        if !parse_group(&group).iter().any(|g| g.name == USER || g.gid == USER_ID) {
            self.account_file("/etc/group", &with_line(&group, &format!("{USER}:x:{USER_ID}:")), 0o644)?;
        }
        // Where passwords are shadowed an account without a line there is broken for pam: the line is a locked one.
        if let Some(shadow) = self.tree.text("/etc/shadow")? {
            self.account_file("/etc/shadow", &with_line(&shadow, &format!("{USER}:*:19000:0:99999:7:::")), 0o640)?;
        }
        Ok(())
    }

    fn machine(&mut self) -> io::Result<()> {
        for (mount_point, mode) in
            [("/proc", 0o555), ("/sys", 0o555), ("/dev", 0o755), ("/run", 0o755), ("/tmp", 0o1777)]
        {
            // Mounts go onto it, so it is a directory and no link; and /tmp is everybody's.
            let there = self.tree.entry(mount_point)?.filter(|stat| kind(stat) == FileType::Directory);
            if there.is_none_or(|stat| mount_point == "/tmp" && stat.st_mode & 0o7777 != mode) {
                self.writer.dir(&mount_point[1..], Meta::new(mode))?;
            }
        }
        for (file, content) in [("/etc/hostname", HOSTNAME), ("/etc/hosts", HOSTS)] {
            if self.tree.entry(file)?.is_none() {
                let at = self.place(Path::new(file))?;
                self.write(&at, content, Meta::new(0o644))?;
            }
        }
        Ok(())
    }

    /// A directory of the user's own, unless there is something already.
    fn owned(&mut self, path: &str, user: &Account) -> io::Result<()> {
        if SandboxPath::new(path).is_err() || self.tree.is_dir(path)? {
            return Ok(());
        }
        let at = self.place(Path::new(path))?;
        if self.writer.has_dir(&at) {
            return Ok(());
        }
        self.writer.dir_at(&at, Meta::new(0o755).owned(user.uid, user.gid))
    }

    /// Replaces an account file, with the owner and mode that it has.
    fn account_file(&mut self, path: &str, content: &str, mode: u32) -> io::Result<()> {
        let there = self.tree.stat(path)?.map(|stat| self.tree.meta(&stat));
        let at = self.place(Path::new(path))?;
        self.write(&at, content, there.unwrap_or(Meta::new(mode)))
    }

    fn write(&mut self, at: &Path, content: &str, meta: Meta) -> io::Result<()> {
        self.writer.file(&at.to_string_lossy(), content, meta)
    }

    /// Where a path belongs in this layer: behind the tree's links to directories, or this layer would cover a link with
    /// an empty directory. Parents that the tree has are made here as they are there.
    fn place(&mut self, path: &Path) -> io::Result<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(PathBuf::new()) };
        let real = match self.tree.real_dir(&parent.to_string_lossy())? {
            Some(real) => real,
            None => self.place(parent)?,
        };
        self.mirror(&real)?;
        Ok(real.join(name))
    }

    fn mirror(&mut self, real: &Path) -> io::Result<()> {
        let dirs: Vec<_> = real.ancestors().filter(|dir| *dir != Path::new("")).collect();
        for dir in
            dirs.into_iter().rev().filter(|dir| !self.writer.has_dir(dir)).map(Path::to_path_buf).collect::<Vec<_>>()
        {
            let there = self.tree.entry(&dir.to_string_lossy())?;
            let meta = there
                .filter(|stat| kind(stat) == FileType::Directory)
                .map_or(Meta::new(0o755), |stat| self.tree.meta(&stat));
            self.writer.dir_at(&dir, meta)?;
        }
        Ok(())
    }
}
