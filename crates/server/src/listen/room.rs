//! How many connections there may be, and whose.

use std::{net::IpAddr, sync::Arc};

use cabana_sandbox::{Holder, Place, Places};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::known::{KnownAddresses, network};

/// The last quarter is for addresses that are known. Of the others one network has at most a quarter, so that a single client without a key
/// does not have all that strangers may; of a network that is known those that have shown nothing have half. Clients of this machine share it, with a proxy in front of the server among them.
pub(super) struct Room {
    all: Arc<Semaphore>,
    most: usize,
    strangers: Places,
    /// Of networks that are known, as long as nothing has let the connection in.
    acquainted: Places,
    known: Arc<KnownAddresses>,
}

/// For one connection, until it is dropped.
pub(super) struct Permit {
    _one: OwnedSemaphorePermit,
    of_network: Option<Place>,
}

impl From<OwnedSemaphorePermit> for Permit {
    fn from(one: OwnedSemaphorePermit) -> Self {
        Self { _one: one, of_network: None }
    }
}

impl Permit {
    /// It is known whose it is, and no longer only from where.
    pub(super) fn let_in(&mut self) {
        self.of_network = None;
    }
}

impl Room {
    pub(super) fn new(most: usize, known: Arc<KnownAddresses>) -> Self {
        let strangers = Places::with_each(most, (most / 4).max(1));
        let acquainted = Places::with_each(most, (most / 2).max(1));
        Self { all: Arc::new(Semaphore::new(most)), most, strangers, acquainted, known }
    }

    pub(super) fn take(&self, address: IpAddr) -> Option<Permit> {
        let one = || self.all.clone().try_acquire_owned().ok();
        let is_known = self.known.has(address);
        if !is_known && self.all.available_permits() <= self.most / 4 {
            return None;
        }
        if address.to_canonical().is_loopback() {
            return one().map(Permit::from);
        }
        let places = if is_known { &self.acquainted } else { &self.strangers };
        let of_network = places.take(&Holder::tenant(&network(address).to_string()))?;
        Some(Permit { _one: one()?, of_network: Some(of_network) })
    }

    /// Returns once all of it is free.
    pub(super) async fn empty(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        drop(self.all.acquire_many(all).await);
    }
}

#[cfg(test)]
mod tests {
    use cabana_runtime::Tenant;

    use super::*;

    fn all_for(room: &Room, address: &str) -> Vec<Permit> {
        std::iter::from_fn(|| room.take(address.parse().unwrap())).collect()
    }

    #[test]
    fn one_network_of_strangers_leaves_room_to_others_and_a_quarter_to_known_addresses() {
        let known = Arc::<KnownAddresses>::default();
        let room = Room::new(100, known.clone());
        let first = all_for(&room, "192.0.2.1");
        assert_eq!(first.len(), 25);
        let second = all_for(&room, "2001:db8::1");
        assert_eq!(second.len(), 25);
        assert!(room.take("2001:db8::ffff".parse().unwrap()).is_none(), "of the same network");
        let third = all_for(&room, "192.0.2.2");
        assert_eq!(third.len(), 25);
        for stranger in ["192.0.2.3", "127.0.0.1"] {
            assert!(room.take(stranger.parse().unwrap()).is_none(), "the rest is for those who are known");
        }
        known.note("192.0.2.1".parse().unwrap(), &Tenant::default());
        assert_eq!(all_for(&room, "192.0.2.1").len(), 25);
        drop((first, second, third));
        let mut acquainted = all_for(&room, "192.0.2.1");
        assert_eq!(acquainted.len(), 50, "of a network that is known they have half as long as they show nothing");
        acquainted.iter_mut().for_each(Permit::let_in);
        assert!(room.take("192.0.2.1".parse().unwrap()).is_some());
        drop(acquainted);
        assert_eq!(all_for(&room, "127.0.0.1").len(), 75, "clients of this machine are no single one");
    }
}
