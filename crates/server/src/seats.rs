//! How many streams a tenant has open, so that none takes the room of all others, and that each ends with the key that opened it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_runtime::{Caller, Chunk, Code, KeyLife, Live, Tenant};
use futures_util::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};

use crate::{
    App, Bounds,
    error::{Answer, Refused},
    pace::TenantPace,
    untaken::Untaken,
};

pub(crate) struct Streams {
    bounds: Arc<Live<Bounds>>,
    open: Mutex<HashMap<Tenant, usize>>,
    follow_pace: TenantPace,
}

/// One stream. It is open as long as this is held.
pub(crate) struct StreamSeat {
    streams: Arc<Streams>,
    tenant: Tenant,
    key: KeyLife,
    untaken: Untaken,
}

/// What a client is told when its key ends before its stream does.
pub(crate) const KEY_ENDED: &str = "the key was revoked or has expired";

pub(crate) fn key_ended() -> Refused {
    Refused::new(Code::Unauthorized, KEY_ENDED)
}

impl App {
    pub(crate) async fn open_stream(&self, caller: &Caller) -> Answer<StreamSeat> {
        let key = self.runtime.access().life(caller.key).await?;
        self.streams.sit(&caller.tenant, key, Untaken::new(self.runtime.list_memory(&caller.tenant)))
    }
}

impl Streams {
    pub(crate) fn new(bounds: Arc<Live<Bounds>>) -> Self {
        Self { bounds, open: Mutex::default(), follow_pace: TenantPace::default() }
    }

    fn sit(self: &Arc<Self>, tenant: &Tenant, key: KeyLife, untaken: Untaken) -> Answer<StreamSeat> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(tenant.clone()).or_default();
        let most = self.bounds.streams;
        if *count >= most {
            let why = format!("as many streams are open as one tenant may have: {most}");
            return Err(Refused::new(Code::TooManyStreams, why));
        }
        *count += 1;
        Ok(StreamSeat { streams: self.clone(), tenant: tenant.clone(), key, untaken })
    }
}

impl StreamSeat {
    /// What opened it.
    pub(crate) fn key(&self) -> KeyLife {
        self.key.clone()
    }

    /// Returns when the key opens nothing any more.
    pub(crate) fn key_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.key.clone().ended()
    }

    /// What its client has not taken: parts of what `paced` gave have to be kept by it.
    pub(crate) fn untaken(&self) -> Untaken {
        self.untaken.clone()
    }

    /// Of an output that is followed: the same, once it may be told, and there is room for `size` of it.
    pub(crate) fn paced<E: Send + 'static>(
        &self,
        said: impl Stream<Item = Result<Chunk, E>> + Send + 'static,
        size: fn(&Chunk) -> usize,
    ) -> BoxStream<'static, Result<Chunk, E>> {
        let (streams, tenant, untaken) = (self.streams.clone(), self.tenant.clone(), self.untaken());
        let paced = stream::unfold((said.boxed(), streams), move |(mut said, streams)| {
            let (tenant, untaken) = (tenant.clone(), untaken.clone());
            async move {
                let chunk = said.next().await?;
                if let Ok(chunk) = &chunk {
                    streams.follow_pace.wait(&tenant, chunk.bytes.len()).await;
                    untaken.make_room(size(chunk)).await;
                }
                Some((chunk, (said, streams)))
            }
        });
        paced.boxed()
    }

    /// The stream that this is the seat of. Where its key ends first, `last` is the last item.
    pub(crate) fn hold<T: Send + 'static>(
        self,
        items: impl Stream<Item = T> + Send + 'static,
        last: impl FnOnce() -> T + Send + 'static,
    ) -> impl Stream<Item = T> + Send {
        let end = || stream::once(std::future::ready(None));
        let key_ended = self.key_ended();
        let cut = stream::once(async move {
            key_ended.await;
            Some(last())
        });
        let whole = stream::select(items.map(Some).chain(end()), cut.chain(end()));
        whole.take_while(|item| std::future::ready(item.is_some())).filter_map(move |item| {
            let _open = &self; // as long as the stream is
            std::future::ready(item)
        })
    }
}

impl Drop for StreamSeat {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.tenant);
            }
        }
    }
}
