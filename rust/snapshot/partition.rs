//! Columns from the names of folders: `lang=de/year=2024/part-0.parquet`.
//!
//! Their values are the same in all rows of an object, so they need no bytes: they serve as statistics, and batches get
//! them as constants. An object that has a column of that name keeps its own values, which may be several; others of
//! the same dataset get those of their folders, as values of that column.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Date32Array, Int64Array, StringArray, make_array, new_null_array};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_cast::parse::Parser;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_data::transform::MutableArrayData;
use arrow_schema::{ArrowError, DataType, Field, FieldRef};

use super::Fragment;
use crate::cast;
use crate::error::{Error, Result};

/// How Hive, Spark and pyarrow write NULL.
const NULL_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// The value of a partition column in all rows of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Constant {
    /// NULL, or no such folder.
    Null,
    /// For a column whose values are all integers.
    Integer(i64),
    /// Days since 1970-01-01, for a column whose values are all dates.
    Date(i32),
    /// For any other column.
    Text(Arc<str>),
    /// One value, for a column that other objects have.
    Stored(ArrayRef, Arc<str>),
}

impl Constant {
    pub(crate) fn is_null(&self) -> bool {
        *self == Self::Null
    }

    /// Returns the bytes of a row in an array.
    pub(crate) fn row_bytes(&self) -> u64 {
        match self {
            Self::Null | Self::Date(_) => 4,
            Self::Integer(_) => 8,
            Self::Text(text) | Self::Stored(_, text) => text.len() as u64 + 4,
        }
    }

    /// Returns bytes that identify the value among those of any column.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Null => vec![0],
            Self::Integer(value) => [&[1][..], &value.to_le_bytes()].concat(),
            Self::Date(value) => [&[2][..], &value.to_le_bytes()].concat(),
            Self::Text(text) | Self::Stored(_, text) => [&[3][..], text.as_bytes()].concat(),
        }
    }

    /// Returns `len` rows of the value, as the column's type.
    ///
    /// # Errors
    ///
    /// [`ArrowError`] if they take more bytes than offsets of 32 bits count.
    pub(crate) fn to_array(&self, data_type: &DataType, len: usize) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Null => new_null_array(data_type, len),
            Self::Integer(value) => Arc::new(Int64Array::from(vec![*value; len])),
            Self::Date(value) => Arc::new(Date32Array::from(vec![*value; len])),
            Self::Text(text) => {
                let num_bytes = text.len().saturating_mul(len);
                i32::try_from(num_bytes).map_err(|_| ArrowError::OffsetOverflowError(num_bytes))?;
                let offsets = OffsetBuffer::from_repeated_length(text.len(), len);
                Arc::new(StringArray::new(offsets, Buffer::from(text.repeat(len).into_bytes()), None))
            }
            Self::Stored(value, _) => repeated(value, len)?,
        })
    }
}

/// Returns an array of one value as `len` rows of it.
fn repeated(value: &ArrayRef, len: usize) -> Result<ArrayRef, ArrowError> {
    let data = value.to_data();
    let mut rows = MutableArrayData::new(vec![&data], false, len);
    (0..len).try_for_each(|_| rows.try_extend(0, 0, 1))?;
    Ok(make_array(rows.freeze()))
}

/// Returns the keys and values of the folders in `relative`, an object's path relative to what was listed; `None` for
/// NULL. If a key is repeated, the innermost folder wins.
pub(super) fn pairs(relative: &str) -> Vec<(String, Option<String>)> {
    let Some((folders, _)) = relative.rsplit_once('/') else { return Vec::new() };
    let mut pairs: Vec<(String, Option<String>)> = Vec::new();
    for (key, value) in folders.split('/').filter_map(|folder| folder.split_once('=')) {
        let (key, value) = (key_of(key), Some(decoded(value)).filter(|value| value != NULL_VALUE));
        match pairs.iter_mut().find(|(known, _)| *known == key) {
            _ if key.is_empty() => {}
            Some(known) => known.1 = value,
            None => pairs.push((key, value)),
        }
    }
    pairs
}

/// Returns the name of a column; Arrow's C interface has no names with a NUL character, so such a name stays encoded.
fn key_of(text: &str) -> String {
    let key = decoded(text);
    if key.contains('\0') { text.to_owned() } else { key }
}

/// Decodes `%2F` and the like; leaves invalid codes, and text that would not be UTF-8, unchanged.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.first_chunk::<2>().filter(|_| byte == b'%').and_then(|digits| {
            let digit = |place: usize| char::from(digits[place]).to_digit(16);
            u8::try_from(digit(0)? * 16 + digit(1)?).ok()
        });
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Returns the columns that only folders have, in their order in paths, and sets each fragment's values; `stored` are the
/// columns of the objects, each with the object that has it first.
///
/// # Errors
///
/// [`Error::FolderMismatch`] for a value that a column of the objects cannot hold.
pub(super) fn columns(fragments: &mut [Fragment], stored: &[(FieldRef, usize)]) -> Result<Vec<Field>> {
    let paths: Vec<_> = fragments.iter().map(|fragment| pairs(&fragment.relative)).collect();
    let places: HashMap<&str, usize> =
        stored.iter().enumerate().map(|(place, (field, _))| (field.name().as_str(), place)).collect();
    let mut keys: Vec<&str> = Vec::new();
    let mut known = HashSet::new();
    for (key, _) in paths.iter().flatten() {
        if known.insert(key.as_str()) && !places.contains_key(key.as_str()) {
            keys.push(key);
        }
    }
    let mut constants: Vec<Vec<(usize, Constant)>> = vec![Vec::new(); fragments.len()];
    for (number, path) in paths.iter().enumerate() {
        for (key, text) in path {
            let (Some(&place), Some(text)) = (places.get(key.as_str()), text) else { continue };
            if fragments[number].schema.field_with_name(key).is_err() {
                constants[number].push((place, as_stored(text, &stored[place], &fragments[number], fragments)?));
            }
        }
        constants[number].sort_unstable_by_key(|(place, _)| *place);
    }
    let mut fields = Vec::with_capacity(keys.len());
    for key in keys {
        let text_of = |path: &[(String, Option<String>)]| {
            path.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.clone())
        };
        let texts: Vec<Option<String>> = paths.iter().map(|path| text_of(path)).collect();
        let data_type = type_of(texts.iter().flatten().map(String::as_str));
        let place = stored.len() + fields.len();
        fields.push(Field::new(key, data_type.clone(), texts.iter().any(Option::is_none)));
        for (constants, text) in constants.iter_mut().zip(texts) {
            constants.push((place, text.map_or(Constant::Null, |text| constant(&text, &data_type))));
        }
    }
    for (fragment, constants) in fragments.iter_mut().zip(constants) {
        fragment.constants = constants.into();
    }
    Ok(fields)
}

/// Returns the value of a folder of `fragment` as one of a column that other objects have.
fn as_stored(
    text: &str,
    (field, first): &(FieldRef, usize),
    fragment: &Fragment,
    fragments: &[Fragment],
) -> Result<Constant> {
    let written: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let value = match field.data_type() {
        // Text that names no zone is taken for one of the column's.
        zoned @ DataType::Timestamp(_, Some(_)) => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            cast_with_options(&written, zoned, &options)
        }
        other => cast::to_feature(&written, other),
    };
    value.map(|value| Constant::Stored(value, text.into())).map_err(|_| Error::FolderMismatch {
        url: fragment.object.url.clone(),
        column: field.name().clone(),
        value: text.to_owned(),
        stored: Box::new(field.data_type().clone()),
        stored_url: fragments[*first].object.url.clone(),
    })
}

/// Returns the type of a column with these values: integers or dates if all are, in canonical form (`007` is text),
/// else text.
fn type_of<'a>(texts: impl Iterator<Item = &'a str>) -> DataType {
    let (mut is_integer, mut is_date, mut is_empty) = (true, true, true);
    for text in texts {
        is_empty = false;
        is_integer = is_integer && integer(text).is_some();
        is_date = is_date && date(text).is_some();
    }
    match (is_empty, is_integer, is_date) {
        (false, true, _) => DataType::Int64,
        (false, _, true) => DataType::Date32,
        _ => DataType::Utf8,
    }
}

fn constant(text: &str, data_type: &DataType) -> Constant {
    let typed = match data_type {
        DataType::Int64 => integer(text).map(Constant::Integer),
        DataType::Date32 => date(text).map(Constant::Date),
        _ => None,
    };
    typed.unwrap_or_else(|| Constant::Text(text.into()))
}

fn integer(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

fn date(text: &str) -> Option<i32> {
    let has_form = text.len() == 10
        && text
            .bytes()
            .enumerate()
            .all(|(place, byte)| if [4, 7].contains(&place) { byte == b'-' } else { byte.is_ascii_digit() });
    has_form.then(|| arrow_array::types::Date32Type::parse(text)).flatten()
}

#[cfg(test)]
mod tests {
    use arrow_array::Array;
    use arrow_array::cast::AsArray;

    use super::*;

    fn paired(relative: &str) -> Vec<(String, String)> {
        pairs(relative).into_iter().map(|(key, value)| (key, value.unwrap_or("NULL".into()))).collect()
    }

    #[test]
    fn folders_give_keys_and_values_and_names_of_objects_do_not() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(paired("a=1/x/b=two/c=3.parquet"), [pair("a", "1"), pair("b", "two")]);
        assert_eq!(paired("a%3D=x%2Fy%20z=%zz%ff/0.parquet"), [pair("a=", "x%2Fy%20z=%zz%ff")]);
        assert_eq!(paired("a=x%2Fy%20%C3%BC=/0.parquet"), [pair("a", "x/y ü=")]);
        assert_eq!(paired("a=__HIVE_DEFAULT_PARTITION__/b=/0.parquet"), [pair("a", "NULL"), pair("b", "")]);
        assert_eq!(paired("a=1/a=2/=3/0.parquet"), [pair("a", "2")]);
        assert_eq!(paired("a%00b=%00/0.parquet"), [pair("a%00b", "\0")]);
        assert_eq!(paired("a=1.parquet"), []);
    }

    #[test]
    fn types_are_those_that_all_values_have() {
        let typed = |texts: &[&str]| type_of(texts.iter().copied());
        assert_eq!(typed(&["1", "-20", "9223372036854775807"]), DataType::Int64);
        for text in ["007", "+1", "-0", "1.0", "9223372036854775808", "", " 1", "١"] {
            assert_eq!(typed(&["1", text]), DataType::Utf8, "{text}");
        }
        assert_eq!(typed(&["2024-02-29", "1969-12-31"]), DataType::Date32);
        for text in ["2023-02-29", "2024-1-01", "2024-01-01T00", "20240101", "1"] {
            assert_eq!(typed(&["2024-01-01", text]), DataType::Utf8, "{text}");
        }
        assert_eq!(typed(&[]), DataType::Utf8);
    }

    #[test]
    fn a_constant_fills_an_array_of_any_length() {
        for len in [0, 1, 3] {
            let text = Constant::Text("äx".into()).to_array(&DataType::Utf8, len).unwrap();
            assert_eq!(text.as_string::<i32>().iter().flatten().collect::<Vec<_>>(), vec!["äx"; len]);
            let null = Constant::Null.to_array(&DataType::Date32, len).unwrap();
            assert_eq!((null.len(), null.null_count()), (len, len));
        }
        let date = constant("1970-01-03", &DataType::Date32);
        assert_eq!(
            date.to_array(&DataType::Date32, 2).unwrap().as_primitive::<arrow_array::types::Date32Type>().values(),
            &[2, 2]
        );
        assert_eq!(date, Constant::Date(2));
    }
}
