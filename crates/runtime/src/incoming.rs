//! Bodies that are taken as they come: files, archives, templates.
//!
//! Their clients decide how long they take. Of each the server has meanwhile what it writes at once, and two descriptors; so those that are
//! under way have places, and what is gathered of them is charged to their tenant.

use cabana_model::Tenant;
use cabana_sandbox::Places;

use crate::{
    Error, MemoryCharge, MemoryLedger, Result, Runtime,
    shares::{self, INCOMING, INCOMING_BY_URL, Share},
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
        seated(tenant, length, &INCOMING, &self.0.incoming).map_err(|full| match full {
            Full::Places => Error::TooManyUploads,
            Full::Memory => Error::IncomingTooLarge,
        })
    }

    /// The same for one who has no key but a URL: those leave places and memory of the tenant's own uploads alone.
    pub fn seat_incoming_by_url(&self, tenant: &Tenant, length: Option<u64>) -> Result<IncomingSeat> {
        seated(tenant, length, &INCOMING_BY_URL, &self.0.by_url).map_err(|full| match full {
            Full::Places => Error::TooManyUploads,
            Full::Memory => Error::ByUrlTooLarge,
        })
    }
}

/// What there is none left of.
enum Full {
    Places,
    Memory,
}

fn seated(
    tenant: &Tenant,
    length: Option<u64>,
    places: &Places,
    ledger: &MemoryLedger,
) -> std::result::Result<IncomingSeat, Full> {
    let place = places.take(&shares::tenant(tenant)).ok_or(Full::Places)?;
    let gathered = length.unwrap_or(GATHERED).min(GATHERED);
    let mut memory = ledger.open(tenant);
    match memory.grow(usize::try_from(gathered).unwrap_or(usize::MAX)) {
        true => Ok(IncomingSeat { _place: place, _memory: memory }),
        false => Err(Full::Memory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_whether_places_or_memory_ran_out() {
        let (tenant, places) = (Tenant::new("us").unwrap(), Places::new(2));
        let ledger = MemoryLedger::new(1 << 20, 2 << 20);
        let first = seated(&tenant, None, &places, &ledger);
        assert!(first.is_ok());
        assert!(matches!(seated(&tenant, None, &places, &ledger), Err(Full::Memory)));
        let small = seated(&tenant, Some(100), &places, &ledger);
        assert!(small.is_ok(), "a short body takes no more than it has");
        assert!(matches!(seated(&tenant, Some(100), &places, &ledger), Err(Full::Places)));
        drop((first, small));
        assert!(seated(&tenant, None, &places, &ledger).is_ok(), "what is given back is there again");
    }
}
