//! Which of several images is meant: the one of the name that was given, for this machine.

use std::collections::BTreeSet;

use super::manifest::{Descriptor, Saved, Why, our_architecture, shown};

/// So many names tell what there is; the rest is counted.
const LISTED: usize = 20;

/// Of `index.json`, where images have names.
pub(super) fn named(all: Vec<Descriptor>, reference: Option<&str>) -> Result<Descriptor, Why> {
    let mut images: Vec<_> = all.into_iter().filter(is_image).collect();
    if let Some(reference) = reference {
        let is_meant = |image: &Descriptor| image.digest == reference || image.names().any(|name| name == reference);
        if !images.iter().any(is_meant) {
            return Err(no_such(reference, images.iter().map(called)));
        }
        images.retain(is_meant);
    } else {
        // Without a name, what differs in its platform alone is one image.
        let one = |image: &Descriptor| match (image.names().next(), &image.platform) {
            (Some(name), _) => name.to_owned(),
            (None, Some(_)) => String::new(),
            (None, None) => image.digest.clone(),
        };
        if images.iter().map(one).collect::<BTreeSet<_>>().len() > 1 {
            return Err(several(images.iter().map(called)));
        }
    }
    for_us(images)
}

/// Of those that are one image for several machines. The first that fits, as the specification has it.
pub(super) fn for_us(all: Vec<Descriptor>) -> Result<Descriptor, Why> {
    let images: Vec<_> = all.into_iter().filter(is_image).collect();
    if images.is_empty() {
        return Err("it has no image in it".into());
    }
    let ours = images.iter().filter(|image| image.platform.as_ref().is_some_and(super::manifest::Platform::is_ours));
    // A variant that every processor of the kind has comes before one that only the newer have.
    let basic = |image: &&Descriptor| {
        let variant = image.platform.as_ref().and_then(|platform| platform.variant.as_deref());
        !matches!(variant, None | Some("" | "v1" | "v8"))
    };
    let found = ours.min_by_key(basic).or_else(|| images.iter().find(|image| image.platform.is_none()));
    found.cloned().ok_or_else(|| {
        let platforms: BTreeSet<_> =
            images.iter().filter_map(|image| image.platform.as_ref()).map(ToString::to_string).collect();
        not_for_us(&list(platforms.into_iter()))
    })
}

/// Of `manifest.json`.
pub(super) fn saved(mut all: Vec<Saved>, reference: Option<&str>) -> Result<Saved, Why> {
    let names = |all: &[Saved]| {
        all.iter().map(|saved| saved.names().next().unwrap_or("(no name)").to_owned()).collect::<Vec<_>>()
    };
    let meant = match reference {
        Some(reference) => all
            .iter()
            .position(|saved| saved.names().any(|name| name == reference))
            .ok_or_else(|| no_such(reference, names(&all).into_iter()))?,
        None if all.len() > 1 => return Err(several(names(&all).into_iter())),
        None if all.is_empty() => return Err("it has no image in it".into()),
        None => 0,
    };
    Ok(all.swap_remove(meant))
}

pub(super) fn not_for_us(platforms: &str) -> Why {
    let ours = our_architecture();
    format!("it is for {platforms}, and this machine is linux/{ours}: get the image for linux/{ours}")
}

/// What is signed about an image lies beside it, for a platform that does not exist.
fn is_image(found: &Descriptor) -> bool {
    let is_note = found.platform.as_ref().is_some_and(|platform| platform.os == "unknown");
    (found.is_index() || found.is_manifest()) && !is_note
}

fn called(image: &Descriptor) -> String {
    image.names().next().unwrap_or(&image.digest).to_owned()
}

fn no_such(reference: &str, there: impl Iterator<Item = String>) -> Why {
    format!("it has no image {}: it has {}", shown(reference), list(there.map(|name| shown(&name))))
}

fn several(there: impl Iterator<Item = String>) -> Why {
    format!("it has several images: name one of them with --ref: {}", list(there.map(|name| shown(&name))))
}

fn list(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<_> = names.collect();
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    match (names.is_empty(), more) {
        (true, _) => "none".into(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more", names.join(", ")),
    }
}
