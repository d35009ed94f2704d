//! `cabana stop`: an end that can be gone back on for sandboxes, and the end of a task.

use cabana_model::TaskId;
use serde_json::Value;

use super::{
    place::Place,
    server::{At, Server},
    table,
};
use crate::failure::Failure;

/// End the processes of sandboxes and keep their files, or end tasks
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sandboxes by id, name or scope; tasks by id
    #[arg(required = true, value_name = "SANDBOX|TASK")]
    which: Vec<String>,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    for word in &args.which {
        let _: Value = match word.parse::<TaskId>() {
            Ok(task) => server.post(At(&["v1", "tasks", &task.to_string(), "cancel"], &[]), &()).await?,
            Err(_) => {
                let id = Place::of(word)?.find(server).await?;
                server.post(At(&["v1", "sandboxes", id.as_str(), "stop"], &[]), &()).await?
            }
        };
        table::print(&format!("{word}\n"));
    }
    Ok(())
}
