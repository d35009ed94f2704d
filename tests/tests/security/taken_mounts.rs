//! Mounts that are taken away or made read-only, and those who have got hold of them before.

use std::{
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use cabana_sandbox::{
    Code, Depth, Error, Lifetime, Process, Provider, Read, SandboxId, SandboxSpec, Search, SnapshotId, Source, Status,
    View, VolumeId, Wanted, WatchEvent, Write, WriteMode,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    attacks::{HOLD, Relay},
    inside::{Inside, engine, passing, path, rest, soon, unique, until},
};

const TAKEN: &str = "/workspace/taken";
const KEPT: &str = "/workspace/kept";
const KILLED: Status = Status::Signal(9);

fn data() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("data")
}

fn volume_at(volume: VolumeId, at: &str, writable: bool) -> View {
    View { source: Source::Volume(volume), at: path(at), writable }
}

/// A sandbox that sees two volumes, of which one is to be taken away.
struct Two {
    inside: Inside,
    taken: VolumeId,
    kept: VolumeId,
}

impl Two {
    async fn new() -> Self {
        Self::with(passing()).await
    }

    async fn with(spec: SandboxSpec) -> Self {
        let inside = Inside::with(spec).await;
        let two = Self { inside, taken: VolumeId::now(), kept: VolumeId::now() };
        for volume in [two.taken, two.kept] {
            two.inside.engine.make_volume(volume).await.unwrap();
        }
        two.change(&two.both()).await.unwrap();
        two.inside.root(&format!("echo note > {TAKEN}/note; echo note > {KEPT}/note")).await.ok();
        two
    }

    fn both(&self) -> [View; 2] {
        [volume_at(self.taken, TAKEN, true), volume_at(self.kept, KEPT, true)]
    }

    fn closed(&self) -> [View; 2] {
        [volume_at(self.taken, TAKEN, false), volume_at(self.kept, KEPT, true)]
    }

    async fn change(&self, views: &[View]) -> cabana_sandbox::Result<()> {
        soon("changing mounts", self.inside.sandbox.update(Wanted::Views(views.to_vec()))).await
    }

    async fn take_away(&self) -> cabana_sandbox::Result<()> {
        self.change(&self.both()[1..]).await
    }

    async fn make_read_only(&self) -> cabana_sandbox::Result<()> {
        self.change(&self.closed()).await
    }

    /// Where a volume lies on the host.
    fn on_host(volume: VolumeId) -> PathBuf {
        data().join("volumes").join(volume.to_string()).join("tree")
    }

    /// Somebody else writes to both, and then those who have hold of them try again.
    async fn go(&self) {
        for volume in [self.taken, self.kept] {
            fs::write(Self::on_host(volume).join("later"), "of others").unwrap();
            fs::write(Self::on_host(volume).join("note"), "of others").unwrap();
        }
        self.inside.root("touch /tmp/go").await.ok();
    }

    async fn hold(&self, how: &str, place: &str) -> Process {
        self.inside.start("root", &HOLD, &[how, place]).await
    }

    fn has(&self, name: &str) -> bool {
        Self::on_host(self.taken).join(name).exists()
    }

    async fn end(self) {
        self.inside.sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
        for volume in [self.taken, self.kept] {
            self.inside.engine.remove_volume(volume).await.unwrap();
        }
        self.inside.end().await;
    }
}

async fn ended(process: Process) -> (String, Status) {
    let (text, status) = soon("its end", rest(process)).await;
    (text.trim().to_owned(), status)
}

/// Who has hold of what is taken away is ended; who has the same hold of what stays goes on, and reads and writes.
async fn is_ended_with_its_mount(how: &str) {
    let two = Two::new().await;
    let (holder, control) = (two.hold(how, TAKEN).await, two.hold(how, KEPT).await);
    assert!(two.has(&format!("before-{how}")), "it could write before");
    two.take_away().await.unwrap();
    two.go().await;
    assert_eq!(ended(control).await, ("read done wrote done".to_owned(), Status::Code(0)));
    assert_eq!(ended(holder).await, (String::new(), KILLED));
    assert!(!two.has(&format!("by-{how}")));
    assert_eq!(fs::read_to_string(Two::on_host(two.taken).join("note")).unwrap(), "of others");
    assert_eq!(two.inside.root(&format!("ls {TAKEN}")).await.ok(), "");
    two.end().await;
}

/// What is open only to be read stays open, and nothing is written by it any more; of what stays writable it is as before.
async fn cannot_write_any_more(how: &str) {
    let two = Two::new().await;
    let (holder, control) = (two.hold(how, TAKEN).await, two.hold(how, KEPT).await);
    two.make_read_only().await.unwrap();
    two.go().await;
    let through = ("read done wrote done".to_owned(), Status::Code(0));
    assert_eq!(ended(control).await, through);
    assert_eq!(ended(holder).await, ("read done wrote Read-only-file-system".to_owned(), Status::Code(0)));
    assert!(!two.has(&format!("by-{how}")));
    // Nor does anything have to be ended to let it be written again.
    two.inside.root("rm /tmp/go").await.ok();
    let holder = two.hold("cwd", KEPT).await;
    two.change(&two.both()).await.unwrap();
    two.inside.root(&format!("echo x > {TAKEN}/again && touch /tmp/go")).await.ok();
    assert_eq!(ended(holder).await, through);
    two.end().await;
}

async fn is_ended_when_its_mount_is_made_read_only(how: &str) {
    let two = Two::new().await;
    let (holder, control) = (two.hold(how, TAKEN).await, two.hold(how, KEPT).await);
    two.make_read_only().await.unwrap();
    two.go().await;
    assert_eq!(ended(control).await, ("read done wrote done".to_owned(), Status::Code(0)));
    assert_eq!(ended(holder).await, (String::new(), KILLED));
    assert_eq!(fs::read_to_string(Two::on_host(two.taken).join("note")).unwrap(), "of others");
    assert_eq!(two.inside.root(&format!("cat {TAKEN}/note")).await.ok(), "of others");
    two.end().await;
}

/// The change is refused, both mounts are as before, and it can be made once the holder has ended.
async fn is_refused(how: &str, change: impl AsyncFn(&Two) -> cabana_sandbox::Result<()>) {
    let two = Two::new().await;
    let holder = two.hold(how, TAKEN).await;
    let refused = change(&two).await.unwrap_err();
    assert_eq!(refused.code(), Code::MountBusy, "{refused}");
    assert!(refused.to_string().contains(TAKEN), "{refused}");
    for place in [TAKEN, KEPT] {
        two.inside.root(&format!("grep note {place}/note && echo x > {place}/new")).await.ok();
    }
    two.go().await;
    assert_eq!(ended(holder).await, ("read done wrote done".to_owned(), Status::Code(0)));
    change(&two).await.unwrap();
    two.end().await;
}

macro_rules! holds {
    ($check:ident: $($name:ident = $how:literal),+ $(,)?) => {
        $(#[tokio::test]
        async fn $name() {
            $check($how).await;
        })+
    };
}

holds! { is_ended_with_its_mount:
    a_working_directory_in_a_mount_that_is_taken_away = "cwd",
    an_open_directory_of_a_mount_that_is_taken_away = "directory",
    an_o_path_descriptor_of_a_mount_that_is_taken_away = "path",
    a_root_directory_in_a_mount_that_is_taken_away = "root",
    a_threads_own_working_directory_in_a_mount_that_is_taken_away = "thread",
    a_threads_own_descriptors_of_a_mount_that_is_taken_away = "thread_files",
    an_open_file_of_a_mount_that_is_taken_away = "file",
    a_mapping_alone_of_a_mount_that_is_taken_away = "mapped",
}

holds! { cannot_write_any_more:
    a_working_directory_in_a_mount_that_is_made_read_only = "cwd",
    an_open_directory_of_a_mount_that_is_made_read_only = "directory",
    an_o_path_descriptor_of_a_mount_that_is_made_read_only = "path",
    a_root_directory_in_a_mount_that_is_made_read_only = "root",
    a_file_open_for_reading_in_a_mount_that_is_made_read_only = "file_to_read",
    a_directory_in_a_sockets_queue_of_a_mount_that_is_made_read_only = "queue",
}

holds! { is_ended_when_its_mount_is_made_read_only:
    a_file_open_for_writing_in_a_mount_that_is_made_read_only = "file",
    a_writable_mapping_alone_of_a_mount_that_is_made_read_only = "mapped",
}

#[tokio::test]
async fn a_descriptor_in_a_sockets_queue_keeps_a_mount_and_the_change_is_refused() {
    is_refused("queue", Two::take_away).await;
    // One that is idle and would go before it comes back as it was.
    let other_order = async |two: &Two| two.change(&[]).await;
    is_refused("queue", other_order).await;
}

#[tokio::test]
async fn a_writable_file_in_a_sockets_queue_keeps_a_mount_from_being_made_read_only() {
    is_refused("queue_of_a_file", Two::make_read_only).await;
}

#[tokio::test]
async fn a_daemon_that_stays_in_a_mount_that_is_taken_away() {
    let two = Two::new().await;
    let (holder, mut control) = (two.hold("daemon", TAKEN).await, two.hold("daemon", KEPT).await);
    two.take_away().await.unwrap();
    two.go().await;
    let said = async |process: &mut Process| match process.events.next().await {
        Some(Ok(cabana_sandbox::Event::Output(output))) => String::from_utf8_lossy(&output.bytes).trim().to_owned(),
        other => panic!("it said nothing: {other:?}"),
    };
    assert_eq!(soon("what the other daemon says", said(&mut control)).await, "read done wrote done");
    assert!(!two.has("by-daemon"));
    for process in [holder, control] {
        process.control.signal(9, cabana_sandbox::Target::Tree).await.unwrap();
        assert_eq!(ended(process).await, (String::new(), KILLED), "the daemon was ended, and its parent was not");
    }
    two.end().await;
}

#[tokio::test]
async fn a_program_that_runs_from_a_mount_that_is_taken_away() {
    let two = Two::new().await;
    let (holder, control) = (two.hold("program", TAKEN).await, two.hold("program", KEPT).await);
    two.take_away().await.unwrap();
    two.go().await;
    assert_eq!(ended(control).await.0, "its program runs");
    assert_eq!(ended(holder).await.0, "its program was-ended", "and its parent has no hold on anything");
    two.inside.root("pkill -x program").await.ok();
    two.end().await;
}

/// The kernel hangs a watch onto a file, and not onto a mount: it would hear of what others do there.
#[tokio::test]
async fn a_watch_on_a_mount_that_is_taken_away() {
    let two = Two::new().await;
    let (holder, control) = (two.hold("watch", TAKEN).await, two.hold("watch", KEPT).await);
    two.take_away().await.unwrap();
    two.go().await;
    assert_eq!(ended(control).await.0, "heard later,written");
    assert_eq!(ended(holder).await.0, "heard ignored,ignored");
    two.end().await;
}

/// Nobody has a copy of such a descriptor, so the process ends.
#[tokio::test]
async fn a_watch_of_a_thread_with_descriptors_of_its_own_on_a_mount_that_is_taken_away() {
    let two = Two::new().await;
    let (holder, control) = (two.hold("watch_thread", TAKEN).await, two.hold("watch_thread", KEPT).await);
    two.take_away().await.unwrap();
    two.go().await;
    assert_eq!(ended(control).await.0, "heard later,written");
    assert_eq!(ended(holder).await, (String::new(), KILLED));
    two.end().await;
}

#[tokio::test]
async fn a_paused_process_in_a_mount_that_is_taken_away() {
    let two = Two::with(SandboxSpec { lifetime: Lifetime::Persistent, ..passing() }).await;
    let (holder, control) = (two.hold("cwd", TAKEN).await, two.hold("cwd", KEPT).await);
    two.inside.engine.pause(two.inside.sandbox.id()).await.unwrap();
    two.take_away().await.unwrap();
    two.inside.engine.start(two.inside.sandbox.id()).await.unwrap();
    two.go().await;
    assert_eq!(ended(control).await.0, "read done wrote done");
    assert_eq!(ended(holder).await, (String::new(), KILLED));
    assert!(!two.has("by-cwd"));
    two.end().await;
}

/// A view that was renamed by the guest, together with the directory around it, and lies deep by now.
#[tokio::test]
async fn a_working_directory_in_a_mount_that_the_guest_moved() {
    let two = Two::new().await;
    let nested = [volume_at(two.taken, "/srv/a/b/taken", true), two.both()[1].clone()];
    two.change(&nested).await.unwrap();
    let holder = two.hold("cwd", "/srv/a/b/taken").await;
    let script = "import os
os.chdir('/srv')
os.rename('a', 'here')
for _ in range(40):
    os.mkdir('new')
    os.rename('here', 'new/' + 'n' * 200)
    os.rename('new', 'here')
print('moved')";
    assert_eq!(
        two.inside.command("root", cabana_sandbox::ExecSpec::argv(["python3", "-c", script], path("/"))).await.ok(),
        "moved"
    );
    two.take_away().await.unwrap();
    two.go().await;
    assert_eq!(ended(holder).await, (String::new(), KILLED));
    assert!(!two.has("by-cwd"));
    two.end().await;
}

/// A mount in a mount: the outer one goes only with it.
#[tokio::test]
async fn a_working_directory_in_a_mount_inside_of_a_mount() {
    let two = Two::new().await;
    let nested = [volume_at(two.kept, KEPT, true), volume_at(two.taken, "/workspace/kept/inner", true)];
    two.change(&nested).await.unwrap();
    let holder = two.hold("cwd", "/workspace/kept/inner").await;
    let control = two.hold("cwd", KEPT).await;
    // Only what is around it changes, and nobody is disturbed.
    two.change(&[volume_at(two.kept, KEPT, false), nested[1].clone()]).await.unwrap();
    two.go().await;
    assert_eq!(ended(control).await.0, "read done wrote Read-only-file-system");
    assert_eq!(ended(holder).await.0, "read done wrote done");
    two.inside.root("rm /tmp/go").await.ok();
    two.change(&nested).await.unwrap();
    let holder = two.hold("directory", "/workspace/kept/inner").await;
    two.change(&[]).await.unwrap();
    two.go().await;
    assert_eq!(ended(holder).await, (String::new(), KILLED));
    assert!(!two.has("by-directory"));
    two.end().await;
}

/// Whoever may write to a volume can remove the directory that another sandbox has a mount on. The kernel takes that mount off for
/// it, out of sight, and those in it stay.
#[tokio::test]
async fn a_mount_that_another_sandbox_detached() {
    let two = Two::new().await;
    let nested = [volume_at(two.kept, KEPT, true), volume_at(two.taken, "/workspace/kept/inner", true)];
    two.change(&nested).await.unwrap();
    let holder = two.hold("cwd", "/workspace/kept/inner").await;
    let other =
        Inside::of(two.inside.engine.clone(), &SandboxSpec { views: vec![two.both()[1].clone()], ..passing() }).await;
    other.root(&format!("rmdir {KEPT}/inner")).await.ok();
    two.inside.root("grep inner /proc/self/mountinfo").await.refused();
    for change in [&nested[..1], &nested[..], &[]] {
        let refused = two.change(change).await.unwrap_err();
        assert_eq!(refused.code(), Code::MountBusy, "{refused}");
    }
    two.go().await;
    assert_eq!(ended(holder).await.0, "read done wrote done", "this is what would go on");
    two.change(&[]).await.unwrap(); // nothing runs that could be in it
    other.engine.destroy(other.sandbox.id()).await.unwrap();
    two.end().await;
}

/// A program of the host hands it on: sandboxes cannot by themselves.
#[tokio::test]
async fn a_descriptor_that_was_handed_to_another_sandbox() {
    let two = Two::new().await;
    let spec = SandboxSpec { views: vec![two.both()[1].clone()], ..passing() };
    let other = Inside::of(two.inside.engine.clone(), &spec).await;
    let _relay = Relay::start(&Two::on_host(two.kept).join("door"));
    let holder = other.start("root", &HOLD, &["take", KEPT]).await;
    two.inside.attack("root", &HOLD, &["give", TAKEN, &format!("{KEPT}/door")]).await.ok();
    let refused = two.take_away().await.unwrap_err();
    assert_eq!(refused.code(), Code::MountBusy, "{refused}");
    two.go().await;
    other.root("touch /tmp/go").await.ok();
    assert_eq!(ended(holder).await.0, "holds\nhas done");
    two.take_away().await.unwrap();
    other.engine.destroy(other.sandbox.id()).await.unwrap();
    two.end().await;
}

// ── what the server itself has open there ───────────────────────────────────────────────────────────────────────────────

const LARGE: usize = 8 << 20;

async fn is_cut<T>(what: &str, rest: impl Future<Output = cabana_sandbox::Result<T>>) {
    match soon(what, rest).await {
        Err(error @ Error::MountChanged(_)) => assert_eq!(error.code(), Code::NotFound),
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what} went on"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_from_a_mount_that_is_taken_away_is_cut() {
    let two = Two::new().await;
    for volume in [two.taken, two.kept] {
        fs::write(Two::on_host(volume).join("large"), vec![7; LARGE]).unwrap();
    }
    let files = two.inside.files("root");
    let (_, taken) = files.read(&path(&format!("{TAKEN}/large")), Read::default()).await.unwrap();
    let (_, kept) = files.read(&path(&format!("{KEPT}/large")), Read::default()).await.unwrap();
    two.take_away().await.unwrap();
    is_cut("a download", taken.try_collect::<Vec<_>>()).await;
    let chunks: Vec<Bytes> = kept.try_collect().await.unwrap();
    assert_eq!(chunks.iter().map(Bytes::len).sum::<usize>(), LARGE, "from what stays it goes on");
    two.end().await;
}

/// A body that comes when it is let.
fn body() -> (mpsc::Sender<usize>, cabana_sandbox::Stream<Bytes>) {
    let (more, come) = mpsc::channel::<usize>(2);
    let chunks = stream::unfold(come, |mut come| async { Some((Ok(vec![7; come.recv().await?].into()), come)) });
    (more, chunks.boxed())
}

async fn upload_is_cut(change: impl AsyncFn(&Two) -> cabana_sandbox::Result<()>) {
    let two = Two::new().await;
    let begin = |place: &str| {
        let (files, (more, body)) = (two.inside.files("root"), body());
        let target = path(&format!("{place}/large"));
        more.try_send(LARGE).unwrap();
        let how = Write::new(WriteMode::InPlace);
        let mut writing = JoinSet::new();
        writing.spawn(async move { files.write(&target, how, body).await });
        (more, writing)
    };
    let ((more, mut taken), (more_kept, mut kept)) = (begin(TAKEN), begin(KEPT));
    for volume in [two.taken, two.kept] {
        let file = Two::on_host(volume).join("large");
        until("the upload has begun", async || file.metadata().is_ok_and(|file| file.len() >= LARGE as u64)).await;
    }
    change(&two).await.unwrap();
    for more in [more, more_kept] {
        more.send(LARGE).await.unwrap();
    }
    is_cut("an upload", async { taken.join_next().await.unwrap().unwrap() }).await;
    let kept = soon("the other upload", kept.join_next()).await.unwrap().unwrap();
    assert_eq!(kept.unwrap().size, 2 * LARGE as u64);
    assert_eq!(fs::metadata(Two::on_host(two.taken).join("large")).unwrap().len(), LARGE as u64);
    two.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_to_a_mount_that_is_taken_away_is_cut() {
    upload_is_cut(Two::take_away).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_to_a_mount_that_is_made_read_only_is_cut() {
    upload_is_cut(Two::make_read_only).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_of_a_mount_that_is_taken_away_is_cut() {
    let two = Two::new().await;
    fs::write(Two::on_host(two.taken).join("large"), vec![7; LARGE]).unwrap();
    let files = two.inside.files("root");
    let mut tar = files.pack(&path(TAKEN)).await.unwrap();
    tar.next().await.unwrap().unwrap(); // and then the client is slow
    two.take_away().await.unwrap();
    is_cut("an archive", tar.try_collect::<Vec<_>>()).await;
    two.end().await;
}

/// By descriptors: some of them lie in the mount, though what is packed begins above it.
#[tokio::test(flavor = "multi_thread")]
async fn a_zip_of_a_mount_that_is_taken_away_is_cut() {
    let two = Two::new().await;
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    fs::create_dir(Two::on_host(two.taken).join("d")).unwrap();
    fs::write(Two::on_host(two.taken).join("d/large"), noise.take(LARGE).collect::<Vec<u8>>()).unwrap();
    for number in 0..4000 {
        fs::write(Two::on_host(two.kept).join(format!("f{number}")), "x").unwrap();
    }
    let files = two.inside.files("root");
    let above = path(TAKEN).parent().unwrap();
    let mut zips = Vec::new();
    for dir in [path(TAKEN), above] {
        let mut zip = cabana_sandbox::zip(&files, &dir).await.unwrap();
        let mut seen = 0;
        while seen < 1 << 20 {
            seen += zip.next().await.unwrap().unwrap().len(); // and then the client is slow
        }
        zips.push(zip);
    }
    let mut kept = cabana_sandbox::zip(&files, &path(KEPT)).await.unwrap();
    kept.next().await.unwrap().unwrap();
    two.take_away().await.unwrap();
    for zip in zips {
        is_cut("a zip", zip.try_collect::<Vec<_>>()).await;
    }
    kept.try_collect::<Vec<_>>().await.expect("of what stays it goes on");
    two.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_and_a_search_of_a_mount_that_is_taken_away_are_cut() {
    let two = Two::new().await;
    for number in 0..4000 {
        fs::write(Two::on_host(two.taken).join(format!("f{number}")), "x").unwrap();
    }
    let files = two.inside.files("root");
    let mut list = files.list(&path(TAKEN)).await.unwrap();
    list.next().await.unwrap().unwrap();
    let budget = std::time::Duration::from_secs(60);
    let what =
        Search { root: path(TAKEN), globs: vec!["f*".into()], grep: None, ignore_files: false, max_hits: 4000, budget };
    let mut hits = files.search(what).await.unwrap();
    hits.next().await.unwrap().unwrap();
    two.take_away().await.unwrap();
    is_cut("a list", list.try_collect::<Vec<_>>()).await;
    is_cut("a search", hits.try_collect::<Vec<_>>()).await;
    two.end().await;
}

/// A client that watches by the server must not hear of what is not seen any more either.
#[tokio::test(flavor = "multi_thread")]
async fn a_clients_watch_of_a_mount_that_is_taken_away() {
    let two = Two::new().await;
    let files = two.inside.files("root");
    let mut on_it = files.watch(&path(TAKEN), Depth::Here).await.unwrap();
    let mut around = files.watch(&path("/workspace"), Depth::Below).await.unwrap();
    let (before, after) = (unique("before"), unique("after"));
    fs::write(Two::on_host(two.taken).join(&before), "").unwrap();
    for watch in [&mut on_it, &mut around] {
        let heard = soon("an event", watch.next()).await.unwrap().unwrap();
        assert!(format!("{heard:?}").contains(&before), "{heard:?}");
    }
    two.take_away().await.unwrap();
    fs::write(Two::on_host(two.taken).join(&after), "").unwrap();
    fs::write(Two::on_host(two.kept).join("last"), "").unwrap();
    let removed = async {
        loop {
            let heard = on_it.next().await.unwrap().unwrap();
            assert!(!format!("{heard:?}").contains(&after), "{heard:?}");
            if matches!(heard, WatchEvent::Changed(cabana_sandbox::Change::Remove, _)) {
                return;
            }
        }
    };
    soon("that its directory is gone", removed).await;
    let last = async {
        loop {
            let heard = around.next().await.unwrap().unwrap();
            assert!(!format!("{heard:?}").contains(&after), "{heard:?}");
            if format!("{heard:?}").contains("last") {
                return;
            }
        }
    };
    // What is seen still is heard of still, once the watch has begun again.
    let writes = async {
        loop {
            fs::write(Two::on_host(two.kept).join("last"), "x").unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = async { soon("what stays", last).await } => {}
        () = writes => {}
    }
    two.end().await;
}

/// The server remembers where `/etc` is, to read accounts; root inside can lead that into a mount.
#[tokio::test]
async fn accounts_that_lie_in_a_mount_that_is_taken_away() {
    let two = Two::new().await;
    two.inside.root(&format!("cp -a /etc {TAKEN}/etc && mv /etc /etc-of-old && ln -s {TAKEN}/etc /etc")).await.ok();
    two.inside.user("true").await.ok();
    two.take_away().await.unwrap();
    two.inside.command("0", cabana_sandbox::ExecSpec::shell("rm /etc && mv /etc-of-old /etc", path("/"))).await.ok();
    two.end().await;
}

// ── links where a mount is to be ────────────────────────────────────────────────────────────────────────────────────────

/// A guest's link led a late mount over its own `/etc`.
#[tokio::test]
async fn a_guests_link_where_a_late_mount_is_to_be() {
    let two = Two::new().await;
    two.inside.root("ln -s /etc /workspace/way && mkdir -p /srv/plain && ln -s plain /srv/beside").await.ok();
    let etc = two.inside.root("ls /etc").await.ok();
    for (at, link) in [
        ("/workspace/way/cron.d", "/workspace/way"),
        ("/workspace/way", "/workspace/way"),
        ("/workspace/way/new/deep", "/workspace/way"),
        ("/srv/beside/x", "/srv/beside"),
    ] {
        let [first, second] = two.both();
        let refused = two.change(&[first, second, volume_at(two.taken, at, true)]).await.unwrap_err();
        assert_eq!(refused.code(), Code::BadRequest, "{refused}");
        assert!(refused.to_string().contains(&format!("{link} is a symbolic link")), "{refused}");
    }
    assert_eq!(two.inside.root("ls /etc").await.ok(), etc, "nothing was made there, and nothing mounted");
    assert_eq!(two.inside.root("ls /srv/plain").await.ok(), "");
    two.change(&[volume_at(two.taken, "/srv/plain/x", true)]).await.unwrap();
    assert_eq!(two.inside.root("cat /srv/plain/x/note").await.ok(), "note");
    two.end().await;
}

/// Nobody is ended for a change that is refused for its path.
#[tokio::test]
async fn a_change_that_is_refused_for_a_link_ends_nobody() {
    let two = Two::new().await;
    two.inside.root("ln -s /etc /workspace/way").await.ok();
    let holder = two.hold("cwd", TAKEN).await;
    let refused = two.change(&[volume_at(two.kept, "/workspace/way/x", true)]).await.unwrap_err();
    assert_eq!(refused.code(), Code::BadRequest, "{refused}");
    two.go().await;
    assert_eq!(ended(holder).await.0, "read done wrote done");
    two.end().await;
}

/// The same of a template's link when a sandbox is made, and of a guest's at its next start.
#[tokio::test]
async fn a_link_of_a_base_where_a_mount_is_to_be() {
    let engine = engine().await;
    let (volume, name) = (VolumeId::now(), SnapshotId::now());
    engine.make_volume(volume).await.unwrap();
    let first = Inside {
        engine: engine.clone(),
        sandbox: engine
            .create(&SandboxId::random(), &SandboxSpec { lifetime: Lifetime::Persistent, ..passing() })
            .await
            .unwrap(),
    };
    first.root("ln -s /etc /srv/way").await.ok();
    let id = first.sandbox.id().clone();
    let base = engine.snapshot(&id, name).await.unwrap();
    let spec = |at: &str| SandboxSpec { base: base.clone(), views: vec![volume_at(volume, at, true)], ..passing() };
    let refused = engine.create(&SandboxId::random(), &spec("/srv/way/x")).await.err().unwrap();
    assert_eq!(refused.code(), Code::BadRequest, "{refused}");
    assert!(refused.to_string().contains("/srv/way is a symbolic link"), "{refused}");
    let plain = engine.create(&SandboxId::random(), &spec("/srv/plain/x")).await.unwrap();
    engine.destroy(plain.id()).await.unwrap();
    // The guest of the first one puts a link where its mount is at the next start.
    first.sandbox.update(Wanted::Views(vec![volume_at(volume, "/opt/seen/x", true)])).await.unwrap();
    first.root("mv /opt/seen /opt/moved && ln -s /etc /opt/seen").await.ok();
    engine.stop(&id).await.unwrap();
    let refused = engine.start(&id).await.err().unwrap();
    assert_eq!(refused.code(), Code::BadRequest, "{refused}");
    assert!(refused.to_string().contains("/opt/seen is a symbolic link"), "{refused}");
    engine.set_views(&id, &[]).await.unwrap(); // the way out
    drop(engine.start(&id).await.unwrap());
    engine.destroy(&id).await.unwrap();
    engine.remove_snapshot(name).await.unwrap();
    engine.remove_volume(volume).await.unwrap();
    engine.close().await;
}
