//! `make bench`: what Cabana costs, against the least that the kernel asks for (floors in C) and against its peers, in
//! one run and in the same rhythm. Never a timed assertion: a missed goal is told.

mod crowd;
mod disk;
mod docker;
mod figure;
mod files;
mod floors;
mod http;
mod machine;
mod neighbour;
mod options;
mod picture;
mod progress;
mod report;
mod rhythm;
mod run;
mod sdk;
mod series;
mod server;
mod sleepers;
mod snapshots;
mod stats;
mod subject;
mod table;
mod template;
mod transfer;

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

use crate::{
    disk::Disk,
    figure::Figure,
    machine::Machine,
    options::Options,
    report::Report,
    run::Bench,
    series::{Effort, Pool},
};

/// How long the end of what the run left alive may take.
const CLOSE: Duration = Duration::from_secs(60);
const OUTPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench");

fn main() -> ExitCode {
    cabana_engine::helper_main();
    match measure(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cabana-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<ExitCode> {
    fs::create_dir_all(OUTPUT).with_context(|| format!("cannot make {OUTPUT}"))?;
    let output = fs::canonicalize(OUTPUT)?;
    let disk = match &options.data {
        Some(_) => None,
        None => Disk::new(&output).inspect_err(|error| eprintln!("without a disk of its own: {error:#}")).ok(),
    };
    let data = options.data.as_deref().or(disk.as_ref().map(Disk::path)).unwrap_or(&output);
    // A new directory in what was named, so that nothing else there can be removed at the end.
    let place = tempfile::Builder::new()
        .prefix("data-")
        .tempdir_in(data)
        .with_context(|| format!("cannot make a directory in {}", data.display()))?;
    let figures = options.figures();
    let mut machine = Machine::look(place.path())?;
    if disk.is_some() {
        machine.filesystem += ", fresh, on a loop device";
    }
    if !machine.optimised {
        eprintln!("This program was compiled without optimisation: run `make bench` for figures that count.");
    }
    let bench = Arc::new(Bench::new(&output.join("floor"), place.path())?);
    let runtime = Runtime::new()?;
    let pool = runtime.block_on(run(&bench, &figures, options.effort()));
    runtime.shutdown_timeout(CLOSE); // a floor that still runs is waited for, an engine that hangs is not
    drop(bench);
    let pool = pool?;
    machine.load_after = machine::load()?;
    let report = Report::new(&figures, &pool, machine);
    write(&report, options.json.as_deref().unwrap_or(&output.join("report.json")))?;
    print!("\n{}", table::table(&report));
    if let Err(error) = place.close() {
        eprintln!("the data directory could not be removed: {error}");
    }
    for why in pool.failures() {
        eprintln!("not measured: {why}");
    }
    let failed = !pool.failures().is_empty() || (options.strict && !report.goals_hold());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn run(bench: &Arc<Bench>, figures: &[&'static Figure], effort: Effort) -> Result<Pool> {
    // On a worker of the runtime, as in a server: out here each wake-up would cross threads.
    let mut tasks = JoinSet::new();
    let (worker, figures) = (bench.clone(), figures.to_vec());
    tasks.spawn(async move { worker.run(&figures, effort).await });
    let pool = tokio::select! {
        Some(ended) = tasks.join_next() => ended?,
        told = told_to_end() => Err(told.err().unwrap_or_else(|| anyhow!("interrupted"))),
    };
    tasks.shutdown().await;
    let closed = tokio::time::timeout(CLOSE, bench.close()).await;
    closed.context("it takes too long").flatten().context("what the run left alive could not be ended")?;
    pool
}

/// By the keyboard or by `kill`: sandboxes and the private dockerd would outlive a sudden end.
async fn told_to_end() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed?,
        _ = terminate.recv() => {}
    }
    Ok(())
}

fn write(report: &Report, json: &Path) -> Result<()> {
    let svg = json.with_extension("svg");
    let put =
        |path: &Path, text: String| fs::write(path, text).with_context(|| format!("cannot write {}", path.display()));
    put(json, serde_json::to_string_pretty(report)? + "\n")?;
    put(&svg, picture::picture(report))?;
    eprintln!("report: {}\npicture: {}", json.display(), svg.display());
    // Only where the converter happens to be: the picture is the SVG.
    let _ = Command::new("rsvg-convert").arg("--output").arg(json.with_extension("png")).arg(&svg).status();
    Ok(())
}
