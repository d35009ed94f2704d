//! The sandbox's account files, read again when they have changed.
//!
//! What they are is the guest's to say: a pipe, a device, a link to anywhere. They are opened as every other file is, and as
//! whoever the thread is: who acts on what they say has become root of the sandbox first, and nobody of the host.

use std::{
    fs::File,
    io::Read as _,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use cabana_sandbox::{Result, SandboxPath};
use rustix::{
    fs::{OFlags, Stat},
    io::Errno,
};

use crate::{
    Accounts, Rooted,
    accounts::MAX_FILE,
    errno::{fault, io_fault},
    rooted::READ,
    sys,
};

/// For so long are names that are only shown not looked at again: no longer than one operation takes.
const SURE: Duration = Duration::from_millis(50);

/// What was read, and by which marks it is known to be still true. Never locked while a file is looked at: a guest can hold
/// that up, and must not hold up who asks next.
#[derive(Default)]
pub(crate) struct AccountCache(Mutex<Option<Arc<Known>>>);

impl AccountCache {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Known>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> Option<Arc<Known>> {
        self.lock().clone()
    }
}

struct Known {
    etc: Option<Etc>,
    marks: [Mark; 2],
    accounts: Arc<Accounts>,
    /// When a caller who acts on it last made sure.
    sure: Mutex<Option<Instant>>,
}

impl Known {
    fn sure(&self) -> MutexGuard<'_, Option<Instant>> {
        self.sure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_sure(&self) -> bool {
        self.sure().is_some_and(|sure| sure.elapsed() < SURE)
    }
}

/// The directory of the two, as it was found.
struct Etc {
    dir: OwnedFd,
    id: (u64, u64),
}

/// Device, inode, size, mtime and ctime: what changes when a file's content does. `None` is a file that is not there.
type Mark = Option<[i128; 5]>;

/// What is in a file.
enum Text {
    Read(Vec<u8>),
    /// This identity may not read it; another one may.
    Closed,
}

impl Rooted {
    /// The users and groups that the sandbox's own files name. A file that is missing, closed or no regular one names none:
    /// numbers are users without it.
    pub fn accounts(&self) -> Result<Arc<Accounts>> {
        match self.cached_accounts() {
            Some(accounts) => Ok(accounts),
            None => self.read_accounts(self.account_cache().known(), Some(Instant::now())),
        }
    }

    /// Those that were read last, if their files are still the same. Nothing is opened for it, so anybody may ask.
    pub fn cached_accounts(&self) -> Option<Arc<Accounts>> {
        let known = self.account_cache().known().filter(|known| self.is_current(known))?;
        *known.sure() = Some(Instant::now());
        Some(known.accounts.clone())
    }

    /// Closes what is open of the tree beside its root: it would keep a mount in use that is to go.
    pub fn close_cached(&self) {
        *self.account_cache().lock() = None;
    }

    /// Names to show. Where they cannot be read, numbers do.
    pub(crate) fn names(&self) -> Arc<Accounts> {
        let known = self.account_cache().known();
        match known.as_ref().filter(|known| known.was_sure() || self.is_current(known)) {
            Some(known) => known.accounts.clone(),
            None => self.read_accounts(known, None).unwrap_or_default(),
        }
    }

    /// By three calls of the kernel. Where a link is on the way, one of them differs, and it takes the long way.
    fn is_current(&self, known: &Known) -> bool {
        let Some(etc) = &known.etc else { return false };
        sys::stat_at(self.root(), c"etc").is_ok_and(|stat| sys::id(&stat) == etc.id)
            && [c"passwd", c"group"].map(|name| mark(&sys::stat_at(&etc.dir, name).ok()?)) == known.marks
    }

    fn read_accounts(&self, old: Option<Arc<Known>>, sure: Option<Instant>) -> Result<Arc<Accounts>> {
        let etc = self.resolve(Path::new("etc"), OFlags::PATH | OFlags::DIRECTORY).and_then(|dir| {
            let id = sys::id(&rustix::fs::fstat(&dir)?);
            Ok(Etc { dir, id })
        });
        let files = ["etc/passwd", "etc/group"].map(|path| self.resolve(Path::new(path), OFlags::PATH).ok());
        let marks = files.each_ref().map(|file| mark(&rustix::fs::fstat(file.as_ref()?).ok()?));
        let accounts = match old.filter(|known| known.marks == marks) {
            Some(known) => known.accounts.clone(),
            None => {
                let [passwd, group] = files;
                match (self.text_of(passwd, "/etc/passwd")?, self.text_of(group, "/etc/group")?) {
                    (Text::Read(passwd), Text::Read(group)) => Arc::new(Accounts::parse(&passwd, &group)),
                    // Not kept: what is closed to this identity is not so to the next.
                    (Text::Read(passwd), Text::Closed) => return Ok(Arc::new(Accounts::parse(&passwd, &[]))),
                    (Text::Closed, _) => return Ok(Arc::default()),
                }
            }
        };
        let known = Known { etc: etc.ok(), marks, accounts: accounts.clone(), sure: Mutex::new(sure) };
        *self.account_cache().lock() = Some(Arc::new(known));
        Ok(accounts)
    }

    /// At most [`MAX_FILE`] bytes. What is no regular file holds no text, and is not opened.
    fn text_of(&self, found: Option<OwnedFd>, name: &str) -> Result<Text> {
        let Some(found) = found else { return Ok(Text::Read(Vec::new())) };
        let path: SandboxPath = name.parse()?;
        let opened = sys::regular(&found, OFlags::RDONLY).and_then(|(file, stat)| {
            self.judge_stat(&stat, READ)?;
            Ok(file)
        });
        let file = match opened {
            Err(Errno::NXIO | Errno::ISDIR) => return Ok(Text::Read(Vec::new())),
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Text::Closed),
            opened => opened.map_err(|e| fault(&path, "read the accounts", e))?,
        };
        let mut text = Vec::new();
        let read = File::from(file).take(MAX_FILE as u64).read_to_end(&mut text);
        read.map_err(|error| io_fault(&path, "read the accounts", error))?;
        Ok(Text::Read(text))
    }
}

fn mark(stat: &Stat) -> Mark {
    let time = |seconds: i64, nanos: u64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    Some([
        i128::from(stat.st_dev),
        i128::from(stat.st_ino),
        i128::from(stat.st_size),
        time(stat.st_mtime, stat.st_mtime_nsec),
        time(stat.st_ctime, stat.st_ctime_nsec),
    ])
}
