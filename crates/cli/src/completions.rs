//! `cabana completions` and `cabana man`: what shells and readers of manuals want to know, from the verbs themselves.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use cabana_model::Code;
use clap::Command;
use clap_complete::Shell;

use crate::failure::Failure;

/// Print the completions for a shell
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cabana completions bash > /etc/bash_completion.d/cabana\n  \
                        cabana completions zsh > \"${fpath[1]}/_cabana\"")]
pub(crate) struct Completions {
    shell: Shell,
}

/// Write the manual pages into a directory
#[derive(clap::Args)]
pub(crate) struct Man {
    /// Where they go: one file for each verb
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Completions {
    pub(crate) fn print(&self, mut command: Command) -> ExitCode {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, "cabana", &mut text);
        // Whoever closed our output knows enough.
        let _ = std::io::stdout().write_all(&text);
        ExitCode::SUCCESS
    }
}

impl Man {
    pub(crate) fn write(&self, command: Command) -> ExitCode {
        match pages(&self.directory, command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let why = format!("writing to {}: {error}", self.directory.display());
                Failure::new(Code::PermissionDenied, why).with_hint("Name a directory that you may write to.").report(1)
            }
        }
    }
}

fn pages(directory: &Path, command: Command) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}
