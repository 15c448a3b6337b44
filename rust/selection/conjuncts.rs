//! Splits a filter at its `AND`s: what is decided and evaluated separately, in which order, and what is read first.
//!
//! A row must pass every conjunct, so a conjunct is only evaluated on rows that passed those before it. Cheap ones come
//! first. One that can fail on a value (`a / z > 1`) comes after all that are written before it (`z <> 0`), so that
//! they guard it; evaluated on fewer rows it can only fail less often.
//!
//! All this is pure; [`super::scan`] executes it.

use arrow_schema::{DataType, Schema};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, DataFusionError, ScalarValue};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};

use super::likely::Between;
use crate::engine::walk::Walk;
use crate::engine::{self, numbers};

/// Maximum number of conjuncts: each is checked for every row group. A filter with more stays whole.
const MAX_CONJUNCTS: usize = 32;

/// Of the remaining pages, one in this many is assumed to have rows that pass one more conjunct.
const PAGES_PER_SURVIVOR: u64 = 4;

/// What a row must pass among other conjuncts: conditions of a filter over the same columns, or one that can fail.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conjunct {
    pub(super) expr: Expr,
    /// The dataset columns that it reads, ascending.
    pub(super) columns: Vec<usize>,
    /// Whether evaluating it may fail on some value.
    pub(super) can_fail: bool,
    /// The numbers that pass it, if it only compares one column.
    pub(super) between: Option<Between>,
}

/// Returns the conjuncts of `filter` in the order of their first conditions.
pub(super) fn split(filter: &Expr, schema: &Schema) -> Vec<Conjunct> {
    let mut conjuncts: Vec<(Vec<Expr>, Vec<usize>, bool)> = Vec::new();
    let types = DFSchema::try_from(schema.clone()).ok();
    for condition in split_conjunction(filter) {
        let mut columns: Vec<usize> =
            condition.column_refs().into_iter().filter_map(|column| schema.index_of(&column.name).ok()).collect();
        columns.sort_unstable();
        let can_fail = can_fail(condition, types.as_ref());
        let same = conjuncts.iter().position(|conjunct| conjunct.1 == columns && !conjunct.2 && !can_fail);
        match same {
            Some(conjunct) => conjuncts[conjunct].0.push(condition.clone()),
            None if conjuncts.len() == MAX_CONJUNCTS => return vec![whole(filter, schema)],
            None => conjuncts.push((vec![condition.clone()], columns, can_fail)),
        }
    }
    let conjunct = |(exprs, columns, can_fail): (Vec<Expr>, _, _)| {
        let expr = engine::all_of(&exprs);
        let between = Between::of(&expr, schema);
        Conjunct { expr, columns, can_fail, between }
    };
    conjuncts.into_iter().map(conjunct).collect()
}

/// Returns `filter` as one conjunct.
fn whole(filter: &Expr, schema: &Schema) -> Conjunct {
    let mut columns: Vec<usize> =
        filter.column_refs().into_iter().filter_map(|column| schema.index_of(&column.name).ok()).collect();
    columns.sort_unstable();
    Conjunct { expr: filter.clone(), columns, can_fail: true, between: None }
}

/// Returns whether evaluating `expr` may fail on some value: anything not known to succeed.
fn can_fail(expr: &Expr, schema: Option<&DFSchema>) -> bool {
    let is_harmless = |node: &Expr| match node {
        Expr::Column(_) | Expr::Literal(..) | Expr::Alias(_) | Expr::Not(_) | Expr::Between(_) | Expr::Case(_) => true,
        Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::IsTrue(_) | Expr::IsFalse(_) | Expr::IsUnknown(_) => true,
        Expr::IsNotTrue(_) | Expr::IsNotFalse(_) | Expr::IsNotUnknown(_) | Expr::InList(_) | Expr::TryCast(_) => true,
        Expr::Like(like) | Expr::SimilarTo(like) => matches!(*like.pattern, Expr::Literal(..)),
        Expr::BinaryExpr(binary) => is_harmless_operator(binary.op) || divides_by_number(binary),
        Expr::Cast(cast) => schema
            .and_then(|schema| cast.expr.get_type(schema).ok())
            .is_some_and(|from| is_harmless_cast(&from, cast.field.data_type())),
        // The only function of ours here.
        Expr::ScalarFunction(call) => call.name() == "canonical_float",
        _ => false,
    };
    let mut found = false;
    let walked = expr.apply(|node| {
        found |= !is_harmless(node);
        Ok::<_, DataFusionError>(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found || walked.is_err()
}

fn is_harmless_operator(op: Operator) -> bool {
    use Operator::{And, Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq, Or};
    matches!(op, And | Or | Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Returns whether an expression divides by an integer that always works: neither 0 nor -1, for which the least integer
/// overflows.
fn divides_by_number(binary: &BinaryExpr) -> bool {
    let is_division = matches!(binary.op, Operator::Divide | Operator::Modulo);
    let Expr::Literal(divisor, _) = binary.right.as_ref() else { return false };
    let divisor = match divisor {
        ScalarValue::Int8(divisor) => divisor.map(i64::from),
        ScalarValue::Int16(divisor) => divisor.map(i64::from),
        ScalarValue::Int32(divisor) => divisor.map(i64::from),
        ScalarValue::Int64(divisor) => *divisor,
        _ => None,
    };
    is_division && divisor.is_some_and(|divisor| divisor > 0)
}

fn is_harmless_cast(from: &DataType, to: &DataType) -> bool {
    let is_number = |data_type: &DataType| data_type.is_integer() || data_type.is_floating();
    from == to || (is_number(from) && is_number(to) && !numbers::is_lossy(from, to))
}

/// Returns the order in which to evaluate conjuncts with these costs: always the cheapest that may come next. One that
/// can fail comes after all that are written before it.
pub(super) fn order(can_fail: &[bool], costs: &[u64]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..costs.len()).collect();
    let mut ordered = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let may_come = |place: &usize| *place == 0 || !can_fail[left[*place]];
        let next = (0..left.len()).filter(may_come).min_by_key(|&place| costs[left[place]]).unwrap_or(0);
        ordered.push(left.remove(next));
    }
    ordered
}

/// What the conjuncts that follow some others would read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Following {
    /// Bytes of the preceding conjuncts.
    pub(super) before: u64,
    /// Bytes that the others read if pages can be skipped.
    pub(super) in_pages: u64,
    /// Bytes that the others read in any case.
    pub(super) whole: u64,
}

/// Returns how many conjuncts to read at first, with the others read only for remaining rows: all of them (the number
/// of entries) unless the saved bytes are worth one more round trip.
///
/// `following[n]` is what the conjuncts after the first `n + 1` would read. Every conjunct is assumed to leave one page
/// in [`PAGES_PER_SURVIVOR`], since nothing is known before it is read.
pub(super) fn num_first(following: &[Following], round_trip_bytes: u64) -> usize {
    let Some(last) = following.last() else { return 0 };
    let mut best = (last.before.saturating_add(last.in_pages).saturating_add(last.whole), following.len());
    for (place, following) in following.iter().enumerate().rev().skip(1) {
        let num_conjuncts = u32::try_from(place + 1).unwrap_or(u32::MAX);
        let read = following.in_pages / PAGES_PER_SURVIVOR.saturating_pow(num_conjuncts);
        let cost = [following.before, following.whole, read].into_iter().fold(round_trip_bytes, u64::saturating_add);
        if cost < best.0 {
            best = (cost, place + 1);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::Field;
    use proptest::prelude::*;

    use super::*;

    fn conjuncts_of(text: &str) -> Vec<(Vec<usize>, bool)> {
        let fields = [("a", DataType::Int64), ("z", DataType::Int64), ("t", DataType::Utf8), ("x", DataType::Float32)];
        let schema = Arc::new(Schema::new(fields.map(|(name, kind)| Field::new(name, kind, true)).to_vec()));
        split(&super::super::parse::parse(text, &schema, &std::collections::BTreeMap::new()).unwrap().expr, &schema)
            .into_iter()
            .map(|conjunct| (conjunct.columns, conjunct.can_fail))
            .collect()
    }

    #[test]
    fn conditions_on_the_same_columns_are_one_conjunct() {
        assert_eq!(conjuncts_of("a > 1 AND t = 'x' AND a < 9"), [(vec![0], false), (vec![2], false)]);
        assert_eq!(conjuncts_of("a > 1 OR t = 'x'"), [(vec![0, 2], false)]);
        let many = (0..100).map(|n| format!("{n} % z <> a")).collect::<Vec<_>>().join(" AND ");
        assert_eq!(conjuncts_of(&many), [(vec![0, 1], true)]);
    }

    #[test]
    fn what_can_fail_on_a_value_is_known() {
        for harmless in
            ["a > 1.5", "a = z", "t LIKE '%x%'", "x > 0.25", "a IS NULL OR a IN (1, 2)", "NOT (a < z)", "a % 7 = 3"]
        {
            assert!(!conjuncts_of(harmless)[0].1, "{harmless}");
        }
        for risky in [
            "a / z > 1",
            "a / (-1) > 1",
            "a + z > 1",
            "CAST(t AS INT) > 1",
            "length(t) > 3",
            "t LIKE t || '%'",
            "-a = z",
        ] {
            assert!(conjuncts_of(risky)[0].1, "{risky}");
        }
    }

    #[test]
    fn guards_come_before_what_they_guard_and_cheap_conjuncts_before_dear_ones() {
        assert_eq!(order(&[false, false, false], &[500, 8, 1]), [2, 1, 0]);
        assert_eq!(order(&[false, true, false], &[500, 8, 1]), [2, 0, 1]);
        assert_eq!(order(&[true, false], &[500, 8]), [1, 0]);
    }

    #[test]
    fn dear_columns_wait_where_that_saves_more_than_a_round_trip() {
        let at = |before, in_pages, whole| Following { before, in_pages, whole };
        // A flag, a number, and a text a hundred times as large.
        let text = [at(1, 808, 0), at(8, 800, 0), at(808, 0, 0)];
        assert_eq!(num_first(&text, 100), 2);
        assert_eq!(num_first(&text, 1000), 3);
        // Without pages nothing can be skipped.
        assert_eq!(num_first(&[at(1, 0, 808), at(8, 0, 800), at(808, 0, 0)], 100), 3);
        assert_eq!(num_first(&[], 100), 0);
        assert_eq!(num_first(&[at(7, 0, 0)], 0), 1);
    }

    proptest! {
        #[test]
        fn all_conjuncts_come_once_and_after_their_guards(
            conjuncts in prop::collection::vec((any::<bool>(), 0_u64..9), 0..12),
        ) {
            let (can_fail, costs): (Vec<bool>, Vec<u64>) = conjuncts.into_iter().unzip();
            let ordered = order(&can_fail, &costs);
            let place_of = |conjunct: usize| ordered.iter().position(|&other| other == conjunct).unwrap();
            prop_assert_eq!(ordered.len(), costs.len());
            for conjunct in (0..costs.len()).filter(|&conjunct| can_fail[conjunct]) {
                prop_assert!((0..conjunct).all(|guard| place_of(guard) < place_of(conjunct)));
            }
        }

        #[test]
        fn waiting_never_pays_where_it_saves_less_than_a_round_trip(
            steps in prop::collection::vec(0_u64..1_000_000, 1..6), round_trip in 0_u64..2_000_000,
        ) {
            let all: u64 = steps.iter().sum();
            let before = steps.iter().scan(0, |sum, step| { *sum += step; Some(*sum) });
            let following: Vec<_> =
                before.map(|before| Following { before, in_pages: all - before, whole: 0 }).collect();
            let num = num_first(&following, round_trip);
            prop_assert!((1..=steps.len()).contains(&num));
            if num < steps.len() {
                prop_assert!(following[num - 1].in_pages > round_trip);
            }
        }
    }
}
