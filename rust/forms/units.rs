//! The units of the integers of dates, times, timestamps and durations.

use arrow_schema::{DataType, Field, Fields, TimeUnit};

/// A unit of time, and what it measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Points in time, since 1970-01-01 (in UTC if there is a time zone).
    Since1970(&'static str),
    /// Durations.
    Length(&'static str),
    /// Times of day, since midnight.
    SinceMidnight(&'static str),
}

impl Unit {
    /// Returns the unit of a time type, or of the items of lists.
    pub fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Date32 => Self::Since1970("D"),
            DataType::Date64 => Self::Since1970("ms"),
            DataType::Timestamp(unit, _) => Self::Since1970(name(*unit)),
            DataType::Duration(unit) => Self::Length(name(*unit)),
            DataType::Time32(unit) | DataType::Time64(unit) => Self::SinceMidnight(name(*unit)),
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                return Self::of(item.data_type());
            }
            _ => return None,
        })
    }

    /// Returns NumPy's code for the unit: `D`, `s`, `ms`, `us` or `ns`.
    pub fn code(self) -> &'static str {
        match self {
            Self::Since1970(code) | Self::Length(code) | Self::SinceMidnight(code) => code,
        }
    }

    /// Returns NumPy's type for the values, if it has one.
    pub fn numpy_type(self) -> Option<String> {
        match self {
            Self::Since1970(code) => Some(format!("datetime64[{code}]")),
            Self::Length(code) => Some(format!("timedelta64[{code}]")),
            Self::SinceMidnight(_) => None,
        }
    }
}

fn name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

/// Returns the unit of each column with a time type, with its path: fields of structs as `struct.field`.
pub fn units(fields: &Fields) -> Vec<(String, Unit)> {
    let mut found = Vec::new();
    for field in fields {
        visit(field, field.name().clone(), &mut found);
    }
    found
}

fn visit(field: &Field, path: String, found: &mut Vec<(String, Unit)>) {
    match field.data_type() {
        DataType::Struct(fields) => {
            for child in fields {
                visit(child, format!("{path}.{}", child.name()), found);
            }
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => visit(item, path, found),
        DataType::Map(entries, _) => visit(entries, path, found),
        DataType::Dictionary(_, values) => found.extend(Unit::of(values).map(|unit| (path, unit))),
        other => found.extend(Unit::of(other).map(|unit| (path, unit))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn units_are_found_in_structs_and_lists() {
        let day = Field::new("day", DataType::Date32, true);
        let took = Field::new("item", DataType::Duration(TimeUnit::Microsecond), true);
        let meta = Field::new_struct("meta", vec![day, Field::new("took", DataType::List(Arc::new(took)), true)], true);
        let fields = Fields::from(vec![meta, Field::new("id", DataType::Int64, true)]);
        let expected = [("meta.day".to_owned(), Unit::Since1970("D")), ("meta.took".to_owned(), Unit::Length("us"))];
        assert_eq!(units(&fields), expected);
    }
}
