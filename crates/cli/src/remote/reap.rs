//! `cabana reap`: looks after sandboxes whose time has come.

use std::time::Duration;

use serde_json::Value;

use super::{
    server::{At, Server},
    table,
};
use crate::{amounts, failure::Failure};

/// Stop, archive and delete the sandboxes whose time has come, and go on with what failed before
///
/// The server does this by itself. This is for whoever wants it now, or as a process of its own.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One round, and not one after another
    #[arg(long)]
    once: bool,
    /// Between two rounds
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = amounts::duration, conflicts_with = "once")]
    interval: Duration,
    /// For programs: one JSON object a round
    #[arg(long)]
    json: bool,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    loop {
        let reaped: Value = server.post(At(&["v1", "reap"], &[]), &()).await?;
        if args.json {
            table::print(&format!("{reaped}\n"));
        } else {
            let names = ["looked_at", "stopped", "paused", "archived", "deleted", "resumed", "failed"];
            let counts = names.map(|name| format!("{} {}", name.replace('_', " "), reaped[name]));
            table::print(&format!("{}\n", counts.join(", ")));
        }
        if args.once {
            return Ok(());
        }
        tokio::time::sleep(args.interval).await;
    }
}
