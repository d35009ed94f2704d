//! pip, with an index of the test's own.

use cabana_testkit::world::in_world;

use super::{BOTH, OTHER, allowing, listed, open, sites};
use crate::inside::host;

/// A wheel and its index.
const WHEEL: &str = r#"
import os, sys, zipfile
there = os.path.join(sys.argv[1], "simple", "greeting")
os.makedirs(there)
name = "greeting-1.0-py3-none-any.whl"
with zipfile.ZipFile(os.path.join(there, name), "w") as wheel:
    wheel.writestr("greeting.py", "WORD = 'hello from a wheel'\n")
    info = "greeting-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "greeting.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n")
with open(os.path.join(there, "index.html"), "w") as index:
    index.write(f"<!DOCTYPE html><html><body><a href='{name}'>{name}</a></body></html>")
"#;

fn install(site: &str, into: &str) -> String {
    let flags = "--no-cache-dir --disable-pip-version-check --retries 0 --no-deps -q";
    format!("/usr/bin/python3 -m pip install {flags} --target {into} --index-url https://{site}/simple greeting")
}

#[test]
fn pip_installs_from_an_allowed_index_and_from_no_other() {
    in_world(async |world| {
        let files = sites(&world);
        host("python3", &["-c", WHEEL, files.to_str().unwrap()]);
        let inside = open(&world, listed()).await;
        for (round, policy) in allowing().into_iter().enumerate() {
            inside.set(policy).await;
            for site in BOTH {
                let into = format!("/tmp/{site}-{round}");
                inside.user(&install(site, &into)).await.ok();
                let show = format!("PYTHONPATH={into} /usr/bin/python3 -c 'import greeting; print(greeting.WORD)'");
                assert_eq!(inside.user(&show).await.ok(), "hello from a wheel");
            }
        }
        let told = inside.user(&install(OTHER, "/tmp/other")).await.refused();
        assert!(told.contains("No matching distribution found") || told.contains("resolve"), "{told}");
        inside.end().await;
    });
}
