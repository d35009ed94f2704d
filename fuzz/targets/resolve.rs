//! A tree that the bytes make, with links to anywhere, and paths through it: nothing outside of the root is ever reached.

#![no_main]

#[path = "../kit.rs"]
mod kit;

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use cabana_sandbox::{Alter, Read, SandboxPath, Write, WriteMode};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if bytes.windows(kit::SECRET.len()).any(|part| part == kit::SECRET) {
        return; // who knows it can say it: in the text of a link, say
    }
    let kit = kit::Kit::new();
    // A line is a step: a letter, a path, and after a space what else the step takes.
    for line in bytes.split(|byte| *byte == b'\n').take(12) {
        let Some((step, rest)) = line.split_first() else { continue };
        let space = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (path, more) = (&rest[..space], rest.get(space + 1..).unwrap_or_default());
        if let Ok(path) = SandboxPath::new(path) {
            take(&kit, *step, &path, more);
        }
    }
    kit.check();
});

fn take(kit: &kit::Kit, step: u8, path: &SandboxPath, more: &[u8]) {
    let rooted = &kit.rooted;
    // What a guest does inside, where it may make any link.
    if let b'l' | b'd' | b'f' = step {
        let at = kit.inside.join(path.relative());
        // Only where no link of the guest's leads: the fuzzer itself must not walk out.
        let plain = at.parent().and_then(|dir| dir.canonicalize().ok()).is_some_and(|dir| dir.starts_with(&kit.inside));
        if plain {
            let _ = match step {
                b'l' => std::os::unix::fs::symlink(Path::new(OsStr::from_bytes(more)), &at),
                b'd' => std::fs::create_dir(&at),
                _ if at.symlink_metadata().is_err() => std::fs::write(&at, more),
                _ => Ok(()),
            };
        }
        return;
    }
    // And what we do from outside, whatever the errors.
    match step {
        b'r' => {
            if let Ok((_, mut reader)) = rooted.read(path, Read::default()) {
                while let Ok(Some(chunk)) = reader.next_chunk() {
                    assert!(!chunk.windows(kit::SECRET.len()).any(|part| part == kit::SECRET), "{path} is outside");
                }
            }
        }
        b's' => {
            if let Ok(info) = rooted.stat(path)
                && let Some((target, ..)) = info.link.and_then(|link| link.target)
            {
                // Where a link leads in the end is told without links, and is there.
                let target = kit.inside.join(target.relative());
                assert_eq!(target.canonicalize().ok(), Some(target));
            }
        }
        b'w' => {
            let modes = [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append, WriteMode::CreateNew];
            let mode = modes[more.len() % modes.len()];
            if let Ok(mut writer) = rooted.write(path, Write::new(mode)) {
                let _ = writer.put(more).and_then(|()| writer.finish().map(drop));
            }
        }
        b'x' => drop(rooted.alter(&Alter::RemoveAll(path.clone()))),
        b'm' => {
            if let Ok(to) = SandboxPath::new(more) {
                let _ = rooted.alter(&Alter::Rename(path.clone(), to));
            }
        }
        b'p' => {
            let mut packed = Vec::new();
            let _ = rooted.pack(path, &mut packed);
            assert!(!packed.windows(kit::SECRET.len()).any(|part| part == kit::SECRET), "{path} is outside");
        }
        b'L' => {
            if let Ok(mut listing) = rooted.list(path) {
                while let Ok(Some(found)) = listing.next_batch() {
                    assert!(
                        found.iter().all(|info| info.path.name() != kit::BESIDE.as_bytes()),
                        "{path} lists what is outside"
                    );
                }
            }
        }
        _ => {}
    }
}
