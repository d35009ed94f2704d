//! A spawner that has turned hostile, and the server that asks it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::hostile_spawner(bytes));
