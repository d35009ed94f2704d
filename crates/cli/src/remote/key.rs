//! `cabana key`: who may do what.

use std::collections::BTreeMap;

use cabana_model::Time;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    server::{At, Server},
    table,
};
use crate::{
    amounts::duration,
    failure::{Failure, tell},
};

/// Make, list and revoke keys
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Make a key. Its text is printed this once
    Add(Add),
    /// List the keys, without their texts
    Ls {
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// For programs: one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Make keys open nothing any more, at once
    Rm {
        /// Ids, as `cabana key ls` shows them
        #[arg(required = true)]
        key: Vec<String>,
    },
}

#[derive(clap::Args)]
struct Add {
    /// What it is for
    #[arg(default_value = "")]
    name: String,
    /// What it may do: read, use (change sandboxes) or admin (keys and templates of all tenants)
    #[arg(long, default_value = "use")]
    role: String,
    /// Whose it is
    #[arg(long)]
    tenant: Option<String>,
    /// Whom it stands for: a user, whose scopes alone it uses
    #[arg(long)]
    subject: Option<String>,
    /// Its subject is only whom it means where it names no user
    #[arg(long, requires = "subject")]
    any_subject: bool,
    /// When it ends: in 12h, or at 2027-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<Value>,
}

pub(super) async fn work(args: Args, server: &Server) -> Result<(), Failure> {
    match args.verb {
        Verb::Add(add) => make(add, server).await,
        Verb::Ls { tenant, json } => list(tenant.as_deref(), json, server).await,
        Verb::Rm { key } => {
            for key in &key {
                server.delete(At(&["v1", "keys", key], &[])).await?;
                table::print(&format!("{key}\n"));
            }
            Ok(())
        }
    }
}

async fn make(add: Add, server: &Server) -> Result<(), Failure> {
    let mut body = BTreeMap::from([("name", json!(add.name)), ("role", json!(add.role))]);
    body.extend(add.tenant.map(|tenant| ("tenant", json!(tenant))));
    body.extend(add.subject.map(|subject| ("subject", json!(subject))));
    body.extend(add.any_subject.then_some(("any_subject", json!(true))));
    body.extend(add.expires.map(|text| end(&text)).transpose()?.map(|end| ("expires_at", json!(end))));
    let made: Value = server.post(At(&["v1", "keys"], &[]), &body).await?;
    if add.json {
        table::json(&made);
        return Ok(());
    }
    let text = |name: &str| made[name].as_str().unwrap_or("-");
    tell(&format!("{} of the tenant {}, with the role {}", text("id"), text("tenant"), text("role")));
    table::print(&format!("{}\n", text("key")));
    Ok(())
}

fn end(text: &str) -> Result<Time, Failure> {
    let bad = || Failure::bad(format!("--expires {text:?}: write 12h, or 2027-01-01T00:00:00Z"));
    match duration(text) {
        Ok(from_now) => Time::now().checked_add(from_now).map_err(|_| bad()),
        Err(_) => text.parse().map_err(|_| bad()),
    }
}

async fn list(tenant: Option<&str>, json: bool, server: &Server) -> Result<(), Failure> {
    let query: Vec<_> = tenant.iter().map(|tenant| ("tenant", *tenant)).collect();
    let Keys { keys } = server.get(At(&["v1", "keys"], &query)).await?;
    if json {
        table::json(&keys);
        return Ok(());
    }
    table::columns(
        ["ID", "TENANT", "ROLE", "SUBJECT", "CREATED", "ENDS", "NAME"],
        keys.iter().map(|key| {
            let text = |name: &str| key[name].as_str().unwrap_or("-").to_owned();
            let ends = if key["revoked_at"].is_null() { text("expires_at") } else { "revoked".to_owned() };
            let [id, tenant, role, subject, created] = ["id", "tenant", "role", "subject", "created_at"].map(text);
            let subject = if key["any_subject"] == true { format!("{subject}, and others") } else { subject };
            [id, tenant, role, subject, created, ends, text("name")]
        }),
    );
    Ok(())
}
