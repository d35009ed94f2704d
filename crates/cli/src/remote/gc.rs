//! `cabana gc`: what was kept long enough goes now.

use indicatif::HumanBytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    server::{At, Server},
    table,
};
use crate::failure::Failure;

/// Remove what was kept long enough (settings `retention.*`), as the server does by itself from time to time
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing, and say what would go
    #[arg(long)]
    dry_run: bool,
    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, Deserialize)]
struct Collected {
    dry_run: bool,
    kinds: Vec<Counted>,
}

#[derive(Serialize, Deserialize)]
struct Counted {
    kind: String,
    count: u64,
    bytes: u64,
    examples: Vec<String>,
    kept: u64,
    kept_bytes: u64,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    let collected: Collected = server.post(At(&["v1", "gc"], &[]), &json!({ "dry_run": args.dry_run })).await?;
    if args.json {
        table::json(&collected);
        return Ok(());
    }
    let went = if collected.dry_run { "WOULD GO" } else { "GONE" };
    table::columns(
        ["KIND", went, "SIZE", "KEPT", "KEPT SIZE", "SUCH AS"],
        collected.kinds.iter().map(|kind| {
            [
                kind.kind.clone(),
                kind.count.to_string(),
                HumanBytes(kind.bytes).to_string(),
                kind.kept.to_string(),
                HumanBytes(kind.kept_bytes).to_string(),
                kind.examples.join(", "),
            ]
        }),
    );
    Ok(())
}
