//! `cabana doctor`: what this machine can enforce, what follows, and what to do.

use std::{io::Write, path::Path, process::ExitCode};

use cabana_engine::host::{self, Facts, Finding, State};
use cabana_model::Code;
use serde::Serialize;

use crate::failure::{Failure, OURS};

/// Say what this machine can enforce and what not, and what to do about it
///
/// Each thing is tried for real. The exit code is 0 when sandboxes can run here, perhaps with less, and 1 when not.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    can_run: bool,
    findings: &'a [Finding],
    facts: &'a Facts,
}

pub(crate) fn main(args: &Args, data: &Path) -> ExitCode {
    let facts = match host::gather(data) {
        Ok(facts) => facts,
        Err(error) => {
            let why = format!("the facts about this machine cannot be read from /proc: {error}");
            return Failure::new(Code::HostUnsupported, why).report(OURS);
        }
    };
    let findings = host::findings(&facts);
    let can_run = host::can_run(&findings);
    let text = match args.json {
        true => {
            serde_json::to_string_pretty(&Report { can_run, findings: &findings, facts: &facts }).unwrap_or_default()
                + "\n"
        }
        false => text(&findings, can_run),
    };
    // Whoever closed our output knows enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(u8::from(!can_run))
}

fn text(findings: &[Finding], can_run: bool) -> String {
    let width = findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let state = match finding.state {
            State::Ok => "ok",
            State::Lost => "lost",
            State::Missing => "missing",
        };
        text += &format!("{state:<8} {:<width$}  {}\n", finding.topic, finding.found);
        let indent = " ".repeat(8 + 1 + width + 2);
        if !finding.follows.is_empty() {
            text += &format!("{indent}{}\n", finding.follows);
        }
        for todo in &finding.todo {
            text += &format!("{indent}-> {todo}\n");
        }
    }
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    text += &match (can_run, count(State::Lost), count(State::Missing)) {
        (true, 0, _) => "\nSandboxes can run here, with all walls and limits.\n".to_owned(),
        (true, lost, _) => format!("\nSandboxes can run here. Marked as lost: {lost}.\n"),
        (false, _, missing) => format!("\nNo sandbox can run here yet. Marked as missing: {missing}.\n"),
    };
    text
}
