//! The run: rounds of all series that the wanted figures need, pooled.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use cabana_engine::{Config, Engine};
use cabana_sandbox::{Base, Limits, NetworkPolicy, SandboxSpec, Source, View};
use tokio::{sync::OnceCell, task::spawn_blocking};

use crate::{
    crowd::Crowd,
    docker::Docker,
    figure::Figure,
    files::{Fsync, Ours, Plain},
    floors::Floors,
    http::Served,
    machine,
    neighbour::{Neighbours, PROGRAMS},
    progress::Progress,
    rhythm::{Rhythm, nanoseconds},
    sdk,
    series::{Effort, Pool, Series},
    server::Server,
    sleepers::{self, Sleepers},
    snapshots,
    subject::Subject,
    transfer::{self, Disk},
};

const BWRAP: &[&str] =
    &["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"];
const BURST: usize = 100;

/// What can be measured here. The engine and Docker are started when the first series asks for them.
pub(crate) struct Bench {
    place: PathBuf,
    floors: Floors,
    plain: Plain,
    docker: OnceCell<Arc<Docker>>,
    engine: OnceCell<Arc<Engine>>,
    subject: OnceCell<Arc<Subject>>,
    crowd: OnceCell<Crowd>,
    /// With the limits and the network that a platform gives to strangers.
    limited: OnceCell<Arc<Subject>>,
    limited_crowd: OnceCell<Crowd>,
    /// The same, and the bench's own programs inside.
    equipped: OnceCell<Arc<Subject>>,
    loopback: OnceCell<Server>,
    outside: OnceCell<Server>,
    served: OnceCell<Served>,
    memory_of_calls: OnceCell<[f64; 2]>,
    few_sleepers: OnceCell<Sleepers>,
    many_sleepers: OnceCell<Sleepers>,
    neighbours: Neighbours,
}

impl Bench {
    /// `programs` is where the floors are compiled to; `place` is an empty directory on the disk to measure.
    pub(crate) fn new(programs: &Path, place: &Path) -> Result<Self> {
        Ok(Self {
            place: place.to_owned(),
            floors: Floors::build(programs, &place.join("floor"))?,
            plain: Plain::new(&place.join("plain"))?,
            docker: OnceCell::new(),
            engine: OnceCell::new(),
            subject: OnceCell::new(),
            crowd: OnceCell::new(),
            limited: OnceCell::new(),
            limited_crowd: OnceCell::new(),
            equipped: OnceCell::new(),
            loopback: OnceCell::new(),
            outside: OnceCell::new(),
            served: OnceCell::new(),
            memory_of_calls: OnceCell::new(),
            few_sleepers: OnceCell::new(),
            many_sleepers: OnceCell::new(),
            neighbours: Neighbours::default(),
        })
    }

    /// What fails is told, left out of the later rounds and recorded: the rest is worth having.
    pub(crate) async fn run(&self, figures: &[&Figure], effort: Effort) -> Result<Pool> {
        let wanted: BTreeSet<_> = figures.iter().flat_map(|figure| figure.series()).collect();
        let steps: Vec<_> = steps(&wanted, effort).collect();
        let progress = Progress::new(steps.len())?;
        let mut pool = Pool::default();
        for (round, series) in steps {
            if pool.failure(series).is_none() {
                progress.begin(&format!("round {round}: {}", series.label()));
                match self.measure(series, series.plan(effort).samples).await {
                    Ok(samples) => pool.add(series, &samples),
                    Err(error) => {
                        progress.tell(&format!("{}: {error:#}", series.label()));
                        pool.fail(series, format!("{error:#}"));
                    }
                }
            }
            progress.end();
        }
        progress.finish();
        Ok(pool)
    }

    /// Ends what the run left alive. The private dockerd ends with the last that holds it.
    pub(crate) async fn close(&self) -> Result<()> {
        if let Some(subject) = self.subject.get() {
            subject.close().await?;
        }
        if let Some(engine) = self.engine.get() {
            engine.close().await;
        }
        Ok(())
    }

    async fn measure(&self, series: Series, samples: usize) -> Result<Vec<f64>> {
        let back_to_back = Rhythm::back_to_back(samples);
        let spaced = Rhythm::spaced(samples);
        match series {
            Series::ForkExec => self.floors.command(back_to_back, &["/bin/true"]).await,
            Series::ForkExecSpaced => self.floors.command(spaced, &["/bin/true"]).await,
            Series::FloorCreate => self.floors.create(back_to_back).await,
            Series::FloorCreateSpaced => self.floors.create(spaced).await,
            Series::FloorExec => self.floors.exec(back_to_back).await,
            Series::FloorExecSpaced => self.floors.exec(spaced).await,
            Series::Bwrap => self.bwrap(back_to_back).await,
            Series::BwrapSpaced => self.bwrap(spaced).await,
            Series::DockerExec => self.docker_exec(back_to_back).await,
            Series::DockerExecApi => self.docker_exec_api(samples).await,
            Series::CreateExec => self.subject().await?.create_exec(back_to_back).await,
            Series::CreateExecSpaced => self.subject().await?.create_exec(spaced).await,
            Series::Exec => self.subject().await?.exec(back_to_back).await,
            Series::ExecSpaced => self.subject().await?.exec(spaced).await,
            Series::WakeExec => self.subject().await?.wake_exec(back_to_back).await,
            Series::SnapshotOne => snapshots::stopped(self.subject().await?, 1, samples).await,
            Series::SnapshotMany => snapshots::stopped(self.subject().await?, snapshots::MANY, samples).await,
            Series::CreateTen => snapshots::forks(self.subject().await?, false, back_to_back).await,
            Series::ForkTen => snapshots::forks(self.subject().await?, true, back_to_back).await,
            Series::Burst => self.burst(self.subject().await?, samples).await,
            Series::CrowdFirst => Ok(self.crowd().await?.first()),
            Series::CrowdLast => Ok(self.crowd().await?.last()),
            Series::CrowdMemory => Ok(vec![self.crowd().await?.kib_each()]),
            Series::CrowdAvailableBefore => Ok(vec![self.crowd().await?.available_before]),
            Series::CrowdAvailableAfter => Ok(vec![self.crowd().await?.available_after]),
            Series::PlainRead => self.plain(move |plain| plain.read(samples)).await,
            Series::PlainWrite => self.plain(move |plain| plain.write(samples, Fsync::No)).await,
            Series::PlainWriteSynced => self.plain(move |plain| plain.write(samples, Fsync::Yes)).await,
            Series::PlainSmall => self.plain(move |plain| plain.small(samples)).await,
            Series::Read => self.ours().await?.read(samples).await,
            Series::Write => self.ours().await?.write(samples, Fsync::No).await,
            Series::WriteSynced => self.ours().await?.write(samples, Fsync::Yes).await,
            Series::SmallReplace => self.ours().await?.small_one_by_one(samples).await,
            Series::SmallUnpack => self.ours().await?.small_unpack(samples).await,
            Series::LoopbackConnect => self.over_loopback(back_to_back, "connect").await,
            Series::LoopbackExchange => self.over_loopback(back_to_back, "exchange").await,
            Series::PolicyConnect => self.through_policy(back_to_back, "connect").await,
            Series::PolicyExchange => self.through_policy(back_to_back, "exchange").await,
            Series::FloorFreeze => self.floors.freeze(back_to_back, &machine::cgroup()?.join("cabana-bench")).await,
            Series::Pause => self.subject().await?.pause(back_to_back).await,
            Series::CreateExecLimited => self.limited().await?.create_exec(back_to_back).await,
            Series::ExecLimited => self.limited().await?.exec(back_to_back).await,
            Series::WakeExecLimited => self.limited().await?.wake_exec(back_to_back).await,
            Series::BurstLimited => self.burst(self.limited().await?, samples).await,
            Series::CrowdFirstLimited => Ok(self.limited_crowd().await?.first()),
            Series::CrowdLastLimited => Ok(self.limited_crowd().await?.last()),
            Series::CrowdMemoryLimited => Ok(vec![self.limited_crowd().await?.kib_each()]),
            Series::WorkAlone => self.neighbours.alone(self.equipped().await?, samples).await,
            Series::WorkBeside(takes) => self.neighbours.beside(self.equipped().await?, takes, samples).await,
            Series::WorkBesideWorst => self.neighbours.worst().map(|(_, samples)| samples),
            Series::ForkExecAll => self.fork_exec_all(samples).await,
            Series::HttpExec => self.served().await?.exec(back_to_back).await,
            Series::HttpCreateExec => self.served().await?.create_exec(back_to_back).await,
            Series::HttpCreateExecSpaced => self.served().await?.create_exec(spaced).await,
            Series::SdkAlone => sdk::against_nothing(back_to_back).await,
            Series::SdkCreateExec => self.served().await?.by_sdk(back_to_back).await,
            Series::HttpThroughput => self.served().await?.throughput(samples).await,
            Series::HttpExecBesideStreams => self.served().await?.exec_beside_streams(back_to_back).await,
            Series::PlainPut => self.plain_transfer(transfer::plain_write, Disk::Synced, samples).await,
            Series::HttpPut => self.served().await?.upload(Disk::Synced, samples).await,
            Series::PlainPutCached => self.plain_transfer(transfer::plain_write, Disk::Cached, samples).await,
            Series::HttpPutCached => self.served().await?.upload(Disk::Cached, samples).await,
            Series::PlainGet => self.plain_transfer(transfer::plain_read, Disk::Synced, samples).await,
            Series::HttpGet => self.served().await?.download(Disk::Synced, samples).await,
            Series::PlainGetCached => self.plain_transfer(transfer::plain_read, Disk::Cached, samples).await,
            Series::HttpGetCached => self.served().await?.download(Disk::Cached, samples).await,
            Series::HttpTransferMemory => {
                // One that has moved nothing yet.
                Ok(vec![self.fresh_server("served-transfer").await?.transfer_memory().await?])
            }
            Series::HttpWakeExec => self.served().await?.wake_exec(back_to_back).await,
            Series::HttpWakeMany => self.many_sleepers().await?.wake_many().await,
            Series::EnsureAmongFew => self.few_sleepers().await?.ensure(back_to_back).await,
            Series::EnsureAmongMany => self.many_sleepers().await?.ensure(back_to_back).await,
            Series::ListOfFew => self.few_sleepers().await?.list(back_to_back).await,
            Series::ListOfMany => self.many_sleepers().await?.list(back_to_back).await,
            Series::StartWithMany => Ok(vec![self.many_sleepers().await?.start]),
            Series::ReapingMany => Ok(vec![self.many_sleepers().await?.reaping]),
            Series::SleeperOnDisk => Ok(vec![self.many_sleepers().await?.kib_each]),
            Series::HttpMemoryAfter10000 => Ok(vec![self.memory_of_calls().await?[0]]),
            Series::HttpMemoryAfter100000 => Ok(vec![self.memory_of_calls().await?[1]]),
            Series::HttpMemoryGrown => {
                let [before, after] = self.memory_of_calls().await?;
                Ok(vec![after - before])
            }
        }
    }

    async fn served(&self) -> Result<&Served> {
        self.served.get_or_try_init(|| self.fresh_server("served")).await
    }

    async fn few_sleepers(&self) -> Result<&Sleepers> {
        let place = self.place.join("sleepers-few");
        self.few_sleepers.get_or_try_init(|| Sleepers::lie_down(place, sleepers::FEW)).await
    }

    async fn many_sleepers(&self) -> Result<&Sleepers> {
        let place = self.place.join("sleepers-many");
        self.many_sleepers.get_or_try_init(|| Sleepers::lie_down(place, sleepers::MANY)).await
    }

    async fn memory_of_calls(&self) -> Result<[f64; 2]> {
        let measured = self
            .memory_of_calls
            .get_or_try_init(|| async { self.fresh_server("served-long").await?.memory_of_calls().await });
        measured.await.copied()
    }

    async fn fresh_server(&self, name: &str) -> Result<Served> {
        let data = self.place.join(name);
        spawn_blocking(move || Served::start(&data)).await?
    }

    async fn plain_transfer(
        &self,
        what: fn(&Path, Disk, usize) -> Result<Vec<f64>>,
        disk: Disk,
        samples: usize,
    ) -> Result<Vec<f64>> {
        let place = self.place.clone();
        spawn_blocking(move || what(&place, disk, samples)).await?
    }

    /// The time of one command where each processor starts one after the other.
    async fn fork_exec_all(&self, samples: usize) -> Result<Vec<f64>> {
        const EACH: usize = 500;
        let processors = std::thread::available_parallelism()?.get();
        let mut told = Vec::with_capacity(samples);
        for _ in 0..samples {
            let start = Instant::now();
            let all = (0..processors).map(|_| self.floors.command(Rhythm::back_to_back(EACH), &["/bin/true"]));
            futures_util::future::try_join_all(all).await?;
            told.push(nanoseconds(start) / (processors * EACH) as f64);
        }
        Ok(told)
    }

    async fn bwrap(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let installed = std::process::Command::new("bwrap").arg("--version").output();
        if installed.is_err() {
            bail!("bwrap is not installed (Debian: apt-get install bubblewrap)");
        }
        self.floors.command(rhythm, BWRAP).await
    }

    async fn docker_exec(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let argv = self.docker().await?.exec_argv();
        self.floors.command(rhythm, &argv.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    async fn docker_exec_api(&self, samples: usize) -> Result<Vec<f64>> {
        let docker = self.docker().await?.clone();
        spawn_blocking(move || {
            docker.exec_by_api()?; // warms up
            (0..samples).map(|_| docker.exec_by_api()).collect()
        })
        .await?
    }

    async fn docker(&self) -> Result<&Arc<Docker>> {
        self.docker.get_or_try_init(|| async { Ok(Arc::new(spawn_blocking(Docker::start).await??)) }).await
    }

    async fn subject(&self) -> Result<&Arc<Subject>> {
        let engine = self.engine().await?.clone();
        Ok(self.subject.get_or_init(|| async { Arc::new(Subject::new(engine, SandboxSpec::new(Base::Host))) }).await)
    }

    async fn engine(&self) -> Result<&Arc<Engine>> {
        let config = Config::new(self.place.join("engine"));
        let open = || async { Engine::open(config).await.context("the engine does not open") };
        self.engine.get_or_try_init(open).await
    }

    async fn limited(&self) -> Result<&Arc<Subject>> {
        let engine = self.engine().await?.clone();
        Ok(self.limited.get_or_init(|| async { Arc::new(Subject::new(engine, as_for_strangers())) }).await)
    }

    async fn limited_crowd(&self) -> Result<&Crowd> {
        let subject = self.limited().await?;
        self.limited_crowd.get_or_try_init(|| Crowd::gather(subject)).await
    }

    async fn equipped(&self) -> Result<&Arc<Subject>> {
        let engine = self.engine().await?.clone();
        let source = Source::Host(self.floors.programs().to_owned());
        let programs = View { source, at: PROGRAMS.parse()?, writable: false };
        let spec = SandboxSpec { views: vec![programs], ..as_for_strangers() };
        Ok(self.equipped.get_or_init(|| async { Arc::new(Subject::new(engine, spec)) }).await)
    }

    async fn over_loopback(&self, rhythm: Rhythm, what: &str) -> Result<Vec<f64>> {
        let server = self.loopback.get_or_try_init(|| self.server(Server::on_loopback)).await?;
        self.floors.connect(rhythm, what, server.at).await
    }

    async fn through_policy(&self, rhythm: Rhythm, what: &str) -> Result<Vec<f64>> {
        let server = self.outside.get_or_try_init(|| self.server(Server::outside)).await?;
        let (program, to, port) =
            (format!("{PROGRAMS}/connect"), server.at.ip().to_string(), server.at.port().to_string());
        self.equipped().await?.told_inside(rhythm, &[&program, what, &to, &port]).await
    }

    async fn server(&self, start: fn(&Path) -> Result<Server>) -> Result<Server> {
        let program = self.floors.programs().join("connect");
        spawn_blocking(move || start(&program)).await?
    }

    async fn burst(&self, subject: &Arc<Subject>, samples: usize) -> Result<Vec<f64>> {
        let mut told = Vec::with_capacity(samples);
        for _ in 0..samples {
            told.push(subject.burst(BURST).await.context("a burst")?);
        }
        Ok(told)
    }

    async fn crowd(&self) -> Result<&Crowd> {
        let subject = self.subject().await?;
        self.crowd.get_or_try_init(|| Crowd::gather(subject)).await
    }

    async fn plain(&self, what: impl FnOnce(&Plain) -> Result<Vec<f64>> + Send + 'static) -> Result<Vec<f64>> {
        let plain = self.plain.clone();
        spawn_blocking(move || what(&plain)).await?
    }

    async fn ours(&self) -> Result<Ours> {
        Ok(Ours::new(self.subject().await?.live().await?, &self.place))
    }
}

fn as_for_strangers() -> SandboxSpec {
    let limits = Limits { memory: Some(512 << 20), cpu_milli: Some(1000), pids: Some(256), ..Limits::default() };
    SandboxSpec { limits, network: NetworkPolicy::Public, ..SandboxSpec::new(Base::Host) }
}

/// Round by round, and in each the series that have one left. What is measured only once comes in the last round.
fn steps(wanted: &BTreeSet<Series>, effort: Effort) -> impl Iterator<Item = (usize, Series)> {
    let rounds = effort.rounds();
    (1..=rounds).flat_map(move |round| {
        let due = move |series: &&Series| wanted.contains(series) && series.plan(effort).rounds > rounds - round;
        Series::ROUND.iter().filter(due).map(move |series| (round, *series))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_and_figure_take_turns_and_the_crowd_comes_once() {
        let wanted = [Series::FloorCreate, Series::CreateExec, Series::CrowdFirst].into();
        let steps: Vec<_> = steps(&wanted, Effort::Quick).collect();
        let expected = [
            (1, Series::FloorCreate),
            (1, Series::CreateExec),
            (2, Series::FloorCreate),
            (2, Series::CreateExec),
            (2, Series::CrowdFirst),
        ];
        assert_eq!(steps, expected);
    }
}
