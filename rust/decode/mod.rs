//! Decodes the columns that training reads most, straight from pages into the arrays that batches are gathered of.
//!
//! The `parquet` crate decodes every type and encoding, level by level and value by value. Here are numbers, text,
//! lists and structs of them as nearly every writer stores them: plain, by a dictionary or as differences, levels in runs. [`plan`] tells from the
//! footer whether a column may be one of these. What turns out to be something else is a [`Misfit`], and its reader
//! leaves it to the `parquet` crate, with the same bytes: so there is one answer for each file, and one error.
//!
//! Nothing is believed: what is announced is checked against the bytes that are there before memory is taken for it.
//!
//! ```text
//! claims                    what pages say of themselves, before anybody believes it
//! body                      a chunk, or pages that are read one by one
//! header, pages, codec      a page out of its chunk and its compression
//! hybrid, levels, bits      runs and packed bits; where rows begin, what is NULL
//! values, fixed, binary,    values of a page
//! flags, coded
//! plain, delta              pages of other encodings into plain ones
//! spread                    values into the slots that are not NULL
//! flat, list, tier          slots of rows
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

/// Bytes of values for which memory is taken in advance, for each byte that was fetched. Columns that are stored in still
/// less are the exception, and grow.
const MOST_PER_BYTE: usize = 256;

/// Why a column is not for these decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misfit(&'static str);

impl Misfit {
    const MEMORY: Self = Self("there is no memory");
    /// What is not for any decoder: as much would come out of all.
    pub(crate) const TOO_LARGE: Self = Self("values take more memory than there is");
    /// Nor is this: no writer means anything by it, and what comes out would be other rows' values.
    pub(crate) const TOO_HIGH: Self = Self("a level is higher than its column's");
    /// Nor is this: of the values that are there nobody knows which are whose.
    pub(crate) const TOO_SHORT: Self = Self("a page has fewer values than its levels");
    /// Nor is this: the value is nobody's.
    pub(crate) const OF_NONE: Self = Self("a value goes on with a list that has none");
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
    /// Returns the next of the wanted rows, exactly so many.
    ///
    /// # Errors
    ///
    /// [`Misfit`], after which the column is not used again.
    fn read(&mut self, num_rows: usize) -> Fit<ArrayRef>;

    /// Takes some of the next wanted rows, at most so many, if they are lists of `row_len` numbers each and that costs less than to
    /// [read](Self::read) them; returns how many, and their items as Arrow has them. Integers may be of `width` bytes, where
    /// these are enough for all. `None` says nothing of the rows: [`Self::read`] takes them.
    fn take_items(&mut self, _num_rows: usize, _row_len: usize, _width: usize) -> Option<(usize, Items<'_>)> {
        None
    }

    /// Returns the dictionary of a column that is [read as its numbers](ColumnPlan::open_coded), once something was read.
    fn dictionary(&self) -> Option<ArrayRef> {
        None
    }

    /// Gives back the memory for the next column.
    fn into_scratch(self: Box<Self>) -> Scratch;
}
