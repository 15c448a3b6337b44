//! Values that a forked child must leave alone.
//!
//! A child has its parent's memory and none of its threads: a lock that one of them held stays locked, a task that one
//! of them ran never ends. So the child neither uses nor drops what threads share, and makes its own.

use std::mem::ManuallyDrop;

/// A value of the process that made it; in a forked child it is as good as gone, and never dropped.
pub struct OfProcess<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    /// Keeps `value` for the present process.
    pub fn new(value: T) -> Self {
        Self { process: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value as a forked child has it.
    #[cfg(test)]
    pub(crate) fn into_other_process(mut self) -> Self {
        self.process = 0;
        self
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the value in the process that made it.
    pub fn get(&self) -> Option<&T> {
        self.is_ours().then_some(&*self.value)
    }

    /// Returns the value in the process that made it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.is_ours().then_some(&mut *self.value)
    }
}

impl<T> Drop for OfProcess<T> {
    #[expect(unsafe_code, reason = "a forked child must not run the destructor")]
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped once, here, where nobody else can reach the field any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for OfProcess<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OfProcess").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_is_used_and_dropped_in_its_own_process_only() {
        let counted = Arc::new(());
        let mut ours = OfProcess::new(Arc::clone(&counted));
        assert!(ours.get().is_some());
        assert!(ours.get_mut().is_some());
        drop(ours);
        assert_eq!(Arc::strong_count(&counted), 1);
        let mut parents = OfProcess { process: 0, value: ManuallyDrop::new(Arc::clone(&counted)) };
        assert!(parents.get().is_none());
        assert!(parents.get_mut().is_none());
        drop(parents);
        assert_eq!(Arc::strong_count(&counted), 2);
    }
}
