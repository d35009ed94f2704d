//! Quotas as the operator sets them and as whoever has one sees them; what is stored, measured; and usage.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use cabana_model::{Amounts, KeyId, Quota, Tenant};
use cabana_store::{Owner, Page, Usage};
use tokio::time::timeout;

use crate::{Caller, Error, Result, Role, Runtime};

/// So long the next tenant waits for the one before it. A guest that holds a directory of its volume holds up who measures it.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest time between the measuring of a tenant and the next.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// Tenants that were measured, and before when they are not measured again: `None` while one is.
#[derive(Default)]
pub(crate) struct Measuring(Mutex<HashMap<Tenant, Option<Instant>>>);

impl Measuring {
    fn tenants(&self) -> MutexGuard<'_, HashMap<Tenant, Option<Instant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is to be measured now; then nobody else does until [`Self::end`].
    fn begin(&self, tenant: &Tenant) -> bool {
        let mut tenants = self.tenants();
        match tenants.get(tenant) {
            Some(None) => return false,
            Some(Some(rests_until)) if *rests_until > Instant::now() => return false,
            _ => tenants.insert(tenant.clone(), None),
        };
        true
    }

    /// Who has very many files must not keep a core busy with counting them.
    fn end(&self, tenant: Tenant, begun: Instant) {
        let spent = begun.elapsed();
        let rest = if spent < PATIENCE { Duration::ZERO } else { LONGEST_REST.min(spent * 10) };
        self.tenants().insert(tenant, Some(Instant::now() + rest));
    }
}

/// What somebody may have, and what they have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub owner: Owner,
    /// As it was set.
    pub set: Quota,
    /// As it holds: what was not set is as the settings have it.
    pub limits: Quota,
    pub used: Amounts,
}

impl Runtime {
    pub async fn standing(&self, owner: Owner) -> Result<Standing> {
        let held = self.0.store.held(&owner.tenant, owner.key).await?;
        let held = if owner.key.is_some() { held.key } else { held.tenant };
        let held = Amounts { stored_bytes: 0, ..held }; // what was measured is counted with the rest
        let (set, limits) = self.0.quotas.of(&owner);
        Ok(Standing { used: self.0.quotas.now(&owner).and(held), owner, set, limits })
    }

    /// The caller's own: of its tenant, and of its key. The operator sees all that were set, too.
    pub async fn standings(&self, caller: &Caller) -> Result<Vec<Standing>> {
        let own = |key| Owner { tenant: caller.tenant.clone(), key };
        let mut owners = match caller.subject.only() {
            Some(_) => vec![own(Some(caller.key))],
            None => vec![own(None), own(Some(caller.key))],
        };
        if caller.role == Role::Admin {
            for (owner, _) in self.0.store.quotas().await? {
                if !owners.contains(&owner) {
                    owners.push(owner);
                }
            }
        }
        let mut all = Vec::new();
        for owner in owners {
            all.push(self.standing(owner).await?);
        }
        Ok(all)
    }

    /// Whose quota a key's is.
    pub async fn owner_of(&self, key: KeyId) -> Result<Owner> {
        let found = self.0.store.key_of(key).await?.ok_or(Error::NoKey(key))?;
        Ok(Owner { tenant: found.tenant, key: Some(key) })
    }

    /// One below what is in use is refused, unless it is forced: then nothing more is admitted until enough has gone. `None`
    /// takes it away.
    pub async fn set_quota(&self, by: &Caller, owner: Owner, quota: Option<Quota>, force: bool) -> Result<Standing> {
        if let Some(resource) = quota.and_then(|quota| quota.too_large()) {
            return Err(Error::invalid("quota", format!("{} is too large", resource.as_str())));
        }
        if owner.key.is_some() && quota.is_some_and(|quota| quota.ledger_bytes.is_some()) {
            return Err(Error::invalid("quota", "ledger_bytes is a tenant's: its keys have one ledger together"));
        }
        let _alone = self.0.setting_quotas.lock().await;
        // Held here first: what is admitted from now on is admitted by the new one, and so the sums below are final.
        let before = self.0.quotas.set(&owner, quota, force).map_err(Error::BelowUse)?;
        let (_, limits) = self.0.quotas.of(&owner);
        let enough = move |held| match limits.below(&Amounts { stored_bytes: 0, ..held }) {
            Some(exceeded) if !force => Err(exceeded),
            _ => Ok(()),
        };
        let quota = quota.filter(|quota| !quota.is_none());
        let whose = owner.key.map_or(owner.tenant.to_string(), |key| key.to_string());
        let said = quota.map(|quota| serde_json::to_string(&quota).unwrap_or_default());
        let verb = if quota.is_some() { "quota.set" } else { "quota.remove" };
        let entry = by.entry(verb, [whose].into_iter().chain(said).collect(), self.0.clock.now());
        let written = self.0.store.set_quota(&owner, quota, entry, enough).await;
        match written {
            Ok(Ok(())) => self.standing(owner).await,
            Ok(Err(exceeded)) => {
                self.0.quotas.unset(&owner, before);
                Err(Error::BelowUse(exceeded))
            }
            Err(error) => {
                self.0.quotas.unset(&owner, before);
                Err(error.into())
            }
        }
    }

    pub(crate) async fn load_quotas(&self) -> Result<()> {
        self.read_recorded().await?;
        for (owner, quota) in self.0.store.quotas().await? {
            let _ = self.0.quotas.set(&owner, Some(quota), true);
        }
        self.warn_of_full_ledgers();
        Ok(())
    }

    async fn read_recorded(&self) -> Result<()> {
        for (tenant, bytes) in self.0.store.recorded().await? {
            self.0.quotas.recorded(tenant, bytes);
        }
        Ok(())
    }

    /// A new default, or a smaller setting, may be less than what is there.
    fn warn_of_full_ledgers(&self) {
        for (tenant, bytes, most) in self.0.quotas.full_ledgers() {
            tracing::warn!(
                %tenant, bytes, most,
                "what is recorded of a tenant's calls is more than its ledger_bytes, so only what removes something may be called:                  give it more (`quotas.ledger` of the settings, `cabana quota set --ledger`), or keep less (`retention.ledger`,                  `retention.calls`)"
            );
        }
    }

    /// Of these days, both included, each as `2026-01-31`.
    pub async fn usage(&self, caller: &Caller, from: String, to: String) -> Result<Vec<Usage>> {
        caller.require_all_users()?;
        Ok(self.0.store.usage(&caller.tenant, from, to).await?)
    }

    /// Measures what is stored, again and again, until the runtime closes.
    pub fn measure(&self) {
        /// Between two passes: what was written meanwhile is not counted yet.
        const EVERY: Duration = Duration::from_secs(30);
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            loop {
                let begun = Instant::now();
                if let Err(error) = runtime.measure_stored().await {
                    tracing::warn!(%error, "what is stored could not be measured");
                }
                if !runtime.closing_after(EVERY.max(LONGEST_REST.min(begun.elapsed() * 10))).await {
                    return;
                }
            }
        });
    }

    /// What each tenant stores whose quota says how much it may: files of sandboxes, volumes, snapshots, outputs, uploads.
    pub async fn measure_stored(&self) -> Result<()> {
        self.read_recorded().await?;
        if !self.0.quotas.measures_somebody() {
            return Ok(());
        }
        for tenant in self.0.store.tenants().await? {
            if !self.0.quotas.measures(&tenant) || !self.0.measuring.begin(&tenant) {
                continue;
            }
            let (runtime, begun) = (self.clone(), Instant::now());
            let measured = self.0.tasks.spawn(async move {
                let measured = runtime.0.closing.run_until_cancelled(runtime.measure_tenant(&tenant)).await;
                runtime.0.measuring.end(tenant, begun);
                measured.unwrap_or(Ok(()))
            });
            // One that takes longer goes on by itself.
            if let Ok(Ok(Err(error))) = timeout(PATIENCE, measured).await {
                tracing::warn!(%error, "what a tenant stores could not be measured");
            }
        }
        Ok(())
    }

    /// False where its files take long, and were measured not long ago.
    pub(crate) async fn measure_now(&self, tenant: &Tenant) -> bool {
        if !self.0.measuring.begin(tenant) {
            return false;
        }
        let begun = Instant::now();
        let measured = self.measure_tenant(tenant).await;
        self.0.measuring.end(tenant.clone(), begun);
        measured.is_ok()
    }

    async fn measure_tenant(&self, tenant: &Tenant) -> Result<()> {
        self.0.sandboxes.measure(tenant).await;
        let (mut said, mut in_all) = (HashMap::new(), 0u128);
        for of_key in self.0.store.said_by(tenant).await? {
            let in_files = self.0.store.outputs().sizes(of_key.files).await?;
            let bytes = u128::from(of_key.bytes) + u128::from(in_files);
            in_all += bytes;
            said.insert(of_key.key, bytes);
        }
        let held = self.0.store.held(tenant, None).await?.tenant.stored_bytes;
        let owner = Owner { tenant: tenant.clone(), key: None };
        let volumes = self.measure_volumes(tenant).await?;
        let others = in_all + held + volumes.bytes();
        // They are a cache, and nobody can delete one: what others leave of a quota is theirs.
        let limit = self.0.quotas.of(&owner).1.stored_bytes.map_or(u128::MAX, u128::from);
        let room = u64::try_from(limit.saturating_sub(others)).unwrap_or(u64::MAX);
        let bytes = others + u128::from(self.make_room_for_uploads(tenant, room).await);
        match volumes {
            Volumes::All(_) => self.0.quotas.stored(&owner, bytes),
            Volumes::AtLeast(_) => self.0.quotas.stored_at_least(&owner, bytes),
        }
        for key in self.0.store.keys(Some(tenant)).await? {
            let owner = Owner { tenant: tenant.clone(), key: Some(key.id) };
            let held = self.0.store.held(tenant, owner.key).await?.key.stored_bytes;
            self.0.quotas.stored(&owner, held + said.get(&key.id).copied().unwrap_or_default());
        }
        Ok(())
    }

    /// They are the tenant's, and no key's: whoever made one need not be the one who fills it.
    async fn measure_volumes(&self, tenant: &Tenant) -> Result<Volumes> {
        const AT_ONCE: u32 = 1000;
        let (mut sum, mut after, mut all) = (0, None, true);
        loop {
            let volumes = self.0.store.stored_volumes(tenant, Page { after: after.take(), limit: AT_ONCE }).await?;
            for volume in &volumes {
                match self.volume_usage(volume).await {
                    Ok(bytes) => sum += u128::from(bytes),
                    Err(Error::NoVolume(_)) => {} // it is going
                    Err(error) => {
                        all = false;
                        tracing::warn!(volume = %volume.name, %error, "a volume could not be measured");
                    }
                }
            }
            match volumes.last() {
                Some(last) if volumes.len() == AT_ONCE as usize => after = Some(last.cursor()),
                _ if all => return Ok(Volumes::All(sum)),
                _ => return Ok(Volumes::AtLeast(sum)),
            }
        }
    }
}

/// Bytes of a tenant's volumes.
enum Volumes {
    All(u128),
    /// Some could not be measured, and a tenant may have seen to that.
    AtLeast(u128),
}

impl Volumes {
    fn bytes(&self) -> u128 {
        match self {
            Self::All(bytes) | Self::AtLeast(bytes) => *bytes,
        }
    }
}
