//! apt, with an archive of the test's own.

use std::{fs, path::Path};

use cabana_testkit::world::in_world;

use super::{BOTH, OTHER, allowing, listed, open, sites};
use crate::inside::host;

fn archive(files: &Path) {
    let package = files.join("greeting");
    fs::create_dir_all(package.join("DEBIAN")).unwrap();
    fs::create_dir_all(package.join("opt/greeting")).unwrap();
    let control = "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@example>\n\
                   Description: a word\n";
    fs::write(package.join("DEBIAN/control"), control).unwrap();
    fs::write(package.join("opt/greeting/word"), "hello from an archive\n").unwrap();
    let apt = files.join("apt");
    fs::create_dir(&apt).unwrap();
    let (package, built) = (package.to_str().unwrap(), apt.join("greeting_1.0_all.deb"));
    host("dpkg-deb", &["--root-owner-group", "-b", package, built.to_str().unwrap()]);
    let scan = format!("cd {} && dpkg-scanpackages . > Packages 2>/dev/null", apt.display());
    host("sh", &["-c", &scan]);
}

fn install(site: &str) -> String {
    let only = "-o Dir::Etc::sourcelist=/tmp/one.list -o Dir::Etc::sourceparts=/dev/null -o Acquire::Retries=0";
    format!(
        "echo 'deb [trusted=yes] https://{site}/apt ./' >/tmp/one.list && apt-get {only} -q update && \
         apt-get {only} -qy install greeting"
    )
}

#[test]
fn apt_installs_from_an_allowed_archive_and_from_no_other() {
    in_world(async |world| {
        archive(&sites(&world));
        for policy in allowing() {
            let inside = open(&world, policy).await;
            for site in BOTH {
                inside.root(&install(site)).await.ok();
                assert_eq!(inside.root("cat /opt/greeting/word").await.ok(), "hello from an archive");
                inside.root("dpkg --purge greeting").await.ok();
            }
            inside.end().await;
        }
        let inside = open(&world, listed()).await;
        let ran = inside.root(&install(OTHER)).await;
        let told = format!("{}{}", ran.out, ran.err);
        assert!(told.contains("Could not resolve 'other.example'"), "{told}");
        ran.refused();
        inside.end().await;
    });
}
