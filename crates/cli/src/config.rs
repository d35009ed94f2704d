//! `cabana config`: what the server would do with what it is told, and who told it.

mod file;
mod flags;
mod kind;
mod named;
mod page;
pub(crate) mod reload;
mod resolve;
mod serving;
mod show;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use cabana_server::Tls;

pub(crate) use self::{
    flags::Given,
    serving::{Logging, Serving},
};
use self::{
    resolve::{Resolved, resolve},
    table::DATA,
};
use crate::{
    data,
    failure::{Failure, tell},
    remote,
};

/// Check and show the settings of the server
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Say what is wrong with the settings, and where
    Check {
        /// The file with the settings, instead of /etc/cabana/cabana.toml
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Show each value and where it comes from
    Show {
        /// The file with the settings, instead of /etc/cabana/cabana.toml
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// For programs: one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Let the server read its settings again, and say what has changed
    Reload {
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print the page about all settings, in Markdown
    Page,
}

pub(crate) fn main(args: Args, data: Option<PathBuf>) -> ExitCode {
    let of_file = |config| Given { file: config, ..Given::default() };
    let done = match args.verb {
        Verb::Check { config } => check(&of_file(config), data.as_ref()),
        Verb::Show { config, json } => settings(of_file(config), data.as_deref())
            .map(|resolved| if json { show::json(&resolved) } else { show::text(&resolved) }),
        Verb::Reload { json } => return remote::reload(json, data),
        Verb::Page => Ok(page::markdown()),
    };
    match done {
        Ok(text) => {
            // Whoever closed our output knows enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report(1),
    }
}

fn check(given: &Given, data: Option<&PathBuf>) -> Result<String, Failure> {
    let (_, serving) = read(given, data)?;
    if let Some((chain, key)) = &serving.tls {
        Tls::read(chain, key)?;
    }
    tell("The settings are good.");
    Ok(String::new())
}

/// What `cabana serve` does with this, and what each setting is.
fn read(given: &Given, data: Option<&PathBuf>) -> Result<(Resolved, Serving), Failure> {
    let resolved = settings(given.clone(), data.map(PathBuf::as_path))?;
    let of_settings = resolved.get(&DATA).and_then(|found| found.text.as_ref()).map(PathBuf::from);
    // As it was given: not every path is a text.
    let data = data::directory(data.cloned().or_else(data::of_variable).or(of_settings))?;
    let serving = Serving::new(&resolved, data).map_err(|wrong| told(&[wrong]))?;
    Ok((resolved, serving))
}

/// Where the usual file has the data directory.
pub(crate) fn data_of_file() -> Result<Option<PathBuf>, Failure> {
    let file = file::read(None);
    if !file.wrong.is_empty() {
        return Err(told(&file.wrong));
    }
    Ok(file.said.get(&DATA.key()).map(|said| PathBuf::from(&said.text)))
}

fn settings(given: Given, data: Option<&Path>) -> Result<Resolved, Failure> {
    let Given { mut flags, file } = given;
    if let Some(data) = data {
        flags.insert(DATA.flag, data.to_string_lossy().into_owned());
    }
    let text = |text: &OsStr| text.to_string_lossy().into_owned();
    let variables: BTreeMap<_, _> = std::env::vars_os().map(|(name, value)| (text(&name), text(&value))).collect();
    resolve(&flags, &variables, &file::read(file.as_deref())).map_err(|wrong| told(&wrong))
}

fn told(wrong: &[String]) -> Failure {
    Failure::bad(wrong.join("\n")).with_hint("Correct what is named; `cabana config show` shows all settings.")
}
