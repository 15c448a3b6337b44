//! Turns panics of libraries on corrupt input into errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on untrusted bytes; a panic is returned as its message, and is not printed.
///
/// Decoders index by what a corrupt file claims. Every access is checked, so a panic there is a rejection, not a bug
/// that should show up in a user's terminal.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    prepare();
    let before = IS_EXPECTED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_EXPECTED.set(before);
    result.map_err(|panic| message(panic.as_ref()))
}

/// Has expected panics not printed. [`caught`] does so, too.
pub(crate) fn prepare() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_EXPECTED.get() {
                print(panic);
            }
        }));
    });
}

/// Returns the message of a panic.
pub(crate) fn message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a thread panicked".into())
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_becomes_its_message() {
        let bytes: &[u8] = &[1, 2];
        assert_eq!(caught(|| bytes.len()), Ok(2));
        assert!(caught(|| bytes[std::hint::black_box(7)]).unwrap_err().contains("out of bounds"));
    }
}
