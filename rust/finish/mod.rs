//! Transforms gathered batches as the consumer requested, on the threads that gathered them.
//!
//! ```text
//! gather ──► images to pixels ──► lists padded to one length, or made ready to be packed ──► consumer
//! ```
//!
//! What happens to a row depends on the row, the seed and the epoch, never on its batch's thread or timing. An unusable
//! value is a [`Fault`] of its row, which the stream turns into an error with the row's location.

mod documents;
mod images;
mod lists;
mod padding;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, FieldRef, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

pub use self::documents::Documents;
use self::documents::Packable;
pub(crate) use self::documents::{Labels, Pads};
use self::images::ImageColumn;
pub use self::lists::Integers;
use self::padding::Padder;
pub use self::padding::{Padding, Side};
use crate::batch;
use crate::engine::unknown_column;
use crate::error::{Error, Result};
use crate::forms::{Form, Request};
use crate::image::ImageSettings;
use crate::plan::BatchSlice;
use crate::plan::seed::{Key, Purpose};
use crate::stream::Room;

/// How to transform batches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishSettings {
    /// The columns whose images are decoded.
    #[serde(default)]
    pub images: BTreeMap<String, ImageSettings>,
    /// How lists are padded.
    #[serde(default)]
    pub padding: Option<Padding>,
    /// The lists to be packed later; excludes padding.
    #[serde(default)]
    pub documents: Option<Documents>,
}

/// The transformation of batches of one schema.
#[derive(Debug)]
pub struct Finish {
    images: Vec<ImageColumn>,
    lists: Lists,
}

#[derive(Debug)]
enum Lists {
    Untouched,
    Padded(Padder),
    Documents(Packable),
}

/// An unusable value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Its row in the batch.
    pub(crate) row: usize,
    pub(crate) column: String,
    /// What is wrong with it, and what to do.
    pub(crate) reason: String,
}

/// The rows of a batch: all of its slice, since none are left out of batches that are transformed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchRows {
    pub(crate) slice: BatchSlice,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
}

impl BatchRows {
    /// Returns the position of a row of the batch in the order of the epoch.
    pub(crate) fn position(&self, row: usize) -> u64 {
        match self.slice.padding {
            Some(position) if row >= self.slice.len => position,
            _ => self.slice.first + self.slice.step * row as u64,
        }
    }

    /// Returns the random key for crops and flips.
    fn image_key(&self) -> Key {
        Key::new(self.seed, self.epoch, Purpose::Image)
    }
}

/// A finished batch.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) batch: RecordBatch,
    /// Rows left out because their images cannot be decoded.
    pub(crate) num_skipped: u64,
}

impl Finish {
    /// Prepares the transformation of batches of `schema`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownColumn`], [`Error::NoTensor`] for columns that are not images or lists of numbers as required,
    /// and [`Error::Setting`] for values that do not fit a column's type.
    pub fn try_new(schema: &Schema, settings: &FinishSettings) -> Result<Self> {
        let images = settings.images.iter().map(|(name, settings)| {
            let index = index_of(schema, name)?;
            ImageColumn::try_new(index, &schema.fields()[index], settings)
        });
        let lists = match (&settings.documents, &settings.padding) {
            (Some(documents), _) => Lists::Documents(Packable::try_new(schema, documents)?),
            (None, Some(padding)) => Lists::Padded(Padder::try_new(schema, padding)?),
            (None, None) => Lists::Untouched,
        };
        Ok(Self { images: images.collect::<Result<_>>()?, lists })
    }

    /// Returns the forms of the columns of transformed batches, given those of `schema` before.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if `requests` name a form for a column that is transformed.
    pub fn forms(
        &self,
        mut forms: Vec<Form>,
        schema: &Schema,
        requests: &BTreeMap<String, Request>,
    ) -> Result<Vec<Form>> {
        let padded: &[usize] = match &self.lists {
            Lists::Padded(padder) => padder.columns(),
            _ => &[],
        };
        let replaced = self.images.iter().map(ImageColumn::index).chain(padded.iter().copied());
        for index in replaced {
            let name = schema.field(index).name();
            let is_of_column =
                |path: &String| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            if requests.keys().any(is_of_column) {
                let reason =
                    format!("column `{name}` is padded or decoded, and has no other form; leave one of the two out");
                return Err(Error::Setting { name: "forms", reason });
            }
            if let Some(form) = forms.get_mut(index) {
                *form = Form::Tensor;
            }
        }
        if matches!(&self.lists, Lists::Padded(padder) if padder.makes_mask()) {
            forms.push(Form::Tensor);
        }
        Ok(forms)
    }

    /// Returns the bytes that a row takes in addition to its gathered form.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.images.iter().map(ImageColumn::row_bytes).sum()
    }

    /// Returns the bytes needed to transform a batch, as far as they follow from its values.
    pub(crate) fn bytes_of(&self, batch: &RecordBatch) -> u64 {
        match &self.lists {
            Lists::Padded(padder) => padder.bytes_of(batch),
            Lists::Untouched | Lists::Documents(_) => 0,
        }
    }

    /// Returns whether a column is passed on as it was gathered.
    pub(crate) fn leaves(&self, column: usize) -> bool {
        let is_made_into_others = match &self.lists {
            Lists::Untouched => false,
            Lists::Padded(padder) => padder.columns().contains(&column),
            Lists::Documents(_) => true,
        };
        // If rows may be left out, all columns may be copied once more.
        !is_made_into_others && self.images.iter().all(|image| image.index() != column && !image.leaves_out())
    }

    /// Transforms a batch, in `room` as far as it fits there.
    ///
    /// # Errors
    ///
    /// The first unusable value; images only if they are not to be skipped.
    pub(crate) fn apply(&self, batch: RecordBatch, rows: &BatchRows, room: Option<&Room>) -> Result<Finished, Fault> {
        let num_rows = batch.num_rows();
        let (batch, is_kept) = self.decode_images(batch, rows, room)?;
        let num_skipped = (num_rows - batch.num_rows()) as u64;
        let batch = match &self.lists {
            Lists::Untouched => Ok(batch),
            Lists::Padded(padder) => padder.apply(&batch, room),
            Lists::Documents(packable) => packable.apply(&batch),
        };
        let batch = batch.map_err(|fault| {
            // The fault's row counts only rows that are left.
            let mut left = is_kept.iter().enumerate().filter_map(|(row, is_kept)| is_kept.then_some(row));
            Fault { row: left.nth(fault.row).unwrap_or(fault.row), ..fault }
        })?;
        Ok(Finished { batch, num_skipped })
    }

    /// Returns the rows that are left, and which these are; without images, nothing for the latter.
    fn decode_images(
        &self,
        batch: RecordBatch,
        rows: &BatchRows,
        room: Option<&Room>,
    ) -> Result<(RecordBatch, Vec<bool>), Fault> {
        if self.images.is_empty() {
            return Ok((batch, Vec::new()));
        }
        let (key, num_rows) = (rows.image_key(), batch.num_rows());
        let mut columns: Columns = batch.schema().fields().iter().cloned().zip(batch.columns().to_vec()).collect();
        let mut is_kept = vec![true; num_rows];
        for image in &self.images {
            let draws = |row: usize| key.draws(rows.position(row));
            columns[image.index()] = image.decode(batch.column(image.index()), &mut is_kept, &draws, room)?;
        }
        let decoded = made(&batch.schema(), columns, num_rows).map_err(|error| unfit(&error))?;
        if is_kept.iter().all(|kept| *kept) {
            return Ok((decoded, is_kept));
        }
        let left = arrow_select::filter::filter_record_batch(&decoded, &is_kept.clone().into());
        Ok((left.map_err(|error| unfit(&error))?, is_kept))
    }
}

/// Fields with their arrays.
type Columns = Vec<(FieldRef, ArrayRef)>;

/// Returns a batch with other columns and the metadata of `schema`.
fn made(schema: &SchemaRef, columns: Columns, num_rows: usize) -> Result<RecordBatch, ArrowError> {
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let schema = Schema::new_with_metadata(fields, schema.metadata().clone());
    batch::of_columns(Arc::new(schema), arrays, num_rows)
}

/// Returns the fault of a whole batch rather than a row: it is too large for Arrow.
fn unfit(error: &ArrowError) -> Fault {
    Fault { row: 0, column: String::new(), reason: format!("the batch cannot be made: {error}; use a smaller one") }
}

fn index_of(schema: &Schema, name: &str) -> Result<usize> {
    schema.index_of(name).map_err(|_| {
        let mut unknown = unknown_column(name.to_owned(), name, schema);
        let column = name.split_once('.').and_then(|(column, _)| schema.field_with_name(column).ok());
        if let Error::UnknownColumn { near, hint, .. } = &mut unknown
            && column.is_some_and(|field| field.data_type().is_nested())
        {
            near.clear();
            *hint = "; `ds.sql(\"SELECT x['y'] AS y FROM dataset\")` makes a column of a field of a struct";
        }
        unknown
    })
}
