//! Whatever is tried, nothing outside the root changes, and what is packed is what comes out.

use std::fs;

use cabana_sandbox::{Alter, Read, Search, User, Write, WriteMode};
use proptest::{collection::vec, prelude::*};

use super::kit::{Kit, path, set_mode};

#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>, u32),
    Dir(u32),
    Link(String),
    Hard(usize),
}

fn nodes() -> impl Strategy<Value = Vec<(String, Node)>> {
    let name = "[a-c]{1}(/[a-cä ]{1,2}){0,3}|[a-z]{120}/x";
    let node = prop_oneof![
        3 => (vec(any::<u8>(), 0..2000), prop::sample::select(vec![0o644u32, 0o755, 0o400, 0o4755]))
            .prop_map(|(body, mode)| Node::File(body, mode)),
        2 => prop::sample::select(vec![0o755u32, 0o700, 0o1777, 0o2755]).prop_map(Node::Dir),
        2 => "[a-z./]{1,140}".prop_map(Node::Link),
        1 => any::<usize>().prop_map(Node::Hard),
    ];
    vec((name, node), 0..20)
}

fn build(kit: &Kit, at: &str, nodes: &[(String, Node)]) {
    kit.dir(at);
    let mut files: Vec<String> = Vec::new();
    for (name, node) in nodes {
        let name = format!("{at}/{name}");
        let (real, top) = (kit.at(&name), kit.at(at));
        // A link made before may lead anywhere on this machine: nothing is built behind one.
        let behind_a_link = real.ancestors().take_while(|above| **above != top).any(|above| above.is_symlink());
        if behind_a_link || real.exists() || fs::create_dir_all(real.parent().unwrap()).is_err() {
            continue;
        }
        match node {
            Node::File(body, mode) => {
                fs::write(&real, body).unwrap();
                set_mode(&real, *mode);
                files.push(name);
            }
            Node::Dir(mode) => {
                fs::create_dir(&real).unwrap();
                set_mode(&real, *mode);
            }
            Node::Link(text) => std::os::unix::fs::symlink(text, &real).unwrap(),
            Node::Hard(n) if !files.is_empty() => fs::hard_link(kit.at(&files[n % files.len()]), &real).unwrap(),
            Node::Hard(_) => {}
        }
    }
}

const PLACES: [&str; 10] =
    ["/a", "/b", "/a/b", "/a/b/c", "/l", "/l/a", "/out", "/out/canary", "/up/canary", "/a/l/../x"];

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn a_tree_that_is_packed_and_unpacked_is_the_same(nodes in nodes()) {
        let kit = Kit::light();
        build(&kit, "from", &nodes);
        kit.dir("to");
        let mut tar = Vec::new();
        kit.rooted.pack(&path("/from"), &mut tar).unwrap();
        kit.rooted.unpack(&path("/to"), &mut &tar[..]).unwrap();
        prop_assert_eq!(kit.digest("from"), kit.digest("to"));
        // And over what is there already.
        kit.rooted.unpack(&path("/to"), &mut &tar[..]).unwrap();
        prop_assert_eq!(kit.digest("from"), kit.digest("to"));
    }

    #[test]
    fn no_sequence_of_steps_touches_what_lies_outside(steps in vec((0u8..11, 0usize..9, 0usize..9, 0u8..5), 1..40)) {
        let kit = Kit::light();
        kit.link("out", kit.temp.path());
        kit.link("up", "../../../../../../../../..");
        for (step, a, b, variant) in steps {
            let (a, b) = (path(PLACES[a]), path(PLACES[b]));
            let _ = match step {
                0 => kit.rooted.alter(&Alter::MakeDir(a, 0o777)),
                1 => kit.rooted.alter(&Alter::Rename(a, b)),
                2 => kit.rooted.alter(&Alter::RemoveAll(a)),
                3 => kit.rooted.alter(&Alter::SetMode(a, 0o700)),
                4 => kit.rooted.alter(&Alter::SetOwner(a, User::new("12").unwrap())),
                5 => kit.rooted.alter(&Alter::Symlink { at: a, text: match variant {
                    0 => b"/".to_vec(),
                    1 => b"..".to_vec(),
                    2 => b"../../canary".to_vec(),
                    3 => kit.temp.path().as_os_str().as_encoded_bytes().to_vec(),
                    _ => b.as_bytes().to_vec(),
                } }),
                6 => kit.rooted.alter(&Alter::Remove(a)),
                7 => kit.rooted.alter(&Alter::SetTags(a, [("k".into(), "v".into())].into())),
                8 => {
                    let mode = [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append, WriteMode::CreateNew][usize::from(variant) % 4];
                    kit.write(&a.to_string(), Write::new(mode), "evil").map(drop)
                }
                9 => {
                    let mut tar = Vec::new();
                    let _ = kit.rooted.pack(&a, &mut tar);
                    kit.rooted.unpack(&b, &mut &tar[..])
                }
                _ => {
                    let what = Search { root: a.clone(), globs: vec![], grep: Some("outside".into()), ignore_files: true,
                        max_hits: 10, budget: std::time::Duration::from_secs(5) };
                    let mut seen = 0;
                    let _ = kit.rooted.search(&what, &mut |hits| { seen += hits.len(); true });
                    prop_assert_eq!(seen, 0, "the canary's text was found");
                    if let Ok((_, mut reader)) = kit.rooted.read(&a, Read::default()) {
                        let first = reader.next_chunk().unwrap();
                        prop_assert_ne!(first.as_deref(), Some(super::kit::CANARY.as_bytes()));
                    }
                    Ok(())
                }
            };
            kit.canary_is_well();
        }
    }
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn random_bytes_are_no_archive_and_do_no_harm(bytes in vec(any::<u8>(), 0..4000)) {
        let kit = Kit::light();
        prop_assert!(kit.rooted.unpack(&path("/"), &mut &bytes[..]).is_err() || bytes.iter().take(512).all(|b| *b == 0));
        kit.canary_is_well();
    }

    #[test]
    fn a_damaged_archive_never_panics_and_never_leaves_its_directory(
        nodes in nodes(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        mend in any::<bool>(),
    ) {
        let kit = Kit::light();
        build(&kit, "from", &nodes);
        let mut tar = Vec::new();
        kit.rooted.pack(&path("/from"), &mut tar).unwrap();
        for (at, byte) in flips {
            let at = at.index(tar.len());
            tar[at] ^= byte;
            // With a checksum that is right again the damage gets further.
            let start = at / 512 * 512;
            if mend && tar[start + 257..].starts_with(b"ustar") {
                let mut header = tar::Header::new_old();
                header.as_mut_bytes().copy_from_slice(&tar[start..start + 512]);
                header.set_cksum();
                tar[start..start + 512].copy_from_slice(header.as_bytes());
            }
        }
        kit.dir("to");
        let _ = kit.rooted.unpack(&path("/to"), &mut &tar[..]);
        let _ = cabana_guest::tree::import_tar(
            std::os::fd::AsFd::as_fd(&super::kit::dir_fd(&kit.at("to"))), &mut &tar[..], super::kit::HOST,
            &mut cabana_guest::tree::Allowance::of_holes(1 << 20), &mut |_| ());
        kit.canary_is_well();
        prop_assert_eq!(kit.names(""), ["from", "to"]);
    }
}

#[test]
fn a_link_that_changes_all_the_time_never_leads_out() {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };
    let kit = Kit::light();
    kit.dir("a/b");
    kit.dir("w");
    let (stop, root, out) = (Arc::new(AtomicBool::new(false)), kit.at(""), kit.temp.path().to_owned());
    let swapper = std::thread::spawn({
        let stop = stop.clone();
        move || {
            for text in ["/a/b", "../../..", out.to_str().unwrap(), "/a"].iter().cycle() {
                let _ = std::os::unix::fs::symlink(text, root.join("next"));
                let _ = fs::rename(root.join("next"), root.join("w/l"));
                let _ = fs::rename(root.join("a/b"), root.join("b"));
                let _ = fs::rename(root.join("b"), root.join("a/b"));
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    });
    for _ in 0..2000 {
        let _ = kit.replace("/w/l/canary", "evil");
        let _ = kit.write("/w/l/canary", Write::new(WriteMode::InPlace), "evil");
        let _ = kit.rooted.alter(&Alter::MakeDir(path("/w/l/dir"), 0o755));
        let _ = kit.rooted.alter(&Alter::RemoveAll(path("/w/l/canary")));
        let _ = kit.rooted.stat(&path("/w/l"));
        kit.canary_is_well();
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    kit.canary_is_well();
}
