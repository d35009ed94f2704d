//! `cabana probe`: what a server of E2B's protocol has, whoever made it, and which SDKs can live with it.

mod target;
mod walk;

use std::process::ExitCode;

use cabana_e2b_wire::Generation;
use serde::Serialize;

use self::{target::Target, walk::Step};
use crate::{failure::Failure, remote::table};

/// Tell what a server of E2B's protocol has: of which generation it is, and what is missing
#[derive(clap::Args)]
#[command(
    after_help = "It makes sandboxes of the template, tries each route on them, and removes them. The key is the variable \
                        E2B_API_KEY.\n\nExamples:\n  cabana probe http://127.0.0.1:7070\n  \
                        cabana probe https://api.example.com --sandbox-url https://sandbox.example.com"
)]
pub(crate) struct Args {
    /// Of its control plane, as E2B_API_URL has it
    url: String,
    /// Where the agents of its sandboxes are, as E2B_SANDBOX_URL has it. Without it: below the domain that the server names, else the
    /// URL itself
    #[arg(long, value_name = "URL", env = "E2B_SANDBOX_URL")]
    sandbox_url: Option<String>,
    /// What its sandboxes are made from
    #[arg(long, default_value = "base")]
    template: String,
    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

const GENERATIONS: [Generation; 3] = [Generation::V2, Generation::Connect, Generation::Resume];

fn sdks(generation: Generation) -> &'static str {
    match generation {
        Generation::V2 => "2.51 and newer",
        Generation::Connect => "2.6 to 2.50",
        Generation::Resume => "2.0 to 2.5",
    }
}

/// What its SDKs cannot do without, and is not there.
fn missing(generation: Generation, steps: &[Step]) -> Vec<&'static str> {
    let ways: &[&str] = match generation {
        Generation::V2 => &["create_v2", "connect_v2"],
        Generation::Connect => &["create", "connect"],
        Generation::Resume => &["create", "timeout", "resume"],
    };
    let all = ways.iter().chain(&["show", "list", "kill", "agent", "command", "files"]);
    all.filter(|name| !has(steps, name)).copied().collect()
}

fn has(steps: &[Step], name: &str) -> bool {
    steps.iter().any(|step| step.name == name && step.is_there())
}

pub(crate) fn main(args: &Args) -> ExitCode {
    match look(args) {
        Ok(steps) => {
            let whole = |one: &Generation| missing(*one, &steps).is_empty();
            let found: Vec<_> = GENERATIONS.into_iter().filter(whole).map(sdks).collect();
            match args.json {
                true => in_json(&steps, &found),
                false => in_words(&steps),
            }
            if found.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(failure) => failure.report(1),
    }
}

fn look(args: &Args) -> Result<Vec<Step>, Failure> {
    let target = Target::new(&args.url, args.sandbox_url.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::bad(format!("cannot start: {error}")))?;
    runtime.block_on(walk::walk(target, &args.template))
}

fn in_json(steps: &[Step], sdks: &[&str]) {
    #[derive(Serialize)]
    struct Told<'a> {
        /// Whose SDKs find all that they need.
        sdks: &'a [&'a str],
        has_connect: bool,
        needs_fallback: bool,
        steps: &'a [Step],
    }
    let has_connect = has_connect(steps);
    table::json(&Told { sdks, has_connect, needs_fallback: !has_connect, steps });
}

fn has_connect(steps: &[Step]) -> bool {
    has(steps, "connect") || has(steps, "connect_v2")
}

fn in_words(steps: &[Step]) {
    let row = |step: &Step| [step.route.to_owned(), step.answer().to_owned(), step.note.clone().unwrap_or_default()];
    table::columns(["ROUTE", "THERE", "WHAT IT SAID"], steps.iter().map(row));
    table::print("\n");
    for generation in GENERATIONS {
        let missing = missing(generation, steps);
        let verdict = match missing.is_empty() {
            true => "all that they need is there".to_owned(),
            false => format!("missing: {}", missing.join(", ")),
        };
        table::print(&format!("SDKs {}: {verdict}\n", sdks(generation)));
    }
    let connect = match (has_connect(steps), has(steps, "show") && has(steps, "resume")) {
        (true, _) => "/connect is there: nobody needs a fallback",
        (false, true) => {
            "/connect is missing: look (GET /sandboxes/{id}), resume what is paused (POST /sandboxes/{id}/resume), and look again"
        }
        (false, false) => "/connect is missing, and so is what a fallback would need",
    };
    table::print(&format!("{connect}\n"));
}
