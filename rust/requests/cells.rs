//! Snapshots of all requests of the benchmark's scans, in miniature: no change can make requests more numerous, wider
//! or later without a failing test.
//!
//! Objects and settings are a sixty-fourth of the benchmark's, and nothing is measured. After an intended change,
//! `INSTA_UPDATE=always cargo test --release --lib --workspace cells` rewrites the snapshots; their diff is the change.

use std::fmt::Write;

use arrow_array::{BinaryArray, Float64Array, Int32Array, ListArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};

use super::*;
use crate::config;
use crate::metrics::Stage;
use crate::source::Preset;

/// Number of bits by which sizes are shifted.
const SCALE: u32 = 6;
const NUM_OBJECTS: i64 = 2;
const GROUPS_OF_OBJECT: i64 = 4;
const SELECTIVITIES: [(f64, &str); 6] =
    [(0.00001, "0.001 %"), (0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (0.5, "50 %"), (1.0, "100 %")];

/// The columns in addition to `rnd` and `pos`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Two numbers.
    Narrow,
    /// Text, tokens and images.
    Wide,
}

impl Shape {
    fn group_rows(self) -> i64 {
        match self {
            Self::Narrow => 4000,
            Self::Wide => 40,
        }
    }

    fn num_rows(self) -> i64 {
        self.group_rows() * GROUPS_OF_OBJECT * NUM_OBJECTS
    }

    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Narrow => &["a", "b"],
            Self::Wide => &["text", "tokens", "image"],
        }
    }

    /// Returns an object with pages of about `page_bytes`.
    fn object(self, number: i64, page_bytes: usize, has_index: bool) -> Vec<u8> {
        let num_rows = self.num_rows();
        let first = number * num_rows / NUM_OBJECTS;
        let rows = || first..first + num_rows / NUM_OBJECTS;
        // The prime does not divide any number of rows, so this is a permutation.
        let rnd = Float64Array::from_iter_values(rows().map(|row| (row * 7919 % num_rows) as f64 / num_rows as f64));
        let mut columns: Vec<(&str, ArrayRef)> =
            vec![("rnd", Arc::new(rnd)), ("pos", Arc::new(Int64Array::from_iter_values(rows())))];
        match self {
            Self::Narrow => {
                columns.push(("a", Arc::new(Int64Array::from_iter_values(rows()))));
                columns.push(("b", Arc::new(Int64Array::from_iter_values(rows()))));
            }
            Self::Wide => {
                let tokens: Int32Array = (0..50_000).cycle().take(rows().count() * 256).collect();
                let item = Arc::new(Field::new_list_field(DataType::Int32, true));
                let offsets = OffsetBuffer::from_lengths(rows().map(|_| 256));
                let images = BinaryArray::from_iter_values(rows().map(|row| row.to_le_bytes().repeat(375)));
                columns
                    .push(("text", Arc::new(StringArray::from_iter_values(rows().map(|row| format!("{row:0800}"))))));
                columns.push(("tokens", Arc::new(ListArray::new(item, offsets, Arc::new(tokens), None))));
                columns.push(("image", Arc::new(images)));
            }
        }
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_max_row_group_row_count(usize::try_from(self.group_rows()).ok())
            .set_data_page_size_limit(page_bytes)
            .set_write_batch_size(4)
            .set_statistics_enabled(if has_index { EnabledStatistics::Page } else { EnabledStatistics::Chunk })
            .set_offset_index_disabled(!has_index)
            .build();
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    }
}

/// A filter on a dataset.
#[derive(Debug, Clone, Copy)]
struct Cell {
    shape: Shape,
    has_small_pages: bool,
    has_index: bool,
    selectivity: f64,
    is_clustered: bool,
}

impl Cell {
    fn filter(self) -> String {
        let num_rows = self.shape.num_rows();
        #[expect(clippy::cast_possible_truncation, reason = "a count of some thousands")]
        let count = ((num_rows as f64 * self.selectivity).round() as i64).max(1);
        if !self.is_clustered {
            return format!("rnd < {:?}", count as f64 / num_rows as f64);
        }
        let first = (num_rows - count) / 3;
        format!("pos >= {first} AND pos < {}", first + count)
    }

    /// Reads the kept rows in order, and returns the requests as text.
    fn read(self, round_trip_bytes: u64) -> String {
        let page_bytes = if self.has_small_pages { 64 << 10 } else { 1 << 20 } >> SCALE;
        let objects: Vec<_> = (0..NUM_OBJECTS)
            .map(|number| (format!("part-{number}.parquet"), self.shape.object(number, page_bytes, self.has_index)))
            .collect();
        let objects: Vec<_> = objects.iter().map(|(key, body)| (key.as_str(), body.clone())).collect();
        let remote = Preset::object_storage();
        let preset = Preset {
            gap_bytes: remote.gap_bytes >> SCALE,
            least_gap_bytes: remote.least_gap_bytes >> SCALE,
            max_request_bytes: remote.max_request_bytes >> SCALE,
            round_trip_bytes,
            ..remote
        };
        let lake = Lake::open_with(&objects, preset.unmeasured());
        let metrics = Arc::new(Metrics::default());
        let names: Vec<String> = self.shape.columns().iter().map(|&name| name.to_owned()).collect();
        let dataset = lake.dataset.filter(&self.filter()).unwrap().select_columns(&names).unwrap();
        let (connections, progress) = (dataset.connect(&metrics).unwrap(), Arc::default());
        let answer = dataset.answer(connections, None, Reading::InOrder, &progress);
        Io::current().unwrap().block_on(answer).unwrap();
        let requests = lake.pass(&dataset);
        let bytes = requests.iter().map(|request| range_of(request)).map(|(start, end)| end - start).sum::<u64>();
        let explained = dataset.explain(&dataset.known_selection().unwrap()).unwrap();
        let stages = [
            (Stage::Footers, explained.opening.footers),
            (Stage::Indexes, explained.selection.indexes),
            (Stage::Predicates, explained.selection.predicates),
            (Stage::Payload, metrics.of(Stage::Payload)),
        ];
        let mut said = format!("{} requests, {bytes} bytes\n", requests.len());
        for (stage, counted) in stages.iter().filter(|(_, counted)| counted.requests > 0) {
            let (name, bytes) = (stage.name(), counted.bytes_fetched);
            writeln!(said, "{name}: {} requests, {} deep, {bytes} bytes", counted.requests, counted.depth).unwrap();
        }
        for request in requests {
            writeln!(said, "    {}", request.replace(" if unchanged", "")).unwrap();
        }
        said
    }
}

/// Returns the requests of the benchmark's cells, numbered as there.
fn all_cells(shape: Shape, has_small_pages: bool, has_index: bool) -> String {
    let mut said = String::new();
    for (index, (selectivity, percent)) in SELECTIVITIES.into_iter().enumerate() {
        for is_clustered in [false, true] {
            let cell = Cell { shape, has_small_pages, has_index, selectivity, is_clustered };
            let place = if is_clustered { "together" } else { "anywhere" };
            for (worth, name) in [(config::REMOTE_ROUND_TRIP_BYTES >> SCALE, ""), (0, ", page by page")] {
                if index > 0 || is_clustered || !name.is_empty() {
                    said.push('\n');
                }
                write!(said, "{percent}, {place}{name}: {}", cell.read(worth)).unwrap();
            }
        }
    }
    said
}

#[test]
fn of_narrow_rows_in_small_pages() {
    insta::assert_snapshot!(all_cells(Shape::Narrow, true, true));
}

#[test]
fn of_narrow_rows_in_large_pages() {
    insta::assert_snapshot!(all_cells(Shape::Narrow, false, true));
}

#[test]
fn of_wide_rows_in_small_pages() {
    insta::assert_snapshot!(all_cells(Shape::Wide, true, true));
}

#[test]
fn of_wide_rows_in_large_pages() {
    insta::assert_snapshot!(all_cells(Shape::Wide, false, true));
}

#[test]
fn of_rows_without_a_page_index() {
    insta::assert_snapshot!(all_cells(Shape::Wide, true, false));
}
