//! A stranger's tar, unpacked: whatever it says, nothing outside of the directory changes, and what was made can be packed
//! and unpacked again.

#![no_main]

#[path = "../kit.rs"]
mod kit;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use cabana_sandbox::SandboxPath;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let kit = kit::Kit::new();
    let mut archive = bytes.to_vec();
    sign(&mut archive);
    let into = SandboxPath::root();
    let unpacked = kit.rooted.unpack(&into, &mut archive.as_slice());
    kit.check();
    if unpacked.is_ok() {
        let mut packed = Vec::new();
        let entries = walk(&kit.inside);
        // A hole of the size of all disks is packed as what it is: zeros.
        let small = entries.values().sum::<u64>() < 1 << 20;
        if small && kit.rooted.pack(&into, &mut packed).is_ok() {
            let again = kit::Kit::new();
            if let Err(error) = again.rooted.unpack(&into, &mut packed.as_slice()) {
                panic!("what we packed cannot be unpacked: {error}");
            }
            assert_eq!(walk(&again.inside), entries, "a round trip changes the tree");
        }
    }
});

/// Each entry below the directory, with the length of what is a file.
fn walk(root: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(known) = entry.metadata() else { continue };
            let below = entry.path().strip_prefix(root).map(Path::to_owned).unwrap_or_default();
            found.insert(below, if known.is_file() { known.len() } else { 0 });
            if known.is_dir() {
                left.push(entry.path());
            }
        }
    }
    found
}

/// A header's sum is right, so that the fuzzer need not find it: the reader checks it, and then reads on.
fn sign(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(512) {
        if block[148..156] == *b"FIX-SUM!" {
            block[148..156].copy_from_slice(b"        ");
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}
