//! Human-readable batches: a glimpse in text, a table in HTML.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::DataType;

/// Maximum characters shown per value.
const MAX_CHARS: usize = 40;

/// Values of a column in a glimpse.
const GLIMPSE_ROWS: usize = 3;

/// Rows of a table.
const TABLE_ROWS: usize = 10;

/// Columns shown.
const MAX_COLUMNS: usize = 40;

/// Returns a line for each column: its name, its type, its first values.
pub fn text(batch: &RecordBatch) -> String {
    let schema = batch.schema();
    let fields = || schema.fields().iter().take(MAX_COLUMNS);
    let names = fields().map(|field| field.name().chars().count()).max().unwrap_or(0).min(MAX_CHARS);
    let types: Vec<String> = fields().map(|field| shortened(&field.data_type().to_string())).collect();
    let width = types.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = format!("Batch({} rows, {} columns)", batch.num_rows(), batch.num_columns());
    for ((field, data_type), array) in fields().zip(&types).zip(batch.columns()) {
        let more = if batch.num_rows() > GLIMPSE_ROWS { ", …" } else { "" };
        let values = values(array, GLIMPSE_ROWS).join(", ");
        let name = shortened(field.name());
        text.push_str(&format!("\n  {name:names$}  {data_type:width$}  {values}{more}"));
    }
    let num_hidden = batch.num_columns().saturating_sub(MAX_COLUMNS);
    if num_hidden > 0 {
        text.push_str(&format!("\n  … {num_hidden} more columns"));
    }
    text
}

/// Returns the first rows as a table.
pub fn html(batch: &RecordBatch) -> String {
    let schema = batch.schema();
    let mut html = String::from("<table><thead><tr>");
    for field in schema.fields().iter().take(MAX_COLUMNS) {
        let (name, data_type) = (escaped(field.name()), escaped(&shortened(&field.data_type().to_string())));
        html.push_str(&format!("<th>{name}<br><small>{data_type}</small></th>"));
    }
    html.push_str("</tr></thead><tbody>");
    let columns: Vec<Vec<String>> =
        batch.columns().iter().take(MAX_COLUMNS).map(|array| values(array, TABLE_ROWS)).collect();
    for row in 0..batch.num_rows().min(TABLE_ROWS) {
        html.push_str("<tr>");
        for column in &columns {
            html.push_str(&format!("<td>{}</td>", escaped(&column[row])));
        }
        html.push_str("</tr>");
    }
    let (rows, columns) = (batch.num_rows(), batch.num_columns());
    html.push_str(&format!("</tbody></table><p>{rows} rows, {columns} columns</p>"));
    html
}

/// Returns the first values of a column, shortened.
fn values(array: &ArrayRef, num_rows: usize) -> Vec<String> {
    let num_rows = array.len().min(num_rows);
    let bytes = |row: usize, len: usize| if array.is_null(row) { "null".into() } else { format!("<{len} bytes>") };
    match array.data_type() {
        DataType::Binary => (0..num_rows).map(|row| bytes(row, array.as_binary::<i32>().value(row).len())).collect(),
        DataType::LargeBinary => {
            (0..num_rows).map(|row| bytes(row, array.as_binary::<i64>().value(row).len())).collect()
        }
        data_type => {
            let options = FormatOptions::default().with_null("null").with_display_error(true);
            let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8);
            // A row may be a long list; only its beginning is shown, but all of it is formatted.
            match ArrayFormatter::try_new(array, &options) {
                Ok(formatter) => (0..num_rows)
                    .map(|row| match formatter.value(row).to_string() {
                        value if is_text && array.is_valid(row) => format!("'{}'", shortened(&value)),
                        value => shortened(&value),
                    })
                    .collect(),
                Err(_) => vec!["?".to_owned(); num_rows],
            }
        }
    }
}

/// Returns the beginning of a text, on one line.
fn shortened(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let short: String = chars.by_ref().take(MAX_CHARS).collect();
    if chars.next().is_some() { format!("{short}…") } else { short }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{BinaryArray, Int32Array, StringArray};

    use super::*;

    fn batch() -> RecordBatch {
        let long = "x".repeat(100);
        RecordBatch::try_from_iter([
            ("id", Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4)])) as ArrayRef),
            ("text", Arc::new(StringArray::from(vec!["<b>", "a\nb", &long, ""]))),
            ("blob", Arc::new(BinaryArray::from(vec![&[0_u8, 1][..], &[], &[], &[]]))),
        ])
        .unwrap()
    }

    #[test]
    fn a_glimpse_has_a_line_for_each_column() {
        let shown = text(&batch());
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "Batch(4 rows, 3 columns)");
        assert_eq!(lines[1], "  id    Int32   1, null, 3, …");
        assert!(lines[2].starts_with("  text  Utf8    '<b>', 'a b', 'xxxx") && lines[2].ends_with("…', …"));
        assert_eq!(lines[3], "  blob  Binary  <2 bytes>, <0 bytes>, <0 bytes>, …");
    }

    #[test]
    fn a_table_escapes_what_it_shows() {
        let shown = html(&batch());
        assert!(shown.contains("<td>'&lt;b&gt;'</td>") && shown.contains("<p>4 rows, 3 columns</p>"));
        assert_eq!(shown.matches("<tr>").count(), 5);
    }
}
