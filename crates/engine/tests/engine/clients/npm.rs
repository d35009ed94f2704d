//! npm, with a registry of the test's own.

use std::{fs, path::Path};

use cabana_testkit::world::in_world;

use super::{BOTH, OTHER, allowing, listed, open, sites};
use crate::inside::host;

/// A package, and what the registry says of it at each site.
fn registry(files: &Path) {
    let package = files.join("package");
    fs::create_dir(&package).unwrap();
    let named = r#"{"name":"greeting","version":"1.0.0","main":"index.js"}"#;
    fs::write(package.join("package.json"), named).unwrap();
    fs::write(package.join("index.js"), "module.exports = 'hello from a package';\n").unwrap();
    let archive = files.join("greeting-1.0.0.tgz");
    let (archive, root) = (archive.to_str().unwrap(), files.to_str().unwrap());
    host("tar", &["-czf", archive, "-C", root, "package"]);
    let digest = host("sh", &["-c", &format!("openssl dgst -sha512 -binary {archive} | base64 -w0")]);
    for site in [BOTH[0], BOTH[1], OTHER] {
        let at = files.join(format!("npm-{site}"));
        fs::create_dir(&at).unwrap();
        let dist =
            format!(r#"{{"tarball":"https://{site}/greeting-1.0.0.tgz","integrity":"sha512-{}"}}"#, digest.trim());
        let version = format!(r#"{{"name":"greeting","version":"1.0.0","dist":{dist}}}"#);
        let whole =
            format!(r#"{{"name":"greeting","dist-tags":{{"latest":"1.0.0"}},"versions":{{"1.0.0":{version}}}}}"#);
        fs::write(at.join("greeting"), whole).unwrap();
    }
}

fn install(site: &str, into: &str) -> String {
    let flags = "--no-audit --no-fund --no-update-notifier --fetch-retries=0 --loglevel=error";
    format!("mkdir -p {into} && cd {into} && npm install {flags} --registry https://{site}/npm-{site}/ greeting")
}

#[test]
fn npm_installs_from_an_allowed_registry_and_from_no_other() {
    in_world(async |world| {
        registry(&sites(&world));
        let inside = open(&world, listed()).await;
        for (round, policy) in allowing().into_iter().enumerate() {
            inside.set(policy).await;
            for site in BOTH {
                let into = format!("/tmp/{site}-{round}");
                inside.user(&install(site, &into)).await.ok();
                let show = format!("cd {into} && node -p 'require(\"greeting\")'");
                assert_eq!(inside.user(&show).await.ok(), "hello from a package");
            }
        }
        let told = inside.user(&install(OTHER, "/tmp/other")).await.refused();
        assert!(told.contains("ENOTFOUND") && told.contains(OTHER), "{told}");
        inside.end().await;
    });
}
