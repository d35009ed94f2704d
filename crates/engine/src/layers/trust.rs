//! Certificates of the operator's own, trusted in sandboxes: a small layer on top of whatever a sandbox stands on.
//!
//! The layers below are shared and never change. This one holds their bundle with the operator's certificates at its end,
//! in a directory that no base has, and the environment of commands says where. Whoever does not follow it (Java) is told
//! in the guide.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    sync::{Mutex, PoisonError},
};

use cabana_sandbox::{LayerId, Result};

use super::{
    LayerName, Store, failed,
    rooted::Rooted,
    writer::{Meta, Writer},
};

/// Where Debian keeps all authorities in one file.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

const ALL: &str = "/.cabana/certificates.pem";
const OWN: &str = "/.cabana/own.pem";
const APT: &str = "/.cabana/apt.conf";

/// Each program has its own word for it.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("SSL_CERT_FILE", ALL),      // OpenSSL, and with it Python, Ruby and PHP; Go
    ("CURL_CA_BUNDLE", ALL),     // curl, whatever it does TLS with
    ("GIT_SSL_CAINFO", ALL),     // git
    ("PIP_CERT", ALL),           // pip has authorities of its own
    ("REQUESTS_CA_BUNDLE", ALL), // and so has Python's requests
    ("NODE_EXTRA_CA_CERTS", OWN),
    ("npm_config_cafile", ALL), // npm, where a setting of the machine names another file
    ("APT_CONFIG", APT),
];

pub(crate) struct Trust {
    own: Vec<u8>,
    /// By the layers below.
    made: Mutex<HashMap<Vec<LayerName>, LayerId>>,
}

impl Trust {
    pub(crate) fn new(own: Vec<u8>) -> Self {
        Self { own, made: Mutex::default() }
    }

    /// The layer for a base, the lowest of its layers first. The caller holds the store until the layer is written down.
    pub(crate) fn layer(&self, store: &Store, base: &[LayerName]) -> Result<LayerId> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layer) = made.get(base).filter(|layer| store.has(*layer)) {
            return Ok(*layer);
        }
        let mut all = bundle(store, base)?.into_bytes();
        all.push(b'\n');
        all.extend_from_slice(&self.own);
        let draft = store.draft()?;
        let mut writer = Writer::new(&draft.tree, store.ids());
        let apt = format!("Acquire::https::CAInfo \"{ALL}\";\n");
        for (path, content) in [(ALL, all.as_slice()), (OWN, &self.own), (APT, apt.as_bytes())] {
            writer.file(&path[1..], content, Meta::new(0o644)).map_err(failed("writing certificates"))?;
        }
        writer.end().map_err(failed("writing certificates"))?;
        let layer = draft.seal()?.keep()?;
        made.insert(base.to_vec(), layer);
        Ok(layer)
    }
}

/// For the commands of a sandbox that stands on such a layer. What the template sets stays.
pub(crate) fn trusting(env: &mut BTreeMap<String, String>) {
    for (name, value) in ENVIRONMENT {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
}

/// Of the highest layer that has one.
fn bundle(store: &Store, base: &[LayerName]) -> Result<String> {
    let look = failed("looking for certificates");
    for layer in base.iter().rev() {
        let path = store.path(*layer);
        let root = File::open(&path).map_err(&look)?;
        if let Some(text) = Rooted::new(&root, &path, store.ids()).text(BUNDLE).map_err(&look)? {
            return Ok(text);
        }
    }
    Ok(String::new())
}
