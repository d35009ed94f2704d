//! Settings that are read again while the server serves: what can change does, and the rest is named.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use super::{
    Given, Serving,
    resolve::Resolved,
    table::{
        CA, DATA, DEV_TLS, DURABILITY, INSECURE_HTTP, LISTEN, LOG_FORMAT, MAX_CONNECTIONS, MIN_FREE, OWN_ADDRESSES,
        PREVIEW_DOMAIN, SPARES, Setting, TELEMETRY_ENDPOINT, TLS_CERT, TLS_KEY, UPSTREAM_PROXY,
    },
};
use crate::failure::Failure;

/// What the server is made of, and not what it does.
static NEEDS_RESTART: &[&Setting] = &[
    &LISTEN,
    &DEV_TLS,
    &INSECURE_HTTP,
    &PREVIEW_DOMAIN,
    &MAX_CONNECTIONS,
    &DATA,
    &SPARES,
    &DURABILITY,
    &UPSTREAM_PROXY,
    &CA,
    &OWN_ADDRESSES,
    &LOG_FORMAT,
    &TELEMETRY_ENDPOINT,
    &MIN_FREE,
];

/// Where settings come from, and which count.
pub(crate) struct Source {
    given: Given,
    /// As it was given on the command line.
    data: Option<PathBuf>,
    /// By the key of the setting.
    counts: Mutex<BTreeMap<String, Option<String>>>,
}

/// What was read, and how it differs from what counts.
pub(crate) struct Read {
    pub(crate) serving: Serving,
    pub(crate) changed: Vec<String>,
    pub(crate) needs_restart: Vec<String>,
    texts: BTreeMap<String, Option<String>>,
}

impl Source {
    pub(crate) fn new(given: Given, data: Option<PathBuf>) -> Result<(Self, Serving), Failure> {
        let (resolved, serving) = super::read(&given, data.as_ref())?;
        Ok((Self { given, data, counts: Mutex::new(texts(&resolved)) }, serving))
    }

    /// Nothing counts of it before somebody says so.
    pub(crate) fn read(&self) -> Result<Read, Failure> {
        let (resolved, serving) = super::read(&self.given, self.data.as_ref())?;
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let texts = texts(&resolved);
        let differs = |setting: &Setting| texts.get(&setting.key()) != counts.get(&setting.key());
        let is_set = |texts: &BTreeMap<String, Option<String>>, setting: &Setting| {
            texts.get(&setting.key()).is_some_and(Option::is_some)
        };
        // Other certificates can be taken, but not whether there are any.
        let toggles_tls = is_set(&texts, &TLS_CERT) != is_set(&counts, &TLS_CERT);
        let is_fixed = |setting: &Setting| {
            NEEDS_RESTART.contains(&setting) || toggles_tls && [&TLS_CERT, &TLS_KEY].contains(&setting)
        };
        let (needs_restart, changed): (Vec<_>, Vec<_>) =
            resolved.0.iter().map(|found| found.setting).filter(|s| differs(s)).partition(|s| is_fixed(s));
        let keys = |settings: Vec<&Setting>| settings.into_iter().map(Setting::key).collect::<Vec<_>>();
        Ok(Read { serving, changed: keys(changed), needs_restart: keys(needs_restart), texts })
    }

    /// From now on.
    pub(crate) fn counts(&self, read: &Read) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for key in &read.changed {
            counts.insert(key.clone(), read.texts.get(key).cloned().flatten());
        }
    }
}

fn texts(resolved: &Resolved) -> BTreeMap<String, Option<String>> {
    resolved.0.iter().map(|found| (found.setting.key(), found.text.clone())).collect()
}
