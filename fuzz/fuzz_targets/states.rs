//! Fuzzes [`forebay::fuzz::states`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::states(data));
