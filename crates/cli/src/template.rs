//! `cabana template`: the read-only bases of sandboxes, by name.

mod build;
mod progress;
mod recipe;
mod wheels;

use std::{path::PathBuf, process::ExitCode};

use cabana_engine::{Config, Engine, TemplateSource};
use cabana_sandbox::{Error, Overrides, Service, Template};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use self::progress::Bar;
use crate::{
    failure::{Failure, plain},
    remote::table,
    run::{path_of, user_of, variables},
};

/// Make, list and remove templates: of this machine, or of the server that CABANA_URL names
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Make a template
    #[command(after_help = "Examples:\n  cabana template add base --from debian:bookworm,git,python3\n  \
                            docker export CONTAINER | cabana template add image --from -\n  \
                            cabana template add mine --from ./rootfs.tar.zst --user me --workdir /src\n  \
                            docker save python:3.12 -o python.tar && cabana template add python --from docker-archive:python.tar\n\n\
                            Of an image, user, working directory and variables become the template's, where nothing else is\n\
                            said here. Its entry point and its command are left aside: --start says what runs.")]
    Add(Add),
    /// Make a template by a recipe: what E2B's SDKs expect of their `base`, and of their code interpreter
    #[command(after_help = "Examples:\n  cabana template build base\n  cabana template build code-interpreter\n  \
                            cabana template build base --name mine")]
    Build(Build),
    /// List the templates
    Ls {
        /// For programs: one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show one template
    Inspect {
        name: String,
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove a template that no sandbox uses
    Rm { name: String },
}

#[derive(clap::Args)]
pub(crate) struct Add {
    pub(crate) name: String,
    /// A directory, a tar (plain, .gz or .zst), `-` for a tar on standard input, debian:SUITE[,PACKAGE…], oci:PATH for an OCI
    /// image layout (a directory or a tar), or docker-archive:PATH for what `docker save` writes. A server takes tars alone
    #[arg(long, value_name = "SOURCE")]
    pub(crate) from: String,
    /// Which image, where oci:PATH or docker-archive:PATH has several
    #[arg(long = "ref", value_name = "NAME")]
    pub(crate) reference: Option<String>,
    /// Who runs commands, unless they say otherwise
    #[arg(long)]
    pub(crate) user: Option<String>,
    /// Where commands start, unless they say otherwise
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// A variable for every command; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Let set-user-id programs, sudo above all, gain rights in its sandboxes
    #[arg(long)]
    pub(crate) sudo: bool,
    /// A command for the shell that runs in its sandboxes from their start on, if it is E2B's SDKs that make them
    #[arg(long, value_name = "CMD")]
    pub(crate) start: Option<String>,
    /// A command for the shell that succeeds once what --start began is there
    #[arg(long, value_name = "CMD", requires = "start")]
    pub(crate) ready: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct Build {
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(recipe::names()))]
    pub(crate) recipe: String,
    /// What the template is called, instead of what the recipe says
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Replace a template of that name. Sandboxes that were made from it stay what they are
    #[arg(long)]
    pub(crate) force: bool,
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
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Error::failed("starting the runtime", e))?;
    let engine = runtime.block_on(Engine::open(Config { spares: 0, ..Config::new(data) }))?;
    job.work(&engine, &runtime)
}

/// A verb with its words checked, before anything is opened or made.
enum Job {
    Add { name: String, source: TemplateSource, wishes: Overrides },
    Build(Build),
    Ls { json: bool },
    Inspect { name: String, json: bool },
    Rm { name: String },
}

impl Job {
    fn new(verb: Verb) -> Result<Self, Failure> {
        Ok(match verb {
            Verb::Build(build) => Self::Build(build),
            Verb::Ls { json } => Self::Ls { json },
            Verb::Inspect { name, json } => Self::Inspect { name, json },
            Verb::Rm { name } => Self::Rm { name },
            Verb::Add(Add { name, from, reference, user, workdir, env, sudo, start, ready }) => Self::Add {
                name,
                source: source(&from, reference)?,
                wishes: Overrides {
                    user: user.map(|user| user_of(&user)).transpose()?,
                    workdir: workdir.map(|dir| path_of("--workdir", &dir)).transpose()?,
                    env: variables(&env)?,
                    sudo,
                    service: start.map(|start| Service { start, ready }),
                },
            },
        })
    }

    fn work(self, engine: &Engine, runtime: &Runtime) -> Result<(), Failure> {
        match self {
            Self::Add { name, source, wishes } => add(engine, &name, &source, &wishes),
            Self::Build(Build { recipe, name, force }) => runtime.block_on(async {
                let built = build::build(engine, &recipe, name, force).await;
                engine.close().await;
                built
            }),
            Self::Ls { json } => ls(engine, json),
            Self::Inspect { name, json } => {
                show(&of(&engine.templates().get(&name)?), json);
                Ok(())
            }
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

fn source(from: &str, reference: Option<String>) -> Result<TemplateSource, Error> {
    let source: TemplateSource = from.parse()?;
    match reference {
        Some(name) => source.with_reference(name),
        None => Ok(source),
    }
}

fn add(engine: &Engine, name: &str, source: &TemplateSource, wishes: &Overrides) -> Result<(), Failure> {
    let mut bar = Bar::start(name);
    let made = engine.templates().add(name, source, wishes, &mut |progress| bar.show(progress));
    bar.end(made.is_ok());
    made?;
    Ok(())
}

/// As a server describes it, for programs and for the tables. Of the variables only the names: values may be secrets.
fn of(template: &Template) -> Value {
    let Template { name, layers, defaults, sudo, service, made, source } = template;
    json!({
        "name": name,
        "user": defaults.user.to_string(),
        "workdir": defaults.workdir.to_string(),
        "env": defaults.env.keys().collect::<Vec<_>>(),
        "sudo": sudo,
        "start": service.as_ref().map(|service| &service.start),
        "ready": service.as_ref().and_then(|service| service.ready.as_ref()),
        "made_at": made,
        "source": source,
        "layers": layers.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn ls(engine: &Engine, json: bool) -> Result<(), Failure> {
    let one = |(name, found): (String, Result<Template, Error>)| match found {
        Ok(template) => of(&template),
        Err(error) => json!({ "name": name, "error": error.to_string() }),
    };
    show_all(&engine.templates().ls()?.into_iter().map(one).collect::<Vec<_>>(), json);
    Ok(())
}

pub(crate) fn show_all(templates: &[Value], json: bool) {
    if json {
        return table::json(&templates);
    }
    table::columns(
        ["NAME", "USER", "WORKDIR", "MADE", "FROM"],
        templates.iter().map(|template| {
            let [name, user, workdir, made] = ["name", "user", "workdir", "made_at"].map(|part| text(&template[part]));
            let last = if template["error"].is_null() { &template["source"] } else { &template["error"] };
            [name, user, workdir, made, text(last)]
        }),
    );
}

pub(crate) fn show(template: &Value, json: bool) {
    if json {
        return table::json(template);
    }
    let parts = ["name", "user", "workdir", "env", "sudo", "start", "ready", "made_at", "source", "layers", "error"];
    let there = parts.into_iter().filter(|part| !template[part].is_null());
    there.for_each(|part| table::print(&format!("{part:<8}  {}\n", plain(&text(&template[part])))));
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}
