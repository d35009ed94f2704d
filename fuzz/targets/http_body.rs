//! The body of a request, whole and in pieces.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_egress::fuzzing::http_body(bytes));
