//! How many processes and threads a sandbox may have: as its own limit says, or fewer while its tenant has its share of those of all (see
//! [`crate::process_shares`]). Each is set without regard to the other. The lesser holds, and is known and written here alone.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::limits::Group;

/// Of one sandbox. The next one in the same group has its own.
#[derive(Default)]
pub(crate) struct Processes {
    group: Option<Group>,
    /// Held for a write that waits for nobody, unlike that of other limits.
    most: Mutex<Most>,
}

#[derive(Clone, Copy, Default)]
struct Most {
    own: Option<u32>,
    share: Option<u32>,
    is_over: bool,
}

/// Why a sandbox gets no more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    OwnLimit(u32),
    TenantShare,
}

impl Most {
    fn least(self) -> Option<u32> {
        [self.own, self.share].into_iter().flatten().min()
    }
}

impl Processes {
    pub(super) fn of(group: Option<Group>) -> Self {
        Self { group, most: Mutex::default() }
    }

    /// Written also where it is known: a server that was killed may have left another.
    pub(super) fn set_own(&self, own: Option<u32>) -> io::Result<()> {
        let mut most = self.most();
        let next = Most { own, ..*most };
        self.write(next)?;
        *most = next;
        Ok(())
    }

    /// Of a sandbox that is over it changes nothing.
    pub(crate) fn set_share(&self, share: Option<u32>) -> io::Result<()> {
        let mut most = self.most();
        if most.is_over {
            return Ok(());
        }
        let next = Most { share, ..*most };
        if next.least() != most.least() {
            self.write(next)?;
        }
        *most = next;
        Ok(())
    }

    /// From here on the group is another sandbox's, or the sandbox another server's. Whether it is held to a share, which stays: while no
    /// server is there, nobody else holds it to anything.
    pub(super) fn retire(&self) -> bool {
        let mut most = self.most();
        most.is_over = true;
        most.share.is_some()
    }

    /// How many there are, its init among them.
    pub(crate) fn count(&self) -> Option<u64> {
        self.group.as_ref()?.read("pids.current")?.trim().parse().ok()
    }

    /// Some may have ended since the kernel refused one, so a few less are as many.
    pub(crate) fn full(&self) -> Option<Full> {
        let most = *self.most();
        let least = most.least()?;
        let full = if most.own == Some(least) { Full::OwnLimit(least) } else { Full::TenantShare };
        (self.count()? >= u64::from(least - least / 8)).then_some(full)
    }

    fn write(&self, most: Most) -> io::Result<()> {
        let text = most.least().map_or("max".to_owned(), |most| most.to_string());
        self.group.as_ref().map_or(Ok(()), |group| group.write("pids.max", &text))
    }

    fn most(&self) -> MutexGuard<'_, Most> {
        self.most.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Processes {
    /// Of a directory that is no group.
    pub(crate) fn at(path: &std::path::Path) -> Self {
        Self::of(Some(Group::at(path)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(dir: &tempfile::TempDir) -> (Processes, impl Fn() -> String) {
        let path = dir.path().join("pids.max");
        (Processes::at(dir.path()), move || fs::read_to_string(&path).unwrap_or_default())
    }

    #[test]
    fn the_lesser_of_the_own_limit_and_the_share_holds_whichever_is_set_last() {
        let dir = tempfile::tempdir().unwrap();
        let (processes, most) = of(&dir);
        processes.set_own(None).unwrap();
        assert_eq!(most(), "max");
        processes.set_share(Some(70)).unwrap();
        processes.set_own(Some(100)).unwrap();
        assert_eq!(most(), "70");
        processes.set_own(Some(50)).unwrap();
        processes.set_share(Some(90)).unwrap();
        assert_eq!(most(), "50");
        processes.set_own(None).unwrap();
        assert_eq!(most(), "90");
        processes.set_share(None).unwrap();
        assert_eq!(most(), "max");
    }

    #[test]
    fn what_a_killed_server_left_is_put_right_by_setting_the_own_limit() {
        let dir = tempfile::tempdir().unwrap();
        let (processes, most) = of(&dir);
        fs::write(dir.path().join("pids.max"), "7\n").unwrap();
        processes.set_own(None).unwrap();
        assert_eq!(most(), "max");
    }

    #[test]
    fn a_sandbox_that_was_let_go_of_keeps_its_share_and_gets_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (processes, most) = of(&dir);
        processes.set_share(Some(3)).unwrap();
        assert!(processes.retire());
        processes.set_share(Some(5)).unwrap();
        assert_eq!(most(), "3", "it is another server's");
    }

    #[test]
    fn the_own_limit_the_share_and_a_kernel_that_has_no_more_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (processes, _) = of(&dir);
        let full = |now: &str| {
            fs::write(dir.path().join("pids.current"), now).unwrap();
            processes.full()
        };
        assert_eq!(full("64\n"), None);
        processes.set_own(Some(64)).unwrap();
        assert_eq!((full("64\n"), full("60\n"), full("40\n"), full("")), {
            let own = Some(Full::OwnLimit(64));
            (own, own, None, None)
        });
        processes.set_share(Some(40)).unwrap();
        assert_eq!((full("40\n"), full("20\n")), (Some(Full::TenantShare), None));
        processes.set_share(Some(80)).unwrap();
        assert_eq!((full("64\n"), full("40\n")), (Some(Full::OwnLimit(64)), None));
    }
}
