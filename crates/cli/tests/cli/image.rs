//! Container images that become templates, to sandboxes made of them.

use std::{fs, path::Path, process::Command};

use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{
    kit::{Ends, cabana},
    root,
};

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What `docker save` writes of two layers: a small system, and what changes in it.
fn save(home: &Path) -> String {
    let (system, change, parts) = (home.join("system"), home.join("change"), home.join("parts"));
    root::make(&system);
    fs::create_dir_all(change.join("etc")).unwrap();
    fs::write(change.join("etc/motto"), "changed above\n").unwrap();
    fs::write(system.join("etc/gone"), "").unwrap();
    fs::write(change.join("etc/.wh.gone"), "").unwrap();
    fs::create_dir(&parts).unwrap();
    let layers = [("system.tar", &system), ("change.tar", &change)].map(|(name, tree)| {
        root::tar(tree, &parts.join(name));
        (name, format!("sha256:{}", hex(&fs::read(parts.join(name)).unwrap())))
    });
    let config = json!({
        "os": "linux",
        "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" },
        "config": { "User": "maker", "WorkingDir": "/srv", "Env": ["PATH=/bin", "MOTTO=of the image"], "Cmd": ["sh"] },
        "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|(_, digest)| digest).collect::<Vec<_>>() },
    })
    .to_string();
    let name = format!("{}.json", hex(config.as_bytes()));
    fs::write(parts.join(&name), &config).unwrap();
    let image = |tag: &str| json!({ "Config": name, "RepoTags": [tag], "Layers": layers.iter().map(|(name, _)| name).collect::<Vec<_>>() });
    fs::write(parts.join("manifest.json"), json!([image("mine:1"), image("mine:2")]).to_string()).unwrap();
    let archive = home.join("image.tar");
    root::tar(&parts, &archive);
    format!("docker-archive:{}", archive.to_str().unwrap())
}

#[test]
fn a_saved_image_becomes_a_template_and_its_sandboxes_run() {
    let home = TempDir::new().unwrap();
    let cabana = |words: &[&str]| -> Command {
        let mut command = cabana();
        command.args(words).env("CABANA_DATA", home.path().join("data"));
        command
    };
    let from = save(home.path());
    let said = cabana(&["template", "add", "image", "--from", &from]).ends().fails(1, "template_invalid");
    assert!(said.contains("--ref") && said.contains("mine:1") && said.contains("mine:2"), "{said}");
    cabana(&["template", "add", "image", "--from", &from, "--ref", "mine:2"]).ends().well();
    assert_eq!(cabana(&["run", "--template", "image", "--", "cat", "/etc/motto"]).ends().well(), "changed above\n");
    let script = "id -u; pwd; echo $MOTTO; test -e /etc/gone || echo gone";
    let ended = cabana(&["run", "--template", "image", "--", "sh", "-c", script]).ends();
    assert_eq!(ended.well(), "1234\n/srv\nof the image\ngone\n");
    let told = cabana(&["template", "inspect", "image"]).ends().well();
    assert!(told.contains(&format!("{from} --ref mine:2")), "{told}");

    let plain = from.strip_prefix("docker-archive:").unwrap();
    let said = cabana(&["template", "add", "plain", "--from", plain]).ends().fails(1, "template_invalid");
    assert!(said.contains("--from docker-archive:PATH"), "{said}");
    cabana(&["template", "add", "other", "--from", plain, "--ref", "mine:1"]).ends().fails(1, "bad_request");
    cabana(&["template", "add", "other", "--from", "oci:/no/such"]).ends().fails(1, "bad_request");
}
