//! An init that has turned hostile, and the server that comes back to it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::hostile_init(bytes));
