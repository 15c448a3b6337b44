//! Turns the engine's errors for rejected SQL into a readable sentence, with a suggestion.

use arrow_schema::{Schema, SchemaRef};
use datafusion::common::DataFusionError;

use super::session::session;
use super::{fields, unknown};
use crate::error::{Error, without_kinds};

/// Advice on errors of values, and on syntax of other dialects.
const HINTS: [(&str, &str); 26] = [
    ("Divide by zero", "; divide by `nullif(x, 0)`: that makes it NULL, and a filter leaves such rows out"),
    ("Overflow happened", "; cast to a wider type, such as `CAST(x AS DECIMAL(38, 0))`"),
    ("comparison operation Boolean", "; a Boolean is a condition of its own: write `x` or `NOT x`"),
    ("comparison operation Timestamp", "; write a time: `TIMESTAMP '2026-01-01'`, `to_timestamp(1767225600)`"),
    ("with [List(", "; to ask whether a list contains a value, write `x = ANY(values)`"),
    ("Expected: (, found: $", "; to ask whether a list contains a value, write `x = ANY($name)`"),
    ("PGOverlap", "; write `AND` for `&&`"),
    ("string concat operation", "; `||` joins texts; join conditions with `OR`"),
    ("Expected: (, found: [", "; write the values of a list in parentheses, `x IN ('a', 'b')`"),
    ("Expected: end of expression", "; a filter is a condition and nothing else: leave out `WHERE`, `LIMIT` or `;`"),
    ("Expected: [NOT] NULL | TRUE", "; to ask whether a value is missing, write `x IS NULL`"),
    ("arithmetic expression Utf8 +", "; `||` joins texts"),
    ("an expression, found: * at", "; a power is `power(x, 2)`"),
    ("an expression, found: ! at", "; write `NOT` for `!`"),
    ("Operator DIV is not yet supported", "; `floor(x / y)` is the quotient without its fraction"),
    ("Correlated scalar subquery must be aggregated", "; take `min(v)`, `max(v)` or `count(*)`, or join the rows"),
    (
        "Correlated scalar subquery",
        "; compute it in a subquery first: `SELECT ... FROM (SELECT d.*, (SELECT max(v) FROM ...) AS c FROM dataset d) \
         ORDER BY c`",
    ),
    (
        "duplicate qualified field name",
        "; give each table a name of its own, and name each column once in CUBE, ROLLUP and GROUPING SETS",
    ),
    ("which would be ambiguous", "; give one of the two columns another name, as in `SELECT k AS other`"),
    (
        "table function 'unnest' not found",
        "; `unnest` is a column: `SELECT id, unnest(l) AS x FROM dataset`, and in FROM `(SELECT id, unnest(l) AS x FROM \
         dataset) q`",
    ),
    ("exceeds the representable i64 range", MICROSECONDS),
    ("out of range after truncating", MICROSECONDS),
    ("is not a time that Timestamp(ns", MICROSECONDS),
    ("in InSubquery", "; cast one of the two to the type of the other, as in `arrow_cast(x, 'Time64(Microsecond)')`"),
    (
        NO_TEXT,
        "; `TRY_CAST(x AS VARCHAR)` is NULL for bytes that are no text, `encode(x, 'hex')` makes digits of them, and \
         `x = X'61'` compares them",
    ),
    ("comparison operation LargeBinary", "; cast one of the two, as in `arrow_cast(x, 'LargeBinary')`"),
];

/// What the engine says of bytes that are no text.
pub(super) const NO_TEXT: &str = "Encountered non UTF-8 data";

/// How to go beyond the years that nanoseconds hold.
const MICROSECONDS: &str = "; nanoseconds hold the years 1677 to 2262; write `CAST(x AS TIMESTAMP(6))` for microseconds, \
                            also where two columns are compared or joined";

/// What the engine says of a function whose values have no common type.
const OF_NO_TYPE: [&str; 2] = ["Fail to find the coerced type", "Cannot find a common type for arguments to"];

/// What the engine calls subqueries that it cannot run.
const OF_ENGINE: [&str; 4] =
    ["Physical plan does not support logical expression", "__correlated_sq", "__scalar_sq", "OuterReferenceColumn"];

/// What the engine adds about binary, where functions of text refuse it; other advice does so here.
const OF_BINARY: &str = "\n\nHint: Binary types are not automatically coerced to String. Use CAST(column AS VARCHAR) to convert \
                         Binary data to String.";

/// Functions of other dialects, and their counterparts here. The engine's guesses by spelling are not equivalent.
const FUNCTIONS: [(&[&str], &str); 20] = [
    (
        &["len", "size", "strlen", "array_size"],
        "`length(x)` counts the characters of text, `array_length(x)` the items of a list",
    ),
    (&["year", "month", "day", "hour"], "`date_part('year', x)` takes parts of dates and times"),
    (
        &["sha1", "hash", "xxhash64", "crc32", "blake2b", "blake3"],
        "`md5(x)` is a hash as text, `sha256(x)` and `digest(x, 'blake3')` are hashes as bytes",
    ),
    (
        &["regexp_matches", "regexp_extract"],
        "`regexp_like(x, 'a+')` tells whether text matches, `regexp_match` returns groups",
    ),
    (&["split", "string_split"], "`string_to_array(x, ' ')` makes a list, `split_part(x, ' ', 1)` is one part"),
    (&["json_extract", "get_json_object", "json_value"], "a `forebay.Function` may read JSON"),
    (&["if", "iff", "iif"], "`CASE WHEN x > 0 THEN 1 ELSE 2 END` chooses"),
    (&["isnull", "notnull"], "`x IS NULL` and `x IS NOT NULL` tell"),
    (&["mod", "fmod"], "`x % 10` is the remainder"),
    (
        &["strftime", "date_format", "format_date", "format_timestamp"],
        "`to_char(x, '%Y-%m-%d')` writes dates and times as text",
    ),
    (&["strptime", "parse_date", "str_to_date"], "`to_date(x, '%Y-%m-%d')` and `to_timestamp(x, ...)` read text"),
    (&["epoch", "unix_timestamp"], "`date_part('epoch', x)` is the time in seconds"),
    (
        &["dateadd", "date_add", "date_sub", "adddate", "subdate"],
        "`x + INTERVAL '1 day'` is a later date, `x - INTERVAL '1 month'` an earlier one",
    ),
    (&["datediff", "date_diff", "timestampdiff"], "`x - y` is what lies between two dates or times"),
    (&["last_day"], "`date_trunc('month', x) + INTERVAL '1 month' - INTERVAL '1 day'` is the last day of a month"),
    (&["typeof"], "`arrow_typeof(x)` tells the type"),
    (&["sign"], "`signum(x)` tells the sign"),
    (&["locate", "charindex"], "`strpos(x, 'a')` tells where a text contains another one"),
    (
        &["int", "integer", "bigint", "float", "double", "bool", "boolean", "str", "string", "varchar", "date"],
        "`CAST(x AS INT)` converts a value to another type, as does `x::INT`",
    ),
    (&["xor"], "exactly one of two conditions holds where `x <> y`"),
];

/// Returns the innermost message of `error`, without DataFusion's prefixes.
pub(crate) fn reason(error: &DataFusionError) -> String {
    let text = error.find_root().strip_backtrace();
    let text = text.split("\n\nbacktrace:").next().unwrap_or(&text);
    let text = text.split("\nThis issue was likely caused by a bug").next().unwrap_or(text);
    let text = without_kinds(text);
    let text = text.strip_prefix("SQL error: ParserError(\"").unwrap_or(text);
    let text = text.trim_end_matches("\")").trim().replace(OF_BINARY, "");
    let text = text.as_str();
    if let Some(known) = known_elsewhere(text).or_else(|| without_offset(text)).or_else(|| without_type(text)) {
        return known;
    }
    if OF_ENGINE.iter().any(|said| text.contains(said)) {
        return "a subquery refers to rows around it in a way that cannot be run; write it as a join".to_owned();
    }
    let hint = HINTS.iter().find(|(said, _)| text.contains(said)).map_or("", |(_, hint)| hint);
    format!("{text}{hint}")
}

/// Returns the beginning of a text that is too long for a message.
pub(crate) fn shortened(sql: &str) -> String {
    const SHOWN: usize = 200;
    match sql.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &sql[..end]),
        None => sql.to_owned(),
    }
}

/// Returns what is wrong with a placeholder of another dialect.
pub(crate) fn no_parameter(placeholder: &str) -> String {
    format!("`{placeholder}` is not a parameter; write `$name`, and pass its value as `params={{\"name\": ...}}`")
}

/// Converts DataFusion's planning error about a filter; one about a column names it, its place and similar names.
pub(crate) fn explain(sql: &str, schema: &SchemaRef, error: &DataFusionError) -> Error {
    unknown::in_filter(sql, schema, error).unwrap_or_else(|| refused(sql, &[schema], error))
}

/// Returns an [`Error::Sql`] of SQL over tables of these schemas.
pub(crate) fn refused(sql: &str, schemas: &[&Schema], error: &DataFusionError) -> Error {
    let reason = reason(error);
    let better = fields::about_field(sql, &reason, schemas).or_else(|| unknown::about_spaces(sql, &reason, schemas));
    Error::Sql { sql: shortened(sql), reason: better.unwrap_or(reason) }
}

/// Returns what is wrong with a time without an offset, from an error for one that is none or two of its time zone.
fn without_offset(text: &str) -> Option<String> {
    const IS_NO_TIME: &str = "a time that its time zone skips, or has twice, as clocks are put forward or back there";
    if text == "Cannot cast timezone to different timezone" {
        return Some(format!(
            "a value is {IS_NO_TIME}; leave such rows out, or take an offset for the time zone: `x AT TIME ZONE '+01:00'`"
        ));
    }
    let (_, time) = text.strip_suffix("': error computing timezone offset")?.split_once("timestamp from '")?;
    let is_zone = |zone: &str| zone.starts_with(|first: char| first.is_alphabetic());
    let bare = time.rsplit_once(' ').filter(|(_, zone)| is_zone(zone)).map_or(time, |(bare, _)| bare);
    Some(format!("'{time}' is {IS_NO_TIME}; write its offset, as in '{bare}+01:00'"))
}

/// Returns what is wrong with a function whose values have no common type.
fn without_type(text: &str) -> Option<String> {
    if !OF_NO_TYPE.iter().any(|said| text.contains(said)) {
        return None;
    }
    let (call, _) = text.split_once("argument types '")?.1.split_once("'.")?;
    Some(format!(
        "`{call}` has values without a common type; cast them to one, as in `arrow_cast(x, 'Time64(Microsecond)')`"
    ))
}

/// Returns the counterpart of another dialect's function, from an error for an unknown function.
fn known_elsewhere(text: &str) -> Option<String> {
    let name = text.strip_prefix("Invalid function '")?.split('\'').next()?;
    let lower = name.to_ascii_lowercase();
    let method = lower.rsplit_once('.').map_or(lower.as_str(), |(_, method)| method);
    if let Some((value, _)) = name.rsplit_once('.')
        && is_function(method)
    {
        return Some(format!(
            "Invalid function '{name}'; a function takes its values in brackets, as in `{method}({value})`"
        ));
    }
    let (_, instead) = FUNCTIONS.iter().find(|(names, _)| names.contains(&method))?;
    Some(format!("Invalid function '{name}'; {instead}"))
}

/// Returns whether there is a function of this name.
fn is_function(name: &str) -> bool {
    let session = session();
    session.scalar_functions().contains_key(name) || session.aggregate_functions().contains_key(name)
}
