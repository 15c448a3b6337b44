//! Counts what one read went through.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::trouble::Kind;
use crate::metrics::Recovered;

/// Counts for one read; travels with its requests.
#[derive(Debug, Clone, Default)]
pub(in crate::source) struct Notes(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    throttled: AtomicU32,
    failed: AtomicU32,
    broken: AtomicU32,
    stalled: AtomicU32,
    resumed: AtomicU32,
    hedges: AtomicU32,
    hedges_won: AtomicU32,
}

impl Notes {
    /// Counts a repeated request.
    pub(in crate::source) fn again(&self, kind: Kind) {
        let counter = match kind {
            Kind::Throttled => &self.0.throttled,
            Kind::Failed | Kind::Wrong => &self.0.failed,
            Kind::Broken => &self.0.broken,
            Kind::Stalled => &self.0.stalled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a body that was resumed by another response.
    pub(super) fn resumed(&self) {
        self.0.resumed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a second request made because the first is slow.
    pub(super) fn hedged(&self) {
        self.0.hedges.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a second request that was answered first.
    pub(super) fn won(&self) {
        self.0.hedges_won.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current counts.
    pub(in crate::source) fn counted(&self) -> Recovered {
        let of = |counter: &AtomicU32| u64::from(counter.load(Ordering::Relaxed));
        let Counts { throttled, failed, broken, stalled, resumed, hedges, hedges_won } = &*self.0;
        Recovered {
            throttled: of(throttled),
            failed: of(failed),
            broken: of(broken),
            stalled: of(stalled),
            resumed: of(resumed),
            hedges: of(hedges),
            hedges_won: of(hedges_won),
        }
    }
}
