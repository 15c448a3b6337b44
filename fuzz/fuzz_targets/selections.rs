//! Fuzzes [`forebay::fuzz::selections`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::selections(data));
