//! A small root file system, as a directory and as images: the templates of the matrix.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
};

use cabana_tests::remote::place;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Descriptors that an image, or a template, suggests as the working directory.
pub(crate) const DESCRIPTORS: std::ops::Range<u32> = 4..12;

/// Changes with this file, and so makes everything anew.
const EDITION: u32 = 2;

const TOOLS: [&str; 11] = ["sh", "cat", "chmod", "cp", "echo", "env", "id", "ln", "ls", "mkdir", "sleep"];

/// Does nothing where it is done already. `at` is `place::ROOT` without its last part.
pub(super) fn make(at: &Path) {
    let busybox = Path::new("/usr/bin/busybox");
    let mut hasher = DefaultHasher::new();
    (EDITION, fs::read(busybox).expect("busybox is there")).hash(&mut hasher);
    let version = format!("{:016x}", hasher.finish());
    let note = at.join(last(place::VERSION));
    if fs::read_to_string(&note).is_ok_and(|made| made == version) {
        return;
    }
    let _ = fs::remove_dir_all(at);
    let root = at.join(last(place::ROOT));
    make_root(&root, busybox);
    make_images(&at.join(last(place::IMAGE)), &root);
    open_to_all(at);
    fs::write(note, version).expect("a note");
}

fn last(place: &str) -> &str {
    place.rsplit('/').next().unwrap_or(place)
}

fn make_root(root: &Path, busybox: &Path) {
    for dir in ["etc", "bin", "tmp", "srv", "usr/bin"] {
        fs::create_dir_all(root.join(dir)).expect("a directory");
    }
    let said = Command::new("ldd").arg(busybox).output().expect("ldd is there");
    let libraries = String::from_utf8_lossy(&said.stdout).into_owned();
    let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
    for file in libraries.chain([busybox]) {
        let to = root.join(file.strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(to.parent().expect("a parent")).expect("a directory");
        fs::copy(file, to).expect("a copy");
    }
    for tool in TOOLS {
        symlink("../usr/bin/busybox", root.join("bin").join(tool)).expect("a link");
    }
}

fn make_images(at: &Path, root: &Path) {
    fs::create_dir_all(at.join("blobs/sha256")).expect("a directory");
    fs::write(at.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a layout");
    let mut tar = tar::Builder::new(Vec::new());
    tar.follow_symlinks(false);
    tar.append_dir_all(".", root).expect("a tar");
    let layer = blob(at, "application/vnd.oci.image.layer.v1.tar", &tar.into_inner().expect("a tar"));
    let mut images = vec![image(at, &layer, "plain", &json!({}))];
    for number in DESCRIPTORS {
        let workdir = json!({ "WorkingDir": format!("/proc/self/fd/{number}") });
        images.push(image(at, &layer, &format!("workdir-{number}"), &workdir));
    }
    let index = json!({ "schemaVersion": 2, "manifests": images }).to_string();
    fs::write(at.join("index.json"), index).expect("an index");
}

fn image(at: &Path, layer: &Value, name: &str, run: &Value) -> Value {
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let rootfs = json!({ "type": "layers", "diff_ids": [] });
    let config = json!({ "os": "linux", "architecture": architecture, "rootfs": rootfs, "config": run }).to_string();
    let config = blob(at, "application/vnd.oci.image.config.v1+json", config.as_bytes());
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] }).to_string();
    let mut manifest = blob(at, "application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    manifest
}

fn blob(at: &Path, kind: &str, bytes: &[u8]) -> Value {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(at.join("blobs/sha256").join(&digest), bytes).expect("a blob");
    json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len() })
}

/// Ordinary users read it.
fn open_to_all(at: &Path) {
    let done = Command::new("chmod").args(["-R", "a+rX"]).arg(at).status().expect("chmod is there");
    assert!(done.success());
    fs::set_permissions(at, PermissionsExt::from_mode(0o755)).expect("a mode");
}
