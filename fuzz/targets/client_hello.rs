//! The first records of TLS: the server name, and none that another reader would find.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_egress::fuzzing::client_hello(bytes));
