//! The settings, read again while the server serves: for whatever begins from then on.

use std::sync::{Arc, Mutex, PoisonError};

use cabana_runtime::{Live, Runtime, Settings};
use cabana_server::{Bounds, Reload, Reloaded, Tls};
use tokio::signal::unix::Signal;
use tokio_util::task::TaskTracker;

use super::{log::Level, notify};
use crate::config::reload::{Read, Source};

/// All of it or nothing: what can go wrong comes before anything changes.
pub(super) fn through(
    source: Source,
    runtime: Runtime,
    bounds: Arc<Live<Bounds>>,
    tls: Option<Tls>,
    level: Level,
) -> Reload {
    let one_at_a_time = Mutex::new(());
    Reload(Arc::new(move || {
        let _alone = one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let read = source.read().map_err(|failure| failure.to_string())?;
        let mut changed = read.changed.clone();
        if let (Some(tls), Some((chain, key))) = (&tls, &read.serving.tls)
            && tls.read_again(chain, key).map_err(|error| error.to_string())?
            && !changed.iter().any(|key| key == "server.tls_cert")
        {
            changed.push("server.tls_cert".to_owned()); // another one in the same file
        }
        source.counts(&read);
        let Read { serving, needs_restart, .. } = read;
        if !changed.is_empty() {
            // Where the data is was asked before a user namespace made everybody root.
            let data = runtime.settings().data.clone();
            runtime.change_settings(Settings { data, ..serving.settings });
            bounds.replace(serving.bounds);
            level.set(&serving.log.level);
        }
        Ok(Reloaded { changed, needs_restart })
    }))
}

/// At each of these signals, and what came of it is in the log.
pub(super) fn at_each(mut signals: Signal, reload: Reload) {
    TaskTracker::new().spawn(async move {
        while signals.recv().await.is_some() {
            notify::say("RELOADING=1");
            let reload = reload.clone();
            match tokio::task::spawn_blocking(move || (reload.0)()).await {
                Ok(Ok(Reloaded { changed, needs_restart })) => {
                    tracing::info!(?changed, ?needs_restart, "the settings were read again");
                }
                Ok(Err(why)) => tracing::error!(%why, "the settings stay as they were"),
                Err(error) => tracing::error!(%error, "the settings stay as they were"),
            }
            notify::say("READY=1");
        }
    });
}
