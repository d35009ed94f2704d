//! Calls: reserved before anything starts, recorded with their ledger row before anybody hears the answer.

use bytes::Bytes;
use cabana_model::{CallId, Code, KeyId, Outcome, SandboxId, Tenant, Time};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::{
    Entry, Error, Page, Result, Store,
    desk::Tx,
    page::{self, RowSize},
    sql::{Col, get, maybe, readable},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCall {
    pub id: CallId,
    pub tenant: Tenant,
    pub key: KeyId,
    /// The public id.
    pub sandbox: Option<SandboxId>,
    /// Whose it is, if it is one user's.
    pub user: Option<String>,
    /// Whether the sandbox was made for it.
    pub made: bool,
    pub verb: &'static str,
    pub front: &'static str,
    /// Of the request: the same key with another one is a mistake of the caller.
    pub digest: [u8; 32],
    /// SHA-256 of the Idempotency-Key.
    pub once: Option<[u8; 32]>,
    pub argv: Vec<String>,
    pub at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    Fresh,
    /// The same was asked before, and has not ended.
    Running(CallId),
    Done(CallId, Outcome),
    /// The key belongs to another request.
    Conflict,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub id: CallId,
    pub outcome: Outcome,
    /// A small output, kept in the row.
    pub output: Option<Inline>,
    pub entry: Entry,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inline {
    pub stdout: Bytes,
    pub stderr: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRow {
    pub id: CallId,
    pub tenant: Tenant,
    pub key: KeyId,
    pub sandbox: Option<SandboxId>,
    pub user: Option<String>,
    pub made: bool,
    /// Whether its client sent an Idempotency-Key, and can ask again what became of it.
    pub can_be_repeated: bool,
    pub verb: String,
    pub front: String,
    pub argv: Vec<String>,
    pub reserved: Time,
    pub ended: Option<Time>,
    pub outcome: Option<Outcome>,
    pub inline: Option<Inline>,
}

impl RowSize for CallRow {
    fn size(&self) -> usize {
        let outcome = match &self.outcome {
            Some(Outcome::Answered(answer)) => answer.len(),
            Some(Outcome::Failed { message, .. }) => message.len(),
            _ => 0,
        };
        let inline = self.inline.as_ref().map_or(0, |inline| inline.stdout.len() + inline.stderr.len());
        size_of::<Self>() + page::size_of_words(&self.argv) + outcome + inline
    }
}

impl CallRow {
    /// Where a list goes on after it.
    pub fn cursor(&self) -> String {
        self.id.to_string()
    }
}

impl Store {
    pub async fn reserve(&self, call: NewCall) -> Result<Reserved> {
        let tenant = call.tenant.clone();
        self.write_for(&tenant, move |tx| {
            if let Some(once) = &call.once
                && let Some(known) = earlier(tx.reads(), &call, once)?
            {
                return Ok(known);
            }
            insert(tx, &call)?;
            Ok(Reserved::Fresh)
        })
        .await
    }

    /// What is known of the call that used the same key, and nothing is reserved.
    pub async fn repeated(&self, call: NewCall) -> Result<Option<Reserved>> {
        let tenant = call.tenant.clone();
        self.glance_for(&tenant, move |db| call.once.as_ref().map_or(Ok(None), |once| earlier(db, &call, once))).await
    }

    /// The call's outcome and its ledger row, both or neither.
    pub async fn record(&self, done: Done) -> Result<()> {
        let tenant = done.entry.tenant.clone();
        self.write_for(&tenant, move |tx| {
            end(tx, &done)?;
            tx.append(done.entry)
        })
        .await
    }

    /// One that is open and has changed nothing: it was never reserved.
    pub async fn withdraw_call(&self, tenant: &Tenant, id: CallId) -> Result<()> {
        let of = tenant.clone();
        self.write_for(tenant, move |tx| {
            tx.execute("DELETE FROM calls WHERE tenant = ? AND id = ? AND ended IS NULL", params![Col(&of), Col(&id)])?;
            Ok(())
        })
        .await
    }

    /// A ledger row alone.
    pub async fn note(&self, entry: Entry) -> Result<()> {
        let tenant = entry.tenant.clone();
        self.write_for(&tenant, move |tx| tx.append(entry)).await
    }

    pub async fn call(&self, tenant: &Tenant, id: CallId) -> Result<Option<CallRow>> {
        let of = tenant.clone();
        self.glance_for(tenant, move |db| {
            let sql = "SELECT * FROM calls WHERE tenant = ? AND id = ?";
            Ok(db.prepare_cached(sql)?.query_row(params![Col(&of), Col(&id)], row).optional()?)
        })
        .await
    }

    /// Newest first. `user`: without those of other users, and of nobody those that are about a sandbox.
    pub async fn calls(
        &self,
        tenant: &Tenant,
        user: Option<&str>,
        sandbox: Option<&SandboxId>,
        page: Page,
    ) -> Result<Vec<CallRow>> {
        let (user, sandbox) = (user.map(str::to_owned), sandbox.cloned());
        let before = match &page.after {
            Some(cursor) => Some(cursor.parse::<CallId>().map_err(|_| Error::Cursor)?),
            None => None,
        };
        self.read_for(tenant, move |db, tenant| {
            // Two texts, so that each finds its own index.
            let of = if sandbox.is_some() { "sandbox = ?2" } else { "?2 IS NULL" };
            let mut statement = db.prepare_cached(&format!(
                "SELECT * FROM calls WHERE tenant = ?1 AND {of} AND id < coalesce(?3, x'ffffffffffffffffffffffffffffffffff')
                 AND (?5 IS NULL OR user = ?5 OR (user IS NULL AND sandbox IS NOT NULL)) ORDER BY id DESC LIMIT ?4"
            ))?;
            let values = params![Col(tenant), sandbox.as_ref().map(Col), before.as_ref().map(Col), page.rows(), user];
            Ok(page::collect(statement.query_map(values, row)?)?)
        })
        .await
    }

    /// What has not ended, of all tenants, as far as it can be read.
    pub async fn open_calls(&self) -> Result<Vec<CallRow>> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT * FROM calls WHERE ended IS NULL")?;
            let rows = statement.query_map([], row)?;
            Ok(readable(rows).collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// Makes free the idempotency keys of calls reserved before then. How many it were.
    pub async fn forget_keys(&self, before: Time) -> Result<u64> {
        // A bit at a time, so that no call waits for a day's worth of them.
        const AT_ONCE: u64 = 500;
        let mut forgotten = 0;
        loop {
            let these = self.write(move |tx| forget(tx, before, AT_ONCE)).await?;
            forgotten += these;
            if these < AT_ONCE {
                return Ok(forgotten);
            }
        }
    }
}

/// What is known of the call that used the same key.
fn earlier(db: &Connection, call: &NewCall, once: &[u8; 32]) -> Result<Option<Reserved>> {
    let sql = "SELECT id, digest, outcome, code, answer FROM calls WHERE tenant = ? AND once = ?";
    let mut statement = db.prepare_cached(sql)?;
    let known = statement.query_row(params![Col(&call.tenant), once], |row| {
        Ok((row.get::<_, [u8; 32]>("digest")?, get::<CallId>(row, "id")?, outcome(row)?))
    });
    Ok(known.optional()?.map(|(digest, id, outcome)| match outcome {
        _ if digest != call.digest => Reserved::Conflict,
        Some(outcome) => Reserved::Done(id, outcome),
        None => Reserved::Running(id),
    }))
}

fn insert(tx: &mut Tx<'_>, call: &NewCall) -> Result<usize> {
    tx.execute(
        "INSERT INTO calls (tenant, id, key, sandbox, user, made, verb, front, digest, once, argv, reserved)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            Col(&call.tenant),
            Col(&call.id),
            Col(&call.key),
            call.sandbox.as_ref().map(Col),
            call.user,
            call.made,
            call.verb,
            call.front,
            call.digest,
            call.once,
            Col(&call.argv),
            Col(&call.at),
        ],
    )
}

pub(crate) fn end(tx: &mut Tx<'_>, done: &Done) -> Result<()> {
    let (code, answer) = match &done.outcome {
        Outcome::Answered(answer) => (None, Some(&answer[..])),
        Outcome::Failed { code, message } => (Some(code.as_str()), Some(message.as_bytes())),
        Outcome::Cancelled | Outcome::Unknown => (None, None),
    };
    let inline = done.output.as_ref();
    let ended = tx.execute(
        "UPDATE calls SET ended = ?, outcome = ?, code = ?, answer = ?, stdout = ?, stderr = ?
         WHERE tenant = ? AND id = ? AND ended IS NULL",
        params![
            Col(&done.entry.at),
            done.outcome.as_str(),
            code,
            answer,
            inline.map(|inline| &inline.stdout[..]),
            inline.map(|inline| &inline.stderr[..]),
            Col(&done.entry.tenant),
            Col(&done.id),
        ],
    )?;
    // A second outcome would be a second ledger row for one call.
    if ended == 1 { Ok(()) } else { Err(Error::Refused(format!("{} is not open", done.id))) }
}

/// In an order without ties: run again from the journal, it finds the same.
fn forget(tx: &mut Tx<'_>, before: Time, most: u64) -> Result<u64> {
    let forgotten = tx.execute(
        "UPDATE calls SET once = NULL WHERE (tenant, id) IN
           (SELECT tenant, id FROM calls WHERE once IS NOT NULL AND reserved < ? ORDER BY reserved, tenant, id LIMIT ?)",
        params![Col(&before), most],
    )?;
    Ok(forgotten as u64)
}

fn row(row: &Row<'_>) -> rusqlite::Result<CallRow> {
    Ok(CallRow {
        id: get(row, "id")?,
        tenant: get(row, "tenant")?,
        key: get(row, "key")?,
        sandbox: maybe(row, "sandbox")?,
        user: row.get("user")?,
        made: row.get("made")?,
        can_be_repeated: row.get::<_, Option<[u8; 32]>>("once")?.is_some(),
        verb: row.get("verb")?,
        front: row.get("front")?,
        argv: get(row, "argv")?,
        reserved: get(row, "reserved")?,
        ended: maybe(row, "ended")?,
        outcome: outcome(row)?,
        inline: inline(row)?,
    })
}

fn outcome(row: &Row<'_>) -> rusqlite::Result<Option<Outcome>> {
    let bytes = |row: &Row<'_>| row.get::<_, Option<Vec<u8>>>("answer").map(Option::unwrap_or_default);
    let kind: Option<String> = row.get("outcome")?;
    Ok(Some(match kind.as_deref() {
        None => return Ok(None),
        Some("answered") => Outcome::Answered(bytes(row)?.into()),
        Some("failed") => Outcome::Failed {
            // A code that a later version had and this one does not.
            code: Code::parse(&row.get::<_, String>("code")?).unwrap_or(Code::Internal),
            message: String::from_utf8_lossy(&bytes(row)?).into_owned(),
        },
        Some("cancelled") => Outcome::Cancelled,
        Some(_) => Outcome::Unknown,
    }))
}

pub(crate) fn inline(row: &Row<'_>) -> rusqlite::Result<Option<Inline>> {
    let stream = |column| row.get::<_, Option<Vec<u8>>>(column).map(|bytes| bytes.map(Bytes::from));
    Ok(stream("stdout")?.zip(stream("stderr")?).map(|(stdout, stderr)| Inline { stdout, stderr }))
}
