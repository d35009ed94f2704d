//! Bodies that are taken as they come: files, archives, templates.
//!
//! Their clients decide how long they take. Of each the server has meanwhile what it writes at once, and two descriptors; so those that are
//! under way have places, and what is gathered of them is charged to their tenant.

use cabana_model::Tenant;

use crate::{
    Error, MemoryCharge, MemoryLedger, Result, Runtime,
    shares::{self, INCOMING, Share},
};

/// What is gathered of a body before it is written.
const GATHERED: u64 = 1 << 20;

/// One that is under way, until this is dropped.
pub struct IncomingSeat {
    _place: Share,
    _memory: MemoryCharge,
}

impl Runtime {
    /// For a body of so many bytes, as far as that is known before it comes.
    pub fn seat_incoming(&self, tenant: &Tenant, length: Option<u64>) -> Result<IncomingSeat> {
        self.seated(tenant, length, &self.0.incoming)
    }

    /// The same for one who has no key but a URL.
    pub fn seat_incoming_by_url(&self, tenant: &Tenant, length: Option<u64>) -> Result<IncomingSeat> {
        self.seated(tenant, length, &self.0.by_url)
    }

    fn seated(&self, tenant: &Tenant, length: Option<u64>, ledger: &MemoryLedger) -> Result<IncomingSeat> {
        let place = INCOMING.take(&shares::tenant(tenant)).ok_or(Error::TooManyUploads)?;
        let gathered = length.unwrap_or(GATHERED).min(GATHERED);
        let mut memory = ledger.open(tenant);
        if !memory.grow(usize::try_from(gathered).unwrap_or(usize::MAX)) {
            return Err(Error::HeldTooLarge);
        }
        Ok(IncomingSeat { _place: place, _memory: memory })
    }
}
