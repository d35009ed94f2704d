//! Whose ids a sandbox has: outside while it lives, and on disk. And what it stands on: layers and templates.

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc};

use cabana_engine::{Engine, TemplateSource};
use cabana_sandbox::{
    Base, Code, Error, ExecSpec, Overrides, Provider, Sandbox, SandboxId, SandboxPath, SandboxSpec, Template,
};

use crate::{
    inside::{Inside, command, field, host, marked, named, passing, path, shell, tiny_root, unique_sleep, until},
    stage,
};

/// Who a user of the sandbox is on the host, as its process shows.
async fn outside(sandbox: &dyn Sandbox, user: &str) -> (u32, u32) {
    let marker = unique_sleep();
    let mut spec = ExecSpec::argv(["sleep", &marker], SandboxPath::root());
    spec.user = Some(named(user));
    let process = sandbox.exec(spec).await.unwrap();
    until("it runs", || marked(&marker).len() == 1).await;
    let id = |name| {
        let ids = field(marked(&marker)[0], name).unwrap();
        let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{name}: {ids:?}");
        ids[0]
    };
    let ids = (id("Uid"), id("Gid"));
    process.control.signal(9, cabana_sandbox::Target::Leader).await.unwrap();
    ids
}

async fn base_of(sandbox: &dyn Sandbox) -> u32 {
    outside(sandbox, "root").await.0
}

#[tokio::test]
async fn users_inside_are_ids_of_a_leased_range_outside() {
    let inside = Inside::new().await;
    let (base, group) = outside(&*inside.sandbox, "root").await;
    assert!((0x7000_0000..0x7ffe_0000).contains(&base) && base.is_multiple_of(65536), "{base:#x}");
    assert_eq!(group, base);
    assert_eq!(outside(&*inside.sandbox, "user").await, (base + 1000, base + 1000));
    assert_eq!(outside(&*inside.sandbox, "nobody").await.0, base + 65534);
    inside.end().await;
}

#[tokio::test]
async fn live_sandboxes_have_ranges_of_their_own_also_from_two_engines() {
    let engines = [stage::engine().await, stage::engine().await];
    let mut bases = std::collections::BTreeSet::new();
    for number in 0..6 {
        let sandbox = engines[number % 2].create(&SandboxId::random(), &passing()).await.unwrap();
        bases.insert(base_of(&*sandbox).await);
    }
    assert_eq!(bases.len(), 6, "{bases:x?}");
    for engine in engines {
        engine.close().await;
    }
}

#[tokio::test]
async fn a_range_comes_back_when_its_sandbox_stops() {
    let inside = Inside::new().await;
    let mut bases = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let id = SandboxId::random();
        let sandbox = inside.engine.create(&id, &passing()).await.unwrap();
        bases.insert(base_of(&*sandbox).await);
        inside.engine.stop(&id).await.unwrap();
    }
    // Each rests for a while, but an engine does not take a new one each time.
    assert!(bases.len() < 20, "{bases:x?}");
    inside.end().await;
}

fn below(dir: &Path, see: &mut dyn FnMut(&Path, &fs::Metadata)) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        see(&entry.path(), &meta);
        if meta.is_dir() {
            below(&entry.path(), see);
        }
    }
}

#[tokio::test]
async fn on_disk_everything_lies_in_the_storage_range() {
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    let script =
        "mkdir -p /srv/a/b && touch /srv/a/x /srv/a/b/y && chown 1234:4321 /srv/a/x && chown 65535:1 /srv/a/b/y
                  ln -s nowhere /srv/a/link && mkfifo /srv/a/pipe && touch /usr/local/z && echo >> /usr/bin/tsort";
    shell(&*sandbox, "root", script).await.ok();
    shell(&*sandbox, "user", "touch /home/user/mine").await.ok();
    cabana_sandbox::write_all(&*sandbox.files(None), &path("/home/user/written"), "x").await.unwrap();
    engine.stop(&id).await.unwrap();

    let mut seen = Vec::new();
    below(&stage::shared_data().join("sandboxes").join(id.as_str()).join("fs"), &mut |at, meta| {
        let range = 0x7ffe_0000..0x7fff_0000;
        assert!(range.contains(&meta.uid()) && range.contains(&meta.gid()), "{} is of {:#x}", at.display(), meta.uid());
        seen.push((
            at.file_name().unwrap().to_string_lossy().into_owned(),
            meta.uid() - range.start,
            meta.gid() - range.start,
        ));
    });
    for (name, user, group) in
        [("x", 1234, 4321), ("y", 65535, 1), ("mine", 1000, 1000), ("written", 1000, 1000), ("tsort", 0, 0)]
    {
        assert!(seen.contains(&(name.to_owned(), user, group)), "{name}: {seen:?}");
    }
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

/// An engine with a data directory of its own, and a small root to make templates of.
struct Workshop {
    dir: tempfile::TempDir,
    engine: Arc<Engine>,
}

impl Workshop {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        tiny_root(&dir.path().join("root"));
        let engine = Engine::open(stage::config(dir.path().join("data"))).await.unwrap();
        Self { dir, engine }
    }

    fn root(&self) -> std::path::PathBuf {
        self.dir.path().join("root")
    }

    fn add(&self, name: &str, wishes: &Overrides) -> Result<Template, Error> {
        self.engine.templates().add(name, &TemplateSource::Directory(self.root()), wishes, &mut |_| {})
    }

    async fn sandbox(&self, template: &str) -> Arc<dyn Sandbox> {
        let spec = SandboxSpec::new(Base::Named(template.into()));
        self.engine.create(&SandboxId::random(), &spec).await.unwrap()
    }

    fn layers(&self) -> usize {
        fs::read_dir(self.dir.path().join("data/layers")).unwrap().count()
    }
}

#[tokio::test]
async fn two_templates_of_one_directory_share_their_layers() {
    let workshop = Workshop::new().await;
    let one = workshop.add("one", &Overrides::default()).unwrap();
    let layers = workshop.layers();
    let two = workshop.add("two", &Overrides::default()).unwrap();
    assert_eq!(one.layers, two.layers);
    assert_eq!(workshop.layers(), layers);

    fs::write(workshop.root().join("etc/changed"), "x").unwrap();
    let three = workshop.add("three", &Overrides::default()).unwrap();
    assert_ne!(three.layers[0], one.layers[0]);
    workshop.engine.close().await;
}

#[tokio::test]
async fn a_template_of_a_directory_runs_its_own_programs() {
    let workshop = Workshop::new().await;
    workshop.add("tiny", &Overrides::default()).unwrap();
    let sandbox = workshop.sandbox("tiny").await;
    assert_eq!(shell(&*sandbox, "user", "id -u; cd; pwd; echo x > y; cat y").await.ok(), "1000\n/home/user\nx");
    assert_eq!(
        shell(&*sandbox, "root", "id -u; ls /bin | while read x; do echo -n $x,; done").await.ok(),
        "0\nbash,cat,chmod,dd,env,id,ls,mkdir,rm,sh,sleep,stat,touch,"
    );
    shell(&*sandbox, "root", "/usr/bin/python3").await.refused();
    // Another sandbox of it has none of the changes, nor has the template.
    let other = workshop.sandbox("tiny").await;
    shell(&*other, "user", "cat /home/user/y").await.refused();
    workshop.engine.close().await;
}

#[tokio::test]
async fn a_template_of_a_tar_is_the_same_as_of_its_directory() {
    let workshop = Workshop::new().await;
    let from_dir = workshop.add("dir", &Overrides::default()).unwrap();
    let (root, plain, packed) =
        (workshop.root(), workshop.dir.path().join("a.tar"), workshop.dir.path().join("a.tar.gz"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    host("tar", &["-C", &text(&root), "-cf", &text(&plain), "."]);
    host("tar", &["-C", &text(&root), "-czf", &text(&packed), "."]);
    for (name, tar) in [("plain", plain), ("packed", packed)] {
        let template =
            workshop.engine.templates().add(name, &TemplateSource::Tar(tar), &Overrides::default(), &mut |_| {});
        let template = template.unwrap();
        let sandbox = workshop.sandbox(name).await;
        assert_eq!(shell(&*sandbox, "user", "echo works").await.ok(), "works");
        assert_eq!(template.layers.len(), from_dir.layers.len());
    }
    workshop.engine.close().await;
}

#[tokio::test]
async fn a_templates_defaults_hold_for_its_sandboxes() {
    let workshop = Workshop::new().await;
    let wishes = Overrides {
        user: Some(named("root")),
        workdir: Some(path("/srv/work")),
        env: [("GREETING".to_owned(), "good morning".to_owned())].into(),
        ..Overrides::default()
    };
    workshop.add("mine", &wishes).unwrap();
    let sandbox = workshop.sandbox("mine").await;
    let defaults = sandbox.defaults().clone();
    assert_eq!((defaults.user.as_str(), defaults.workdir), ("root", path("/srv/work")));
    let spec = ExecSpec::shell("id -u; pwd; echo $GREETING; touch made && stat -c %u made", path("/srv/work"));
    let outcome = cabana_sandbox::run(&*sandbox, spec, 4096).await.unwrap();
    assert_eq!(String::from_utf8(outcome.stdout.whole().unwrap()).unwrap(), "0\n/srv/work\ngood morning\n0\n");

    // What the sandbox is asked to be goes before what its template says.
    let spec = SandboxSpec { user: Some(named("user")), ..SandboxSpec::new(Base::Named("mine".into())) };
    let sandbox = workshop.engine.create(&SandboxId::random(), &spec).await.unwrap();
    assert_eq!(sandbox.defaults().user, named("user"));
    let mut spec = ExecSpec::shell("echo $GREETING", SandboxPath::root());
    spec.env.insert("GREETING".into(), "good night".into());
    assert_eq!(command(&*sandbox, "user", spec).await.ok(), "good night");
    workshop.engine.close().await;
}

#[tokio::test]
async fn a_template_in_use_is_not_removed() {
    let workshop = Workshop::new().await;
    workshop.add("used", &Overrides::default()).unwrap();
    assert!(matches!(workshop.add("used", &Overrides::default()), Err(Error::TemplateExists(name)) if name == "used"));
    let sandbox = workshop.sandbox("used").await;
    let engine = &workshop.engine;
    let remove = || engine.templates().rm("used", &|name| engine.uses_template(name));
    assert_eq!(remove().unwrap_err().code(), Code::TemplateInUse);
    engine.stop(sandbox.id()).await.unwrap();
    assert_eq!(remove().unwrap_err().code(), Code::TemplateInUse);
    engine.destroy(sandbox.id()).await.unwrap();
    remove().unwrap();
    assert_eq!(remove().unwrap_err().code(), Code::TemplateNotFound);
    engine.close().await;
}

#[tokio::test]
async fn a_sandbox_outlives_a_template_that_was_made_anew() {
    let workshop = Workshop::new().await;
    workshop.add("base", &Overrides::default()).unwrap();
    let sandbox = workshop.sandbox("base").await;
    let id = sandbox.id().clone();
    workshop.engine.stop(&id).await.unwrap();
    workshop.engine.templates().rm("base", &|_| false).unwrap();
    fs::write(workshop.root().join("etc/new"), "x").unwrap();
    workshop.add("base", &Overrides::default()).unwrap();
    let sandbox = workshop.engine.start(&id).await.unwrap();
    shell(&*sandbox, "root", "cat /etc/new").await.refused();
    assert_eq!(shell(&*workshop.sandbox("base").await, "root", "cat /etc/new").await.ok(), "x");
    workshop.engine.close().await;
}
