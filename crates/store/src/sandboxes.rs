//! The records of sandboxes. A record is claimed before its sandbox is made, so none exists that nobody knows of.

use std::{collections::HashSet, convert::Infallible, sync::Arc};

use cabana_model::{KeyId, Life, Phase, SandboxId, SandboxState, Scope, Tenant, Time, event_id};
use futures_util::{Stream, TryStreamExt, stream};
use rusqlite::{Connection, OptionalExtension, Params, Row, ToSql, params, params_from_iter};
use uuid::Uuid;

use crate::{
    Admitted, Error, Held, Page, Result, Store,
    desk::Tx,
    leases::{self, Lease, Token},
    page::{self, RowSize},
    quotas::{bounded, held},
    sql::{Col, get, maybe, readable},
};

/// Wanted: the sandbox of this scope, or one without a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub tenant: Tenant,
    pub scope: Option<Scope>,
    /// The public id, if it has to be made.
    pub id: SandboxId,
    pub physical: SandboxId,
    /// JSON; the store does not look into it.
    pub spec: String,
    /// Who makes it.
    pub key: KeyId,
    /// Whose it is, if it is one user's.
    pub user: Option<String>,
    /// What its files may take.
    pub disk: Option<u64>,
    pub at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The scope has one, in whatever state.
    There(Record),
    Made(Record),
    /// Another scope's sandbox has the id.
    Taken,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub tenant: Tenant,
    pub id: SandboxId,
    pub physical: SandboxId,
    pub scope: Option<Scope>,
    pub spec: Arc<str>,
    /// Who made it, as far as that is known.
    pub key: Option<KeyId>,
    /// Whose it is, if it is one user's.
    pub user: Option<String>,
    pub state: SandboxState,
    /// What its operation has to do next.
    pub phase: Option<Phase>,
    /// Why it is in this state.
    pub why: String,
    pub created: Time,
    pub changed: Time,
    pub active: Time,
    /// When it last began to run.
    pub started: Option<Time>,
    /// How often the phase failed, and how the last time.
    pub tries: u32,
    pub trouble: Option<String>,
    /// When it has to be looked at again.
    pub due: Option<Time>,
    /// The last one, whether it stands or not.
    pub lease: Option<Lease>,
    pub version: u64,
}

impl RowSize for Record {
    fn size(&self) -> usize {
        let scope = self.scope.as_ref().map_or(0, |scope| scope.key().len());
        let texts = self.spec.len() + self.why.len() + self.trouble.as_ref().map_or(0, String::len);
        size_of::<Self>() + scope + texts
    }
}

impl Record {
    /// Of the event that tells how it became what it is.
    pub fn event_id(&self) -> Uuid {
        event_id(self.changed, self.physical.as_str(), self.version)
    }

    pub fn life(&self) -> Life {
        Life { state: self.state, phase: self.phase }
    }

    /// Where a list goes on after it. The physical id stays inside.
    pub fn cursor(&self) -> String {
        format!("{}-{}", self.created.as_microsecond(), self.id)
    }

    pub fn known_spec(&self) -> KnownSpec {
        KnownSpec { physical: self.physical.clone(), version: self.version, spec: self.spec.clone() }
    }

    /// When it last began to run, or was made, if it never did; and its id, since several may at one moment.
    pub fn begun(&self) -> Begun {
        Begun { at: self.started.unwrap_or(self.created), id: self.id.to_string() }
    }
}

/// The spec of a record, for the next read of it. Specs are long, and change with the version alone: while that is the same, this one
/// is taken, and the row's is left where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownSpec {
    physical: SandboxId,
    version: u64,
    spec: Arc<str>,
}

impl KnownSpec {
    /// Of the same record, which has not changed between the two.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.version, &self.physical) == (other.version, &other.physical)
    }

    /// How many it has.
    pub fn bytes(&self) -> usize {
        self.spec.len()
    }
}

/// Where a sandbox is in a list by when it began to run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Begun {
    pub at: Time,
    pub id: String,
}

/// A part of a list by when sandboxes began to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BegunPage {
    pub limit: u32,
    pub after: Option<Begun>,
    pub newest_first: bool,
    /// Only those that began no earlier.
    pub since: Option<Time>,
    /// Only those in one of these.
    pub states: Vec<SandboxState>,
}

impl BegunPage {
    /// The one after these rows. `None`: there are no more.
    pub fn next(&self, rows: &[Record]) -> Option<Self> {
        let last = rows.last().filter(|_| Page::first(self.limit).is_full(rows))?;
        Some(Self { after: Some(last.begun()), ..self.clone() })
    }
}

/// One that has to be looked at, by its physical id. Very many may be due at once, so the rest of its record is not read with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueSandbox {
    pub physical: SandboxId,
    pub tenant: Tenant,
    pub due: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub physical: SandboxId,
    /// The version of the record that the decision was made on.
    pub version: u64,
    pub to: Life,
    pub why: String,
    pub at: Time,
    /// When it was last used.
    pub active: Time,
    /// When it has to be looked at again.
    pub due: Option<Time>,
    pub by: By,
}

/// Whose the change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Somebody's who may have a lease. Another one's is in the way.
    Somebody(Option<Token>),
    /// A step of what has begun, or something that no lease can hold up.
    Itself,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    To(Box<Record>),
    /// It has another version by now, or is in a state that does not lead there.
    Stale,
    /// Somebody has a lease on it.
    Busy(Lease),
}

/// Which sandboxes of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    App(String),
    Chat { app: String, chat: String },
}

impl Store {
    /// Looking and making are one transaction: of any number of callers, one makes it.
    pub async fn claim(&self, claim: Claim) -> Result<Claimed> {
        Ok(match self.claim_if(claim, |_| Ok::<_, Infallible>(())).await? {
            Admitted::There(record) => Claimed::There(record),
            Admitted::Made(record, ()) => Claimed::Made(record),
            Admitted::Taken => Claimed::Taken,
        })
    }

    pub async fn sandbox(&self, tenant: &Tenant, id: &SandboxId) -> Result<Option<Record>> {
        let (of, id) = (tenant.clone(), id.clone());
        let which = "tenant = ? AND id = ?";
        self.glance_for(tenant, move |db| Ok(one(db, which, params![Col(&of), Col(&id)])?)).await
    }

    /// Once more, by one who has its spec.
    pub async fn sandbox_again(&self, tenant: &Tenant, id: &SandboxId, known: KnownSpec) -> Result<Option<Record>> {
        let (of, id) = (tenant.clone(), id.clone());
        let which = "tenant = ?3 AND id = ?4";
        self.glance_for(tenant, move |db| Ok(again(db, which, &known, [&Col(&of), &Col(&id)])?)).await
    }

    pub async fn by_scope(&self, tenant: &Tenant, scope: &Scope) -> Result<Option<Record>> {
        let (of, scope) = (tenant.clone(), scope.clone());
        self.glance_for(tenant, move |db| Ok(of_scope(db, &of, &scope)?)).await
    }

    /// Those of this chat that stay, of each of its users one; at most two.
    pub async fn by_chat(&self, tenant: &Tenant, app: &str, chat: &str) -> Result<Vec<Record>> {
        let (of, app, chat) = (tenant.clone(), app.to_owned(), chat.to_owned());
        self.glance_for(tenant, move |db| {
            let which = "tenant = ? AND app = ? AND chat = ? AND state <> ? ORDER BY created DESC, id DESC LIMIT 2";
            Ok(part(db, which, params![Col(&of), app, chat, Col(&Life::DOOMED.state)])?)
        })
        .await
    }

    /// Newest first. `user`: without those of other users.
    pub async fn sandboxes(
        &self,
        tenant: &Tenant,
        user: Option<&str>,
        state: Option<SandboxState>,
        page: Page,
    ) -> Result<Vec<Record>> {
        let user = user.map(str::to_owned);
        let (created, id) = match &page.after {
            Some(cursor) => after(cursor)?,
            None => (i64::MAX, String::new()),
        };
        self.read_for(tenant, move |db, tenant| {
            // Each has an index that gives a page in order.
            let rest = "(created, id) < (?2, ?3) AND (?5 IS NULL OR user IS NULL OR user = ?5)
                        ORDER BY created DESC, id DESC LIMIT ?4";
            let (tenant, rows) = (Col(tenant), page.rows());
            Ok(match &state {
                None => part(db, &format!("tenant = ?1 AND {rest}"), params![tenant, created, id, rows, user])?,
                Some(state) => {
                    let which = format!("tenant = ?1 AND state = ?6 AND {rest}");
                    part(db, &which, params![tenant, created, id, rows, user, Col(state)])?
                }
            })
        })
        .await
    }

    /// By when they began to run. `user`: without those of other users.
    pub async fn sandboxes_by_start(
        &self,
        tenant: &Tenant,
        user: Option<&str>,
        page: BegunPage,
    ) -> Result<Vec<Record>> {
        let user = user.map(str::to_owned);
        self.read_for(tenant, move |db, tenant| {
            let states: Vec<_> = page.states.iter().map(|state| format!("'{}'", state.as_str())).collect();
            let (is_after, order, end) = match page.newest_first {
                true => ("<", "DESC", i64::MAX),
                false => (">", "ASC", i64::MIN),
            };
            // In the words of the index `sandboxes_begun`.
            let which = format!(
                "tenant = ?1 AND (coalesce(started, created), id) {is_after} (?2, ?3) AND coalesce(started, created) >= ?4
                 AND state IN ({}) AND (?6 IS NULL OR user IS NULL OR user = ?6) ORDER BY coalesce(started, created) {order}, id {order} LIMIT ?5",
                states.join(", ")
            );
            let (after, id) = match &page.after {
                Some(after) => (after.at.as_microsecond(), after.id.as_str()),
                None => (end, ""),
            };
            let since = page.since.map_or(i64::MIN, Time::as_microsecond);
            let rows = Page::first(page.limit).rows();
            Ok(part(db, &which, params![Col(tenant), after, id, since, rows, user])?)
        })
        .await
    }

    /// Of all tenants, those that neither rest nor are packed away, as far as they can be read. They come in parts: there may be very many.
    pub fn restless_sandboxes(&self) -> impl Stream<Item = Result<Record>> + Send + '_ {
        let parts = stream::try_unfold(Some(String::new()), move |after| async move {
            let Some(after) = after else { return Ok(None) };
            let part = self.read(move |db| {
                let sql = "SELECT * FROM sandboxes WHERE state NOT IN ('stopped', 'archived') AND physical > ?
                           ORDER BY physical";
                Ok(page::collect(readable(db.prepare_cached(sql)?.query_map([after], row)?))?)
            });
            let part = part.await?;
            let last = part.last().map(|record| record.physical.to_string());
            Ok::<_, Error>(Some((stream::iter(part.into_iter().map(Ok)), last)))
        });
        parts.try_flatten()
    }

    /// The same by their ids alone: the physical one, and the public one.
    pub async fn restless_ids(&self) -> Result<Vec<(SandboxId, SandboxId)>> {
        self.read(|db| {
            let sql = "SELECT physical, id FROM sandboxes WHERE state NOT IN ('stopped', 'archived')";
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([], |row| Ok((get(row, "physical")?, get(row, "id")?)))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// Whose this one of the provider's is.
    pub async fn by_physical(&self, physical: &SandboxId) -> Result<Option<Record>> {
        let physical = physical.clone();
        self.glance(move |db| Ok(one(db, "physical = ?", [Col(&physical)])?)).await
    }

    /// Those of them that there is no record of.
    pub async fn missing_sandboxes(&self, physical: Vec<SandboxId>) -> Result<Vec<SandboxId>> {
        self.read(move |db| {
            let mut find = db.prepare_cached("SELECT 1 FROM sandboxes WHERE physical = ?")?;
            let mut missing = Vec::new();
            for id in physical {
                if !find.exists([Col(&id)])? {
                    missing.push(id);
                }
            }
            Ok(missing)
        })
        .await
    }

    /// Once more, by one who has its spec.
    pub async fn by_physical_again(&self, physical: &SandboxId, known: KnownSpec) -> Result<Option<Record>> {
        let physical = physical.clone();
        self.glance(move |db| Ok(again(db, "physical = ?3", &known, [&Col(&physical)])?)).await
    }

    pub async fn transition(&self, t: Transition) -> Result<Moved> {
        self.write(move |tx| {
            let Some(record) = at_version(tx.reads(), &t.physical, t.version)? else { return Ok(Moved::Stale) };
            if !record.life().leads_to(t.to) {
                return Ok(Moved::Stale);
            }
            if let By::Somebody(token) = t.by
                && let Some(lease) = record.lease.filter(|lease| lease.stands(t.at))
                && token != Some(lease.token)
            {
                return Ok(Moved::Busy(lease));
            }
            let begins = t.to.state == SandboxState::Running && record.state != SandboxState::Running;
            let started = if begins { Some(t.at) } else { record.started };
            tx.execute(
                "UPDATE sandboxes SET state = ?, phase = ?, why = ?, changed = ?, active = max(active, ?), started = ?,
                 due = ?, tries = 0, trouble = NULL, version = version + 1 WHERE physical = ?",
                params![
                    Col(&t.to.state),
                    t.to.phase.as_ref().map(Col),
                    t.why,
                    Col(&t.at),
                    Col(&t.active),
                    started.as_ref().map(Col),
                    t.due.as_ref().map(Col),
                    Col(&t.physical)
                ],
            )?;
            let moved = one(tx.reads(), "physical = ?", [Col(&t.physical)])?;
            moved.iter().try_for_each(|record| tx.tell_change(record))?;
            Ok(moved.map_or(Moved::Stale, |record| Moved::To(Box::new(record))))
        })
        .await
    }

    /// That what has to be done next failed, and when to try again. `None`: it has another version by now.
    pub async fn trouble(
        &self,
        physical: &SandboxId,
        version: u64,
        trouble: String,
        due: Time,
    ) -> Result<Option<Record>> {
        let physical = physical.clone();
        self.write(move |tx| {
            if at_version(tx.reads(), &physical, version)?.is_none() {
                return Ok(None);
            }
            tx.execute(
                "UPDATE sandboxes SET tries = tries + 1, trouble = ?, due = ?, version = version + 1 WHERE physical = ?",
                params![trouble, Col(&due), Col(&physical)],
            )?;
            Ok(one(tx.reads(), "physical = ?", [Col(&physical)])?)
        })
        .await
    }

    /// All at once: none of them is found by its scope any more. `user`: only those that are this user's. How many there were.
    pub async fn doom(&self, tenant: &Tenant, user: Option<&str>, which: Which, why: &str, at: Time) -> Result<usize> {
        let (tenant, user, why) = (tenant.clone(), user.map(str::to_owned), why.to_owned());
        let life = Life::DOOMED;
        self.write(move |tx| {
            let (app, chat) = match which {
                Which::All => (None, None),
                Which::App(app) => (Some(app), None),
                Which::Chat { app, chat } => (Some(app), Some(chat)),
            };
            let told: Vec<SandboxId> = match tx.has_webhooks(&tenant)? {
                true => {
                    let sql = "SELECT physical FROM sandboxes
                               WHERE tenant = ?1 AND state <> ?2 AND (?3 IS NULL OR app = ?3) AND (?4 IS NULL OR chat = ?4)
                                 AND (?5 IS NULL OR user = ?5)";
                    let mut statement = tx.reads().prepare_cached(sql)?;
                    let values = params![Col(&tenant), Col(&life.state), app, chat, user];
                    statement.query_map(values, |row| get(row, "physical"))?.collect::<rusqlite::Result<_>>()?
                }
                false => Vec::new(),
            };
            let doomed = tx.execute(
                "UPDATE sandboxes SET state = ?1, phase = ?2, why = ?3, changed = ?4, due = 0, tries = 0, trouble = NULL,
                 version = version + 1
                 WHERE tenant = ?5 AND state <> ?1 AND (?6 IS NULL OR app = ?6) AND (?7 IS NULL OR chat = ?7)
                   AND (?8 IS NULL OR user = ?8)",
                params![
                    Col(&life.state),
                    life.phase.as_ref().map(Col),
                    why,
                    Col(&at),
                    Col(&tenant),
                    app,
                    chat,
                    user
                ],
            )?;
            for physical in told {
                let now = one(tx.reads(), "physical = ?", [Col(&physical)])?;
                now.iter().try_for_each(|record| tx.tell_change(record))?;
            }
            Ok(doomed)
        })
        .await
    }

    /// Those that somebody has to look at by now, the longest overdue first: a part of them, after this one.
    pub async fn due_sandboxes(&self, now: Time, after: Option<DueSandbox>, most: u32) -> Result<Vec<DueSandbox>> {
        self.read(move |db| {
            // All of it is in the index `sandboxes_due`.
            let sql = "SELECT physical, tenant, due FROM sandboxes
                       WHERE due <= ?1 AND (due, physical) > (?2, ?3) ORDER BY due, physical LIMIT ?4";
            let (due, physical) = match &after {
                Some(last) => (last.due.as_microsecond(), last.physical.as_str()),
                None => (i64::MIN, ""),
            };
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map(params![Col(&now), due, physical, most], |row| {
                Ok(DueSandbox { physical: get(row, "physical")?, tenant: get(row, "tenant")?, due: get(row, "due")? })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// When the next one is due, beside those that are being seen to, by their physical ids.
    pub async fn next_due(&self, beside: HashSet<SandboxId>) -> Result<Option<Time>> {
        self.read(move |db| {
            let sql = "SELECT physical, due FROM sandboxes WHERE due IS NOT NULL ORDER BY due";
            let mut statement = db.prepare_cached(sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                if !beside.contains(&row.get::<_, Col<SandboxId>>(0)?.0) {
                    return Ok(Some(row.get::<_, Col<Time>>(1)?.0));
                }
            }
            Ok(None)
        })
        .await
    }

    /// When it has to be looked at again, if it is still what it was.
    pub async fn set_due(&self, physical: &SandboxId, version: u64, due: Option<Time>) -> Result<()> {
        let (physical, version) = (physical.clone(), i64::try_from(version).unwrap_or(-1));
        self.write(move |tx| {
            let sql = "UPDATE sandboxes SET due = ? WHERE physical = ? AND version = ?";
            tx.execute(sql, params![due.as_ref().map(Col), Col(&physical), version]).map(drop)
        })
        .await
    }

    /// What decides when sandboxes are due is this by now: if it was something else, each is to be looked at.
    pub async fn due_by(&self, rule: &str) -> Result<()> {
        let rule = rule.to_owned();
        self.write(move |tx| {
            let sql = "INSERT INTO told (name, value) VALUES ('lifecycle', ?1)
                       ON CONFLICT (name) DO UPDATE SET value = ?1 WHERE value <> ?1";
            if tx.execute(sql, params![rule])? > 0 {
                tx.execute("UPDATE sandboxes SET due = 0", params![])?;
            }
            Ok(())
        })
        .await
    }

    /// That it was used just now.
    pub async fn touch(&self, physical: &SandboxId, at: Time) -> Result<()> {
        let physical = physical.clone();
        self.write(move |tx| {
            let sql = "UPDATE sandboxes SET active = max(active, ?) WHERE physical = ?";
            tx.execute(sql, params![Col(&at), Col(&physical)]).map(drop)
        })
        .await
    }

    /// With what its files may take then. It is due then, since its spec says when it is. `None`: it has another version by now.
    pub async fn change_spec(
        &self,
        physical: &SandboxId,
        version: u64,
        spec: String,
        disk: Option<u64>,
        due: Time,
    ) -> Result<Option<Record>> {
        let physical = physical.clone();
        self.write(move |tx| {
            if at_version(tx.reads(), &physical, version)?.is_none() {
                return Ok(None);
            }
            let sql = "UPDATE sandboxes SET spec = ?, disk = ?, due = ?, version = version + 1 WHERE physical = ?";
            tx.execute(sql, params![spec, bounded(disk), Col(&due), Col(&physical)])?;
            Ok(one(tx.reads(), "physical = ?", [Col(&physical)])?)
        })
        .await
    }

    /// The record of a sandbox that is gone.
    pub async fn remove(&self, physical: &SandboxId) -> Result<()> {
        let physical = physical.clone();
        self.write(move |tx| {
            tx.execute("DELETE FROM sandboxes WHERE physical = ?", params![Col(&physical)])?;
            crate::secrets::forget_mark(tx, &physical)
        })
        .await
    }
}

/// `admit` is asked where one would be made.
pub(crate) fn claimed<T, E>(
    tx: &mut Tx<'_>,
    claim: &Claim,
    admit: impl FnOnce(Held) -> Result<T, E>,
) -> Result<Admitted<T, E>> {
    if let Some(scope) = &claim.scope
        && let Some(record) = of_scope(tx.reads(), &claim.tenant, scope)?
    {
        return Ok(Admitted::There(record));
    }
    let admitted = match admit(held(tx.reads(), &claim.tenant, Some(claim.key))?) {
        Ok(admitted) => admitted,
        Err(refused) => return Ok(Admitted::Refused(refused)),
    };
    if claim.scope.as_ref().and_then(Scope::sandbox_id).is_some()
        && one(tx.reads(), "tenant = ? AND id = ?", params![Col(&claim.tenant), Col(&claim.id)])?.is_some()
    {
        return Ok(Admitted::Taken);
    }
    insert(tx, claim)?;
    let made = one(tx.reads(), "physical = ?", [Col(&claim.physical)])?;
    let made = made.ok_or_else(|| Error::Corrupt("a record that was just written is not there".into()))?;
    tx.tell_change(&made)?;
    Ok(Admitted::Made(made, admitted))
}

fn insert(tx: &mut Tx<'_>, claim: &Claim) -> Result<usize> {
    let scope = claim.scope.as_ref();
    let chat = scope.and_then(Scope::chat);
    tx.execute(
        "INSERT INTO sandboxes
           (physical, tenant, id, scheme, value, app, chat, scope, spec, state, phase, why, created, changed, active,
            version, key, disk, user)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 'claimed', ?12, ?12, ?12, 1, ?13, ?14, ?15)",
        params![
            Col(&claim.physical),
            Col(&claim.tenant),
            Col(&claim.id),
            scope.map(|scope| scope.scheme().as_str()),
            scope.map(Scope::key),
            chat.as_ref().map(|(app, _)| app),
            chat.as_ref().map(|(_, chat)| chat),
            scope.map(Col),
            claim.spec,
            Col(&Life::CLAIMED.state),
            Life::CLAIMED.phase.as_ref().map(Col),
            Col(&claim.at),
            Col(&claim.key),
            bounded(claim.disk),
            claim.user,
        ],
    )
}

fn of_scope(db: &Connection, tenant: &Tenant, scope: &Scope) -> rusqlite::Result<Option<Record>> {
    let which = "tenant = ? AND scheme = ? AND value = ?";
    one(db, which, params![Col(tenant), scope.scheme().as_str(), scope.key()])
}

fn at_version(db: &Connection, physical: &SandboxId, version: u64) -> rusqlite::Result<Option<Record>> {
    one(db, "physical = ? AND version = ?", params![Col(physical), i64::try_from(version).unwrap_or(-1)])
}

fn one(db: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Option<Record>> {
    db.prepare_cached(&format!("SELECT * FROM sandboxes WHERE {which}"))?.query_row(values, row).optional()
}

/// The row without its spec, where that is known. `which` begins with the third value.
fn again<const N: usize>(
    db: &Connection,
    which: &str,
    known: &KnownSpec,
    values: [&dyn ToSql; N],
) -> rusqlite::Result<Option<Record>> {
    let sql = format!(
        "SELECT tenant, id, physical, scope, CASE WHEN physical = ?1 AND version = ?2 THEN NULL ELSE spec END AS spec,
         key, user, state, phase, why, created, changed, active, started, tries, trouble, due, lease_token, lease_holder,
         lease_until, version FROM sandboxes WHERE {which}"
    );
    let (physical, version) = (Col(&known.physical), i64::try_from(known.version).unwrap_or(-1));
    let values = [&physical as &dyn ToSql, &version].into_iter().chain(values);
    let mut statement = db.prepare_cached(&sql)?;
    let read = |row: &Row<'_>| {
        let spec: Option<Arc<str>> = row.get("spec")?;
        with_spec(row, spec.unwrap_or_else(|| known.spec.clone()))
    };
    statement.query_row(params_from_iter(values), read).optional()
}

/// As many as a part of a list has.
fn part(db: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Vec<Record>> {
    page::collect(db.prepare_cached(&format!("SELECT * FROM sandboxes WHERE {which}"))?.query_map(values, row)?)
}

fn row(row: &Row<'_>) -> rusqlite::Result<Record> {
    with_spec(row, row.get("spec")?)
}

fn with_spec(row: &Row<'_>, spec: Arc<str>) -> rusqlite::Result<Record> {
    Ok(Record {
        tenant: get(row, "tenant")?,
        id: get(row, "id")?,
        physical: get(row, "physical")?,
        scope: maybe(row, "scope")?,
        spec,
        key: maybe(row, "key")?,
        user: row.get("user")?,
        state: get(row, "state")?,
        phase: maybe(row, "phase")?,
        why: row.get("why")?,
        created: get(row, "created")?,
        changed: get(row, "changed")?,
        active: get(row, "active")?,
        started: maybe(row, "started")?,
        tries: row.get("tries")?,
        trouble: row.get("trouble")?,
        due: maybe(row, "due")?,
        lease: leases::of(row)?,
        version: row.get("version")?,
    })
}

fn after(cursor: &str) -> Result<(i64, String)> {
    let (created, id) = cursor.rsplit_once('-').ok_or(Error::Cursor)?;
    let id = SandboxId::new(id).map_err(|_| Error::Cursor)?;
    Ok((created.parse().map_err(|_| Error::Cursor)?, id.into()))
}
