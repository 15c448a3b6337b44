//! Fuzzes [`forebay::fuzz::uris`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::uris(data));
