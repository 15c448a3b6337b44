//! Fuzzes the reading of saved selections, and SQL.

use std::sync::{Arc, LazyLock};

use arrow_array::{ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch, StringArray, types::Int32Type};
use parquet::arrow::ArrowWriter;
use sha2::{Digest, Sha256};

use super::codec::{put_sets, take_sets};
use super::evaluate::Evaluator;
use super::{Filter, saved};
use crate::fuzz::Numbers;
use crate::snapshot::{Snapshot, fuzz::open};

/// Reads the rows of row groups, and a saved selection whose checksum is computed here: accepted ones survive a round
/// trip.
pub fn selections(data: &[u8]) {
    let mut numbers = Numbers(data);
    let sizes: Vec<u32> = (0..numbers.byte() % 6).map(|_| u32::from(numbers.short()) + 1).collect();
    if let Some(sets) = take_sets(&mut { numbers.0 }, &sizes) {
        let mut bytes = Vec::new();
        put_sets(&sets, &sizes, &mut bytes);
        assert_eq!(take_sets(&mut &bytes[..], &sizes).as_ref(), Some(&sets));
    }
    let mut bytes = [&saved::MAGIC[..], &saved::VERSION.to_le_bytes(), data].concat();
    let sum = Sha256::digest(&bytes);
    bytes.extend(sum);
    if let Ok(subset) = saved::from_bytes(&bytes) {
        let again = saved::from_bytes(&saved::to_bytes(&subset));
        assert!(again.is_ok_and(|again| again == subset));
    }
}

/// Returns initial inputs.
#[cfg(test)]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    use arrow_buffer::BooleanBuffer;

    use super::{RowSet, Selection, Subset};

    let mask = |num_rows: usize| RowSet::from_mask((0..num_rows).map(|row| row % 3 == 0).collect::<BooleanBuffer>());
    let sets = vec![RowSet::All, RowSet::All, RowSet::None, mask(1000), RowSet::from_runs(vec![2..5, 7..9], 50)];
    let sizes = [100, 100, 100, 1000, 50];
    let mut input = vec![5];
    sizes.iter().for_each(|size: &u32| input.extend(u16::try_from(size - 1).unwrap().to_le_bytes()));
    put_sets(&sets, &sizes, &mut input);
    let selection = Selection::of_sizes(sets, &sizes);
    let subset = Subset::try_new("5f3a".into(), sizes.into(), Some(vec!["x > 1".into()]), None, selection).unwrap();
    let saved = saved::to_bytes(&subset);
    vec![input, saved[saved::MAGIC.len() + 4..saved.len() - 32].to_vec()]
}

/// Rows to evaluate filters on.
static ROWS: LazyLock<Option<(RecordBatch, Arc<Snapshot>)>> = LazyLock::new(|| {
    let numbers = Int64Array::from_iter([Some(0), Some(-7), None, Some(i64::MAX), Some(i64::MIN), Some(42)]);
    let floats = Float32Array::from(vec![0.0, -0.0, f32::NAN, f32::INFINITY, 1.5, -1e30]);
    let texts = StringArray::from(vec![Some("de"), Some(""), None, Some("wört"), Some("1"), Some("%_")]);
    let lists = [Some(vec![Some(1), None]), Some(vec![]), None, None, Some(vec![Some(-1)]), Some(vec![Some(7)])];
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
    let columns: [(&str, ArrayRef); 4] =
        [("id", Arc::new(numbers)), ("score", Arc::new(floats)), ("lang", Arc::new(texts)), ("xs", Arc::new(lists))];
    let batch = RecordBatch::try_from_iter(columns).ok()?;
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).ok()?;
    writer.write(&batch).ok()?;
    let snapshot = open(&writer.into_inner().ok()?.into()).ok()??;
    Some((batch, snapshot))
});

/// `sqlparser` reads what follows a period more than once, and so everything nested in it: 18 levels of `a.b.(` take
/// 0.7 s, 12 levels less than a tenth of that, and the fuzzer writes hundreds.
const MAX_PERIODS: usize = 12;

/// Parses a filter and evaluates it: on all rows at once, on some and the others, and by DataFusion alone.
pub fn sql(data: &[u8]) {
    let (Ok(text), Some((batch, snapshot))) = (str::from_utf8(data), &*ROWS) else { return };
    if text.matches('.').count() > MAX_PERIODS {
        return;
    }
    let Ok(filter) = Filter::parse(text, snapshot) else { return };
    let Ok(evaluator) = Evaluator::try_new(snapshot, &filter.expr, &filter.columns, text) else { return };
    let Ok(batch) = batch.project(&filter.columns) else { return };
    assert_eq!(evaluator.mask(&batch), evaluator.clone().without_compared().mask(&batch), "{text}");
    let masks = [batch.clone(), batch.slice(0, 2), batch.slice(2, 4)].map(|batch| evaluator.mask(&batch));
    if let [Ok(all), Ok(first), Ok(second)] = &masks {
        assert!(all.iter().eq(first.iter().chain(second.iter())), "{text}: {masks:?}");
    }
}
