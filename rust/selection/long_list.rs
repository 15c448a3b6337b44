//! Decides by long lists of values: no row passes where none of the values lies between the bounds.
//!
//! The engine compares bounds with each value of a short list, and takes a long one for true. Here the values are sorted
//! once, so that a comparison is a binary search, however long the list is.

use std::cmp::Ordering;

use arrow_array::{Array, ArrayRef};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, ScalarValue};
use datafusion::physical_expr::utils::{Guarantee, LiteralGuarantee};
use datafusion::physical_optimizer::pruning::MAX_IN_LIST_SIZE;

use crate::engine::numbers::value_type;

/// A column that must have one of many values for a row to pass.
#[derive(Debug)]
pub(super) struct LongList {
    column: Column,
    /// Ascending, of one type, without NULL.
    values: Vec<ScalarValue>,
}

impl LongList {
    /// Returns what a guarantee seeks; `None` if the engine compares all of it with bounds, or nothing can be.
    pub(super) fn of(guarantee: &LiteralGuarantee) -> Option<Self> {
        if guarantee.guarantee != Guarantee::In || guarantee.literals.len() <= MAX_IN_LIST_SIZE {
            return None;
        }
        let plain = |value: &ScalarValue| match value {
            ScalarValue::Dictionary(_, value) => value.as_ref().clone(),
            value => value.clone(),
        };
        // No row passes because of a NULL.
        let mut values: Vec<_> = guarantee.literals.iter().map(plain).filter(|value| !value.is_null()).collect();
        let data_type = values.first()?.data_type();
        if data_type.is_nested() || values.iter().any(|value| value.data_type() != data_type) {
            return None;
        }
        values.sort_unstable_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        Some(Self { column: guarantee.column.clone(), values })
    }

    /// Keeps those containers in `may_pass` that may have one of the values.
    pub(super) fn narrow(&self, statistics: &impl PruningStatistics, may_pass: &mut [bool]) {
        let bounds = statistics.min_values(&self.column).zip(statistics.max_values(&self.column));
        let plain = |bounds: &ArrayRef| {
            let data_type = self.values.first()?.data_type();
            let is_comparable = *value_type(bounds.data_type()) == data_type;
            arrow_cast::cast(bounds, &data_type).ok().filter(|_| is_comparable)
        };
        let Some((mins, maxes)) = bounds.and_then(|(mins, maxes)| plain(&mins).zip(plain(&maxes))) else { return };
        for (container, may_pass) in may_pass.iter_mut().enumerate().filter(|(_, may_pass)| **may_pass) {
            let bound = |bounds: &ArrayRef| {
                ScalarValue::try_from_array(bounds, container).ok().filter(|bound| !bound.is_null())
            };
            let bounds = bound(&mins).zip(bound(&maxes));
            *may_pass = bounds.is_none_or(|(min, max)| self.has_between(&min, &max));
        }
    }

    fn has_between(&self, min: &ScalarValue, max: &ScalarValue) -> bool {
        let next = self.values.partition_point(|value| value < min);
        self.values.get(next).is_some_and(|value| value <= max)
    }
}
