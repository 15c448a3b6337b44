//! Functions on vectors, which are lists of numbers of one length: how near a row is to a query vector.
//!
//! Sums are accumulated in `f64`, in four lanes that the compiler vectorizes.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, Float64Array};
use arrow_schema::{DataType, Field, FieldRef};
use datafusion::common::utils::take_function_args;
use datafusion::common::{DataFusionError, Result as PlanResult, ScalarValue, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// Returns the vector functions.
pub(super) fn functions() -> &'static [Arc<ScalarUDF>] {
    static FUNCTIONS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
        let all = [Measure::CosineSimilarity, Measure::L2Distance, Measure::Dot];
        all.map(|measure| Arc::new(ScalarUDF::new_from_impl(Vectors::new(measure)))).into()
    });
    &FUNCTIONS
}

/// Squared lengths for which no element of the vector is too large or too small, and no product of two of them
/// overflows.
const EXACT_SQUARES: Range<f64> = 1e-280..1e300;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Measure {
    /// The cosine of the angle between two vectors; NULL if one of them is zero.
    CosineSimilarity,
    /// The Euclidean distance.
    L2Distance,
    /// The inner product.
    Dot,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Vectors {
    measure: Measure,
    signature: Signature,
}

impl Vectors {
    fn new(measure: Measure) -> Self {
        Self { measure, signature: Signature::user_defined(Volatility::Immutable) }
    }

    fn unequal(&self, left: usize, right: usize) -> String {
        format!("`{}` of vectors of {left} and {right} numbers; expected as many", self.name())
    }
}

impl ScalarUDFImpl for Vectors {
    fn name(&self) -> &'static str {
        match self.measure {
            Measure::CosineSimilarity => "cosine_similarity",
            Measure::L2Distance => "l2_distance",
            Measure::Dot => "dot",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        Ok(DataType::Float64)
    }

    /// Also refuses vectors of which it is known before any row is read that they have different lengths.
    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> PlanResult<FieldRef> {
        let known = arguments.arg_fields.iter().zip(arguments.scalar_arguments);
        let lens: Vec<_> = known.map(|(field, scalar)| known_len(field.data_type(), *scalar)).collect();
        if let [Some(left), Some(right)] = lens[..]
            && left != right
        {
            return plan_err!("{}", self.unequal(left, right));
        }
        Ok(Arc::new(Field::new(self.name(), DataType::Float64, true)))
    }

    fn coerce_types(&self, types: &[DataType]) -> PlanResult<Vec<DataType>> {
        let [left, right] = types else {
            return plan_err!("`{}` takes two vectors, got {} arguments", self.name(), types.len());
        };
        [left, right].map(|data_type| vector_type(self.name(), data_type)).into_iter().collect()
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let num_rows = arguments.number_rows;
        let [left, right] = take_function_args(self.name(), arguments.args)?;
        let (left, right) = (Side::try_new(left)?, Side::try_new(right)?);
        let value = |row: usize| match (left.vector(row), right.vector(row)) {
            (Some(left), Some(right)) if left.len() == right.len() => Ok(measure(self.measure, left, right)),
            (Some(left), Some(right)) => Err(DataFusionError::Execution(self.unequal(left.len(), right.len()))),
            _ => Ok(None),
        };
        let values = (0..num_rows).map(value).collect::<PlanResult<Float64Array>>()?;
        Ok(ColumnarValue::Array(Arc::new(values)))
    }
}

/// Returns the length of the vectors of an argument if all have the same: by their type, or because it is a constant.
fn known_len(data_type: &DataType, scalar: Option<&ScalarValue>) -> Option<usize> {
    match (data_type, scalar) {
        (DataType::FixedSizeList(_, len), _) => usize::try_from(*len).ok(),
        (_, Some(ScalarValue::List(list))) if list.is_valid(0) => usize::try_from(list.value_length(0)).ok(),
        (_, Some(ScalarValue::LargeList(list))) if list.is_valid(0) => usize::try_from(list.value_length(0)).ok(),
        _ => None,
    }
}

/// Returns the type in which vectors of `data_type` are computed: floats are unchanged, other numbers become `f64`.
fn vector_type(name: &str, data_type: &DataType) -> PlanResult<DataType> {
    let item = match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item,
        DataType::Null => return Ok(DataType::new_list(DataType::Float64, true)),
        other => return plan_err!("`{name}` takes lists of numbers, got {other}"),
    };
    match item.data_type() {
        DataType::Float32 | DataType::Float64 => Ok(data_type.clone()),
        other if other.is_numeric() || other.is_null() => {
            let item = Arc::new(Field::clone(item).with_data_type(DataType::Float64));
            Ok(match data_type {
                DataType::LargeList(_) => DataType::LargeList(item),
                DataType::FixedSizeList(_, len) => DataType::FixedSizeList(item, *len),
                _ => DataType::List(item),
            })
        }
        other => plan_err!("`{name}` takes lists of numbers, got lists of {other}"),
    }
}

/// One argument: a vector for each row, or one for all.
struct Side {
    lists: ArrayRef,
    items: ArrayRef,
    is_constant: bool,
}

/// The numbers of one vector.
#[derive(Clone, Copy)]
enum Numbers<'a> {
    Single(&'a [f32]),
    Double(&'a [f64]),
}

impl Numbers<'_> {
    fn len(self) -> usize {
        match self {
            Self::Single(numbers) => numbers.len(),
            Self::Double(numbers) => numbers.len(),
        }
    }
}

impl Side {
    fn try_new(argument: ColumnarValue) -> PlanResult<Self> {
        let is_constant = matches!(argument, ColumnarValue::Scalar(_));
        let lists = argument.into_array(1)?;
        let items = match lists.data_type() {
            DataType::List(_) => Arc::clone(lists.as_list::<i32>().values()),
            DataType::LargeList(_) => Arc::clone(lists.as_list::<i64>().values()),
            _ => Arc::clone(lists.as_fixed_size_list().values()),
        };
        Ok(Self { lists, items, is_constant })
    }

    /// Returns the vector of a row; `None` if it or one of its numbers is NULL.
    fn vector(&self, row: usize) -> Option<Numbers<'_>> {
        fn numbers<T: ArrowPrimitiveType>(items: &ArrayRef, start: usize, end: usize) -> Option<&[T::Native]> {
            items.as_primitive::<T>().values().get(start..end)
        }
        let row = if self.is_constant { 0 } else { row };
        if self.lists.is_null(row) {
            return None;
        }
        let (start, end) = match self.lists.data_type() {
            DataType::List(_) => {
                let offsets = self.lists.as_list::<i32>().value_offsets();
                (usize::try_from(offsets[row]).ok()?, usize::try_from(offsets[row + 1]).ok()?)
            }
            DataType::LargeList(_) => {
                let offsets = self.lists.as_list::<i64>().value_offsets();
                (usize::try_from(offsets[row]).ok()?, usize::try_from(offsets[row + 1]).ok()?)
            }
            _ => {
                let len = usize::try_from(self.lists.as_fixed_size_list().value_length()).ok()?;
                (row * len, (row + 1) * len)
            }
        };
        if let Some(nulls) = self.items.nulls()
            && nulls.slice(start, end - start).null_count() > 0
        {
            return None;
        }
        match self.items.data_type() {
            DataType::Float32 => numbers::<Float32Type>(&self.items, start, end).map(Numbers::Single),
            _ => numbers::<Float64Type>(&self.items, start, end).map(Numbers::Double),
        }
    }
}

fn measure(measure: Measure, left: Numbers<'_>, right: Numbers<'_>) -> Option<f64> {
    match (left, right) {
        (Numbers::Single(left), Numbers::Single(right)) => measured(measure, left, right),
        (Numbers::Single(left), Numbers::Double(right)) => measured(measure, left, right),
        (Numbers::Double(left), Numbers::Single(right)) => measured(measure, left, right),
        (Numbers::Double(left), Numbers::Double(right)) => measured(measure, left, right),
    }
}

fn measured<L: Copy + Into<f64>, R: Copy + Into<f64>>(measure: Measure, left: &[L], right: &[R]) -> Option<f64> {
    match measure {
        Measure::Dot => Some(sum(left, right, |a, b| a * b)),
        Measure::L2Distance => Some(sum(left, right, |a, b| (a - b) * (a - b)).sqrt()),
        Measure::CosineSimilarity => {
            let norms = squares(left, right);
            if norms.iter().all(|norm| EXACT_SQUARES.contains(norm)) {
                return Some(cosine(left, right, norms));
            }
            // Only directions matter, so any lengths will do.
            let (left, right) = (of_unit_size(left)?, of_unit_size(right)?);
            Some(cosine(&left, &right, squares(&left, &right)))
        }
    }
}

/// Returns the squared lengths of two vectors.
fn squares<L: Copy + Into<f64>, R: Copy + Into<f64>>(left: &[L], right: &[R]) -> [f64; 2] {
    [sum(left, left, |a, b| a * b), sum(right, right, |a, b| a * b)]
}

fn cosine<L: Copy + Into<f64>, R: Copy + Into<f64>>(left: &[L], right: &[R], norms: [f64; 2]) -> f64 {
    // Rounding may exceed the bounds slightly, which `acos` would not accept; NaN stays NaN.
    (sum(left, right, |a, b| a * b) / (norms[0].sqrt() * norms[1].sqrt())).clamp(-1.0, 1.0)
}

/// Divides the numbers of a vector by the largest of them; `None` if all are zero.
fn of_unit_size<T: Copy + Into<f64>>(numbers: &[T]) -> Option<Vec<f64>> {
    let numbers = numbers.iter().map(|&number| -> f64 { number.into() });
    let largest = numbers.clone().map(f64::abs).fold(0.0, f64::max);
    numbers.clone().any(|number| number != 0.0).then(|| numbers.map(|number| number / largest).collect())
}

/// Adds up `of` over the pairs of two vectors of one length.
fn sum<L: Copy + Into<f64>, R: Copy + Into<f64>>(left: &[L], right: &[R], of: impl Fn(f64, f64) -> f64) -> f64 {
    const LANES: usize = 4;
    let mut lanes = [0.0; LANES];
    let (left_chunks, right_chunks) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let rest = left_chunks.remainder().iter().zip(right_chunks.remainder());
    let rest: f64 = rest.map(|(&a, &b)| of(a.into(), b.into())).sum();
    for (a, b) in left_chunks.zip(right_chunks) {
        for lane in 0..LANES {
            lanes[lane] += of(a[lane].into(), b[lane].into());
        }
    }
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn measures_are_those_of_a_slow_loop(
            pairs in prop::collection::vec((-1e3_f32..1e3, -1e3_f64..1e3), 0..40),
        ) {
            let left: Vec<f32> = pairs.iter().map(|pair| pair.0).collect();
            let right: Vec<f64> = pairs.iter().map(|pair| pair.1).collect();
            let wide: Vec<f64> = left.iter().map(|&x| f64::from(x)).collect();
            let dot: f64 = wide.iter().zip(&right).map(|(a, b)| a * b).sum();
            let distance = wide.iter().zip(&right).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let norms: f64 = [&wide, &right].map(|v| v.iter().map(|x| x * x).sum::<f64>().sqrt()).iter().product();
            let near = |got: Option<f64>, expected: f64| (got.unwrap() - expected).abs() <= 1e-9 * expected.abs().max(1e6);
            let (left, right) = (Numbers::Single(&left), Numbers::Double(&right));
            prop_assert!(near(measure(Measure::Dot, left, right), dot));
            prop_assert!(near(measure(Measure::L2Distance, left, right), distance));
            match measure(Measure::CosineSimilarity, left, right) {
                None => prop_assert_eq!(norms, 0.0),
                got => prop_assert!((got.unwrap() - dot / norms).abs() < 1e-9),
            }
        }

        #[test]
        fn an_angle_does_not_depend_on_lengths(
            pairs in prop::collection::vec((-1e3_f64..1e3, -1e3_f64..1e3), 1..40),
            left_exponent in -1000..900,
            right_exponent in -1000..900,
        ) {
            let left: Vec<f64> = pairs.iter().map(|pair| pair.0).collect();
            let right: Vec<f64> = pairs.iter().map(|pair| pair.1).collect();
            let scaled = |numbers: &[f64], exponent| -> Vec<f64> {
                numbers.iter().map(|number| number * 2_f64.powi(exponent)).collect()
            };
            let cosine = |left: &[f64], right: &[f64]| {
                measure(Measure::CosineSimilarity, Numbers::Double(left), Numbers::Double(right))
            };
            let expected = cosine(&left, &right);
            let got = cosine(&scaled(&left, left_exponent), &scaled(&right, right_exponent));
            prop_assert_eq!(got.is_some(), expected.is_some());
            if let (Some(got), Some(expected)) = (got, expected) {
                prop_assert!((got - expected).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn cosines_of_the_largest_and_the_smallest_vectors() {
        let cosine = |left: &[f64]| {
            let right = [1.0, 0.0, 0.0];
            measure(Measure::CosineSimilarity, Numbers::Double(left), Numbers::Double(&right))
        };
        for x in [1e200, 1e-200, f64::MAX, f64::MIN_POSITIVE, 5e-324] {
            assert_eq!(cosine(&[x, 0.0, 0.0]), Some(1.0), "{x}");
            assert_eq!(cosine(&[-x, 0.0, 0.0]), Some(-1.0), "{x}");
            assert_eq!(cosine(&[0.0, x, 0.0]), Some(0.0), "{x}");
        }
        assert_eq!(cosine(&[0.0; 3]), None);
        assert!(cosine(&[f64::NAN, 0.0, 0.0]).unwrap().is_nan());
        assert!(cosine(&[f64::INFINITY, 0.0, 0.0]).unwrap().is_nan());
    }
}
