//! What footers and filters prove about a column before anything is read: no nulls, lists of one length.
//!
//! A tensor cannot hold the contrary, and a refusal belongs at the call, not in step 10 000.

use arrow_schema::{DataType, Field};

use crate::error::{Error, Result};
use crate::query::Dataset;
use crate::selection::{RowSet, Selection};

impl Dataset {
    /// Refuses a column of the snapshot in which a kept row may be NULL.
    ///
    /// # Errors
    ///
    /// [`Error::NoTensor`], unless the footers count no nulls in the row groups that are kept, or a filter passes
    /// no NULL.
    pub(crate) fn check_no_nulls(&self, selection: &Selection, column: usize, field: &Field) -> Result<()> {
        let snapshot = self.snapshot();
        if self.filters().iter().any(|filter| filter.rejects_null(column, snapshot)) {
            return Ok(());
        }
        let mut num_nulls = Some(0);
        for (index, row_group) in snapshot.row_groups.iter().enumerate() {
            if *selection.rows(index) != RowSet::None {
                let here = snapshot.fragment(*row_group).null_count(column, row_group.index as usize);
                num_nulls = num_nulls.zip(here).map(|(sum, here)| sum + here);
            }
        }
        let found = match num_nulls {
            Some(0) => return Ok(()),
            Some(count) if field.data_type().is_nested() => {
                format!("its row groups hold {count} nulls or empty lists")
            }
            Some(count) => format!("its row groups hold {count} nulls"),
            // Without statistics a required column still has none.
            None if !field.is_nullable() => return Ok(()),
            None => "it is nullable and the files do not count its nulls".into(),
        };
        let name = field.name();
        let hint = format!(
            "{found}; filter with `{name} IS NOT NULL`, leave it out, or iterate Arrow batches with `batches()`"
        );
        Err(Error::NoTensor { column: name.clone(), data_type: Box::new(field.data_type().clone()), hint })
    }

    /// Refuses a list column whose rows have different lengths, as far as the footers show.
    ///
    /// # Errors
    ///
    /// [`Error::NoTensor`] when the numbers of items and rows of the kept row groups do not fit one length.
    pub(crate) fn check_equal_lengths(&self, selection: &Selection, column: usize, field: &Field) -> Result<()> {
        if !matches!(field.data_type(), DataType::List(_) | DataType::LargeList(_)) {
            return Ok(());
        }
        let snapshot = self.snapshot();
        let mut length = None;
        for (index, row_group) in snapshot.row_groups.iter().enumerate() {
            let fragment = snapshot.fragment(*row_group);
            let Some(num_items) = fragment.num_leaf_values(column, row_group.index as usize) else { continue };
            // A row group of which a filter drops rows says nothing about those it keeps.
            if *selection.rows(index) != RowSet::All || row_group.num_rows == 0 {
                continue;
            }
            let rows = u64::from(row_group.num_rows);
            let here = num_items / rows;
            if num_items % rows != 0 || *length.get_or_insert(here) != here {
                let hint = "its rows differ in length; pad them when writing, leave the column out, or iterate Arrow \
                            batches with `batches()`";
                return Err(Error::NoTensor {
                    column: field.name().clone(),
                    data_type: Box::new(field.data_type().clone()),
                    hint: hint.into(),
                });
            }
        }
        Ok(())
    }
}
