//! `TABLESAMPLE`: rows chosen by a seed, independent of anything else in the query.
//!
//! A Bernoulli sample decides each row by its own random number, drawn from the seed and the row's number in the
//! dataset; a sample of a given size takes the rows with the smallest random numbers.

use std::sync::Arc;

use datafusion::common::{Result as PlanResult, plan_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::logical_plan::TableScanBuilder;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::sql::sqlparser::ast::{
    Expr, TableFactor, TableSample, TableSampleKind, TableSampleMethod, TableSampleSeedModifier, TableSampleUnit, Value,
};

use super::table::DatasetTable;

/// Some rows of a table, chosen by a seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) seed: u64,
    pub(super) size: Size,
}

/// The size of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Size {
    /// Each row with this probability.
    Part(f64),
    /// This many of the kept rows, or all.
    Rows(u64),
}

impl Sample {
    /// Returns the random number of a row: uniform over all of `u64`.
    ///
    /// Two rounds of the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    /// 2014), with the seed in between.
    pub(super) fn draw(self, row: u64) -> u64 {
        fn mixed(mut z: u64) -> u64 {
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        mixed(mixed(row.wrapping_add(GOLDEN)) ^ mixed(self.seed.wrapping_add(GOLDEN.rotate_left(32))))
    }

    /// Returns the sampled rows of `rows`, both ascending. Only a sample of a given size is held.
    pub(super) fn of(self, rows: impl Iterator<Item = u64> + 'static) -> Box<dyn Iterator<Item = u64>> {
        match self.size {
            Size::Part(part) => {
                let bound = bound_of(part);
                Box::new(rows.filter(move |&row| bound.is_none_or(|bound| self.draw(row) < bound)))
            }
            Size::Rows(num_rows) => Box::new(self.first(num_rows, rows).into_iter()),
        }
    }

    /// Returns the `num_rows` rows with the smallest random numbers.
    fn first(self, num_rows: u64, rows: impl Iterator<Item = u64>) -> Vec<u64> {
        let num_rows = usize::try_from(num_rows).unwrap_or(usize::MAX);
        let mut drawn: Vec<(u64, u64)> = Vec::new();
        let keep_first = |drawn: &mut Vec<_>| {
            if num_rows < drawn.len() {
                drawn.select_nth_unstable(num_rows);
                drawn.truncate(num_rows);
            }
        };
        for row in rows {
            drawn.push((self.draw(row), row));
            // Seldom, so that it takes little time for each row.
            if drawn.len() >= num_rows.saturating_mul(2).max(LEAST_DRAWN) {
                keep_first(&mut drawn);
            }
        }
        keep_first(&mut drawn);
        let mut rows: Vec<u64> = drawn.into_iter().map(|(_, row)| row).collect();
        rows.sort_unstable();
        rows
    }
}

/// How many random numbers are drawn at least before the smallest are kept.
const LEAST_DRAWN: usize = 1024;

/// Returns the bound below which a given fraction of all numbers is; `None` for all of them.
#[expect(clippy::cast_possible_truncation, reason = "a probability has 53 bits")]
fn bound_of(part: f64) -> Option<u64> {
    (part < 1.0).then_some((part * 2_f64.powi(64)) as u64)
}

/// Plans `dataset TABLESAMPLE ... REPEATABLE (seed)`.
#[derive(Debug)]
pub(super) struct SamplePlanner;

impl RelationPlanner for SamplePlanner {
    fn plan_relation(
        &self,
        mut relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> PlanResult<RelationPlanning> {
        if let TableFactor::Derived { sample: Some(_), .. } = &relation {
            return plan_err!("TABLESAMPLE is for `dataset` and tables that are datasets, not for a subquery");
        }
        let TableFactor::Table { sample, alias, .. } = &mut relation else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let Some(TableSampleKind::BeforeTableAlias(asked) | TableSampleKind::AfterTableAlias(asked)) = sample.take()
        else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let alias = alias.take();
        let sample = understand(&asked)?;
        let planned = context.plan(relation)?;
        let LogicalPlan::TableScan(scan) = &planned else {
            return plan_err!("TABLESAMPLE is for `dataset` and tables that are datasets");
        };
        let Some(table) = DatasetTable::of_source(&scan.source) else {
            return plan_err!(
                "TABLESAMPLE is for `dataset` and tables that are datasets, not for `{}`",
                scan.table_name
            );
        };
        let source = table.sampled(sample).into_source();
        let scan = TableScanBuilder::new(scan.table_name.clone(), source).build()?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(LogicalPlan::TableScan(scan), alias))))
    }
}

fn understand(asked: &TableSample) -> PlanResult<Sample> {
    if matches!(asked.name, Some(TableSampleMethod::System | TableSampleMethod::Block)) {
        return plan_err!(
            "TABLESAMPLE SYSTEM keeps whole pages; write TABLESAMPLE BERNOULLI (percent) REPEATABLE (seed)"
        );
    }
    let (Some(quantity), None, None) = (&asked.quantity, &asked.bucket, &asked.offset) else {
        return plan_err!("expected TABLESAMPLE BERNOULLI (percent) or (n ROWS), and REPEATABLE (seed)");
    };
    let seed = asked.seed.as_ref().filter(|seed| matches!(seed.modifier, TableSampleSeedModifier::Repeatable));
    let Some(seed) = seed.and_then(|seed| number(&seed.value.value)?.parse::<u64>().ok()) else {
        return plan_err!("TABLESAMPLE needs REPEATABLE (seed), a number of 0 or more, to be the same rows each time");
    };
    let text = match &quantity.value {
        Expr::Value(value) => number(&value.value),
        _ => None,
    };
    let size = match (&quantity.unit, text) {
        (Some(TableSampleUnit::Rows), Some(text)) => text.parse().ok().map(Size::Rows),
        (Some(TableSampleUnit::Percent) | None, Some(text)) => {
            let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
            percent.map(|percent| Size::Part(percent / 100.0))
        }
        _ => None,
    };
    match size {
        Some(size) => Ok(Sample { seed, size }),
        None => plan_err!("TABLESAMPLE: expected 0 to 100 percent, or a number of ROWS, got `{}`", quantity.value),
    }
}

fn number(value: &Value) -> Option<&str> {
    if let Value::Number(text, _) = value { Some(text.as_str()) } else { None }
}

impl Sample {
    /// Describes the sample for a printed plan.
    pub(super) fn describe(sample: Option<Self>) -> Arc<str> {
        match sample.map(|sample| sample.size) {
            None => "".into(),
            Some(Size::Part(part)) => format!(", {} % of the rows", part * 100.0).into(),
            Some(Size::Rows(rows)) => format!(", {rows} rows").into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_about_that_part_and_grows_with_it() {
        let of = |part| Sample { seed: 7, size: Size::Part(part) }.of(0..100_000).collect::<Vec<_>>();
        let (tenth, half) = (of(0.1), of(0.5));
        assert!((9_600..10_400).contains(&tenth.len()) && (49_300..50_700).contains(&half.len()));
        assert!(tenth.iter().all(|row| half.binary_search(row).is_ok()));
        assert_eq!(of(1.0).len(), 100_000);
        assert!(of(0.0).is_empty());
    }

    #[test]
    fn a_number_of_rows_is_that_many_and_the_seed_chooses() {
        let of = |seed| Sample { seed, size: Size::Rows(100) }.of(0..1000).collect::<Vec<_>>();
        assert_eq!(of(1).len(), 100);
        assert_ne!(of(1), of(2));
        assert_eq!(of(1), of(1));
        let whole = Sample { seed: 1, size: Size::Rows(9) };
        assert_eq!(whole.of(0..5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(Sample { size: Size::Rows(0), ..whole }.of(0..5).count(), 0);
    }

    #[test]
    fn a_number_of_rows_are_those_with_the_smallest_random_numbers() {
        let sample = Sample { seed: 3, size: Size::Rows(70) };
        let mut drawn: Vec<_> = (0..5000).map(|row| (sample.draw(row), row)).collect();
        drawn.sort_unstable();
        let mut expected: Vec<u64> = drawn[..70].iter().map(|(_, row)| *row).collect();
        expected.sort_unstable();
        assert_eq!(sample.of(0..5000).collect::<Vec<_>>(), expected);
    }
}
