//! What sandboxes were asked to be, parsed once for each version of their records.
//!
//! A spec may have half a megabyte, and a request without a key that names a sandbox has it looked at. So what was parsed is kept, and the
//! store is asked for the rest of the row. The row's own version decides in the read itself whether what is kept still holds: nothing
//! has to be taken back when a record changes, and no request sees less than the store has. What is kept is bounded, so a spec
//! may have to be parsed again: a long one is, off the workers that everybody waits for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cabana_runtime::{Caller, Error, KnownSpec, Record, Result, SandboxId, Tenant, Turns, Wanted};

use crate::{App, e2b::Kept};

/// What is kept: so many, and so many bytes of JSON, of which each takes several when it is parsed.
const MAX_SPECS: usize = 4096;
const MAX_BYTES: usize = 16 << 20;
/// What is no longer than this is parsed in less time than it takes to wake another thread.
const AT_ONCE: usize = 32 << 10;

pub(crate) struct Spec {
    pub(crate) wanted: Wanted,
    /// `None`: another front made it.
    pub(crate) kept: Option<Arc<Kept>>,
}

impl Spec {
    pub(crate) fn parse(spec: &str) -> Result<Self> {
        let wanted = Wanted::parse(spec)?;
        let kept = Kept::of(&wanted).map(Arc::new);
        Ok(Self { wanted, kept })
    }
}

/// What a request calls a sandbox. Two tenants may have the same ids, so what one of them names is no other's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    /// None where it is named by its number alone.
    tenant: Option<Tenant>,
    id: SandboxId,
}

impl Name {
    fn of_tenant(tenant: &Tenant, id: &SandboxId) -> Self {
        Self { tenant: Some(tenant.clone()), id: id.clone() }
    }

    fn number(number: &SandboxId) -> Self {
        Self { tenant: None, id: number.clone() }
    }
}

pub(crate) struct Specs {
    parsed: Arc<Mutex<Cache>>,
    turns: Turns,
}

impl Default for Specs {
    fn default() -> Self {
        Self { parsed: Arc::default(), turns: Turns::new(1, 2) }
    }
}

impl App {
    /// As it is now, with what it was asked to be.
    pub(crate) async fn sandbox(&self, caller: &Caller, id: &SandboxId) -> Result<(Record, Arc<Spec>)> {
        let name = Name::of_tenant(&caller.tenant, id);
        let read = self.runtime.sandbox_again(caller, id, self.specs.known(&name)).await;
        let record = self.specs.seen(&name, read)?;
        let spec = self.specs.of(name, &record).await?;
        Ok((record, spec))
    }

    /// The same by its number alone, and for whom it is used by its token.
    pub(crate) async fn sandbox_by_number(&self, number: &SandboxId) -> Result<(Record, Caller, Arc<Spec>)> {
        let name = Name::number(number);
        let read = self.runtime.by_number(number, self.specs.known(&name)).await;
        let (record, caller) = self.specs.seen(&name, read)?;
        let spec = self.specs.of(name, &record).await?;
        Ok((record, caller, spec))
    }
}

impl Specs {
    fn known(&self, name: &Name) -> Option<KnownSpec> {
        self.cache().used(name).map(|entry| entry.known.clone())
    }

    /// What is not there any more is not kept: a spec has secrets.
    fn seen<T>(&self, name: &Name, read: Result<T>) -> Result<T> {
        if let Err(Error::NoSandbox(_)) = &read {
            self.cache().remove(name);
        }
        read
    }

    async fn of(&self, name: Name, record: &Record) -> Result<Arc<Spec>> {
        let known = record.known_spec();
        if let Some(spec) = self.parsed(&name, &known) {
            return Ok(spec);
        }
        if record.spec.len() <= AT_ONCE {
            let spec = Spec::parse(&record.spec)?;
            return Ok(self.cache().keep(name, known, spec));
        }
        let turn = self.turns.take(Some(&record.tenant)).await;
        // Another request may have done it meanwhile.
        if let Some(spec) = self.parsed(&name, &known) {
            return Ok(spec);
        }
        let (text, parsed) = (record.spec.clone(), self.parsed.clone());
        let parse = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let spec = Spec::parse(&text)?;
            Ok(lock(&parsed).keep(name, known, spec))
        });
        parse.await.map_err(|error| Error::from(cabana_sandbox::Error::failed("reading a spec", error)))?
    }

    fn parsed(&self, name: &Name, known: &KnownSpec) -> Option<Arc<Spec>> {
        self.cache().used(name).filter(|entry| entry.known.is_same(known)).map(|entry| entry.spec.clone())
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.parsed)
    }
}

fn lock(cache: &Mutex<Cache>) -> MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Cache {
    entries: HashMap<Name, Entry>,
    /// Of their JSON.
    bytes: usize,
    clock: u64,
}

struct Entry {
    known: KnownSpec,
    spec: Arc<Spec>,
    used: u64,
}

impl Cache {
    fn used(&mut self, name: &Name) -> Option<&Entry> {
        self.clock += 1;
        let entry = self.entries.get_mut(name)?;
        entry.used = self.clock;
        Some(entry)
    }

    fn keep(&mut self, name: Name, known: KnownSpec, spec: Spec) -> Arc<Spec> {
        let spec = Arc::new(spec);
        self.put(name, Entry { known, spec: spec.clone(), used: 0 });
        spec
    }

    /// Those that were not used for the longest make room.
    fn put(&mut self, name: Name, entry: Entry) {
        self.remove(&name);
        self.clock += 1;
        self.bytes += entry.known.bytes();
        self.entries.insert(name, Entry { used: self.clock, ..entry });
        while self.entries.len() > MAX_SPECS || self.bytes > MAX_BYTES {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, name: &Name) {
        if let Some(entry) = self.entries.remove(name) {
            self.bytes -= entry.known.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use cabana_runtime::{SandboxState, Time};
    use cabana_sandbox::{Base, SandboxSpec};

    use super::*;

    fn record(version: u64, length: usize) -> Record {
        let sandbox = serde_json::json!({ "sandbox": SandboxSpec::new(Base::Host), "env": {}, "once": false });
        Record {
            tenant: Tenant::new("one").unwrap(),
            id: SandboxId::random(),
            physical: SandboxId::random(),
            scope: None,
            spec: format!("{sandbox}{}", " ".repeat(length)).into(),
            key: None,
            user: None,
            state: SandboxState::Running,
            phase: None,
            why: String::new(),
            created: Time::UNIX_EPOCH,
            changed: Time::UNIX_EPOCH,
            active: Time::UNIX_EPOCH,
            started: None,
            tries: 0,
            trouble: None,
            due: None,
            lease: None,
            version,
        }
    }

    impl Specs {
        async fn spec(&self, record: &Record) -> Arc<Spec> {
            self.of(name(record), record).await.unwrap()
        }
    }

    fn name(record: &Record) -> Name {
        Name::of_tenant(&record.tenant, &record.id)
    }

    #[tokio::test]
    async fn a_spec_is_parsed_once_for_each_version() {
        let specs = Specs::default();
        for length in [0, 4 * AT_ONCE] {
            let first = record(1, length);
            let spec = specs.spec(&first).await;
            assert!(specs.known(&name(&first)).is_some_and(|known| known.is_same(&first.known_spec())));
            assert!(Arc::ptr_eq(&spec, &specs.spec(&first).await));
            let changed = Record { version: 2, ..first.clone() };
            let again = specs.spec(&changed).await;
            assert!(!Arc::ptr_eq(&spec, &again), "it has another version");
            let of_another = Record { physical: SandboxId::random(), ..changed.clone() };
            assert!(!Arc::ptr_eq(&again, &specs.spec(&of_another).await), "it is another sandbox");
        }
    }

    #[tokio::test]
    async fn of_many_requests_for_a_long_spec_one_parses_it() {
        let (specs, record) = (Specs::default(), record(1, 4 * AT_ONCE));
        let all = futures_util::future::join_all((0..20).map(|_| specs.spec(&record))).await;
        assert!(all.iter().all(|spec| Arc::ptr_eq(spec, &all[0])));
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded_and_the_least_used_makes_room() {
        let specs = Specs::default();
        let often = record(1, 0);
        specs.spec(&often).await;
        for _ in 0..2 * MAX_SPECS {
            specs.spec(&record(1, 0)).await;
            assert!(specs.known(&name(&often)).is_some());
        }
        assert_eq!(specs.cache().entries.len(), MAX_SPECS);
        for _ in 0..20 {
            specs.spec(&record(1, MAX_BYTES / 10)).await;
        }
        let sum = specs.cache().entries.values().map(|entry| entry.known.bytes()).sum::<usize>();
        assert_eq!(specs.cache().bytes, sum);
        assert!(sum <= MAX_BYTES && sum > MAX_BYTES / 2, "{sum}");
    }

    #[tokio::test]
    async fn what_is_gone_is_not_kept() {
        let (specs, record) = (Specs::default(), record(1, 0));
        specs.spec(&record).await;
        assert!(specs.seen::<()>(&name(&record), Err(Error::NoSandbox(record.id.clone()))).is_err());
        assert!(specs.known(&name(&record)).is_none());
        assert_eq!(specs.cache().bytes, 0);
    }

    #[tokio::test]
    async fn what_another_tenant_calls_by_the_same_name_is_kept_beside_it() {
        let (specs, of_one) = (Specs::default(), record(1, 0));
        let spec = specs.spec(&of_one).await;
        let of_two = Record { tenant: Tenant::new("two").unwrap(), physical: SandboxId::random(), ..of_one.clone() };
        specs.spec(&of_two).await;
        for stranger in [Name::of_tenant(&Tenant::new("three").unwrap(), &of_one.id), Name::number(&of_one.id)] {
            assert!(specs.known(&stranger).is_none());
            assert!(specs.seen::<()>(&stranger, Err(Error::NoSandbox(of_one.id.clone()))).is_err());
        }
        assert!(Arc::ptr_eq(&spec, &specs.spec(&of_one).await), "no other tenant has it parsed again");
    }
}
