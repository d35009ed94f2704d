//! How many streams a tenant has open: nobody takes the room of all others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use cabana_runtime::{Code, Live, Tenant};

use crate::{
    Bounds,
    error::{Answer, Refused},
};

pub(crate) struct Streams {
    bounds: Arc<Live<Bounds>>,
    open: Mutex<HashMap<Tenant, usize>>,
}

/// One stream. It is open as long as this is held.
pub(crate) struct StreamSeat {
    streams: Arc<Streams>,
    tenant: Tenant,
}

impl Streams {
    pub(crate) fn new(bounds: Arc<Live<Bounds>>) -> Self {
        Self { bounds, open: Mutex::default() }
    }

    pub(crate) fn sit(self: &Arc<Self>, tenant: &Tenant) -> Answer<StreamSeat> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(tenant.clone()).or_default();
        let most = self.bounds.streams;
        if *count >= most {
            let why = format!("as many streams are open as one tenant may have: {most}");
            return Err(Refused::new(Code::TooManyStreams, why));
        }
        *count += 1;
        Ok(StreamSeat { streams: self.clone(), tenant: tenant.clone() })
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
