//! Servers that are killed at random moments under mixed load: what was acknowledged is there.
//!
//! `CABANA_SEED` replays a run; `CABANA_SOAK_ROUNDS` says how many kills there are.

use std::time::Duration;

use crate::{
    load::{Chance, World},
    stage::{Server, setting},
};

const USUAL_ROUNDS: u64 = 4;
const MOST_ROUNDS: u64 = 200;

#[tokio::test]
async fn soak_kills_at_random_moments_lose_nothing_that_was_acknowledged() {
    let (rounds, seed) = (setting("CABANA_SOAK_ROUNDS").unwrap_or(USUAL_ROUNDS), setting("CABANA_SEED").unwrap_or(7));
    let rounds = rounds.min(MOST_ROUNDS);
    eprintln!("CABANA_SEED={seed} CABANA_SOAK_ROUNDS={rounds}");
    let mut chance = Chance(seed);
    let mut server = Server::start();
    let world = World::begin(&server).await;
    for round in 0..rounds {
        let from = world.all().len();
        let _ = tokio::time::timeout(
            Duration::from_millis(50) + Duration::from_micros(chance.below(1_000_000)),
            world.load(&server),
        )
        .await;
        server.kill();
        // The next one may not even come to serve.
        if round % 3 == 2 {
            server.run_for(Duration::from_micros(chance.below(150_000)));
        }
        server.run();
        world.ask_again(&server).await;
        world.check(&server, from, &format!("seed {seed}, round {round}")).await;
    }
    world.check(&server, 0, "in the end").await;
    let done = world.all().iter().filter(|deed| deed.done().is_some()).count() as u64;
    assert!(done > 4 * rounds, "{done} of {} deeds were done: the load was no load", world.all().len());
}
