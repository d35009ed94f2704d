//! As an ordinary user: with a range of ids from newuidmap, and with one id.
//!
//! These cases start as root and give it up, so that they can choose who they are.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::kit::{Ends, binary, is_root, lives, mark, wait_until};

/// Somebody with a home, and a copy of the binary that they may read.
struct Somebody {
    uid: u32,
    home: TempDir,
    /// An account to remove again.
    account: Option<String>,
}

impl Somebody {
    /// No account: newuidmap does not know them.
    fn without_a_name(uid: u32) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(home.path(), Some(uid), Some(uid)).unwrap();
        fs::copy(binary(), home.path().join("cabana")).unwrap();
        Some(Self { uid, home, account: None })
    }

    /// An account with a range of ids, for as long as the case runs.
    fn with_a_range(uid: u32) -> Option<Self> {
        let has = |program: &str| Command::new("sh").args(["-c", &format!("command -v {program}")]).ends().code == 0;
        if !is_root() || !["useradd", "userdel", "newuidmap"].into_iter().all(has) {
            return None;
        }
        let mut somebody = Self::without_a_name(uid)?;
        let name = format!("cabana{uid}");
        let _ = Command::new("userdel").arg(&name).ends(); // left by a case that was killed
        Command::new("useradd").args(["--no-create-home", "--uid", &uid.to_string(), &name]).ends().well();
        somebody.account = Some(name);
        let range = fs::read_to_string("/etc/subuid").unwrap_or_default();
        assert!(range.contains(&format!("cabana{uid}:")), "useradd gave no range of ids: {range:?}");
        Some(somebody)
    }

    fn data(&self) -> PathBuf {
        self.home.path().join(".local/share/cabana")
    }

    fn cabana(&self, words: &[&str]) -> Command {
        let id = self.uid.to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .arg(self.home.path().join("cabana"))
            .args(words);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.home.path());
        command.current_dir(self.home.path()).stdin(Stdio::null());
        command
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        if let Some(name) = &self.account {
            let _ = Command::new("userdel").arg(name).stderr(Stdio::null()).status();
        }
    }
}

#[test]
fn one_id_is_enough_to_run_a_command() {
    let Some(me) = Somebody::without_a_name(47_101) else { return };
    let ended = me.cabana(&["run", "--", "sh", "-c", "echo hello > /tmp/x && cat /tmp/x; exit 3"]).ends();
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "hello\n"), "{ended:?}");
    assert!(me.data().join("version").exists(), "the data lies in the user's own home");
}

#[test]
fn a_range_of_ids_gives_a_second_user() {
    let Some(me) = Somebody::with_a_range(47_102) else { return };
    let script = "id -u; touch /tmp/x && chown 1000:1000 /tmp/x && stat -c %u:%g /tmp/x";
    let ended = me.cabana(&["run", "--user", "root", "--", "sh", "-c", script]).ends();
    assert_eq!(ended.well(), "0\n1000:1000\n");
    let ended = me.cabana(&["run", "--", "sh", "-c", "test $(id -u) != 0 && echo somebody else"]).ends();
    assert_eq!(ended.well(), "somebody else\n");
}

#[test]
fn nothing_outlives_an_ordinary_user_either() {
    let Some(me) = Somebody::without_a_name(47_103) else { return };
    let mark = mark();
    let script = format!("echo partial; setsid sleep {mark} & sleep {mark}");
    let ended = me.cabana(&["run", "--timeout", "500ms", "--", "sh", "-c", &script]).ends();
    assert_eq!((ended.code, ended.stdout.as_str()), (124, "partial\n"), "{ended:?}");
    wait_until("nothing of it is left", || !lives(&mark));
}

#[test]
fn a_mount_belongs_to_its_owner_outside() {
    let Some(me) = Somebody::without_a_name(47_104) else { return };
    let project = me.home.path().join("project");
    fs::create_dir(&project).unwrap();
    chown(&project, Some(me.uid), Some(me.uid)).unwrap();
    me.cabana(&["run", "--mount", "project:/project", "--", "sh", "-c", "echo made > /project/file"]).ends().well();
    let made = fs::metadata(project.join("file")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), me.uid);
}

/// The supervisor of a command shares init's memory, and the kernel has one such score for all who do.
#[test]
fn raising_the_oom_score_of_init_through_a_process_that_shares_its_memory_is_undone() {
    let Some(me) = Somebody::without_a_name(47_110) else { return };
    // Whatever init is asked for has it look; a set-uid bit is given by init alone.
    let script = "usual=$(cat /proc/1/oom_score_adj); touch /tmp/x; [ $PPID = 1 ] || echo 900 > /proc/$PPID/oom_score_adj || exit 4
        until [ \"$(cat /proc/1/oom_score_adj)\" = \"$usual\" ]; do chmod u+s /tmp/x; done; echo as it was";
    let ended = me.cabana(&["run", "--timeout", "60s", "--", "sh", "-c", script]).ends();
    assert_eq!(ended.well(), "as it was\n");
}

/// Nobody may give up groups there, so the guest is in those of who started it; inside they have no number.
#[test]
fn groups_of_who_starts_a_sandbox_open_no_file_of_the_host_to_it() {
    let Some(me) = Somebody::without_a_name(47_107) else { return };
    let script = r#"
        mount -t tmpfs none "$HOME/over" && mkdir "$HOME/over/u" "$HOME/over/w" &&
        mount -t overlay none -o "lowerdir=/usr,upperdir=$HOME/over/u,workdir=$HOME/over/w" /usr || exit 77
        echo group-secret > /usr/local/for-group; chown 0:4444 /usr/local/for-group; chmod 640 /usr/local/for-group
        echo for-everybody > /usr/local/for-all; chmod 644 /usr/local/for-all
        exec setpriv --reuid "$ID" --regid "$ID" --groups "$GROUPS_OF" "$HOME/cabana" run -- sh -c 'cat /usr/local/for-all /usr/local/for-group'
    "#;
    fs::create_dir(me.home.path().join("over")).unwrap();
    fs::set_permissions(me.home.path().join("over"), fs::Permissions::from_mode(0o755)).unwrap();
    for groups in ["47107", "47107,4444"] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        command.env("HOME", me.home.path()).env("ID", me.uid.to_string()).env("GROUPS_OF", groups);
        let ended = command.current_dir(me.home.path()).stdin(Stdio::null()).ends();
        assert!(ended.stdout.contains("for-everybody"), "the control: {ended:?}");
        assert!(!ended.stdout.contains("group-secret"), "{groups}: {ended:?}");
    }
}

#[test]
fn the_doctor_tells_who_lacks_what() {
    let Some(me) = Somebody::without_a_name(47_105) else { return };
    let said = me.cabana(&["doctor"]).ends().well();
    assert!(said.contains("useradd --uid 47105"), "{said}");
    assert!(said.contains("no second user"), "{said}");
    let left: Vec<_> = fs::read_dir(me.home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["cabana"], "looking leaves nothing behind");
}

#[test]
fn the_doctor_sees_a_range() {
    let Some(me) = Somebody::with_a_range(47_106) else { return };
    let said = me.cabana(&["doctor"]).ends().well();
    assert!(said.contains("an ordinary user with a range of ids"), "{said}");
}
