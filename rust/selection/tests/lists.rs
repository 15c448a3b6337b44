//! Lists of more values than the engine compares with bounds, compared with reading and evaluating every row.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::DataType;
use proptest::prelude::*;

use super::{Bucket, DEAR, FREE, block_on, count, parquet, properties, rows};

const COLUMNS: [&str; 8] = ["n", "unsigned", "narrow", "wide", "float", "text", "coded", "day"];

fn type_of(column: &str) -> DataType {
    match column {
        "n" => DataType::Int32,
        "unsigned" => DataType::UInt64,
        "narrow" => DataType::Decimal128(9, 2),
        "wide" => DataType::Decimal128(25, 2),
        "float" => DataType::Float64,
        "text" => DataType::Utf8,
        "coded" => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        _ => DataType::Date32,
    }
}

/// Returns the text of a value of a column; values have the order of their numbers.
fn text_of(column: &str, number: i64) -> String {
    match column {
        "n" => number.to_string(),
        "unsigned" => (number + 100).to_string(),
        "narrow" | "wide" => format!("{number}.00"),
        "float" => format!("{number}.0"),
        // Bounds are truncated within the words.
        "text" | "coded" => format!("{:03} and more", number + 100),
        _ => format!("{}-02-03", 1900 + number),
    }
}

fn literal_of(column: &str, number: i64) -> String {
    let text = text_of(column, number);
    match column {
        "text" | "coded" => format!("'{text}'"),
        "day" => format!("DATE '{text}'"),
        _ => text,
    }
}

fn list_of(column: &str, numbers: impl IntoIterator<Item = i64>) -> String {
    let literals = numbers.into_iter().map(|number| literal_of(column, number));
    literals.collect::<Vec<_>>().join(", ")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn bounds_drop_no_row_whose_value_is_in_a_long_list(
        mut numbers in prop::collection::vec(prop::option::weighted(0.95, -50_i64..450), 1..3000),
        sought in prop::collection::btree_set(-60_i64..460, 21..60),
        is_sorted: bool,
        has_null: bool,
    ) {
        if is_sorted {
            numbers.sort_unstable();
        }
        let columns = COLUMNS.map(|column| {
            let texts: ArrayRef = Arc::new(
                numbers.iter().map(|number| number.map(|number| text_of(column, number))).collect::<StringArray>(),
            );
            (column, arrow_cast::cast(&texts, &type_of(column)).unwrap())
        });
        let short = properties()
            .set_max_row_group_row_count(Some(300))
            .set_data_page_row_count_limit(30)
            .set_write_batch_size(30)
            .set_column_index_truncate_length(Some(8))
            .set_statistics_truncate_length(Some(8));
        let body = parquet(&RecordBatch::try_from_iter(columns).unwrap(), short);
        block_on(async {
            for (is_kept, round_trip) in [(true, FREE), (false, DEAR)] {
                let bucket = Bucket::of([body.clone()], is_kept).await;
                for column in COLUMNS {
                    let mut list = list_of(column, sought.iter().copied());
                    if has_null {
                        list.push_str(", NULL");
                    }
                    for text in [format!("{column} IN ({list})"), format!("{column} NOT IN ({list})")] {
                        let (sets, ..) = bucket.select(&text, round_trip).await.unwrap();
                        assert_eq!(sets, bucket.select_slowly(&text).await.unwrap(), "{text}");
                    }
                }
            }
        });
    }
}

#[test]
fn a_long_list_is_looked_for_only_where_it_may_be() {
    block_on(async {
        let bucket = Bucket::of([parquet(&rows(0..9000), properties())], true).await;
        let near = list_of("n", (4250..4310).step_by(2));
        let (sets, report, requests) = bucket.select(&format!("sorted IN ({near})"), FREE).await.unwrap();
        assert_eq!(requests, [bucket.request(0, 4, 0, 2..4)]);
        assert_eq!((count(&sets), report.num_pruned, report.num_pages, report.num_pages_pruned), (30, 8, 10, 8));
        // Between the values there is nothing to find.
        let apart = list_of("n", (3900..4000).step_by(8).chain((7000..7100).step_by(8)));
        let (sets, report, _) = bucket.select(&format!("sorted IN ({apart})"), DEAR).await.unwrap();
        assert_eq!((count(&sets), report.num_pruned, report.num_read), (26, 7, 2));
        let choice: Vec<_> = (4250..4310).step_by(2).map(|n| format!("sorted = {n}")).collect();
        let (sets, report, _) = bucket.select(&choice.join(" OR "), DEAR).await.unwrap();
        assert_eq!((count(&sets), report.num_pruned, report.num_read), (30, 8, 1));
        let (sets, report, _) = bucket.select(&format!("sorted NOT IN ({near})"), DEAR).await.unwrap();
        assert_eq!((count(&sets), report.num_whole, report.num_read), (8970, 8, 1));
    });
}

#[test]
fn a_long_list_of_floats_is_looked_for_by_both_bounds() {
    block_on(async {
        let texts: ArrayRef = Arc::new((0..9000).map(|n| Some(text_of("float", n))).collect::<StringArray>());
        let floats = arrow_cast::cast(&texts, &DataType::Float64).unwrap();
        let body = parquet(&RecordBatch::try_from_iter([("float", floats)]).unwrap(), properties());
        let bucket = Bucket::of([body], true).await;
        let text = format!("float IN ({})", list_of("float", 4250..4280));
        let (sets, report, _) = bucket.select(&text, DEAR).await.unwrap();
        assert_eq!((count(&sets), report.num_pruned, report.num_read), (30, 8, 1));
    });
}
