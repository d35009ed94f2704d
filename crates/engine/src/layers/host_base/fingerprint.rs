//! Whether the host is still what it was: a digest over the stats of places that installing something changes.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Of a directory the time changes when an entry comes or goes; of a file, when it is written.
const PLACES: &[&str] = &[
    "bin",
    "sbin",
    "lib",
    "lib64",
    "usr",
    "usr/bin",
    "usr/sbin",
    "usr/lib",
    "usr/lib64",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/libexec",
    "usr/share",
    "usr/local",
    "usr/local/bin",
    "usr/local/sbin",
    "usr/local/lib",
    "usr/local/etc",
    "usr/local/share",
    "var/lib/apt/extended_states",
    "var/lib/apt/lists",
    "var/lib/dpkg/status",
    "var/lib/dpkg/info",
    "var/lib/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "etc/alternatives",
    "etc/apt",
    "etc/apt/apt.conf.d",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d",
    "etc/bash.bashrc",
    "etc/group",
    "etc/ld.so.cache",
    "etc/ld.so.conf.d",
    "etc/os-release",
    "etc/pam.d",
    "etc/passwd",
    "etc/profile",
    "etc/skel",
    "etc/ssl/certs",
    "etc/ssl/certs/ca-certificates.crt",
];

pub(super) fn of(root: &Path) -> String {
    let mut seen = String::with_capacity(4096);
    for place in PLACES {
        let line = match fs::symlink_metadata(root.join(place)) {
            Ok(s) => format!("{place} {} {:o} {} {}.{}\n", s.ino(), s.mode(), s.size(), s.mtime(), s.mtime_nsec()),
            Err(_) => format!("{place} -\n"),
        };
        seen += &line;
    }
    blake3::hash(seen.as_bytes()).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_is_another_fingerprint() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        let before = of(root.path());
        assert_eq!(of(root.path()), before);
        fs::write(root.path().join("usr/bin/new"), "").unwrap();
        assert_ne!(of(root.path()), before);
    }
}
