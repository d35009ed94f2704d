//! Templates: made from archives, listed, used and removed.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use cabana_sandbox::{
    Base, Error, Overrides, Result, Sandbox, SandboxPath, SandboxSpec, Service, Template, User, read_all,
};
use futures_util::TryStreamExt;

use super::{
    stage::{Stage, body, broken_body, path},
    unpack::Tar,
    verdict::{Outcome, ensure, refused, same},
};

const MOST: u64 = 1 << 20;

/// As little as can be a root file system, with a mark in it.
fn archive(mark: &str) -> Bytes {
    let (dir, file) = (tar::EntryType::Directory, tar::EntryType::Regular);
    Tar::default()
        .with_mode(0o755)
        .gnu(dir, "./", "", b"")
        .gnu(dir, "etc/", "", b"")
        .gnu(dir, "bin/", "", b"")
        .gnu(file, "bin/sh", "", b"#!/bin/false")
        .gnu(file, "etc/mark", "", mark.as_bytes())
        .done()
}

async fn add(stage: &Stage, name: &str, mark: &str) -> Result<Template> {
    // In pieces that fit no block: nobody promises where a stream is cut.
    let pieces: Vec<Bytes> = archive(mark).chunks(333).map(Bytes::copy_from_slice).collect();
    stage.provider().add_template(name, &Overrides::default(), MOST, body(pieces)).await
}

/// Other cases may run on the same provider.
fn fresh(stage: &Stage) -> String {
    format!("case-{}", stage.id())
}

async fn made_from(stage: &Stage, name: &str) -> Result<Arc<dyn Sandbox>> {
    let spec = SandboxSpec { base: Base::Named(name.into()), ..stage.spec() };
    stage.provider().create(&stage.id(), &spec).await
}

async fn mark(sandbox: &dyn Sandbox) -> Result<Bytes> {
    read_all(&*sandbox.files(None), &path("/etc/mark")?, 100).await
}

async fn is_listed(stage: &Stage, name: &str) -> Result<bool> {
    let all = stage.provider().templates().await?;
    Ok(all.iter().any(|(listed, found)| listed == name && found.as_ref().is_ok_and(|found| found.name == name)))
}

pub(super) async fn a_template_from_an_archive_is_what_sandboxes_begin_with(stage: Arc<Stage>) -> Outcome {
    let name = fresh(&stage);
    add(&stage, &name, "of the template").await?;
    let (one, two) = (made_from(&stage, &name).await?, made_from(&stage, &name).await?);
    same!(mark(&*one).await?, "of the template");
    let root = one.files(Some(&User::root()));
    cabana_sandbox::write_all(&*root, &path("/etc/mark")?, "changed").await?;
    same!(mark(&*two).await?, "of the template", "each sandbox has a layer of its own");
    same!(mark(&*made_from(&stage, &name).await?).await?, "of the template", "the template stays as it is");
    clear(&stage, &name, [one, two]).await
}

async fn clear(stage: &Stage, name: &str, made: impl IntoIterator<Item = Arc<dyn Sandbox>>) -> Outcome {
    for sandbox in made {
        stage.provider().destroy(sandbox.id()).await?;
    }
    stage.clear().await?;
    stage.provider().remove_template(name).await?;
    Ok(())
}

pub(super) async fn what_its_maker_wants_is_in_the_template(stage: Arc<Stage>) -> Outcome {
    let name = fresh(&stage);
    let wishes = Overrides {
        user: Some(User::root()),
        workdir: Some(SandboxPath::new("/srv/work")?),
        env: BTreeMap::from([("NAME".into(), "value".into())]),
        sudo: true,
        service: Some(Service { start: "serve".into(), ready: None }),
    };
    stage.provider().add_template(&name, &wishes, MOST, body([archive("")])).await?;
    let template = stage.provider().template(&name).await?;
    same!((&template.name, template.sudo), (&name, true));
    same!(&template.service, &wishes.service);
    same!((template.defaults.user, template.defaults.workdir), (User::root(), SandboxPath::new("/srv/work")?));
    same!(template.defaults.env.get("NAME").map(String::as_str), Some("value"));
    clear(&stage, &name, []).await
}

pub(super) async fn a_templates_name_is_used_once(stage: Arc<Stage>) -> Outcome {
    let name = fresh(&stage);
    add(&stage, &name, "first").await?;
    refused!(add(&stage, &name, "second").await, Error::TemplateExists(_));
    same!(mark(&*made_from(&stage, &name).await?).await?, "first");
    refused!(add(&stage, "../name", "").await, Error::Invalid { .. });
    clear(&stage, &name, []).await
}

pub(super) async fn what_is_no_whole_archive_makes_no_template(stage: Arc<Stage>) -> Outcome {
    let (name, provider, whole) = (fresh(&stage), stage.provider(), archive("mark"));
    for half in [Bytes::from_static(b"no archive at all"), whole.slice(..whole.len() / 2)] {
        let made = provider.add_template(&name, &Overrides::default(), MOST, body([half])).await;
        refused!(made, Error::Archive(_));
    }
    let broken = provider.add_template(&name, &Overrides::default(), MOST, broken_body("")).await;
    refused!(broken, Error::Offline(_));
    ensure!(!is_listed(&stage, &name).await?, "half a template is in the list");
    refused!(provider.template(&name).await, Error::NoTemplate(_));
    Ok(())
}

pub(super) async fn too_large_an_archive_makes_no_template(stage: Arc<Stage>) -> Outcome {
    let (name, whole) = (fresh(&stage), archive("mark"));
    let most = whole.len() as u64 - 1025; // its end is padding
    let made = stage.provider().add_template(&name, &Overrides::default(), most, body([whole])).await;
    refused!(made, Error::TooLarge { .. });
    refused!(stage.provider().template(&name).await, Error::NoTemplate(_));
    Ok(())
}

pub(super) async fn a_template_is_listed_until_it_is_removed(stage: Arc<Stage>) -> Outcome {
    let name = fresh(&stage);
    let made = add(&stage, &name, "mark").await?;
    ensure!(is_listed(&stage, &name).await?, "it is not in the list");
    same!(stage.provider().template(&name).await?, made);
    stage.provider().remove_template(&name).await?;
    ensure!(!is_listed(&stage, &name).await?, "it is in the list");
    refused!(stage.provider().remove_template(&name).await, Error::NoTemplate(_));
    refused!(made_from(&stage, &name).await, Error::NoTemplate(_));
    Ok(())
}

pub(super) async fn a_template_stays_while_sandboxes_stand_on_it(stage: Arc<Stage>) -> Outcome {
    let name = fresh(&stage);
    add(&stage, &name, "mark").await?;
    let sandbox = made_from(&stage, &name).await?;
    for _ in 0..2 {
        refused!(stage.provider().remove_template(&name).await, Error::TemplateInUse(_));
        stage.provider().stop(sandbox.id()).await?;
    }
    let again = stage.provider().start(sandbox.id()).await?;
    same!(mark(&*again).await?, "mark");
    stage.provider().destroy(sandbox.id()).await?;
    stage.provider().remove_template(&name).await?;
    Ok(())
}

pub(super) async fn a_template_stays_for_one_that_is_shelved(stage: Arc<Stage>) -> Outcome {
    let (name, provider) = (fresh(&stage), stage.provider());
    add(&stage, &name, "mark").await?;
    let sandbox = made_from(&stage, &name).await?;
    provider.stop(sandbox.id()).await?;
    let saved: Vec<Bytes> = provider.save(sandbox.id()).await?.try_collect().await?;
    provider.shelve(sandbox.id()).await?;
    provider.tidy().await?;
    refused!(provider.remove_template(&name).await, Error::TemplateInUse(_));
    let spec = SandboxSpec { base: Base::Named(name.clone()), ..stage.spec() };
    provider.restore(sandbox.id(), &spec, body([saved.concat()])).await?;
    same!(mark(&*provider.start(sandbox.id()).await?).await?, "mark");
    provider.stop(sandbox.id()).await?;
    provider.shelve(sandbox.id()).await?;
    provider.destroy(sandbox.id()).await?;
    provider.remove_template(&name).await?;
    Ok(())
}
