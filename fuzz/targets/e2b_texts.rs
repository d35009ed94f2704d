//! What E2B's clients put into queries and headers: filters, users, hosts, signatures.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_e2b_wire::fuzzing::texts(bytes));
