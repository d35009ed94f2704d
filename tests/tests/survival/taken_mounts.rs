//! Owners that are killed while they take a mount away: whoever comes next takes it away from those who are in it, too.

use cabana_sandbox::{ExecId, ExecSpec, Found, Provider, Sandbox, SandboxId, SandboxPath, Status, VolumeId, run};

use crate::{
    owner::Owner,
    stage::{all_of, data, engine, until},
};

const PLACES: [&str; 3] = ["views.recorded", "views.held", "views.taken"];

/// Goes on writing to where it is.
const STAYS: &str = "cd /srv/here && while :; do echo x >> written; sleep 0.01; done";

/// Has nothing but a descriptor in the queue of a socket, which nobody finds.
const HIDES: &str = "exec python3 -c 'import array, os, socket, time; ours, theirs = socket.socketpair(); \
     fd = os.open(\"/srv/here\", os.O_RDONLY); open(\"/srv/here/written\", \"w\").write(\"x\"); \
     ours.sendmsg([b\"x\"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array(\"i\", [fd]))]); \
     os.close(fd); time.sleep(1000)'";

async fn stdout(sandbox: &dyn Sandbox, script: &str) -> String {
    let ran = run(sandbox, ExecSpec::shell(script, SandboxPath::root()), 1 << 16).await.unwrap();
    String::from_utf8(ran.stdout.whole().unwrap()).unwrap().trim().to_owned()
}

/// Of an owner that was killed at that place while it moved a mount in which this command is.
async fn kill(place: &str, command: &str) -> (SandboxId, VolumeId, ExecId) {
    let (id, volume, exec) = (SandboxId::random(), VolumeId::now(), ExecId::now());
    let mut owner = Owner::start_with(&data(), &[("CABANA_FAULT", &format!("{place}@2"))]);
    owner.tell(&format!("create {id} persistent"));
    owner.tell(&format!("show {id} {volume} /srv/here"));
    owner.exec(&id, exec, "output", command);
    let written = data().join("volumes").join(volume.to_string()).join("tree/written");
    until("it writes there", async || written.metadata().is_ok_and(|file| file.len() > 0)).await;
    assert_eq!(owner.ask(&format!("show {id} {volume} /srv/there")), None, "{place}");
    assert!(owner.was_killed(), "{place}");
    (id, volume, exec)
}

#[tokio::test]
async fn a_holder_of_a_mount_whose_removal_was_interrupted_is_ended_by_the_next_owner() {
    for place in PLACES {
        let (id, volume, exec) = kill(place, STAYS).await;
        let engine = engine().await;
        let Found::Running(sandbox) = engine.attach(&id).await.unwrap() else { panic!("{place}: it does not run") };
        assert_eq!(all_of(&*sandbox, exec).await.unwrap().exit.unwrap().status, Status::Signal(9), "{place}");
        assert_eq!(stdout(&*sandbox, "ls /srv/here; ls /srv/there").await, "written", "{place}");
        engine.destroy(&id).await.unwrap();
        engine.remove_volume(volume).await.unwrap();
        engine.close().await;
    }
}

#[tokio::test]
async fn a_mount_whose_removal_was_interrupted_and_that_stays_busy_ends_the_sandbox() {
    let (id, volume, _) = kill("views.recorded", HIDES).await;
    let engine = engine().await;
    assert!(matches!(engine.attach(&id).await.unwrap(), Found::Stopped));
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(stdout(&*sandbox, "ls /srv/here; ls /srv/there").await, "written");
    engine.destroy(&id).await.unwrap();
    engine.remove_volume(volume).await.unwrap();
    engine.close().await;
}
