//! Container images whose configuration asks for things of the host.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use cabana_engine::TemplateSource;
use cabana_sandbox::{Base, ExecSpec, Overrides, SandboxSpec, run};
use serde_json::{Value, json};
use tar::EntryType;

use super::stage::Canary;
use crate::{
    archives::{EVIL, Evil, engine_with, root_tar},
    inside::{Inside, passing, path, unique},
};

fn digest(bytes: &[u8]) -> String {
    let mut tool = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    tool.stdin.take().unwrap().write_all(bytes).unwrap();
    let said = String::from_utf8(tool.wait_with_output().unwrap().stdout).unwrap();
    said.split_whitespace().next().unwrap().to_owned()
}

/// Writes a blob into the layout and describes it.
fn blob(layout: &Path, kind: &str, bytes: &[u8]) -> Value {
    let digest = digest(bytes);
    fs::write(layout.join("blobs/sha256").join(&digest), bytes).unwrap();
    json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len() })
}

/// A sandbox from an image of one layer with this configuration. `None` when it is refused.
async fn start(work: &Path, config: Value, more: impl FnOnce(&mut Evil)) -> Option<Inside> {
    let layout = work.join("image");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let tar = root_tar(work, more);
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let rootfs = json!({ "type": "layers", "diff_ids": [format!("sha256:{}", digest(&tar))] });
    let config = json!({ "architecture": architecture, "os": "linux", "config": config, "rootfs": rootfs });
    let layer = blob(&layout, "application/vnd.oci.image.layer.v1.tar", &tar);
    let config = blob(&layout, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] }).to_string();
    let manifest = blob(&layout, "application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
    fs::write(layout.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string()).unwrap();
    let source: TemplateSource = format!("oci:{}", layout.display()).parse().unwrap();
    let engine = engine_with(work, &source, &Overrides::default()).await?;
    Some(Inside::of(engine, &SandboxSpec { base: Base::Named(EVIL.into()), ..passing() }).await)
}

async fn said(inside: &Inside, script: &str) -> String {
    let spec = ExecSpec::argv(["/bin/bash", "-c", script], path("/"));
    String::from_utf8_lossy(&run(&*inside.sandbox, spec, 1 << 16).await.unwrap().stdout.head).trim().to_owned()
}

/// CVE-2022-23648, CVE-2026-53488: volumes that are paths of the host, and commands that the runtime is to run.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_labels_and_hooks_of_an_image_are_ignored() {
    let canary = Canary::new();
    let (dir, mark) = (canary.dir().to_owned(), format!("/tmp/{}", unique("hook")));
    let up = format!("/../../../../../../../..{dir}");
    let touch = ["/usr/bin/touch", mark.as_str()];
    let config = json!({
        "Env": ["ORDINARY=taken"],
        "Volumes": { dir.as_str(): {}, up.as_str(): {}, "/proc/self/root": {}, "/data/../../..": {} },
        "Labels": {
            "containerd.io/restart.status": "running",
            "containerd.io/restart.loguri": format!("binary:///usr/bin/touch?{mark}"),
            "io.kubernetes.cri-o.annotations": "org.systemd.property.ExecStartPre",
            "org.opencontainers.image.base.name": format!("file://{dir}"),
        },
        "OnBuild": [format!("RUN touch {mark}")],
        "Healthcheck": { "Test": ["CMD", touch[0], touch[1]], "Interval": 1_000_000 },
        "Entrypoint": touch, "Cmd": touch, "Shell": touch, "StopSignal": "SIGKILL",
    });
    let work = tempfile::tempdir().unwrap();
    let inside = start(work.path(), config, |_| {}).await.expect("an image with ordinary settings");
    assert_eq!(said(&inside, "echo $ORDINARY").await, "taken", "the configuration is read");
    let look =
        format!("cat {dir}/f /proc/self/root/f /data/f {mark} 2>/dev/null; echo x > {dir}/new 2>/dev/null; true");
    assert_eq!(said(&inside, &look).await, "");
    assert!(inside.read("root", &mark).await.is_none(), "a hook was run inside");
    inside.end().await;
    assert!(!Path::new(&mark).exists(), "a hook was run on the host");
    canary.is_untouched("the host's");
}

/// CVE-2024-21626 and CVE-2026-55686 by an image: its working directory is a link out, or a descriptor.
#[tokio::test(flavor = "multi_thread")]
async fn workdir_of_an_image_stays_in_its_root() {
    let canary = Canary::new();
    let dir = canary.dir().to_owned();
    for workdir in ["/link/made", "/proc/self/fd/7", "/proc/self/fd/8/../../.."] {
        let work = tempfile::tempdir().unwrap();
        let add = |tar: &mut Evil| {
            tar.entry(EntryType::Symlink, "link", &dir, 0o777, b"");
        };
        let inside = start(work.path(), json!({ "WorkingDir": workdir }), add).await;
        canary.is_untouched(workdir);
        let Some(inside) = inside else { continue };
        let spec = ExecSpec::argv(
            ["/bin/bash", "-c", &format!("cat f ../../../../../../..{dir}/f")],
            inside.sandbox.defaults().workdir.clone(),
        );
        if let Ok(ran) = run(&*inside.sandbox, spec, 1024).await {
            assert!(!String::from_utf8_lossy(&ran.stdout.head).contains(canary.content()), "{workdir}");
        }
        inside.end().await;
        canary.is_untouched(workdir);
    }
    let work = tempfile::tempdir().unwrap();
    let inside = start(work.path(), json!({ "WorkingDir": "/srv/app" }), |_| {}).await.expect("a plain one");
    assert_eq!(inside.sandbox.defaults().workdir, path("/srv/app"));
    inside.end().await;
}

/// CVE-2024-40635, CVE-2016-3697: users of an image that overflow, or that its own account file says are root.
#[tokio::test(flavor = "multi_thread")]
async fn overflowing_users_of_an_image_are_not_root() {
    let users = ["4294967295", "4294967296:0", "65536:65536", "2147483648"];
    for user in users {
        let work = tempfile::tempdir().unwrap();
        let Some(inside) = start(work.path(), json!({ "User": user }), |_| {}).await else { continue };
        let spec = ExecSpec::argv(["/bin/id", "-u"], path("/"));
        if let Ok(ran) = run(&*inside.sandbox, spec, 100).await {
            assert_ne!(String::from_utf8_lossy(&ran.stdout.head).trim(), "0", "{user}");
        }
        inside.end().await;
    }
    let work = tempfile::tempdir().unwrap();
    let inside = start(work.path(), json!({ "User": "1234" }), |_| {}).await.expect("a plain one");
    assert_eq!(said(&inside, "id -u").await, "1234");
    inside.end().await;
}
