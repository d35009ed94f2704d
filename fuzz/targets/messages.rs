//! What server, spawner and init say to each other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::messages(bytes));
