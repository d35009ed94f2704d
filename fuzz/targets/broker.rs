//! What a guest says to the broker that makes a call for it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::broker(bytes));
