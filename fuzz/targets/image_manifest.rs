//! What a container image says of itself.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_engine::fuzzing::image_manifest(bytes));
