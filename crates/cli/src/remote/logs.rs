//! `cabana logs`: what a call or a task said.

use cabana_model::{CallId, TaskId};
use reqwest::Method;
use serde_json::Value;

use super::{
    output::{Output, Stuck},
    server::{At, Server},
    sse::Events,
};
use crate::failure::Failure;

/// Show what a call or a task said
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A task (task_…) or a call (call_…)
    #[arg(value_name = "TASK|CALL")]
    which: String,
    /// Go on until it ends
    #[arg(short, long)]
    follow: bool,
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    let kind = match (args.which.parse::<TaskId>(), args.which.parse::<CallId>()) {
        (Ok(_), _) => "tasks",
        (_, Ok(_)) => "calls",
        _ => return Err(Failure::bad(format!("{:?} is neither a task (task_…) nor a call (call_…)", args.which))),
    };
    let path = ["v1", kind, &args.which];
    let row: Value = server.get(At(&path, &[])).await?;
    let shown = match args.follow || row["state"] != "running" {
        true => all(server, &path).await,
        false => as_far_as_now(server, &path).await,
    };
    match shown {
        Err(Stuck::Failed(failure)) => Err(failure),
        Ok(()) | Err(Stuck::NobodyReads) => Ok(()),
    }
}

/// To its end, in the order in which it was said.
async fn all(server: &Server, path: &[&str]) -> Result<(), Stuck> {
    let path = [path, &["stream"]].concat();
    let response = server.send(server.request(Method::GET, At(&path, &[]))).await?;
    let (mut events, mut output) = (Events::new(server, response), Output::ours()?);
    while let Some(event) = events.next().await? {
        match event.name.as_str() {
            "exit" => return Ok(()),
            "error" => return Err(event.refusal().into()),
            _ => drop(output.show(&event).await?),
        }
    }
    Ok(())
}

async fn as_far_as_now(server: &Server, path: &[&str]) -> Result<(), Stuck> {
    let (path, mut output) = ([path, &["output"]].concat(), Output::ours()?);
    for stream in ["stdout", "stderr"] {
        let mut response = server.send(server.request(Method::GET, At(&path, &[("stream", stream)]))).await?;
        while let Some(piece) = server.piece(&mut response).await? {
            output.write(stream == "stderr", &piece).await?;
        }
    }
    Ok(())
}
