//! Templates of the fake: files that were unpacked from an archive, by name.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use cabana_sandbox::{Base, Defaults, Error, Overrides, Result, SandboxPath, Stream, Template, User, unpack};
use futures_util::{StreamExt, TryStreamExt};

use super::{Fake, Fault, files::FakeFiles, fs::Fs, lock, sandbox::Session};

pub(super) struct Made {
    template: Template,
    fs: Fs,
}

impl Fake {
    pub(super) fn listed_templates(&self) -> Vec<(String, Result<Template>)> {
        if self.has(Fault::TemplatesAreNotListed) {
            return Vec::new();
        }
        lock(&self.templates).iter().map(|(name, made)| (name.clone(), Ok(made.template.clone()))).collect()
    }

    pub(super) fn one_template(&self, name: &str) -> Result<Template> {
        let made = lock(&self.templates).get(name).map(|made| made.template.clone());
        made.ok_or_else(|| Error::NoTemplate(name.into()))
    }

    pub(super) fn template_files(&self, name: &str) -> Option<Arc<Mutex<Fs>>> {
        lock(&self.templates).get(name).map(|made| Arc::new(Mutex::new(made.fs.copy())))
    }

    fn check_new(&self, name: &str) -> Result<()> {
        if name.contains('/') {
            return Err(Error::invalid("template", "has a slash in it"));
        }
        let taken = name == "fake" || lock(&self.templates).contains_key(name);
        if taken && !self.has(Fault::TemplateIsReplaced) { Err(Error::TemplateExists(name.into())) } else { Ok(()) }
    }

    pub(super) async fn make_template(
        &self,
        name: &str,
        wishes: &Overrides,
        most: u64,
        tar: Stream<Bytes>,
    ) -> Result<Template> {
        self.check_new(name)?;
        let most = if self.has(Fault::TemplateIgnoresTheBound) { u64::MAX } else { most };
        let read = Arc::new(AtomicU64::new(0));
        let bounded = tar.and_then({
            let read = read.clone();
            move |bytes| {
                let sum = read.fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64;
                std::future::ready(if sum > most { Err(Error::TooLarge { cap: most }) } else { Ok(bytes) })
            }
        });
        let fs = Arc::new(Mutex::new(Fs::new(None)));
        let files = FakeFiles::new(Session::new(fs.clone()), User::root(), None);
        let unpacked = unpack(&files, &SandboxPath::root(), bounded.boxed()).await;
        if !self.has(Fault::TemplateIsHalfMade) {
            unpacked?;
        }
        let env = if self.has(Fault::TemplateForgetsWishes) { Default::default() } else { wishes.env.clone() };
        let user = wishes.user.clone().unwrap_or(User::new("user")?);
        let workdir = wishes.workdir.clone().unwrap_or(SandboxPath::new("/home/user")?);
        let template = Template {
            name: name.into(),
            layers: Vec::new(),
            defaults: Defaults { user, workdir, env },
            sudo: wishes.sudo,
            service: wishes.service.clone(),
            made: "2026-01-01T00:00:00Z".into(),
            source: "upload".into(),
        };
        self.check_new(name)?;
        let mut fs = lock(&fs).copy();
        fs.fault = self.fault;
        if self.has(Fault::TemplateIsEmpty) {
            fs = Fs::new(self.fault);
        }
        lock(&self.templates).insert(name.into(), Made { template: template.clone(), fs });
        Ok(template)
    }

    pub(super) fn forget_template(&self, name: &str) -> Result<()> {
        self.one_template(name)?;
        let base = Base::Named(name.into());
        let used = self.boxes().values().any(|there| there.spec.base == base)
            || lock(&self.shelf).values().any(|shelved| *shelved == base);
        if used && !self.has(Fault::UsedTemplateIsRemoved) {
            return Err(Error::TemplateInUse(name.into()));
        }
        if !self.has(Fault::TemplateRemovalIsPretended) {
            lock(&self.templates).remove(name);
        }
        Ok(())
    }
}
