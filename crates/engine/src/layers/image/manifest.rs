//! What the JSON of an image says. Pure: bytes in, values or the reason why not out. All of it is a stranger's.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, de::DeserializeOwned};

/// More than any index, manifest or configuration has.
pub(super) const MOST_JSON: u64 = 4 << 20;
/// One more than docker makes.
pub(super) const MOST_LAYERS: usize = 128;

const INDEX: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFEST: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const CONFIG: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYER: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];
/// Layers that their maker lets nobody hand on: they lie at an address of the maker's.
const ELSEWHERE: [&str; 2] =
    ["application/vnd.oci.image.layer.nondistributable.", "application/vnd.docker.image.rootfs.foreign."];
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// Why an image is not taken.
pub(super) type Why = String;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: String,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Platform {
    #[serde(default)]
    pub(super) os: String,
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) variant: Option<String>,
}

impl Platform {
    pub(super) fn is_ours(&self) -> bool {
        self.os == "linux" && self.architecture == our_architecture()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", shown(&self.os).trim_matches('"'), shown(&self.architecture).trim_matches('"'))
    }
}

/// As images spell it.
pub(super) fn our_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Descriptor {
    pub(super) fn is_index(&self) -> bool {
        INDEX.contains(&self.media_type.as_str())
    }

    pub(super) fn is_manifest(&self) -> bool {
        MANIFEST.contains(&self.media_type.as_str())
    }

    /// What people call it, in a layout with several.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let annotations = self.annotations.iter();
        annotations.flat_map(|all| NAMES.iter().filter_map(|name| all.get(*name))).map(String::as_str)
    }
}

/// `oci-layout`: whether the rest of the directory is as it is expected here.
pub(super) fn version(bytes: &[u8]) -> Result<(), Why> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Layout {
        image_layout_version: String,
    }
    let Layout { image_layout_version: version } = read("oci-layout", bytes)?;
    match version.starts_with("1.") {
        true => Ok(()),
        false => Err(format!("it is an image layout of version {}, and 1 is read", shown(&version))),
    }
}

/// `index.json`, or an index in a blob: what it lists.
pub(super) fn index(bytes: &[u8]) -> Result<Vec<Descriptor>, Why> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Index {
        schema_version: u64,
        manifests: Vec<Descriptor>,
    }
    let Index { schema_version, manifests } = read("index", bytes)?;
    check_version("index", schema_version)?;
    Ok(manifests)
}

pub(super) struct Manifest {
    pub(super) config: Descriptor,
    /// The lowest first. Each of a kind that is read here.
    pub(super) layers: Vec<Descriptor>,
}

pub(super) fn manifest(bytes: &[u8]) -> Result<Manifest, Why> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Raw {
        schema_version: u64,
        config: Descriptor,
        layers: Vec<Descriptor>,
    }
    let Raw { schema_version, config, layers } = read("manifest", bytes)?;
    check_version("manifest", schema_version)?;
    if !CONFIG.contains(&config.media_type.as_str()) {
        let kind = shown(&config.media_type);
        return Err(format!("its configuration is of the kind {kind}: it is something else than a container image"));
    }
    check_count(layers.len())?;
    for (number, layer) in layers.iter().enumerate() {
        let (number, kind) = (number + 1, layer.media_type.as_str());
        if ELSEWHERE.iter().any(|elsewhere| kind.starts_with(elsewhere)) {
            let kind = shown(kind);
            return Err(format!("its layer {number} is kept elsewhere ({kind}), and nothing is fetched from anywhere"));
        }
        if !LAYER.contains(&kind) {
            let kind = shown(kind);
            return Err(format!("its layer {number} is of the kind {kind}: tars are read, plain or with gzip or zstd"));
        }
    }
    Ok(Manifest { config, layers })
}

pub(super) struct Config {
    pub(super) platform: Platform,
    pub(super) user: String,
    pub(super) workdir: String,
    pub(super) env: BTreeMap<String, String>,
    /// Digests of the layers as tars, the lowest first.
    pub(super) diff_ids: Vec<String>,
}

pub(super) fn config(bytes: &[u8]) -> Result<Config, Why> {
    #[derive(Deserialize)]
    struct Raw {
        #[serde(flatten)]
        platform: Platform,
        #[serde(default)]
        config: Option<Run>,
        rootfs: Rootfs,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "PascalCase", default)]
    struct Run {
        user: Option<String>,
        working_dir: Option<String>,
        env: Option<Vec<String>>,
    }
    #[derive(Deserialize)]
    struct Rootfs {
        #[serde(default)]
        diff_ids: Option<Vec<String>>,
    }
    let Raw { platform, config, rootfs } = read("configuration", bytes)?;
    let Run { user, working_dir, env } = config.unwrap_or_default();
    let pairs = env.unwrap_or_default().into_iter().map(|pair| match pair.split_once('=') {
        Some((name, value)) if !name.is_empty() && !pair.contains('\0') => Ok((name.to_owned(), value.to_owned())),
        // Of the value nothing is shown: it may be a secret.
        _ => Err("its configuration has a variable that is not NAME=VALUE".to_owned()),
    });
    Ok(Config {
        platform,
        user: user.unwrap_or_default(),
        workdir: working_dir.unwrap_or_default(),
        env: pairs.collect::<Result<_, _>>()?,
        diff_ids: rootfs.diff_ids.unwrap_or_default(),
    })
}

/// One image of what `docker save` wrote. The paths lie below the archive, and lead nowhere else.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Saved {
    pub(super) config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

impl Saved {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.repo_tags.iter().flatten().map(String::as_str)
    }
}

/// `manifest.json` of `docker save`.
pub(super) fn saved(bytes: &[u8]) -> Result<Vec<Saved>, Why> {
    let all: Vec<Saved> = read("manifest.json", bytes)?;
    for saved in &all {
        check_count(saved.layers.len())?;
        saved.layers.iter().chain([&saved.config]).try_for_each(|path| check_path(path))?;
    }
    Ok(all)
}

fn check_path(path: &str) -> Result<(), Why> {
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    match path.split('/').all(plain) && !path.contains('\0') {
        true => Ok(()),
        false => Err(format!("its manifest.json names {}, which is no path inside the archive", shown(path))),
    }
}

fn check_count(layers: usize) -> Result<(), Why> {
    match layers {
        0..=MOST_LAYERS => Ok(()),
        _ => Err(format!(
            "it has {layers} layers, and {MOST_LAYERS} are the most: squash it, or export a container of it"
        )),
    }
}

fn check_version(what: &str, version: u64) -> Result<(), Why> {
    match version {
        2 => Ok(()),
        _ => Err(format!(
            "its {what} has the schema version {version}, and 2 is read: save it anew with a newer program"
        )),
    }
}

fn read<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, Why> {
    serde_json::from_slice(bytes).map_err(|e| format!("its {what} cannot be read: {}", short(&e.to_string())))
}

/// Somebody else's text, quoted and not too long.
pub(super) fn shown(text: &str) -> String {
    format!("{:?}", short(text))
}

fn short(text: &str) -> String {
    const MOST: usize = 120;
    let mut short: String = text.chars().take(MOST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
