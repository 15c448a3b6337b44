//! Fuzzes [`forebay::fuzz::levels`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::levels(data));
