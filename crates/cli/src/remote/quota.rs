//! `cabana quota`: how much a tenant and a key may have.

use std::collections::BTreeMap;

use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;

use super::{
    server::{At, Server, with_json},
    table,
};
use crate::{
    amounts::{processors, size},
    failure::Failure,
};

/// Show and set how much a tenant or a key may have
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List what one may have and has; the operator sees all that were set
    Ls {
        /// For programs: one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show one quota, and what is in use
    Show {
        #[command(flatten)]
        whose: Whose,
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Set a quota as a whole: what is not given is not limited by it
    Set(Box<Set>),
    /// Take a quota away
    Rm {
        #[command(flatten)]
        whose: Whose,
        /// Also where the server's own settings give less than is in use
        #[arg(long)]
        force: bool,
    },
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Whose {
    /// The tenant
    tenant: Option<String>,
    /// A key, as `cabana key ls` shows it: what was made with it, and what it does
    #[arg(long)]
    key: Option<String>,
}

impl Whose {
    fn path(&self) -> Vec<&str> {
        match (&self.tenant, &self.key) {
            (_, Some(key)) => vec!["v1", "keys", key, "quota"],
            (tenant, None) => vec!["v1", "quotas", tenant.as_deref().unwrap_or_default()],
        }
    }
}

#[derive(clap::Args)]
struct Set {
    #[command(flatten)]
    whose: Whose,
    /// Sandboxes in all
    #[arg(long, value_name = "NUMBER")]
    sandboxes: Option<u64>,
    /// Sandboxes that run or are paused
    #[arg(long, value_name = "NUMBER")]
    running: Option<u64>,
    /// Processors of those that run, together
    #[arg(long, value_name = "NUMBER", value_parser = processors)]
    cpus: Option<u32>,
    /// Memory of those that run, together
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Disk of all, together
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<u64>,
    /// Calls that begin in a second
    #[arg(long, value_name = "NUMBER")]
    calls_per_sec: Option<u64>,
    /// Calls under way at once
    #[arg(long, value_name = "NUMBER")]
    concurrent_calls: Option<u64>,
    /// Commands in the background at once
    #[arg(long, value_name = "NUMBER")]
    tasks: Option<u64>,
    /// What is kept: files of sandboxes, volumes, snapshots, outputs
    #[arg(long, value_name = "SIZE", value_parser = size)]
    stored: Option<u64>,
    /// What is recorded of calls: rows of the ledger, of calls and of tasks; of a tenant alone
    #[arg(long, value_name = "SIZE", value_parser = size)]
    ledger: Option<u64>,
    /// Also below what is in use: then nothing more begins until enough has gone
    #[arg(long)]
    force: bool,
}

impl Set {
    fn body(&self) -> BTreeMap<&'static str, u64> {
        let all = [
            ("sandboxes", self.sandboxes),
            ("running", self.running),
            ("cpu_milli", self.cpus.map(u64::from)),
            ("memory_bytes", self.memory),
            ("disk_bytes", self.disk),
            ("calls_per_sec", self.calls_per_sec),
            ("concurrent_calls", self.concurrent_calls),
            ("tasks", self.tasks),
            ("stored_bytes", self.stored),
            ("ledger_bytes", self.ledger),
        ];
        all.into_iter().filter_map(|(name, limit)| Some((name, limit?))).collect()
    }
}

#[derive(Deserialize)]
struct Standings {
    quotas: Vec<Value>,
}

pub(super) async fn work(args: Args, server: &Server) -> Result<(), Failure> {
    match args.verb {
        Verb::Ls { json } => {
            let Standings { quotas } = server.get(At(&["v1", "quotas"], &[])).await?;
            if json { table::json(&quotas) } else { show(&quotas) }
        }
        Verb::Show { whose, json } => {
            let standing: Value = server.get(At(&whose.path(), &[])).await?;
            if json { table::json(&standing) } else { show(&[standing]) }
        }
        Verb::Set(set) => {
            let body = set.body();
            if body.is_empty() {
                return Err(Failure::bad(
                    "say what to limit, as in --running 10; `cabana quota rm` takes a quota away",
                ));
            }
            let request = server.request(Method::PUT, At(&set.whose.path(), forced(set.force)));
            let standing = server.read(server.send(with_json(request, &body)).await?).await?;
            show(&[standing]);
        }
        Verb::Rm { whose, force } => server.delete(At(&whose.path(), forced(force))).await?,
    }
    Ok(())
}

fn forced(force: bool) -> &'static [(&'static str, &'static str)] {
    if force { &[("force", "true")] } else { &[] }
}

/// One line for each that is limited or used.
fn show(standings: &[Value]) {
    let rows = standings.iter().flat_map(|standing| {
        let text = |name: &str| standing[name].as_str().unwrap_or("-").to_owned();
        let (tenant, key) = (text("tenant"), text("key"));
        let limits = standing["limits"].as_object().into_iter().flatten();
        limits.filter_map(move |(name, limit)| {
            let used = &standing["use"][name];
            let is_news = !limit.is_null() || used.as_u64().is_some_and(|used| used > 0);
            let number = |value: &Value, absent: &str| value.as_u64().map_or(absent.to_owned(), |n| n.to_string());
            let bound = if name.ends_with("per_sec") || name == "stored_bytes" || name == "ledger_bytes" {
                "-"
            } else {
                "no bound"
            };
            is_news.then(|| [tenant.clone(), key.clone(), name.clone(), number(used, bound), number(limit, "none")])
        })
    });
    table::columns(["TENANT", "KEY", "QUOTA", "USED", "LIMIT"], rows);
}
