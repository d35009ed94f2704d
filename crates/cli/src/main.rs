//! The binary `cabana`: wires the engine to the command line. One file a verb.

mod amounts;
mod completions;
mod config;
mod data;
mod doctor;
mod failure;
mod probe;
mod remote;
mod restore;
mod run;
mod serve;
mod template;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};

/// Gives a command, or every conversation of an agent, a Linux sandbox of its own.
#[derive(Parser)]
#[command(name = "cabana", version, arg_required_else_help = true)]
struct Cli {
    /// Where layers, templates and sandboxes lie. Without it: the variable CABANA_DATA, else /var/lib/cabana as root, else
    /// $XDG_DATA_HOME/cabana
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(Box<run::Args>),
    Serve(serve::Args),
    Template(template::Args),
    Doctor(doctor::Args),
    Config(config::Args),
    #[command(flatten)]
    Remote(remote::Verb),
    Restore(restore::Args),
    Probe(probe::Args),
    Completions(completions::Completions),
    Man(completions::Man),
}

fn main() -> ExitCode {
    // First of all: this may be the start of one of the engine's own processes.
    cabana_engine::helper_main();
    let Cli { data, verb } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match verb {
        Verb::Serve(args) => {
            usual_modes();
            serve::main(args, data)
        }
        Verb::Config(args) => config::main(args, data),
        Verb::Probe(args) => probe::main(&args),
        Verb::Remote(verb) => remote::main(verb, data),
        Verb::Completions(args) => args.print(Cli::command()),
        Verb::Man(args) => args.write(Cli::command()),
        Verb::Run(args) => on_data(data, |data| run::main(*args, data)),
        Verb::Template(args) if data.is_none() && remote::has_templates() => remote::templates(args),
        Verb::Template(args) => on_data(data, |data| template::main(args, data)),
        Verb::Restore(args) => on_data(data, |data| restore::main(&args, &data)),
        Verb::Doctor(args) => on_data(data, |data| doctor::main(&args, &data)),
    }
}

/// For what works on the data directory itself. Whoever is root is asked before a user namespace makes everybody root.
fn on_data(given: Option<PathBuf>, work: impl FnOnce(PathBuf) -> ExitCode) -> ExitCode {
    usual_modes();
    match data::of_machine(given) {
        Ok(data) => work(data),
        Err(failure) => failure.report(failure::OURS),
    }
}

/// What is made for sandboxes must be open to the users inside, whatever whoever started us wants for its own files. What is
/// nobody else's business is made with a mode of its own.
fn usual_modes() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
}

/// Help is no error. Wrong use of `run` must not look like an exit code of the command that was to run.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let verb = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    match (error.use_stderr(), verb.as_deref()) {
        (false, _) => ExitCode::SUCCESS,
        (true, Some("run" | "exec" | "shell")) => ExitCode::from(failure::OURS),
        (true, _) => ExitCode::from(2),
    }
}
