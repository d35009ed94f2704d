//! The flags of `serve`: one for each setting.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::{
    kind::Kind,
    resolve::Flags,
    table::{DATA, SETTINGS, Setting},
};

/// What was given on the command line, and the file that was named there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub(crate) flags: Flags,
    pub(crate) file: Option<PathBuf>,
}

/// All but the one that every verb has.
fn own() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().copied().filter(|setting| **setting != DATA)
}

fn argument(setting: &'static Setting) -> Arg {
    let mut help = format!("{} [env: {}]", setting.meaning, setting.variable);
    if let Some(default) = setting.default {
        help += &format!(" [default: {default}]");
    }
    let argument = Arg::new(setting.flag).long(setting.flag).value_name(setting.kind.placeholder()).help(help);
    match setting.kind {
        Kind::Switch => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Kind::List => argument.action(ArgAction::Append),
        _ => argument,
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config").long("config").value_name("FILE").value_parser(clap::value_parser!(PathBuf));
        let file = file.help(format!("The file with the settings, instead of {}", super::file::USUAL));
        command.arg(file).args(own().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Self::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        for setting in own() {
            if let Some(texts) = matches.get_many::<String>(setting.flag) {
                self.flags.insert(setting.flag, texts.cloned().collect::<Vec<_>>().join(","));
            }
        }
        Ok(())
    }
}
