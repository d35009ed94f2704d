//! A rule of an allow-list, and what it opens.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_egress::fuzzing::rules(bytes));
