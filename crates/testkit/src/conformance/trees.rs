//! What stands on top of the files, over this provider: walk, copy, search, pack.

use std::{collections::BTreeSet, io::Read as _, sync::Arc, time::Duration};

use bytes::Bytes;
use cabana_sandbox::{
    Alter, Error, Hit, Kind, Result, SandboxPath, Search, TreeItem, Walk, copy, make_dirs, pack, read_all, search,
    unpack, walk, walk_tree,
};
use futures_util::TryStreamExt;

use super::{
    stage::{Room, Stage, body},
    verdict::{Outcome, ensure, refused, same},
};

/// The part of the path below the room.
fn below(room: &Room, path: &SandboxPath) -> String {
    String::from_utf8_lossy(&path.as_bytes()[room.dir.as_bytes().len() + 1..]).into_owned()
}

async fn plant(room: &Room, files: &[(&str, &str)]) -> Result<()> {
    for (name, content) in files {
        if let Some(dir) = room.path(name)?.parent() {
            make_dirs(&*room.files, &dir).await?;
        }
        room.write(name, (*content).to_owned()).await?;
    }
    Ok(())
}

pub(super) async fn xb_09_walk_gives_files_only_and_follows_no_links(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    plant(&room, &[("a", "x"), ("d/b", "x"), ("d/e/.c", "x")]).await?;
    room.make_dir("empty").await?;
    room.link("d/up", "..").await?;
    room.link("d/file", "b").await?;
    let mut seen: Vec<_> = walk(&room.files, &room.dir)
        .await?
        .map_ok(|entry| (below(&room, &entry.path), entry.kind))
        .try_collect()
        .await?;
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    let (file, link) = (Kind::File, Kind::Symlink);
    let wanted = [("a", file), ("d/b", file), ("d/e/.c", file), ("d/file", link), ("d/up", link)];
    same!(seen, wanted.map(|(name, kind)| (name.to_owned(), kind)));
    Ok(())
}

pub(super) async fn xb_09_walk_of_a_missing_directory_is_an_error(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    refused!(walk(&room.files, &room.path("missing")?).await, Error::NotFound(_));
    room.write("file", "x").await?;
    refused!(walk(&room.files, &room.path("file")?).await, Error::NotDirectory(_));
    Ok(())
}

pub(super) async fn walk_tree_gives_each_directory_before_what_it_holds_and_files_with_their_bytes(
    stage: Arc<Stage>,
) -> Outcome {
    let room = stage.room().await?;
    plant(&room, &[("a", "content of a"), ("d/b", "content of b"), ("d/e/c", ""), ("outside/o", "outside")]).await?;
    room.link("d/way", "../outside").await?;
    let wanted = [
        ("a", "content of a"),
        ("d", ""),
        ("d/b", "content of b"),
        ("d/e", ""),
        ("d/e/c", ""),
        ("d/way", ""),
        ("outside", ""),
        ("outside/o", "outside"),
    ];
    let walked = async |what| -> Result<Vec<(String, String)>> {
        let mut all: Vec<(String, String)> = Vec::new();
        for item in walk_tree(&room.files, &room.dir, what).await?.try_concat().await? {
            match (item, all.last_mut()) {
                (TreeItem::Entry(entry), _) => all.push((below(&room, &entry.path), String::new())),
                (TreeItem::Content(bytes), Some(file)) => file.1 += &String::from_utf8_lossy(&bytes),
                (TreeItem::Content(_), None) => all.push(("bytes before any entry".into(), String::new())),
            }
        }
        Ok(all)
    };
    let owned = |wanted: &[(&str, &str)]| -> Vec<(String, String)> {
        wanted.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
    };
    same!(walked(Walk::Content).await?, owned(&wanted));
    let names = wanted.map(|(name, _)| (name, ""));
    same!(walked(Walk::ALL).await?, owned(&names));
    same!(walked(Walk::Entries { levels: 1 }).await?, owned(&[("a", ""), ("d", ""), ("outside", "")]));
    Ok(())
}

pub(super) async fn xb_09_copy_flattens_links(stage: Arc<Stage>) -> Outcome {
    let (from, to) = (stage.room().await?, stage.room().await?);
    plant(&from, &[("tree/a", "content of a"), ("tree/d/b", "content of b"), ("outside/o", "outside")]).await?;
    from.set_mode("tree/a", 0o750).await?;
    from.link("tree/file-link", "a").await?;
    from.link("tree/dir-link", "../outside").await?;
    copy(&*from.files, &from.path("tree")?, &*to.files, &to.path("copy")?).await?;
    let wanted = [
        ("copy/a", "content of a"),
        ("copy/d/b", "content of b"),
        ("copy/file-link", "content of a"),
        ("copy/dir-link/o", "outside"),
    ];
    for (name, content) in wanted {
        same!(to.read(name).await?, content, "{name}");
        same!(to.stat(name).await?.kind, Kind::File, "{name} is no link");
    }
    same!(to.stat("copy/dir-link").await?.kind, Kind::Directory);
    same!(to.stat("copy/a").await?.mode, 0o750);

    copy(&*from.files, &from.path("tree/file-link")?, &*to.files, &to.path("single")?).await?;
    same!(to.read("single").await?, "content of a", "one file is copied too");
    refused!(copy(&*from.files, &from.path("missing")?, &*to.files, &to.path("x")?).await, Error::NotFound(_));
    Ok(())
}

pub(super) async fn xb_09_copy_of_a_circle_is_an_error(stage: Arc<Stage>) -> Outcome {
    let (from, to) = (stage.room().await?, stage.room().await?);
    plant(&from, &[("tree/a", "x")]).await?;
    from.link("tree/up", "..").await?;
    refused!(copy(&*from.files, &from.path("tree")?, &*to.files, &to.path("copy")?).await, Error::Loop(_));
    from.make_dir("other").await?;
    from.link("other/self", "self").await?;
    refused!(copy(&*from.files, &from.path("other")?, &*to.files, &to.path("copy-2")?).await, Error::Loop(_));
    Ok(())
}

pub(super) async fn make_dirs_makes_what_is_missing(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for _ in 0..2 {
        make_dirs(&*room.files, &room.path("a/b/c")?).await?;
    }
    same!(room.stat("a/b/c").await?.mode, 0o755);
    room.link("link", "a").await?;
    make_dirs(&*room.files, &room.path("link/b/d")?).await?;
    same!(room.stat("a/b/d").await?.kind, Kind::Directory);
    room.write("file", "x").await?;
    refused!(make_dirs(&*room.files, &room.path("file")?).await, Error::NotDirectory(_));
    refused!(make_dirs(&*room.files, &room.path("file/below")?).await, Error::NotDirectory(_));
    Ok(())
}

fn find(room: &Room, globs: &[&str]) -> Search {
    Search {
        root: room.dir.clone(),
        globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        grep: None,
        ignore_files: false,
        max_hits: 1000,
        budget: Duration::from_secs(60),
    }
}

async fn entries(room: &Room, what: Search) -> Result<BTreeSet<String>> {
    let hits = outcome(room, what).await?;
    let entries = hits.iter().filter_map(|hit| match hit {
        Hit::Entry(info) => Some(below(room, &info.path)),
        Hit::Line { .. } => None,
    });
    Ok(entries.collect())
}

pub(super) async fn search_finds_entries_by_globs(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    plant(&room, &[("a.txt", ""), ("b.md", ""), ("src/c.txt", ""), ("src/deep/d.txt", ""), ("src/deep/e.md", "")])
        .await?;
    let asked: [(&[&str], &[&str]); 5] = [
        (&[], &["a.txt", "b.md", "src/c.txt", "src/deep/d.txt", "src/deep/e.md"]),
        (&["**/*.txt"], &["a.txt", "src/c.txt", "src/deep/d.txt"]),
        (&["src/**"], &["src/c.txt", "src/deep/d.txt", "src/deep/e.md"]),
        (&["**/*.txt", "!src/deep/**"], &["a.txt", "src/c.txt"]),
        (&["**/*.none"], &[]),
    ];
    for (globs, wanted) in asked {
        let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        same!(entries(&room, find(&room, globs)).await?, wanted, "globs {globs:?}");
    }
    Ok(())
}

pub(super) async fn search_finds_lines_with_their_numbers(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    plant(&room, &[("a.txt", "needle one\nhay\nthe needle"), ("d/b.txt", "hay\nneedle\n"), ("c.md", "needle\n")])
        .await?;
    room.write("binary.txt", &b"\0\0needle\n"[..]).await?;
    let what = Search { grep: Some("^(the )?need[l]e".into()), ..find(&room, &["**/*.txt", "!binary.txt"]) };
    let mut lines = Vec::new();
    for hit in outcome(&room, what).await? {
        let Hit::Line { path, line, text } = hit else {
            return Err(super::verdict::Failure::new("a grep finds lines"));
        };
        lines.push((below(&room, &path), line, text));
    }
    lines.sort();
    let wanted = [("a.txt", 1, "needle one"), ("a.txt", 3, "the needle"), ("d/b.txt", 2, "needle")];
    same!(lines, wanted.map(|(path, line, text)| (path.to_owned(), line, Bytes::from_static(text.as_bytes()))));
    Ok(())
}

pub(super) async fn search_honours_ignore_files_when_asked(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    plant(&room, &[("keep.txt", ""), ("drop.log", ""), ("target/x.txt", ""), ("d/own.txt", ""), ("d/other.txt", "")])
        .await?;
    plant(&room, &[(".gitignore", "*.log\ntarget/\n"), ("d/.gitignore", "own.txt\n")]).await?;
    let all = ["d/other.txt", "d/own.txt", "drop.log", "keep.txt", "target/x.txt"];
    let globs = ["**/*.txt", "**/*.log"];
    same!(entries(&room, find(&room, &globs)).await?, all.map(str::to_owned).into());
    let asked = Search { ignore_files: true, globs: vec!["!**/.gitignore".into()], ..find(&room, &[]) };
    same!(entries(&room, asked).await?, ["d/other.txt", "keep.txt"].map(str::to_owned).into());
    Ok(())
}

pub(super) async fn search_ends_at_max_hits(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let many = "needle\n".repeat(50);
    for number in 0..20 {
        room.write(&format!("{number}"), many.clone()).await?;
    }
    let hits = outcome(&room, Search { max_hits: 7, ..find(&room, &[]) }).await?;
    same!(hits.len(), 7, "entries");
    let grep = Search { max_hits: 63, grep: Some("needle".into()), ..find(&room, &[]) };
    same!(outcome(&room, grep).await?.len(), 63, "lines");
    Ok(())
}

/// What it finds, or the error that it begins or ends with.
async fn outcome(room: &Room, what: Search) -> Result<Vec<Hit>> {
    search(&room.files, what).await?.try_concat().await
}

pub(super) async fn search_refuses_a_bad_pattern(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("file", "x").await?;
    refused!(outcome(&room, Search { grep: Some("(".into()), ..find(&room, &[]) }).await, Error::Invalid { .. });
    refused!(outcome(&room, find(&room, &["[z-a]"])).await, Error::Invalid { .. });
    Ok(())
}

pub(super) async fn search_below_a_missing_directory_is_not_found(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    refused!(outcome(&room, Search { root: room.path("missing")?, ..find(&room, &[]) }).await, Error::NotFound(_));
    Ok(())
}

pub(super) async fn pack_and_unpack_round_trip(stage: Arc<Stage>) -> Outcome {
    let (from, to) = (stage.room().await?, stage.room().await?);
    let long = format!("{}/{}", "long".repeat(50), "name".repeat(60));
    plant(&from, &[("a", "content of a"), ("d/e/empty", ""), (&long, "long")]).await?;
    from.write("large", super::stage::pattern(1_000_001)).await?;
    from.make_dir("d/none").await?;
    let odd = from.path(b"\xff odd")?;
    cabana_sandbox::write_all(&*from.files, &odd, "odd").await?;
    from.set_mode("a", 0o4751).await?;
    from.link("link", "d/../a").await?;
    from.link("out", "/etc/passwd").await?;
    from.link("longer", "x/".repeat(150)).await?;
    from.files.alter(Alter::SetMode(from.path("d/e")?, 0o555)).await?;

    let tar = pack(&from.files, &from.dir).await?;
    unpack(&*to.files, &to.dir, tar).await?;
    same!(to.names().await?, from.names().await?);
    for name in ["a", "d/e/empty", "large", &long] {
        same!(to.read(name).await? == from.read(name).await?, true, "{name} has the same content");
        same!(to.stat(name).await?.mode, from.stat(name).await?.mode, "{name}");
    }
    same!(to.read_path(&to.path(b"\xff odd")?).await?, "odd");
    for name in ["link", "out", "longer"] {
        let text = |info: cabana_sandbox::FileInfo| info.link.map(|link| link.text);
        same!(text(to.stat(name).await?), text(from.stat(name).await?), "{name}");
    }
    same!(to.stat("d/none").await?.kind, Kind::Directory);
    same!(to.stat("d/e").await?.mode, 0o555);
    Ok(())
}

/// Read by another implementation than wrote it.
pub(super) async fn a_packed_archive_is_a_tar(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let long = format!("{}/{}", "long".repeat(30), "name".repeat(30));
    plant(&room, &[("dir/file", "content"), (&long, "long"), ("empty", "")]).await?;
    room.link("dir/link", "file").await?;
    let bytes: Vec<Bytes> = pack(&room.files, &room.dir).await?.try_collect().await?;
    let bytes = bytes.concat();
    let mut found = BTreeSet::new();
    for entry in tar::Archive::new(bytes.as_slice()).entries()? {
        let mut entry = entry?;
        let mut content = String::new();
        entry.read_to_string(&mut content)?;
        let name =
            String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").trim_end_matches('/').to_owned();
        let link = entry.link_name_bytes().map(|link| String::from_utf8_lossy(&link).into_owned()).unwrap_or_default();
        if !name.is_empty() && name != "." {
            found.insert((name, content, link));
        }
    }
    let wanted = [
        ("dir", "", ""),
        ("dir/file", "content", ""),
        ("dir/link", "", "file"),
        ("empty", "", ""),
        (&long[..120], "", ""),
        (&long, "long", ""),
    ];
    same!(found, wanted.map(|(name, content, link)| (name.to_owned(), content.to_owned(), link.to_owned())).into());
    ensure!(bytes.ends_with(&[0; 1024]), "it has no end mark");

    room.make_dir("again").await?;
    unpack(&*room.files, &room.path("again")?, body([bytes])).await?;
    same!(read_all(&*room.files, &room.path("again/dir/link")?, 100).await?, "content");
    Ok(())
}
