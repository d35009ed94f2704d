//! Questions of the DNS, and what the inner DNS answers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_egress::fuzzing::dns(bytes));
