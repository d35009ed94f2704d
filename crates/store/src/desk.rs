//! Where writing is done: one connection, its open transaction and the journal.

use std::path::Path;

use cabana_model::Tenant;
use rusqlite::{Connection, OptionalExtension, ToSql, params_from_iter, types::ToSqlOutput};

use crate::{
    Durability, Entry, Error, Result,
    checkpoints::Checkpoints,
    fault::{self, Point},
    journal::{Journal, Statements},
    ledger::Tips,
    reserve::Reserve,
    schema,
    sql::Col,
    webhooks::Hooks,
};

/// How long the journal may become before it is folded into the database: so much is run again after a kill.
const LONG: u64 = 1 << 20;

/// What one caller wants written, and the caller.
pub(crate) trait Op: Send {
    /// Inside the transaction. The result is kept for the answer.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()>;
    /// When it is known what became of it.
    fn answer(self: Box<Self>, fate: Result<()>);
}

/// Inside a transaction.
pub(crate) struct Tx<'a> {
    db: &'a Connection,
    tips: &'a mut Tips,
    hooks: &'a mut Hooks,
    statements: &'a mut Statements,
}

impl Tx<'_> {
    /// To look only.
    pub(crate) fn reads(&self) -> &Connection {
        self.db
    }

    /// The one way to write: the journal has to know. How many rows it changed.
    pub(crate) fn execute(&mut self, sql: &str, values: &[&dyn ToSql]) -> Result<usize> {
        let values: Vec<ToSqlOutput<'_>> =
            values.iter().map(|value| value.to_sql()).collect::<rusqlite::Result<_>>()?;
        let changed = self.db.prepare_cached(sql)?.execute(params_from_iter(&values))?;
        if changed > 0 {
            self.statements.add(sql, &values)?;
        }
        Ok(changed)
    }

    pub(crate) fn has_webhooks(&mut self, tenant: &Tenant) -> Result<bool> {
        self.hooks.has(self.db, tenant)
    }

    pub(crate) fn webhooks_changed(&mut self) {
        *self.hooks = Hooks::default();
    }

    /// To the chain of its tenant.
    pub(crate) fn append(&mut self, entry: Entry) -> Result<()> {
        let tenant = entry.tenant.clone();
        let last = self.tips.last(self.db, &tenant)?;
        let (text, head) = entry.seal(&last)?;
        self.execute(
            "INSERT INTO ledger (tenant, seq, row, hash) VALUES (?, ?, ?, ?)",
            &[&Col(&tenant), &head.seq, &text, &head.hash],
        )?;
        fault::at(Point::LedgerAppended);
        self.tips.grow(tenant, head);
        Ok(())
    }
}

pub(crate) struct Desk {
    db: Connection,
    tips: Tips,
    hooks: Hooks,
    statements: Statements,
    journal: Journal,
    /// What the database has of it.
    folded: u64,
    /// Whether there is a transaction. It has everything that the database lacks.
    open: bool,
    checkpoints: Checkpoints,
    reserve: Reserve,
    /// The last write found no disk that takes it.
    away: bool,
}

impl Desk {
    /// Runs again what the last one left in the journal, on the tables that it was written for, and brings these up to date.
    pub(crate) fn open(db: Connection, path: &Path, durability: Durability) -> Result<Self> {
        let folded = folded(&db)?;
        let journal = Journal::open(&path.with_file_name("journal"), folded, durability)?;
        let checkpoints = Checkpoints::start(path)?;
        let (tips, hooks, statements) = (Tips::default(), Hooks::default(), Statements::default());
        let reserve = Reserve::in_dir(path.parent().unwrap_or(path));
        let (open, away) = (false, false);
        let mut desk = Self { db, tips, hooks, statements, journal, folded, open, checkpoints, reserve, away };
        desk.fold()?;
        schema::migrate(&mut desk.db)?;
        desk.renew_reserve();
        Ok(desk)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Whether one more can be written without waiting.
    pub(crate) fn is_handy(&self) -> bool {
        self.open && self.journal.length() < LONG
    }

    pub(crate) fn is_unfolded(&self) -> bool {
        self.journal.last() > self.folded
    }

    pub(crate) fn is_away(&self) -> bool {
        self.away
    }

    /// The disk is full, and the store lives on what was kept for that.
    pub(crate) fn is_short(&self) -> bool {
        self.reserve.is_short()
    }

    pub(crate) fn renew_reserve(&mut self) {
        self.reserve.renew();
    }

    /// Ok: all of it is in the journal, but for the ops that failed by themselves.
    pub(crate) fn run(&mut self, ops: &mut [&mut dyn Op], failures: &mut [Option<Error>]) -> Result<()> {
        let ran = self.run_all(ops, failures);
        let is_away = |error: &Error| matches!(error, Error::Unavailable(_));
        self.away = ran.as_ref().is_err_and(is_away) || failures.iter().flatten().any(is_away);
        ran
    }

    fn run_all(&mut self, ops: &mut [&mut dyn Op], failures: &mut [Option<Error>]) -> Result<()> {
        if self.journal.length() >= LONG {
            self.fold()?;
        }
        let before = self.journal.mark();
        for (op, failure) in ops.iter_mut().zip(failures) {
            *failure = self.attempt(*op).err();
        }
        let safe = self.journal.settle();
        fault::at(Point::JournalWritten);
        if safe.is_err() {
            self.journal.back_to(before);
            self.give_up();
        }
        Ok(safe?)
    }

    fn tx(&mut self) -> Tx<'_> {
        Tx { db: &self.db, tips: &mut self.tips, hooks: &mut self.hooks, statements: &mut self.statements }
    }

    fn attempt(&mut self, op: &mut dyn Op) -> Result<()> {
        self.begin()?;
        self.statements.clear();
        let ran = op.run(&mut self.tx());
        let done = ran.and_then(|()| {
            fault::at(Point::JournalReady);
            self.append()
        });
        // A statement that failed left nothing behind, but those before it did. No savepoint undoes them, since each op
        // would pay for that, and few fail. A full disk or a failed read has ended the transaction already.
        if done.is_err() && (self.db.is_autocommit() || !self.statements.is_empty()) {
            self.give_up();
        }
        if let Err(Error::Unavailable(_)) = done {
            self.reserve.give(); // it cannot be run once more, but the next one can
        }
        done
    }

    /// On a full disk with what was kept for that.
    fn append(&mut self) -> Result<()> {
        while let Err(error) = self.journal.append(&self.statements) {
            if !self.reserve.give() {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Everything acknowledged into the database, and the journal empty.
    pub(crate) fn fold(&mut self) -> Result<()> {
        if !self.open && !self.is_unfolded() {
            return Ok(());
        }
        let folded = self.begin().and_then(|()| self.commit());
        if folded.is_err() {
            self.give_up();
            return if self.reserve.give() { self.fold() } else { folded };
        }
        self.open = false;
        self.folded = self.journal.last();
        fault::at(Point::CommitDone);
        self.journal.clear();
        fault::at(Point::CommitCleared);
        self.checkpoints.after_commit(&self.db);
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        if self.is_unfolded() {
            self.db.prepare_cached("UPDATE folded SET record = ?")?.execute([self.journal.last()])?;
        }
        fault::at(Point::CommitReady);
        self.statement("COMMIT")
    }

    /// Everything acknowledged is in the transaction then.
    fn begin(&mut self) -> Result<()> {
        if self.open {
            return Ok(());
        }
        self.statement("BEGIN IMMEDIATE")?;
        self.open = true;
        let caught_up = self.catch_up();
        if caught_up.is_err() {
            self.give_up();
        }
        caught_up
    }

    fn catch_up(&mut self) -> Result<()> {
        if !self.is_unfolded() {
            return Ok(());
        }
        let db = &self.db;
        self.journal.replay(self.folded, |sql, values| {
            db.prepare_cached(sql)?.execute(params_from_iter(values))?;
            Ok(())
        })?;
        fault::at(Point::JournalReplayed);
        Ok(())
    }

    /// Reads what is acknowledged, also when the database cannot take it: nothing of it is committed.
    pub(crate) fn look(&mut self, op: &mut dyn Op) -> Result<()> {
        self.begin()?;
        let seen = op.run(&mut self.tx());
        if self.db.is_autocommit() {
            self.give_up(); // a read that failed has ended the transaction
        }
        seen
    }

    /// Ends the transaction. What was acknowledged in it is in the journal, and the next one begins with that.
    fn give_up(&mut self) {
        if !self.db.is_autocommit() {
            let _ = self.db.execute_batch("ROLLBACK");
        }
        self.open = false;
        self.tips = Tips::default();
        self.hooks = Hooks::default();
    }

    fn statement(&self, sql: &str) -> Result<()> {
        self.db.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}

fn folded(db: &Connection) -> Result<u64> {
    let folded = db.query_row("SELECT record FROM folded", [], |row| row.get(0)).optional()?;
    folded.ok_or_else(|| Error::Corrupt("it does not say what it has of the journal".into()))
}
