//! Bounds of floats, which ignore NaN, compared with reading and evaluating every row.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use arrow_schema::DataType;
use proptest::prelude::*;

use super::{Bucket, DEAR, FREE, block_on, parquet, properties};

const FLOATS: [f64; 9] = [f64::NAN, -f64::NAN, -0.0, 0.0, 0.5, -1.5, 2.5, f64::INFINITY, f64::NEG_INFINITY];

const FILTERS_OF_FLOATS: [&str; 18] = [
    "f = 0.5",
    "f = 0",
    "f = -0.0",
    "f = CAST('NaN' AS DOUBLE)",
    "f IN (0.5, 2.5)",
    "f IN (7, CAST('NaN' AS DOUBLE))",
    "f BETWEEN -1 AND 0",
    "f BETWEEN 0 AND 0.25",
    "f >= 0.5 AND f < 1e9",
    "f > 0.5 AND f <= CAST('inf' AS DOUBLE)",
    "f > 0.5",
    "f < 0",
    "f <> 0.5",
    "NOT (f > 0.5)",
    "NOT (f BETWEEN 0 AND 1)",
    "(f = 0.5) IS NOT TRUE",
    "f IS NOT DISTINCT FROM 0.5",
    "f = 0.5 OR f IS NULL",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn bounds_of_floats_drop_no_row_that_passes(
        // A page has only a few different numbers, so that bounds decide something.
        pages in prop::collection::vec((prop::collection::vec(0..FLOATS.len(), 1..4), any::<bool>()), 30),
        is_narrow: bool,
    ) {
        let rows_of = |(few, has_nulls): &(Vec<usize>, bool)| {
            let (few, has_nulls) = (few.clone(), *has_nulls);
            (0..100).map(move |row| (!has_nulls || row % 7 > 0).then(|| FLOATS[few[row % few.len()]]))
        };
        let mut column: ArrayRef = Arc::new(pages.iter().flat_map(rows_of).collect::<Float64Array>());
        if is_narrow {
            column = arrow_cast::cast(&column, &DataType::Float32).unwrap();
        }
        let body = parquet(&RecordBatch::try_from_iter([("f", column)]).unwrap(), properties());
        block_on(async {
            for (is_kept, round_trip) in [(true, FREE), (false, DEAR)] {
                let bucket = Bucket::of([body.clone()], is_kept).await;
                for text in FILTERS_OF_FLOATS {
                    let (sets, ..) = bucket.select(text, round_trip).await.unwrap();
                    assert_eq!(sets, bucket.select_slowly(text).await.unwrap(), "{text}");
                }
            }
        });
    }
}

#[test]
fn floats_are_dropped_by_both_bounds_where_nan_does_not_pass() {
    block_on(async {
        let numbers: ArrayRef = Arc::new(Float64Array::from_iter_values((0..9000).map(f64::from)));
        let body = parquet(&RecordBatch::try_from_iter([("f", numbers)]).unwrap(), properties());
        let bucket = Bucket::of([body], true).await;
        for (text, num_read) in [
            ("f BETWEEN 4200 AND 4300", 1),
            ("f = 4200", 1),
            ("f IN (4200, 4201)", 1),
            ("f >= 7500 AND f < 8500", 2),
            ("f >= 7500", 8),
            ("f >= 7500 AND NOT f <> 8000", 1),
        ] {
            let (sets, report, _) = bucket.select(text, DEAR).await.unwrap();
            assert_eq!(sets, bucket.select_slowly(text).await.unwrap(), "{text}");
            assert_eq!(report.num_read, num_read, "{text}: {report:?}");
        }
        let (_, report, _) = bucket.select("f BETWEEN 4200 AND 4300", FREE).await.unwrap();
        assert_eq!((report.num_pages, report.num_pages_pruned), (10, 8));
    });
}
