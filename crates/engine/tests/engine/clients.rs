//! Real clients inside, and real servers in a world of the test's own (`cabana_testkit::world`): what is allowed works over
//! both families, in both modes, and what is not listed is refused in words that say so.

mod apt;
mod authority;
mod curl;
mod git;
mod java;
mod node;
mod npm;
mod pip;
mod psql;
mod sockets;
mod upstream;

use std::{path::PathBuf, sync::Arc};

use cabana_engine::{Config, Engine, NetworkSettings};
use cabana_sandbox::{NetworkPolicy, Provider, SandboxId, SandboxSpec, Wanted};
use cabana_testkit::world::World;

use crate::{
    inside::{Inside, passing},
    stage,
};

/// A site that has only an address of IPv4, and one that has only one of IPv6.
pub(crate) const FOUR: &str = "four.example";
pub(crate) const FOUR_ADDRESS: &str = "93.184.216.34";
pub(crate) const SIX: &str = "six.example";
pub(crate) const SIX_ADDRESS: &str = "2606:2800:220:1::34";
pub(crate) const BOTH: [&str; 2] = [FOUR, SIX];
/// A site that is there, and on no list.
pub(crate) const OTHER: &str = "other.example";
const OTHER_ADDRESS: &str = "93.184.216.35";

/// The sites, with all files of a directory over HTTPS. Gives that directory.
pub(crate) fn sites(world: &World) -> PathBuf {
    world.site(FOUR, &[FOUR_ADDRESS]);
    world.site(SIX, &[SIX_ADDRESS]);
    world.site(OTHER, &[OTHER_ADDRESS]);
    let files = world.dir().join("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("hello.txt"), "hello from the world\n").unwrap();
    world.https(&files, FOUR_ADDRESS, &[FOUR, SIX, OTHER]);
    files
}

/// The lists and modes under which the sites are allowed.
pub(crate) fn allowing() -> [NetworkPolicy; 2] {
    [NetworkPolicy::Public, listed()]
}

pub(crate) fn listed() -> NetworkPolicy {
    NetworkPolicy::Allow(BOTH.map(str::to_owned).into())
}

/// A sandbox that trusts the world's authority.
pub(crate) async fn open(world: &World, network: NetworkPolicy) -> Inside {
    let settings = NetworkSettings { ca: Some(world.authority()), ..NetworkSettings::default() };
    open_with(settings, network).await
}

pub(crate) async fn open_with(network: NetworkSettings, policy: NetworkPolicy) -> Inside {
    let engine: Arc<Engine> =
        Engine::open(Config { network, ..stage::config(stage::shared_data()) }).await.expect("an engine on this host");
    let spec = SandboxSpec { network: policy, ..passing() };
    let sandbox = engine.create(&SandboxId::random(), &spec).await.expect("a sandbox");
    Inside { engine, sandbox }
}

impl Inside {
    async fn set(&self, policy: NetworkPolicy) {
        self.sandbox.update(Wanted::Network(policy)).await.unwrap();
    }
}
