//! Fuzzes [`forebay::fuzz::manifests`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::manifests(data));
