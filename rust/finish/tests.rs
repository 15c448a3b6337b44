use arrow_array::types::Int32Type;
use arrow_array::{Array, FixedSizeListArray, Int64Array, ListArray, StringArray, cast::AsArray, types::Int64Type};
use proptest::prelude::*;

use super::*;

fn lists(rows: &[Vec<i32>]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.iter().copied().map(Some).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows))
}

fn rows_of(num: usize) -> BatchRows {
    BatchRows { slice: BatchSlice { first: 0, step: 1, len: num, padding: None, next: 0 }, seed: 0, epoch: 0 }
}

fn padding() -> Padding {
    Padding { multiple_of: 1, mask: Some("attention_mask".to_owned()), ..Padding::default() }
}

fn padded(batch: &RecordBatch, padding: Padding) -> Result<RecordBatch, String> {
    let settings = FinishSettings { padding: Some(padding), ..FinishSettings::default() };
    let finish = Finish::try_new(&batch.schema(), &settings).map_err(|error| error.to_string())?;
    let finished = finish.apply(batch.clone(), &rows_of(batch.num_rows()), None);
    finished
        .map(|finished| finished.batch)
        .map_err(|fault| format!("{} of row {}: {}", fault.column, fault.row, fault.reason))
}

fn matrix(array: &ArrayRef) -> Vec<Vec<i64>> {
    let lists: &FixedSizeListArray = array.as_fixed_size_list();
    let row = |row: usize| lists.value(row).as_primitive::<Int64Type>().values().to_vec();
    (0..lists.len()).map(row).collect()
}

proptest! {
    #[test]
    fn lists_are_padded_as_the_model_says(
        rows in prop::collection::vec(prop::collection::vec(1_i32..100, 0..9), 1..12),
        cut in 0_usize..3,
        max_length in prop::option::of(1_usize..12),
        is_fixed in any::<bool>(),
        multiple_of in 1_usize..5,
        is_left in any::<bool>(),
        cuts_left in any::<bool>(),
    ) {
        let side = |is_left: bool| if is_left { Side::Left } else { Side::Right };
        let batch = RecordBatch::try_from_iter([("input_ids", lists(&rows))]).unwrap();
        let cut = cut.min(rows.len());
        let (batch, rows) = (batch.slice(cut, rows.len() - cut), &rows[cut..]);
        let padding = Padding {
            max_length,
            is_fixed,
            multiple_of,
            side: side(is_left),
            truncation_side: side(cuts_left),
            values: [("input_ids".to_owned(), (-7).into())].into(),
            ..padding()
        };
        let out = padded(&batch, padding).unwrap();

        let kept: Vec<Vec<i64>> = rows.iter().map(|row| {
            let len = row.len().min(max_length.unwrap_or(usize::MAX));
            let start = if cuts_left { row.len() - len } else { 0 };
            row[start..start + len].iter().map(|item| i64::from(*item)).collect()
        }).collect();
        let longest = kept.iter().map(Vec::len).max().unwrap_or(0);
        let length = max_length.filter(|_| is_fixed).unwrap_or(longest).div_ceil(multiple_of) * multiple_of;
        let fill = |row: &[i64], pad: i64| -> Vec<i64> {
            let pads = vec![pad; length - row.len()];
            if is_left { [pads, row.to_vec()].concat() } else { [row.to_vec(), pads].concat() }
        };
        let expected: Vec<Vec<i64>> = kept.iter().map(|row| fill(row, -7)).collect();
        let mask: Vec<Vec<i64>> = kept.iter().map(|row| fill(&vec![1; row.len()], 0)).collect();
        prop_assert_eq!(matrix(out.column(0)), expected);
        prop_assert_eq!(matrix(out.column(1)), mask);
    }
}

#[test]
fn labels_are_padded_with_what_losses_ignore() {
    let batch = RecordBatch::try_from_iter([
        ("labels", lists(&[vec![1], vec![2, 3, 4]])),
        ("input_ids", lists(&[vec![5, 6], vec![7]])),
    ]);
    let out = padded(&batch.unwrap(), padding()).unwrap();
    assert_eq!(matrix(out.column(0)), [[1, -100, -100], [2, 3, 4]]);
    assert_eq!(matrix(out.column(1)), [[5, 6], [7, 0]]);
    // The mask follows the tokens, whatever their column's position.
    assert_eq!(matrix(out.column(2)), [[1, 1], [1, 0]]);
    assert_eq!(out.schema().field(2).name(), "attention_mask");
}

#[test]
fn a_mask_of_the_files_is_padded_and_none_is_made() {
    let batch = RecordBatch::try_from_iter([
        ("input_ids", lists(&[vec![5, 6], vec![7]])),
        ("attention_mask", lists(&[vec![1, 0], vec![1]])),
    ]);
    let out = padded(&batch.unwrap(), padding()).unwrap();
    assert_eq!(out.num_columns(), 2);
    assert_eq!(matrix(out.column(1)), [[1, 0], [1, 0]]);
}

#[test]
fn what_cannot_be_padded_is_named() {
    let null = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), None]);
    let batch = RecordBatch::try_from_iter([("tokens", Arc::new(null) as ArrayRef)]).unwrap();
    assert_eq!(
        padded(&batch, padding()).unwrap_err(),
        "tokens of row 1: the list is NULL; filter with `tokens IS NOT NULL`"
    );
    let null = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), Some(vec![Some(1), None])]);
    let batch = RecordBatch::try_from_iter([("tokens", Arc::new(null) as ArrayRef)]).unwrap();
    assert!(padded(&batch, padding()).unwrap_err().starts_with("tokens of row 1: an item of the list is NULL"));

    let large = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)]), Some(vec![Some(1 << 40)])]);
    let batch = RecordBatch::try_from_iter([("tokens", Arc::new(large) as ArrayRef)]).unwrap();
    let narrow = Padding { integers: Integers::Int32, ..padding() };
    assert!(padded(&batch, narrow).unwrap_err().starts_with("tokens of row 1: an item of the list does not fit"));

    let columns: [(&str, ArrayRef); 2] =
        [("tokens", lists(&[vec![1]])), ("text", Arc::new(StringArray::from(vec!["x"])))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let refused = |change: Padding| padded(&batch, change).unwrap_err();
    let of = |name: &str| Some(vec![name.to_owned()]);
    assert!(refused(Padding { columns: of("text"), ..padding() }).contains("only lists of numbers are padded"));
    assert!(refused(Padding { columns: of("texts"), ..padding() }).contains("no column `texts`"));
    assert!(refused(Padding { mask: Some("text".to_owned()), ..padding() }).contains("choose another name"));
    let none = batch.project(&[1]).unwrap();
    for mask in [None, padding().mask] {
        assert!(padded(&none, Padding { mask, ..padding() }).unwrap_err().contains("no column is a list of numbers"));
    }
    let values = [("text".to_owned(), 1.into())].into();
    assert!(refused(Padding { values, ..padding() }).contains("`text` is not a column that is padded"));
    let values = [("tokens".to_owned(), serde_json::Number::from_f64(0.5).unwrap())].into();
    assert!(refused(Padding { values, ..padding() }).contains("cannot be padded with 0.5"));
}

#[test]
fn documents_of_other_lengths_are_refused() {
    let settings = FinishSettings {
        documents: Some(Documents {
            columns: vec!["input_ids".to_owned(), "labels".to_owned()],
            integers: Integers::Int64,
            values: BTreeMap::new(),
            labels: false,
        }),
        ..FinishSettings::default()
    };
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from(vec![0, 1]))),
        ("input_ids", lists(&[vec![1], vec![2, 3]])),
        ("labels", lists(&[vec![1], vec![2]])),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let finish = Finish::try_new(&batch.schema(), &settings).unwrap();
    let fault = finish.apply(batch, &rows_of(2), None).unwrap_err();
    let reason = "expected 2 items, as many as `input_ids` has, got 1".to_owned();
    assert_eq!(fault, Fault { row: 1, column: "labels".to_owned(), reason });
}
