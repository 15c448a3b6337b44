//! Runs the tests of the extension's allocator, which cannot be linked into a test with the rest of it.
#![cfg(target_os = "linux")]

#[path = "../src/alloc.rs"]
mod alloc;
#[path = "../src/small.rs"]
mod small;
