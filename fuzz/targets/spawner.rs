//! A server that has turned hostile, and the spawner that it asks.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::spawner(bytes));
