//! The first key: in a file that only the server's own user can read.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use cabana_model::Code;
use cabana_runtime::{Access, Credential, Error, Role, Tenant, WantedKey};

use crate::failure::Failure;

pub(super) struct First {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// The text is in its file before the key opens anything: a crash in between leaves nothing that nobody has.
pub(super) async fn first(data: &Path, access: &Access) -> Result<First, Failure> {
    let path = data.join("admin.key");
    let failed = |error: std::io::Error| Failure::new(Code::Internal, format!("{}: {error}", path.display()));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = Access::draw()?;
            let draft = data.join(".admin.key");
            let _ = std::fs::remove_file(&draft);
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
            file.and_then(|mut file| writeln!(file, "{text}")).map_err(failed)?;
            std::fs::rename(&draft, &path).map_err(failed)?;
            text
        }
        Err(error) => return Err(failed(error)),
    };
    match access.admit(Credential(&text)).await {
        Ok(_) => {}
        Err(Error::Unauthorized) => {
            let first = WantedKey::new(Tenant::default(), Role::Admin, "the first key, in admin.key");
            match access.adopt(&text, first).await {
                Ok(_) => {}
                // It was known once: then it was revoked, and stays so.
                Err(Error::Store(error)) => {
                    tracing::warn!(%error, "the key in admin.key opens nothing: `cabana key add` makes another");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    }
    Ok(First { path, text })
}
