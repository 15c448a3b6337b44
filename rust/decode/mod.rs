//! Decodes the columns that training reads most, straight from pages into the arrays that batches are gathered from.
//!
//! The `parquet` crate decodes every type and encoding, level by level and value by value. This module handles numbers,
//! text, lists and structs of them as nearly every writer stores them: plain, by a dictionary or as differences, levels
//! in runs. [`plan`] tells from the footer whether a column may be one of these. If it turns out to be something else,
//! that is a [`Misfit`], and its reader leaves it to the `parquet` crate, with the same bytes: so each file has one
//! result, and one error.
//!
//! Nothing is trusted: claims are checked against the existing bytes before memory is allocated for them.
//!
//! ```text
//! claims                    what pages say of themselves, before anybody believes it
//! body                      a chunk, or pages that are read one by one
//! header, pages, codec      a page out of its chunk and its compression
//! rows                      the wanted rows, in order
//! hybrid, levels, bits      runs and packed bits; where rows begin, what is NULL
//! values, fixed, binary,    values of a page
//! flags, coded
//! plain, delta              pages of other encodings into plain ones
//! spread                    values into the slots that are not NULL
//! flat, list, tier          slots of rows
//! row_texts                 texts of one row that take far more memory than bytes
//! group                     leaves of structs
//! ```

mod binary;
mod bits;
mod body;
mod claims;
mod codec;
mod coded;
mod delta;
mod fixed;
mod flags;
mod flat;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod group;
mod header;
mod hybrid;
mod levels;
mod list;
mod pages;
mod plain;
mod plan;
mod row_texts;
mod rows;
mod spread;
#[cfg(test)]
pub(crate) mod tests;
mod tier;
mod values;

use std::fmt;

use arrow_array::ArrayRef;

pub(crate) use self::body::{Body, FilePages};
pub(crate) use self::claims::Claims;
pub(crate) use self::codec::Scratch;
pub(crate) use self::plan::{ColumnPlan, plan};
pub(crate) use self::values::Items;

/// Maximum bytes of values allocated in advance for each fetched byte. Columns that are stored even more compactly are
/// exceptions, and grow.
const MOST_PER_BYTE: usize = 256;

/// Why a column is not for these decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misfit(&'static str);

impl Misfit {
    const MEMORY: Self = Self("there is no memory");
    /// No decoder handles this: each would produce as much.
    pub(crate) const TOO_LARGE: Self = Self("values take more memory than there is");
    /// Nor this: no writer means anything by it, and the result would be other rows' values.
    pub(crate) const TOO_HIGH: Self = Self("a level is higher than its column's");
    /// Nor this: it is unknown which rows the existing values belong to.
    pub(crate) const TOO_SHORT: Self = Self("a page has fewer values than its levels");
    /// Nor this: the value belongs to no row.
    pub(crate) const OF_NONE: Self = Self("a value continues a list that has not begun");
    const MISSING: Self = Self("rows are missing from the pages");
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A result whose error says that the column is not for these decoders.
pub(crate) type Fit<T> = Result<T, Misfit>;

/// A column that is read from its first wanted row to the last.
pub(crate) trait Column: fmt::Debug + Send {
    /// Returns exactly the next `num_rows` wanted rows.
    ///
    /// # Errors
    ///
    /// [`Misfit`], after which the column is not used again.
    fn read(&mut self, num_rows: usize) -> Fit<ArrayRef>;

    /// Takes at most `num_rows` of the next wanted rows, if they are lists of `row_len` numbers each and that is
    /// cheaper than to [read](Self::read) them; returns how many, and their items in Arrow's layout. Integers may be of
    /// `width` bytes, if these suffice for all. `None` says nothing about the rows: [`Self::read`] takes them.
    fn take_items(&mut self, _num_rows: usize, _row_len: usize, _width: usize) -> Option<(usize, Items<'_>)> {
        None
    }

    /// Returns the dictionary of a column that is [read as keys](ColumnPlan::open_coded), once something was read.
    fn dictionary(&self) -> Option<ArrayRef> {
        None
    }

    /// Returns the memory for the next column.
    fn into_scratch(self: Box<Self>) -> Scratch;
}
