//! The frames of Connect's streams, however they are cut.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_e2b_wire::fuzzing::envelope(bytes));
