//! `cabana rm`: sandboxes, with their files.

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
    #[arg(required = true)]
    sandbox: Vec<String>,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    for word in &args.sandbox {
        let id = Place::of(word)?.find(server).await?;
        server.delete(At(&["v1", "sandboxes", id.as_str()], &[])).await?;
        table::print(&format!("{word}\n"));
    }
    Ok(())
}
