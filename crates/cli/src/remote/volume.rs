//! `cabana volume`: directories that outlive sandboxes.

use serde_json::{Value, json};

use super::{
    server::{At, Server},
    table,
};
use crate::failure::Failure;

/// Directories that outlive sandboxes, for any number of them to have mounted
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cabana volume create models\n  cabana volume ls\n  cabana volume rm models")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Make an empty one
    Create {
        name: String,
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the volumes
    Ls {
        /// For programs: one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show one volume, as JSON, with what it takes of the disk
    Inspect { volume: String },
    /// End volumes, with all that is in them. One that a sandbox has mounted stays
    Rm {
        #[arg(required = true)]
        volume: Vec<String>,
    },
}

pub(super) async fn work(args: Args, server: &Server) -> Result<(), Failure> {
    match args.verb {
        Verb::Create { name, json } => {
            let made: Value = server.post(At(&["v1", "volumes"], &[]), &json!({ "name": name })).await?;
            match json {
                true => table::json(&made),
                false => table::print(&format!("{}\n", made["name"].as_str().unwrap_or("-"))),
            }
            Ok(())
        }
        Verb::Ls { json } => {
            let rows: Vec<Value> = server.all("volumes", &["v1", "volumes"], &[]).await?;
            if json {
                table::json(&rows);
                return Ok(());
            }
            let text = |row: &Value, name: &str| row[name].as_str().unwrap_or("-").to_owned();
            table::columns(
                ["NAME", "CREATED"],
                rows.iter().map(|row| ["name", "created_at"].map(|name| text(row, name))),
            );
            Ok(())
        }
        Verb::Inspect { volume } => {
            table::json(&server.get::<Value>(At(&["v1", "volumes", &volume], &[])).await?);
            Ok(())
        }
        Verb::Rm { volume } => {
            for name in &volume {
                server.delete(At(&["v1", "volumes", name], &[])).await?;
                table::print(&format!("{name}\n"));
            }
            Ok(())
        }
    }
}
