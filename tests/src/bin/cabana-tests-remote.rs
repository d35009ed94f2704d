//! Owns sandboxes for a test, as whoever starts this: a program of its own, since a test has threads when it begins, and the
//! kernel moves no process with threads into a user namespace. The requests are in `cabana_tests::remote`.

use std::{
    collections::HashMap,
    error::Error,
    fs::{self, File},
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use cabana_engine::{Config, Engine, ImageForm, TemplateSource};
use cabana_sandbox::{
    Base, Enforced, Event, ExecSpec, FileInfo, Kept, Limits, Overrides, Process, Provider, Sandbox, SandboxId,
    SandboxPath, SandboxSpec, SnapshotId, User, WriteMode, read_all, run, write_all,
};
use cabana_tests::remote::{Answer, Origin, Ran, Refusal, Request, place};
use futures_util::{StreamExt, TryStreamExt, stream};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Commands that run at the same time.
const AT_ONCE: usize = 8;
const MOST_OUTPUT: usize = 1 << 20;

fn main() -> Outcome<()> {
    cabana_engine::helper_main();
    let dir: PathBuf = std::env::args_os().nth(1).ok_or("a directory")?.into();
    cabana_engine::enter_user_namespace()?;
    tokio::runtime::Runtime::new()?.block_on(serve(&dir))
}

async fn serve(dir: &Path) -> Outcome<()> {
    let engine = Engine::open(Config::new(dir.join(place::DATA))).await?;
    let workshop = Workshop { dir: dir.to_owned(), version: fs::read_to_string(dir.join(place::VERSION))? };
    let mut owner = Owner { engine, workshop, sandboxes: HashMap::new(), started: Vec::new() };
    for line in io::stdin().lock().lines() {
        let answer = match owner.obey(serde_json::from_str(&line?)?).await {
            Ok(answer) => answer,
            Err(error) => match error.downcast::<cabana_sandbox::Error>() {
                Ok(error) => Answer::Refused(refusal(&error)),
                Err(error) => return Err(error),
            },
        };
        println!("{}", serde_json::to_string(&answer)?);
        io::stdout().flush()?;
    }
    for sandbox in owner.sandboxes.values() {
        owner.engine.destroy(sandbox.id()).await?;
    }
    owner.engine.close().await;
    Ok(())
}

fn refusal(error: &cabana_sandbox::Error) -> Refusal {
    Refusal { code: error.code().as_str().to_owned(), why: error.to_string() }
}

struct Owner {
    engine: Arc<Engine>,
    workshop: Workshop,
    sandboxes: HashMap<usize, Arc<dyn Sandbox>>,
    started: Vec<Process>,
}

impl Owner {
    async fn obey(&mut self, request: Request) -> Outcome<Answer> {
        match request {
            Request::Create { sandbox, origin, limited, spec } => {
                let spec = SandboxSpec { limits: self.limits(limited), ..*spec };
                let made = self.create(origin, spec).await?;
                self.sandboxes.insert(sandbox, made);
            }
            Request::CreateInDescriptor { sandbox, origin, limited, number, spec } => {
                let base = self.workshop.in_descriptor(&self.engine, origin, number)?;
                let spec = SandboxSpec { base, limits: self.limits(limited), ..*spec };
                let made = self.engine.create(&SandboxId::random(), &spec).await?;
                self.sandboxes.insert(sandbox, made);
            }
            Request::Install { sandbox, from, at } => {
                let program = Bytes::from(fs::read(from)?);
                let how = cabana_sandbox::Write { perm: Some(0o755), ..cabana_sandbox::Write::new(WriteMode::Replace) };
                let body = stream::once(async move { Ok(program) }).boxed();
                self.sandbox(sandbox)?.files(Some(&User::root())).write(&at, how, body).await?;
            }
            Request::Exec { sandbox, commands } => return Ok(Answer::Ran(self.exec(sandbox, commands).await?)),
            Request::Start { sandbox, command } => {
                let mut process = self.sandbox(sandbox)?.exec(command).await?;
                match process.events.next().await {
                    Some(Ok(Event::Output(_))) => self.started.push(process),
                    other => return Err(format!("the command did not begin: {other:?}").into()),
                }
            }
            Request::Read { sandbox, user, at } => {
                let content = read_all(&*self.sandbox(sandbox)?.files(Some(&user)), &at, MOST_OUTPUT as u64).await?;
                return Ok(Answer::Text(String::from_utf8_lossy(&content).into_owned()));
            }
            Request::Write { sandbox, user, at, content } => {
                write_all(&*self.sandbox(sandbox)?.files(Some(&user)), &at, content).await?;
            }
            Request::List { sandbox, user, at } => {
                let batches: Vec<_> = self.sandbox(sandbox)?.files(Some(&user)).list(&at).await?.try_collect().await?;
                let name = |info: &FileInfo| String::from_utf8_lossy(info.path.name()).into_owned();
                let names: Vec<_> = batches.concat().iter().map(name).collect();
                return Ok(Answer::Text(names.join("\n")));
            }
            Request::Destroy { sandbox } => {
                if let Some(sandbox) = self.sandboxes.remove(&sandbox) {
                    self.engine.destroy(sandbox.id()).await?;
                }
            }
        }
        Ok(Answer::Done)
    }

    fn sandbox(&self, number: usize) -> Outcome<&Arc<dyn Sandbox>> {
        self.sandboxes.get(&number).ok_or_else(|| format!("there is no sandbox {number}").into())
    }

    /// Every limit that holds here, and far more than an attack needs.
    fn limits(&self, limited: bool) -> Limits {
        if !limited {
            return Limits::NONE;
        }
        let can = self.engine.capabilities();
        let held = |enforced: Enforced| enforced != Enforced::No;
        Limits {
            memory: held(can.memory).then_some(512 << 20),
            cpu_milli: held(can.cpu).then_some(2000),
            pids: held(can.pids).then_some(256),
            open_files: held(can.open_files).then_some(4096),
            disk: held(can.disk).then_some(1 << 30),
            ..Limits::NONE
        }
    }

    async fn create(&self, origin: Origin, spec: SandboxSpec) -> Outcome<Arc<dyn Sandbox>> {
        let id = SandboxId::random();
        let base = match origin {
            Origin::Host => Base::Host,
            Origin::Template | Origin::Image => self.workshop.template(&self.engine, origin)?,
            Origin::Snapshot => Base::Snapshot(self.workshop.saved(&self.engine).await?.0),
            Origin::Archive => {
                let archive = fs::read(self.workshop.saved(&self.engine).await?.1)?;
                let body = stream::once(async move { Ok(Bytes::from(archive)) }).boxed();
                self.engine.restore(&id, &SandboxSpec { base: Base::Host, ..spec }, body).await?;
                return Ok(self.engine.start(&id).await?);
            }
        };
        Ok(self.engine.create(&id, &SandboxSpec { base, ..spec }).await?)
    }

    async fn exec(&self, sandbox: usize, commands: Vec<ExecSpec>) -> Outcome<Vec<Result<Ran, Refusal>>> {
        let sandbox = self.sandbox(sandbox)?;
        let ran = commands.into_iter().map(|command| async {
            let text = |kept: Kept| String::from_utf8_lossy(&[kept.head, kept.tail].concat()).into_owned();
            match run(&**sandbox, command, MOST_OUTPUT).await {
                Ok(ran) => Ok(Ran { status: ran.exit.status, out: text(ran.stdout), err: text(ran.stderr) }),
                Err(error) => Err(refusal(&error)),
            }
        });
        Ok(stream::iter(ran).buffered(AT_ONCE).collect().await)
    }
}

/// What sandboxes are made from, made once for all processes that share the data directory.
struct Workshop {
    dir: PathBuf,
    version: String,
}

impl Workshop {
    fn template(&self, engine: &Engine, origin: Origin) -> Outcome<Base> {
        match origin {
            Origin::Image => self.named(engine, "image", &self.image("plain"), &Overrides::default()),
            _ => self.named(engine, "template", &self.root(), &Overrides::default()),
        }
    }

    fn in_descriptor(&self, engine: &Engine, origin: Origin, number: u32) -> Outcome<Base> {
        match origin {
            Origin::Image => {
                let image = self.image(&format!("workdir-{number}"));
                self.named(engine, &format!("image-{number}"), &image, &Overrides::default())
            }
            _ => {
                let workdir: SandboxPath = format!("/proc/self/fd/{number}").parse()?;
                let wishes = Overrides { workdir: Some(workdir), ..Overrides::default() };
                self.named(engine, &format!("template-{number}"), &self.root(), &wishes)
            }
        }
    }

    fn root(&self) -> TemplateSource {
        TemplateSource::Directory(self.dir.join(place::ROOT))
    }

    fn image(&self, reference: &str) -> TemplateSource {
        let path = self.dir.join(place::IMAGE);
        TemplateSource::Image { form: ImageForm::Oci, path, reference: Some(reference.to_owned()) }
    }

    fn named(&self, engine: &Engine, what: &str, source: &TemplateSource, wishes: &Overrides) -> Outcome<Base> {
        let name = format!("{what}-{}", self.version);
        let _lock = self.lock()?;
        let templates = engine.templates();
        if templates.get(&name).is_err() {
            tokio::task::block_in_place(|| templates.add(&name, source, wishes, &mut |_| {}))?;
        }
        Ok(Base::Named(name))
    }

    /// A snapshot, and a file that the same sandbox was saved to.
    async fn saved(&self, engine: &Engine) -> Outcome<(SnapshotId, PathBuf)> {
        let (note, archive) = (self.dir.join("snapshot"), self.dir.join("archive"));
        let _lock = self.lock()?;
        if let Ok(text) = fs::read(&note)
            && let Ok(snapshot) = serde_json::from_slice(&text)
        {
            return Ok((snapshot, archive));
        }
        let (id, snapshot) = (SandboxId::random(), SnapshotId::now());
        let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await?;
        write_all(&*sandbox.files(Some(&User::root())), &"/srv/kept".parse()?, "kept\n").await?;
        engine.stop(&id).await?;
        engine.snapshot(&id, snapshot).await?;
        let saved: Vec<Bytes> = engine.save(&id).await?.try_collect().await?;
        engine.destroy(&id).await?;
        fs::write(&archive, saved.concat())?;
        fs::write(&note, serde_json::to_vec(&snapshot)?)?;
        Ok((snapshot, archive))
    }

    /// Given back when the file is closed.
    fn lock(&self) -> Outcome<File> {
        let file = File::options().create(true).truncate(false).write(true).open(self.dir.join(place::LOCK))?;
        tokio::task::block_in_place(|| file.lock())?;
        Ok(file)
    }
}
