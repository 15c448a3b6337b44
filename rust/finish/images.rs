//! Columns of images: encoded bytes in, pixels out.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, make_array};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, FieldRef};

use super::{Fault, unfit};
use crate::error::{Error, Result};
use crate::image::{ImageDecoder, ImageSettings, OnError};
use crate::plan::seed::Draws;
use crate::stream::Room;

/// An image column, and what it becomes.
#[derive(Debug)]
pub(super) struct ImageColumn {
    index: usize,
    name: String,
    settings: ImageSettings,
}

impl ImageColumn {
    pub(super) fn try_new(index: usize, field: &Field, settings: &ImageSettings) -> Result<Self> {
        if !holds_images(field.data_type()) {
            let hint = "images are binary, or structs of `bytes` and `path` as Hugging Face writes them".to_owned();
            let data_type = Box::new(field.data_type().clone());
            return Err(Error::NoTensor { column: field.name().clone(), data_type, hint });
        }
        settings.check().map_err(|reason| Error::Setting { name: "decode", reason })?;
        Ok(Self { index, name: field.name().clone(), settings: settings.clone() })
    }

    /// Returns the column's index.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Returns whether rows may be left out, which takes another copy of all columns.
    pub(super) fn leaves_out(&self) -> bool {
        self.settings.on_error == OnError::Skip
    }

    /// Returns the bytes of an image's pixels.
    pub(super) fn row_bytes(&self) -> u64 {
        self.settings.num_bytes() as u64
    }

    /// Returns the pixels of all images; black for rows that are not kept, or whose images cannot be decoded.
    pub(super) fn decode(
        &self,
        array: &ArrayRef,
        is_kept: &mut [bool],
        draws: &dyn Fn(usize) -> Draws,
        room: Option<&Room>,
    ) -> Result<(FieldRef, ArrayRef), Fault> {
        let num_bytes = array.len() * self.settings.num_bytes();
        let pixels = match room.filter(|_| !self.leaves_out()).and_then(|room| room.take(num_bytes)) {
            Some(mut block) => {
                block.bytes().fill(0);
                self.decode_into(block.bytes(), array, is_kept, draws)?;
                block.whole()
            }
            None => {
                let mut pixels = MutableBuffer::from_len_zeroed(num_bytes);
                self.decode_into(pixels.as_slice_mut(), array, is_kept, draws)?;
                pixels.into()
            }
        };
        self.column(array.len(), pixels).map_err(|error| unfit(&error))
    }

    /// Decodes images into pixels that are initially black.
    fn decode_into(
        &self,
        pixels: &mut [u8],
        array: &ArrayRef,
        is_kept: &mut [bool],
        draws: &dyn Fn(usize) -> Draws,
    ) -> Result<(), Fault> {
        let mut decoder = ImageDecoder::new(&self.settings);
        let size = self.settings.num_bytes();
        let rows = pixels.chunks_exact_mut(size.max(1)).zip(is_kept.iter_mut()).enumerate();
        for (row, (out, is_kept)) in rows.filter(|(_, (_, is_kept))| **is_kept) {
            let decoded = encoded(array, row).and_then(|bytes| decoder.decode(bytes, || draws(row), out));
            match decoded {
                Ok(()) => {}
                Err(_) if self.settings.on_error == OnError::Skip => *is_kept = false,
                Err(reason) => {
                    let reason = format!("{reason}; `on_error=\"skip\"` of its `fb.Image` leaves such rows out");
                    return Err(Fault { row, column: self.name.clone(), reason });
                }
            }
        }
        Ok(())
    }

    fn column(&self, num_rows: usize, pixels: Buffer) -> Result<(FieldRef, ArrayRef), ArrowError> {
        let size = self.settings.num_bytes();
        let width = i32::try_from(size).map_err(|_| ArrowError::OffsetOverflowError(size))?;
        let bytes = ArrayData::builder(DataType::UInt8).len(num_rows * size).add_buffer(pixels).build()?;
        let data_type = DataType::FixedSizeList(Arc::new(Field::new("item", DataType::UInt8, false)), width);
        let images = ArrayData::builder(data_type.clone()).len(num_rows).add_child_data(bytes).build()?;
        let shape = format!("{{\"shape\":{:?}}}", self.settings.shape());
        let metadata = [("ARROW:extension:name", "arrow.fixed_shape_tensor"), ("ARROW:extension:metadata", &shape)];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let field = Field::new(&self.name, data_type, false).with_metadata(metadata.into());
        Ok((Arc::new(field), make_array(images)))
    }
}

fn holds_images(data_type: &DataType) -> bool {
    match data_type {
        DataType::Binary | DataType::LargeBinary => true,
        DataType::Struct(fields) => fields.iter().any(|field| {
            field.name() == "bytes" && matches!(field.data_type(), DataType::Binary | DataType::LargeBinary)
        }),
        _ => false,
    }
}

/// Returns the encoded bytes of a row.
fn encoded(array: &ArrayRef, row: usize) -> Result<&[u8], String> {
    if array.is_null(row) {
        return Err("there is no image: it is NULL".to_owned());
    }
    match array.data_type() {
        DataType::Binary => Ok(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Ok(array.as_binary::<i64>().value(row)),
        DataType::Struct(_) => match array.as_struct().column_by_name("bytes") {
            Some(bytes) if !bytes.is_null(row) => encoded(bytes, row),
            _ => Err("there is no image: its `bytes` are NULL, and files that a `path` names are not read".to_owned()),
        },
        other => Err(format!("expected binary, got `{other}`")),
    }
}
