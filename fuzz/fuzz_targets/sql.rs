//! Fuzzes [`forebay::fuzz::sql`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay::fuzz::sql(data));
