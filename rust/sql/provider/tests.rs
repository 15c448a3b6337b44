use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::DataType;
use datafusion::common::stats::Precision;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ScalarUDF, TableProviderFilterPushDown, Volatility, binary_expr, col, create_udf,
    lit, placeholder,
};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use parquet::arrow::ArrowWriter;

use super::*;
use crate::metrics::Progress;
use crate::snapshot::{OpenRequest, Snapshot};

const NUM_ROWS: i64 = 1000;

/// Returns a table of two columns in one file, and its folder.
fn dataset() -> (tempfile::TempDir, Dataset) {
    let folder = tempfile::tempdir().unwrap();
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..NUM_ROWS));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..NUM_ROWS).map(|id| format!("text {}", id % 7))));
    let scores: ArrayRef = Arc::new(Float64Array::from_iter_values((0..NUM_ROWS).map(|id| id as f64 / 8.0)));
    let batch = RecordBatch::try_from_iter([("id", ids), ("text", texts), ("score", scores)]).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    let path = folder.path().join("x.parquet");
    std::fs::write(&path, writer.into_inner().unwrap()).unwrap();
    let request = OpenRequest { sources: vec![path.to_str().unwrap().to_owned()], ..OpenRequest::default() };
    let snapshot = Io::current().unwrap().block_on(Snapshot::open(request, &Progress::default())).unwrap();
    (folder, Dataset::new(Arc::new(snapshot)))
}

/// Runs a query on a single-threaded runtime that is not one of ours.
fn ids_of(dataset: &Dataset, sql: &str) -> Vec<i64> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let batches = runtime.block_on(async {
        let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
        session.register_table("t", dataset.table_provider()).unwrap();
        session.sql(sql).await.unwrap().collect().await.unwrap()
    });
    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

fn is_pushed(dataset: &Dataset, filter: &Expr) -> bool {
    let support = dataset.table_provider().supports_filters_pushdown(&[filter]).unwrap();
    assert!(support.len() == 1 && support[0] != TableProviderFilterPushDown::Inexact);
    support[0] == TableProviderFilterPushDown::Exact
}

#[test]
fn rows_come_in_order_on_a_runtime_of_another() {
    let (_folder, dataset) = dataset();
    assert_eq!(ids_of(&dataset, "SELECT id FROM t"), (0..NUM_ROWS).collect::<Vec<_>>());
    let kept: Vec<i64> = (0..NUM_ROWS).filter(|id| id % 7 == 3 && *id > 500).collect();
    assert_eq!(ids_of(&dataset, "SELECT id FROM t WHERE text = 'text 3' AND id > 500"), kept);
    assert_eq!(ids_of(&dataset, "SELECT id FROM t WHERE id > 500 LIMIT 3"), [501, 502, 503]);
    assert_eq!(ids_of(&dataset, "SELECT count(*) FROM t WHERE score < 10.0"), [80]);
}

#[test]
fn filters_on_the_rows_own_columns_are_pushed_down_and_others_are_not() {
    let (_folder, dataset) = dataset();
    assert!(is_pushed(&dataset, &col("id").gt(lit(3_i64))));
    assert!(is_pushed(&dataset, &col("text").like(lit("%3")).or(col("score").is_null())));
    assert!(!is_pushed(&dataset, &col("absent").gt(lit(3_i64))));
    assert!(!is_pushed(&dataset, &col("id").gt(placeholder("$1"))));
    assert!(!is_pushed(&dataset, &col("id").gt(lit("text"))), "types that do not fit are the engine's to refuse");
    let chance = |volatility| -> ScalarUDF {
        create_udf(
            "chance",
            vec![DataType::Int64],
            DataType::Boolean,
            volatility,
            Arc::new(|_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(true.into()))),
        )
    };
    assert!(is_pushed(&dataset, &chance(Volatility::Immutable).call(vec![col("id")])));
    assert!(!is_pushed(&dataset, &chance(Volatility::Volatile).call(vec![col("id")])));
}

#[test]
fn a_filter_that_nests_deep_is_left_to_the_engine() {
    let (_folder, dataset) = dataset();
    let nested = |depth: i64| (0..depth).fold(col("id"), |sum, n| binary_expr(sum, Operator::Plus, lit(n)));
    assert!(is_pushed(&dataset, &nested(50).gt(lit(7_i64))));
    assert!(!is_pushed(&dataset, &nested(1000).gt(lit(7_i64))));
}

#[test]
fn the_number_of_rows_is_exact_once_it_is_known() {
    let (_folder, dataset) = dataset();
    let num_rows = |dataset: &Dataset| dataset.table_provider().statistics().unwrap().num_rows;
    assert_eq!(num_rows(&dataset), Precision::Exact(1000));
    let filtered = dataset.filter("id % 2 = 0").unwrap();
    assert_eq!(num_rows(&filtered), Precision::Inexact(1000));
    assert_eq!(ids_of(&filtered, "SELECT count(*) FROM t"), [500]);
    assert_eq!(num_rows(&filtered), Precision::Exact(500), "what the table evaluated, the dataset knows");
}

#[test]
fn an_error_says_what_its_causes_are() {
    let (folder, dataset) = dataset();
    std::fs::remove_file(folder.path().join("x.parquet")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let failed = runtime.block_on(async {
        let session = SessionContext::new();
        session.read_table(dataset.table_provider()).unwrap().collect().await.unwrap_err()
    });
    let text = failed.to_string();
    assert!(text.contains("no such object or folder") && text.contains("x.parquet"), "{text}");
    let DataFusionError::External(told) = failed.find_root() else { panic!("{failed:?}") };
    assert!(told.source().is_some_and(|ours| ours.is::<Error>()));
}

#[test]
fn a_panic_is_an_error_of_the_call() {
    let failed = caught::<()>(|| panic!("at the border")).unwrap_err();
    assert!(failed.to_string().contains("at the border"));
}

#[test]
fn a_stream_of_another_process_says_so() {
    let (_folder, dataset) = dataset();
    let reading = Reading::start(dataset, None).unwrap();
    let mut theirs = Reading(reading.0.into_other_process());
    let failed = futures::executor::block_on(theirs.next()).unwrap().unwrap_err();
    assert!(matches!(failed, Error::Closed { reason: OF_ANOTHER_PROCESS }));
}
