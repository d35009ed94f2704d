//! Making, stopping, starting and removing sandboxes.

use std::{collections::BTreeMap, sync::Arc};

use cabana_sandbox::{
    Alter, Base, Depth, Enforced, Error, Found, Limits, NetworkPolicy, Overrides, Read, Result, SandboxId, SandboxSpec,
    SnapshotId, State, User, VolumeId, WriteMode, read_all, write_all,
};
use futures_util::{TryStreamExt, future::try_join_all};

use super::{
    stage::{Room, Stage, body, how},
    verdict::{Outcome, ensure, refused, same},
};

pub(super) async fn create_is_idempotent_by_id(stage: Arc<Stage>) -> Outcome {
    let id = stage.id();
    let first = stage.provider().create(&id, &stage.spec()).await?;
    let room = Room::in_sandbox(first, stage.subject()).await?;
    room.write("mark", "here").await?;
    let second = stage.provider().create(&id, &stage.spec()).await?;
    same!(read_all(&*second.files(None), &room.path("mark")?, 100).await?, "here");
    same!(room.read("mark").await?, "here", "the first handle goes on working");
    Ok(())
}

pub(super) async fn twenty_creates_of_one_id_make_one_sandbox(stage: Arc<Stage>) -> Outcome {
    let (id, spec, provider) = (stage.id(), stage.spec(), stage.provider());
    let made = try_join_all((0..20).map(|_| provider.create(&id, &spec))).await?;
    let home = stage.subject().user().home()?;
    for (number, sandbox) in made.iter().enumerate() {
        write_all(&*sandbox.files(None), &home.join(format!("mark-{number}").as_bytes())?, "here").await?;
    }
    for number in 0..20 {
        let seen =
            read_all(&*made[19 - number].files(None), &home.join(format!("mark-{number}").as_bytes())?, 100).await?;
        same!(seen, "here", "every handle sees what every other wrote");
    }
    same!(listed(&stage, &id).await?, [State::Running]);
    Ok(())
}

pub(super) async fn create_of_a_stopped_one_is_an_error(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    stage.provider().stop(sandbox.id()).await?;
    ensure!(stage.provider().create(sandbox.id(), &stage.spec()).await.is_err(), "a stopped sandbox was created again");
    same!(listed(&stage, sandbox.id()).await?, [State::Stopped]);
    Ok(())
}

pub(super) async fn two_sandboxes_share_no_files(stage: Arc<Stage>) -> Outcome {
    let (first, second) = (stage.room().await?, stage.sandbox().await?);
    first.write("mark", "here").await?;
    refused!(second.files(None).stat(&first.path("mark")?).await, Error::NotFound(_));
    Ok(())
}

pub(super) async fn a_template_that_is_not_there_is_named(stage: Arc<Stage>) -> Outcome {
    let (id, name) = (stage.id(), "no-such-template");
    let spec = SandboxSpec { base: Base::Named(name.into()), ..stage.spec() };
    match stage.provider().create(&id, &spec).await {
        Err(Error::NoTemplate(said)) => same!(said, name),
        Err(other) => ensure!(false, "it must be NoTemplate, and is {other:?}"),
        Ok(_) => ensure!(false, "a sandbox was made from nothing"),
    }
    ensure!(is_absent(&stage, &id).await?, "a create that was refused left something behind");
    Ok(())
}

pub(super) async fn the_handle_says_its_id_and_its_defaults(stage: Arc<Stage>) -> Outcome {
    let id = stage.id();
    let sandbox = stage.provider().create(&id, &stage.spec()).await?;
    same!(sandbox.id(), &id);
    same!(sandbox.defaults().user, stage.subject().user().as_user()?);
    drop(sandbox.files(None).list(&sandbox.defaults().workdir).await?);
    let started = stage.provider().start(&id).await?;
    same!(started.defaults(), sandbox.defaults());
    Ok(())
}

pub(super) async fn the_specs_user_is_the_default(stage: Arc<Stage>) -> Outcome {
    let spec = SandboxSpec { user: Some(User::root()), ..stage.spec() };
    let sandbox = stage.provider().create(&stage.id(), &spec).await?;
    same!(sandbox.defaults().user, User::root());
    let path = stage.subject().user().home()?.join(b"mark")?;
    let info = write_all(&*sandbox.files(None), &path, "here").await?;
    same!(info.owner, "root");
    Ok(())
}

pub(super) async fn a_created_one_is_listed_as_running(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    same!(listed(&stage, sandbox.id()).await?, [State::Running]);
    same!(listed(&stage, &SandboxId::random()).await?, []);
    Ok(())
}

pub(super) async fn a_stopped_one_is_listed_as_stopped(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    stage.provider().stop(sandbox.id()).await?;
    same!(listed(&stage, sandbox.id()).await?, [State::Stopped]);
    Ok(())
}

pub(super) async fn attach_says_what_became_of_it(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let (id, provider) = (room.sandbox.id(), stage.provider());
    room.write("mark", "here").await?;
    let Found::Running(found) = provider.attach(id).await? else {
        return Err(super::verdict::Failure::new("a running one is not found as running"));
    };
    same!(found.id(), id);
    same!(read_all(&*found.files(None), &room.path("mark")?, 100).await?, "here");
    provider.stop(id).await?;
    ensure!(matches!(provider.attach(id).await?, Found::Stopped), "a stopped one is not found as stopped");
    provider.destroy(id).await?;
    ensure!(is_absent(&stage, id).await?, "a removed one is found");
    ensure!(is_absent(&stage, &SandboxId::random()).await?, "one that never was is found");
    Ok(())
}

pub(super) async fn start_of_an_absent_one_is_no_sandbox(stage: Arc<Stage>) -> Outcome {
    let id = stage.id();
    refused!(stage.provider().start(&id).await, Error::NoSandbox(_));
    ensure!(is_absent(&stage, &id).await?, "start made a sandbox");
    Ok(())
}

pub(super) async fn start_of_a_running_one_is_that_one(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let again = stage.provider().start(room.sandbox.id()).await?;
    write_all(&*again.files(None), &room.path("mark")?, "here").await?;
    same!(room.read("mark").await?, "here");
    Ok(())
}

pub(super) async fn stop_twice_is_ok(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    stage.provider().stop(sandbox.id()).await?;
    stage.provider().stop(sandbox.id()).await?;
    same!(listed(&stage, sandbox.id()).await?, [State::Stopped]);
    Ok(())
}

pub(super) async fn stop_keeps_content_modes_links_and_tags_over_rounds(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("content", "as it was").await?;
    room.write("secret", "x").await?;
    room.set_mode("secret", 0o4610).await?;
    room.make_dir("dir").await?;
    room.set_mode("dir", 0o1770).await?;
    room.link("link", "dir/../content").await?;
    let tags = BTreeMap::from([("origin".to_owned(), "upload".to_owned())]);
    room.files.alter(Alter::SetTags(room.path("content")?, tags.clone())).await?;
    let (content, link) = (room.stat("content").await?, room.stat("link").await?);

    for round in 1..=4 {
        stage.provider().stop(room.sandbox.id()).await?;
        let sandbox = stage.provider().start(room.sandbox.id()).await?;
        let files = sandbox.files(None);
        same!(read_all(&*files, &room.path("content")?, 100).await?, "as it was", "round {round}");
        same!(files.stat(&room.path("content")?).await?, content, "round {round}: the file is as it was");
        same!(files.stat(&room.path("secret")?).await?.mode, 0o4610, "round {round}: setuid is kept");
        same!(files.stat(&room.path("dir")?).await?.mode, 0o1770, "round {round}: sticky is kept");
        same!(files.stat(&room.path("link")?).await?, link, "round {round}: the link is as it was");
        same!(files.stat(&room.path("content")?).await?.tags, tags, "round {round}");
        for earlier in 1..round {
            let mark = read_all(&*files, &room.path(format!("round-{earlier}"))?, 100).await?;
            same!(mark, "made while it ran", "what round {earlier} wrote is there in round {round}");
        }
        write_all(&*files, &room.path(format!("round-{round}"))?, "made while it ran").await?;
    }
    Ok(())
}

pub(super) async fn stop_keeps_owners(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let user = stage.subject().user();
    write_all(&*room.root(), &room.path("roots")?, "x").await?;
    room.write("users", "x").await?;
    write_all(&*room.root(), &room.path("given")?, "x").await?;
    room.root().alter(Alter::SetOwner(room.path("given")?, User::new("4242")?)).await?;
    stage.provider().stop(room.sandbox.id()).await?;
    let files = stage.provider().start(room.sandbox.id()).await?.files(None);
    for (name, owner) in [("roots", "root"), ("users", &user.name), ("given", "4242")] {
        same!(files.stat(&room.path(name)?).await?.owner, owner, "{name} belongs to {owner}");
    }
    Ok(())
}

pub(super) async fn destroy_removes_and_twice_is_ok(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let (id, provider) = (room.sandbox.id(), stage.provider());
    room.write("mark", "here").await?;
    provider.destroy(id).await?;
    ensure!(is_absent(&stage, id).await?, "it is there after destroy");
    same!(listed(&stage, id).await?, []);
    provider.destroy(id).await?;
    let again = provider.create(id, &stage.spec()).await?;
    refused!(again.files(None).stat(&room.path("mark")?).await, Error::NotFound(_));

    provider.stop(id).await?;
    provider.destroy(id).await?;
    ensure!(is_absent(&stage, id).await?, "a stopped one is there after destroy");
    Ok(())
}

pub(super) async fn what_is_not_enforced_is_refused_by_name(stage: Arc<Stage>) -> Outcome {
    let can = stage.capabilities();
    let limits = Limits::default();
    let asked = [
        (can.memory, SandboxSpec { limits: Limits { memory: Some(1 << 30), ..limits }, ..stage.spec() }),
        (can.cpu, SandboxSpec { limits: Limits { cpu_milli: Some(500), ..limits }, ..stage.spec() }),
        (can.pids, SandboxSpec { limits: Limits { pids: Some(100), ..limits }, ..stage.spec() }),
        (can.disk, SandboxSpec { limits: Limits { disk: Some(1 << 30), ..limits }, ..stage.spec() }),
        (can.inodes, SandboxSpec { limits: Limits { inodes: Some(1 << 20), ..limits }, ..stage.spec() }),
        (can.open_files, SandboxSpec { limits: Limits { open_files: Some(512), ..limits }, ..stage.spec() }),
        (can.io, SandboxSpec { limits: Limits { io: Some(1 << 30), ..limits }, ..stage.spec() }),
        (can.network_off, SandboxSpec { network: NetworkPolicy::Off, ..stage.spec() }),
        (can.network_allow, SandboxSpec { network: NetworkPolicy::Allow(vec!["example.org".into()]), ..stage.spec() }),
        (can.network_public, SandboxSpec { network: NetworkPolicy::Public, ..stage.spec() }),
        (can.network_host, SandboxSpec { network: NetworkPolicy::Host, ..stage.spec() }),
        (
            if can.host_base { Enforced::ByKernel } else { Enforced::No },
            SandboxSpec { base: Base::Host, ..stage.spec() },
        ),
        (
            if can.read_only_root { Enforced::ByKernel } else { Enforced::No },
            SandboxSpec { read_only_root: true, ..stage.spec() },
        ),
    ];
    for (enforced, spec) in asked {
        let checked = can.check(&spec);
        if enforced != Enforced::No {
            checked?;
            continue;
        }
        let Err(Error::Unsupported { provider, what }) = checked else {
            return Err(super::verdict::Failure::new(format_args!("check does not refuse {spec:?}")));
        };
        let id = stage.id();
        match stage.provider().create(&id, &spec).await {
            Err(Error::Unsupported { provider: by, what: said }) => same!((by, said), (provider, what)),
            Err(other) => ensure!(false, "create must refuse {what} as Unsupported, and says {other:?}"),
            Ok(_) => ensure!(false, "create pretends to keep {what}"),
        }
        ensure!(is_absent(&stage, &id).await?, "a create that was refused left something behind");
    }
    Ok(())
}

pub(super) async fn what_cannot_be_done_is_unsupported_and_not_pretended(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    let (can, provider) = (stage.capabilities(), stage.provider());
    if !can.pause {
        refused!(provider.pause(sandbox.id()).await, Error::Unsupported { .. });
    }
    if !can.snapshot {
        refused!(provider.snapshot(sandbox.id(), SnapshotId::now()).await, Error::Unsupported { .. });
        refused!(provider.snapshots().await, Error::Unsupported { .. });
        refused!(provider.remove_snapshot(SnapshotId::now()).await, Error::Unsupported { .. });
    }
    if !can.templates {
        let made = provider.add_template("never", &Overrides::default(), 1 << 20, body([""; 0])).await;
        refused!(made, Error::Unsupported { .. });
        refused!(provider.templates().await, Error::Unsupported { .. });
        refused!(provider.template("never").await, Error::Unsupported { .. });
        refused!(provider.remove_template("never").await, Error::Unsupported { .. });
    }
    if !can.exec {
        let spec = cabana_sandbox::ExecSpec::shell("true", sandbox.defaults().workdir.clone());
        refused!(sandbox.exec(spec).await, Error::Unsupported { .. });
    }
    if !can.connect {
        refused!(sandbox.connect(80).await, Error::Unsupported { .. });
    }
    if !can.late_views {
        refused!(sandbox.update(cabana_sandbox::Wanted::Views(Vec::new())).await, Error::Unsupported { .. });
    }
    if !can.volumes {
        refused!(provider.make_volume(VolumeId::now()).await, Error::Unsupported { .. });
        refused!(provider.volumes().await, Error::Unsupported { .. });
        refused!(provider.remove_volume(VolumeId::now()).await, Error::Unsupported { .. });
    }
    same!(listed(&stage, sandbox.id()).await?, [State::Running]);
    Ok(())
}

pub(super) async fn a_stopped_ones_old_handle_is_gone(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("mark", "here").await?;
    stage.provider().stop(room.sandbox.id()).await?;
    is_gone(&stage, &room).await
}

pub(super) async fn a_destroyed_ones_handle_is_gone(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("mark", "here").await?;
    stage.provider().destroy(room.sandbox.id()).await?;
    is_gone(&stage, &room).await
}

/// Says `Gone` to everything, and soon.
async fn is_gone(stage: &Stage, room: &Room) -> Outcome {
    let (files, sandbox, mark) = (&room.files, &room.sandbox, room.path("mark")?);
    refused!(stage.soon("stat", files.stat(&mark)).await?, Error::Gone);
    refused!(stage.soon("list", files.list(&room.dir)).await?, Error::Gone);
    refused!(stage.soon("read", files.read(&mark, Read::default())).await?, Error::Gone);
    refused!(stage.soon("write", files.write(&mark, how(WriteMode::Replace), body(["x"]))).await?, Error::Gone);
    refused!(stage.soon("alter", files.alter(Alter::Remove(mark.clone()))).await?, Error::Gone);
    refused!(stage.soon("watch", files.watch(&room.dir, Depth::Here)).await?, Error::Gone);
    refused!(stage.soon("usage", sandbox.usage()).await?, Error::Gone);
    refused!(stage.soon("processes", sandbox.processes()).await?, Error::Gone);
    if stage.capabilities().exec {
        let spec = cabana_sandbox::ExecSpec::shell("true", room.dir.clone());
        refused!(stage.soon("exec", sandbox.exec(spec)).await?, Error::Gone);
    }
    Ok(())
}

/// What the list says about one id: at most one state.
pub(super) async fn listed(stage: &Stage, id: &SandboxId) -> Result<Vec<State>> {
    let all: Vec<_> = stage.provider().list().await?.try_collect().await?;
    Ok(all.into_iter().filter(|(listed, _)| listed == id).map(|(_, state)| state).collect())
}

async fn is_absent(stage: &Stage, id: &SandboxId) -> Result<bool> {
    Ok(matches!(stage.provider().attach(id).await?, Found::Absent))
}
