//! `cabana usage`: what a tenant did, by day and verb.

use serde::Deserialize;
use serde_json::Value;

use super::{
    server::{At, Server},
    table,
};
use crate::failure::Failure;

/// Show what was done, by day and verb, as the ledger says
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The first day, in UTC; without it, 30 days ago
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// The last day; without it, today
    #[arg(long, value_name = "DAY")]
    to: Option<String>,
    /// For programs: one JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Usage {
    usage: Vec<Value>,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    let days = [("from", &args.from), ("to", &args.to)];
    let query: Vec<_> = days.iter().filter_map(|(name, day)| Some((*name, day.as_deref()?))).collect();
    let Usage { usage } = server.get(At(&["v1", "usage"], &query)).await?;
    if args.json {
        table::json(&usage);
        return Ok(());
    }
    table::columns(
        ["DAY", "VERB", "CALLS", "FAILED", "MS"],
        usage.iter().map(|row| {
            let text = |name: &str| row[name].as_str().unwrap_or("-").to_owned();
            let number = |name: &str| row[name].as_u64().unwrap_or(0).to_string();
            [text("day"), text("verb"), number("calls"), number("failed"), number("duration_ms")]
        }),
    );
    Ok(())
}
