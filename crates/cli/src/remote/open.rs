//! `cabana open`: a link to a port.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    place::Place,
    server::{At, Server},
    table,
};
use crate::{amounts::duration, failure::Failure, run::amount};

/// Print a link to a port of a sandbox, which opens it without a key
#[derive(clap::Args)]
pub(crate) struct Args {
    /// By id, name or scope; it is made or started if it has to be
    sandbox: String,
    /// What it listens on inside
    port: u16,
    /// How long the link opens the port: 10m, 24h
    #[arg(long, value_name = "TIME", default_value = "1h")]
    expires: String,
    /// By path, and not by a host name of its own
    #[arg(long)]
    path: bool,
    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    let lasts = amount("--expires", Some(&args.expires), duration)?.unwrap_or_default();
    let id = Place::of(&args.sandbox)?.ensure(server).await?;
    let body = BTreeMap::from([("expires_sec", lasts.as_secs().max(1))]);
    let path = ["v1", "sandboxes", id.as_str(), "ports", &args.port.to_string(), "link"];
    let link: Value = server.post(At(&path, &[]), &body).await?;
    if args.json {
        table::json(&link);
    } else {
        let url = link[if args.path { "path_url" } else { "url" }].as_str().unwrap_or_default();
        table::print(&format!("{url}\n"));
    }
    Ok(())
}
