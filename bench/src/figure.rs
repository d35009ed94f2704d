//! The figures by name: which series each is made of, what it is held against, and its goals.

use serde::Serialize;

use crate::{neighbour::Takes, series::Series};

pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) subject: Series,
    pub(crate) floor: Option<Floor>,
    pub(crate) peers: &'static [(&'static str, Series)],
    /// Told beside it, in the same unit.
    pub(crate) also: &'static [(&'static str, Series)],
    pub(crate) goals: &'static [Goal],
    pub(crate) note: &'static str,
}

pub(crate) struct Floor {
    pub(crate) name: &'static str,
    pub(crate) series: Series,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    #[serde(rename = "ms")]
    Ms,
    #[serde(rename = "MiB/s")]
    MibPerSecond,
    #[serde(rename = "KiB")]
    Kib,
    #[serde(rename = "%")]
    Percent,
}

/// How large the file of the throughput figures is.
pub(crate) const LARGE_MIB: u64 = 256;

impl Unit {
    /// From a sample. A throughput's p99 is that of the slow end, since the time is ranked, not the rate.
    pub(crate) fn of(self, sample: f64) -> f64 {
        match self {
            Self::Ms => sample / 1e6,
            Self::MibPerSecond => LARGE_MIB as f64 / (sample / 1e9),
            Self::Kib | Self::Percent => sample,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::MibPerSecond => "MiB/s",
            Self::Kib => "KiB",
            Self::Percent => "%",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// p50 against the floor's.
    RatioAtMost(f64),
    RatioAtLeast(f64),
    AtMost(f64),
    /// p99 against p50.
    TailAtMost(f64),
    /// The peer's p50 is at least so many times this one.
    TimesFasterThan(&'static str, f64),
    /// What is told beside it, against the floor.
    AlsoAtMost(&'static str, f64),
}

impl Figure {
    /// All that must be measured for it.
    pub(crate) fn series(&self) -> impl Iterator<Item = Series> {
        let floor = self.floor.iter().map(|floor| floor.series);
        let beside = self.peers.iter().chain(self.also).map(|(_, series)| *series);
        std::iter::once(self.subject).chain(floor).chain(beside)
    }
}

const BWRAP: &[(&str, Series)] = &[("bwrap", Series::Bwrap)];
const FLOOR_CREATE: Option<Floor> = Some(Floor { name: "floor.create", series: Series::FloorCreate });
const AS_CREATE: &[Goal] = &[Goal::RatioAtMost(2.0), Goal::TimesFasterThan("bwrap", 1.0), Goal::TailAtMost(10.0)];
const LARGE_NOTE: &str = "256 MiB in 256 KiB pieces; warm page cache, no fsync. The p99 is that of the slow end.";

const LIMITED_NOTE: &str =
    "as the one without limits, but with 1 processor, 512 MiB, 256 processes and the public network";

pub(crate) const FIGURES: &[Figure] = &[
    Figure {
        name: "engine.create_exec",
        unit: Unit::Ms,
        subject: Series::CreateExec,
        floor: FLOOR_CREATE,
        peers: BWRAP,
        also: &[],
        goals: AS_CREATE,
        note: "create, ready, first /bin/true to its exit; back to back; destroy is not measured",
    },
    Figure {
        name: "engine.create_exec_spaced",
        unit: Unit::Ms,
        subject: Series::CreateExecSpaced,
        floor: Some(Floor { name: "floor.create, one every 200 ms", series: Series::FloorCreateSpaced }),
        peers: &[("bwrap", Series::BwrapSpaced)],
        also: &[],
        goals: AS_CREATE,
        note: "as engine.create_exec, one every 200 ms",
    },
    Figure {
        name: "engine.exec",
        unit: Unit::Ms,
        subject: Series::Exec,
        floor: Some(Floor { name: "floor.exec", series: Series::FloorExec }),
        peers: &[
            ("bwrap", Series::Bwrap),
            ("docker_exec", Series::DockerExec),
            ("docker_exec_api", Series::DockerExecApi),
        ],
        also: &[("spaced", Series::ExecSpaced), ("floor_spaced", Series::FloorExecSpaced)],
        goals: &[Goal::RatioAtMost(1.5), Goal::TimesFasterThan("docker_exec", 50.0)],
        note: "/bin/true in a live sandbox, to its exit; docker_exec_api is docker exec without its command line program",
    },
    Figure {
        name: "engine.wake_exec",
        unit: Unit::Ms,
        subject: Series::WakeExec,
        floor: FLOOR_CREATE,
        peers: BWRAP,
        also: &[],
        goals: AS_CREATE,
        note: "start after stop, then the first /bin/true to its exit; stop is not measured",
    },
    Figure {
        name: "http.exec",
        unit: Unit::Ms,
        subject: Series::HttpExec,
        floor: Some(Floor { name: "floor.exec", series: Series::FloorExec }),
        peers: &[("docker_exec", Series::DockerExec)],
        also: &[],
        goals: &[Goal::RatioAtMost(3.0), Goal::TimesFasterThan("docker_exec", 50.0)],
        note: "POST /v1/exec of /bin/true in a live sandbox, on a connection that is kept; recorded in the ledger",
    },
    Figure {
        name: "http.create_exec",
        unit: Unit::Ms,
        subject: Series::HttpCreateExec,
        floor: FLOOR_CREATE,
        peers: BWRAP,
        also: &[],
        goals: &[Goal::RatioAtMost(3.0), Goal::TimesFasterThan("bwrap", 1.0)],
        note: "POST /v1/exec of /bin/true in a scope without a sandbox; public network; delete is not measured",
    },
    Figure {
        name: "http.create_exec_spaced",
        unit: Unit::Ms,
        subject: Series::HttpCreateExecSpaced,
        floor: Some(Floor { name: "floor.create, one every 200 ms", series: Series::FloorCreateSpaced }),
        peers: &[("bwrap", Series::BwrapSpaced)],
        also: &[],
        goals: &[Goal::RatioAtMost(3.0), Goal::TimesFasterThan("bwrap", 1.0)],
        note: "as http.create_exec, one every 200 ms",
    },
    Figure {
        name: "e2b.create_exec",
        unit: Unit::Ms,
        subject: Series::SdkCreateExec,
        floor: Some(Floor { name: "the SDK alone", series: Series::SdkAlone }),
        peers: &[],
        also: &[],
        // What is ours of it is no more than what is the SDK's.
        goals: &[Goal::RatioAtMost(2.0)],
        note: "Sandbox.create() and commands.run(\"true\") by E2B's Python SDK; the floor is the same against a server whose answers are ready",
    },
    Figure {
        name: "http.wake_exec",
        unit: Unit::Ms,
        subject: Series::HttpWakeExec,
        floor: FLOOR_CREATE,
        peers: BWRAP,
        also: &[],
        goals: &[Goal::RatioAtMost(3.0), Goal::TimesFasterThan("bwrap", 1.0)],
        note: "POST /v1/exec of /bin/true in a scope whose sandbox was stopped a moment ago; the stop is not measured",
    },
    Figure {
        name: "http.wake_500",
        unit: Unit::Ms,
        subject: Series::HttpWakeMany,
        floor: None,
        peers: &[],
        also: &[],
        goals: &[],
        note: "500 stopped sandboxes, each called by a client of its own at the same moment: until each has answered",
    },
    Figure {
        name: "http.ensure_at_100k",
        unit: Unit::Ms,
        subject: Series::EnsureAmongMany,
        floor: Some(Floor { name: "among 100", series: Series::EnsureAmongFew }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(1.5)],
        note: "POST /v1/sandboxes:ensure of one that is stopped, among 100,000 stopped ones",
    },
    Figure {
        name: "http.list_at_100k",
        unit: Unit::Ms,
        subject: Series::ListOfMany,
        floor: Some(Floor { name: "of 100", series: Series::ListOfFew }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(2.0)],
        note: "GET /v1/sandboxes?limit=100 of 100,000 stopped ones",
    },
    Figure {
        name: "http.start_at_100k",
        unit: Unit::Ms,
        subject: Series::StartWithMany,
        floor: None,
        peers: &[],
        also: &[],
        goals: &[Goal::AtMost(2000.0)],
        note: "from the start of the process until it serves, with 100,000 stopped sandboxes",
    },
    Figure {
        name: "http.reaper_percent",
        unit: Unit::Percent,
        subject: Series::ReapingMany,
        floor: None,
        peers: &[],
        also: &[],
        goals: &[Goal::AtMost(5.0)],
        note: "of one processor, by a server with 100,000 stopped sandboxes that looks after them every second, and nothing else",
    },
    Figure {
        name: "http.stopped_kib",
        unit: Unit::Kib,
        subject: Series::SleeperOnDisk,
        floor: None,
        peers: &[],
        also: &[],
        goals: &[Goal::AtMost(16.0)],
        note: "what a stopped sandbox that has written nothing takes on the disk: its home, and its part of the database",
    },
    Figure {
        name: "http.throughput_200",
        unit: Unit::Ms,
        subject: Series::HttpThroughput,
        floor: Some(Floor { name: "fork + exec on all processors", series: Series::ForkExecAll }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(1.0 / 0.6)],
        note: "200 clients on 50 sandboxes, each one command after the other: the time of all of it for each command",
    },
    Figure {
        name: "http.exec_beside_streams",
        unit: Unit::Ms,
        subject: Series::HttpExecBesideStreams,
        floor: Some(Floor { name: "http.exec", series: Series::HttpExec }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(1.5)],
        note: "as http.exec, while 1,000 streams of events are open, and 10 of commands that say much and nobody reads",
    },
    Figure {
        name: "http.upload_500m",
        unit: Unit::MibPerSecond,
        subject: Series::HttpPut,
        floor: Some(Floor { name: "plain write + fsync", series: Series::PlainPut }),
        peers: &[],
        also: &[("cached", Series::HttpPutCached), ("plain_cached", Series::PlainPutCached)],
        goals: &[Goal::RatioAtLeast(0.5)],
        note: "500 MiB into a sandbox, then sync of the file inside; cached: without the sync, on both sides",
    },
    Figure {
        name: "http.download_500m",
        unit: Unit::MibPerSecond,
        subject: Series::HttpGet,
        floor: Some(Floor { name: "plain read from the disk", series: Series::PlainGet }),
        peers: &[],
        also: &[("cached", Series::HttpGetCached), ("plain_cached", Series::PlainGetCached)],
        goals: &[Goal::RatioAtLeast(0.5)],
        note: "500 MiB out of a sandbox, none of it in the page cache; cached: all of it, on both sides",
    },
    Figure {
        name: "http.transfer_kib",
        unit: Unit::Kib,
        subject: Series::HttpTransferMemory,
        floor: None,
        peers: &[],
        also: &[],
        goals: &[Goal::AtMost(32.0 * 1024.0)],
        note: "how much more memory the server has at most while 500 MiB go in, and out again",
    },
    Figure {
        name: "http.calls_kib",
        unit: Unit::Kib,
        subject: Series::HttpMemoryGrown,
        floor: None,
        peers: &[],
        also: &[("after_10000", Series::HttpMemoryAfter10000), ("after_100000", Series::HttpMemoryAfter100000)],
        goals: &[Goal::AtMost(8.0 * 1024.0)],
        note: "how much more memory the server has after 100,000 commands than after 10,000",
    },
    Figure {
        name: "engine.create_at_1000",
        unit: Unit::Ms,
        subject: Series::CrowdLast,
        floor: Some(Floor { name: "the first hundred of the same thousand", series: Series::CrowdFirst }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(1.5)],
        note: "create to ready, of the last hundred of 1,000 live sandboxes",
    },
    Figure {
        name: "engine.kib_at_1000",
        unit: Unit::Kib,
        subject: Series::CrowdMemory,
        floor: None,
        peers: &[],
        also: &[
            ("mem_available_before", Series::CrowdAvailableBefore),
            ("mem_available_after", Series::CrowdAvailableAfter),
        ],
        goals: &[Goal::AtMost(512.0)],
        note: "fall of MemAvailable for each of 1,000 live idle sandboxes",
    },
    Figure {
        name: "engine.snapshot_stopped",
        unit: Unit::Ms,
        subject: Series::SnapshotMany,
        floor: Some(Floor { name: "with 1 file", series: Series::SnapshotOne }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(2.0)],
        note: "a snapshot of a stopped sandbox that has made 100,000 files, against one that has made 1",
    },
    Figure {
        name: "engine.fork_10",
        unit: Unit::Ms,
        subject: Series::ForkTen,
        floor: Some(Floor { name: "10 creates", series: Series::CreateTen }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(1.5)],
        note: "10 sandboxes from one snapshot with 1,000 files, one after the other, each until it is ready",
    },
    Figure {
        name: "engine.burst_100",
        unit: Unit::Ms,
        subject: Series::Burst,
        floor: FLOOR_CREATE,
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(150.0)],
        note: "100 creates at once, until all are ready",
    },
    Figure {
        name: "engine.read_256m",
        unit: Unit::MibPerSecond,
        subject: Series::Read,
        floor: Some(Floor { name: "plain read", series: Series::PlainRead }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtLeast(0.85)],
        note: LARGE_NOTE,
    },
    Figure {
        name: "engine.write_256m",
        unit: Unit::MibPerSecond,
        subject: Series::Write,
        floor: Some(Floor { name: "plain write", series: Series::PlainWrite }),
        peers: &[],
        also: &[("with_fsync", Series::WriteSynced), ("plain_with_fsync", Series::PlainWriteSynced)],
        goals: &[Goal::RatioAtLeast(0.85)],
        note: LARGE_NOTE,
    },
    Figure {
        name: "engine.small_files",
        unit: Unit::Ms,
        subject: Series::SmallReplace,
        floor: Some(Floor { name: "plain open + write + close", series: Series::PlainSmall }),
        peers: &[],
        also: &[("unpack", Series::SmallUnpack)],
        goals: &[Goal::RatioAtMost(3.0), Goal::AlsoAtMost("unpack", 1.5)],
        note: "10,000 files of 1 KiB, each replaced whole; new files, no fsync",
    },
    Figure {
        name: "engine.policy_connect",
        unit: Unit::Ms,
        subject: Series::PolicyConnect,
        floor: Some(Floor { name: "connect over loopback", series: Series::LoopbackConnect }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(2.0)],
        note: "connect from inside to a server outside that the policy allows; both in C",
    },
    Figure {
        name: "engine.policy_exchange",
        unit: Unit::Ms,
        subject: Series::PolicyExchange,
        floor: Some(Floor { name: "the same over loopback", series: Series::LoopbackExchange }),
        peers: &[],
        also: &[],
        goals: &[],
        note: "as engine.policy_connect, then a byte there and back, and the close: twice the ways, and a dial between them",
    },
    Figure {
        name: "engine.pause",
        unit: Unit::Ms,
        subject: Series::Pause,
        floor: Some(Floor { name: "cgroup.freeze by hand, in C", series: Series::FloorFreeze }),
        peers: &[],
        also: &[],
        goals: &[],
        note: "pause and resume of a sandbox with ten processes",
    },
    Figure {
        name: "engine.noisy_neighbour",
        unit: Unit::Ms,
        subject: Series::WorkBesideWorst,
        floor: Some(Floor { name: "the same work alone", series: Series::WorkAlone }),
        peers: &[],
        also: &[
            ("forks", Series::WorkBeside(Takes::Forks)),
            ("memory", Series::WorkBeside(Takes::Memory)),
            ("disk", Series::WorkBeside(Takes::Disk)),
            ("inodes", Series::WorkBeside(Takes::Inodes)),
            ("output", Series::WorkBeside(Takes::Output)),
            ("watches", Series::WorkBeside(Takes::Watches)),
            ("descriptors", Series::WorkBeside(Takes::Descriptors)),
            ("terminals", Series::WorkBeside(Takes::Terminals)),
        ],
        goals: &[
            Goal::RatioAtMost(3.0),
            Goal::AlsoAtMost("forks", 3.0),
            Goal::AlsoAtMost("memory", 3.0),
            Goal::AlsoAtMost("disk", 3.0),
            Goal::AlsoAtMost("inodes", 3.0),
            Goal::AlsoAtMost("output", 3.0),
            Goal::AlsoAtMost("watches", 3.0),
            Goal::AlsoAtMost("descriptors", 3.0),
            Goal::AlsoAtMost("terminals", 3.0),
        ],
        note: "create, arithmetic, memory, processes and small files, beside a neighbour that takes all of one thing; the \
               worst of them. Both with 1 processor, 512 MiB and 256 processes",
    },
    Figure {
        name: "engine.create_exec_limited",
        unit: Unit::Ms,
        subject: Series::CreateExecLimited,
        floor: FLOOR_CREATE,
        peers: BWRAP,
        also: &[("unlimited", Series::CreateExec)],
        goals: AS_CREATE,
        note: LIMITED_NOTE,
    },
    Figure {
        name: "engine.exec_limited",
        unit: Unit::Ms,
        subject: Series::ExecLimited,
        floor: Some(Floor { name: "floor.exec", series: Series::FloorExec }),
        peers: &[],
        also: &[("unlimited", Series::Exec)],
        goals: &[Goal::RatioAtMost(1.5)],
        note: LIMITED_NOTE,
    },
    Figure {
        name: "engine.wake_exec_limited",
        unit: Unit::Ms,
        subject: Series::WakeExecLimited,
        floor: FLOOR_CREATE,
        peers: BWRAP,
        also: &[("unlimited", Series::WakeExec)],
        goals: AS_CREATE,
        note: LIMITED_NOTE,
    },
    Figure {
        name: "engine.burst_100_limited",
        unit: Unit::Ms,
        subject: Series::BurstLimited,
        floor: FLOOR_CREATE,
        peers: &[],
        also: &[("unlimited", Series::Burst)],
        goals: &[Goal::RatioAtMost(150.0)],
        note: LIMITED_NOTE,
    },
    Figure {
        name: "engine.create_at_1000_limited",
        unit: Unit::Ms,
        subject: Series::CrowdLastLimited,
        floor: Some(Floor { name: "the first hundred of the same thousand", series: Series::CrowdFirstLimited }),
        peers: &[],
        also: &[],
        goals: &[Goal::RatioAtMost(1.5)],
        note: LIMITED_NOTE,
    },
    Figure {
        name: "engine.kib_at_1000_limited",
        unit: Unit::Kib,
        subject: Series::CrowdMemoryLimited,
        floor: None,
        peers: &[],
        also: &[],
        goals: &[Goal::AtMost(512.0)],
        note: LIMITED_NOTE,
    },
    Figure {
        name: "floor.create",
        unit: Unit::Ms,
        subject: Series::FloorCreate,
        floor: Some(Floor { name: "floor.fork_exec", series: Series::ForkExec }),
        peers: BWRAP,
        also: &[("spaced", Series::FloorCreateSpaced)],
        goals: &[],
        note: "in C: namespaces, idmapped overlay, proc, two tmpfs, pivot_root, init, /bin/true; with its directories made",
    },
    Figure {
        name: "floor.exec",
        unit: Unit::Ms,
        subject: Series::FloorExec,
        floor: Some(Floor { name: "floor.fork_exec", series: Series::ForkExec }),
        peers: &[("docker_exec", Series::DockerExec)],
        also: &[("spaced", Series::FloorExecSpaced)],
        goals: &[],
        note: "in C: an init in such namespaces, asked over a socketpair: vfork, exec, wait, answer",
    },
    Figure {
        name: "floor.fork_exec",
        unit: Unit::Ms,
        subject: Series::ForkExec,
        floor: Some(Floor { name: "floor.fork_exec", series: Series::ForkExec }),
        peers: &[],
        also: &[("spaced", Series::ForkExecSpaced)],
        goals: &[],
        note: "in C: fork, exec of /bin/true, wait",
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_figure_that_was_promised_has_its_name_once() {
        let names: BTreeSet<_> = FIGURES.iter().map(|figure| figure.name).collect();
        let promised = [
            "engine.create_exec",
            "engine.create_exec_spaced",
            "engine.exec",
            "engine.wake_exec",
            "engine.create_at_1000",
            "engine.kib_at_1000",
            "engine.snapshot_stopped",
            "engine.fork_10",
            "engine.burst_100",
            "engine.read_256m",
            "engine.write_256m",
            "engine.small_files",
            "engine.policy_connect",
            "engine.policy_exchange",
            "engine.pause",
            "engine.noisy_neighbour",
            "engine.create_exec_limited",
            "engine.exec_limited",
            "engine.wake_exec_limited",
            "engine.burst_100_limited",
            "engine.create_at_1000_limited",
            "engine.kib_at_1000_limited",
            "http.exec",
            "http.create_exec",
            "http.create_exec_spaced",
            "e2b.create_exec",
            "http.wake_exec",
            "http.wake_500",
            "http.ensure_at_100k",
            "http.list_at_100k",
            "http.start_at_100k",
            "http.reaper_percent",
            "http.stopped_kib",
            "http.throughput_200",
            "http.exec_beside_streams",
            "http.upload_500m",
            "http.download_500m",
            "http.transfer_kib",
            "http.calls_kib",
            "floor.create",
            "floor.exec",
            "floor.fork_exec",
        ];
        assert_eq!(names, promised.into_iter().collect());
        assert_eq!(FIGURES.len(), promised.len());
    }

    #[test]
    fn every_series_is_measured_once_in_a_round_and_used() {
        let measured: BTreeSet<_> = Series::ROUND.iter().copied().collect();
        assert_eq!(measured.len(), Series::ROUND.len());
        assert_eq!(measured, FIGURES.iter().flat_map(Figure::series).collect());
    }

    #[test]
    fn a_goal_names_only_what_the_figure_has() {
        for figure in FIGURES {
            let has = |list: &[(&str, Series)], name: &str| list.iter().any(|(known, _)| *known == name);
            for goal in figure.goals {
                assert!(match goal {
                    Goal::TimesFasterThan(peer, _) => has(figure.peers, peer),
                    Goal::AlsoAtMost(name, _) => has(figure.also, name) && figure.floor.is_some(),
                    Goal::RatioAtMost(_) | Goal::RatioAtLeast(_) => figure.floor.is_some(),
                    Goal::AtMost(_) | Goal::TailAtMost(_) => true,
                });
            }
        }
    }

    #[test]
    fn a_throughput_is_mib_over_seconds() {
        assert_eq!(Unit::MibPerSecond.of(0.5e9), 512.0);
        assert_eq!(Unit::Ms.of(1.5e6), 1.5);
        assert_eq!(Unit::Kib.of(350.0), 350.0);
    }
}
