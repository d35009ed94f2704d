//! Layers: the immutable trees that sandboxes stand on.
//!
//! [`Store`] keeps them by content. [`Templates`] names stacks of them, made from a directory, a tar, a set of Debian
//! packages or a container image. [`HostBase`] is the stack without a download: the machine's own programs, with a generated root around them.
//! All of them lie on disk in one range of ids (the `IdMap` that each function takes) and are idmapped when a sandbox runs.

mod accounts;
mod completion;
mod debian;
mod host_base;
mod image;
mod lock;
mod name;
mod rooted;
mod source;
mod store;
mod templates;
mod trust;
mod writer;

use std::{collections::BTreeMap, io};

use cabana_sandbox::{Defaults, Error, SandboxPath, User};

pub use host_base::{HiddenTool, HostBase, HostTree, hidden_tools};
pub use image::ImageForm;
#[cfg(fuzzing)]
pub(crate) use image::read_all as read_image;
pub(crate) use lock::Lock;
pub use name::{LayerName, NoLayerName};
pub use source::{Progress, TemplateSource};
pub use store::Store;
pub(crate) use store::{Draft, Pins};
pub(crate) use templates::now;
pub use templates::{Templates, Unnamed};
pub(crate) use trust::{Trust, trusting};
pub(crate) use writer::{MADE, both};

pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where a sandbox without a wish of its own works.
pub(crate) const WORKSPACE: &str = "/workspace";

/// A full disk is the caller's to solve, and has a name of its own.
pub(crate) fn failed(step: &'static str) -> impl Fn(io::Error) -> Error {
    move |e| match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace,
        _ => Error::failed(step, e),
    }
}

pub(crate) fn defaults(user: User, workdir: SandboxPath) -> Defaults {
    let env = [("LANG", "C.UTF-8"), ("PATH", DEFAULT_PATH), ("TZ", "UTC")];
    let env: BTreeMap<_, _> = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Defaults { user, workdir, env }
}
