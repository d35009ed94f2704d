//! Templates: named stacks of layers with the defaults of their sandboxes, one `templates/<name>.json` each.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use cabana_sandbox::{Defaults, Error, LayerId, Overrides, Result, SandboxPath, Service, Template, User};
use serde::{Deserialize, Serialize};

use super::{
    completion, failed, host_base,
    lock::Lock,
    name::LayerName,
    rooted::Rooted,
    source::{self, Progress, TemplateSource},
    store::{Hold, Sealed, Store},
};
use crate::DataDir;

/// The name of the host base, which is no template but stands where a template's name stands.
const HOST: &str = "host";

/// What puts a tree into an empty directory, and tells what it suggests for commands.
type Fill<'a> = &'a mut dyn FnMut(&File, &mut dyn FnMut(Progress<'_>)) -> Result<Overrides>;

/// A template before it has its name. Its layers stay as long as this lives.
pub struct Unnamed {
    template: Template,
    _layers_stay: Hold,
}

impl Unnamed {
    /// The lowest first.
    pub fn layers(&self) -> &[LayerId] {
        &self.template.layers
    }

    /// On top of what is there.
    pub fn add(&mut self, layer: LayerId) {
        self.template.layers.push(layer);
    }

    pub fn set_source(&mut self, source: &str) {
        source.clone_into(&mut self.template.source);
    }
}

#[derive(Debug)]
pub struct Templates<'a> {
    data: &'a DataDir,
    dir: PathBuf,
    store: &'a Store,
}

impl<'a> Templates<'a> {
    pub fn new(data: &'a DataDir, store: &'a Store) -> Self {
        Self { data, dir: data.templates(), store }
    }

    /// Makes a template, or leaves nothing behind.
    pub fn add(
        &self,
        name: &str,
        source: &TemplateSource,
        wishes: &Overrides,
        on_progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Template> {
        self.make(name, source.describe(), wishes, on_progress, &mut |into, on_progress| {
            source.fill(name, into, self.store, self.data.dir(), on_progress)
        })
    }

    /// What a template is made from, without its name: whoever goes on with it adds what is missing, and then
    /// [names](Self::name) it.
    pub fn begin(
        &self,
        name: &str,
        source: &TemplateSource,
        wishes: &Overrides,
        on_progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Unnamed> {
        check_name(name)?;
        let fill: Fill<'_> = &mut |into, on_progress| source.fill(name, into, self.store, self.data.dir(), on_progress);
        let (template, layers) = self.filled(name, source.describe(), wishes, on_progress, fill)?;
        let _layers_stay = self.store.hold()?;
        for layer in layers {
            layer.keep()?;
        }
        Ok(Unnamed { template, _layers_stay })
    }

    /// The same on what another template stands on. What is not wished otherwise is as it is there.
    pub fn begin_on(&self, name: &str, other: &str, wishes: &Overrides) -> Result<Unnamed> {
        check_name(name)?;
        let _layers_stay = self.store.hold()?;
        let mut template = self.get(other)?;
        template.name = name.into();
        template.source = format!("template {other}");
        template.made = now();
        template.sudo |= wishes.sudo;
        if wishes.service.is_some() {
            template.service.clone_from(&wishes.service);
        }
        let Defaults { user, workdir, env } = &mut template.defaults;
        if let Some(wish) = &wishes.user {
            user.clone_from(wish);
        }
        if let Some(wish) = &wishes.workdir {
            workdir.clone_from(wish);
        }
        env.extend(wishes.env.clone());
        Ok(Unnamed { template, _layers_stay })
    }

    /// Whether there is one already, `replace` decides: sandboxes that were made from it stay what they are.
    pub fn name(&self, unnamed: Unnamed, replace: bool) -> Result<Template> {
        self.publish(&unnamed.template, [], replace)?;
        Ok(unnamed.template)
    }

    /// From what comes from elsewhere: at most so many bytes, once they are unpacked.
    pub(crate) fn add_sent(&self, name: &str, tar: &mut dyn Read, most: u64, wishes: &Overrides) -> Result<Template> {
        self.make(name, "upload".into(), wishes, &mut |_| {}, &mut |into, _| {
            source::unpack_sent(tar, most, into, self.store.ids()).map(|()| Overrides::default())
        })
    }

    /// Before whoever would send it sends it.
    pub(crate) fn check_new(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.check_free(name)
    }

    fn make(
        &self,
        name: &str,
        source: String,
        wishes: &Overrides,
        on_progress: &mut dyn FnMut(Progress<'_>),
        fill: Fill<'_>,
    ) -> Result<Template> {
        self.check_new(name)?; // before the work, and once more under the lock
        let (template, layers) = self.filled(name, source, wishes, on_progress, fill)?;
        let _until_named = self.store.hold()?;
        self.publish(&template, layers, false)?;
        Ok(template)
    }

    fn filled(
        &self,
        name: &str,
        source: String,
        wishes: &Overrides,
        on_progress: &mut dyn FnMut(Progress<'_>),
        fill: Fill<'_>,
    ) -> Result<(Template, [Sealed; 2])> {
        let draft = self.store.draft()?;
        let wishes = &over(fill(&draft.root, on_progress)?, wishes);
        let tree = Rooted::new(&draft.root, &draft.tree, self.store.ids());
        if let Some(why) = completion::objection(&tree)? {
            return Err(Error::BadTemplate { name: name.into(), why });
        }
        let top = self.store.draft()?;
        let defaults = completion::complete(name, &tree, &top.tree, self.store.ids(), wishes)?;
        on_progress(Progress::Checking);
        let layers = [draft.seal()?, top.seal()?];
        let template = Template {
            name: name.into(),
            layers: layers.iter().map(|layer| layer.id).collect(),
            defaults,
            sudo: wishes.sudo,
            service: wishes.service.clone(),
            made: now(),
            source,
        };
        Ok((template, layers))
    }

    pub fn get(&self, name: &str) -> Result<Template> {
        check_name(name)?;
        let bad = |why: String| Error::BadTemplate { name: name.into(), why };
        let file = self.file(name);
        let text = match fs::read(&file) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(Error::NoTemplate(name.into())),
            text => text.map_err(failed("reading the template"))?,
        };
        let record: Record = serde_json::from_slice(&text)
            .map_err(|e| bad(format!("its file {} is damaged ({e}): remove it and add it again", file.display())))?;
        if let Some(missing) = record.layers.iter().find(|layer| !self.store.has(*layer)) {
            return Err(bad(format!("its layer {missing} is not there any more: remove it and add it again")));
        }
        Ok(record.named(name))
    }

    /// By name. A damaged one is listed with its error and hides no other.
    pub fn ls(&self) -> Result<Vec<(String, Result<Template>)>> {
        let names = self.names().map_err(failed("listing the templates"))?;
        Ok(names.into_iter().map(|name| (name.clone(), self.get(&name))).collect())
    }

    /// Removes the name. Its layers go with the next [`Store::remove_unused`].
    pub fn rm(&self, name: &str, in_use: &dyn Fn(&str) -> bool) -> Result<()> {
        check_name(name)?;
        let _alone = self.lock()?;
        if !self.file(name).exists() {
            return Err(Error::NoTemplate(name.into()));
        }
        if in_use(name) {
            return Err(Error::TemplateInUse(name.into()));
        }
        fs::remove_file(self.file(name)).map_err(failed("removing the template"))
    }

    /// Every layer that a template or the host base needs, but for these templates.
    pub fn layers(&self, without: &[&str]) -> Result<BTreeSet<LayerName>> {
        let mut layers: BTreeSet<_> = host_base::layers(self.data)?.into_iter().map(LayerName::Content).collect();
        for (_, template) in self.ls()?.into_iter().filter(|(name, _)| !without.contains(&name.as_str())) {
            layers.extend(template?.layers.into_iter().map(LayerName::Content));
        }
        Ok(layers)
    }

    /// One that was made elsewhere, of layers that are here.
    pub(crate) fn adopt(&self, template: &Template) -> Result<()> {
        self.check_new(&template.name)?;
        self.publish(template, [], false)
    }

    /// All that can fail for want of space is done before the layers get their names: then only renames are left.
    fn publish<const N: usize>(&self, template: &Template, layers: [Sealed; N], replace: bool) -> Result<()> {
        let _alone = self.lock()?;
        if !replace {
            self.check_free(&template.name)?;
        }
        let new = self.dir.join(".new");
        let published = self.publish_through(&new, template, layers);
        published.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    fn publish_through(&self, new: &Path, template: &Template, layers: impl IntoIterator<Item = Sealed>) -> Result<()> {
        write(new, &Record::from(template)).map_err(failed("writing the template"))?;
        for layer in layers {
            layer.keep()?;
        }
        fs::rename(new, self.file(&template.name)).map_err(failed("naming the template"))
    }

    fn check_free(&self, name: &str) -> Result<()> {
        if self.file(name).exists() { Err(Error::TemplateExists(name.into())) } else { Ok(()) }
    }

    fn lock(&self) -> Result<Lock> {
        Lock::exclusive(&self.dir).map_err(failed("locking the templates"))
    }

    fn names(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.dir)? {
            let file = entry?.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(".json"));
            names.extend(name.filter(|name| check_name(name).is_ok()).map(str::to_owned));
        }
        Ok(names)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }
}

/// What was wished, and what was suggested where nothing was.
fn over(suggested: Overrides, wishes: &Overrides) -> Overrides {
    let mut all = wishes.clone();
    all.user = all.user.or(suggested.user);
    all.workdir = all.workdir.or(suggested.workdir);
    all.env = suggested.env.into_iter().chain(all.env).collect();
    all
}

/// A name is part of a file's name, and of what people type.
fn check_name(name: &str) -> Result<()> {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = name.len() <= 64 && name.starts_with(letter) && name.chars().all(|c| letter(c) || ".-_".contains(c));
    if !fits {
        return Err(Error::invalid("template", format!("{name:?} must match [a-z0-9][a-z0-9._-]{{0,63}}")));
    }
    if name == HOST {
        return Err(Error::invalid(
            "template",
            "`host` is the machine's own base, which is always there: choose another name",
        ));
    }
    Ok(())
}

/// The file. Paths are text in it, for people to read.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    layers: Vec<LayerId>,
    user: User,
    workdir: PathText,
    env: BTreeMap<String, String>,
    #[serde(default)]
    sudo: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    service: Option<Service>,
    made: String,
    source: String,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct PathText(SandboxPath);

impl TryFrom<String> for PathText {
    type Error = cabana_sandbox::PathError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        SandboxPath::new(text).map(Self)
    }
}

impl From<PathText> for String {
    fn from(path: PathText) -> String {
        path.0.to_string()
    }
}

impl From<&Template> for Record {
    fn from(template: &Template) -> Self {
        let Template { layers, defaults, sudo, service, made, source, .. } = template.clone();
        let Defaults { user, workdir, env } = defaults;
        Self { layers, user, workdir: PathText(workdir), env, sudo, service, made, source }
    }
}

impl Record {
    fn named(self, name: &str) -> Template {
        let defaults = Defaults { user: self.user, workdir: self.workdir.0, env: self.env };
        let Self { layers, sudo, service, made, source, .. } = self;
        Template { name: name.into(), layers, defaults, sudo, service, made, source }
    }
}

/// Durable before it gets its name.
pub(crate) fn write(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut text = serde_json::to_vec_pretty(record)?;
    text.push(b'\n');
    file.write_all(&text)?;
    file.sync_all()
}

pub(crate) fn now() -> String {
    rfc3339(SystemTime::now())
}

/// `2026-01-31T23:59:59Z`. Years begin in March here, so that the leap day is the last of its year.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, clock) = (seconds / 86_400 + 719_468, seconds % 86_400); // since 0000-03-01
    let (era, day) = (days / 146_097, days % 146_097); // of 400 years
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", clock / 3600, clock / 60 % 60, clock % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn names_are_plain_and_host_is_taken() {
        for bad in ["", ".a", "-a", "A", "a/b", "a b", "ä", "host", "..", &"a".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "0", "py3.11", "my_tools-2", &"a".repeat(64)] {
            assert!(check_name(good).is_ok(), "{good:?}");
        }
    }
}
