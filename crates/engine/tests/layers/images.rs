//! Container images as templates: made by the tests themselves, good ones and hostile ones.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }
}

/// An entry of a layer's tar: what ends in `/` is a directory, and `a -> b` a link.
fn tar_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_mtime(1_600_000_000);
        if let Some((link, to)) = name.split_once(" -> ") {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            tar.append_link(&mut header, link, to).unwrap();
        } else if name.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
            header.set_size(0);
            tar.append_data(&mut header, name, io::empty()).unwrap();
        } else {
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
    }
    tar.into_inner().unwrap()
}

fn base() -> Vec<u8> {
    tar_of(&[
        ("bin/", ""),
        ("bin/sh", "a shell"),
        ("etc/", ""),
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:77:78::/srv/app:/bin/sh\n"),
        ("data/", ""),
        ("data/old", "old"),
        ("data/deep/", ""),
        ("data/deep/older", "older"),
        ("gone/", ""),
        ("gone/file", "gone"),
        ("kept", "lower"),
        ("replaced", "a file"),
        ("dir/", ""),
        ("dir/below", "below"),
        ("link -> /etc", ""),
    ])
}

fn upper() -> Vec<u8> {
    tar_of(&[
        ("data/", ""),
        ("data/.wh..wh..opq", ""),
        ("data/new", "new"),
        (".wh.gone", ""),
        ("kept", "upper"),
        ("replaced/", ""),
        ("replaced/inside", "a directory"),
        (".wh.dir", ""),
        ("dir/", ""),
        ("dir/own", "own"),
        (".wh..wh.plnk/", ""),
        ("never/.wh.was", ""),
    ])
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// An OCI image layout that is being made.
struct Layout {
    dir: PathBuf,
}

impl Layout {
    fn new(house: &House, name: &str) -> Self {
        let dir = house.dir.path().join(name);
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { dir }
    }

    fn blob_path(&self, bytes: &[u8]) -> PathBuf {
        self.dir.join("blobs/sha256").join(hex(bytes))
    }

    fn blob(&self, kind: &str, bytes: &[u8]) -> Value {
        fs::write(self.blob_path(bytes), bytes).unwrap();
        json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() })
    }

    fn json(&self, kind: &str, value: &Value) -> Value {
        self.blob(kind, value.to_string().as_bytes())
    }

    fn manifest(&self, config: &Value, layers: &[Value]) -> Value {
        let config = self.json(CONFIG, config);
        self.json(MANIFEST, &json!({ "schemaVersion": 2, "config": config, "layers": layers }))
    }

    /// Of the layers as they are packed.
    fn image(&self, config: &Value, layers: &[(&str, Vec<u8>)]) -> Value {
        let layers: Vec<_> = layers.iter().map(|(kind, bytes)| self.blob(kind, bytes)).collect();
        self.manifest(config, &layers)
    }

    fn index(&self, images: &[Value]) -> &Self {
        fs::write(self.dir.join("index.json"), json!({ "schemaVersion": 2, "manifests": images }).to_string()).unwrap();
        self
    }

    fn nested(&self, images: &[Value]) -> Value {
        self.json(INDEX, &json!({ "schemaVersion": 2, "manifests": images }))
    }

    fn source(&self) -> String {
        format!("oci:{}", text(&self.dir))
    }
}

fn config(run: Value) -> Value {
    let config =
        json!({ "os": "linux", "architecture": architecture(), "rootfs": { "type": "layers", "diff_ids": [] } });
    with(config, "config", run)
}

fn with(mut descriptor: Value, key: &str, value: Value) -> Value {
    descriptor[key] = value;
    descriptor
}

fn called(descriptor: Value, name: &str) -> Value {
    with(descriptor, "annotations", json!({ "org.opencontainers.image.ref.name": name }))
}

fn runs_on(descriptor: Value, architecture: &str) -> Value {
    with(descriptor, "platform", json!({ "os": "linux", "architecture": architecture }))
}

fn add(house: &House, source: &str, reference: Option<&str>) -> Result<Template, Error> {
    let source: TemplateSource = source.parse().unwrap();
    let source = match reference {
        Some(name) => source.with_reference(name.to_owned()).unwrap(),
        None => source,
    };
    house.templates().add("image", &source, &Overrides::default(), &mut |_| {})
}

#[track_caller]
fn refused(house: &House, source: &str, why: &str) {
    let error = add(house, source, None).unwrap_err();
    assert_eq!(error.code(), Code::TemplateInvalid, "{error}");
    assert!(error.to_string().contains(why), "{why}: {error}");
    house.assert_empty();
}

/// As a container of the image would see it.
#[track_caller]
fn assert_merged(house: &House, template: &Template) {
    let tree = house.store.path(template.layers[0]);
    let read = |path: &str| fs::read_to_string(tree.join(path)).unwrap();
    assert_eq!(
        (read("kept"), read("data/new"), read("replaced/inside")),
        ("upper".into(), "new".into(), "a directory".into())
    );
    assert_eq!(read("dir/own"), "own");
    for absent in [
        "gone",
        "data/old",
        "data/deep",
        "dir/below",
        ".wh.gone",
        "data/.wh..wh..opq",
        ".wh..wh.plnk",
        "never/was",
        "never/.wh.was",
    ] {
        assert!(fs::symlink_metadata(tree.join(absent)).is_err(), "{absent}");
    }
    assert_eq!(fs::read_link(tree.join("link")).unwrap(), Path::new("/etc"));
    assert_eq!((stat(tree.join("kept")).uid(), stat(tree.join("kept")).mtime()), (IDS.base, 1_600_000_000));
    assert_eq!(stat(tree.join("data")).mtime(), 1_600_000_000);
}

type Pack = fn(&[u8]) -> Vec<u8>;

#[test]
fn layers_are_merged_however_they_are_packed() {
    let house = House::new();
    let packings: [(&str, Pack); 3] = [
        (LAYER, |bytes| bytes.to_vec()),
        ("application/vnd.oci.image.layer.v1.tar+gzip", gzip),
        ("application/vnd.oci.image.layer.v1.tar+zstd", zstd),
    ];
    let mut stacks = BTreeSet::new();
    for (number, (kind, pack)) in packings.into_iter().enumerate() {
        let layout = Layout::new(&house, &format!("image{number}"));
        let image = layout.image(&config(Value::Null), &[(kind, pack(&base())), (kind, pack(&upper()))]);
        layout.index(&[image]);
        let mut copied = 0;
        let made = house.templates().add(
            &format!("i{number}"),
            &layout.source().parse().unwrap(),
            &Overrides::default(),
            &mut |progress| {
                if let Progress::Copied(bytes) = progress {
                    assert!(bytes >= copied, "it goes on from layer to layer");
                    copied = bytes;
                }
            },
        );
        let made = made.unwrap();
        assert!(copied > 0);
        assert_merged(&house, &made);
        assert_eq!(made.source, layout.source());
        stacks.insert(made.layers);
    }
    assert_eq!(stacks.len(), 1, "one content, one stack");
    assert_eq!(fs::read_dir(house.data.layers()).unwrap().count(), 2, "and nothing else is left");
}

#[test]
fn a_layout_in_a_tar_is_the_same_and_so_are_dockers_names() {
    let house = House::new();
    let layout = Layout::new(&house, "image");
    let kind = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    let layers = [layout.blob(kind, &gzip(&base())), layout.blob(kind, &gzip(&upper()))];
    let config = layout.json("application/vnd.docker.container.image.v1+json", &config(Value::Null));
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
    let manifest = layout.json("application/vnd.docker.distribution.manifest.v2+json", &manifest);
    let list = json!({ "schemaVersion": 2, "manifests": [runs_on(manifest, architecture())] });
    let list = layout.json("application/vnd.docker.distribution.manifest.list.v2+json", &list);
    layout.index(&[list]);
    let tar = house.dir.path().join("image.tar.gz");
    run("tar", &["-czf", text(&tar), "-C", text(&layout.dir), "."]);
    let made = add(&house, &format!("oci:{}", text(&tar)), None).unwrap();
    assert_merged(&house, &made);
    assert_eq!(fs::read_dir(house.data.layers()).unwrap().count(), 2, "the unpacked archive is gone");
}

#[test]
fn what_the_image_says_is_the_default_and_wishes_come_first() {
    let house = House::new();
    let layout = Layout::new(&house, "image");
    let said = json!({ "User": "app:staff", "WorkingDir": "/srv/work", "Env": ["PATH=/opt/bin:/bin", "MODE=a=b"], "Cmd": ["x"], "Entrypoint": null });
    layout.index(&[layout.image(&config(said), &[(LAYER, base())])]);
    let made = add(&house, &layout.source(), None).unwrap();
    assert_eq!((made.defaults.user.as_str(), made.defaults.workdir.to_string().as_str()), ("app", "/srv/work"));
    let env = |name: &str| made.defaults.env[name].as_str();
    assert_eq!((env("PATH"), env("MODE"), env("TZ")), ("/opt/bin:/bin", "a=b", "UTC"));
    let work = stat(house.store.path(made.layers[1]).join("srv/work"));
    assert_eq!((work.uid(), work.gid()), (IDS.base + 77, IDS.base + 78));
    assert!(made.service.is_none(), "its command is left aside");

    let mut wishes =
        Overrides { user: Some(User::root()), workdir: Some("/else".parse().unwrap()), ..Overrides::default() };
    wishes.env.insert("MODE".into(), "mine".into());
    let made = house.templates().add("wished", &layout.source().parse().unwrap(), &wishes, &mut |_| {}).unwrap();
    assert_eq!((made.defaults.user.as_str(), made.defaults.workdir.to_string().as_str()), ("root", "/else"));
    assert_eq!((made.defaults.env["MODE"].as_str(), made.defaults.env["PATH"].as_str()), ("mine", "/opt/bin:/bin"));
}

#[test]
fn what_the_image_says_and_cannot_be_is_refused() {
    let house = House::new();
    for (said, why) in [
        (json!({ "User": "nobody-here" }), "nobody-here"),
        (json!({ "User": "a b\n" }), "--user"),
        (json!({ "WorkingDir": "relative" }), "working directory"),
        (json!({ "Env": ["NOTHING"] }), "variable"),
        (json!({ "Env": 7 }), "configuration"),
    ] {
        let layout = Layout::new(&house, "image");
        layout.index(&[layout.image(&config(said), &[(LAYER, base())])]);
        refused(&house, &layout.source(), why);
    }
}

#[test]
fn the_image_for_this_machine_is_taken() {
    let house = House::new();
    let layout = Layout::new(&house, "image");
    let other = json!({ "os": "linux", "architecture": "vax", "rootfs": {} });
    let other = layout.image(&other, &[(LAYER, tar_of(&[("other", "machine")]))]);
    let ours = layout.image(&config(Value::Null), &[(LAYER, base())]);
    let note = with(ours.clone(), "platform", json!({ "os": "unknown", "architecture": "unknown" }));
    let index = layout.nested(&[note, runs_on(other.clone(), "vax"), runs_on(ours, architecture())]);
    layout.index(&[layout.nested(&[index])]);
    let made = add(&house, &layout.source(), None).unwrap();
    assert_eq!(fs::read(house.store.path(made.layers[0]).join("kept")).unwrap(), b"lower");
    house.templates().rm("image", &|_| false).unwrap();
    house.store.remove_unused(&mut || house.templates().layers(&[])).unwrap();

    layout.index(&[runs_on(other.clone(), "vax")]);
    refused(&house, &layout.source(), "linux/vax");
    layout.index(&[runs_on(other, architecture())]); // the index lies: its configuration tells
    refused(&house, &layout.source(), "linux/vax");
}

#[test]
fn of_several_images_one_is_named() {
    let house = House::new();
    let layout = Layout::new(&house, "image");
    let one = layout.image(&config(Value::Null), &[(LAYER, base())]);
    let two = layout.image(&config(Value::Null), &[(LAYER, base()), (LAYER, upper())]);
    layout.index(&[called(one, "v1"), called(two, "v2")]);
    let error = add(&house, &layout.source(), None).unwrap_err().to_string();
    assert!(error.contains("--ref") && error.contains("\"v1\"") && error.contains("\"v2\""), "{error}");
    let error = add(&house, &layout.source(), Some("v3")).unwrap_err().to_string();
    assert!(error.contains("\"v3\"") && error.contains("\"v2\""), "{error}");
    house.assert_empty();
    assert_merged(&house, &add(&house, &layout.source(), Some("v2")).unwrap());

    let error = TemplateSource::Stdin.with_reference("v1".into()).unwrap_err();
    assert_eq!(error.code(), Code::BadRequest, "{error}");
}

/// What `docker save` writes: `manifest.json` with paths.
fn saved(house: &House, layers: &[Vec<u8>], diff_ids: &[Vec<u8>]) -> (PathBuf, Value) {
    let dir = house.dir.path().join("saved");
    fs::create_dir_all(&dir).unwrap();
    let mut config = config(json!({ "User": "app" }));
    config["rootfs"]["diff_ids"] = diff_ids.iter().map(|tar| digest(tar)).collect();
    let config = config.to_string();
    let name = format!("{}.json", hex(config.as_bytes()));
    fs::write(dir.join(&name), config).unwrap();
    let paths = layers.iter().enumerate().map(|(number, tar)| {
        fs::create_dir_all(dir.join(format!("l{number}"))).unwrap();
        fs::write(dir.join(format!("l{number}/layer.tar")), tar).unwrap();
        format!("l{number}/layer.tar")
    });
    let image = json!({ "Config": name, "RepoTags": ["mine:1"], "Layers": paths.collect::<Vec<_>>() });
    (dir, image)
}

fn packed(house: &House, dir: &Path, images: &Value) -> String {
    fs::write(dir.join("manifest.json"), images.to_string()).unwrap();
    let tar = house.dir.path().join("saved.tar");
    run("tar", &["-cf", text(&tar), "-C", text(dir), "."]);
    format!("docker-archive:{}", text(&tar))
}

#[test]
fn what_docker_saved_is_a_template() {
    let house = House::new();
    let (dir, image) = saved(&house, &[base(), gzip(&upper())], &[base(), upper()]);
    let made = add(&house, &packed(&house, &dir, &json!([image])), None).unwrap();
    assert_merged(&house, &made);
    assert_eq!(made.defaults.user.as_str(), "app");
    house.templates().rm("image", &|_| false).unwrap();

    // An older one has links to layers that it has already.
    fs::rename(dir.join("l1/layer.tar"), dir.join("l0/upper.tar")).unwrap();
    symlink("../l0/upper.tar", dir.join("l1/layer.tar")).unwrap();
    let several = json!([with(image.clone(), "RepoTags", json!(["other:1"])), image]);
    let source = packed(&house, &dir, &several);
    let error = add(&house, &source, None).unwrap_err().to_string();
    assert!(error.contains("\"other:1\"") && error.contains("\"mine:1\""), "{error}");
    assert_merged(&house, &add(&house, &source, Some("mine:1")).unwrap());
}

#[test]
fn a_saved_image_that_lies_is_refused() {
    let house = House::new();
    let (dir, image) = saved(&house, &[base(), upper()], &[base(), upper()]);
    let outside = house.dir.path().join("outside.tar");
    fs::write(&outside, base()).unwrap();
    for bad in ["../outside.tar", text(&outside), "l0/../../outside.tar"] {
        let lies = with(image.clone(), "Layers", json!([bad, "l1/layer.tar"]));
        refused(&house, &packed(&house, &dir, &json!([lies])), "no path inside");
        let lies = with(image.clone(), "Config", json!(bad));
        refused(&house, &packed(&house, &dir, &json!([lies])), "no path inside");
    }
    let swapped = with(image.clone(), "Layers", json!(["l1/layer.tar", "l0/layer.tar"]));
    refused(&house, &packed(&house, &dir, &json!([swapped])), "layer 1");
    let fewer = with(image.clone(), "Layers", json!(["l0/layer.tar"]));
    refused(&house, &packed(&house, &dir, &json!([fewer])), "2 layers");
    refused(&house, &packed(&house, &dir, &json!([])), "no image");
    refused(&house, &packed(&house, &dir, &json!({})), "manifest.json");

    fs::remove_file(dir.join("l1/layer.tar")).unwrap();
    symlink(&outside, dir.join("l1/layer.tar")).unwrap();
    refused(&house, &packed(&house, &dir, &json!([image])), "link");
    fs::remove_file(dir.join("l1/layer.tar")).unwrap();
    refused(&house, &packed(&house, &dir, &json!([image])), "not whole");
    let config = image["Config"].as_str().unwrap();
    fs::write(dir.join(config), fs::read_to_string(dir.join(config)).unwrap() + " ").unwrap();
    refused(&house, &packed(&house, &dir, &json!([image])), "digest");
}

#[test]
fn parts_that_are_not_what_their_digests_say_are_refused() {
    let house = House::new();
    let fresh = || {
        let layout = Layout::new(&house, "image");
        layout.index(&[layout.image(&config(Value::Null), &[(LAYER, base()), (LAYER, upper())])]);
        layout
    };
    let layout = fresh();
    let part = layout.blob_path(&upper());

    let mut wrong = upper();
    let place = wrong.windows(3).position(|bytes| bytes == b"new").unwrap();
    wrong[place] ^= 1;
    fs::write(&part, &wrong).unwrap();
    refused(&house, &layout.source(), "digest");

    fs::write(&part, [upper(), vec![0; 512]].concat()).unwrap();
    refused(&house, &layout.source(), "bytes instead of");

    fs::remove_file(&part).unwrap();
    refused(&house, &layout.source(), "not whole");

    let elsewhere = house.dir.path().join("elsewhere");
    fs::write(&elsewhere, upper()).unwrap();
    symlink(&elsewhere, &part).unwrap();
    refused(&house, &layout.source(), "link");

    fs::remove_file(&part).unwrap();
    fs::create_dir(&part).unwrap();
    refused(&house, &layout.source(), "no file");
    fs::remove_dir(&part).unwrap();

    // What a digest names is not looked for anywhere but among the parts.
    let far = json!({ "mediaType": MANIFEST, "digest": "sha256:../../../etc/passwd", "size": 1 });
    layout.index(&[far]);
    refused(&house, &layout.source(), "no digest");
    layout.index(&[json!({ "mediaType": MANIFEST, "digest": format!("sha512:{}", "a".repeat(128)), "size": 1 })]);
    refused(&house, &layout.source(), "sha512");

    fs::remove_dir_all(layout.dir.join("blobs")).unwrap();
    let all = fresh();
    fs::rename(all.dir.join("blobs"), house.dir.path().join("blobs")).unwrap();
    symlink("../blobs", all.dir.join("blobs")).unwrap();
    refused(&house, &all.source(), "link");
}

#[test]
fn what_is_no_image_for_us_is_refused_by_name() {
    let house = House::new();
    let layout = Layout::new(&house, "image");
    for (kind, why) in [
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", "kept elsewhere"),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "kept elsewhere"),
        ("application/vnd.example.layer+encrypted", "example.layer+encrypted"),
    ] {
        layout.index(&[layout.image(&config(Value::Null), &[(kind, base())])]);
        refused(&house, &layout.source(), why);
    }
    let chart = layout.json("application/vnd.example.chart", &json!({}));
    let chart = layout.json(MANIFEST, &json!({ "schemaVersion": 2, "config": chart, "layers": [] }));
    layout.index(&[chart]);
    refused(&house, &layout.source(), "example.chart");
    layout.index(&[json!({ "mediaType": "text/plain", "digest": digest(b""), "size": 0 })]);
    refused(&house, &layout.source(), "no image");
    fs::write(layout.dir.join("index.json"), r#"{"schemaVersion":1,"manifests":[]}"#).unwrap();
    refused(&house, &layout.source(), "schema version 1");
    fs::write(layout.dir.join("index.json"), "{").unwrap();
    refused(&house, &layout.source(), "cannot be read");
    fs::write(layout.dir.join("oci-layout"), r#"{"imageLayoutVersion":"9.0"}"#).unwrap();
    refused(&house, &layout.source(), "9.0");

    let (dir, image) = saved(&house, &[base()], &[base()]);
    let archive = packed(&house, &dir, &json!([image]));
    refused(&house, &archive.replace("docker-archive:", "oci:"), "docker-archive:");
    refused(&house, &archive.replace("docker-archive:", ""), "docker-archive:");
    refused(&house, &layout.source().replace("oci:", "docker-archive:"), "oci:");
}

#[test]
fn there_is_an_end_to_everything() {
    let house = House::new();
    let layout = Layout::new(&house, "image");
    let image = layout.image(&config(Value::Null), &[(LAYER, base())]);
    let deep = (0..8).fold(image.clone(), |inner, _| layout.nested(&[inner]));
    layout.index(&[deep]);
    refused(&house, &layout.source(), "deep");

    let layer = layout.blob(LAYER, &tar_of(&[]));
    layout.index(&[layout.manifest(&config(Value::Null), &vec![layer; 129])]);
    refused(&house, &layout.source(), "129 layers");

    let long = config(json!({ "Labels": { "long": "x".repeat(4 << 20) } }));
    layout.index(&[layout.image(&long, &[(LAYER, base())])]);
    refused(&house, &layout.source(), "are the most");
    fs::write(layout.dir.join("index.json"), " ".repeat((4 << 20) + 1)).unwrap();
    refused(&house, &layout.source(), "are the most");
}

#[test]
fn no_layer_writes_through_a_link_of_another() {
    let house = House::new();
    let outside = house.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let layout = Layout::new(&house, "image");
    let link = tar_of(&[(&format!("way -> {}", text(&outside)), ""), ("up -> ../../../..", "")]);
    let through = tar_of(&[("way/evil", "evil"), ("up/evil", "evil"), ("link/evil", "evil")]);
    layout.index(&[layout.image(&config(Value::Null), &[(LAYER, base()), (LAYER, link), (LAYER, through)])]);
    let made = add(&house, &layout.source(), None).unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    let tree = house.store.path(made.layers[0]);
    for dir in ["way", "up", "link"] {
        assert!(stat(tree.join(dir)).is_dir(), "{dir}");
        assert_eq!(fs::read(tree.join(dir).join("evil")).unwrap(), b"evil");
    }
    assert!(!tree.join("etc/evil").exists());
}

#[test]
fn layers_that_are_hostile_tars_are_refused() {
    let house = House::new();
    let mut up = tar_of(&[("xx/evil", "evil")]);
    up[..2].copy_from_slice(b"..");
    let sum: u32 = up[..148].iter().chain(&up[156..512]).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
    up[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let within = tar_of(&[("a -> /", ""), ("a/evil", "evil")]);
    let marks = [tar_of(&[("etc/.wh.", "")]), tar_of(&[("etc/.wh..", "")]), tar_of(&[("etc/.wh...", "")])];
    for bad in [up, within].into_iter().chain(marks) {
        let layout = Layout::new(&house, "image");
        layout.index(&[layout.image(&config(Value::Null), &[(LAYER, base()), (LAYER, bad)])]);
        let error = add(&house, &layout.source(), None).unwrap_err();
        assert_eq!(error.code(), Code::ArchiveInvalid, "{error}");
        assert!(error.to_string().contains("layer 2"), "{error}");
        house.assert_empty();
    }
}

#[test]
fn a_layer_may_hide_everything_below_it() {
    let house = House::new();
    let layout = Layout::new(&house, "image");
    let all = tar_of(&[(".wh..wh..opq", ""), ("bin/", ""), ("bin/sh", "another"), ("etc/", "")]);
    layout.index(&[layout.image(&config(Value::Null), &[(LAYER, base()), (LAYER, all)])]);
    let made = add(&house, &layout.source(), None).unwrap();
    let tree = house.store.path(made.layers[0]);
    let names: BTreeSet<_> = fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["bin".into(), "etc".into()].into());
    assert_eq!(fs::read(tree.join("bin/sh")).unwrap(), b"another");
}

#[test]
fn a_layer_of_an_image_says_nothing_to_overlayfs() {
    let house = House::new();
    let claiming = |entries: &[(&str, tar::EntryType)]| {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, kind) in entries {
            let claims: [(&str, &[u8]); 5] = [
                ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
                ("SCHILY.xattr.user.overlay.opaque", b"y"),
                ("SCHILY.xattr.user.overlay.metacopy", b""),
                ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
                ("SCHILY.xattr.user.note", b"kept"),
            ];
            tar.append_pax_extensions(claims).unwrap();
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(*kind);
            header.set_path(name).unwrap();
            header.set_mode(0o755);
            header.set_size(0);
            header.set_cksum();
            tar.append(&header, io::empty()).unwrap();
        }
        tar.into_inner().unwrap()
    };
    let (dir, file) = (tar::EntryType::Directory, tar::EntryType::Regular);
    // The lowest is unpacked where it stays; the others are merged into it.
    let lowest = [&base()[..base().len() - 1024], &claiming(&[("first/", dir), ("one", file)])].concat();
    let second = claiming(&[("second/", dir), ("two", file), ("data/", dir)]);
    let layout = Layout::new(&house, "image");
    layout.index(&[layout.image(&config(Value::Null), &[(LAYER, lowest), (LAYER, second)])]);
    let made = add(&house, &layout.source(), None).unwrap();
    let tree = house.store.path(made.layers[0]);
    for name in ["first", "one", "second", "two", "data"] {
        let mut list = [0_u8; 1024];
        let length = rustix::fs::llistxattr(tree.join(name), &mut list).unwrap();
        assert_eq!(String::from_utf8_lossy(&list[..length]), "user.note\0", "{name}");
    }
    assert!(tree.join("data/old").exists(), "nor did it hide what lies below");
}
