//! Fuzzes [`forebay::fuzz::footers`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::footers(data));
