//! One build, from its base to what sandboxes begin with.

use std::{sync::Arc, time::Duration};

use cabana_e2b_wire::control::{BuildStart, LogLevel, Step as Sent};
use cabana_runtime::{
    AboutSnapshot, Action, Ask, BUILDING, BringUp, Build, Built, Caller, KeyLife, Layer, Lifecycle, Place, SandboxId,
    Wish,
    acts::{
        sandbox::{Become, Change, Ensure, Shape},
        snapshot::Take,
    },
};
use cabana_sandbox::{Base, Service};
use jiff::SignedDuration;
use serde_json::Value;

use super::{
    super::{
        brought::Brought,
        control::base::{self, Files, Found},
        guest::FRONT,
    },
    Made, image,
    inside::{Inside, patiently},
    log::BuildLog,
    seats::Seat,
    steps::{self, Step},
};
use crate::App;

/// Of all its steps together.
const LONGEST: Duration = Duration::from_secs(4 * 60 * 60);
/// What is kept of why one failed, in bytes: it can repeat what a client sent.
const MOST_WHY: usize = 4 << 10;
/// Why one ended before its end.
const KEY_ENDED: &str = "cancelled: the key that began it was revoked or has expired";
/// What clients call the beginning and the end of a build.
const BASE: &str = "base";
const FINALIZE: &str = "finalize";

pub(super) struct Job {
    pub(super) app: App,
    pub(super) caller: Caller,
    pub(super) build: Build,
    pub(super) asked: BuildStart,
    pub(super) wishes: Brought,
    pub(super) log: Arc<BuildLog>,
    /// It ends with the key that began it.
    pub(super) key: KeyLife,
}

/// Why it failed, and at which step.
struct Failed {
    why: String,
    step: Option<String>,
}

impl Failed {
    fn at(step: impl Into<String>) -> impl FnOnce(String) -> Self {
        let step = step.into();
        move |why| Self { why, step: Some(step) }
    }
}

/// Where it stands.
#[derive(Clone)]
struct Standing {
    files: Files,
    brought: Brought,
    digest: [u8; 32],
}

impl Job {
    /// Once it is its turn, to its end and into its record.
    pub(super) async fn run(self, seat: Seat) {
        let turn = self.while_key_stands(async { Ok(seat.turn().await) }).await;
        let built = match &turn {
            Ok(None) => return,
            Ok(Some(_turn)) => tokio::time::timeout(LONGEST, self.built())
                .await
                .unwrap_or_else(|_| Err(Failed { why: "the build took too long".into(), step: None })),
            Err(_) => Err(self.key_ended()),
        };
        let came = match built {
            Ok(made) => {
                self.log.info(None, "Build finished");
                let snapshot = if let Files::Snapshot(snapshot) = made.files { Some(snapshot) } else { None };
                serde_json::to_string(&made).map(|made| (made, snapshot)).map_err(|error| (error.to_string(), None))
            }
            Err(Failed { mut why, step }) => {
                why.truncate(why.floor_char_boundary(MOST_WHY));
                self.log.add(LogLevel::Error, step.as_deref(), format!("Build failed: {why}"));
                Err((why, step))
            }
        };
        let log = serde_json::to_string(&self.log.entries()).unwrap_or_default();
        let (runtime, tenant) = (&self.app.runtime, self.caller.tenant.clone());
        let built = Built { tenant, id: self.build.id, came, log, at: runtime.clock().now() };
        if let Err(error) = runtime.end_build(built, self.caller.key).await {
            tracing::error!(build = %self.build.id, %error, "the end of a build could not be recorded");
        }
    }

    fn key_ended(&self) -> Failed {
        Failed { why: KEY_ENDED.to_owned(), step: None }
    }

    /// What is dropped half-way must leave nothing but what its sandbox takes along.
    async fn while_key_stands<T>(&self, work: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
        tokio::select! {
            biased;
            () = self.key.clone().ended() => Err(self.key_ended()),
            done = work => done,
        }
    }

    async fn built(&self) -> Result<Made, Failed> {
        let found = async { self.base().await.map_err(Failed::at(BASE)) };
        let Found { files, brought } = self.while_key_stands(found).await?;
        let (start, ready) = (brought.start.clone(), brought.ready.clone());
        let mut at = Standing {
            digest: steps::digest_of_base(&self.identity(&files).await, &brought),
            brought: Brought { start: None, ready: None, cpus: None, memory_mb: None, ..brought },
            files,
        };
        let all = self.asked.steps.iter().enumerate().map(|(index, sent)| {
            let step = (index + 1).to_string();
            Step::read(sent).map(|read| (step.clone(), sent, read)).map_err(Failed::at(step))
        });
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let from_base = at.clone();
        let mut done = self.resume(&all, &mut at).await?;
        let ready = self.asked.ready_cmd.clone().or(ready);
        let begun = Brought {
            // What is only waited for starts nothing.
            start: self.asked.start_cmd.clone().or(start).or_else(|| ready.as_ref().map(|_| "true".to_owned())),
            ready,
            cpus: self.wishes.cpus,
            memory_mb: self.wishes.memory_mb,
            ..Brought::default()
        };
        if done < all.len() || begun.service().is_some() {
            let sandbox = match self.sandbox(&at).await {
                Err(why) if done > 0 => {
                    self.log.add(LogLevel::Warn, Some(BASE), format!("What was done before is of no use: {why}"));
                    (done, at) = (0, from_base);
                    self.sandbox(&at).await
                }
                made => made,
            };
            let sandbox = sandbox.map_err(Failed::at(BASE))?;
            let inside = Inside { app: &self.app, caller: &self.caller, sandbox };
            let worked = self.work(&inside, &all[done..], &mut at, &begun).await;
            if let Err(error) = patiently(|| async { inside.call(Become(Shape::Deleted)).await }).await {
                tracing::warn!(sandbox = %inside.sandbox, %error, "the sandbox of a build could not be deleted yet");
            }
            worked?;
        }
        let Brought { start, ready, cpus, memory_mb, .. } = begun;
        Ok(Made { files: at.files, brought: Brought { start, ready, cpus, memory_mb, ..at.brought } })
    }

    async fn base(&self) -> Result<Found, String> {
        match (&self.asked.from_template, &self.asked.from_image) {
            (Some(template), _) => {
                self.log.info(Some(BASE), format!("FROM template {template}"));
                base::find(&self.app, &self.caller, template).await.map_err(|error| error.into_message())
            }
            (None, Some(image)) => {
                self.log.info(Some(BASE), format!("FROM {image}"));
                image::find(&self.app, image).await.map_err(|error| error.into_message())?
            }
            (None, None) => Err("the build names neither an image nor a template to begin with".to_owned()),
        }
    }

    /// What the files are, however they are called.
    async fn identity(&self, files: &Files) -> String {
        match files {
            Files::Base(Base::Named(name)) => {
                let made = self.app.runtime.template(name).await.map(|template| template.made);
                format!("template {name} {}", made.unwrap_or_default())
            }
            Files::Base(base) => format!("{base:?}"),
            Files::Snapshot(snapshot) => snapshot.to_string(),
        }
    }

    /// How many of the steps were done before, by whichever build.
    async fn resume(&self, all: &[(String, &Sent, Step)], at: &mut Standing) -> Result<usize, Failed> {
        if self.asked.force {
            return Ok(0);
        }
        let fresh = all.iter().position(|(_, sent, _)| sent.force).unwrap_or(all.len());
        let mut digests = vec![at.digest];
        for (_, sent, _) in &all[..fresh] {
            digests.push(steps::digest(&digests[digests.len() - 1], sent));
        }
        for (index, (number, _, step)) in all[..fresh].iter().enumerate().rev() {
            if !step.changes_files() {
                continue;
            }
            let digest = digests[index + 1];
            let found = self.app.runtime.layer(&self.caller.tenant, self.build.id, digest).await;
            let Some(layer) = found.map_err(|error| Failed::at(number)(error.to_string()))? else { continue };
            let Ok(brought) = serde_json::from_str(&layer.about) else { continue };
            for (number, sent, _) in &all[..=index] {
                self.log.info(Some(number), format!("CACHED {}", steps::told(sent)));
            }
            *at = Standing { files: Files::Snapshot(layer.snapshot), brought, digest };
            return Ok(index + 1);
        }
        Ok(0)
    }

    /// It is in no list of clients, and goes with the build.
    async fn sandbox(&self, at: &Standing) -> Result<SandboxId, String> {
        let runtime = &self.app.runtime;
        let end = runtime.clock().now().saturating_add(SignedDuration::try_from(LONGEST).unwrap_or_default());
        let wish = Wish {
            limits: self.wishes.limits(runtime.settings()).filter(|limits| runtime.fits(limits)),
            labels: [(BUILDING.to_owned(), self.build.id.uuid().to_string())].into(),
            lifecycle: Lifecycle {
                idle_sec: Some(0),
                hard_sec: Some(0),
                expires_at: end.ok(),
                on_expire: Some(Action::Delete),
                ..Lifecycle::default()
            },
            ..at.files.wish()
        };
        let made = async {
            let (mut wanted, _) = runtime.settings().wanted(wish)?;
            wanted.notes.insert(BUILDING.to_owned(), Value::from(self.build.id.to_string()));
            patiently(|| async {
                let place = Place::New(Some(wanted.clone()));
                let ask = Ask { caller: self.caller.clone(), place, key: None, lease: None, front: FRONT };
                runtime.call(ask, Ensure).await?.answer().await
            })
            .await
        };
        let made: Result<_, cabana_runtime::Error> = made.await;
        made.map(|made| made.sandbox).map_err(|error| format!("a sandbox to build in could not be made: {error}"))
    }

    async fn work(
        &self,
        inside: &Inside<'_>,
        steps: &[(String, &Sent, Step)],
        at: &mut Standing,
        begun: &Brought,
    ) -> Result<(), Failed> {
        for (number, sent, step) in steps {
            self.log.info(Some(number), steps::told(sent));
            let done = async { self.step(inside, number, step, &mut at.brought).await.map_err(Failed::at(number)) };
            self.while_key_stands(done).await?;
            at.digest = steps::digest(&at.digest, sent);
            if step.changes_files() {
                let layer = self.keep(inside, at).await.map_err(Failed::at(number))?;
                at.files = layer;
            }
        }
        if let Some(service) = &begun.service() {
            self.log.info(Some(FINALIZE), "Waiting until the start command is ready");
            let ready = async { self.finalize(inside, service, &at.brought).await.map_err(Failed::at(FINALIZE)) };
            self.while_key_stands(ready).await?;
        }
        self.while_key_stands(async { Ok(()) }).await
    }

    /// As it will be in each sandbox: with what the steps have set.
    async fn finalize(&self, inside: &Inside<'_>, service: &Service, brought: &Brought) -> Result<(), String> {
        let env = || Some(brought.env.clone());
        let finalized = async {
            patiently(|| async { inside.call(Change { env: env(), ..Change::default() }).await }).await?;
            let Brought { user, workdir: cwd, .. } = brought.clone();
            let (caller, sandbox) = (inside.caller, &inside.sandbox);
            let what = BringUp { caller, front: FRONT, sandbox, template: "it", service, user, cwd };
            self.app.runtime.bring_up(what).await
        };
        finalized.await.map_err(|error| error.to_string())
    }

    /// What the step left, for this build and for those after it.
    async fn keep(&self, inside: &Inside<'_>, at: &Standing) -> Result<Files, String> {
        let about = || AboutSnapshot { name: None, note: None, built: true };
        let taken = patiently(|| async { inside.call(Take { about: about() }).await }).await;
        let snapshot = taken.map_err(|error| format!("what it left could not be kept: {error}"))?.snapshot;
        let layer = Layer { snapshot, about: at.brought.note().unwrap_or_default() };
        let kept = self.app.runtime.add_layer(&self.caller.tenant, self.build.id, at.digest, layer).await;
        kept.map_err(|error| format!("what it left could not be kept: {error}"))?;
        Ok(Files::Snapshot(snapshot))
    }
}
