//! All sandboxes at once, as a backup has them: what comes back in another data directory, and what is refused.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use cabana_engine::{Engine, TemplateSource};
use cabana_sandbox::{
    Base, Code, Defaults, Error, Found, Lifetime, Overrides, Provider, Result, SandboxId, SandboxPath, SandboxSpec,
    SnapshotId, Source, State, User, View, VolumeId,
};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::{
    inside::{shell, tiny_root},
    saved::stream,
    snapshots::{Alone, from, name},
    stage,
};

async fn save_all(engine: &Engine) -> Vec<u8> {
    let parts: Vec<Bytes> = engine.save_all(Arc::new(|_: &str| ())).await.unwrap().try_collect().await.unwrap();
    parts.concat()
}

async fn empty() -> (tempfile::TempDir, Arc<Engine>) {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = Engine::open(stage::config(data.path().into())).await.unwrap();
    (data, engine)
}

fn kept(data: &std::path::Path) -> usize {
    let names = std::fs::read_dir(data.join("layers")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("kept-")).count()
}

#[tokio::test]
async fn everything_moves_to_an_empty_data_directory() {
    let one = Alone::new().await;
    let as_root = |spec: SandboxSpec| SandboxSpec { user: Some(User::root()), ..spec };
    let original = one.create(&as_root(one.spec())).await;
    shell(&*original, "root", "echo first > /home/user/note && rm /etc/brought && chmod 1751 /home").await.ok();
    one.engine.stop(original.id()).await.unwrap();
    let base = one.engine.snapshot(original.id(), SnapshotId::now()).await.unwrap();
    let mut forks = Vec::new();
    for number in 0..3 {
        let fork = one.create(&as_root(from(&base))).await;
        shell(&*fork, "root", &format!("echo {number} >> /home/user/note")).await.ok();
        forks.push(fork.id().clone());
    }
    one.engine.stop(&forks[1]).await.unwrap();
    let passing = SandboxSpec { lifetime: Lifetime::Ephemeral, ..one.spec() };
    one.create(&passing).await;
    let saved = save_all(&one.engine).await;
    // It changed nothing for them.
    for (id, state) in [(original.id(), State::Stopped), (&forks[0], State::Running), (&forks[1], State::Stopped)] {
        let all: Vec<(SandboxId, State)> = one.engine.list().await.unwrap().try_collect().await.unwrap();
        assert_eq!(all.iter().find(|(there, _)| there == id).unwrap().1, state);
    }
    let (data, two) = empty().await;
    assert_eq!(two.restore_all(stream(&saved)).await.unwrap(), [""; 0]);
    let all: Vec<(SandboxId, State)> = two.list().await.unwrap().try_collect().await.unwrap();
    assert!(all.len() == 4 && all.iter().all(|(_, state)| *state == State::Stopped), "{all:?}");
    assert_eq!(kept(data.path()), 4, "what all forks stand on is there once");
    assert_eq!(two.unused(&[]).await.unwrap(), []);
    for (number, id) in forks.iter().enumerate() {
        let fork = two.start(id).await.unwrap();
        let said =
            shell(&*fork, "root", "cat /home/user/note; stat -c %a /home; ls /etc/brought 2>/dev/null || id -un");
        assert_eq!(said.await.ok(), format!("first\n{number}\n1751\nroot"));
    }
    let again = two.create(&SandboxId::random(), &from(&base)).await.unwrap();
    assert_eq!(shell(&*again, "user", "cat /home/user/note").await.ok(), "first");
    let made = two.create(&SandboxId::random(), &one.spec()).await.unwrap();
    assert_eq!(shell(&*made, "user", "cat /etc/brought").await.ok(), "by the template");
    for engine in [&one.engine, &two] {
        engine.close().await;
    }
}

#[tokio::test]
async fn volumes_move_with_those_who_see_them() {
    let one = Alone::new().await;
    let volume = VolumeId::now();
    one.engine.make_volume(volume).await.unwrap();
    let at = "/workspace/v".parse().unwrap();
    let seen = View { source: Source::Volume(volume), at, writable: true };
    let sandbox = one.create(&SandboxSpec { base: Base::Host, views: vec![seen], ..one.spec() }).await;
    shell(&*sandbox, "user", "cd /workspace/v && mkdir -m 1751 deep && echo mine > deep/file && ln deep/file link")
        .await
        .ok();
    let saved = save_all(&one.engine).await;
    let (_data, two) = empty().await;
    assert_eq!(two.restore_all(stream(&saved)).await.unwrap(), [""; 0]);
    let there: Vec<VolumeId> = two.volumes().await.unwrap().try_collect().await.unwrap();
    assert_eq!(there, [volume]);
    let sandbox = two.start(sandbox.id()).await.unwrap();
    let look = "cd /workspace/v && cat link && stat -c '%a %U %h' . deep link && echo more >> deep/file";
    assert_eq!(shell(&*sandbox, "user", look).await.ok(), "mine\n777 root 3\n1751 user 2\n644 user 2");
    assert_eq!(two.remove_volume(volume).await.unwrap_err().code(), Code::VolumeInUse);
    for engine in [&one.engine, &two] {
        engine.close().await;
    }
}

/// A process that does all it can to spoil a backup: of everybody else's, nothing is missing.
#[tokio::test]
async fn what_one_does_to_its_files_keeps_nobody_elses_out() {
    let one = Alone::new().await;
    let volume = VolumeId::now();
    one.engine.make_volume(volume).await.unwrap();
    let at: SandboxPath = "/workspace/v".parse().unwrap();
    let seen = View { source: Source::Volume(volume), at, writable: true };
    let hostile = one.create(&SandboxSpec { base: Base::Host, views: vec![seen], ..one.spec() }).await;
    let other = one.create(&one.spec()).await;
    shell(&*other, "user", "echo kept > ~/note").await.ok();
    // Deeper than a path can be long, in its own files and in the volume; and all of that on the move.
    let deep = "name=$(printf %0200d 0); for dir in ~ /workspace/v; do cd $dir; echo near > note; \
        for i in $(seq 30); do mkdir $name && cd $name; done; done";
    shell(&*hostile, "user", deep).await.ok();
    let moving = "cd /workspace/v; (while :; do mv 0* 1; mv 1 $(printf %0200d 0); done; ) 2>/dev/null >/dev/null & \
        (while :; do for n in a b c d; do echo $n > $n; truncate -s 1M $n; truncate -s 0 $n; done; rm a b c d; done) \
        >/dev/null 2>&1 &";
    shell(&*hostile, "user", moving).await.ok();
    for _ in 0..2 {
        let saved = save_all(&one.engine).await;
        let (_data, two) = empty().await;
        let left_out = two.restore_all(stream(&saved)).await.unwrap();
        assert!(left_out.iter().any(|what| what.starts_with("of layer kept-")), "{left_out:?}");
        let back = two.start(other.id()).await.unwrap();
        assert_eq!(shell(&*back, "user", "cat ~/note").await.ok(), "kept");
        let back = two.start(hostile.id()).await.unwrap();
        assert_eq!(shell(&*back, "user", "cat ~/note /workspace/v/note").await.ok(), "near\nnear");
        two.close().await;
    }
    one.engine.close().await;
}

#[tokio::test]
async fn nothing_is_missing_in_a_backup_without_a_word() {
    let one = Alone::new().await;
    let root = tempfile::tempdir().unwrap();
    tiny_root(root.path());
    std::fs::write(root.path().join("etc/seen"), "by one").unwrap();
    let source = TemplateSource::Directory(root.path().into());
    let template = one.engine.templates().add("seen", &source, &Overrides::default(), &mut |_| {}).unwrap();
    let layer = template.layers[0];
    let view = View { source: Source::Layer(layer), at: "/seen".parse().unwrap(), writable: false };
    let seeing = one.create(&SandboxSpec { views: vec![view], ..one.spec() }).await;
    let (damaged, whole) = (one.create(&one.spec()).await, one.create(&one.spec()).await);
    for sandbox in [&seeing, &damaged, &whole] {
        one.engine.stop(sandbox.id()).await.unwrap();
    }
    std::fs::remove_dir_all(one.data().join("layers").join(layer.to_string())).unwrap();
    std::fs::write(one.data().join("sandboxes").join(damaged.id().as_str()).join("record.json"), "{").unwrap();
    let saved = save_all(&one.engine).await;
    let (_data, two) = empty().await;
    let left_out = two.restore_all(stream(&saved)).await.unwrap();
    for start in [format!("of sandbox {}: the layer {layer} ", seeing.id()), format!("sandbox {}: ", damaged.id())] {
        assert!(left_out.iter().any(|what| what.starts_with(&start)), "{start}: {left_out:?}");
    }
    let all: Vec<(SandboxId, State)> = two.list().await.unwrap().try_collect().await.unwrap();
    let all: BTreeSet<_> = all.iter().map(|(id, _)| id).collect();
    assert_eq!(all, BTreeSet::from([seeing.id(), whole.id()]));
    for engine in [&one.engine, &two] {
        engine.close().await;
    }
}

#[tokio::test]
async fn what_would_be_given_back_is_what_is_given_back() {
    let one = Alone::new().await;
    let engine = &one.engine;
    let sandbox = one.create(&one.spec()).await;
    shell(&*sandbox, "user", "for i in {1..30}; do printf %100000s x; done > /home/user/large").await.ok();
    engine.stop(sandbox.id()).await.unwrap();
    let base = engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let tiny = Base::Named("tiny".into());
    assert_eq!(engine.unused(&[base.clone(), tiny.clone()]).await.unwrap(), [], "the sandbox stands on all of it");
    engine.destroy(sandbox.id()).await.unwrap();
    assert_eq!(engine.unused(&[]).await.unwrap(), []);
    let of_snapshot = engine.unused(std::slice::from_ref(&base)).await.unwrap();
    assert!(of_snapshot.len() == 1 && of_snapshot[0].1 >= 3_000_000, "{of_snapshot:?}");
    assert_eq!(engine.unused(std::slice::from_ref(&tiny)).await.unwrap(), [], "the snapshot stands on it");
    assert_eq!(engine.unused(&[base.clone(), tiny]).await.unwrap().len(), 3);
    engine.remove_snapshot(name(&base)).await.unwrap();
    assert_eq!(engine.unused(&[]).await.unwrap(), of_snapshot);
    assert!(engine.tidy().await.unwrap());
    assert_eq!((engine.unused(&[]).await.unwrap(), one.kept().len()), (Vec::new(), 0));
    engine.close().await;
}

/// Frames with digests that fit: what somebody would send who means harm.
fn forged(sections: &[&[u8]]) -> Vec<u8> {
    let mut all = b"cabana sandboxes 1\n".to_vec();
    let mut digest = [0; 32];
    let mut frame = |bytes: &[u8]| {
        let length = (bytes.len() as u32).to_le_bytes();
        let mut hasher = blake3::Hasher::new();
        digest = *hasher.update(&digest).update(&length).update(bytes).finalize().as_bytes();
        all.extend([&length[..], bytes, &digest].concat());
    };
    for section in sections {
        section.chunks(100_000).for_each(&mut frame);
        frame(b"");
    }
    all
}

#[tokio::test]
async fn a_stream_that_lies_is_refused() {
    let (data, engine) = empty().await;
    let layer = "kept-7d444840-9dc0-11d1-b245-5ffdce74fad2";
    let tar = vec![0; 1024];
    let defaults = Defaults { user: User::root(), workdir: SandboxPath::root(), env: Default::default() };
    let defaults = serde_json::to_value(defaults).unwrap();
    let head = |layers: Value, kept: u64| json!({ "layers": layers, "kept": kept, "trees": [], "defaults": defaults, "fingerprint": null });
    let digest = "0".repeat(64);
    let spec = serde_json::to_value(SandboxSpec::new(Base::Named("tiny".into()))).unwrap();
    let sandbox = |stands: Value| json!({ "sandbox": { "id": "aaaaaaaaaaaaaaaa", "spec": spec, "stands": stands } });
    let template = |name: &str| json!({ "template": { "name": name, "layers": [], "defaults": defaults, "sudo": false, "made": "", "source": "" } });
    let text = |value: &Value| serde_json::to_vec(value).unwrap();
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("no end", vec![]),
        ("nonsense", vec![b"nonsense".to_vec()]),
        ("a layer that is a path", vec![text(&json!({ "layer": "../../x" })), tar.clone()]),
        ("a layer of another digest", vec![text(&json!({ "layer": digest })), tar.clone()]),
        (
            "a layer twice",
            vec![text(&json!({ "layer": layer })), tar.clone(), text(&json!({ "layer": layer })), tar.clone()],
        ),
        ("a layer that is no tar", vec![text(&json!({ "layer": layer })), b"nonsense, and more of it".repeat(50)]),
        (
            "a sandbox on nothing",
            vec![text(&sandbox(json!({ "head": head(json!([]), 0), "kept": [], "sudo": false })))],
        ),
        (
            "another number of layers",
            vec![text(&sandbox(json!({ "head": head(json!([]), 3), "kept": [], "sudo": false })))],
        ),
        ("too many layers", vec![text(&sandbox(json!({ "head": head(json!([]), 3000), "kept": [], "sudo": false })))]),
        ("an id that leads out", vec![text(&json!({ "sandbox": { "id": "../../../x", "spec": spec, "stands": {} } }))]),
        ("a volume that leads out", vec![text(&json!({ "volume": "../../x" })), tar.clone()]),
        (
            "a volume that is no tar",
            vec![
                text(&json!({ "volume": "7d444840-9dc0-11d1-b245-5ffdce74fad2" })),
                b"nonsense, and more of it".repeat(50),
            ],
        ),
        ("a template that leads out", vec![text(&template("../x"))]),
        ("what nobody knows", vec![text(&json!({ "something": 1 }))]),
        ("more after the end", vec![text(&json!("end")), text(&json!("end"))]),
    ];
    for (what, sections) in cases {
        let sections: Vec<&[u8]> = sections.iter().map(Vec::as_slice).collect();
        let refused: Result<_> = engine.restore_all(stream(&forged(&sections))).await;
        match refused {
            Err(Error::Archive(_) | Error::Invalid { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
        assert!(matches!(
            engine.attach(&"aaaaaaaaaaaaaaaa".to_owned().try_into().unwrap()).await.unwrap(),
            Found::Absent
        ));
        for folder in ["templates", "volumes"] {
            assert_eq!(std::fs::read_dir(data.path().join(folder)).unwrap().count(), 0, "{what}");
        }
    }
    // What this host lacks is said, and keeps nothing else out.
    let other = sandbox(json!({ "head": head(json!([digest]), 0), "kept": [], "sudo": false }));
    let left_out = engine.restore_all(stream(&forged(&[&text(&other), &text(&json!("end"))]))).await.unwrap();
    assert!(left_out.len() == 1 && left_out[0].starts_with("sandbox aaaaaaaaaaaaaaaa: "), "{left_out:?}");
    engine.close().await;
}
