//! Decimal numbers of any length, and their positions among the values of an integer or decimal type.

use arrow_buffer::i256;
use arrow_schema::{DECIMAL256_MAX_PRECISION, DataType};
use datafusion::common::ScalarValue;

/// A number: its digits, without leading and trailing zeros, times a power of ten.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Number {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Number {
    /// Parses a number in decimal notation.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix('-');
        let (is_negative, text) = (unsigned.is_some(), unsigned.unwrap_or(text));
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse().ok()?),
            None => (text, 0_i64),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let significant = digits.trim_end_matches('0');
        let num_zeros = digits.len() - significant.len();
        let exponent =
            exponent.checked_sub(fraction.len().try_into().ok()?)?.checked_add(num_zeros.try_into().ok()?)?;
        let significant = significant.trim_start_matches('0');
        if significant.is_empty() {
            return Some(Self { is_negative: false, digits: String::new(), exponent: 0 });
        }
        Some(Self { is_negative, digits: significant.to_owned(), exponent })
    }

    /// Returns the shortest number that is read as this double: what was written, if that had at most 15 digits. An
    /// integer of more digits was given as a double, and is taken exactly.
    pub(crate) fn of_double(double: f64) -> Option<Self> {
        Self::of_float(&format!("{double:e}"), &format!("{double:.0}"), f64::DIGITS)
    }

    fn of_float(shortest: &str, whole: &str, num_written: u32) -> Option<Self> {
        let shortest = Self::parse(shortest)?;
        let was_written = shortest.exponent < 0 || shortest.digits.len() <= num_written as usize;
        if was_written { Some(shortest) } else { Self::parse(whole) }
    }

    /// Returns a value's number; `None` for infinity, NaN, NULL and non-numbers.
    pub(crate) fn of_value(value: &ScalarValue) -> Option<Self> {
        match value {
            ScalarValue::Float64(Some(value)) => Self::of_double(*value),
            ScalarValue::Float32(Some(value)) => {
                Self::of_float(&format!("{value:e}"), &format!("{value:.0}"), f32::DIGITS)
            }
            ScalarValue::Float16(Some(value)) => Self::parse(&format!("{:e}", value.to_f32())),
            ScalarValue::Decimal32(Some(units), _, scale) => Self::of_units(&units.to_string(), *scale),
            ScalarValue::Decimal64(Some(units), _, scale) => Self::of_units(&units.to_string(), *scale),
            ScalarValue::Decimal128(Some(units), _, scale) => Self::of_units(&units.to_string(), *scale),
            ScalarValue::Decimal256(Some(units), _, scale) => Self::of_units(&units.to_string(), *scale),
            integer if integer.data_type().is_integer() => Self::parse(&integer.to_string()),
            _ => None,
        }
    }

    fn of_units(units: &str, scale: i8) -> Option<Self> {
        let whole = Self::parse(units)?;
        let exponent = whole.exponent - i64::from(scale);
        Some(if whole.digits.is_empty() { whole } else { Self { exponent, ..whole } })
    }

    pub(crate) fn negated(self) -> Self {
        Self { is_negative: !self.is_negative && !self.digits.is_empty(), ..self }
    }

    /// Returns the nearest double.
    pub(crate) fn to_double(&self) -> Option<f64> {
        let sign = if self.is_negative { "-" } else { "" };
        format!("{sign}0{}e{}", self.digits, self.exponent).parse().ok()
    }

    /// Returns the number's magnitude in units of `10^-scale`, truncated, and the first truncated digit; `None` if no
    /// type holds it.
    fn units(&self, scale: i8) -> Option<(i256, Option<u8>)> {
        if self.digits.is_empty() {
            return Some((i256::ZERO, None));
        }
        let shift = self.exponent.saturating_add(scale.into());
        let num_kept = shift.saturating_add(self.digits.len().try_into().ok()?);
        if num_kept > i64::from(DECIMAL256_MAX_PRECISION) {
            return None;
        }
        let num_kept = match usize::try_from(num_kept) {
            Ok(0) => return Some((i256::ZERO, self.digits.bytes().next())),
            Ok(num_kept) => num_kept,
            Err(_) => return Some((i256::ZERO, Some(b'0'))),
        };
        let units = match self.digits.get(..num_kept) {
            Some(kept) => i256::from_string(kept)?,
            None => i256::from_string(&format!("{:0<num_kept$}", self.digits))?,
        };
        Some((units, self.digits.as_bytes().get(num_kept).copied()))
    }
}

/// The position of a number among those of a type.
#[derive(Debug, PartialEq)]
pub(super) enum Place {
    At(ScalarValue),
    /// Between this one and the next, or above all.
    After(ScalarValue),
    /// Below all, of which this is the least.
    Below(ScalarValue),
}

/// The numbers of a type: all from the least to the most, in units of the last digit.
#[derive(Debug)]
pub(super) struct Grid<'a> {
    data_type: &'a DataType,
    least: i256,
    most: i256,
    scale: i8,
}

impl<'a> Grid<'a> {
    /// Returns the numbers of an integer or decimal type.
    pub(crate) fn of(data_type: &'a DataType) -> Option<Self> {
        use DataType::{Decimal32, Decimal64, Decimal128, Decimal256, Dictionary};
        if let Dictionary(_, values) = data_type {
            return Self::of(values);
        }
        if let Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) = data_type
        {
            let most = i256::from_string(&"9".repeat(usize::from(*precision)))?;
            return Some(Self { data_type, least: most.checked_neg()?, most, scale: *scale });
        }
        if !data_type.is_integer() {
            return None;
        }
        let num_bits = data_type.primitive_width()? * 8;
        let power = |exponent: usize| i256::from_i128(1 << exponent);
        let (least, above) = match data_type.is_signed_integer() {
            true => (power(num_bits - 1).checked_neg()?, power(num_bits - 1)),
            false => (i256::ZERO, power(num_bits)),
        };
        Some(Self { data_type, least, most: above.checked_sub(i256::ONE)?, scale: 0 })
    }

    pub(crate) fn is_of_integers(&self) -> bool {
        self.data_type.is_integer()
    }

    /// Returns the largest number.
    pub(crate) fn most(&self) -> Option<ScalarValue> {
        self.value(self.most)
    }

    /// Returns the position of a number among them.
    pub(crate) fn place(&self, number: &Number) -> Option<Place> {
        let (floor, is_exact) = match number.units(self.scale) {
            None if number.is_negative => return self.value(self.least).map(Place::Below),
            None => return self.most().map(Place::After),
            Some((units, left_out)) if number.is_negative => {
                let above = units.checked_neg()?;
                (if left_out.is_some() { above.checked_sub(i256::ONE)? } else { above }, left_out.is_none())
            }
            Some((units, left_out)) => (units, left_out.is_none()),
        };
        if floor < self.least {
            self.value(self.least).map(Place::Below)
        } else if floor > self.most {
            self.most().map(Place::After)
        } else {
            self.value(floor).map(if is_exact { Place::At } else { Place::After })
        }
    }

    /// Returns the one nearest to a number, ties away from zero; `None` if it is out of range.
    pub(crate) fn rounded(&self, number: &Number) -> Option<ScalarValue> {
        let (units, left_out) = number.units(self.scale)?;
        let is_half = left_out.is_some_and(|digit| digit >= b'5');
        let units = if is_half { units.checked_add(i256::ONE)? } else { units };
        let units = if number.is_negative { units.checked_neg()? } else { units };
        if units < self.least || self.most < units { None } else { self.value(units) }
    }

    fn value(&self, units: i256) -> Option<ScalarValue> {
        let exact = ScalarValue::Decimal256(Some(units), DECIMAL256_MAX_PRECISION, self.scale);
        exact.cast_to(self.data_type).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Number {
        Number::parse(text).unwrap()
    }

    fn cents(units: i128) -> ScalarValue {
        ScalarValue::Decimal128(Some(units), 5, 2)
    }

    #[test]
    fn one_number_is_written_in_many_ways() {
        for same in ["1250", "1250.", "01250.00", "1.25e3", "1.25E+3", ".125e4", "12500e-1"] {
            assert_eq!(number(same), number("1250"), "{same}");
        }
        assert_eq!(number("-0.0"), number("0e9"));
        assert_eq!(number("0.1").negated(), number("-1e-1"));
        assert_eq!(number("0").negated(), number("0"));
        for wrong in ["", ".", "-", "1e", "inf", "NaN", "1.2.3", "0x1f", "1_000"] {
            assert_eq!(Number::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Number::of_double(f64::NAN), None);
        assert_eq!(Number::of_value(&ScalarValue::Decimal128(Some(-1250), 9, 1)), Some(number("-125")));
        assert_eq!(Number::of_value(&ScalarValue::Float32(Some(0.1))), Some(number("0.1")));
        // Integers that no double has in 15 digits, and ones written with fewer.
        for power in [54, 62, 63] {
            let (whole, single) = (1_u64 << power, ScalarValue::Float32(Some(2_f32.powi(power))));
            assert_eq!(Number::of_double(2_f64.powi(power)), Some(number(&whole.to_string())));
            assert_eq!(Number::of_value(&single), Some(number(&whole.to_string())));
        }
        assert_eq!(Number::of_double(1e23), Some(number("1e23")));
        assert_eq!(Number::of_value(&ScalarValue::UInt64(Some(u64::MAX))), Some(number("18446744073709551615")));
    }

    #[test]
    fn numbers_have_their_place_among_those_of_a_type() {
        let data_type = DataType::Decimal128(5, 2);
        let place = |text: &str| Grid::of(&data_type).unwrap().place(&number(text)).unwrap();
        for (text, expected) in [
            ("1.25", Place::At(cents(125))),
            ("-1.25", Place::At(cents(-125))),
            ("1.2500000000000000000000000000000001", Place::After(cents(125))),
            ("-1.255", Place::After(cents(-126))),
            ("0.001", Place::After(cents(0))),
            ("-1e-400", Place::After(cents(-1))),
            ("999.99", Place::At(cents(99_999))),
            ("999.991", Place::After(cents(99_999))),
            ("1e400", Place::After(cents(99_999))),
            ("-999.99", Place::At(cents(-99_999))),
            ("-999.991", Place::Below(cents(-99_999))),
            ("-1e99999999", Place::Below(cents(-99_999))),
        ] {
            assert_eq!(place(text), expected, "{text}");
        }
        let place = |data_type: DataType, text: &str| Grid::of(&data_type).unwrap().place(&number(text)).unwrap();
        assert_eq!(place(DataType::Int8, "-128"), Place::At(ScalarValue::Int8(Some(-128))));
        assert_eq!(place(DataType::Int8, "-128.5"), Place::Below(ScalarValue::Int8(Some(-128))));
        assert_eq!(
            place(DataType::UInt64, "1.8446744073709551616e19"),
            Place::After(ScalarValue::UInt64(Some(u64::MAX)))
        );
        assert_eq!(place(DataType::UInt8, "-0.5"), Place::Below(ScalarValue::UInt8(Some(0))));
        let most = "9".repeat(76);
        assert!(matches!(place(DataType::Decimal256(76, 0), &most), Place::At(_)));
        assert!(matches!(place(DataType::Decimal256(76, 0), &format!("{most}.1")), Place::After(_)));
        assert!(Grid::of(&DataType::Float64).is_none());
    }

    #[test]
    fn halves_are_rounded_away_from_zero() {
        let data_type = DataType::Decimal128(5, 2);
        let rounded = |text: &str| Grid::of(&data_type).unwrap().rounded(&number(text));
        for (text, units) in
            [("0.285", 29), ("-0.285", -29), ("0.2849999999999999999", 28), ("0.005", 1), ("0.0049", 0)]
        {
            assert_eq!(rounded(text), Some(cents(units)), "{text}");
        }
        assert_eq!(rounded("999.995"), None);
        assert_eq!(rounded("1e9"), None);
    }

    proptest! {
        #[test]
        fn doubles_come_back(bits in any::<u64>()) {
            let double = f64::from_bits(bits);
            prop_assume!(double.is_finite() && double.to_bits() != (-0.0_f64).to_bits());
            let back = Number::of_double(double).unwrap().to_double().unwrap();
            prop_assert_eq!(back.to_bits(), double.to_bits());
        }

        #[test]
        fn a_number_is_as_far_from_its_place_as_it_can_be(units in -200_000_000_i64..200_000_000, decimals in 0_usize..6) {
            let text = format!("{units}e-{decimals}");
            let data_type = DataType::Decimal128(5, 2);
            // In units of the finer of both.
            let finer = |scale: usize| 10_i128.pow(u32::try_from(6 - scale).unwrap());
            let value = i128::from(units) * finer(decimals);
            let of = |place: &ScalarValue| match place {
                ScalarValue::Decimal128(Some(units), ..) => units * finer(2),
                _ => unreachable!(),
            };
            match Grid::of(&data_type).unwrap().place(&number(&text)).unwrap() {
                Place::At(place) => prop_assert_eq!(of(&place), value),
                Place::After(place) => {
                    prop_assert!(of(&place) < value);
                    prop_assert!(value < of(&place) + finer(2) || place == cents(99_999));
                }
                Place::Below(place) => prop_assert!(value < of(&place) && place == cents(-99_999)),
            }
        }
    }
}
