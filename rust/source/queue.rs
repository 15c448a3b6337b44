//! Decides which waiting request goes next: the one that is needed first.
//!
//! A request is due some requests after its arrival, its slack: 0 if its bytes are awaited now, more if they are needed
//! later. The earliest due goes first, and of those the first to arrive. Slack is bounded and every newcomer is due
//! after its arrival, so whatever waits is due before all that arrive much later: nothing starves.

use std::collections::BTreeMap;

use crate::config;

/// A request's key in a [`Queue`]: when it is due, and when it arrived.
pub(super) type Ticket = (u64, u64);

/// Waiting requests, and a count of those in flight.
#[derive(Debug)]
pub(super) struct Queue<T> {
    waiting: BTreeMap<Ticket, (u64, T)>,
    num_arrived: u64,
    num_under_way: usize,
    bytes_under_way: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), num_arrived: 0, num_under_way: 0, bytes_under_way: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds a request for `num_bytes` that is needed after `slack` others.
    pub(super) fn push(&mut self, slack: u64, num_bytes: u64, request: T) -> Ticket {
        let ticket = (self.num_arrived.saturating_add(slack.min(config::MAX_SLACK)), self.num_arrived);
        self.num_arrived += 1;
        self.waiting.insert(ticket, (num_bytes, request));
        ticket
    }

    /// Removes a waiting request; does nothing to one that has started.
    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    /// Starts the request that is due first, if it fits into `max_requests` and `max_bytes`; returns it with its bytes,
    /// which [`Self::finish`] takes back. One that exceeds `max_bytes` starts alone. Nothing overtakes a request that
    /// waits for room.
    pub(super) fn start_next(&mut self, max_requests: usize, max_bytes: u64) -> Option<(T, u64)> {
        let first = self.waiting.first_entry()?;
        let num_bytes = first.get().0;
        let fits = self.bytes_under_way.saturating_add(num_bytes) <= max_bytes || self.num_under_way == 0;
        if self.num_under_way >= max_requests || !fits {
            return None;
        }
        self.num_under_way += 1;
        self.bytes_under_way = self.bytes_under_way.saturating_add(num_bytes);
        Some((first.remove().1, num_bytes))
    }

    /// Records that a started request for `num_bytes` has ended.
    pub(super) fn finish(&mut self, num_bytes: u64) {
        self.num_under_way = self.num_under_way.saturating_sub(1);
        self.bytes_under_way = self.bytes_under_way.saturating_sub(num_bytes);
    }

    /// Returns whether requests are waiting.
    pub(super) fn is_crowded(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns how many requests are waiting or in flight.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.num_under_way
    }

    /// Returns how many requests are in flight.
    pub(super) fn num_under_way(&self) -> usize {
        self.num_under_way
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn started(queue: &mut Queue<u32>, max_requests: usize) -> Vec<u32> {
        std::iter::from_fn(|| queue.start_next(max_requests, 100).map(|(request, _)| request)).collect()
    }

    #[test]
    fn what_is_needed_first_goes_first() {
        let mut queue = Queue::default();
        for (request, slack) in [(1, 50), (2, 0), (3, 7), (4, 0)] {
            queue.push(slack, 1, request);
        }
        assert_eq!(started(&mut queue, 2), [2, 4]);
        assert!(queue.is_crowded());
        queue.finish(1);
        queue.push(0, 1, 5);
        assert_eq!(started(&mut queue, 2), [5]);
        queue.finish(1);
        assert_eq!(started(&mut queue, 2), [3]);
    }

    #[test]
    fn bytes_are_bounded_and_a_giant_goes_alone() {
        let mut queue = Queue::default();
        queue.push(0, 60, 1);
        queue.push(0, 500, 2);
        queue.push(0, 10, 3);
        assert_eq!(started(&mut queue, 9), [1], "the giant waits, and nothing passes it");
        queue.finish(60);
        assert_eq!(started(&mut queue, 9), [2]);
        queue.finish(500);
        assert_eq!(started(&mut queue, 9), [3]);
    }

    #[test]
    fn a_request_that_nobody_wants_any_more_is_not_started() {
        let mut queue = Queue::default();
        let first = queue.push(0, 1, 1);
        queue.push(0, 1, 2);
        queue.remove(first);
        assert_eq!(started(&mut queue, 9), [2]);
        queue.remove(first);
        assert_eq!(queue.num_under_way(), 1);
    }

    #[test]
    fn nothing_waits_for_ever_behind_what_is_more_urgent() {
        let mut queue = Queue::default();
        queue.push(u64::MAX, 1, u32::MAX);
        let mut num_passed = 0;
        loop {
            queue.push(0, 1, 0);
            let (request, _) = queue.start_next(1, 100).unwrap();
            queue.finish(1);
            if request == u32::MAX {
                break;
            }
            num_passed += 1;
        }
        assert_eq!(num_passed, config::MAX_SLACK - 1);
    }

    proptest! {
        #[test]
        fn room_is_never_exceeded_and_everything_comes_once(
            events in prop::collection::vec((any::<bool>(), 0u64..20, 0u64..150), 0..200), max_requests in 1usize..6,
        ) {
            let (mut queue, mut under_way, mut done) = (Queue::default(), Vec::new(), Vec::new());
            let mut num_pushed = 0;
            for (is_push, slack, num_bytes) in events.into_iter().chain(std::iter::repeat_n((false, 0, 0), 400)) {
                if is_push {
                    queue.push(slack, num_bytes, num_pushed);
                    num_pushed += 1;
                } else if let Some((request, num_bytes)) = under_way.pop() {
                    queue.finish(num_bytes);
                    done.push(request);
                }
                while let Some(started) = queue.start_next(max_requests, 100) {
                    under_way.push(started);
                }
                prop_assert!(under_way.len() <= max_requests);
                let bytes: u64 = under_way.iter().map(|(_, num_bytes)| num_bytes).sum();
                prop_assert!(bytes <= 100 || under_way.len() == 1);
            }
            done.sort_unstable();
            prop_assert_eq!(done, (0..num_pushed).collect::<Vec<u32>>());
        }
    }
}
