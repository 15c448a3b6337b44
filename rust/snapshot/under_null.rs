//! Fields of structs that are NULL: the `parquet` crate and other libraries have anything there, also where a field is
//! required, and the engine takes it for their values.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, RecordBatch,
    StructArray,
};
use arrow_schema::{ArrowError, DataType, FieldRef};

use crate::batch;
use arrow_select::nullif::nullif;

/// Makes the fields of structs NULL where these are, also in lists and maps.
pub(crate) fn fields_under_null(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(masked).collect::<Result<_, _>>()?;
    batch::of_columns(batch.schema(), columns, batch.num_rows())
}

fn masked(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if !has_null_structs(array) {
        return Ok(Arc::clone(array));
    }
    Ok(match array.data_type() {
        DataType::Struct(fields) => {
            let structs = array.as_struct();
            let is_null = structs.nulls().map(|nulls| BooleanArray::new(!nulls.inner(), None));
            let field = |column: &ArrayRef| match &is_null {
                Some(is_null) => masked(&nullif(column, is_null)?),
                None => masked(column),
            };
            let columns = structs.columns().iter().map(field).collect::<Result<_, ArrowError>>()?;
            let nulls = structs.nulls().cloned();
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, array.len())?)
        }
        DataType::List(item) => in_lists::<i32>(array, item)?,
        DataType::LargeList(item) => in_lists::<i64>(array, item)?,
        DataType::FixedSizeList(item, len) => {
            let lists = array.as_fixed_size_list();
            let (item, items, nulls) = (Arc::clone(item), masked(lists.values())?, lists.nulls().cloned());
            Arc::new(FixedSizeListArray::try_new_with_length(item, *len, items, nulls, array.len())?)
        }
        DataType::Map(entries, is_sorted) => {
            let map = array.as_map();
            let parts: ArrayRef = Arc::new(map.entries().clone());
            let (offsets, parts) = (map.offsets().clone(), masked(&parts)?.as_struct().clone());
            Arc::new(MapArray::try_new(Arc::clone(entries), offsets, parts, map.nulls().cloned(), *is_sorted)?)
        }
        _ => Arc::clone(array),
    })
}

/// Returns whether there is a NULL struct, at any depth.
fn has_null_structs(array: &ArrayRef) -> bool {
    match array.data_type() {
        DataType::Struct(_) => array.null_count() > 0 || array.as_struct().columns().iter().any(has_null_structs),
        DataType::List(_) => has_null_structs(array.as_list::<i32>().values()),
        DataType::LargeList(_) => has_null_structs(array.as_list::<i64>().values()),
        DataType::FixedSizeList(..) => has_null_structs(array.as_fixed_size_list().values()),
        DataType::Map(..) => array.as_map().entries().columns().iter().any(has_null_structs),
        _ => false,
    }
}

fn in_lists<O: OffsetSizeTrait>(array: &ArrayRef, item: &FieldRef) -> Result<ArrayRef, ArrowError> {
    let lists = array.as_list::<O>();
    let (offsets, items) = (lists.offsets().clone(), masked(lists.values())?);
    Ok(Arc::new(GenericListArray::try_new(Arc::clone(item), offsets, items, lists.nulls().cloned())?))
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{Int32Array, ListArray};
    use arrow_buffer::{NullBuffer, OffsetBuffer};
    use arrow_schema::{Field, Fields, Schema};

    use super::*;

    #[test]
    fn a_field_is_null_where_its_struct_is() {
        let fields =
            Fields::from(vec![Field::new("x", DataType::Int32, true), Field::new("y", DataType::Int32, false)]);
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
        let nulls = Some(NullBuffer::from(vec![true, false, true]));
        let structs: ArrayRef =
            Arc::new(StructArray::new(fields.clone(), vec![Arc::clone(&numbers), Arc::clone(&numbers)], nulls));
        let item = Arc::new(Field::new("item", DataType::Struct(fields), true));
        let lists: ArrayRef =
            Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([2, 0, 1]), Arc::clone(&structs), None));
        let schema = Schema::new(vec![
            Field::new("s", structs.data_type().clone(), true),
            Field::new("l", lists.data_type().clone(), true),
        ]);
        let batch = fields_under_null(&RecordBatch::try_new(schema.into(), vec![structs, lists]).unwrap()).unwrap();
        for structs in [batch.column(0).as_struct(), batch.column(1).as_list::<i32>().values().as_struct()] {
            let x = structs.column(0).as_primitive::<Int32Type>();
            assert_eq!(x.iter().collect::<Vec<_>>(), [Some(1), None, Some(3)]);
            assert_eq!(structs.column(1), structs.column(0));
        }
    }
}
