//! Inodes in memory: what there is, and each change of it.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use cabana_sandbox::{Change, Error, FileInfo, Kind, Limits, Link, Result, SandboxPath, User};

use super::{
    Fault,
    resolve::{Last, Spot},
    watch::Watcher,
};

pub(super) type Ino = u64;
pub(super) const ROOT: Ino = 1;

const USERS: [(&str, u32); 3] = [("root", 0), ("user", 1000), ("nobody", 65534)];

/// A user's number; its group has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) uid: u32,
    /// Whether it has the rights of root.
    pub(super) rules: bool,
}

impl Who {
    pub(super) fn of(uid: u32) -> Self {
        Self { uid, rules: uid == 0 }
    }
}

pub(super) struct Fs {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    next: Ino,
    pub(super) watchers: Vec<Watcher>,
    pub(super) fault: Option<Fault>,
    pub(super) limits: Limits,
    /// The most that was ever there.
    peak: u64,
}

/// There are no hard links: each inode has one name in one directory.
#[derive(Clone)]
pub(super) struct Inode {
    pub(super) up: Ino,
    pub(super) name: Vec<u8>,
    pub(super) node: Node,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: SystemTime,
    pub(super) tags: BTreeMap<String, String>,
}

#[derive(Clone)]
pub(super) enum Node {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, Ino>),
    Link(Vec<u8>),
}

impl Fs {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        let mut fs = Self {
            inodes: BTreeMap::new(),
            next: ROOT,
            watchers: Vec::new(),
            fault: None,
            limits: Limits::NONE,
            peak: 0,
        };
        let root = Who::of(0);
        fs.insert(Inode::new(ROOT, b"", Node::Dir(BTreeMap::new()), 0o755, root));
        fs.add_dir(root, ROOT, b"etc", 0o755);
        fs.add_dir(root, ROOT, b"root", 0o700);
        fs.add_dir(root, ROOT, b"tmp", 0o1777);
        let home = fs.add_dir(root, ROOT, b"home", 0o755);
        fs.add_dir(Who::of(1000), home, b"user", 0o755);
        fs.fault = fault;
        fs
    }

    /// The same files, which nobody watches yet.
    pub(super) fn copy(&self) -> Self {
        Self { inodes: self.inodes.clone(), watchers: Vec::new(), ..*self }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(super) fn inode(&self, ino: Ino) -> &Inode {
        &self.inodes[&ino]
    }

    pub(super) fn change(&mut self, ino: Ino, change: Change, how: impl FnOnce(&mut Inode)) {
        let Some(inode) = self.inodes.get_mut(&ino) else { return };
        how(inode);
        let (dir, name) = (inode.up, inode.name.clone());
        self.tell(change, dir, &name);
    }

    fn insert(&mut self, inode: Inode) -> Ino {
        let ino = self.next;
        self.next += 1;
        self.inodes.insert(ino, inode);
        ino
    }

    fn add_dir(&mut self, who: Who, dir: Ino, name: &[u8], mode: u32) -> Ino {
        self.add(who, dir, name, Node::Dir(BTreeMap::new()), mode)
    }

    /// A new entry; the caller has checked that it may be there.
    pub(super) fn add(&mut self, who: Who, dir: Ino, name: &[u8], node: Node, mode: u32) -> Ino {
        let roots = self.has(Fault::FilesBelongToRoot) && matches!(node, Node::File(_));
        let ino = self.insert(Inode::new(dir, name, node, mode, if roots { Who::of(0) } else { who }));
        self.enter(dir, name, ino);
        self.tell(Change::Create, dir, name);
        ino
    }

    fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        if let Some(Inode { node: Node::Dir(entries), modified, .. }) = self.inodes.get_mut(&dir) {
            entries.insert(name.to_vec(), ino);
            *modified = now();
        }
    }

    fn leave(&mut self, dir: Ino, name: &[u8]) {
        if let Some(Inode { node: Node::Dir(entries), modified, .. }) = self.inodes.get_mut(&dir) {
            entries.remove(name);
            *modified = now();
        }
    }

    pub(super) fn is_dir(&self, ino: Ino) -> bool {
        matches!(self.inode(ino).node, Node::Dir(_))
    }

    pub(super) fn entries(&self, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
        match &self.inode(dir).node {
            Node::Dir(entries) => entries.iter().map(|(name, ino)| (name.clone(), *ino)).collect(),
            Node::File(_) | Node::Link(_) => Vec::new(),
        }
    }

    /// Whether entries of the directory may be made and removed.
    pub(super) fn check_dir(&self, who: Who, dir: Ino, path: &SandboxPath) -> Result<()> {
        if self.may(who, dir, 3) { Ok(()) } else { Err(Error::Denied(path.clone())) }
    }

    /// In a sticky directory only the owners of it and of the entry may take the entry away.
    fn check_take(&self, who: Who, spot: &Spot, ino: Ino, path: &SandboxPath) -> Result<()> {
        self.check_dir(who, spot.dir, path)?;
        let (dir, inode) = (self.inode(spot.dir), self.inode(ino));
        let mine = who.rules || who.uid == dir.uid || who.uid == inode.uid;
        let sticky = dir.mode & 0o1000 != 0 && !self.has(Fault::StickyIsIgnored);
        if sticky && !mine { Err(Error::Denied(path.clone())) } else { Ok(()) }
    }

    /// Takes one entry out of its directory.
    pub(super) fn take(&mut self, who: Who, spot: &Spot, ino: Ino, path: &SandboxPath) -> Result<()> {
        if ino == ROOT {
            return Err(Error::invalid("path", "the root cannot be removed"));
        }
        self.check_take(who, spot, ino, path)?;
        self.leave(spot.dir, &spot.name);
        self.inodes.remove(&ino);
        self.tell(Change::Remove, spot.dir, &spot.name);
        Ok(())
    }

    /// The tree, the innermost first. Links in it are entries, not ways.
    pub(super) fn take_tree(&mut self, who: Who, spot: &Spot, ino: Ino, path: &SandboxPath) -> Result<()> {
        let mut pending = vec![(spot.clone(), ino, false)];
        while let Some((spot, ino, emptied)) = pending.pop() {
            if self.is_dir(ino) && !emptied {
                let below = self.entries(ino);
                if !below.is_empty() && !self.may(who, ino, 7) {
                    return Err(Error::Denied(path.clone()));
                }
                pending.push((spot, ino, true));
                pending.extend(inside(ino, below));
                continue;
            }
            if let (Node::Link(_), true) = (&self.inode(ino).node, self.has(Fault::RemoveAllFollowsLinks)) {
                let target = self.path_of(ino).and_then(|link| self.find(who, &link, Last::Follow).ok());
                let below = target.map(|dir| (dir, self.entries(dir)));
                pending.extend(below.into_iter().flat_map(|(dir, entries)| inside(dir, entries)));
            }
            self.take(who, &spot, ino, path)?;
        }
        Ok(())
    }

    /// As rename(2).
    pub(super) fn rename(&mut self, who: Who, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let last = if self.has(Fault::RenameFollowsLinks) { Last::Follow } else { Last::Keep };
        let source = self.resolve(who, from, last)?;
        let ino = source.ino.ok_or_else(|| self.missing(from))?;
        let target = self.resolve(who, to, Last::Keep)?;
        if ino == ROOT || self.is_below(target.dir, ino) {
            if self.has(Fault::RenameIntoItselfLosesIt) {
                self.leave(source.dir, &source.name);
                return Ok(());
            }
            return Err(Error::invalid("path", "a directory cannot be moved into itself"));
        }
        self.check_take(who, &source, ino, from)?;
        self.check_dir(who, target.dir, to)?;
        if let Some(there) = target.ino {
            if there == ino {
                return Ok(());
            }
            self.check_replaced(ino, there, to)?;
            self.check_take(who, &target, there, to)?;
            self.leave(target.dir, &target.name);
            self.inodes.remove(&there);
        }
        if !self.has(Fault::RenameLeavesTheSource) {
            self.leave(source.dir, &source.name);
        }
        self.enter(target.dir, &target.name, ino);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            (inode.up, inode.name) = (target.dir, target.name.clone());
        }
        self.tell_renamed((source.dir, &source.name), (target.dir, &target.name));
        Ok(())
    }

    fn check_replaced(&self, ino: Ino, there: Ino, to: &SandboxPath) -> Result<()> {
        match (self.is_dir(ino), self.is_dir(there)) {
            (false, false) if self.has(Fault::RenameRefusesToReplace) => Err(Error::Exists(to.clone())),
            (false, false) => Ok(()),
            (false, true) if self.has(Fault::RenameReplacesDirectories) => Ok(()),
            (false, true) => Err(Error::IsDirectory(to.clone())),
            (true, false) => Err(Error::NotDirectory(to.clone())),
            (true, true) if self.entries(there).is_empty() || self.has(Fault::RenameReplacesDirectories) => Ok(()),
            (true, true) => Err(Error::NotEmpty(to.clone())),
        }
    }

    fn is_below(&self, mut here: Ino, above: Ino) -> bool {
        while here != above {
            let up = self.inode(here).up;
            if up == here {
                return false;
            }
            here = up;
        }
        true
    }

    /// The entry as `path` names it; a link as a link.
    pub(super) fn info(&self, who: Who, ino: Ino, path: &SandboxPath) -> FileInfo {
        let inode = self.inode(ino);
        let (kind, size) = match &inode.node {
            Node::File(content) => (Kind::File, content.len() as u64),
            Node::Dir(_) => (Kind::Directory, 4096),
            Node::Link(text) => (Kind::Symlink, text.len() as u64),
        };
        let link = match &inode.node {
            Node::Link(text) => Some(Link { text: self.link_text(text), target: self.target(who, ino) }),
            Node::File(_) | Node::Dir(_) => None,
        };
        let type_bits = if self.has(Fault::ModeHasTypeBits) && kind == Kind::File { 0o100_000 } else { 0 };
        FileInfo {
            path: path.clone(),
            kind,
            size: if self.has(Fault::SizeIsRounded) { size.next_multiple_of(4096) } else { size },
            mode: inode.mode | type_bits,
            owner: self.user_name(inode.uid),
            group: self.user_name(inode.gid),
            modified: if self.has(Fault::TimeIsTheEpoch) { UNIX_EPOCH } else { inode.modified },
            link,
            tags: inode.tags.clone(),
        }
    }

    fn link_text(&self, text: &[u8]) -> Vec<u8> {
        if !self.has(Fault::LinkTextIsNormalised) {
            return text.to_vec();
        }
        text.split(|b| *b == b'/').filter(|part| *part != b".").collect::<Vec<_>>().join(&b'/')
    }

    fn target(&self, who: Who, link: Ino) -> Option<(SandboxPath, Kind, u32)> {
        let path = self.path_of(link)?;
        let mut ino = self.resolve(who, &path, Last::Follow).ok()?.ino?;
        if self.has(Fault::LinkTargetIsOneStep)
            && let Node::Link(text) = &self.inode(link).node
            && let Ok(next) = path.parent()?.below(text)
        {
            ino = self.resolve(who, &next, Last::Keep).ok()?.ino?;
        }
        let info = match &self.inode(ino).node {
            Node::File(_) => Kind::File,
            Node::Dir(_) => Kind::Directory,
            Node::Link(_) => Kind::Symlink,
        };
        Some((self.path_of(ino)?, info, self.inode(ino).mode))
    }

    fn user_name(&self, uid: u32) -> String {
        let known = USERS.iter().find(|(_, number)| *number == uid && !self.has(Fault::OwnerIsANumber));
        known.map_or_else(|| uid.to_string(), |(name, _)| (*name).to_owned())
    }

    /// A name of the sandbox's own, or any number.
    pub(super) fn user(&self, user: &User) -> Result<Who> {
        let named = USERS.iter().find(|(name, _)| *name == user.as_str()).map(|(_, number)| *number);
        let number = user.as_str().parse().ok().filter(|_| !self.has(Fault::UsersHaveNoNumbers));
        let unknown = self.has(Fault::UnknownUserIsRoot).then_some(0);
        named.or(number).or(unknown).map(Who::of).ok_or_else(|| Error::UnknownUser(user.clone()))
    }

    pub(super) fn bytes(&self) -> u64 {
        let size = |inode: &Inode| if let Node::File(content) = &inode.node { content.len() as u64 } else { 0 };
        self.inodes.values().map(size).sum()
    }

    /// Whether there may be so much more.
    pub(super) fn room(&mut self, bytes: usize, inodes: usize) -> Result<()> {
        self.peak = self.peak.max(self.bytes());
        let used = if self.has(Fault::RemovingMakesNoRoom) { self.peak } else { self.bytes() };
        let over = |most: Option<u64>, wanted: u64| most.is_some_and(|most| wanted > most);
        let too_large = over(self.limits.disk, used + bytes as u64) && !self.has(Fault::DiskLimitIsIgnored);
        let too_many =
            over(self.limits.inodes, (self.inodes.len() + inodes) as u64) && !self.has(Fault::InodeLimitIsIgnored);
        if too_large || too_many { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Nothing, unless that is the fault.
    pub(super) fn forget_at_stop(&mut self, fault: Option<Fault>) {
        if fault == Some(Fault::StopLosesLimits) {
            self.limits = Limits::NONE;
        }
        for inode in self.inodes.values_mut() {
            match fault {
                Some(Fault::StopLosesContent) => {
                    if let Node::File(content) = &mut inode.node {
                        content.clear();
                    }
                }
                Some(Fault::StopLosesModes) => inode.mode &= 0o755,
                Some(Fault::StopLosesOwners) => inode.uid = 0,
                Some(Fault::StopLosesTags) => inode.tags.clear(),
                Some(Fault::StopLosesLinks) => {
                    if let Node::Link(_) = inode.node {
                        inode.node = Node::File(Vec::new());
                    }
                }
                _ => return,
            }
        }
    }
}

impl Inode {
    fn new(up: Ino, name: &[u8], node: Node, mode: u32, owner: Who) -> Self {
        let (uid, gid) = (owner.uid, owner.uid);
        Self { up, name: name.to_vec(), node, mode, uid, gid, modified: now(), tags: BTreeMap::new() }
    }
}

fn inside(dir: Ino, entries: Vec<(Vec<u8>, Ino)>) -> impl Iterator<Item = (Spot, Ino, bool)> {
    entries.into_iter().map(move |(name, ino)| (Spot { dir, name, ino: Some(ino) }, ino, false))
}

pub(super) fn now() -> SystemTime {
    SystemTime::now()
}
