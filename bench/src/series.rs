//! What is measured. A series is one thing done again and again in one rhythm; its samples are nanoseconds, or KiB for
//! memory. Figures are made of series (see `figure.rs`).

use std::collections::{BTreeMap, BTreeSet};

use crate::neighbour::Takes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Series {
    ForkExec,
    ForkExecSpaced,
    FloorCreate,
    FloorCreateSpaced,
    FloorExec,
    FloorExecSpaced,
    Bwrap,
    BwrapSpaced,
    DockerExec,
    DockerExecApi,
    CreateExec,
    CreateExecSpaced,
    Exec,
    ExecSpaced,
    WakeExec,
    SnapshotOne,
    SnapshotMany,
    CreateTen,
    ForkTen,
    Burst,
    CrowdFirst,
    CrowdLast,
    CrowdMemory,
    CrowdAvailableBefore,
    CrowdAvailableAfter,
    PlainRead,
    Read,
    PlainWrite,
    Write,
    PlainWriteSynced,
    WriteSynced,
    PlainSmall,
    SmallReplace,
    SmallUnpack,
    LoopbackConnect,
    LoopbackExchange,
    PolicyConnect,
    PolicyExchange,
    FloorFreeze,
    Pause,
    CreateExecLimited,
    ExecLimited,
    WakeExecLimited,
    BurstLimited,
    CrowdFirstLimited,
    CrowdLastLimited,
    CrowdMemoryLimited,
    WorkAlone,
    WorkBeside(Takes),
    WorkBesideWorst,
    ForkExecAll,
    HttpExec,
    HttpCreateExec,
    HttpCreateExecSpaced,
    SdkAlone,
    SdkCreateExec,
    HttpThroughput,
    HttpExecBesideStreams,
    PlainPut,
    HttpPut,
    PlainPutCached,
    HttpPutCached,
    PlainGet,
    HttpGet,
    PlainGetCached,
    HttpGetCached,
    HttpTransferMemory,
    HttpMemoryAfter10000,
    HttpMemoryAfter100000,
    HttpMemoryGrown,
    HttpWakeExec,
    HttpWakeMany,
    EnsureAmongFew,
    EnsureAmongMany,
    ListOfFew,
    ListOfMany,
    StartWithMany,
    ReapingMany,
    SleeperOnDisk,
}

/// How often a series is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) samples: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    Full,
    Quick,
}

impl Effort {
    pub(crate) fn rounds(self) -> usize {
        match self {
            Self::Full => 5,
            Self::Quick => 2,
        }
    }
}

impl Series {
    /// The order in one round. What is compared stands side by side: the machine's noise comes in waves of seconds, and
    /// then hits both.
    pub(crate) const ROUND: &'static [Self] = &[
        Self::ForkExec,
        Self::FloorCreate,
        Self::CreateExec,
        Self::CreateExecLimited,
        Self::HttpCreateExec,
        Self::Bwrap,
        Self::FloorCreateSpaced,
        Self::CreateExecSpaced,
        Self::HttpCreateExecSpaced,
        Self::BwrapSpaced,
        Self::ForkExecSpaced,
        Self::WakeExec,
        Self::HttpWakeExec,
        Self::WakeExecLimited,
        Self::FloorExec,
        Self::Exec,
        Self::ExecLimited,
        Self::HttpExec,
        Self::HttpExecBesideStreams,
        Self::ForkExecAll,
        Self::HttpThroughput,
        Self::SdkAlone,
        Self::SdkCreateExec,
        Self::DockerExec,
        Self::DockerExecApi,
        Self::FloorExecSpaced,
        Self::ExecSpaced,
        Self::SnapshotOne,
        Self::SnapshotMany,
        Self::CreateTen,
        Self::ForkTen,
        Self::Burst,
        Self::BurstLimited,
        Self::LoopbackConnect,
        Self::PolicyConnect,
        Self::LoopbackExchange,
        Self::PolicyExchange,
        Self::FloorFreeze,
        Self::Pause,
        Self::WorkAlone,
        Self::WorkBeside(Takes::Forks),
        Self::WorkBeside(Takes::Memory),
        Self::WorkBeside(Takes::Disk),
        Self::WorkBeside(Takes::Inodes),
        Self::WorkBeside(Takes::Output),
        Self::WorkBeside(Takes::Watches),
        Self::WorkBeside(Takes::Descriptors),
        Self::WorkBeside(Takes::Terminals),
        Self::WorkBesideWorst,
        Self::PlainRead,
        Self::Read,
        Self::PlainWrite,
        Self::Write,
        Self::PlainWriteSynced,
        Self::WriteSynced,
        Self::PlainSmall,
        Self::SmallReplace,
        Self::SmallUnpack,
        Self::PlainPut,
        Self::HttpPut,
        Self::PlainPutCached,
        Self::HttpPutCached,
        Self::PlainGet,
        Self::HttpGet,
        Self::PlainGetCached,
        Self::HttpGetCached,
        Self::HttpTransferMemory,
        Self::HttpMemoryAfter10000,
        Self::HttpMemoryAfter100000,
        Self::HttpMemoryGrown,
        Self::EnsureAmongFew,
        Self::EnsureAmongMany,
        Self::ListOfFew,
        Self::ListOfMany,
        Self::StartWithMany,
        Self::ReapingMany,
        Self::SleeperOnDisk,
        Self::HttpWakeMany,
        Self::CrowdFirst,
        Self::CrowdLast,
        Self::CrowdMemory,
        Self::CrowdAvailableBefore,
        Self::CrowdAvailableAfter,
        Self::CrowdFirstLimited,
        Self::CrowdLastLimited,
        Self::CrowdMemoryLimited,
    ];

    pub(crate) fn plan(self, effort: Effort) -> Plan {
        let (full, quick) = match self {
            Self::ForkExec | Self::FloorExec | Self::Exec | Self::ExecLimited | Self::HttpExec => (200, 50),
            Self::HttpExecBesideStreams => (100, 50),
            Self::PlainPut | Self::HttpPut | Self::PlainPutCached | Self::HttpPutCached => (1, 1),
            Self::PlainGet | Self::HttpGet | Self::PlainGetCached | Self::HttpGetCached => (1, 1),
            Self::HttpTransferMemory
            | Self::HttpMemoryAfter10000
            | Self::HttpMemoryAfter100000
            | Self::HttpMemoryGrown
            | Self::StartWithMany
            | Self::ReapingMany
            | Self::SleeperOnDisk
            | Self::HttpWakeMany => return Plan { rounds: 1, samples: 1 },
            Self::EnsureAmongFew | Self::EnsureAmongMany | Self::ListOfFew | Self::ListOfMany => {
                return Plan { rounds: 1, samples: 200 };
            }
            Self::ForkExecAll | Self::HttpThroughput => (3, 1),
            Self::LoopbackConnect | Self::LoopbackExchange | Self::PolicyConnect | Self::PolicyExchange => (400, 200),
            Self::FloorFreeze | Self::Pause => (100, 30),
            Self::WorkAlone | Self::WorkBeside(_) => (10, 4),
            Self::WorkBesideWorst => return Plan { rounds: 1, samples: 1 },
            Self::FloorCreate | Self::CreateExec | Self::CreateExecLimited | Self::HttpCreateExec => (100, 30),
            Self::WakeExec | Self::WakeExecLimited | Self::HttpWakeExec => (50, 10),
            Self::SdkAlone | Self::SdkCreateExec => (50, 10),
            Self::CreateTen | Self::ForkTen => (10, 5),
            Self::SnapshotOne | Self::SnapshotMany => (2, 1),
            Self::Bwrap => (40, 10),
            Self::FloorCreateSpaced | Self::CreateExecSpaced | Self::HttpCreateExecSpaced => (20, 5),
            Self::BwrapSpaced | Self::ForkExecSpaced | Self::FloorExecSpaced | Self::ExecSpaced => (10, 5),
            Self::DockerExec | Self::DockerExecApi => (10, 3),
            Self::PlainRead | Self::Read | Self::PlainWrite | Self::Write => (3, 2),
            Self::PlainWriteSynced | Self::WriteSynced => (1, 1),
            Self::Burst | Self::BurstLimited | Self::PlainSmall | Self::SmallReplace | Self::SmallUnpack => (2, 1),
            Self::CrowdFirst | Self::CrowdLast | Self::CrowdFirstLimited | Self::CrowdLastLimited => {
                return Plan { rounds: 1, samples: 100 };
            }
            Self::CrowdMemory | Self::CrowdMemoryLimited | Self::CrowdAvailableBefore | Self::CrowdAvailableAfter => {
                return Plan { rounds: 1, samples: 1 };
            }
        };
        let samples = match effort {
            Effort::Full => full,
            Effort::Quick => quick,
        };
        Plan { rounds: effort.rounds(), samples }
    }

    /// What a reader of the progress sees.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::ForkExec => "floor: fork + exec",
            Self::ForkExecSpaced => "floor: fork + exec, one every 200 ms",
            Self::FloorCreate => "floor: create",
            Self::FloorCreateSpaced => "floor: create, one every 200 ms",
            Self::FloorExec => "floor: exec",
            Self::FloorExecSpaced => "floor: exec, one every 200 ms",
            Self::Bwrap => "peer: bwrap",
            Self::BwrapSpaced => "peer: bwrap, one every 200 ms",
            Self::DockerExec => "peer: docker exec",
            Self::DockerExecApi => "peer: docker exec without its command line program",
            Self::CreateExec => "create + first command",
            Self::CreateExecSpaced => "create + first command, one every 200 ms",
            Self::Exec => "a command in a live sandbox",
            Self::ExecSpaced => "a command in a live sandbox, one every 200 ms",
            Self::WakeExec => "start after stop + first command",
            Self::SnapshotOne => "snapshot of a stopped sandbox with 1 file",
            Self::SnapshotMany => "snapshot of a stopped sandbox with 100,000 files",
            Self::CreateTen => "10 creates",
            Self::ForkTen => "10 creates from a snapshot",
            Self::Burst => "100 creates at once",
            Self::CrowdFirst
            | Self::CrowdLast
            | Self::CrowdMemory
            | Self::CrowdAvailableBefore
            | Self::CrowdAvailableAfter => "1,000 live sandboxes",
            Self::PlainRead => "plain read of 256 MiB",
            Self::Read => "read of 256 MiB",
            Self::PlainWrite => "plain write of 256 MiB",
            Self::Write => "write of 256 MiB",
            Self::PlainWriteSynced => "plain write of 256 MiB + fsync",
            Self::WriteSynced => "write of 256 MiB + fsync",
            Self::PlainSmall => "10,000 small files, plain",
            Self::SmallReplace => "10,000 small files, one by one",
            Self::SmallUnpack => "10,000 small files, unpack",
            Self::LoopbackConnect => "floor: connect over loopback",
            Self::LoopbackExchange => "floor: connect + a byte each way over loopback",
            Self::PolicyConnect => "connect through the policy",
            Self::PolicyExchange => "connect + a byte each way through the policy",
            Self::FloorFreeze => "floor: freeze + thaw",
            Self::Pause => "pause + resume",
            Self::CreateExecLimited => "create + first command, with limits",
            Self::ExecLimited => "a command in a live sandbox, with limits",
            Self::WakeExecLimited => "start after stop + first command, with limits",
            Self::BurstLimited => "100 creates at once, with limits",
            Self::CrowdFirstLimited | Self::CrowdLastLimited | Self::CrowdMemoryLimited => {
                "1,000 live sandboxes, with limits"
            }
            Self::WorkAlone => "work, alone",
            Self::WorkBeside(takes) => match takes {
                Takes::Forks => "work, beside a fork bomb",
                Takes::Memory => "work, beside a memory bomb",
                Takes::Disk => "work, beside a disk filler",
                Takes::Inodes => "work, beside one that makes endless files",
                Takes::Output => "work, beside an output flood",
                Takes::Watches => "work, beside one that watches everything",
                Takes::Descriptors => "work, beside one that takes all descriptors",
                Takes::Terminals => "work, beside one that takes all terminals",
            },
            Self::WorkBesideWorst => "work, beside the worst neighbour",
            Self::ForkExecAll => "floor: fork + exec on all processors",
            Self::HttpExec => "a command over HTTP",
            Self::HttpCreateExec => "create + first command over HTTP",
            Self::HttpCreateExecSpaced => "create + first command over HTTP, one every 200 ms",
            Self::SdkAlone => "E2B's SDK and a server that has nothing to do",
            Self::SdkCreateExec => "create + first command by E2B's SDK",
            Self::HttpThroughput => "200 clients on 50 sandboxes over HTTP",
            Self::HttpExecBesideStreams => "a command over HTTP, beside 1,010 streams",
            Self::HttpWakeExec => "start after stop + first command over HTTP",
            Self::HttpWakeMany => "500 that wake at once",
            Self::EnsureAmongFew | Self::ListOfFew => "100 stopped sandboxes",
            Self::EnsureAmongMany
            | Self::ListOfMany
            | Self::StartWithMany
            | Self::ReapingMany
            | Self::SleeperOnDisk => "100,000 stopped sandboxes",
            Self::PlainPut => "plain write of 500 MiB + fsync",
            Self::HttpPut => "500 MiB in over HTTP + sync",
            Self::PlainPutCached => "plain write of 500 MiB",
            Self::HttpPutCached => "500 MiB in over HTTP",
            Self::PlainGet => "plain read of 500 MiB from the disk",
            Self::HttpGet => "500 MiB from the disk out over HTTP",
            Self::PlainGetCached => "plain read of 500 MiB",
            Self::HttpGetCached => "500 MiB out over HTTP",
            Self::HttpTransferMemory => "memory for 500 MiB in and out over HTTP",
            Self::HttpMemoryAfter10000 | Self::HttpMemoryAfter100000 | Self::HttpMemoryGrown => {
                "100,000 commands over HTTP"
            }
        }
    }
}

/// The samples of all rounds together, and what could not be measured.
#[derive(Default)]
pub(crate) struct Pool {
    samples: BTreeMap<Series, Vec<f64>>,
    failures: BTreeMap<Series, String>,
}

impl Pool {
    pub(crate) fn add(&mut self, series: Series, samples: &[f64]) {
        self.samples.entry(series).or_default().extend_from_slice(samples);
    }

    pub(crate) fn fail(&mut self, series: Series, why: String) {
        self.failures.insert(series, why);
    }

    pub(crate) fn samples(&self, series: Series) -> &[f64] {
        self.samples.get(&series).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn failure(&self, series: Series) -> Option<&str> {
        self.failures.get(&series).map(String::as_str)
    }

    /// Each reason once, though several series may share it.
    pub(crate) fn failures(&self) -> BTreeSet<&str> {
        self.failures.values().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_pooled() {
        let mut pool = Pool::default();
        pool.add(Series::Exec, &[1.0, 2.0]);
        pool.add(Series::Exec, &[3.0]);
        assert_eq!(pool.samples(Series::Exec), [1.0, 2.0, 3.0]);
        assert!(pool.samples(Series::Read).is_empty());
    }

    #[test]
    fn a_shared_reason_is_told_once() {
        let mut pool = Pool::default();
        pool.fail(Series::DockerExec, "no docker".into());
        pool.fail(Series::DockerExecApi, "no docker".into());
        assert_eq!(pool.failures().len(), 1);
    }
}
