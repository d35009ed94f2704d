//! A guest's own `/etc/passwd` and `/etc/group`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cabana_guest::fuzzing::accounts(bytes));
