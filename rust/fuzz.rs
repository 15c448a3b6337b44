//! Fuzz targets: a function for each kind of untrusted bytes.
//!
//! A target takes arbitrary bytes. It must terminate with memory in proportion to them, without panics or invalid
//! accesses, which the sanitizer detects. Beyond that it asserts what it can: that two ways to read something agree,
//! that what is accepted survives a round trip.
//!
//! `fuzz/fuzz_targets` has a binary for each, `scripts/fuzz.py` runs them, and `fuzz/corpus` keeps inputs that cover
//! everything reached so far. The tests here replay the corpus, so they need no fuzzer.

#[cfg(test)]
mod seeds;

pub use crate::decode::fuzz::levels;
use crate::plan::State;
pub use crate::selection::fuzz::{selections, sql};
pub use crate::snapshot::fuzz::{footers, manifests, objects, pages};
use crate::source::Location;

/// A function that takes arbitrary bytes.
pub type Target = fn(&[u8]);

/// All targets, by the names of their binaries and corpora.
pub const TARGETS: [(&str, Target); 9] = [
    ("footers", footers),
    ("levels", levels),
    ("manifests", manifests),
    ("objects", objects),
    ("pages", pages),
    ("selections", selections),
    ("sql", sql),
    ("states", states),
    ("uris", uris),
];

/// Reads states: accepted ones survive a round trip.
pub fn states(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(state) = State::from_json(text) {
        assert_eq!(State::from_json(&state.to_json()).as_ref(), Ok(&state));
        assert!(state.differences(&state).is_empty());
    }
}

/// Reads URIs: the URL of an accepted one leads to the same store, and never contains credentials.
pub fn uris(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(location) = Location::parse(text) {
        assert!(location.store.is_sound(), "{location:?}");
        let url = location.url();
        assert!(Location::parse(&url).is_ok_and(|again| again.store == location.store), "{url}");
    }
    for (scheme, secret) in [("s3", "k:H1dden"), ("https", "H1dden"), ("az", "k:H1dden/+"), ("gs", "k:/H1dden")] {
        let said = Location::parse(&format!("{scheme}://{secret}@{text}"))
            .map_or_else(|error| error.to_string(), |found| found.url());
        assert!(!said.contains("H1dden") || text.contains("H1dden"), "{said}");
    }
}

/// Takes numbers from the front of an input; missing bytes are 0.
pub(crate) struct Numbers<'a>(pub(crate) &'a [u8]);

impl Numbers<'_> {
    /// Takes a byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// Takes two bytes, little-endian.
    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::TARGETS;

    fn corpus(target: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "fuzz", "corpus", target].iter().collect()
    }

    fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = std::fs::read_dir(corpus(target)).unwrap().map(|entry| entry.unwrap().path());
        let mut inputs: Vec<_> = entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        inputs.sort_unstable();
        inputs
    }

    #[test]
    fn every_input_that_was_kept_is_taken() {
        for (name, target) in TARGETS {
            let inputs = inputs(name);
            assert!(!inputs.is_empty(), "{name} has no corpus");
            for (path, input) in inputs {
                let taken = std::panic::catch_unwind(|| target(&input));
                assert!(taken.is_ok(), "{name} {}", path.display());
            }
        }
    }

    #[test]
    fn inputs_that_end_early_are_taken() {
        for (name, target) in TARGETS {
            target(&[]);
            for (_, input) in inputs(name).iter().take(5) {
                (0..input.len().min(40)).for_each(|len| target(&input[..len]));
            }
        }
    }

    #[test]
    fn every_target_has_a_binary() {
        for (name, _) in TARGETS {
            let path = corpus(name).join("../../fuzz_targets").join(format!("{name}.rs"));
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.contains(&format!("forebay::fuzz::{name}(data)")), "{text}");
        }
    }
}
