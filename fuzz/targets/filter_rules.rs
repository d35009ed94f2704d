//! The text of the system call filter, and the programs that are made of it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::filter_rules(bytes));
