//! What a sandbox may use, as far as the provider says that it is kept; changed while it runs.

use std::sync::Arc;

use cabana_sandbox::{
    Capabilities, Enforced, Error, Limits, NetworkPolicy, Sandbox, SandboxSpec, State, Status, Wanted,
};

use super::{
    command::Done,
    stage::{Room, Stage, pattern},
    state::listed,
    verdict::{Outcome, ensure, refused, same},
};

const MIB: usize = 1024 * 1024;

async fn with(stage: &Stage, limits: Limits) -> Outcome<Room> {
    let sandbox = stage.provider().create(&stage.id(), &SandboxSpec { limits, ..stage.spec() }).await?;
    Ok(Room::in_sandbox(sandbox, stage.subject()).await?)
}

fn disk(mib: usize) -> Limits {
    Limits { disk: Some((mib * MIB) as u64), ..Limits::NONE }
}

async fn limit(sandbox: &dyn Sandbox, limits: Limits) -> Outcome {
    Ok(sandbox.update(Wanted::Limits(limits)).await?)
}

pub(super) async fn a_write_over_the_disk_limit_is_no_space(stage: Arc<Stage>) -> Outcome {
    let room = with(&stage, disk(6)).await?;
    room.write("first", pattern(4 * MIB)).await?;
    refused!(room.write("second", pattern(4 * MIB)).await, Error::NoSpace);
    same!(room.names().await?, [b"first".to_vec()], "nothing is left of what was refused");
    ensure!(room.read("first").await? == pattern(4 * MIB), "what was there is as it was");
    Ok(())
}

pub(super) async fn what_is_removed_makes_room(stage: Arc<Stage>) -> Outcome {
    let room = with(&stage, disk(6)).await?;
    for round in 0..4 {
        room.write("mark", format!("{round}")).await?;
        room.write("large", pattern(4 * MIB)).await?;
        refused!(room.write("more", pattern(4 * MIB)).await, Error::NoSpace);
        room.remove("large").await?;
    }
    Ok(())
}

pub(super) async fn a_disk_limit_changes_at_run_time_and_stays(stage: Arc<Stage>) -> Outcome {
    let room = with(&stage, Limits::NONE).await?;
    room.write("large", pattern(4 * MIB)).await?;
    limit(&*room.sandbox, disk(6)).await?;
    refused!(room.write("more", pattern(4 * MIB)).await, Error::NoSpace);
    stage.provider().stop(room.sandbox.id()).await?;
    let sandbox = stage.provider().start(room.sandbox.id()).await?;
    let files = sandbox.files(None);
    let more = room.path("more")?;
    refused!(cabana_sandbox::write_all(&*files, &more, pattern(4 * MIB)).await, Error::NoSpace);
    // Less than is there: allowed, and nothing more can be written.
    limit(&*sandbox, disk(2)).await?;
    refused!(cabana_sandbox::write_all(&*files, &more, "x").await, Error::NoSpace);
    ensure!(files.stat(&room.path("large")?).await?.size == 4 * MIB as u64, "what was there is lost");
    limit(&*sandbox, Limits::NONE).await?;
    cabana_sandbox::write_all(&*files, &more, pattern(4 * MIB)).await?;
    Ok(())
}

pub(super) async fn too_many_files_are_no_space(stage: Arc<Stage>) -> Outcome {
    let room = with(&stage, Limits { inodes: Some(100), ..Limits::NONE }).await?;
    let mut made = 0;
    let refusal = loop {
        match room.write(&format!("file-{made}"), "").await {
            Ok(_) if made < 200 => made += 1,
            Ok(_) => return Err(super::verdict::Failure::new("200 files were made, and 100 were allowed")),
            Err(error) => break error,
        }
    };
    ensure!(matches!(refusal, Error::NoSpace), "it must be NoSpace, and is {refusal:?}");
    ensure!(made > 50, "only {made} files could be made");
    refused!(room.make_dir("directory").await, Error::NoSpace);
    refused!(room.link("link", "file-0").await, Error::NoSpace);
    for number in 0..10 {
        room.remove(&format!("file-{number}")).await?;
    }
    room.make_dir("directory").await?;
    Ok(())
}

pub(super) async fn absurd_limits_are_refused_and_change_nothing(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    for limits in [
        Limits { memory: Some(1), ..Limits::NONE },
        Limits { cpu_milli: Some(0), ..Limits::NONE },
        Limits { pids: Some(0), ..Limits::NONE },
        Limits { disk: Some(1), ..Limits::NONE },
        Limits { inodes: Some(0), ..Limits::NONE },
        Limits { open_files: Some(u32::MAX), ..Limits::NONE },
        Limits { io: Some(1), ..Limits::NONE },
    ] {
        let id = stage.id();
        let created = stage.provider().create(&id, &SandboxSpec { limits, ..stage.spec() }).await;
        refused!(created.map(drop), Error::Invalid { .. });
        same!(listed(&stage, &id).await?, []);
        refused!(sandbox.update(Wanted::Limits(limits)).await, Error::Invalid { .. });
    }
    same!(listed(&stage, sandbox.id()).await?, [State::Running]);
    Ok(())
}

pub(super) async fn what_is_not_enforced_is_refused_at_run_time_too(stage: Arc<Stage>) -> Outcome {
    let sandbox = stage.sandbox().await?;
    let can = stage.capabilities();
    for (enforced, wanted) in wishes(&can) {
        let done = sandbox.update(wanted.clone()).await;
        match enforced {
            Enforced::No => refused!(done, Error::Unsupported { .. }),
            _ => done?,
        }
    }
    Ok(())
}

fn wishes(can: &Capabilities) -> [(Enforced, Wanted); 11] {
    let none = Limits::NONE;
    let limits = |limits| Wanted::Limits(limits);
    [
        (can.memory, limits(Limits { memory: Some(1 << 30), ..none })),
        (can.cpu, limits(Limits { cpu_milli: Some(500), ..none })),
        (can.pids, limits(Limits { pids: Some(100), ..none })),
        (can.disk, limits(Limits { disk: Some(1 << 30), ..none })),
        (can.inodes, limits(Limits { inodes: Some(1 << 20), ..none })),
        (can.open_files, limits(Limits { open_files: Some(512), ..none })),
        (can.io, limits(Limits { io: Some(1 << 30), ..none })),
        (can.network_allow, Wanted::Network(NetworkPolicy::Allow(vec!["example.org".into()]))),
        (can.network_public, Wanted::Network(NetworkPolicy::Public)),
        (can.network_host, Wanted::Network(NetworkPolicy::Host)),
        (can.network_off, Wanted::Network(NetworkPolicy::Off)),
    ]
}

pub(super) async fn a_command_over_the_memory_limit_is_out_of_memory(stage: Arc<Stage>) -> Outcome {
    let room = with(&stage, Limits::NONE).await?;
    limit(&*room.sandbox, Limits { memory: Some(64 << 20), ..Limits::NONE }).await?;
    // It keeps what it reads until the last line comes, which never does.
    let Done { status, .. } = room.run(&stage, room.argv(&["tail", "/dev/zero"])).await?;
    same!(status, Status::OutOfMemory);
    same!(room.sh(&stage, "echo goes on").await?.out, "goes on\n");
    Ok(())
}

pub(super) async fn more_processes_than_allowed_are_refused(stage: Arc<Stage>) -> Outcome {
    let room = with(&stage, Limits { pids: Some(16), ..Limits::NONE }).await?;
    let mut running = Vec::new();
    let mut refused = false;
    for _ in 0..32 {
        match stage.soon("an answer", room.sandbox.exec(room.argv(&["sleep", "600"]))).await? {
            Ok(process) => running.push(process),
            Err(_) => refused = true,
        }
    }
    ensure!(refused && running.len() <= 16, "{} of 32 run, and 16 were allowed", running.len());
    limit(&*room.sandbox, Limits::NONE).await?;
    same!(room.sh(&stage, "echo goes on").await?.out, "goes on\n");
    Ok(())
}

pub(super) async fn open_files_are_limited_for_commands_that_begin(stage: Arc<Stage>) -> Outcome {
    let room = with(&stage, Limits { open_files: Some(64), ..Limits::NONE }).await?;
    same!(room.sh(&stage, "ulimit -Hn; ulimit -Sn").await?.out, "64\n64\n");
    limit(&*room.sandbox, Limits { open_files: Some(128), ..Limits::NONE }).await?;
    same!(room.sh(&stage, "ulimit -Hn; ulimit -n 129 2>/dev/null || echo no more").await?.out, "128\nno more\n");
    Ok(())
}

/// Bytes over its own loopback, and an address that nobody has.
const NETWORK: &str = r"
import socket
server = socket.socket()
server.bind(('127.0.0.1', 0))
server.listen()
one = socket.create_connection(server.getsockname(), 20)
other, _ = server.accept()
one.sendall(b'well')
print(other.recv(4).decode())
try:
    out = socket.create_connection(('192.0.2.1', 9), 20)
    out.settimeout(20)
    print('reached' if out.recv(1) else 'refused')
except OSError:
    print('refused')
";

pub(super) async fn without_a_network_the_loopback_works_and_nothing_else(stage: Arc<Stage>) -> Outcome {
    let room = with(&stage, Limits::NONE).await?;
    if room.sh(&stage, "command -v python3").await?.status != Status::Code(0) {
        println!("the base has no python3 to connect with");
        return Ok(());
    }
    let script = room.argv(&["python3", "-c", NETWORK]);
    room.sandbox.update(Wanted::Network(NetworkPolicy::Off)).await?;
    same!(room.run(&stage, script).await?.out, "well\nrefused\n");
    // With another for a while, and then with none again.
    let can = stage.capabilities();
    for (enforced, network) in [
        (can.network_allow, NetworkPolicy::Allow(vec!["192.0.2.7:80".into()])),
        (can.network_public, NetworkPolicy::Public),
        (can.network_off, NetworkPolicy::Off),
    ] {
        if enforced != Enforced::No {
            room.sandbox.update(Wanted::Network(network.clone())).await?;
            let said = room.run(&stage, room.argv(&["python3", "-c", NETWORK])).await?.out;
            same!(said, "well\nrefused\n", "{network:?}");
        }
    }
    Ok(())
}
