//! `cabana template build`: a template by a recipe.
//!
//! What packages bring is unpacked as any template is. The recipe's own commands run inside a sandbox of it, without a network;
//! what they write becomes one more layer, and only then the template gets its name. So nothing of it runs outside, and what
//! fails leaves nothing.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use cabana_engine::{Engine, Progress};
use cabana_model::Code;
use cabana_sandbox::{
    Base, Error, Event, ExecSpec, Files, Lifetime, Provider, Sandbox, SandboxId, SandboxPath, SandboxSpec, Status,
    Stream, User, Write, WriteMode, make_dirs,
};
use futures_util::{StreamExt, stream};

use super::{
    progress::Bar,
    recipe::{From, Recipe, Step, WHEELS},
    wheels,
};
use crate::failure::Failure;

/// How many of its last lines explain a failure.
const TAIL: usize = 12;

/// Makes the template, and first that of the recipe that this one stands on.
pub(super) async fn build(engine: &Engine, recipe: &str, name: Option<String>, force: bool) -> Result<(), Failure> {
    let (asked, recipe) = (recipe, Recipe::of(recipe)?);
    let name = name.unwrap_or_else(|| recipe.template.clone());
    match engine.templates().get(&name) {
        Err(Error::NoTemplate(_)) => {}
        Ok(_) | Err(Error::BadTemplate { .. }) if force => {}
        Ok(_) | Err(Error::BadTemplate { .. }) => {
            let why = format!("there is a template {name} already");
            let hint = "--force replaces it, and --name gives this one another name.";
            return Err(Failure::new(Code::TemplateExists, why).with_hint(hint));
        }
        Err(error) => return Err(error.into()),
    }
    if let From::Recipe(other) = &recipe.from {
        let below = Recipe::of(other)?.template;
        if matches!(engine.templates().get(&below), Err(Error::NoTemplate(_))) {
            Box::pin(build(engine, other, None, false)).await?;
        }
    }
    let mut bar = Bar::start(&name);
    let made = Building { engine, recipe: &recipe, name: &name, bar: &mut bar }.make(asked, force).await;
    bar.end(made.is_ok());
    if let Err(error) = engine.remove_unused_layers() {
        crate::failure::tell(&format!("warning: layers that nothing uses now could not be removed: {error}"));
    }
    made
}

struct Building<'a> {
    engine: &'a Engine,
    recipe: &'a Recipe,
    name: &'a str,
    bar: &'a mut Bar,
}

impl Building<'_> {
    async fn make(&mut self, asked: &str, force: bool) -> Result<(), Failure> {
        let wheels = match &self.recipe.wheels {
            Some(wheels) => Some(wheels::fetch(wheels, &mut |line| self.bar.show(Progress::Says(line)))?),
            None => None,
        };
        let (templates, wishes) = (self.engine.templates(), self.recipe.wishes()?);
        let mut unnamed = match &self.recipe.from {
            From::Recipe(other) => templates.begin_on(self.name, &Recipe::of(other)?.template, &wishes)?,
            from => {
                let source = from.source().ok_or_else(|| Failure::bad("the recipe stands on nothing"))?;
                templates.begin(self.name, &source, &wishes, &mut |progress| self.bar.show(progress))?
            }
        };
        let id = SandboxId::random();
        let spec = SandboxSpec {
            lifetime: Lifetime::Ephemeral,
            sudo: true,
            ..SandboxSpec::new(Base::Layers(unnamed.layers().to_vec()))
        };
        let sandbox = self.engine.create(&id, &spec).await?;
        let finished = self.finish(&*sandbox, wheels.as_ref().map(wheels::Fetched::files).unwrap_or_default()).await;
        drop(sandbox);
        if finished.is_err() {
            self.engine.destroy(&id).await?;
        }
        finished?;
        self.bar.show(Progress::Checking);
        if let Some(layer) = self.engine.into_layer(&id).await? {
            unnamed.add(layer);
        }
        unnamed.set_source(&format!("recipe {asked}"));
        templates.name(unnamed, force)?;
        Ok(())
    }

    async fn finish(&mut self, sandbox: &dyn Sandbox, wheels: &[PathBuf]) -> Result<(), Failure> {
        let files = sandbox.files(Some(&User::root()));
        for file in &self.recipe.files {
            let at = path(&file.at)?;
            write(&*files, &at, file.mode, file.text().to_owned().into()).await?;
        }
        let shelf = path(WHEELS)?;
        for wheel in wheels {
            let name = wheel.file_name().unwrap_or_default().to_string_lossy();
            let content = fs::read(wheel).map_err(|error| Error::failed("reading a wheel", error))?;
            write(&*files, &path(&format!("{shelf}/{name}"))?, 0o644, content.into()).await?;
        }
        for step in &self.recipe.run {
            self.step(sandbox, step).await?;
        }
        if !wheels.is_empty() {
            files.alter(cabana_sandbox::Alter::RemoveAll(shelf)).await?;
        }
        Ok(())
    }

    async fn step(&mut self, sandbox: &dyn Sandbox, Step { why, script }: &Step) -> Result<(), Failure> {
        self.bar.show(Progress::Says(why));
        let spec = ExecSpec { user: Some(User::root()), ..ExecSpec::shell(script.as_str(), SandboxPath::root()) };
        let mut events = sandbox.exec(spec).await?.events;
        let mut lines = Lines::default();
        while let Some(event) = events.next().await {
            match event? {
                Event::Output(output) => lines.take(&output.bytes, |line| self.bar.show(Progress::Says(line))),
                Event::Exit(exit) if exit.status == Status::Code(0) => return Ok(()),
                Event::Exit(exit) => return Err(self.failed(&format!("ended ({:?})", exit.status), why, lines)),
            }
        }
        Err(self.failed("was lost", why, lines))
    }

    fn failed(&self, how: &str, why: &str, lines: Lines) -> Failure {
        let words = Vec::from(lines.end()).join("\n");
        let message = format!("template {}: a command of its recipe {how}: {why}. Its last words:\n{words}", self.name);
        Failure::new(Code::TemplateInvalid, message).with_hint("Nothing was made. Try it again, or tell of it.")
    }
}

fn path(text: &str) -> cabana_sandbox::Result<SandboxPath> {
    Ok(SandboxPath::new(text)?)
}

/// With the directories above it.
async fn write(files: &dyn Files, at: &SandboxPath, mode: u32, content: Bytes) -> cabana_sandbox::Result<()> {
    if let Some(above) = at.as_path().parent().and_then(Path::to_str) {
        make_dirs(files, &path(above)?).await?;
    }
    let how = Write { perm: Some(mode), ..Write::new(WriteMode::Replace) };
    let body: Stream<Bytes> = stream::iter([Ok(content)]).boxed();
    files.write(at, how, body).await.map(drop)
}

/// What a program says, line by line, and the last of it.
#[derive(Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
    tail: VecDeque<String>,
}

impl Lines {
    /// A line that never ends is cut.
    const LONGEST: usize = 4 << 10;

    pub(super) fn take(&mut self, bytes: &[u8], mut tell: impl FnMut(&str)) {
        for byte in bytes {
            if !matches!(byte, b'\n' | b'\r') && self.begun.len() < Self::LONGEST {
                self.begun.push(*byte);
                continue;
            }
            if let Some(line) = self.whole() {
                tell(&line);
            }
        }
    }

    fn whole(&mut self) -> Option<String> {
        let line = crate::failure::plain(String::from_utf8_lossy(&std::mem::take(&mut self.begun)).trim());
        if line.is_empty() {
            return None;
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line.clone());
        Some(line)
    }

    pub(super) fn end(mut self) -> VecDeque<String> {
        self.whole();
        self.tail
    }
}
