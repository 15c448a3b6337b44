//! Native comparisons of floats with numbers.
//!
//! With a number other than NaN, a processor's comparisons match SQL's, whatever the sign of a zero and the bits of a
//! NaN, except that SQL's NaN is above everything: so `x > n` is computed as `NOT x <= n`, and `x >= n` as `NOT x < n`.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{BooleanBuffer, Buffer};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, Operator};

/// A conjunction of comparisons of one float column with numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Compared {
    Float32(Vec<(Operator, f32)>),
    Float64(Vec<(Operator, f64)>),
}

impl Compared {
    /// Returns the comparisons of `expr`, an expression over a single column, if there is nothing else in it.
    pub(super) fn of(expr: &Expr) -> Option<Self> {
        let mut all = Vec::new();
        for conjunct in split_conjunction(expr) {
            match conjunct {
                Expr::BinaryExpr(binary) => match (binary.left.as_ref(), binary.right.as_ref()) {
                    (Expr::Column(_), Expr::Literal(number, _)) => all.push((binary.op, number)),
                    (Expr::Literal(number, _), Expr::Column(_)) => all.push((binary.op.swap()?, number)),
                    _ => return None,
                },
                Expr::Between(between) if !between.negated => {
                    match (between.expr.as_ref(), between.low.as_ref(), between.high.as_ref()) {
                        (Expr::Column(_), Expr::Literal(low, _), Expr::Literal(high, _)) => {
                            all.extend([(Operator::GtEq, low), (Operator::LtEq, high)]);
                        }
                        _ => return None,
                    }
                }
                _ => return None,
            }
        }
        let narrow = |(op, number): &(_, &_)| match number {
            ScalarValue::Float32(Some(number)) if is_known(*op) && !number.is_nan() => Some((*op, *number)),
            _ => None,
        };
        let wide = |(op, number): &(_, &_)| match number {
            ScalarValue::Float64(Some(number)) if is_known(*op) && !number.is_nan() => Some((*op, *number)),
            _ => None,
        };
        let narrow = || all.iter().map(narrow).collect::<Option<_>>().map(Self::Float32);
        all.iter().map(wide).collect::<Option<_>>().map(Self::Float64).or_else(narrow)
    }

    /// Returns one bit per value, set for those that pass; `None` for values of another type.
    pub(super) fn mask(&self, column: &ArrayRef) -> Option<BooleanBuffer> {
        let passed = match self {
            Self::Float32(all) => mask_of(column.as_primitive_opt::<Float32Type>()?.values(), all),
            Self::Float64(all) => mask_of(column.as_primitive_opt::<Float64Type>()?.values(), all),
        }?;
        Some(match column.nulls() {
            Some(valid) => &passed & valid.inner(),
            None => passed,
        })
    }
}

fn is_known(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

fn mask_of<T: PartialOrd + Copy>(values: &[T], all: &[(Operator, T)]) -> Option<BooleanBuffer> {
    all.iter().map(|(op, number)| compare(values, *op, *number)).reduce(|left, right| &left & &right)
}

#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is above every number")]
fn compare<T: PartialOrd + Copy>(values: &[T], op: Operator, number: T) -> BooleanBuffer {
    match op {
        Operator::Eq => bits(values, |value| value == number),
        Operator::NotEq => bits(values, |value| value != number),
        Operator::Lt => bits(values, |value| value < number),
        Operator::LtEq => bits(values, |value| value <= number),
        Operator::GtEq => bits(values, |value| !(value < number)),
        _ => bits(values, |value| !(value <= number)),
    }
}

/// Returns a bit per value: first as bytes, several at a time by vectorization, then packed eight at a time.
fn bits<T: Copy>(values: &[T], passes: impl Fn(T) -> bool) -> BooleanBuffer {
    const FIRST_BITS: u64 = 0x0102_0408_1020_4080;
    let words = values.chunks(64).map(|values| {
        let mut bytes = [0_u8; 64];
        bytes.iter_mut().zip(values).for_each(|(byte, value)| *byte = u8::from(passes(*value)));
        let eights = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        eights.rev().fold(0, |word, eight| word << 8 | eight.wrapping_mul(FIRST_BITS) >> 56)
    });
    BooleanBuffer::new(Buffer::from_vec(words.collect::<Vec<u64>>()), 0, values.len())
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;
    use std::sync::Arc;

    use arrow_array::{Float32Array, Float64Array};
    use proptest::prelude::*;

    use super::*;

    const SPECIAL: [f32; 10] =
        [f32::NAN, -f32::NAN, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, 1.0, -1.5, f32::MIN_POSITIVE, f32::MAX];

    fn float() -> impl Strategy<Value = f32> {
        prop_oneof![prop::sample::select(&SPECIAL[..]), any::<u32>().prop_map(f32::from_bits)]
    }

    /// Orders floats as SQL does.
    fn order(left: f64, right: f64) -> Ordering {
        left.partial_cmp(&right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
    }

    fn holds(op: Operator, order: Ordering) -> bool {
        match op {
            Operator::Eq => order.is_eq(),
            Operator::NotEq => order.is_ne(),
            Operator::Lt => order.is_lt(),
            Operator::LtEq => order.is_le(),
            Operator::Gt => order.is_gt(),
            _ => order.is_ge(),
        }
    }

    proptest! {
        #[test]
        fn floats_pass_as_in_sql(
            values in prop::collection::vec(prop::option::of(float()), 0..200), skip in 0_usize..70,
            all in prop::collection::vec((0_usize..6, float()), 1..3),
        ) {
            use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
            let all = all.into_iter().filter(|(_, number)| !number.is_nan());
            let all: Vec<_> = all.map(|(op, number)| ([Eq, NotEq, Lt, LtEq, Gt, GtEq][op], number)).collect();
            prop_assume!(!all.is_empty());
            let skip = skip.min(values.len());
            let passes = |value: f32| all.iter().all(|(op, number)| holds(*op, order(value.into(), (*number).into())));
            let expected: Vec<bool> = values[skip..].iter().map(|value| value.is_some_and(passes)).collect();
            let len = expected.len();
            let wide = values.iter().map(|value| value.map(f64::from)).collect::<Float64Array>();
            let columns: [ArrayRef; 2] = [Arc::new(Float32Array::from(values.clone())), Arc::new(wide)];
            let columns = columns.map(|column| column.slice(skip, len));
            let of_narrow = Compared::Float32(all.clone());
            let of_wide = Compared::Float64(all.iter().map(|(op, number)| (*op, f64::from(*number))).collect());
            for (compared, column) in [(&of_narrow, &columns[0]), (&of_wide, &columns[1])] {
                let mask = compared.mask(column).unwrap();
                prop_assert_eq!(mask.iter().collect::<Vec<_>>(), &expected[..]);
            }
            prop_assert!(of_narrow.mask(&columns[1]).is_none() && of_wide.mask(&columns[0]).is_none());
        }
    }
}
