//! Servers that are killed at each named place under mixed load: what was acknowledged is there, and nothing is half done.
//!
//! A place that no server ever passes fails here: whoever names a new one lets the load pass it.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::{
    load::{Chance, LONG, What, World},
    stage::{PATIENCE, Server, setting, until},
    verdict::output,
};

/// Passed by a server that comes after another one was killed, before it serves or soon after.
fn is_of_recovery(place: &str) -> bool {
    place.starts_with("recover.") || place.starts_with("found.") || ["log.cut", "journal.replayed"].contains(&place)
}

/// When each place is passed for so many times.
async fn killed_at(places: impl Iterator<Item = (&'static str, u64)>) {
    let mut server = Server::start();
    let world = World::begin(&server).await;
    server.kill();
    for (place, time) in places {
        eprintln!("{place}");
        let from = world.all().len();
        if is_of_recovery(place) {
            leave_open(&world, &mut server).await;
            // A kill may leave just the one thing closed that the place is about.
            for _ in 0..20 {
                if !server.run_until(place, 1) || server.is_killed_recovering().await {
                    break;
                }
                server.kill();
                leave_open(&world, &mut server).await;
            }
            assert!(!server.is_there(), "{place} was never passed");
        } else if server.run_until(place, time) {
            let load = tokio::time::timeout(PATIENCE, world.load(&server)).await;
            assert!(load.is_ok(), "{place} was never passed");
            server.is_killed();
        }
        server.run();
        world.ask_again(&server).await;
        world.check(&server, from, place).await;
        server.kill();
    }
    server.run();
    world.check(&server, 0, "in the end").await;
}

/// What was under way when a server was killed.
async fn leave_open(world: &World, server: &mut Server) {
    server.run();
    under_way(world, server).await;
    // Whoever reads lets the store write all down; what comes after that is only in its journal.
    let _ = tokio::time::timeout(Duration::from_millis(10), world.load(server)).await;
    server.kill();
}

/// A load of which some is under way: a command that is waited for, and a task, that have said more than fits in memory.
async fn under_way(world: &World, server: &Server) {
    let (run, start) = (world.add(What::Run(2 * LONG)), world.add(What::Start(5 * LONG)));
    let enough = until(|| async {
        let calls = server.get("/v1/calls?limit=1000").await;
        let waits = |call: &&Value| call["state"] == "running" && call["verb"] == "exec";
        let call = calls["calls"].as_array().unwrap().iter().find(waits)?["id"].as_str()?.to_owned();
        let tasks = server.get("/v1/tasks?state=running").await;
        let task = tasks["tasks"].as_array().unwrap().first()?["id"].as_str()?.to_owned();
        let call = output(server, &format!("/v1/calls/{call}/output")).await;
        let task = output(server, &format!("/v1/tasks/{task}/output")).await;
        (call.len().min(task.len()) > 33_000).then_some(())
    });
    tokio::select! {
        _ = futures_util::future::join3(world.load(server), world.perform(server, &run), world.perform(server, &start)) => {
            panic!("the server is gone")
        }
        () = enough => {}
    }
}

fn first(place: &&'static str) -> (&'static str, u64) {
    (place, 1)
}

#[tokio::test]
async fn a_kill_at_each_place_of_the_store_loses_nothing() {
    killed_at(cabana_store::FAULT_POINTS.iter().map(first)).await;
}

#[tokio::test]
async fn a_kill_at_every_other_place_of_the_runtime_loses_nothing() {
    killed_at(cabana_runtime::FAULT_POINTS.iter().step_by(2).map(first)).await;
}

#[tokio::test]
async fn a_kill_at_the_other_places_of_the_runtime_loses_nothing() {
    killed_at(cabana_runtime::FAULT_POINTS.iter().skip(1).step_by(2).map(first)).await;
}

#[tokio::test]
async fn a_kill_at_each_place_of_the_engine_loses_nothing() {
    killed_at(cabana_engine::FAULT_POINTS.iter().map(first)).await;
}

/// Not the first time that a place is passed, but one of the next: seeded, and so many kills as `CABANA_SOAK_ROUNDS` says.
#[tokio::test]
async fn soak_kills_at_named_places_at_other_times_lose_nothing() {
    const USUAL_ROUNDS: u64 = 4;
    let (rounds, seed) = (setting("CABANA_SOAK_ROUNDS").unwrap_or(USUAL_ROUNDS), setting("CABANA_SEED").unwrap_or(7));
    eprintln!("CABANA_SEED={seed} CABANA_SOAK_ROUNDS={rounds}");
    let places = all();
    let mut chance = Chance(seed);
    let kills: Vec<_> = (0..rounds.min(200))
        .map(|_| (places[chance.below(places.len() as u64) as usize], 1 + chance.below(4)))
        .collect();
    killed_at(kills.into_iter()).await;
}

fn all() -> Vec<&'static str> {
    [cabana_store::FAULT_POINTS, cabana_runtime::FAULT_POINTS, cabana_engine::FAULT_POINTS].concat()
}

#[test]
fn each_place_has_a_name_of_its_own() {
    let all = all();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
}
