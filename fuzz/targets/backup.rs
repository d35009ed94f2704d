//! A backup that is read into a new data directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_runtime::backup::fuzz(bytes));
