//! `cabana rm`: sandboxes, with their files.

use serde_json::{Value, json};

use super::{
    place::Place,
    server::{At, Server},
    table,
};
use crate::failure::Failure;

/// Delete sandboxes, with their files
#[derive(clap::Args)]
pub(crate) struct Args {
    /// By id, name or scope
    #[arg(required_unless_present_any = ["app", "all"])]
    sandbox: Vec<String>,
    /// Those of this app
    #[arg(long, conflicts_with_all = ["sandbox", "all"])]
    app: Option<String>,
    /// Of the app, those of this chat alone
    #[arg(long, requires = "app")]
    chat: Option<String>,
    /// All of the tenant
    #[arg(long, conflicts_with = "sandbox")]
    all: bool,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    if args.app.is_some() || args.all {
        let which = json!({ "app": args.app, "chat": args.chat, "all": args.all });
        let gone: Value = server.post(At(&["v1", "sandboxes:delete"], &[]), &which).await?;
        table::print(&format!("{}\n", gone["sandboxes"]));
        return Ok(());
    }
    for word in &args.sandbox {
        let id = Place::of(word)?.find(server).await?;
        server.delete(At(&["v1", "sandboxes", id.as_str()], &[])).await?;
        table::print(&format!("{word}\n"));
    }
    Ok(())
}
