//! What processes of ours resolve for others: trees in which a directory becomes a link while they are walked, account files
//! that are something else, terminals, and what a layer says to overlayfs.

use std::{
    ffi::CString,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use cabana_engine::{Engine, TemplateSource};
use cabana_model::Code;
use cabana_sandbox::{
    Alter, Base, Depth, Event, ExecSpec, FileInfo, Files, Hit, Overrides, Read, Result, SandboxPath, SandboxSpec,
    Search, Stdio, Stream, TermSize, TreeItem, Walk, WatchEvent, Write, read_all, run, search, walk_tree, zip,
};
use futures_util::{StreamExt, TryStreamExt};

use crate::{
    inside::{Inside, PATIENCE, config, named, passing, path, rest, soon, unique, until},
    soak_file_races::{end, rounds, swapping},
};

/// The files as a provider shows them that has no walk of its own: then a tree is walked by paths, a list and a read at a time.
struct ByPath(Arc<dyn Files>);

#[async_trait]
impl Files for ByPath {
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo> {
        self.0.stat(path).await
    }
    async fn list(&self, dir: &SandboxPath) -> Result<Stream<Vec<FileInfo>>> {
        self.0.list(dir).await
    }
    async fn read(&self, path: &SandboxPath, what: Read) -> Result<(FileInfo, Stream<Bytes>)> {
        self.0.read(path, what).await
    }
    async fn write(&self, path: &SandboxPath, how: Write, body: Stream<Bytes>) -> Result<FileInfo> {
        self.0.write(path, how, body).await
    }
    async fn alter(&self, step: Alter) -> Result<()> {
        self.0.alter(step).await
    }
    async fn watch(&self, dir: &SandboxPath, depth: Depth) -> Result<Stream<WatchEvent>> {
        self.0.watch(dir, depth).await
    }
}

/// In a directory that only root inside may enter.
const CLOSED: &str = "/srv/closed";
const NAME: &str = "closed-name";
const CONTENT: &str = "closed-content";
const TOP: &str = "/home/user";

/// A sandbox in which `/home/user/d` changes places with a link to the closed directory.
async fn with_swapping() -> (Inside, cabana_sandbox::Process) {
    let inside = Inside::new().await;
    let script = format!("mkdir -p {CLOSED} && echo {CONTENT} > {CLOSED}/{NAME} && chmod 700 {CLOSED}");
    inside.root(&script).await.ok();
    let swap = swapping(&inside, CLOSED).await;
    (inside, swap)
}

fn by_path(files: &Arc<dyn Files>) -> Arc<dyn Files> {
    Arc::new(ByPath(files.clone()))
}

/// Root inside, who could read it: only the way there is at fault.
fn both(inside: &Inside) -> (Arc<dyn Files>, Arc<dyn Files>) {
    let files = inside.files("root");
    (by_path(&files), files)
}

/// The names and the content of ZIPs, as another program reads them. Nothing of one that broke off.
async fn unzipped(files: &Arc<dyn Files>, count: u32) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..count {
        let Ok(archive) = zip(files, &path(TOP)).await else { continue };
        let Ok(parts) = archive.try_collect::<Vec<Bytes>>().await else { continue };
        fs::write(dir.path().join(format!("{number}.zip")), parts.concat()).unwrap();
    }
    let script = "import glob, sys, zipfile
for name in glob.glob(sys.argv[1] + '/*.zip'):
    z = zipfile.ZipFile(name)
    print(*(i.filename + ' ' + (z.read(i).decode(errors='replace') if i.external_attr >> 28 == 8 else '') for i in z.infolist()), end='\\0')";
    let said = Command::new("python3").args(["-c", script]).arg(dir.path()).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap().split_terminator('\0').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn zipping_a_tree_in_which_a_directory_becomes_a_link() {
    let (inside, swap) = with_swapping().await;
    let (by_path, files) = both(&inside);
    let astray = |zipped: &[String]| zipped.iter().any(|zip| zip.contains(CONTENT) || zip.contains(NAME));
    until("a zip by paths brings other files", async || astray(&unzipped(&by_path, 10).await)).await;
    let zipped = unzipped(&files, rounds(300)).await;
    assert!(!astray(&zipped), "{zipped:?}");
    assert!(zipped.iter().any(|zip| zip.contains("d/f mine")), "what lies there was never in it: {zipped:?}");
    end(inside, swap).await;
}

async fn names(files: &Arc<dyn Files>) -> Vec<String> {
    let Ok(walk) = walk_tree(files, &path(TOP), Walk::ALL).await else { return Vec::new() };
    let items: Vec<Vec<TreeItem>> = walk.try_collect().await.unwrap_or_default();
    let name = |item: TreeItem| match item {
        TreeItem::Entry(entry) => Some(entry.path.to_string()),
        TreeItem::Content(_) => None,
    };
    items.into_iter().flatten().filter_map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn listing_a_tree_in_which_a_directory_becomes_a_link() {
    let (inside, swap) = with_swapping().await;
    let (by_path, files) = both(&inside);
    let astray = |names: &[String]| names.iter().any(|name| name.ends_with(NAME));
    until("a list by paths names other files", async || astray(&names(&by_path).await)).await;
    let mut mine = 0;
    for round in 0..rounds(500) {
        let names = names(&files).await;
        assert!(!astray(&names), "round {round}: {names:?}");
        mine += u32::from(names.iter().any(|name| name.ends_with("/f")));
    }
    assert!(mine > 0, "what lies there was never in it");
    end(inside, swap).await;
}

async fn hits(files: &Arc<dyn Files>) -> Vec<Hit> {
    let what = Search {
        root: path(TOP),
        globs: Vec::new(),
        grep: Some(format!("{CONTENT}|mine")),
        ignore_files: false,
        max_hits: 100,
        budget: Duration::from_secs(10),
    };
    let Ok(hits) = search(files, what).await else { return Vec::new() };
    hits.try_concat().await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn searching_a_tree_in_which_a_directory_becomes_a_link() {
    let (inside, swap) = with_swapping().await;
    let (by_path, files) = both(&inside);
    let has = |hits: &[Hit], what: &str| {
        hits.iter().any(|hit| matches!(hit, Hit::Line { text, .. } if String::from_utf8_lossy(text).contains(what)))
    };
    until("a search by paths finds other files", async || has(&hits(&by_path).await, CONTENT)).await;
    let mut mine = 0;
    for round in 0..rounds(300) {
        let hits = hits(&files).await;
        assert!(!has(&hits, CONTENT), "round {round}: {hits:?}");
        mine += u32::from(has(&hits, "mine"));
    }
    assert!(mine > 0, "what lies there was never found");
    end(inside, swap).await;
}

/// A rename to another file system copies.
#[tokio::test(flavor = "multi_thread")]
async fn moving_a_tree_in_which_a_directory_becomes_a_link() {
    let (inside, swap) = with_swapping().await;
    let files = inside.files("root");
    let closed_name = path("/home/user/d/closed-name");
    let by_path = || read_all(&*files, &closed_name, 100);
    until("by its path the other file is read", async || by_path().await.is_ok_and(|text| text.starts_with(b"closed")))
        .await;
    let mut moved = 0;
    for round in 0..rounds(60) {
        // What is moved holds the two names: they are put back for the next round.
        let to = format!("/dev/shm/moved-{round}");
        let step = Alter::Rename(path(TOP), path(&to));
        moved += u32::from(soon("a move", files.alter(step)).await.is_ok());
        for at in [TOP, &to] {
            let Ok(walk) = walk_tree(&files, &path(at), Walk::Content).await else { continue };
            let items: Vec<Vec<TreeItem>> = walk.try_collect().await.unwrap_or_default();
            let astray = |item: &TreeItem| matches!(item, TreeItem::Content(bytes) if bytes.starts_with(b"closed"));
            assert!(!items.iter().flatten().any(astray), "round {round}");
        }
        let back = format!(
            "rm -rf {to}; mkdir -p {TOP}; cd {TOP}; [ -e d ] || [ -L d ] || mkdir d; [ -e l ] || [ -L l ] || \
             ln -s {CLOSED} l; for n in d l; do [ -L $n ] || echo mine > $n/f; done; chown -R user {TOP}; test -e {CLOSED}/{NAME}"
        );
        inside.root(&back).await;
    }
    assert_eq!(inside.root(&format!("cat {CLOSED}/{NAME}")).await.ok(), CONTENT, "nor was it removed through the link");
    assert!(moved > 0, "nothing was ever moved");
    end(inside, swap).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_a_tree_in_which_a_directory_becomes_a_link() {
    let (inside, swap) = with_swapping().await;
    let files = inside.files("root");
    let mut there = files.watch(&path(CLOSED), Depth::Here).await.unwrap();
    let mut watch = files.watch(&path(TOP), Depth::Below).await.unwrap();
    let mut told = Vec::new();
    for round in 0..rounds(20) {
        inside.root(&format!("touch {CLOSED}/new-{round}")).await.ok();
        for _ in 0..1000 {
            let Some(Ok(event)) = soon("an event", watch.next()).await else { panic!("the watch ended") };
            told.push(event);
        }
    }
    let names = |event: &WatchEvent| match event {
        WatchEvent::Changed(_, path) => path.to_string(),
        WatchEvent::Renamed(from, to) => format!("{from} {to}"),
        WatchEvent::Overflow => String::new(),
    };
    assert!(!told.is_empty() && told.iter().all(|event| !names(event).contains("new-")), "{told:?}");
    let seen = soon("an event", there.next()).await.unwrap().unwrap();
    assert!(names(&seen).contains("new-"), "the control: whoever watches it is told: {seen:?}");
    end(inside, swap).await;
}

async fn code_of(inside: &Inside, user: &str) -> Option<Code> {
    let mut spec = ExecSpec::shell("true", path("/"));
    spec.user = Some(named(user));
    soon(user, run(&*inside.sandbox, spec, 100)).await.err().map(|error| error.code())
}

#[tokio::test]
async fn a_group_number_that_no_sandbox_has() {
    let inside = Inside::new().await;
    let script = "for id in 65535 65536 131072 4294967294 4294967295 99999999999 -1 0x10; do \
        echo \"g$id:x:$id:user,root\" >> /etc/group; done";
    inside.root(script).await.ok();
    for (user, own) in [("user", "1000"), ("root", "0")] {
        let groups = inside.command(user, ExecSpec::shell("id -G", path("/"))).await.ok();
        assert_eq!(groups, format!("{own} 65535"), "those that there can be, and no others");
        inside.files(user).stat(&path("/etc/group")).await.unwrap();
        let stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
        let spec = ExecSpec { stdio, ..ExecSpec::shell("id -G", path("/")) };
        assert!(inside.command(user, spec).await.ok().contains("65535"));
    }
    // More groups than the kernel takes of anybody.
    inside.root("seq 2 70000 | sed 's/.*/n&:x:&:user/' > /tmp/g; cat /tmp/g >> /etc/group").await.ok();
    assert_eq!(code_of(&inside, "user").await, None);
    inside.end().await;
}

#[tokio::test]
async fn a_user_with_a_number_that_no_sandbox_has() {
    let inside = Inside::new().await;
    let script = "echo far:x:131072:5::/:/bin/sh >> /etc/passwd; echo odd:x:5:131072::/:/bin/sh >> /etc/passwd; \
        echo near:x:65535:65535::/:/bin/sh >> /etc/passwd";
    inside.root(script).await.ok();
    for user in ["far", "odd", "131072", "4294967294"] {
        assert_eq!(code_of(&inside, user).await, Some(Code::UnknownUser), "{user}");
        let read = inside.files(user).read(&path("/etc/hostname"), Read::default()).await.err();
        assert_eq!(read.map(|error| error.code()), Some(Code::UnknownUser), "{user}");
        let owner = inside.files("root").alter(Alter::SetOwner(path("/tmp"), named(user))).await.err();
        assert_eq!(owner.map(|error| error.code()), Some(Code::UnknownUser), "{user}");
    }
    let mut spec = ExecSpec::shell("true", path("/"));
    spec.user = Some(named("far"));
    let refused = run(&*inside.sandbox, spec, 100).await.err().unwrap().to_string();
    assert!(refused.contains("far") && refused.contains("131072"), "it says which, and why: {refused}");
    assert_eq!(inside.command("near", ExecSpec::shell("id -u", path("/"))).await.ok(), "65535", "the control");
    inside.end().await;
}

/// In place of `/etc/passwd` or `/etc/group`: each is read for every command, by a thread that has the rights of the host's root.
const NO_ACCOUNT_FILES: [&str; 12] = [
    "mkfifo $f",
    "mkdir $f",
    "ln -s /dev/zero $f",
    "ln -s /dev/tty $f",
    "ln -s /proc/1/environ $f",
    "ln -s /proc/self/environ $f",
    "ln -s /proc/kmsg $f",
    "ln -s $f $f",
    "python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' $f",
    "truncate -s 8T $f",
    "head -c 4000000 /dev/urandom > $f",
    "yes 'a:x:1:1::/:/bin/sh' | head -c 4000000 | tr '\\n' , > $f",
];

#[tokio::test]
async fn account_files_that_are_none_leave_users_by_number() {
    let inside = Inside::new().await;
    for file in ["/etc/passwd", "/etc/group"] {
        inside.root(&format!("cp {file} {file}.good")).await.ok();
        for way in NO_ACCOUNT_FILES {
            let plant = format!("f={file}; rm -rf $f; {way}; test -e $f || test -L $f");
            let mut spec = ExecSpec::shell(plant, path("/"));
            spec.user = Some(named("0"));
            run(&*inside.sandbox, spec, 1000).await.unwrap();
            // By number, as root inside: whoever has to repair it can.
            assert_eq!(code_of(&inside, "0").await, None, "{way} as {file}");
            let by_name = code_of(&inside, "user").await;
            let wanted = if file == "/etc/passwd" { Some(Code::UnknownUser) } else { None };
            assert_eq!(by_name, wanted, "{way} as {file}");
            soon(way, inside.files("0").stat(&path("/tmp"))).await.unwrap();
        }
        let mut spec = ExecSpec::shell(format!("rm -rf {file}; mv {file}.good {file}"), path("/"));
        spec.user = Some(named("0"));
        run(&*inside.sandbox, spec, 1000).await.unwrap();
        inside.still_works().await;
    }
    inside.end().await;
}

#[tokio::test]
async fn a_terminal_where_the_guest_has_had_its_way_with_the_directory_of_terminals() {
    let inside = Inside::new().await;
    let ways = [
        "true",
        "mv /dev/pts /dev/old; ln -s /etc /dev/pts",
        "rm -rf /dev/pts/*; ln -s /etc/hostname /dev/pts/ptmx",
        "mkfifo /dev/pts/pipe; mv /dev/pts/pipe /dev/pts/ptmx",
        "rm -f /dev/ptmx; ln -s /etc/hostname /dev/ptmx",
        "mount -t tmpfs none /dev/pts; umount /dev/pts",
        "chmod 666 /dev/pts/ptmx",
    ];
    for way in ways {
        inside.root(way).await;
        let stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
        let spec = ExecSpec { stdio, ..ExecSpec::shell("tty; stat -f -c %T /dev/pts; stty size", path("/")) };
        let said = soon(way, inside.command("user", spec)).await.ok();
        assert!(said.contains("/dev/pts/") && said.contains("devpts") && said.contains("24 80"), "{way}: {said}");
    }
    inside.end().await;
}

/// Every attribute in a tree, by the path of what has it.
fn attributes(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let mut list = vec![0; 65_536];
        let length = rustix::fs::llistxattr(entry.path(), &mut list).unwrap_or(0);
        let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        all.extend(names.map(|name| (entry.path(), String::from_utf8_lossy(name).into_owned())));
        if entry.file_type().unwrap().is_dir() {
            all.extend(attributes(&entry.path()));
        }
    }
    all
}

/// A root file system in which files and directories speak to overlayfs.
fn speaking_root(at: &Path) {
    crate::archives::small_root(at);
    fs::create_dir(at.join("there")).unwrap();
    fs::write(at.join("there/content"), CONTENT).unwrap();
    fs::create_dir(at.join("redirected")).unwrap();
    fs::write(at.join("thin"), "").unwrap();
    for (name, attribute, value) in [
        ("redirected", "user.overlay.redirect", &b"/there"[..]),
        ("redirected", "user.overlay.opaque", b"x"),
        ("thin", "user.overlay.metacopy", b""),
        ("thin", "user.overlay.redirect", b"/there/content"),
        ("thin", "user.note", b"kept"),
        ("redirected", "trusted.overlay.redirect", b"/there"),
    ] {
        let set = rustix::fs::setxattr(at.join(name), attribute, value, rustix::fs::XattrFlags::empty());
        assert!(set.is_ok() || attribute.starts_with("trusted."), "{attribute}: {set:?}");
    }
}

async fn added(work: &Path, source: &TemplateSource) -> Arc<Engine> {
    let engine = Engine::open(config(work.join("data"))).await.unwrap();
    let add = || engine.templates().add("evil", source, &Overrides::default(), &mut |_| {});
    tokio::task::block_in_place(add).unwrap();
    engine
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_brings_nothing_that_overlayfs_would_believe() {
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("root");
    speaking_root(&root);
    let tar = work.path().join("template.tar");
    let packed = Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "-C"])
        .arg(&root)
        .arg("-cf")
        .arg(&tar)
        .arg(".")
        .output()
        .unwrap();
    assert!(packed.status.success(), "{packed:?}");
    for (number, source) in [TemplateSource::Tar(tar), TemplateSource::Directory(root)].into_iter().enumerate() {
        let work = work.path().join(number.to_string());
        fs::create_dir(&work).unwrap();
        let engine = added(&work, &source).await;
        let names: Vec<String> =
            attributes(&work.join("data/layers")).into_iter().map(|(_, attribute)| attribute).collect();
        assert_eq!(names, ["user.note"], "{source:?}");
        engine.close().await;
    }
}

/// What a layer says that was imported before such notes were dropped, or was written to by the operator's own hands.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_speaks_to_overlayfs_is_not_believed() {
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("root");
    speaking_root(&root);
    let engine = added(work.path(), &TemplateSource::Directory(root.clone())).await;
    let layers: Vec<PathBuf> = fs::read_dir(work.path().join("data/layers"))
        .unwrap()
        .map(|layer| layer.unwrap().path().join("tree"))
        .collect();
    let layer = layers.iter().find(|layer| layer.join("redirected").exists()).unwrap();
    for (name, attribute, value) in
        [("redirected", "user.overlay.redirect", "/there"), ("thin", "user.overlay.redirect", "/there/content")]
    {
        let at = CString::new(layer.join(name).as_os_str().as_bytes()).unwrap();
        rustix::fs::setxattr(&at, attribute, value.as_bytes(), rustix::fs::XattrFlags::empty()).unwrap();
    }
    let inside = Inside::of(engine, &SandboxSpec { base: Base::Named("evil".into()), ..passing() }).await;
    assert_eq!(inside.root("cat /there/content").await.ok(), CONTENT);
    let said = inside.root("cat /thin; for f in /redirected/*; do [ -e $f ] && cat $f; done; true").await.ok();
    assert!(!said.contains(CONTENT), "{said}");
    let options = inside
        .root("while read -r line; do case $line in *' / '*overlay*) echo $line;; esac; done < /proc/self/mountinfo");
    let options = options.await.ok();
    assert!(options.contains("redirect_dir=nofollow") && !options.contains("metacopy=on"), "{options}");
    inside.end().await;
    assert!(is_followed_where_it_may(&root), "the control: by another mount the same note leads there");
}

/// With overlayfs told to believe what `trusted.*` says, on the host.
fn is_followed_where_it_may(root: &Path) -> bool {
    let work = tempfile::tempdir().unwrap();
    let script = r#"cd "$1"; mkdir upper work mnt over; mkdir over/redirected
        setfattr -n trusted.overlay.redirect -v /there over/redirected
        mount -t overlay -o redirect_dir=on,lowerdir=over:"$2",upperdir=upper,workdir=work none mnt
        cat mnt/redirected/content"#;
    let said =
        Command::new("unshare").args(["-m", "sh", "-ec", script, "sh"]).arg(work.path()).arg(root).output().unwrap();
    String::from_utf8_lossy(&said.stdout).contains(CONTENT)
}

/// Which process of ours opens it does not matter: a command that outlives the test is none.
#[tokio::test]
async fn a_shell_that_is_something_else() {
    let inside = Inside::new().await;
    let canary = unique("canary");
    let mut process = {
        let mut spec = ExecSpec::argv(["/usr/bin/python3", "-c", SHELL, &canary], path("/"));
        spec.user = Some(named("root"));
        spec.timeout = Some(PATIENCE);
        inside.sandbox.exec(spec).await.unwrap()
    };
    let Some(Ok(Event::Output(_))) = process.events.next().await else { panic!("it did not begin") };
    // Found by a look at `/bin/bash`, whatever is there.
    let refused = soon("a shell", run(&*inside.sandbox, ExecSpec::shell("true", path("/")), 100)).await;
    assert_eq!(refused.err().map(|error| error.code()), Some(Code::ProgramNotFound));
    process.control.signal(9, cabana_sandbox::Target::Tree).await.unwrap();
    let _ = rest(process).await;
    inside.end().await;
}

const SHELL: &str = "import os, sys, time
for shell in ['/usr/bin/bash', '/usr/bin/sh', '/usr/bin/dash']:
    os.path.lexists(shell) and os.unlink(shell)
os.symlink('/proc/1/root/bin/bash', '/usr/bin/bash')
os.mkfifo('/usr/bin/sh')
print('begun', flush=True)
time.sleep(600)";
