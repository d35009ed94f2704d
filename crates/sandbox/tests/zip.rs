//! A tree as a ZIP, as other programs read it.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

use std::{collections::BTreeMap, fs::File, io::Write as _, process::Command, sync::Arc, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use cabana_sandbox::{
    Alter, Depth, Error, FileInfo, Files, Kind, Link, Provider, Read, Result, SandboxId, SandboxPath, Stream,
    WatchEvent, Write, make_dirs, write_all, zip,
};
use cabana_testkit::Fake;
use futures_util::{StreamExt, TryStreamExt, stream};

fn path(text: impl Into<Vec<u8>>) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

/// The files of a new sandbox, with an empty directory `/tmp/tree`.
async fn files() -> Arc<dyn Files> {
    let sandbox = Fake::new().create(&SandboxId::random(), &Fake::spec()).await.unwrap();
    let files = sandbox.files(None);
    make_dirs(&*files, &path("/tmp/tree")).await.unwrap();
    files
}

async fn whole(archive: Stream<Bytes>) -> Vec<u8> {
    archive
        .try_fold(Vec::new(), async |mut all, part| {
            all.extend_from_slice(&part);
            Ok(all)
        })
        .await
        .unwrap()
}

/// What `unzip -t` and a script say; the script has the archive as `z`.
#[track_caller]
fn read_by_others(archive: &[u8], script: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("it.zip");
    File::create(&file).unwrap().write_all(archive).unwrap();
    let tested = Command::new("unzip").arg("-tq").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&tested.stdout);
    let empty = tested.status.code() == Some(1) && said.contains("zipfile is empty");
    assert!(tested.status.success() || empty, "{tested:?}");
    let script =
        format!("import sys, zipfile, stat\nz = zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\n{script}");
    let ran = Command::new("python3").arg("-c").arg(script).arg(&file).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

const NAMES: &str = "print(sorted(i.filename for i in z.infolist()))";

#[tokio::test]
async fn other_programs_read_files_directories_links_modes_and_times() {
    let files = files().await;
    make_dirs(&*files, &path("/tmp/tree/empty")).await.unwrap();
    make_dirs(&*files, &path("/tmp/tree/a/b")).await.unwrap();
    write_all(&*files, &path("/tmp/tree/a/b/run.sh"), "echo hi\n").await.unwrap();
    files.alter(Alter::SetMode(path("/tmp/tree/a/b/run.sh"), 0o750)).await.unwrap();
    write_all(&*files, &path("/tmp/tree/größe.txt"), "ü".repeat(100_000)).await.unwrap();
    write_all(&*files, &path("/tmp/tree/nothing"), "").await.unwrap();
    files.alter(Alter::Symlink { at: path("/tmp/tree/link"), text: b"a/b/run.sh".to_vec() }).await.unwrap();
    let modified = files.stat(&path("/tmp/tree/nothing")).await.unwrap().modified;

    let archive = whole(zip(&files, &path("/tmp/tree")).await.unwrap()).await;

    assert!(archive.len() < 10_000, "it is packed: {}", archive.len());
    let script = r#"
for i in sorted(z.infolist(), key=lambda i: i.filename):
    mode = i.external_attr >> 16
    kind = 'd' if stat.S_ISDIR(mode) else 'l' if stat.S_ISLNK(mode) else 'f' if stat.S_ISREG(mode) else '?'
    text = z.read(i).decode()
    print(i.filename, kind, oct(stat.S_IMODE(mode)) if kind == 'f' else '', len(text) if len(text) > 20 else repr(text))
extra = z.getinfo('nothing').extra
print(int.from_bytes(extra[5:9], 'little'))
"#;
    let seconds = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let expected = format!(
        "a/ d  ''\na/b/ d  ''\na/b/run.sh f 0o750 'echo hi\\n'\nempty/ d  ''\ngröße.txt f 0o644 100000\nlink l  \
         'a/b/run.sh'\nnothing f 0o644 ''\n{seconds}\n"
    );
    assert_eq!(read_by_others(&archive, script), expected);
}

/// Where it is unpacked, a link to `/etc/passwd` would be one to that machine's.
#[tokio::test]
async fn what_leads_out_is_not_in_the_archive_and_names_lead_nowhere_else() {
    let files = files().await;
    make_dirs(&*files, &path("/tmp/tree/d")).await.unwrap();
    for (name, text) in [("passwd", "/etc/passwd"), ("up", "../.."), ("d/far", "../../x"), ("d/near", "../d/..\\evil")]
    {
        files.alter(Alter::Symlink { at: path(format!("/tmp/tree/{name}")), text: text.into() }).await.unwrap();
    }
    for name in ["..\\..\\evil.txt", "C:evil", "line\nbreak"] {
        write_all(&*files, &path(format!("/tmp/tree/{name}")), "x").await.unwrap();
    }
    let archive = whole(zip(&files, &path("/tmp/tree")).await.unwrap()).await;
    assert_eq!(read_by_others(&archive, NAMES), "['..%5C..%5Cevil.txt', 'C%3Aevil', 'd/', 'line%0Abreak']\n");
}

#[tokio::test]
async fn an_empty_directory_is_an_empty_archive_and_a_missing_one_an_error() {
    let files = files().await;
    let archive = whole(zip(&files, &path("/tmp/tree")).await.unwrap()).await;
    assert_eq!(read_by_others(&archive, NAMES), "[]\n");
    assert!(matches!(zip(&files, &path("/missing")).await, Err(Error::NotFound(_))));
    write_all(&*files, &path("/tmp/file"), "x").await.unwrap();
    assert!(matches!(zip(&files, &path("/tmp/file")).await, Err(Error::NotDirectory(_))));
}

#[tokio::test]
async fn a_name_that_is_no_utf_8_keeps_its_bytes() {
    let files = files().await;
    write_all(&*files, &path(b"/tmp/tree/\xff\xfe.txt".to_vec()), "x").await.unwrap();
    let archive = whole(zip(&files, &path("/tmp/tree")).await.unwrap()).await;
    // Without the mark of UTF-8, this reader takes names for the letters of an old code page.
    let names =
        "print([i.filename.encode('cp437') for i in z.infolist()], [i.flag_bits & 0x800 for i in z.infolist()])";
    assert_eq!(read_by_others(&archive, names), "[b'\\xff\\xfe.txt'] [0]\n");
}

/// A directory with very many links in it.
struct Crowd(u32);

#[async_trait]
impl Files for Crowd {
    async fn list(&self, dir: &SandboxPath) -> Result<Stream<Vec<FileInfo>>> {
        let link = |number: u32| FileInfo {
            path: dir.join(number.to_string().as_bytes()).unwrap(),
            kind: Kind::Symlink,
            size: 1,
            mode: 0o777,
            owner: "user".into(),
            group: "user".into(),
            modified: SystemTime::UNIX_EPOCH,
            link: Some(Link { text: b"x".to_vec(), target: None }),
            tags: BTreeMap::new(),
        };
        let all: Vec<_> = (0..self.0).map(link).collect();
        Ok(stream::iter([Ok(all)]).boxed())
    }
    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo> {
        Err(Error::NotFound(path.clone()))
    }
    async fn read(&self, path: &SandboxPath, _: Read) -> Result<(FileInfo, Stream<Bytes>)> {
        Err(Error::NotFound(path.clone()))
    }
    async fn write(&self, path: &SandboxPath, _: Write, _: Stream<Bytes>) -> Result<FileInfo> {
        Err(Error::Denied(path.clone()))
    }
    async fn alter(&self, _: Alter) -> Result<()> {
        Err(Error::Gone)
    }
    async fn watch(&self, _: &SandboxPath, _: Depth) -> Result<Stream<WatchEvent>> {
        Err(Error::Gone)
    }
}

#[tokio::test]
async fn more_entries_than_fit_into_the_short_count_are_all_there() {
    let files: Arc<dyn Files> = Arc::new(Crowd(66_000));
    let archive = whole(zip(&files, &path("/tmp/tree")).await.unwrap()).await;
    assert_eq!(read_by_others(&archive, "print(len(z.infolist()), len(set(z.namelist())))"), "66000 66000\n");
}

/// Bytes that cannot be packed: what is handed over is as much as was read.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    bytes.take(length).collect()
}

#[tokio::test]
async fn a_tree_that_changes_meanwhile_gives_a_whole_archive() {
    let files = files().await;
    for name in ["a", "b", "c", "d", "e"] {
        make_dirs(&*files, &path(format!("/tmp/tree/{name}"))).await.unwrap();
        write_all(&*files, &path(format!("/tmp/tree/{name}/noise")), noise(1 << 20)).await.unwrap();
    }
    let mut archive = zip(&files, &path("/tmp/tree")).await.unwrap();
    let mut all = archive.try_next().await.unwrap().unwrap().to_vec();
    // Some of them have been read by now, and some not: each is changed in its own way.
    files.alter(Alter::RemoveAll(path("/tmp/tree/a"))).await.unwrap();
    files.alter(Alter::Remove(path("/tmp/tree/b/noise"))).await.unwrap();
    make_dirs(&*files, &path("/tmp/tree/b/noise")).await.unwrap();
    write_all(&*files, &path("/tmp/tree/c/noise"), noise(3 << 20)).await.unwrap();
    write_all(&*files, &path("/tmp/tree/d/noise"), noise(10)).await.unwrap();
    files.alter(Alter::Remove(path("/tmp/tree/e/noise"))).await.unwrap();
    files.alter(Alter::Symlink { at: path("/tmp/tree/e/noise"), text: b"/nowhere".to_vec() }).await.unwrap();
    all.extend(whole(archive).await);
    let names = read_by_others(&all, NAMES);
    for name in ["a", "b", "c", "d", "e"] {
        assert!(names.contains(&format!("'{name}/'")), "{names}");
    }
    assert!(names.contains("'c/noise'") && names.contains("'d/noise'"), "{names}");
}

#[tokio::test]
async fn one_that_breaks_off_is_no_archive() {
    let files = files().await;
    write_all(&*files, &path("/tmp/tree/noise"), noise(1 << 20)).await.unwrap();
    let mut archive = zip(&files, &path("/tmp/tree")).await.unwrap();
    let mut part = Vec::new();
    while part.len() < 512 << 10 {
        part.extend(archive.try_next().await.unwrap().unwrap());
    }
    let place = tempfile::NamedTempFile::new().unwrap();
    place.as_file().write_all(&part).unwrap();
    let tested = Command::new("unzip").arg("-tq").arg(place.path()).output().unwrap();
    assert!(!tested.status.success(), "{tested:?}");
}
