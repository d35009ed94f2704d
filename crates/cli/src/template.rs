//! `cabana template`: the read-only bases of sandboxes, by name.

mod progress;

use std::{io::Write, path::PathBuf, process::ExitCode};

use cabana_engine::{Config, Engine, Overrides, Template, TemplateError, TemplateSource};
use cabana_sandbox::Error;
use serde::Serialize;

use self::progress::Bar;
use crate::{
    failure::Failure,
    run::{path_of, user_of, variables},
};

/// Make, list and remove templates
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Make a template
    #[command(after_help = "Examples:\n  cabana template add base --from debian:bookworm,git,python3\n  \
                            docker export CONTAINER | cabana template add image --from -\n  \
                            cabana template add mine --from ./rootfs.tar.zst --user me --workdir /src")]
    Add(Add),
    /// List the templates
    Ls {
        /// For programs: one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove a template that no sandbox uses
    Rm { name: String },
}

#[derive(clap::Args)]
struct Add {
    name: String,
    /// A directory, a tar (plain, .gz or .zst), `-` for a tar on standard input, or debian:SUITE[,PACKAGE…]
    #[arg(long, value_name = "SOURCE")]
    from: String,
    /// Who runs commands, unless they say otherwise
    #[arg(long)]
    user: Option<String>,
    /// Where commands start, unless they say otherwise
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// A variable for every command; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Let set-user-id programs, sudo above all, gain rights in its sandboxes
    #[arg(long)]
    sudo: bool,
}

pub(crate) fn main(args: Args, data: PathBuf) -> ExitCode {
    match start(args.verb, data) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(1),
    }
}

fn start(verb: Verb, data: PathBuf) -> Result<(), Failure> {
    let job = Job::new(verb)?;
    cabana_engine::enter_user_namespace()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Error::failed("starting the runtime", e))?;
    let engine = runtime.block_on(Engine::open(Config { spares: 0, ..Config::new(data) }))?;
    job.work(&engine)
}

/// A verb with its words checked, before anything is opened or made.
enum Job {
    Add { name: String, source: TemplateSource, wishes: Overrides },
    Ls { json: bool },
    Rm { name: String },
}

impl Job {
    fn new(verb: Verb) -> Result<Self, Failure> {
        Ok(match verb {
            Verb::Ls { json } => Self::Ls { json },
            Verb::Rm { name } => Self::Rm { name },
            Verb::Add(Add { name, from, user, workdir, env, sudo }) => Self::Add {
                name,
                source: from.parse()?,
                wishes: Overrides {
                    user: user.map(|user| user_of(&user)).transpose()?,
                    workdir: workdir.map(|dir| path_of("--workdir", &dir)).transpose()?,
                    env: variables(&env)?,
                    sudo,
                },
            },
        })
    }

    fn work(self, engine: &Engine) -> Result<(), Failure> {
        match self {
            Self::Add { name, source, wishes } => add(engine, &name, &source, &wishes),
            Self::Ls { json } => ls(engine, json),
            Self::Rm { name } => {
                engine.templates().rm(&name, &|name| engine.uses_template(name))?;
                if let Err(error) = engine.remove_unused_layers() {
                    eprintln!("warning: {name} is removed, but not the layers that nothing uses now: {error}");
                }
                Ok(())
            }
        }
    }
}

fn add(engine: &Engine, name: &str, source: &TemplateSource, wishes: &Overrides) -> Result<(), Failure> {
    let mut bar = Bar::start(name);
    let made = engine.templates().add(name, source, wishes, &mut |progress| bar.show(progress));
    bar.end(made.is_ok());
    made?;
    Ok(())
}

/// As programs read it. Of the variables only the names: values may be secrets.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    good: Option<Good<'a>>,
}

#[derive(Serialize)]
struct Good<'a> {
    user: String,
    workdir: String,
    env: Vec<&'a String>,
    made: &'a str,
    source: &'a str,
    layers: Vec<String>,
}

impl<'a> From<&'a Template> for Good<'a> {
    fn from(template: &'a Template) -> Self {
        let Template { layers, defaults, made, source, .. } = template;
        Self {
            user: defaults.user.to_string(),
            workdir: defaults.workdir.to_string(),
            env: defaults.env.keys().collect(),
            made,
            source,
            layers: layers.iter().map(ToString::to_string).collect(),
        }
    }
}

fn ls(engine: &Engine, json: bool) -> Result<(), Failure> {
    let templates = engine.templates().ls()?;
    let lines: Vec<Line<'_>> = templates
        .iter()
        .map(|(name, found)| Line {
            name,
            error: found.as_ref().err().map(ToString::to_string),
            good: found.as_ref().ok().map(Good::from),
        })
        .collect();
    let text = match json {
        true => serde_json::to_string_pretty(&lines).unwrap_or_default() + "\n",
        false => table(&lines),
    };
    // Whoever closed our output knows enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn table(lines: &[Line<'_>]) -> String {
    let mut rows = vec![["NAME", "USER", "WORKDIR", "MADE", "FROM"].map(str::to_owned)];
    rows.extend(lines.iter().map(|line| match (&line.good, &line.error) {
        (Some(good), _) => [line.name, &good.user, &good.workdir, good.made, good.source].map(str::to_owned),
        (None, why) => [line.name, "-", "-", "-", why.as_deref().unwrap_or("-")].map(str::to_owned),
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..4).map(width).collect();
    let line = |[name, user, workdir, made, from]: &[String; 5]| {
        let [a, b, c, d] = [widths[0], widths[1], widths[2], widths[3]];
        format!("{name:<a$}  {user:<b$}  {workdir:<c$}  {made:<d$}  {from}\n")
    };
    rows.iter().map(line).collect()
}

impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
