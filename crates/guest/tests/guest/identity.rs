//! One thread of a process of root acts for a user: it is that user, in everything that it does.

use std::{fs, os::unix::fs::MetadataExt};

use cabana_guest::{Listing, Reader, Rooted, Watch, Writer};
use cabana_sandbox::{Alter, Change, Depth, Error, WatchEvent};

use super::kit::{Kit, is_root, path, set_mode};

const USER: u32 = 4242;

/// Runs on a thread of its own, as the user. Root only.
pub(crate) fn as_user(step: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            let (uid, gid) = (rustix::process::Uid::from_raw(USER), rustix::process::Gid::from_raw(USER));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            step();
        });
        acting.join().unwrap();
    });
}

#[test]
fn a_thread_with_a_users_identity_sees_and_owns_what_that_user_does() {
    if !is_root() {
        return;
    }
    let kit = Kit::new();
    set_mode(kit.temp.path(), 0o755);
    kit.file("secret", "root's");
    set_mode(&kit.at("secret"), 0o600);
    kit.file("readable", "all's");
    kit.file("closed/f", "");
    set_mode(&kit.at("closed"), 0o700);
    kit.dir("home/sub");
    for name in ["home", "home/sub"] {
        std::os::unix::fs::chown(kit.at(name), Some(USER), Some(USER)).unwrap();
    }
    as_user(|| {
        assert!(matches!(kit.read("/secret"), Err(Error::Denied(_))));
        assert!(matches!(kit.replace("/readable", "mine"), Err(Error::Denied(_))));
        assert!(matches!(kit.replace("/closed/f", "mine"), Err(Error::Denied(_))));
        assert!(matches!(kit.rooted.list(&path("/closed")), Err(Error::Denied(_))));
        assert!(matches!(kit.rooted.alter(&Alter::RemoveAll(path("/closed"))), Err(Error::Denied(_))));
        assert!(matches!(kit.rooted.pack(&path("/"), &mut std::io::sink()), Err(Error::Denied(_))));
        assert_eq!(kit.read("/readable").unwrap(), b"all's");
        let mut watch = kit.rooted.watch(&path("/home"), Depth::Below).unwrap();
        kit.replace("/home/sub/f", "mine").unwrap();
        assert_eq!(watch.take().unwrap(), [WatchEvent::Changed(Change::Create, path("/home/sub/f"))]);
        kit.rooted.alter(&Alter::SetMode(path("/home/sub/f"), 0o640)).unwrap();
        kit.rooted.alter(&Alter::SetTags(path("/home/sub/f"), [("k".into(), "v".into())].into())).unwrap();
        let mut tar = Vec::new();
        kit.rooted.pack(&path("/home/sub"), &mut tar).unwrap();
        kit.rooted.unpack(&path("/home"), &mut &tar[..]).unwrap();
    });
    for name in ["home/sub/f", "home/f"] {
        let meta = fs::metadata(kit.at(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (USER, USER, 0o640));
    }
    assert!(kit.at("closed/f").exists());
}

#[test]
fn what_is_under_way_can_go_from_thread_to_thread() {
    fn is_send<T: Send>() {}
    is_send::<(Rooted, Reader, Writer, Listing, Watch)>();
}
