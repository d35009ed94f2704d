//! The memory file of a command's output, with anything in it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::memory_file(bytes));
