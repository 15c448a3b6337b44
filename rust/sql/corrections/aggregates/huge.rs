//! Sums and means of decimals of 256 bits, for which there is no wider type.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal256Type, DecimalType, Int64Type};
use arrow_buffer::i256;
use arrow_schema::{DECIMAL256_MAX_PRECISION, DECIMAL256_MAX_SCALE, DataType, Field, FieldRef};
use datafusion::common::{DataFusionError, Result as PlanResult, ScalarValue, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

/// Returns our own aggregate for a sum or a mean of 256-bit decimals.
pub(crate) fn of(name: &str, data_type: &DataType) -> Option<AggregateUDF> {
    let is_mean = match name {
        "sum" => false,
        "avg" => true,
        _ => return None,
    };
    let huge = || Huge { is_mean, signature: Signature::any(1, Volatility::Immutable) };
    matches!(data_type, DataType::Decimal256(..)).then(|| AggregateUDF::new_from_impl(huge()))
}

/// The sum or mean of 256-bit decimals.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Huge {
    is_mean: bool,
    signature: Signature,
}

impl AggregateUDFImpl for Huge {
    fn name(&self) -> &'static str {
        if self.is_mean { "avg" } else { "sum" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Returns the type of the engine's aggregate.
    fn return_type(&self, arguments: &[DataType]) -> PlanResult<DataType> {
        let [DataType::Decimal256(precision, scale)] = *arguments else {
            return plan_err!("expected decimals of 256 bits, got {arguments:?}");
        };
        let (digits, fraction) = if self.is_mean { (4, 4) } else { (10, 0) };
        let precision = DECIMAL256_MAX_PRECISION.min(precision + digits);
        Ok(DataType::Decimal256(precision, DECIMAL256_MAX_SCALE.min(scale + fraction)))
    }

    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> PlanResult<Vec<FieldRef>> {
        let data_type = arguments.input_fields[0].data_type().clone();
        let field = |part: &str, of| Arc::new(Field::new(format!("{}[{part}]", arguments.name), of, true));
        Ok(if arguments.is_distinct {
            vec![field("values", DataType::new_list(data_type, true))]
        } else {
            vec![field("low", data_type), field("carry", DataType::Int64), field("count", DataType::Int64)]
        })
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> PlanResult<Box<dyn Accumulator>> {
        Ok(Box::new(HugeSum {
            of: arguments.expr_fields[0].data_type().clone(),
            returns: arguments.return_type().clone(),
            is_mean: self.is_mean,
            low: i256::ZERO,
            carry: 0,
            num_values: 0,
            counts: arguments.is_distinct.then(BTreeMap::new),
        }))
    }
}

/// The sum `low + carry * 2^256`, which no order of the values can make overflow.
#[derive(Debug)]
struct HugeSum {
    of: DataType,
    returns: DataType,
    is_mean: bool,
    low: i256,
    carry: i64,
    num_values: i64,
    /// The values, if each is only added once.
    counts: Option<BTreeMap<i256, usize>>,
}

impl HugeSum {
    fn add(&mut self, value: i256) {
        if self.low.checked_add(value).is_none() {
            self.carry += if value.is_negative() { -1 } else { 1 };
        }
        self.low = self.low.wrapping_add(value);
    }

    /// Returns the sum, or the mean rounded towards zero to `num_decimals` more than the values have, if it fits.
    fn result(&self, num_decimals: u32) -> Option<i256> {
        let sum = Some(self.low).filter(|_| self.carry == 0)?;
        if !self.is_mean {
            return Some(sum);
        }
        let (num_values, unit) = (i256::from_i128(self.num_values.into()), i256::from_i128(10_i128.pow(num_decimals)));
        let rest = sum.wrapping_rem(num_values).wrapping_mul(unit).wrapping_div(num_values);
        sum.wrapping_div(num_values).checked_mul(unit)?.checked_add(rest)
    }
}

impl Accumulator for HugeSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        for value in values[0].as_primitive::<Decimal256Type>().iter().flatten() {
            if let Some(counts) = &mut self.counts {
                let count = counts.entry(value).or_default();
                *count += 1;
                if *count > 1 {
                    continue;
                }
            }
            self.add(value);
            self.num_values += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        for value in values[0].as_primitive::<Decimal256Type>().iter().flatten() {
            if let Some(counts) = &mut self.counts {
                let count = counts.entry(value).or_default();
                *count = count.saturating_sub(1);
                if *count > 0 {
                    continue;
                }
                counts.remove(&value);
            }
            self.add(value.wrapping_neg());
            self.num_values -= 1;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> PlanResult<ScalarValue> {
        let (DataType::Decimal256(_, from), DataType::Decimal256(precision, scale)) = (&self.of, &self.returns) else {
            return plan_err!("expected decimals of 256 bits, got {}", self.of);
        };
        if self.num_values == 0 {
            return Ok(ScalarValue::Decimal256(None, *precision, *scale));
        }
        let fits = |value: &i256| Decimal256Type::is_valid_decimal_precision(*value, *precision);
        let value = self.result(scale.abs_diff(*from).into()).filter(fits).ok_or_else(|| {
            let statistic = if self.is_mean { "mean" } else { "sum" };
            DataFusionError::Execution(format!("a {statistic} of {} has more than {precision} digits", self.of))
        })?;
        Ok(ScalarValue::Decimal256(Some(value), *precision, *scale))
    }

    fn size(&self) -> usize {
        let num_counts = self.counts.as_ref().map_or(0, BTreeMap::len);
        size_of_val(self) + num_counts * size_of::<(i256, usize)>()
    }

    fn state(&mut self) -> PlanResult<Vec<ScalarValue>> {
        let DataType::Decimal256(precision, scale) = self.of else {
            return plan_err!("expected decimals of 256 bits, got {}", self.of);
        };
        let scalar = |value: i256| ScalarValue::Decimal256(Some(value), precision, scale);
        Ok(match &self.counts {
            Some(counts) => {
                let values: Vec<_> = counts.keys().copied().map(scalar).collect();
                vec![ScalarValue::List(ScalarValue::new_list_nullable(&values, &self.of))]
            }
            None => vec![scalar(self.low), self.carry.into(), self.num_values.into()],
        })
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> PlanResult<()> {
        if self.counts.is_some() {
            return states[0].as_list::<i32>().iter().flatten().try_for_each(|values| self.update_batch(&[values]));
        }
        let (carries, counts) = (states[1].as_primitive::<Int64Type>(), states[2].as_primitive::<Int64Type>());
        for (row, low) in states[0].as_primitive::<Decimal256Type>().iter().enumerate() {
            let Some(low) = low else { continue };
            self.add(low);
            self.carry += carries.value(row);
            self.num_values += counts.value(row);
        }
        Ok(())
    }
}
