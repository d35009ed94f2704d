//! The first bytes of a connection to a listed name.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_egress::fuzzing::first_bytes(bytes));
