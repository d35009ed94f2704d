//! Webhooks, and what they are to be told. A delivery is written in the transaction of the change that it tells of, so no
//! crash comes between the two; deliveries of one webhook are numbered in that order.

use std::collections::HashSet;

use cabana_model::{EventFilter, KeyId, SandboxId, Tenant, Time, WebhookId};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    Error, Record, Result, Store, TaskEnd,
    desk::Tx,
    sql::{Col, get, maybe},
};

/// How many deliveries wait for one webhook. Then the oldest makes room.
const WAITING: i64 = 1000;
/// Of these, what may be lost takes no more: a sandbox can make such events at will.
const FOR_ALL: i64 = WAITING / 2;
/// How many are kept that have come to an end.
const KEPT: i64 = 20;

#[derive(Clone, PartialEq, Eq)]
pub struct NewWebhook {
    pub tenant: Tenant,
    pub id: WebhookId,
    pub key: KeyId,
    pub url: String,
    pub secret: String,
    pub events: EventFilter,
    pub at: Time,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    pub tenant: Tenant,
    pub id: WebhookId,
    /// That made it, where that is known. It is the tenant's, and goes on without that key.
    pub key: Option<KeyId>,
    pub url: String,
    /// What deliveries are signed with.
    pub secret: String,
    pub events: EventFilter,
    pub created: Time,
    /// Since when nothing is sent any more, and why.
    pub disabled: Option<(Time, String)>,
    pub delivered: u64,
    /// Those for which there was no room.
    pub dropped: u64,
    /// The number of the last one that came to its end.
    done: i64,
}

/// Something that a webhook is told, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub number: i64,
    pub event: String,
    pub kind: String,
    /// The very bytes.
    pub body: String,
    pub made: Time,
    pub attempts: u32,
    /// When it is tried next.
    pub due: Time,
    /// What came of the last try.
    pub said: Option<String>,
    pub ended: Option<Time>,
}

/// An event as it is told everywhere.
#[derive(Serialize)]
struct Told<'a, T> {
    id: String,
    sandbox: &'a SandboxId,
    at: Time,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    rest: T,
}

#[derive(Serialize)]
struct Reason<'a> {
    reason: &'a str,
}

#[derive(Serialize)]
struct Ended {
    task: cabana_model::TaskId,
    state: cabana_model::TaskState,
}

/// The tenants that have a webhook, once somebody wanted to know: nobody else pays for them.
#[derive(Default)]
pub(crate) struct Hooks(Option<HashSet<Tenant>>);

impl Hooks {
    pub(crate) fn has(&mut self, db: &Connection, tenant: &Tenant) -> Result<bool> {
        if let Some(known) = &self.0 {
            return Ok(known.contains(tenant));
        }
        let mut statement = db.prepare_cached("SELECT DISTINCT tenant FROM webhooks WHERE disabled IS NULL")?;
        let known: HashSet<Tenant> =
            statement.query_map([], |row| get(row, "tenant"))?.collect::<rusqlite::Result<_>>()?;
        Ok(self.0.insert(known).contains(tenant))
    }
}

impl Tx<'_> {
    /// To whom it may concern: what a sandbox has become.
    pub(crate) fn tell_change(&mut self, record: &Record) -> Result<()> {
        let Record { tenant, id, why, changed, .. } = record;
        let Some(kind) = record.life().event() else { return Ok(()) };
        self.tell(tenant, record.event_id(), kind, *changed, || Told {
            id: event_name(record.event_id()),
            sandbox: id,
            at: *changed,
            kind,
            rest: Reason { reason: why },
        })
    }

    /// How a task ended.
    pub(crate) fn tell_end(&mut self, tenant: &Tenant, sandbox: &SandboxId, end: &TaskEnd) -> Result<()> {
        let kind = "task.ended";
        self.tell(tenant, end.event_id(), kind, end.at, || Told {
            id: event_name(end.event_id()),
            sandbox,
            at: end.at,
            kind,
            rest: Ended { task: end.id, state: end.state },
        })
    }

    fn tell<T: Serialize>(
        &mut self,
        tenant: &Tenant,
        event: Uuid,
        kind: &str,
        at: Time,
        told: impl FnOnce() -> T,
    ) -> Result<()> {
        if !self.has_webhooks(tenant)? {
            return Ok(());
        }
        let body = serde_json::to_string(&told()).map_err(|error| Error::Refused(error.to_string()))?;
        self.put(tenant, &event_name(event), kind, &body, at, WAITING)
    }

    /// Where `most` wait already, what may be lost is.
    fn put(&mut self, tenant: &Tenant, event: &str, kind: &str, body: &str, at: Time, most: i64) -> Result<()> {
        let wanting = all(self.reads(), "tenant = ? AND disabled IS NULL", params![Col(tenant)])?;
        for hook in wanting.iter().filter(|hook| hook.events.covers(kind)) {
            let last = last(self.reads(), hook)?;
            if last - hook.done >= most {
                let sql = "UPDATE webhooks SET dropped = dropped + 1, done = done + ? WHERE tenant = ? AND id = ?";
                let oldest = most == WAITING;
                self.execute(sql, params![oldest, Col(tenant), Col(&hook.id)])?;
                if !oldest {
                    continue;
                }
                let sql = "DELETE FROM deliveries WHERE webhook = ? AND number = ?";
                self.execute(sql, params![Col(&hook.id), hook.done + 1])?;
            }
            self.execute(
                "INSERT INTO deliveries (webhook, number, event, type, body, made, attempts, due)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?6)",
                params![Col(&hook.id), last + 1, event, kind, body, Col(&at)],
            )?;
        }
        Ok(())
    }
}

/// As an event is called in public.
fn event_name(id: Uuid) -> String {
    format!("event_{}", id.simple())
}

impl Store {
    /// `None`: the tenant has as many as it may.
    pub async fn add_webhook(&self, new: NewWebhook, most: usize) -> Result<Option<Webhook>> {
        self.write(move |tx| {
            let count = "SELECT count(*) FROM webhooks WHERE tenant = ?";
            let count: usize = tx.reads().prepare_cached(count)?.query_row([Col(&new.tenant)], |row| row.get(0))?;
            if count >= most {
                return Ok(None);
            }
            tx.execute(
                "INSERT INTO webhooks (tenant, id, key, url, secret, events, created, done, delivered, dropped)
                 VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0)",
                params![
                    Col(&new.tenant),
                    Col(&new.id),
                    Col(&new.key),
                    new.url,
                    new.secret,
                    Col(&new.events),
                    Col(&new.at)
                ],
            )?;
            tx.webhooks_changed();
            one(tx.reads(), &new.tenant, new.id)
        })
        .await
    }

    /// Oldest first.
    pub async fn webhooks(&self, tenant: &Tenant) -> Result<Vec<Webhook>> {
        self.read_for(tenant, move |db, tenant| Ok(all(db, "tenant = ? ORDER BY id", params![Col(tenant)])?)).await
    }

    pub async fn webhook(&self, tenant: &Tenant, id: WebhookId) -> Result<Option<Webhook>> {
        self.read_for(tenant, move |db, tenant| one(db, tenant, id)).await
    }

    /// Of all tenants, those to which something may be sent.
    pub async fn live_webhooks(&self) -> Result<Vec<Webhook>> {
        self.read(|db| Ok(all(db, "disabled IS NULL", [])?)).await
    }

    /// False: there is none. What waits for it goes too.
    pub async fn remove_webhook(&self, tenant: &Tenant, id: WebhookId) -> Result<bool> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let sql = "DELETE FROM webhooks WHERE tenant = ? AND id = ?";
            let was = tx.execute(sql, params![Col(&tenant), Col(&id)])? > 0;
            if was {
                tx.execute("DELETE FROM deliveries WHERE webhook = ?", params![Col(&id)])?;
                tx.webhooks_changed();
            }
            Ok(was)
        })
        .await
    }

    /// What happened beside the database. Where much waits already, it is dropped and counted.
    pub async fn offer(&self, tenant: &Tenant, event: Uuid, kind: &'static str, body: String, at: Time) -> Result<()> {
        let tenant = tenant.clone();
        self.write(move |tx| tx.put(&tenant, &event_name(event), kind, &body, at, FOR_ALL)).await
    }

    /// Newest first: what waits, and the last that came to an end.
    pub async fn deliveries(&self, id: WebhookId, most: u32) -> Result<Vec<Delivery>> {
        self.read(move |db| {
            let sql = "SELECT * FROM deliveries WHERE webhook = ? ORDER BY number DESC LIMIT ?";
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map(params![Col(&id), most], delivery)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// What comes next.
    pub async fn next_delivery(&self, tenant: &Tenant, id: WebhookId) -> Result<Option<Delivery>> {
        let tenant = tenant.clone();
        self.read(move |db| {
            let sql = "SELECT deliveries.* FROM deliveries JOIN webhooks ON webhooks.id = webhook
                       WHERE webhooks.tenant = ?1 AND webhook = ?2 AND disabled IS NULL AND number > done
                       ORDER BY number LIMIT 1";
            Ok(db.prepare_cached(sql)?.query_row(params![Col(&tenant), Col(&id)], delivery).optional()?)
        })
        .await
    }

    /// It has arrived. One that was dropped meanwhile stays dropped.
    pub async fn delivered(
        &self,
        tenant: &Tenant,
        id: WebhookId,
        number: i64,
        attempts: u32,
        said: String,
        at: Time,
    ) -> Result<()> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let sql = "UPDATE webhooks SET done = ?1, delivered = delivered + 1
                       WHERE tenant = ?2 AND id = ?3 AND done = ?1 - 1";
            if tx.execute(sql, params![number, Col(&tenant), Col(&id)])? == 0 {
                return Ok(());
            }
            let sql = "UPDATE deliveries SET attempts = ?, said = ?, ended = ? WHERE webhook = ? AND number = ?";
            tx.execute(sql, params![attempts, said, Col(&at), Col(&id), number])?;
            let sql = "DELETE FROM deliveries WHERE webhook = ? AND number <= ?";
            tx.execute(sql, params![Col(&id), number - KEPT]).map(drop)
        })
        .await
    }

    /// It has not, and is tried again.
    pub async fn put_off(&self, id: WebhookId, number: i64, attempts: u32, said: String, due: Time) -> Result<()> {
        self.write(move |tx| {
            let sql = "UPDATE deliveries SET attempts = ?, said = ?, due = ? WHERE webhook = ? AND number = ?";
            tx.execute(sql, params![attempts, said, Col(&due), Col(&id), number]).map(drop)
        })
        .await
    }

    /// Nothing is sent there any more; what waits is dropped.
    pub async fn disable_webhook(&self, tenant: &Tenant, id: WebhookId, why: String, at: Time) -> Result<()> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let Some(hook) = one(tx.reads(), &tenant, id)?.filter(|hook| hook.disabled.is_none()) else {
                return Ok(());
            };
            let last = last(tx.reads(), &hook)?;
            tx.execute(
                "UPDATE webhooks SET disabled = ?1, why = ?2, dropped = dropped + ?3 - done, done = ?3
                 WHERE tenant = ?4 AND id = ?5",
                params![Col(&at), why, last, Col(&tenant), Col(&id)],
            )?;
            tx.execute("DELETE FROM deliveries WHERE webhook = ? AND ended IS NULL", params![Col(&id)])?;
            tx.webhooks_changed();
            Ok(())
        })
        .await
    }

    /// From now on it is told what happens. `None`: there is none.
    pub async fn enable_webhook(&self, tenant: &Tenant, id: WebhookId) -> Result<Option<Webhook>> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let sql = "UPDATE webhooks SET disabled = NULL, why = NULL WHERE tenant = ? AND id = ?";
            tx.execute(sql, params![Col(&tenant), Col(&id)])?;
            tx.webhooks_changed();
            one(tx.reads(), &tenant, id)
        })
        .await
    }
}

/// The number of the newest delivery.
fn last(db: &Connection, hook: &Webhook) -> rusqlite::Result<i64> {
    let mut statement = db.prepare_cached("SELECT max(number) FROM deliveries WHERE webhook = ?")?;
    let last: Option<i64> = statement.query_row([Col(&hook.id)], |row| row.get(0))?;
    Ok(last.unwrap_or(0).max(hook.done))
}

fn one(db: &Connection, tenant: &Tenant, id: WebhookId) -> Result<Option<Webhook>> {
    Ok(all(db, "tenant = ? AND id = ?", params![Col(tenant), Col(&id)])?.pop())
}

fn all(db: &Connection, which: &str, values: impl rusqlite::Params) -> rusqlite::Result<Vec<Webhook>> {
    db.prepare_cached(&format!("SELECT * FROM webhooks WHERE {which}"))?.query_map(values, webhook)?.collect()
}

fn webhook(row: &Row<'_>) -> rusqlite::Result<Webhook> {
    let disabled: Option<Time> = maybe(row, "disabled")?;
    let why: Option<String> = row.get("why")?;
    Ok(Webhook {
        tenant: get(row, "tenant")?,
        id: get(row, "id")?,
        key: maybe(row, "key")?,
        url: row.get("url")?,
        secret: row.get("secret")?,
        events: get(row, "events")?,
        created: get(row, "created")?,
        disabled: disabled.map(|at| (at, why.unwrap_or_default())),
        delivered: row.get("delivered")?,
        dropped: row.get("dropped")?,
        done: row.get("done")?,
    })
}

fn delivery(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    Ok(Delivery {
        number: row.get("number")?,
        event: row.get("event")?,
        kind: row.get("type")?,
        body: row.get("body")?,
        made: get(row, "made")?,
        attempts: row.get("attempts")?,
        due: get(row, "due")?,
        said: row.get("said")?,
        ended: maybe(row, "ended")?,
    })
}
