//! What everybody in this process shares who uses the same store.

use std::convert::Infallible;
use std::sync::{Arc, Weak};

use crate::process::LockOfProcess;

/// Values by key, each for as long as somebody uses it. After a fork, the child makes its own.
pub(super) struct InUse<K, T>(LockOfProcess<Vec<(K, Weak<T>)>>);

impl<K: PartialEq, T> InUse<K, T> {
    pub(super) const fn new() -> Self {
        Self(LockOfProcess::new())
    }

    /// Returns the value of `key`, made by `make` if nobody uses it yet.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> T) -> Arc<T> {
        let Ok(value) = self.try_get(key, || Ok::<_, Infallible>(make()));
        value
    }

    /// As [`Self::get`], with the error of `make`.
    pub(super) fn try_get<E>(&self, key: K, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let mut known = self.0.lock();
        known.retain(|(_, value)| value.strong_count() > 0);
        if let Some(value) = known.iter().find(|(other, _)| *other == key).and_then(|(_, value)| value.upgrade()) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        known.push((key, Arc::downgrade(&value)));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_uses_is_forgotten() {
        static NUMBERS: InUse<&str, u8> = InUse::new();
        let one = NUMBERS.get("one", || 1);
        assert!(Arc::ptr_eq(&one, &NUMBERS.get("one", || 2)));
        assert_eq!(*NUMBERS.get("two", || 2), 2);
        assert_eq!(NUMBERS.try_get("three", || Err("no")), Err("no"));
        drop(one);
        assert_eq!(*NUMBERS.get("one", || 3), 3);
        drop(NUMBERS.get("two", || 4));
        assert_eq!(NUMBERS.0.lock().len(), 1);
    }
}
