//! The head of a request, and what the proxy makes of it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_egress::fuzzing::http_head(bytes));
