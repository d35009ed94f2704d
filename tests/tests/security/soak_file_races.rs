//! Names that change under the server's hands: a directory and a link are exchanged without a pause while it works there.

use std::fs;

use cabana_sandbox::{Alter, Process, make_dirs, read_all, write_all};
use futures_util::{StreamExt, stream};

use crate::{
    archives::tar_of,
    attacks::SWAP,
    inside::{Inside, path, rest, soon},
};

/// `CABANA_SOAK_ROUNDS` makes them many.
pub(crate) fn rounds(few: u32) -> u32 {
    std::env::var("CABANA_SOAK_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}

/// `/home/user/d`, a directory with a file, changes places with a link that leads to `target`.
pub(crate) async fn swapping(inside: &Inside, target: &str) -> Process {
    let script = format!("mkdir -p /home/user/d && echo mine > /home/user/d/f && ln -s {target} /home/user/l");
    inside.user(&script).await.ok();
    inside.start("user", &SWAP, &["/home/user/d", "/home/user/l", "/home/user/stop"]).await
}

/// Ends it; it must have been at work.
pub(crate) async fn end(inside: Inside, swap: Process) {
    inside.user("touch /home/user/stop").await.ok();
    let (said, _) = rest(swap).await;
    assert!(said.trim().parse::<u64>().unwrap() > 100, "the names were exchanged: {said}");
    inside.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writing_and_reading_through_a_directory_that_becomes_a_link_to_the_host() {
    let canary = tempfile::tempdir().unwrap();
    fs::write(canary.path().join("f"), "of the host").unwrap();
    fs::set_permissions(canary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    fs::set_permissions(canary.path().join("f"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let host = canary.path().to_str().unwrap();
    let inside = Inside::new().await;
    // Where the link leads inside: writes that go through it land here.
    inside.user(&format!("mkdir -p {host} && echo inside > {host}/f")).await.ok();
    let swap = swapping(&inside, host).await;
    let mut through = 0;
    for round in 0..rounds(300) {
        let user = if round % 2 == 0 { "user" } else { "root" };
        let files = inside.files(user);
        let _ = write_all(&*files, &path("/home/user/d/f"), format!("round {round}")).await;
        let read = read_all(&*files, &path("/home/user/d/f"), 1024).await.unwrap_or_default();
        assert_ne!(read, "of the host", "round {round}");
        let _ = files.alter(Alter::MakeDir(path("/home/user/d/made"), 0o755)).await;
        let _ = files.alter(Alter::Remove(path("/home/user/d/made"))).await;
        let _ = files.alter(Alter::SetMode(path("/home/user/d/f"), 0o600)).await;
        through +=
            u32::from(read_all(&*files, &path(&format!("{host}/f")), 1024).await.unwrap_or_default() != "inside\n");
    }
    assert!(through > 0, "no write ever went through the link: the race was not run");
    assert_eq!(fs::read_to_string(canary.path().join("f")).unwrap(), "of the host");
    assert_eq!(fs::read_dir(canary.path()).unwrap().count(), 1);
    let mode = fs::metadata(canary.path().join("f")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o666);
    end(inside, swap).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_tree_in_which_a_directory_becomes_a_link() {
    let inside = Inside::new().await;
    inside.user("mkdir -p /home/user/precious/deep && touch /home/user/precious/deep/keep").await.ok();
    let swap = swapping(&inside, "/home/user/precious").await;
    let files = inside.files("user");
    let mut removed = 0;
    for round in 0..rounds(150) {
        let tree = path("/home/user/d");
        removed += u32::from(soon("a removal", files.alter(Alter::RemoveAll(tree.clone()))).await.is_ok());
        assert!(files.stat(&path("/home/user/precious/deep/keep")).await.is_ok(), "followed in round {round}");
        // Both names again, whichever is gone.
        let _ = make_dirs(&*files, &path("/home/user/d/sub/sub")).await;
        let _ = files.alter(Alter::Symlink { at: path("/home/user/l"), text: b"/home/user/precious".to_vec() }).await;
        let _ = make_dirs(&*files, &path("/home/user/l")).await;
    }
    assert!(removed > 0, "nothing was removed");
    end(inside, swap).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unpacking_into_a_directory_that_becomes_a_link() {
    let inside = Inside::new().await;
    inside.user("mkdir -p /home/user/precious && echo mine > /home/user/precious/f").await.ok();
    let swap = swapping(&inside, "/home/user/precious").await;
    let mut taken = 0;
    for round in 0..rounds(150) {
        let user = if round % 2 == 0 { "user" } else { "root" };
        let tar = tar_of(&[("d/f", "unpacked"), ("d/new", "unpacked")]);
        let body = stream::once(async move { Ok(tar.into()) }).boxed();
        taken += u32::from(inside.files(user).unpack(&path("/home/user"), body).await.is_ok());
        let there = read_all(&*inside.files("user"), &path("/home/user/precious/f"), 100).await.unwrap();
        assert_eq!(there, "mine\n", "through the link in round {round}");
        assert!(inside.files("user").stat(&path("/home/user/precious/new")).await.is_err(), "round {round}");
    }
    assert!(taken > 0, "nothing was ever unpacked");
    end(inside, swap).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packing_a_directory_that_becomes_a_link() {
    let inside = Inside::new().await;
    inside.root("mkdir -p /srv/closed && echo closed-content > /srv/closed/f && chmod 700 /srv/closed").await.ok();
    let swap = swapping(&inside, "/srv/closed").await;
    let mut seen = 0;
    for round in 0..rounds(100) {
        let Ok(packed) = inside.files("root").pack(&path("/home/user")).await else { continue };
        let bytes = packed.filter_map(|part| async { part.ok() }).collect::<Vec<_>>().await.concat();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("closed-content"), "through the link in round {round}");
        seen += u32::from(text.contains("mine\n"));
    }
    assert!(seen > 0, "nothing was packed");
    end(inside, swap).await;
}
