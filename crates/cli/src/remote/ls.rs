//! `cabana ls`: the sandboxes.

use serde_json::Value;

use super::{server::Server, table};
use crate::failure::Failure;

/// List the sandboxes
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only those in this state: running, paused, stopped, archived, failed
    #[arg(long)]
    state: Option<String>,
    /// For programs: one JSON array
    #[arg(long)]
    json: bool,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    let query: Vec<_> = args.state.iter().map(|state| ("state", state.as_str())).collect();
    let rows: Vec<Value> = server.all("sandboxes", &["v1", "sandboxes"], &query).await?;
    if args.json {
        table::json(&rows);
        return Ok(());
    }
    table::columns(
        ["ID", "SCOPE", "STATE", "TEMPLATE", "NETWORK", "ACTIVE", "WHY"],
        rows.iter().map(|row| {
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let scope = match &row["scope"] {
                Value::Null => "-".to_owned(),
                scope => format!("{}:{}", text(&scope["scheme"]), named(scope)),
            };
            let [id, state, active] = ["id", "state", "active_at"].map(|name| text(&row[name]));
            let base = if row["template"].is_null() { &row["snapshot"] } else { &row["template"] };
            let why = [&row["trouble"], &row["why_awake"], &row["why_stopped"]].into_iter().find(|why| !why.is_null());
            [id, scope, state, text(base), text(&row["network"]["mode"]), active, text(why.unwrap_or(&row["why"]))]
        }),
    );
    Ok(())
}

/// As `--scope` takes it.
fn named(scope: &Value) -> String {
    let parts = ["app", "project", "user", "agent", "chat", "name"].map(|part| scope[part].as_str());
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { scope["value"].as_str().unwrap_or("-").to_owned() } else { parts.join("/") }
}
