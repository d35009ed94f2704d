//! Container images as templates: an OCI image layout, or what `docker save` wrote. Nothing is fetched from anywhere, and
//! nothing of an image is run. Its layers become one; its configuration suggests who runs commands, where, and with what
//! variables.

mod choose;
mod digest;
mod layout;
mod manifest;
#[cfg(test)]
mod tests;
mod unpack;

use std::{fmt, fs::File, path::Path};

use cabana_sandbox::{Error, Overrides, Result, SandboxPath, User};

use self::{
    digest::Digest,
    layout::Layout,
    manifest::{Config, Descriptor, Why},
    unpack::{Most, Packed},
};
use super::{
    source::{self, Progress},
    store::Store,
};

/// What an archive of an image, and the image itself, may unpack to: what a server takes of a template unless told otherwise.
const MOST: u64 = 16 << 30;
/// Of all layers together, as an archive of files may have.
const MOST_ENTRIES: u64 = 1_000_000;
/// Indexes in indexes.
const MOST_DEEP: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageForm {
    /// An OCI image layout: a directory, or a tar of one.
    Oci,
    /// What `docker save` writes.
    DockerArchive,
}

impl ImageForm {
    pub(super) const ALL: [Self; 2] = [Self::Oci, Self::DockerArchive];
}

impl fmt::Display for ImageForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Oci => "oci",
            Self::DockerArchive => "docker-archive",
        })
    }
}

/// Fills the empty directory `into` with the image's files, and tells what the image suggests.
pub(super) fn fill(
    name: &str,
    (form, path, reference): (ImageForm, &Path, Option<&str>),
    store: &Store,
    into: &File,
    on_progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Overrides> {
    let bad = |why: Why| Error::BadTemplate { name: name.into(), why };
    let given = File::open(path).map_err(|e| Error::invalid("from", format!("{}: {e}", path.display())))?;
    let is_dir = given.metadata().map_err(super::failed("looking at the image"))?.is_dir();
    // Its parts are read in another order than they lie in an archive.
    let scratch = store.draft()?;
    let root = match is_dir {
        true => given,
        false => {
            source::unpack_sent(&mut &given, MOST, &scratch.root, store.ids())?;
            scratch.root.try_clone().map_err(super::failed("opening the image"))?
        }
    };
    let (config, layers) = match form {
        ImageForm::Oci => of_oci(&Layout::of_oci(root), reference),
        ImageForm::DockerArchive => of_docker(&Layout::of_docker(root), reference),
    }
    .map_err(bad)?;
    let suggested = suggested(config).map_err(bad)?;
    unpack::unpack(name, layers, store, into, Most { bytes: MOST, entries: MOST_ENTRIES }, on_progress)?;
    Ok(suggested)
}

fn of_oci(layout: &Layout, reference: Option<&str>) -> Result<(Config, Vec<Packed>), Why> {
    if !layout.has("oci-layout") && layout.has("manifest.json") {
        return Err("it is no OCI image layout, but what `docker save` writes: use --from docker-archive:PATH".into());
    }
    manifest::version(&layout.plain("oci-layout")?.text()?)?;
    let index = manifest::index(&layout.plain("index.json")?.text()?)?;
    let mut found = choose::named(index, reference)?;
    for _ in 0..MOST_DEEP {
        if !found.is_index() {
            break;
        }
        found = choose::for_us(manifest::index(&layout.blob(&found)?.text()?)?)?;
    }
    if found.is_index() {
        return Err(format!("its indexes lie in each other more than {MOST_DEEP} deep"));
    }
    let manifest = manifest::manifest(&layout.blob(&found)?.text()?)?;
    let config = for_us(manifest::config(&layout.blob(&manifest.config)?.text()?)?)?;
    let open = |layer: &Descriptor| layout.blob(layer).map(|blob| Packed { blob, tar: None });
    let layers = manifest.layers.iter().map(open).collect::<Result<_, _>>()?;
    Ok((config, layers))
}

fn of_docker(layout: &Layout, reference: Option<&str>) -> Result<(Config, Vec<Packed>), Why> {
    if !layout.has("manifest.json") && layout.has("oci-layout") {
        return Err("it is an OCI image layout, and not what `docker save` writes: use --from oci:PATH".into());
    }
    let saved = choose::saved(manifest::saved(&layout.plain("manifest.json")?.text()?)?, reference)?;
    let config = layout.plain(&saved.config)?.expecting(digest_in(&saved.config));
    let config = for_us(manifest::config(&config.text()?)?)?;
    if config.diff_ids.len() != saved.layers.len() {
        let (said, there) = (config.diff_ids.len(), saved.layers.len());
        return Err(format!("its configuration names {said} layers, and its manifest.json {there}: it is damaged"));
    }
    let open = |(path, tar): (&String, &String)| {
        Ok::<_, Why>(Packed { blob: layout.plain(path)?, tar: Some(Digest::parse(tar)?) })
    };
    let layers = saved.layers.iter().zip(&config.diff_ids).map(open).collect::<Result<_, _>>()?;
    Ok((config, layers))
}

/// Docker names a configuration by its digest: `HEX.json`, and later `blobs/sha256/HEX`.
fn digest_in(path: &str) -> Option<Digest> {
    let name = path.rsplit('/').next()?;
    Digest::of_hex(name.strip_suffix(".json").unwrap_or(name))
}

fn for_us(config: Config) -> Result<Config, Why> {
    match config.platform.is_ours() {
        true => Ok(config),
        false => Err(choose::not_for_us(&config.platform.to_string())),
    }
}

/// Groups are those of the user's account: what stands after a `:` is left aside.
fn suggested(config: Config) -> Result<Overrides, Why> {
    let user = config.user.split(':').next().filter(|user| !user.is_empty());
    let user = user.map(|user| {
        User::new(user)
            .map_err(|e| format!("its configuration names a user that cannot be: {e}: choose one with --user"))
    });
    let workdir = Some(&config.workdir).filter(|dir| !dir.is_empty()).map(|dir| {
        SandboxPath::new(dir.as_bytes())
            .map_err(|e| format!("its configuration names a working directory that cannot be: {e}"))
    });
    Ok(Overrides { user: user.transpose()?, workdir: workdir.transpose()?, env: config.env, ..Overrides::default() })
}

/// Every reader gets the bytes, whatever they are.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_all(bytes: &[u8]) {
    if let Ok(all) = manifest::index(bytes) {
        let names: Vec<String> = all.iter().flat_map(Descriptor::names).map(str::to_owned).collect();
        let _ = choose::named(all.clone(), None);
        names.iter().for_each(|name| drop(choose::named(all.clone(), Some(name))));
        let _ = choose::for_us(all);
    }
    if let Ok(manifest) = manifest::manifest(bytes) {
        assert!(manifest.layers.len() <= manifest::MOST_LAYERS);
        let _ = Digest::parse(&manifest.config.digest)
            .map(|digest| assert_eq!(format!("sha256:{}", digest.hex()), manifest.config.digest));
    }
    if let Ok(config) = manifest::config(bytes) {
        let _ = suggested(config);
    }
    if let Ok(all) = manifest::saved(bytes) {
        for saved in &all {
            assert!(
                saved
                    .layers
                    .iter()
                    .chain([&saved.config])
                    .all(|path| !path.starts_with('/') && !path.split('/').any(|part| part == ".."))
            );
        }
        let _ = choose::saved(all, None);
    }
    let _ = manifest::version(bytes);
}
