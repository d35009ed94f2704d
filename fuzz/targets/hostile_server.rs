//! A server that has turned hostile, and the init that keeps what it passes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::hostile_server(bytes));
