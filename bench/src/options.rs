//! What the command line says.

use std::path::PathBuf;

use clap::{Parser, builder::PossibleValuesParser};

use crate::{
    figure::{FIGURES, Figure},
    series::Effort,
};

/// Measures Cabana against floors in C and against its peers, all in one run.
///
/// Writes a table to standard output, and report.json and report.svg to target/bench. A missed goal is told, and is no
/// error; what could not be measured is one.
#[derive(Parser)]
#[command(name = "cabana-bench", version)]
pub(crate) struct Options {
    /// Fewer samples: a minute or so, and less sure
    #[arg(long)]
    quick: bool,
    /// Only these figures, with their floors and peers
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = names())]
    only: Vec<String>,
    /// Where sandboxes and files are made, in a new directory that is removed at the end [default: a fresh ext4 in a file]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where the report goes [default: target/bench/report.json]; the picture goes beside it
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
    /// Exit with 1 when a goal is missed
    #[arg(long)]
    pub(crate) strict: bool,
}

impl Options {
    pub(crate) fn effort(&self) -> Effort {
        if self.quick { Effort::Quick } else { Effort::Full }
    }

    pub(crate) fn figures(&self) -> Vec<&'static Figure> {
        let wanted = |figure: &&Figure| self.only.is_empty() || self.only.iter().any(|name| name == figure.name);
        FIGURES.iter().filter(wanted).collect()
    }
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(FIGURES.iter().map(|figure| figure.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_only_every_figure_is_measured() {
        let options = Options::try_parse_from(["cabana-bench"]).unwrap();
        assert_eq!(options.figures().len(), FIGURES.len());
    }

    #[test]
    fn only_takes_several_names() {
        let options = Options::try_parse_from(["cabana-bench", "--only", "floor.exec", "engine.exec"]).unwrap();
        let names: Vec<_> = options.figures().iter().map(|figure| figure.name).collect();
        assert_eq!(names, ["engine.exec", "floor.exec"]);
    }

    #[test]
    fn an_unknown_figure_is_refused() {
        assert!(Options::try_parse_from(["cabana-bench", "--only", "engine.exce"]).is_err());
    }
}
