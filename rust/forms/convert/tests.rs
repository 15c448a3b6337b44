use std::sync::Arc;

use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::{
    BinaryArray, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray, Int8Array,
    Int32Array, ListArray, StringArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::Fields;

use super::*;

fn field(array: &dyn Array) -> FieldRef {
    Arc::new(Field::new("x", array.data_type().clone(), true))
}

fn tensor(array: impl Array + 'static) -> Result<Tensor> {
    dense(&field(&array), &(Arc::new(array) as ArrayRef))
}

fn converted(array: impl Array + 'static, form: &Form) -> Result<Converted> {
    convert(&field(&array), &(Arc::new(array) as ArrayRef), form)
}

/// Returns the bytes of a tensor, or of the values beside a mask or offsets.
fn values(converted: &Converted) -> &[u8] {
    match converted {
        Converted::Tensor(_, tensor) => tensor.values.as_slice(),
        Converted::Masked(values, _) | Converted::Ragged(values, _) => self::values(values),
        other => panic!("no one tensor: {other:?}"),
    }
}

#[test]
fn numbers_share_the_columns_buffer_even_when_sliced() {
    let array = Int32Array::from(vec![1, 2, 3, 4]);
    let tensor = tensor(array.slice(1, 2)).unwrap();
    assert_eq!((tensor.element, &tensor.shape[..]), (Element::Int(32), &[2][..]));
    assert_eq!(tensor.values.as_ptr(), array.values()[1..].as_ptr().cast());
}

#[test]
fn lists_of_one_length_are_a_matrix_without_a_copy() {
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), Some(2)]),
        Some(vec![Some(3), Some(4)]),
        Some(vec![Some(5), Some(6)]),
    ]);
    let sliced = tensor(lists.slice(1, 2)).unwrap();
    assert_eq!(sliced.shape, [2, 2]);
    assert_eq!(sliced.values.typed_data::<i32>(), [3, 4, 5, 6]);
    let fixed = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>([Some(vec![Some(1.0), Some(2.0)])], 2);
    assert_eq!(tensor(fixed).unwrap().shape, [1, 2]);
}

#[test]
fn what_has_no_tensor_form_says_why() {
    let ragged = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), Some(vec![])]);
    assert!(tensor(ragged).unwrap_err().to_string().contains("differ in length"));
    assert!(tensor(Int32Array::from(vec![Some(1), None])).unwrap_err().to_string().contains("1 nulls"));
    assert!(tensor(StringArray::from(vec!["a"])).is_err());
}

#[test]
fn booleans_become_bytes_and_only_ones_are_true() {
    assert_eq!(tensor(BooleanArray::from(vec![true, false, true]).slice(1, 2)).unwrap().values.as_slice(), [0, 1]);
    let metadata = [("ARROW:extension:name".to_owned(), "arrow.bool8".to_owned())].into();
    let field = Field::new("x", DataType::Int8, false).with_metadata(metadata);
    let clean: ArrayRef = Arc::new(Int8Array::from(vec![0, 1]));
    let shared = dense(&field, &clean).unwrap();
    assert_eq!(shared.element, Element::Bool);
    assert_eq!(shared.values.as_ptr(), clean.to_data().buffers()[0].as_ptr());
    let other: ArrayRef = Arc::new(Int8Array::from(vec![0, -1, 2]));
    assert_eq!(dense(&field, &other).unwrap().values.as_slice(), [0, 1, 1]);
}

#[test]
fn a_mask_says_which_values_there_are() {
    let array = Int32Array::from(vec![Some(7), None, Some(9)]);
    let Converted::Masked(values, mask) = converted(array.clone(), &Form::Tensor.masked()).unwrap() else { panic!() };
    assert_eq!(mask.values.as_slice(), [1, 0, 1]);
    assert_eq!(self::values(&values).as_ptr(), array.values().inner().as_ptr());
    assert!(converted(array, &Form::Tensor).is_err());
}

#[test]
fn elements_are_masked_where_they_or_their_list_are_null() {
    let lists = [Some(vec![Some(1), None]), None, Some(vec![Some(3), Some(4)])];
    let array = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(lists, 2);
    let Converted::Masked(_, mask) = converted(array, &Form::MaskedElements).unwrap() else { panic!() };
    assert_eq!((&mask.shape[..], mask.values.as_slice()), (&[3, 2][..], &[1, 0, 0, 0, 1, 1][..]));
}

#[test]
fn a_mask_of_elements_has_the_shape_of_the_values() {
    let masked = |array: FixedSizeListArray| {
        let Converted::Masked(part, mask) = converted(array, &Form::MaskedElements).unwrap() else { panic!() };
        let Converted::Tensor(_, tensor) = *part else { panic!() };
        assert!(tensor.is_whole() && mask.is_whole(), "{tensor:?} {mask:?}");
        assert_eq!((&tensor.shape, &tensor.strides), (&mask.shape, &mask.strides));
        (mask.shape, mask.values.as_slice().to_vec())
    };
    let lists = |item: &ArrayRef, len, nulls| FixedSizeListArray::new(field(item), len, Arc::clone(item), nulls);
    let bytes = [Some(*b"abc"), None, Some(*b"def"), Some(*b"ghi")];
    let bytes: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes.into_iter(), 3).unwrap());
    let expected = [[1_u8; 3], [0; 3], [1; 3], [1; 3]].concat();
    assert_eq!(masked(lists(&bytes, 2, None)), (vec![2, 2, 3], expected));
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..12));
    let inner: ArrayRef = Arc::new(lists(&numbers, 3, None));
    let outer = lists(&inner, 2, Some(vec![true, false].into()));
    assert_eq!(masked(outer.clone()), (vec![2, 2, 3], [[1; 6], [0; 6]].concat()));
    assert_eq!(masked(outer.slice(1, 1)), (vec![1, 2, 3], vec![0; 6]));
    assert_eq!(masked(outer.slice(1, 0)), (vec![0, 2, 3], vec![]));
}

#[test]
fn lists_of_length_zero_may_be_null() {
    let lists = |item: ArrayRef, size: i32, nulls: Vec<bool>| {
        let item_field = Arc::new(Field::new("item", item.data_type().clone(), true));
        FixedSizeListArray::new(item_field, size, item, Some(nulls.into()))
    };
    let none: ArrayRef = Arc::new(Int32Array::from(Vec::<i32>::new()));
    let empty = lists(Arc::clone(&none), 0, vec![true, false, true, true]);
    let in_lists = lists(Arc::new(empty.clone()), 2, vec![true, false]);
    let of_lists = lists(Arc::new(lists(none, 2, vec![])), 0, vec![true, false]);
    let cases: [(_, &[i64], &[u8]); 3] =
        [(empty, &[4, 0], &[1, 0, 1, 1]), (in_lists, &[2, 2, 0], &[1, 0]), (of_lists, &[2, 0, 2], &[1, 0])];
    for (array, shape, rows) in cases {
        let Converted::Masked(values, mask) = converted(array.clone(), &Form::Tensor.masked()).unwrap() else {
            panic!()
        };
        let Converted::Tensor(_, values) = *values else { panic!() };
        assert_eq!((&values.shape[..], mask.values.as_slice()), (shape, rows));
        let Converted::Masked(_, mask) = converted(array.clone(), &Form::MaskedElements).unwrap() else { panic!() };
        assert_eq!(mask.shape, shape);
        assert_eq!(tensor(array).unwrap().shape, shape);
    }
}

#[test]
fn ragged_lists_are_their_items_and_offsets_from_zero() {
    let lists = [Some(vec![Some(9)]), Some(vec![Some(1), Some(2)]), None, Some(vec![Some(3)])];
    let array = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
    let form = Form::Ragged(Box::new(Form::Tensor)).masked();
    let Converted::Masked(part, mask) = converted(array.slice(1, 3), &form).unwrap() else { panic!() };
    assert_eq!(mask.values.as_slice(), [1, 0, 1]);
    let Converted::Ragged(items, offsets) = *part else { panic!() };
    assert_eq!(offsets.values.typed_data::<i64>(), [0, 2, 2, 3]);
    let Converted::Tensor(_, items) = *items else { panic!() };
    assert_eq!(items.values.typed_data::<i32>(), [1, 2, 3]);
}

#[test]
fn rows_that_are_null_have_no_items_though_there_are_some_behind_them() {
    let nulls = || Some(NullBuffer::from(vec![true, false, true]));
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..6));
    let lists = ListArray::new(field(&numbers), OffsetBuffer::from_lengths([2, 1, 3]), Arc::clone(&numbers), nulls());
    let fixed = FixedSizeListArray::new(field(&numbers), 2, numbers, nulls());
    let text =
        StringArray::new(OffsetBuffer::from_lengths([1, 2, 1]), Buffer::from_slice_ref("abbc".as_bytes()), nulls());
    let of_numbers = || Form::Ragged(Box::new(Form::Tensor)).masked();
    for (part, offsets, expected) in [
        (converted(lists, &of_numbers()), [0, 2, 2, 5], [0_i32, 1, 3, 4, 5].map(i32::to_ne_bytes).concat()),
        (converted(fixed, &of_numbers()), [0, 2, 2, 4], [0_i32, 1, 4, 5].map(i32::to_ne_bytes).concat()),
        (converted(text, &Form::Bytes.masked()), [0, 1, 1, 2], b"ac".to_vec()),
    ] {
        let Converted::Masked(ragged, mask) = part.unwrap() else { panic!() };
        assert_eq!(mask.values.as_slice(), [1, 0, 1]);
        assert_eq!(values(&ragged), expected);
        let Converted::Ragged(_, starts) = *ragged else { panic!() };
        assert_eq!(starts.values.typed_data::<i64>(), offsets);
    }
}

#[test]
fn below_a_null_struct_nothing_is_missed() {
    let child = Field::new("a", DataType::Int32, false);
    let fields = Fields::from(vec![child]);
    let inner: ArrayRef = Arc::new(Int32Array::from(vec![1, 0]));
    let array = StructArray::new(fields, vec![inner], Some(NullBuffer::from(vec![true, false])));
    let form = Form::Struct(vec![Form::Tensor]).masked();
    let Converted::Masked(part, _) = converted(array, &form).unwrap() else { panic!() };
    let Converted::Struct(fields) = *part else { panic!() };
    assert_eq!(fields[0].0, "a");
}

#[test]
fn bytes_are_taken_as_numbers_where_they_fit() {
    let floats = [1.5_f32, -2.0].map(f32::to_le_bytes).concat();
    let array = BinaryArray::from(vec![&floats[..], &floats[..]]);
    let Converted::Tensor(_, tensor) = converted(array, &Form::Cast(Element::Float(32))).unwrap() else { panic!() };
    assert_eq!(tensor.shape, [2, 2]);
    assert_eq!(tensor.values.typed_data::<f32>(), [1.5, -2.0, 1.5, -2.0]);
    let odd = converted(BinaryArray::from(vec![&b"abc"[..]]), &Form::Cast(Element::Int(16)));
    assert!(odd.unwrap_err().to_string().contains("3 bytes"));
}

#[test]
fn decimals_are_rounded_or_counted_or_refused() {
    let array = Decimal128Array::from(vec![1999, -5]).with_precision_and_scale(30, 2).unwrap();
    let floats = converted(array.clone(), &Form::Cast(Element::Float(64))).unwrap();
    assert_eq!(values(&floats), [19.99_f64, -0.05].map(f64::to_le_bytes).concat());
    let units = converted(array, &Form::Cast(Element::Int(64))).unwrap();
    assert_eq!(values(&units), [1999_i64, -5].map(i64::to_le_bytes).concat());
    for (units, scale, nearest) in [
        (84_378_669_429_136_025, 2, "843786694291360.25"),
        (123_456_789_012_345_678_901_234_567_890, 10, "12345678901234567890.1234567890"),
        (-7, 3, "-0.007"),
        (12, -2, "1200"),
    ] {
        let array = Decimal128Array::from(vec![units]).with_precision_and_scale(38, scale).unwrap();
        let float = converted(array, &Form::Cast(Element::Float(64))).unwrap();
        assert_eq!(values(&float), nearest.parse::<f64>().unwrap().to_le_bytes(), "{nearest}");
    }
    // Halfway between two floats once it is a double.
    let array = Decimal128Array::from(vec![16_777_217_000_000_001]).with_precision_and_scale(38, 9).unwrap();
    let single = converted(array, &Form::Cast(Element::Float(32))).unwrap();
    assert_eq!(values(&single), 16_777_218_f32.to_le_bytes());
    let huge = Decimal128Array::from(vec![i128::MAX / 2]).with_precision_and_scale(38, 0).unwrap();
    assert!(converted(huge, &Form::Cast(Element::Int(64))).is_err());
}

#[test]
fn dictionaries_are_decoded_or_taken_apart() {
    let keys = Int8Array::from(vec![1, 0, 1]);
    let numbers = Int32Array::from(vec![10, 20]);
    let array = DictionaryArray::new(keys, Arc::new(numbers.clone()) as ArrayRef);
    let decoded = converted(array.clone(), &Form::Decoded(Box::new(Form::Tensor))).unwrap();
    assert_eq!(values(&decoded), [20_i32, 10, 20].map(i32::to_le_bytes).concat());
    let Converted::Indices(indices, dictionary) = converted(array, &Form::Indices(Box::new(Form::Tensor))).unwrap()
    else {
        panic!()
    };
    assert_eq!((indices.element, indices.values.as_slice()), (Element::Int(8), &[1, 0, 1][..]));
    assert_eq!(values(&dictionary), [10_i32, 20].map(i32::to_le_bytes).concat());
    // Writing to it changes no other batch of the same dictionary.
    assert_ne!(values(&dictionary).as_ptr(), numbers.values().inner().as_ptr());
}

#[test]
fn a_value_of_a_dictionary_may_be_null() {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(10), None]));
    let array = DictionaryArray::new(Int8Array::from(vec![0, 1, 0]), numbers);
    let form = Form::Indices(Box::new(Form::Tensor));
    assert!(converted(array.clone(), &form).is_err());
    let Converted::Masked(part, mask) = converted(array, &form.masked()).unwrap() else { panic!() };
    assert_eq!(mask.values.as_slice(), [1, 0, 1]);
    assert!(matches!(*part, Converted::Indices(..)));
}

#[test]
fn fixed_shapes_are_strided_by_their_permutation() {
    let items = Int32Array::from((0..12).collect::<Vec<_>>());
    let item = Arc::new(Field::new("item", DataType::Int32, false));
    let array: ArrayRef = Arc::new(FixedSizeListArray::new(item, 6, Arc::new(items), None));
    let metadata = |shape: &str| {
        let name = ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned());
        [name, ("ARROW:extension:metadata".to_owned(), shape.to_owned())].into()
    };
    let field = Field::new("x", array.data_type().clone(), false);
    let permuted = field.clone().with_metadata(metadata(r#"{"shape":[2,3],"permutation":[1,0]}"#));
    let tensor = dense(&permuted, &array).unwrap();
    assert_eq!((&tensor.shape[..], &tensor.strides[..]), (&[2, 3, 2][..], &[6, 1, 3][..]));
    for wrong in [r#"{"shape":[2,2]}"#, r#"{"shape":[2,3],"permutation":[0,0]}"#, "{}", r#"{"shape":[-2,-3]}"#] {
        assert!(dense(&field.clone().with_metadata(metadata(wrong)), &array).is_err(), "{wrong}");
    }
}
