//! `cabana webhook`: addresses that are told what happens.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    server::{At, Server},
    table,
};
use crate::failure::{Failure, tell};

/// Make, list, try and remove webhooks: addresses that are told what happens
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Tell an address what happens, from now on. The secret that signs it is printed this once
    Add {
        /// Where to send events, by POST
        url: String,
        /// Which types, such as sandbox.stopped or task.*; may be repeated
        #[arg(long = "event", value_name = "TYPE")]
        events: Vec<String>,
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the webhooks, or show one with what it was told
    Ls {
        /// An id
        webhook: Option<String>,
        /// For programs: JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell them nothing more
    Rm {
        /// Ids, as `cabana webhook ls` shows them
        #[arg(required = true)]
        webhook: Vec<String>,
    },
    /// Tell one again that was disabled, of what happens from now on
    Enable {
        /// An id
        webhook: String,
    },
    /// Send one event for a try, and say what came of it
    Test {
        /// An id
        webhook: String,
    },
}

#[derive(Deserialize)]
struct Webhooks {
    webhooks: Vec<Value>,
}

pub(super) async fn work(args: Args, server: &Server) -> Result<u8, Failure> {
    match args.verb {
        Verb::Add { url, events, json } => add(&url, &events, json, server).await,
        Verb::Ls { webhook: Some(webhook), json } => show(&webhook, json, server).await,
        Verb::Ls { webhook: None, json } => list(json, server).await,
        Verb::Rm { webhook } => {
            for webhook in &webhook {
                server.delete(At(&["v1", "webhooks", webhook], &[])).await?;
                table::print(&format!("{webhook}\n"));
            }
            Ok(())
        }
        Verb::Enable { webhook } => {
            let _: Value = server.post(At(&["v1", "webhooks", &webhook, "enable"], &[]), &json!({})).await?;
            table::print(&format!("{webhook}\n"));
            Ok(())
        }
        Verb::Test { webhook } => return test(&webhook, server).await,
    }
    .map(|()| 0)
}

async fn add(url: &str, events: &[String], json: bool, server: &Server) -> Result<(), Failure> {
    let mut body = json!({ "url": url });
    if !events.is_empty() {
        body["events"] = json!(events);
    }
    let made: Value = server.post(At(&["v1", "webhooks"], &[]), &body).await?;
    if json {
        table::json(&made);
        return Ok(());
    }
    let text = |name: &str| made[name].as_str().unwrap_or("-");
    tell(&format!("{}; what it is told is signed with", text("id")));
    table::print(&format!("{}\n", text("secret")));
    Ok(())
}

async fn list(json: bool, server: &Server) -> Result<(), Failure> {
    let Webhooks { webhooks } = server.get(At(&["v1", "webhooks"], &[])).await?;
    if json {
        table::json(&webhooks);
        return Ok(());
    }
    table::columns(
        ["ID", "CREATED", "DELIVERED", "DROPPED", "STATE", "URL"],
        webhooks.iter().map(|webhook| {
            let text = |name: &str| webhook[name].as_str().unwrap_or("-").to_owned();
            let count = |name: &str| webhook[name].as_u64().unwrap_or(0).to_string();
            let state = if webhook["disabled_at"].is_null() { "on" } else { "disabled" };
            let [id, created, url] = ["id", "created_at", "url"].map(text);
            [id, created, count("delivered"), count("dropped"), state.to_owned(), url]
        }),
    );
    Ok(())
}

async fn show(webhook: &str, json: bool, server: &Server) -> Result<(), Failure> {
    let shown: Value = server.get(At(&["v1", "webhooks", webhook], &[])).await?;
    if json {
        table::json(&shown);
        return Ok(());
    }
    if let Some(why) = shown["why_disabled"].as_str() {
        tell(&format!("It is disabled: {why}"));
    }
    let deliveries = shown["deliveries"].as_array().map(Vec::as_slice).unwrap_or_default();
    table::columns(
        ["EVENT", "TYPE", "MADE", "TRIES", "DELIVERED", "SAID"],
        deliveries.iter().map(|delivery| {
            let text = |name: &str| delivery[name].as_str().unwrap_or("-").to_owned();
            let [event, kind, made, delivered, said] = ["event", "type", "made_at", "delivered_at", "said"].map(text);
            [event, kind, made, delivery["attempts"].to_string(), delivered, said]
        }),
    );
    Ok(())
}

/// Whether it arrived is the exit code.
async fn test(webhook: &str, server: &Server) -> Result<u8, Failure> {
    let tried: Value = server.post(At(&["v1", "webhooks", webhook, "test"], &[]), &json!({})).await?;
    let said = tried["said"].as_str().unwrap_or("-");
    table::print(&format!("{said} ({} ms)\n", tried["duration_ms"]));
    Ok(u8::from(tried["delivered"] != true))
}
