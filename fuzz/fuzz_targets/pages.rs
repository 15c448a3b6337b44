//! Fuzzes [`forebay::fuzz::pages`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::pages(data));
