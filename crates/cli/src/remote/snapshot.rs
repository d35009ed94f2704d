//! `cabana snapshot`: a sandbox's files at one moment, for others to begin with.

use serde_json::Value;

use super::{
    place::Place,
    server::{At, Server},
    table,
};
use crate::failure::Failure;

/// Keep the files of sandboxes as they are, for others to begin with
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cabana snapshot add box\n  \
                        cabana exec --snapshot snap_0198c5f2a3b47c8d9e0f1a2b3c4d5e6f fork -- ls")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Keep a sandbox's files as they are now. It goes on as it was
    Add {
        /// By id, name or scope
        sandbox: String,
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the snapshots, of one sandbox or of all
    Ls {
        /// By id, name or scope
        sandbox: Option<String>,
        /// For programs: one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show one snapshot, as JSON
    Inspect { snapshot: String },
    /// Let snapshots go. What was made from them stays
    Rm {
        #[arg(required = true)]
        snapshot: Vec<String>,
    },
}

pub(super) async fn work(args: Args, server: &Server) -> Result<(), Failure> {
    match args.verb {
        Verb::Add { sandbox, json } => {
            let id = Place::of(&sandbox)?.find(server).await?;
            let taken: Value = server.post(At(&["v1", "sandboxes", id.as_str(), "snapshots"], &[]), &()).await?;
            match json {
                true => table::json(&taken),
                false => table::print(&format!("{}\n", taken["id"].as_str().unwrap_or("-"))),
            }
            Ok(())
        }
        Verb::Ls { sandbox, json } => list(sandbox.as_deref(), json, server).await,
        Verb::Inspect { snapshot } => {
            table::json(&server.get::<Value>(At(&["v1", "snapshots", &snapshot], &[])).await?);
            Ok(())
        }
        Verb::Rm { snapshot } => {
            for id in &snapshot {
                server.delete(At(&["v1", "snapshots", id], &[])).await?;
                table::print(&format!("{id}\n"));
            }
            Ok(())
        }
    }
}

async fn list(sandbox: Option<&str>, json: bool, server: &Server) -> Result<(), Failure> {
    let id = match sandbox {
        Some(word) => Some(Place::of(word)?.find(server).await?),
        None => None,
    };
    let query: Vec<_> = id.iter().map(|id| ("sandbox", id.as_str())).collect();
    let rows: Vec<Value> = server.all("snapshots", &["v1", "snapshots"], &query).await?;
    if json {
        table::json(&rows);
        return Ok(());
    }
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or("-").to_owned();
    table::columns(
        ["ID", "SANDBOX", "CREATED"],
        rows.iter().map(|row| ["id", "sandbox", "created_at"].map(|name| text(row, name))),
    );
    Ok(())
}
