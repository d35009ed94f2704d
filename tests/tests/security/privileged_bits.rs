//! Files that carry a privilege: set-uid and set-gid bits, and capabilities. A sandbox may have them on its own files, and must
//! not leave them in a directory of the host, where the next one to run such a file is somebody of the host.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    time::Duration,
};

use cabana_sandbox::{
    Alter, Error, ExecSpec, Lifetime, Provider, SandboxPath, SandboxSpec, Source, Status, User, View, VolumeId, Write,
    WriteMode, write_all,
};
use futures_util::{StreamExt, stream};

use crate::{
    attacks::{BITS, BITS_EXEC, BITS_HOLD, BITS_RACE, BROKER, FORGE, LANDLOCK, Relay, Report},
    inside::{Inside, engine, passing, path, rest, soon, until},
};

const SEEN: &str = "/workspace/seen";

/// Whom a directory of the host belongs to.
const OWNERS: [u32; 2] = [0, 4321];

/// A directory of the host.
struct Shown(tempfile::TempDir);

impl Shown {
    fn of(owner: u32) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        chown(dir.path(), Some(owner), Some(owner)).unwrap();
        Self(dir)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn view(&self) -> View {
        View { source: Source::Host(self.0.path().into()), at: path(SEEN), writable: true }
    }

    async fn inside(&self) -> Inside {
        Inside::with(SandboxSpec { views: vec![self.view()], ..passing() }).await
    }

    /// What lies there, as the host sees it: how many files there are, and which of them carry a privilege.
    fn privileged(&self) -> (usize, Vec<String>) {
        privileged(self.0.path())
    }

    #[track_caller]
    fn is_clean(&self) {
        let (files, privileged) = self.privileged();
        assert!(files > 0, "nothing was left there at all");
        assert!(privileged.is_empty(), "{privileged:?}");
    }
}

fn privileged(dir: &Path) -> (usize, Vec<String>) {
    let (mut files, mut found) = (0, Vec::new());
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        files += 1;
        if meta.mode() & 0o6000 != 0 && !meta.is_symlink() {
            found.push(format!("{} {:o}", path.display(), meta.mode() & 0o7777));
        }
        if rustix::fs::lgetxattr(&path, "security.capability", &mut [0u8; 64][..]).is_ok() {
            found.push(format!("{} has capabilities", path.display()));
        }
        if meta.is_dir() {
            let (more, below) = privileged(&path);
            files += more;
            found.extend(below);
        }
    }
    (files, found)
}

/// What is refused everywhere, and programs go on without.
const NOWHERE: [&str; 5] = ["tmpfile", "mknod", "mknodat", "openat2", "caps-at"];

fn all_ways_are_refused(report: &Report) {
    report.all_refused(&["EPERM", "ENOSYS", "EXDEV", "EINVAL", "ELOOP", "EACCES"]);
    for way in ["chmod", "fchmod", "fchmodat", "fchmodat2", "open", "creat", "proc-self-fd", "directory-sgid"] {
        assert_eq!(report.of(way), "EPERM", "{way}");
    }
}

#[tokio::test]
async fn set_id_bits_in_a_view_of_the_host() {
    for owner in OWNERS {
        for user in ["root", "user"] {
            let shown = Shown::of(owner);
            let inside = shown.inside().await;
            let owner_inside = inside.root("id -u user").await.ok();
            let report = inside.attack(user, &BITS, &[SEEN, &owner_inside]).await.report();
            all_ways_are_refused(&report);
            shown.is_clean();
            // The same in the sandbox's own files, where they are nobody's but its own.
            let own = inside.root(&format!("mkdir -m 777 /tmp/{user} && id -u {user}")).await.ok();
            let report = inside.attack(user, &BITS, &[&format!("/tmp/{user}"), &own]).await.report();
            for way in ["chmod", "chmod-both", "fchmod", "fchmodat", "fchmodat2", "fchmodat2-empty", "proc-self-fd"] {
                assert_eq!(report.of(way), "done", "{way} as {user}");
            }
            for way in ["open", "open-excl", "openat", "creat", "relative", "link-target", "directory-sgid", "rename"] {
                assert_eq!(report.of(way), "done", "{way} as {user}");
            }
            let caps = if user == "root" { "done" } else { "EPERM" };
            for way in ["caps-v2", "caps-f"] {
                assert_eq!(report.of(way), caps, "{way} as {user}");
            }
            for way in NOWHERE {
                assert!(["EPERM", "ENOSYS"].contains(&report.of(way)), "{way} as {user}");
            }
            let found = inside.root(&format!("find /tmp/{user} -perm /6000 | wc -l")).await.ok();
            assert!(found.parse::<u32>().unwrap() >= 15, "{found} as {user}");
            inside.end().await;
        }
    }
}

/// On the host every way leads to the end: what is refused inside is refused by a wall.
#[tokio::test]
async fn set_id_bits_on_the_host_itself() {
    let shown = Shown::of(0);
    let report = BITS.run_on_host(&[shown.0.path().to_str().unwrap(), "0"]).report();
    for way in ["chmod", "fchmodat2", "open", "tmpfile", "mknod", "mknodat", "openat2", "caps-v2", "caps-f", "chroot"] {
        assert_eq!(report.of(way), "done", "{way}");
    }
    let (_, found) = shown.privileged();
    for name in ["/chmod", "/fchmod", "/open", "/creat", "/tmpfile", "/mknod", "/openat2", "/chroot", "/directory"] {
        assert!(found.iter().any(|found| found.contains(name)), "{name} is not in {found:?}");
    }
    assert!(found.iter().any(|found| found.contains("caps-v2 has capabilities")), "{found:?}");
}

/// With root as its default user, root inside has the very ids of the directory's owner.
#[tokio::test]
async fn set_id_bits_in_a_view_of_a_sandbox_whose_user_is_root() {
    for owner in OWNERS {
        let shown = Shown::of(owner);
        let spec = SandboxSpec { views: vec![shown.view()], user: Some(User::root()), ..passing() };
        let inside = Inside::with(spec).await;
        assert_eq!(inside.root(&format!("stat -c %u {SEEN}")).await.ok(), "0");
        all_ways_are_refused(&inside.attack("root", &BITS, &[SEEN, "0"]).await.report());
        shown.is_clean();
        inside.end().await;
    }
}

#[tokio::test]
async fn set_id_bits_in_a_view_of_a_sandbox_with_sudo() {
    let shown = Shown::of(0);
    let inside = Inside::with(SandboxSpec { views: vec![shown.view()], sudo: true, ..passing() }).await;
    for user in ["root", "user"] {
        inside.user(&format!("mkdir -m 777 {SEEN}/{user}")).await.ok();
        let owner = inside.root("id -u user").await.ok();
        all_ways_are_refused(&inside.attack(user, &BITS, &[&format!("{SEEN}/{user}"), &owner]).await.report());
    }
    shown.is_clean();
    inside.end().await;
}

#[tokio::test]
async fn set_id_bits_in_a_single_file_that_is_shown() {
    let shown = Shown::of(0);
    fs::write(shown.at("file"), "x").unwrap();
    let view = View { source: Source::Host(shown.at("file")), at: path("/workspace/file"), writable: true };
    let inside = Inside::with(SandboxSpec { views: vec![view], ..passing() }).await;
    inside.root("cp /bin/true /tmp/suid; chmod 4755 /tmp/suid").await.ok();
    for script in ["chmod 4755 /workspace/file", "chmod g+s /workspace/file", "cp -p /tmp/suid /workspace/file"] {
        inside.root(script).await.refused();
    }
    inside.user("echo written > /workspace/file && chmod 700 /workspace/file").await.ok();
    shown.is_clean();
    inside.end().await;
}

#[tokio::test]
async fn set_id_bits_in_a_view_by_tools() {
    for user in ["user", "root"] {
        let shown = Shown::of(0);
        let spec = SandboxSpec { views: vec![shown.view()], user: Some(User::new(user).unwrap()), ..passing() };
        let inside = Inside::with(spec).await;
        let run =
            async |script: &str| inside.command(user, ExecSpec::shell(script.replace("SEEN", SEEN), path("/"))).await;
        let own = "mkdir /tmp/t && cd /tmp/t && cp /bin/true suid && chmod 6755 suid && install -m 4755 suid installed && \
                   cp -p suid copied && tar cpf all.tar suid installed && mkdir x && tar xpf all.tar -C x && \
                   test -u suid -a -u installed -a -u copied -a -u x/suid";
        run(own).await.ok();
        for tool in [
            "cp -p /tmp/t/suid SEEN/copied",
            "cp -a /tmp/t/suid SEEN/archived",
            "install -m 4755 /tmp/t/suid SEEN/installed",
            "mkdir -p SEEN/tar && tar xpf /tmp/t/all.tar -C SEEN/tar",
            "busybox cp /tmp/t/suid SEEN/bcopied",
            "mkdir -p SEEN/btar && busybox tar xpf /tmp/t/all.tar -C SEEN/btar",
            "rsync -a /tmp/t/suid SEEN/synced",
            "mkdir -m 2775 SEEN/shared",
            "touch SEEN/plain && chmod u+s SEEN/plain",
            "touch SEEN/plain && chmod g+s SEEN/plain",
            "python3 -c 'import os; os.chmod(\"SEEN/plain\", 0o4755)'",
            "perl -e 'chmod(04755, \"SEEN/plain\") or exit 1'",
            "cp /bin/true SEEN/caps && setcap cap_net_raw+ep SEEN/caps",
        ] {
            // What a machine lacks fails too.
            let ran = run(tool).await;
            assert_ne!(ran.status, Status::Code(0), "{tool} as {user}: {ran:?}");
        }
        assert!(run("mv /tmp/t/installed SEEN/moved").await.err.contains("not permitted"), "it says that it lost them");
        shown.is_clean();
        // What asks for no bits is as it was.
        let plain = "chmod 755 SEEN/plain && chmod +t SEEN && cp /tmp/t/suid SEEN/lost && mkdir SEEN/d && chmod 1777 SEEN/d && \
                     cp -p SEEN/plain SEEN/again && tar xf /tmp/t/all.tar --no-same-permissions -C SEEN/d && rm -rf SEEN/d";
        run(plain).await.ok();
        if user == "root" && run("command -v setcap").await.status == Status::Code(0) {
            run("cp /bin/true /tmp/t/caps && setcap cap_net_raw+ep /tmp/t/caps").await.ok();
        }
        shown.is_clean();
        inside.end().await;
    }
}

/// A directory of the host whose group is handed on has that from the host; whoever sets its other bits does not lose it.
#[tokio::test]
async fn a_directory_of_the_host_that_hands_its_group_on_goes_on_doing_so() {
    let shown = Shown::of(4321);
    fs::set_permissions(shown.0.path(), fs::Permissions::from_mode(0o2775)).unwrap();
    let inside = shown.inside().await;
    inside.user(&format!("mkdir {SEEN}/new && chmod 755 {SEEN}/new && chmod 2755 {SEEN}/new")).await.ok();
    inside.files("user").alter(Alter::SetMode(path(&format!("{SEEN}/new")), 0o2700)).await.unwrap();
    assert_eq!(fs::metadata(shown.at("new")).unwrap().mode() & 0o7777, 0o2700);
    inside.user(&format!("chmod 4700 {SEEN}/new")).await.refused();
    inside.user(&format!("chmod g-s {SEEN}/new && ! chmod g+s {SEEN}/new")).await.ok();
    inside.user(&format!("touch {SEEN}/file && ! chmod g+s {SEEN}/file")).await.ok();
    inside.end().await;
}

#[tokio::test]
async fn a_set_uid_file_of_the_host_is_none_once_it_is_written() {
    let shown = Shown::of(0);
    let make = || {
        fs::write(shown.at("theirs"), "of the host").unwrap();
        fs::set_permissions(shown.at("theirs"), fs::Permissions::from_mode(0o4755)).unwrap();
    };
    let inside = shown.inside().await;
    for user in ["root", "user"] {
        for script in
            ["echo x > S/theirs", "truncate -s 3 S/theirs", "cp /bin/true S/theirs", "dd if=/bin/true of=S/theirs"]
        {
            make();
            inside.command(user, ExecSpec::shell(script.replace('S', SEEN), path("/"))).await.ok();
            shown.is_clean();
        }
        // Who is not the owner makes no new file there, and to replace one is to make one.
        let new = (user == "user").then_some(WriteMode::Replace);
        for mode in [WriteMode::InPlace, WriteMode::Append].into_iter().chain(new) {
            make();
            let body = stream::once(async { Ok("changed".into()) }).boxed();
            let written = inside.files(user).write(&path(&format!("{SEEN}/theirs")), Write::new(mode), body).await;
            written.unwrap_or_else(|error| panic!("{mode:?} as {user}: {error}"));
            shown.is_clean();
        }
        // As the clients of E2B write.
        make();
        let body = stream::once(async { Ok("changed".into()) }).boxed();
        let by_root = inside.sandbox.files_by_root(Some(&User::new(user).unwrap()));
        by_root.write(&path(&format!("{SEEN}/theirs")), Write::new(WriteMode::InPlace), body).await.unwrap();
        shown.is_clean();
    }
    inside.end().await;
}

/// Views that come while commands run, which know nothing of them.
#[tokio::test]
async fn set_id_bits_in_a_view_that_comes_later() {
    let shown = Shown::of(0);
    let spec = SandboxSpec { lifetime: Lifetime::Persistent, user: Some(User::root()), ..passing() };
    let inside = Inside::with(spec).await;
    let words = inside.bring(&BITS).await;
    let script = format!("echo begun; until [ -d {SEEN}/now ]; do sleep 0.02; done; {} {SEEN} 0", words.join(" "));
    let mut spec = ExecSpec::shell(script, path("/"));
    spec.user = Some(User::root());
    let mut running = inside.sandbox.exec(spec).await.unwrap();
    running.events.next().await.unwrap().unwrap();
    inside.root("touch /tmp/own && chmod 4755 /tmp/own && test -u /tmp/own").await.ok();
    fs::create_dir(shown.at("now")).unwrap();
    inside.engine.set_views(inside.sandbox.id(), &[shown.view()]).await.unwrap();
    let (said, _) = rest(running).await;
    assert!(said.contains("chmod EPERM\n") && !said.contains("chmod done"), "{said}");
    let again = format!("rm -rf {SEEN}/* && mkdir {SEEN}/d");
    inside.root(&again).await.ok();
    all_ways_are_refused(&inside.attack("root", &BITS, &[&format!("{SEEN}/d"), "0"]).await.report());
    shown.is_clean();
    // Taken away, it is still none of the sandbox's own for who has it open.
    let held = format!(
        "exec 3<>{SEEN}/d/chmod; echo held; until [ -e /tmp/gone ]; do sleep 0.02; done; chmod 4755 /proc/self/fd/3"
    );
    let mut spec = ExecSpec::shell(held, path("/"));
    spec.user = Some(User::root());
    let mut holding = inside.sandbox.exec(spec).await.unwrap();
    holding.events.next().await.unwrap().unwrap();
    let gone = inside.engine.set_views(inside.sandbox.id(), &[]).await;
    inside.root("touch /tmp/gone").await.ok();
    drop(rest(holding).await);
    println!("taken away while it was open: {gone:?}");
    shown.is_clean();
    inside.root("chmod 2755 /tmp/own && test -g /tmp/own").await.ok();
    inside.end().await;
}

#[tokio::test]
async fn set_id_bits_in_a_volume() {
    let engine = engine().await;
    let volume = VolumeId::now();
    engine.make_volume(volume).await.unwrap();
    let view = View { source: Source::Volume(volume), at: path(SEEN), writable: true };
    let inside = Inside::of(engine.clone(), &SandboxSpec { views: vec![view], ..passing() }).await;
    inside.root(&format!("mkdir -m 777 {SEEN}/d")).await.ok();
    for user in ["root", "user"] {
        let own = inside.root(&format!("rm -rf {SEEN}/d/*; id -u {user}")).await.ok();
        all_ways_are_refused(&inside.attack(user, &BITS, &[&format!("{SEEN}/d"), &own]).await.report());
        assert_eq!(inside.root(&format!("find {SEEN} -perm /6000; getcap -r {SEEN} 2>/dev/null; true")).await.ok(), "");
    }
    inside.engine.destroy(inside.sandbox.id()).await.unwrap();
    engine.remove_volume(volume).await.unwrap();
    inside.engine.close().await;
}

/// Where the root cannot be written, some directories are mounts of their own.
#[tokio::test]
async fn set_id_bits_beside_a_root_that_cannot_be_written() {
    let shown = Shown::of(0);
    let spec = SandboxSpec { views: vec![shown.view()], read_only_root: true, ..passing() };
    let inside = Inside::with(spec).await;
    inside.user("cp /bin/true /tmp/own && chmod 4755 /tmp/own && test -u /tmp/own").await.ok();
    inside.user("cp /bin/true /dev/shm/own && chmod 4755 /dev/shm/own && test -u /dev/shm/own").await.ok();
    let owner = inside.user("id -u").await.ok();
    all_ways_are_refused(&inside.attack("root", &BITS, &[SEEN, &owner]).await.report());
    shown.is_clean();
    inside.end().await;
}

#[tokio::test]
async fn a_package_with_set_uid_programs_installs() {
    let shown = Shown::of(0);
    let package = "mkdir -p /tmp/p/DEBIAN /tmp/p/usr/local/bin /tmp/p/var/shared && cd /tmp/p && \
                   printf 'Package: cabana-suid\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@x>\\nDescription: x\\n' \
                   > DEBIAN/control && cp /bin/true usr/local/bin/suid && cp /bin/true usr/local/bin/sgid && \
                   chmod 4755 usr/local/bin/suid && chmod 2755 usr/local/bin/sgid && chmod 2775 var/shared && \
                   dpkg-deb --root-owner-group -b /tmp/p /tmp/p.deb && rm -rf /tmp/p && dpkg -i /tmp/p.deb && \
                   test -u /usr/local/bin/suid -a -g /usr/local/bin/sgid -a -g /var/shared";
    for views in [Vec::new(), vec![shown.view()]] {
        let inside = Inside::with(SandboxSpec { views, ..passing() }).await;
        inside.root(package).await.ok();
        inside.end().await;
    }
}

/// The server's own hands are behind no filter.
#[tokio::test]
async fn set_id_bits_in_a_view_through_the_servers_hands() {
    let shown = Shown::of(0);
    let inside = shown.inside().await;
    for user in ["root", "user"] {
        inside.root(&format!("rm -rf {SEEN}/* /tmp/own; mkdir -m 777 /tmp/own")).await.ok();
        inside.user(&format!("touch {SEEN}/a {SEEN}/b")).await.ok();
        let files = inside.files(user);
        let by_root = inside.sandbox.files_by_root(Some(&User::new(user).unwrap()));
        for (dir, allowed) in [(SEEN, false), ("/tmp/own", true)] {
            let at = |name: &str| path(&format!("{dir}/{name}"));
            let told = |what: &str, done: Result<(), Error>| match (done, allowed) {
                (Ok(()), true) => {}
                (Err(Error::Denied(_)), false) => {}
                (done, _) => panic!("{what} in {dir} as {user}: {done:?}"),
            };
            for (name, files) in [("a", &files), ("b", &by_root)] {
                if allowed {
                    write_all(&**files, &at(name), "x").await.unwrap();
                }
                for mode in [0o4755, 0o2755, 0o6777] {
                    told("a mode", files.alter(Alter::SetMode(at(name), mode)).await);
                }
                let directory = at(&format!("d{name}"));
                told("a directory", files.alter(Alter::MakeDir(directory.clone(), 0o2755)).await);
                for mode in [WriteMode::Replace, WriteMode::CreateNew, WriteMode::InPlace, WriteMode::Append] {
                    let how = Write { perm: Some(0o4755), ..Write::new(mode) };
                    let body = || stream::once(async { Ok("x".into()) }).boxed();
                    let new = at(&format!("new-{name}-{mode:?}"));
                    told("a new file", files.write(&new, how, body()).await.map(drop));
                    if mode != WriteMode::CreateNew {
                        told("a file", files.write(&at(name), how, body()).await.map(drop));
                    }
                }
            }
            // An archive and a move bring their bits along: they are left behind, and the rest arrives. In a view only the owner
            // makes files.
            if !allowed && user == "root" {
                continue;
            }
            files.unpack(&path(dir), stream::once(async { Ok(suid_tar().into()) }).boxed()).await.unwrap();
            inside.command(user, ExecSpec::shell("cp /bin/true /tmp/suid; chmod 4755 /tmp/suid", path("/"))).await.ok();
            files.alter(Alter::Rename(path("/tmp/suid"), at("moved"))).await.unwrap();
            let script =
                format!("cd {dir} && test -f suid -a -d sgid -a -f moved && find . -perm /6000 | sort | xargs");
            let found = inside.root(&script).await.ok();
            for name in ["./suid", "./sgid", "./moved"] {
                assert_eq!(found.split(' ').any(|found| found == name), allowed, "{name} in {dir} as {user}: {found}");
            }
        }
        shown.is_clean();
    }
    inside.end().await;
}

fn suid_tar() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, mode, kind) in [("suid", 0o4755, tar::EntryType::Regular), ("sgid/", 0o2755, tar::EntryType::Directory)]
    {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(0);
        header.set_path(name).unwrap();
        header.set_cksum();
        tar.append(&header, &[][..]).unwrap();
    }
    tar.into_inner().unwrap()
}

#[tokio::test]
async fn changing_what_a_call_means_while_it_is_decided() {
    let shown = Shown::of(0);
    let inside = shown.inside().await;
    for user in ["root", "user"] {
        inside.root("rm -rf /tmp/race && mkdir -m 777 /tmp/race").await.ok();
        inside.user(&format!("rm -rf {SEEN}/* && touch {SEEN}/file")).await.ok();
        let said = inside.attack(user, &BITS_RACE, &["/tmp/race", SEEN, "120"]).await.ok();
        let [set, made] = said
            .split(", ")
            .map(|part| part.split(' ').next().unwrap().parse::<u32>().unwrap())
            .collect::<Vec<_>>()[..]
        else {
            panic!("{said}")
        };
        // Some meant an own file and went through, some did not: it was a race.
        assert!((1..480).contains(&set) && (1..120).contains(&made), "{said} as {user}");
        inside.root("test -u /tmp/race/file").await.ok();
        shown.is_clean();
    }
    inside.end().await;
}

/// A broker is as good as the caller itself, for root and for a user, on files and on errors.
#[tokio::test]
async fn a_call_that_is_made_by_a_broker_does_what_the_kernel_does() {
    let inside = Inside::new().await;
    for user in ["0", "4444"] {
        let host = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // Reached by all, as /tmp is inside.
        for above in host.path().ancestors().take_while(|above| above.starts_with(env!("CARGO_TARGET_TMPDIR"))) {
            let mode = fs::metadata(above).unwrap().mode();
            fs::set_permissions(above, fs::Permissions::from_mode(mode & 0o7777 | 0o055)).unwrap();
        }
        let wanted = BROKER.run_on_host(&[host.path().to_str().unwrap(), user]).ok();
        let place = format!("/tmp/broker-{user}");
        inside.root(&format!("mkdir {place}")).await.ok();
        let got = inside.attack("root", &BROKER, &[&place, user]).await.ok();
        let differs: Vec<_> = wanted.lines().zip(got.lines()).filter(|(wanted, got)| wanted != got).collect();
        assert!(differs.is_empty() && wanted.lines().count() == got.lines().count(), "{differs:#?}\n{got}");
        assert!(wanted.lines().count() > 80, "{wanted}");
    }
    inside.end().await;
}

/// What only a broker has open is nothing that a caller could name.
#[tokio::test]
async fn a_broker_opens_nothing_of_its_own_for_a_caller() {
    let inside = Inside::new().await;
    let script = "python3 - <<'END'
import os
names = ['/proc/self/mem', '/proc/thread-self/mem', '/proc/self/environ', '/proc/self/maps', '/proc/1/mem', '/proc/1/root/x',
         '/proc/self/exe', '/proc/self/root/tmp/x', '/proc/self/cwd/x', '/proc/self/fd', '/proc/self/status',
         '/dev/null', '/dev/ptmx', '/dev/fd/3', '/proc/sys/kernel/hostname']
names += [f'/proc/self/fd/{n}' for n in range(3, 12)] + [f'/proc/1/fd/{n}' for n in range(12)]
for name in names:
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        try:
            fd = os.open(name, flags | os.O_CREAT, 0o4755)
            print('opened', name, os.readlink(f'/proc/self/fd/{fd}'))
        except OSError as error:
            pass
    try:
        os.chmod(name, 0o4755)
        print('changed', name)
    except OSError as error:
        pass
fd = os.open('/tmp/own', os.O_CREAT | os.O_RDWR, 0o4755)
os.write(fd, b'x')
print('own', oct(os.stat('/tmp/own').st_mode))
END";
    for user in ["root", "user"] {
        inside.root("rm -f /tmp/own").await.ok();
        let said = inside.command(user, ExecSpec::shell(script, path("/"))).await.ok();
        // Who writes to a set-uid file takes the bit away.
        assert_eq!(said, "own 0o100755", "as {user}");
    }
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn reading_and_tracing_a_broker() {
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let file = format!("/tmp/of-{user}");
        inside.command(user, ExecSpec::shell(format!("touch {file}"), path("/"))).await.ok();
        let report = inside.attack(user, &BITS_HOLD, &[&file, "look"]).await.report();
        assert_eq!((report.of("seen"), report.of("done"), report.of("got")), ("some", "some", "none"), "as {user}");
    }
    inside.end().await;
}

#[tokio::test]
async fn stopping_a_broker_holds_nobody_else_up() {
    let inside = Inside::with(SandboxSpec { lifetime: Lifetime::Persistent, ..passing() }).await;
    inside.root("touch /tmp/file").await.ok();
    let mut spec = ExecSpec::argv(
        inside.bring(&BITS_HOLD).await.into_iter().chain(["/tmp/file", "stop"].map(String::from)),
        SandboxPath::root(),
    );
    spec.user = Some(User::root());
    let held = inside.sandbox.exec(spec).await.unwrap();
    until("a broker is stopped", async || {
        let script = "grep -l cabana-broker /proc/[0-9]*/comm 2>/dev/null | while read f; do grep -q 'T (stopped)' ${f%comm}status && echo yes; done";
        inside.root(script).await.out.contains("yes")
    })
    .await;
    inside.still_works().await;
    soon("a pause", inside.engine.pause(inside.sandbox.id())).await.unwrap();
    let inside = Inside { sandbox: soon("a start", inside.engine.start(inside.sandbox.id())).await.unwrap(), ..inside };
    let (said, _) = tokio::time::timeout(Duration::from_secs(60), rest(held)).await.unwrap();
    assert!(said.contains("stopped some") && said.contains("refused some"), "{said}");
    inside.user("touch /tmp/after && chmod 4755 /tmp/after").await.ok();
    inside.end().await;
}

#[tokio::test]
async fn many_callers_at_once() {
    let inside = Inside::new().await;
    let script = "mkdir /tmp/many && cd /tmp/many && for i in $(seq 200); do (touch $i; for m in 4755 2711 6700; do chmod $m $i || \
                  echo failed; done) & done; wait; find . -perm -6000 | wc -l";
    assert_eq!(inside.user(script).await.ok(), "200");
    inside.still_works().await;
    inside.end().await;
}

/// The caller's number may become another's: that of a set-uid program with more rights.
#[tokio::test]
async fn a_call_is_not_made_with_the_rights_of_what_its_caller_becomes() {
    let inside = Inside::with(SandboxSpec { sudo: true, ..passing() }).await;
    inside.root("cp /usr/bin/id /usr/local/bin/id && chmod 4755 /usr/local/bin/id && touch /root-owned && chmod 644 /root-owned").await.ok();
    assert_eq!(inside.user("/usr/local/bin/id -u").await.ok(), "0", "it is a set-uid program");
    let words = inside.bring(&BITS_EXEC).await.join(" ");
    let script = format!(
        "for i in $(seq 150); do {words} /root-owned /usr/local/bin/id >/dev/null; done; stat -c %a /root-owned"
    );
    assert_eq!(inside.user(&script).await.ok(), "644");
    inside.end().await;
}

/// A broker has the caller's rights, and cannot have the walls that the caller built around itself.
#[tokio::test]
async fn a_broker_in_the_service_of_who_is_confined_by_landlock() {
    let secret = "echo secret > /home/user/secret; rm -f /home/user/new /home/user/set";
    for user in ["user", "root"] {
        let inside = Inside::new().await;
        inside.command(user, ExecSpec::shell(secret, path("/"))).await.ok();
        let open = inside.attack(user, &LANDLOCK, &["open"]).await.ok();
        assert!(open.lines().all(|line| line.ends_with(" done")), "{open}");
        inside.command(user, ExecSpec::shell(secret, path("/"))).await.ok();
        let closed = inside.attack(user, &LANDLOCK, &["closed"]).await.ok();
        assert!(closed.lines().count() == 5 && !closed.contains("done"), "{closed}");
        assert_eq!(
            inside.root("cat /home/user/secret; ls /home/user/new /home/user/set 2>/dev/null").await.out,
            "secret\n"
        );
        // Bits of a file that is there are no way to open it.
        inside.command(user, ExecSpec::shell("touch /home/user/new; chmod 4755 /home/user/new", path("/"))).await.ok();
        inside.end().await;
    }
}

/// Another sandbox could take `/proc` off, if a program of the host handed it the directory that it lies on. Then root inside can put files there
/// that say of everybody what it likes.
#[tokio::test]
async fn bits_by_a_proc_that_the_guest_has_made() {
    let shown = Shown::of(0);
    fs::write(shown.at("target"), "#!/bin/true").unwrap();
    let engine = engine().await;
    let volume = VolumeId::now();
    engine.make_volume(volume).await.unwrap();
    let both = View { source: Source::Volume(volume), at: path("/workspace/both"), writable: true };
    let one = Inside::of(engine.clone(), &SandboxSpec { views: vec![shown.view(), both.clone()], ..passing() }).await;
    let other = Inside::of(engine.clone(), &SandboxSpec { views: vec![both], ..passing() }).await;
    let chmod = "touch /home/user/own; chmod 4755 /home/user/own";
    one.user(chmod).await.ok();
    one.user(&format!("chmod 4755 {SEEN}/target")).await.refused();
    let tree = Path::new(env!("CARGO_TARGET_TMPDIR")).join("data/volumes").join(volume.to_string()).join("tree");
    let _relay = Relay::start(&tree.join("door"));
    let taking = other.start("root", &FORGE, &["take", "/workspace/both/door", "proc"]).await;
    one.attack("root", &FORGE, &["give", "/workspace/both/door"]).await.ok();
    assert_eq!(rest(taking).await.0.trim(), "taken", "the mount can be taken off");
    let uid = one.user("id -u").await.ok();
    one.attack("root", &FORGE, &["proc", &format!("{SEEN}/target"), &uid]).await.ok();
    one.user(chmod).await.refused();
    shown.is_clean();
    engine.destroy(one.sandbox.id()).await.unwrap();
    engine.destroy(other.sandbox.id()).await.unwrap();
    engine.remove_volume(volume).await.unwrap();
    engine.close().await;
}
