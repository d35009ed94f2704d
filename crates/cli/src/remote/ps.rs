//! `cabana ps`: commands in the background.

use serde_json::Value;

use super::{place::Place, server::Server, table};
use crate::failure::Failure;

/// List the tasks: commands in the background
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only those of this sandbox: its id, its name or its scope
    sandbox: Option<String>,
    /// Those that have ended too
    #[arg(short, long)]
    all: bool,
    /// For programs: one JSON array
    #[arg(long)]
    json: bool,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    let sandbox = match &args.sandbox {
        Some(word) => Some(Place::of(word)?.find(server).await?.to_string()),
        None => None,
    };
    let mut query: Vec<_> = sandbox.iter().map(|id| ("sandbox", id.as_str())).collect();
    if !args.all {
        query.push(("state", "running"));
    }
    let rows: Vec<Value> = server.all("tasks", &["v1", "tasks"], &query).await?;
    if args.json {
        table::json(&rows);
        return Ok(());
    }
    table::columns(
        ["TASK", "SANDBOX", "STATE", "EXIT", "STARTED", "COMMAND"],
        rows.iter().map(|row| {
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let argv = row["argv"].as_array().map(|words| words.iter().map(&text).collect::<Vec<_>>());
            let exit = row["exit"]["exit_code"].as_i64().map_or("-".to_owned(), |code| code.to_string());
            let [id, sandbox, state, started] = ["id", "sandbox", "state", "started_at"].map(|name| text(&row[name]));
            [id, sandbox, state, exit, started, table::line(&argv.unwrap_or_default())]
        }),
    );
    Ok(())
}
