//! The greeting and the request of SOCKS5.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_egress::fuzzing::socks(bytes));
