//! `cabana ledger`: the record of everything, and whether it is whole.

use std::path::{Path, PathBuf};

use cabana_model::Code;
use cabana_store::{
    Head, LedgerRow,
    ledger::{Broken, verify},
};
use serde::Deserialize;

use super::{
    server::{At, Server},
    table,
};
use crate::failure::{Failure, tell};

/// Show and check the record of everything
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the rows, the newest last
    Ls {
        /// Those after this number; without it, the newest
        #[arg(long, value_name = "NUMBER")]
        after: Option<u64>,
        /// At most so many
        #[arg(long, value_name = "NUMBER", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// For programs: one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Read all rows and check that none was changed, moved or left out
    Verify {
        /// What `cabana ledger head` printed once: shows that the end was not cut off since
        #[arg(long, value_name = "FILE")]
        head: Option<PathBuf>,
    },
    /// Print the newest row's number and hash, to be kept elsewhere
    Head,
}

#[derive(Deserialize)]
struct Rows {
    rows: Vec<LedgerRow>,
}

#[derive(Deserialize)]
struct Tip {
    head: Option<Head>,
}

const PAGE: u32 = 1000;

pub(super) async fn work(args: Args, server: &Server) -> Result<(), Failure> {
    match args.verb {
        Verb::Ls { after, limit, json } => list(after, limit, json, server).await,
        Verb::Verify { head } => {
            let head = head.as_deref().map(kept).transpose()?;
            let tip = whole(server, head.as_ref()).await?;
            let kept = if head.is_some() { ", and nothing was cut off since the head was kept" } else { "" };
            tell(&format!("The ledger is whole: {} rows{kept}.", tip.seq));
            Ok(())
        }
        Verb::Head => {
            table::print(&(serde_json::to_string(&tip(server).await?).unwrap_or_default() + "\n"));
            Ok(())
        }
    }
}

async fn tip(server: &Server) -> Result<Head, Failure> {
    let tip: Tip = server.get(At(&["v1", "ledger", "head"], &[])).await?;
    Ok(tip.head.unwrap_or_default())
}

fn kept(path: &Path) -> Result<Head, Failure> {
    let bad = |why: &dyn std::fmt::Display| Failure::bad(format!("the head in {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(&error))?;
    serde_json::from_str(&text).map_err(|error| bad(&error))
}

async fn rows(server: &Server, after: u64, limit: u32) -> Result<Vec<LedgerRow>, Failure> {
    let (after, limit) = (after.to_string(), limit.to_string());
    let rows: Rows = server.get(At(&["v1", "ledger"], &[("after", &after), ("limit", &limit)])).await?;
    Ok(rows.rows)
}

/// A page at a time: a ledger may be longer than the memory. What the server says about it counts for nothing.
async fn whole(server: &Server, head: Option<&Head>) -> Result<Head, Failure> {
    let mut tip = Head::default();
    loop {
        let page = rows(server, tip.seq, PAGE).await?;
        let (last, from) = (page.is_empty(), tip.clone());
        // A kept head says something about the page that it lies in, and about the end.
        let reach = from.seq..=from.seq + page.len() as u64;
        let here = head.filter(|head| last || reach.contains(&head.seq));
        tip = verify(page.into_iter(), Some(from), here).map_err(|broken| told(&broken))?;
        if last {
            return Ok(tip);
        }
    }
}

fn told(broken: &Broken) -> Failure {
    let hint = "Somebody or something else than Cabana wrote to its database: compare it with your backups.";
    Failure::new(Code::Internal, format!("the ledger is not whole: {broken}")).with_hint(hint)
}

async fn list(after: Option<u64>, limit: u32, json: bool, server: &Server) -> Result<(), Failure> {
    let after = match after {
        Some(after) => after,
        None => tip(server).await?.seq.saturating_sub(limit.into()),
    };
    let rows = rows(server, after, limit).await?;
    if json {
        table::json(&rows);
        return Ok(());
    }
    table::columns(
        ["SEQ", "TIME", "VERB", "SANDBOX", "OUTCOME", "EXIT", "MS", "CALL", "COMMAND"],
        rows.iter().map(|row| {
            [
                row.seq.to_string(),
                row.time.to_string(),
                row.verb.clone(),
                row.sandbox.as_ref().map_or("-".to_owned(), ToString::to_string),
                row.outcome.clone(),
                row.exit.map_or("-".to_owned(), |exit| exit.to_string()),
                row.duration_ms.to_string(),
                row.call.to_string(),
                table::line(&row.argv),
            ]
        }),
    );
    Ok(())
}
