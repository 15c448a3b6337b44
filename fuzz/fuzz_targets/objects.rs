//! Fuzzes [`forebay::fuzz::objects`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::objects(data));
