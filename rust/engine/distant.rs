//! `date_bin` and `date_trunc` of all times that a column can hold.
//!
//! The engine computes both in 64-bit nanoseconds, which hold the years 1677 to 2262. Of other times, `date_bin` is
//! NULL, and `date_trunc` mostly an error. So these times are computed here: bins in 128 bits, and parts of the calendar
//! in years that lie a multiple of 400 years nearer, when it is the same.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::timezone::Tz;
use arrow_array::types::{Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType};
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_cast::display::array_value_to_string;
use arrow_schema::{DataType, FieldRef, IntervalUnit, TimeUnit};
use chrono::{DateTime, Datelike, Months, Offset, TimeZone, Utc};
use datafusion::common::{Result as PlanResult, ScalarValue, exec_err, plan_err};
use datafusion::functions::datetime;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature,
};

const NANOSECONDS: i64 = 1_000_000_000;

const SECONDS_OF_A_DAY: i64 = 86_400;

/// After 400 years, which are whole weeks, the calendar repeats.
const SECONDS_OF_AN_ERA: i64 = 146_097 * SECONDS_OF_A_DAY;

/// The era that contains 1970 begins in the year 1770, so that nanoseconds hold all of it.
const SECONDS_BEFORE_1970: i64 = 73_000 * SECONDS_OF_A_DAY;

/// What the engine truncates to in any unit.
const FINE: [&str; 4] = ["second", "minute", "millisecond", "microsecond"];

/// Returns the functions, which replace those of the engine.
pub(super) fn functions() -> [Arc<ScalarUDF>; 2] {
    let mut signature = datetime::date_bin().signature().clone();
    // An instant keeps its unit.
    let theirs = signature.type_signature;
    signature.type_signature = TypeSignature::OneOf(vec![TypeSignature::UserDefined, theirs]);
    let truncating = datetime::date_trunc().signature().clone();
    [
        Distant { near: datetime::date_bin(), kind: Kind::Bin, signature },
        Distant { near: datetime::date_trunc(), kind: Kind::Trunc, signature: truncating },
    ]
    .map(|function| Arc::new(ScalarUDF::new_from_impl(function)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Bin,
    Trunc,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Distant {
    /// The engine's function.
    near: Arc<ScalarUDF>,
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for Distant {
    fn name(&self) -> &str {
        self.near.name()
    }

    fn aliases(&self) -> &[String] {
        self.near.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> PlanResult<Vec<DataType>> {
        let [stride, time @ DataType::Timestamp(_, zone @ Some(_)), origin @ ..] = types else {
            return plan_err!("`{}` of a time without a zone", self.name());
        };
        let stride = match stride {
            DataType::Interval(_) => stride.clone(),
            _ => DataType::Interval(IntervalUnit::MonthDayNano),
        };
        let origin = origin.iter().map(|_| DataType::Timestamp(TimeUnit::Nanosecond, zone.clone()));
        Ok([stride, time.clone()].into_iter().chain(origin).collect())
    }

    fn return_type(&self, types: &[DataType]) -> PlanResult<DataType> {
        self.near.return_type(types)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> PlanResult<FieldRef> {
        self.near.return_field_from_args(arguments)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let Some(time) = arguments.args.get(1) else { return self.near.invoke_with_args(arguments) };
        let DataType::Timestamp(unit, zone) = time.data_type() else {
            return self.near.invoke_with_args(arguments);
        };
        if matches!(arguments.args.first(), Some(ColumnarValue::Scalar(first)) if first.is_null()) {
            return self.near.invoke_with_args(arguments);
        }
        let is_scalar = matches!(time, ColumnarValue::Scalar(_));
        let times = match time {
            ColumnarValue::Array(times) => Arc::clone(times),
            ColumnarValue::Scalar(time) => time.to_array()?,
        };
        let counts = arrow_cast::cast(&times, &DataType::Int64)?;
        let counts = counts.as_primitive::<Int64Type>();
        let are_near = unit == TimeUnit::Nanosecond || is_fine(&arguments);
        let is_near = |count| are_near || era_of(count, unit) == 0;
        let near: Int64Array = if counts.iter().flatten().all(is_near) {
            counts.clone()
        } else {
            counts.unary_opt(|count| is_near(count).then_some(count))
        };
        let found = of_array(&self.near, &arguments, near, times.data_type())?;
        let found = if found.null_count() == counts.null_count() {
            found
        } else {
            let zone = zone.map(|zone| zone.parse::<Tz>()).transpose()?;
            let others = counts.iter().zip(0..).map(|(count, row)| count.filter(|_| found.is_null(row)));
            let others = match self.kind {
                Kind::Bin => binned(&arguments, &others.collect(), unit)?,
                Kind::Trunc => truncated(&arguments, &others.collect(), unit, zone.as_ref())?,
            };
            self.merged(&times, &found, &others)?
        };
        Ok(if is_scalar {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?)
        } else {
            ColumnarValue::Array(found)
        })
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> PlanResult<SortProperties> {
        self.near.output_ordering(inputs)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.near.documentation()
    }
}

impl Distant {
    /// Returns `found`, and where that is NULL, `others`.
    fn merged(&self, times: &ArrayRef, found: &ArrayRef, others: &[Option<i64>]) -> PlanResult<ArrayRef> {
        let known = arrow_cast::cast(found, &DataType::Int64)?;
        let rows = known.as_primitive::<Int64Type>().iter().zip(others).enumerate();
        let merged = rows.map(|(row, (known, other))| match known.or(*other) {
            None if times.is_valid(row) => exec_err!(
                "`{}` of {} is not a time that {} can hold",
                self.name(),
                array_value_to_string(times, row)?,
                times.data_type()
            ),
            value => Ok(value),
        });
        let merged: ArrayRef = Arc::new(merged.collect::<PlanResult<Int64Array>>()?);
        Ok(arrow_cast::cast(&merged, times.data_type())?)
    }
}

/// Returns whether the engine computes the function for any time.
fn is_fine(arguments: &ScalarFunctionArgs) -> bool {
    let Some(ColumnarValue::Scalar(part)) = arguments.args.first() else { return false };
    part.try_as_str().flatten().is_some_and(|part| FINE.contains(&part.to_lowercase().as_str()))
}

/// Calls a function of the engine with `counts` as times of a type.
fn of_array(
    function: &ScalarUDF,
    arguments: &ScalarFunctionArgs,
    counts: Int64Array,
    data_type: &DataType,
) -> PlanResult<ArrayRef> {
    let num_rows = counts.len();
    let mut arguments = ScalarFunctionArgs { number_rows: num_rows, ..arguments.clone() };
    let counts: ArrayRef = Arc::new(counts);
    arguments.args[1] = ColumnarValue::Array(arrow_cast::cast(&counts, data_type)?);
    function.invoke_with_args(arguments)?.into_array(num_rows)
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => NANOSECONDS,
    }
}

/// Returns by how many times 400 years a time is away from the era of 1970.
fn era_of(count: i64, unit: TimeUnit) -> i64 {
    count.div_euclid(per_second(unit)).saturating_add(SECONDS_BEFORE_1970).div_euclid(SECONDS_OF_AN_ERA)
}

/// Truncates what clocks show in the zone; `None` for what the unit cannot hold.
fn truncated(
    arguments: &ScalarFunctionArgs,
    counts: &Int64Array,
    unit: TimeUnit,
    zone: Option<&Tz>,
) -> PlanResult<Vec<Option<i64>>> {
    let utc_of = |count: i64| DateTime::from_timestamp(count.div_euclid(per_second(unit)), 0);
    let in_counts = |offset: i32| i64::from(offset) * per_second(unit);
    let local = |count: i64| match zone {
        None => Some(count),
        Some(zone) => {
            let offset = zone.offset_from_utc_datetime(&utc_of(count)?.naive_utc());
            count.checked_add(in_counts(offset.fix().local_minus_utc()))
        }
    };
    let instant = |local: i64| match zone {
        None => Some(local),
        Some(zone) => {
            let offset = zone.offset_from_local_datetime(&utc_of(local)?.naive_utc()).earliest()?;
            local.checked_sub(in_counts(offset.fix().local_minus_utc()))
        }
    };
    let distance = |local: i64| era_of(local, unit).checked_mul(SECONDS_OF_AN_ERA)?.checked_mul(per_second(unit));
    let local: Vec<Option<i64>> = counts.iter().map(|count| local(count?)).collect();
    let nearer = local.iter().map(|local| local.and_then(|local| local.checked_sub(distance(local)?))).collect();
    let nearer = of_array(&datetime::date_trunc(), arguments, nearer, &DataType::Timestamp(unit, None))?;
    let nearer = arrow_cast::cast(&nearer, &DataType::Int64)?;
    let back = |(nearer, local): (Option<i64>, &Option<i64>)| instant(nearer?.checked_add(distance((*local)?)?)?);
    Ok(nearer.as_primitive::<Int64Type>().iter().zip(&local).map(back).collect())
}

/// Returns the beginnings of bins, which do not depend on the zone; `None` for what the unit cannot hold.
fn binned(arguments: &ScalarFunctionArgs, counts: &Int64Array, unit: TimeUnit) -> PlanResult<Vec<Option<i64>>> {
    // The engine has seen them before, and refuses any others.
    let [ColumnarValue::Scalar(stride), _, origin @ ..] = arguments.args.as_slice() else {
        return plan_err!("`date_bin` takes an interval");
    };
    let (months, nanoseconds) = match stride {
        ScalarValue::IntervalMonthDayNano(Some(stride)) => {
            let (months, days, nanoseconds) = IntervalMonthDayNanoType::to_parts(*stride);
            (i64::from(months), i128::from(days) * NANOSECONDS_OF_A_DAY + i128::from(nanoseconds))
        }
        ScalarValue::IntervalDayTime(Some(stride)) => {
            let (days, milliseconds) = IntervalDayTimeType::to_parts(*stride);
            (0, i128::from(days) * NANOSECONDS_OF_A_DAY + i128::from(milliseconds) * 1_000_000)
        }
        other => return plan_err!("`date_bin` takes an interval, got {other}"),
    };
    let origin = match origin.first() {
        Some(ColumnarValue::Scalar(ScalarValue::TimestampNanosecond(Some(origin), _))) => i128::from(*origin),
        _ => 0,
    };
    let scale = i128::from(NANOSECONDS / per_second(unit));
    let bin = |count: i64| {
        let time = i128::from(count) * scale;
        let begin = match months {
            0 => origin + distance(time - origin, nanoseconds),
            _ => begin_of_months(time, origin, months)?,
        };
        i64::try_from(begin.div_euclid(scale)).ok()
    };
    Ok(counts.iter().map(|count| bin(count?)).collect())
}

const NANOSECONDS_OF_A_DAY: i128 = SECONDS_OF_A_DAY as i128 * NANOSECONDS as i128;

/// Returns what the engine takes for the distance of a bin from the origin.
fn distance(to_time: i128, stride: i128) -> i128 {
    let to_bin = to_time - to_time % stride;
    if to_time < 0 && stride > 1 && to_bin != to_time { to_bin - stride } else { to_bin }
}

/// Returns the beginning of a bin of months.
fn begin_of_months(time: i128, origin: i128, stride: i64) -> Option<i128> {
    let date_of = |nanoseconds: i128| {
        let seconds = i64::try_from(nanoseconds.div_euclid(NANOSECONDS.into())).ok()?;
        DateTime::from_timestamp(seconds, u32::try_from(nanoseconds.rem_euclid(NANOSECONDS.into())).ok()?)
    };
    let (time, origin) = (date_of(time)?, date_of(origin)?);
    let months_of = |date: DateTime<Utc>| i64::from(date.year()) * 12 + i64::from(date.month());
    let num_months = distance((months_of(time) - months_of(origin)).into(), stride.into());
    let after = |num_months: i128| {
        let months = Months::new(u32::try_from(num_months.unsigned_abs()).ok()?);
        if num_months < 0 { origin.checked_sub_months(months) } else { origin.checked_add_months(months) }
    };
    let begin = after(num_months).filter(|begin| *begin <= time).or_else(|| after(num_months - i128::from(stride)))?;
    Some(i128::from(begin.timestamp()) * i128::from(NANOSECONDS) + i128::from(begin.timestamp_subsec_nanos()))
}
