//! The report: the shape that others read (`report.json`), and the verdict on each goal.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use crate::{
    figure::{Figure, Goal, Unit},
    machine::Machine,
    series::Pool,
    stats::Summary,
};

#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) figures: Vec<Measured>,
    pub(crate) machine: Machine,
}

#[derive(Serialize)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) n: usize,
    pub(crate) floor_p50: Option<f64>,
    pub(crate) ratio_to_floor: Option<f64>,
    pub(crate) peers: BTreeMap<&'static str, Peer>,
    pub(crate) details: Details,
}

/// A peer's p50 in the figure's unit, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Peer {
    P50(f64),
    Missing(String),
}

#[derive(Serialize)]
pub(crate) struct Details {
    pub(crate) note: &'static str,
    /// What `floor_p50` is.
    pub(crate) floor: Option<&'static str>,
    pub(crate) goals: Vec<Verdict>,
    #[serde(flatten)]
    pub(crate) also: BTreeMap<&'static str, Summary>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) failed: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) goal: String,
    /// What the goal speaks of, as measured.
    pub(crate) value: Option<f64>,
    /// `None`: it could not be measured.
    pub(crate) holds: Option<bool>,
    /// Where the goal lies in the figure's unit, if that is one place on its scale.
    #[serde(skip)]
    pub(crate) mark: Option<f64>,
}

impl Report {
    pub(crate) fn new(figures: &[&Figure], pool: &Pool, machine: Machine) -> Self {
        Self { figures: figures.iter().map(|figure| measured(figure, pool)).collect(), machine }
    }

    pub(crate) fn goals_hold(&self) -> bool {
        self.figures.iter().flat_map(|figure| &figure.details.goals).all(|verdict| verdict.holds == Some(true))
    }
}

fn measured(figure: &Figure, pool: &Pool) -> Measured {
    let summary = |series| Summary::of(pool.samples(series)).map(|found| found.map(|sample| figure.unit.of(sample)));
    let subject = summary(figure.subject);
    let floor_p50 = figure.floor.as_ref().and_then(|floor| summary(floor.series)).map(|floor| floor.p50);
    let peers = figure.peers.iter().map(|(name, series)| {
        let missing = || pool.failure(*series).unwrap_or("not measured").to_owned();
        (*name, summary(*series).map_or_else(|| Peer::Missing(missing()), |peer| Peer::P50(peer.p50)))
    });
    let mut measured = Measured {
        name: figure.name,
        unit: figure.unit,
        p50: subject.map(|subject| subject.p50),
        p99: subject.map(|subject| subject.p99),
        n: subject.map_or(0, |subject| subject.n),
        floor_p50,
        ratio_to_floor: ratio(subject.map(|subject| subject.p50), floor_p50),
        peers: peers.collect(),
        details: Details {
            note: figure.note,
            floor: figure.floor.as_ref().map(|floor| floor.name),
            goals: Vec::new(),
            also: figure.also.iter().filter_map(|(name, series)| Some((*name, summary(*series)?))).collect(),
            failed: figure.series().filter_map(|series| pool.failure(series).map(str::to_owned)).collect(),
        },
    };
    measured.details.goals = figure.goals.iter().map(|goal| verdict(*goal, &measured)).collect();
    measured
}

fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    Some(of? / to?)
}

fn verdict(goal: Goal, figure: &Measured) -> Verdict {
    let (value, bound) = match goal {
        Goal::RatioAtMost(bound) | Goal::RatioAtLeast(bound) => (figure.ratio_to_floor, bound),
        Goal::AtMost(bound) => (figure.p50, bound),
        Goal::TailAtMost(bound) => (ratio(figure.p99, figure.p50), bound),
        Goal::TimesFasterThan(peer, bound) => (ratio(figure.peer(peer), figure.p50), bound),
        Goal::AlsoAtMost(name, bound) => {
            (ratio(figure.details.also.get(name).map(|also| also.p50), figure.floor_p50), bound)
        }
    };
    let holds = value.map(|value| match goal {
        Goal::RatioAtLeast(_) | Goal::TimesFasterThan(..) => value >= bound,
        Goal::RatioAtMost(_) | Goal::AtMost(_) | Goal::TailAtMost(_) | Goal::AlsoAtMost(..) => value <= bound,
    });
    let mark = match goal {
        Goal::RatioAtMost(bound) | Goal::RatioAtLeast(bound) => figure.floor_p50.map(|floor| floor * bound),
        Goal::AtMost(bound) => Some(bound),
        Goal::TailAtMost(_) | Goal::TimesFasterThan(..) | Goal::AlsoAtMost(..) => None,
    };
    Verdict { goal: goal.to_string(), value, holds, mark }
}

impl Measured {
    fn peer(&self, name: &str) -> Option<f64> {
        match self.peers.get(name)? {
            Peer::P50(value) => Some(*value),
            Peer::Missing(_) => None,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtMost(bound) => write!(f, "p50 at most {bound} × floor"),
            Self::RatioAtLeast(bound) => write!(f, "at least {bound} × floor"),
            Self::AtMost(bound) => write!(f, "at most {bound}"),
            Self::TailAtMost(bound) => write!(f, "p99 at most {bound} × p50"),
            Self::TimesFasterThan(peer, 1.0) => write!(f, "faster than {peer}"),
            Self::TimesFasterThan(peer, times) => write!(f, "{times} × faster than {peer}"),
            Self::AlsoAtMost(name, bound) => write!(f, "{name} at most {bound} × floor"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{figure::FIGURES, series::Series};

    /// A run in which everything was measured but docker.
    pub(crate) fn pool_without_docker() -> Pool {
        let mut pool = Pool::default();
        let samples: &[(Series, &[f64])] = &[
            (Series::ForkExec, &[0.5e6]),
            (Series::FloorCreate, &[1.0e6, 1.25e6, 1.5e6]),
            (Series::CreateExec, &[1.0e6, 2.0e6, 30.0e6]),
            (Series::Bwrap, &[4.8e6]),
            (Series::FloorExec, &[0.5e6]),
            (Series::Exec, &[0.7e6]),
            (Series::PlainRead, &[0.1e9]),
            (Series::Read, &[0.11e9]),
            (Series::PlainSmall, &[200e6]),
            (Series::SmallReplace, &[700e6]),
            (Series::SmallUnpack, &[250e6]),
            (Series::CrowdMemory, &[350.0]),
        ];
        for (series, samples) in samples {
            pool.add(*series, samples);
        }
        pool.fail(Series::DockerExec, "docker is not installed".into());
        pool
    }

    pub(crate) fn report() -> Report {
        Report::new(&FIGURES.iter().collect::<Vec<_>>(), &pool_without_docker(), Machine::default())
    }

    fn figure<'a>(report: &'a Report, name: &str) -> &'a Measured {
        report.figures.iter().find(|figure| figure.name == name).unwrap()
    }

    #[test]
    fn the_json_has_the_promised_shape() {
        let json: serde_json::Value = serde_json::to_value(report()).unwrap();
        let create = &json["figures"][0];
        assert_eq!(create["name"], "engine.create_exec");
        assert_eq!(create["unit"], "ms");
        assert_eq!((create["p50"].as_f64(), create["p99"].as_f64()), (Some(2.0), Some(30.0)));
        assert_eq!(create["n"], 3);
        assert_eq!(create["floor_p50"], 1.25);
        assert_eq!(create["ratio_to_floor"], 1.6);
        assert_eq!(create["peers"]["bwrap"], 4.8);
        let small = json["figures"].as_array().unwrap().iter().find(|f| f["name"] == "engine.small_files").unwrap();
        assert_eq!(small["details"]["unpack"]["p50"], 250.0);
    }

    #[test]
    fn a_peer_that_is_not_there_says_why() {
        let json: serde_json::Value = serde_json::to_value(report()).unwrap();
        let exec = json["figures"].as_array().unwrap().iter().find(|f| f["name"] == "engine.exec").unwrap();
        assert_eq!(exec["peers"]["docker_exec"], "docker is not installed");
        assert_eq!(exec["details"]["failed"][0], "docker is not installed");
    }

    #[test]
    fn goals_are_judged_by_what_was_measured() {
        let report = report();
        let holds = |name: &str| -> Vec<_> { figure(&report, name).details.goals.iter().map(|v| v.holds).collect() };
        assert_eq!(holds("engine.create_exec"), [Some(true), Some(true), Some(false)]);
        assert_eq!(holds("engine.exec"), [Some(true), None], "without docker there is no verdict");
        assert_eq!(holds("engine.read_256m"), [Some(true)]);
        assert_eq!(holds("engine.small_files"), [Some(false), Some(true)]);
        assert_eq!(holds("engine.kib_at_1000"), [Some(true)]);
        assert_eq!(holds("engine.burst_100"), [None]);
        assert!(!report.goals_hold());
    }

    #[test]
    fn a_throughput_is_held_against_plain() {
        let read = &report();
        let read = figure(read, "engine.read_256m");
        assert!((read.ratio_to_floor.unwrap() - 0.909).abs() < 0.001);
        assert!((read.details.goals[0].mark.unwrap() - 2560.0 * 0.85).abs() < 1e-6);
    }
}
