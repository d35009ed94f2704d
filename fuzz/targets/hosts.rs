//! Names and addresses, in every notation that anybody reads.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_egress::fuzzing::hosts(bytes));
