//! `cabana ledger`: the record of everything, and whether it is whole.

use std::path::{Path, PathBuf};

use cabana_model::Code;
use cabana_store::{
    Dropped, Head, LedgerRow,
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
    dropped: Option<Dropped>,
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
            let Whole { tip, dropped } = whole(server, head.as_ref()).await?;
            let before = dropped.as_ref().map_or(0, |dropped| dropped.upto.seq);
            let kept = match &head {
                None => "",
                Some(head) if head.seq < before => ", but the row of the head that was kept is dropped since",
                Some(_) => ", and nothing was cut off since the head was kept",
            };
            tell(&format!("The ledger is whole: {} rows{kept}.", tip.seq - before));
            if let Some(dropped) = dropped {
                tell(&format!("Those up to {before} were dropped by {}, as its rows say.", dropped.at));
            }
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

async fn rows(server: &Server, after: u64, limit: u32) -> Result<Rows, Failure> {
    let (after, limit) = (after.to_string(), limit.to_string());
    server.get(At(&["v1", "ledger"], &[("after", &after), ("limit", &limit)])).await
}

struct Whole {
    tip: Head,
    /// What it begins after.
    dropped: Option<Dropped>,
}

/// A page at a time: a ledger may be longer than the memory. What the server says about it counts for nothing.
async fn whole(server: &Server, head: Option<&Head>) -> Result<Whole, Failure> {
    let mut whole = Whole { tip: Head::default(), dropped: None };
    let mut said = true;
    loop {
        let Rows { rows: page, dropped } = rows(server, whole.tip.seq, PAGE).await?;
        // It begins after what was dropped, perhaps while we read. That has to be on record.
        if let Some(dropped) = dropped.filter(|dropped| dropped.upto.seq > whole.tip.seq) {
            whole.tip = dropped.upto.clone();
            (whole.dropped, said) = (Some(dropped), false);
        }
        said |= whole.dropped.as_ref().is_some_and(|dropped| page.iter().any(|row| dropped.is_said_by(row)));
        let (last, from) = (page.is_empty(), whole.tip.clone());
        // A kept head says something about the page that it lies in, and about the end.
        let reach = from.seq..=from.seq + page.len() as u64;
        let here = head.filter(|head| last || reach.contains(&head.seq));
        whole.tip = verify(page.into_iter(), Some(from), here).map_err(|broken| told(&broken))?;
        match whole.dropped.as_ref().filter(|_| !said) {
            Some(dropped) if last => return Err(told(&Broken::Unsaid { after: dropped.upto.seq })),
            _ if last => return Ok(whole),
            _ => {}
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
    let Rows { rows, .. } = rows(server, after, limit).await?;
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
