//! User mistakes, one line each: the error they produce, and what the message names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Decimal128Array, Float64Array, Int8Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::{
    Dataset, EpochReader, Error, Io, OpenRequest, OrderSettings, Progress, Reading, Result, RowAccess, Subset,
};

fn columns() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("big", Arc::new(Int64Array::from(vec![1, 1 << 62, i64::MIN]))),
        ("zero", Arc::new(Int64Array::from(vec![1, 0, -1]))),
        ("small", Arc::new(Int8Array::from(vec![1, 127, -128]))),
        ("score", Arc::new(Float64Array::from(vec![0.5, f64::NAN, 1e300]))),
        ("text", Arc::new(StringArray::from(vec!["1", "x", ""]))),
        ("price", Arc::new(Decimal128Array::from(vec![5, 50, 99_999]).with_precision_and_scale(5, 2).unwrap())),
    ]
}

fn parquet(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn sound() -> Vec<u8> {
    parquet(columns())
}

fn open(sources: &[&str], split: Option<&str>, options: &[(&str, &str)]) -> Result<Dataset> {
    let request = OpenRequest {
        sources: sources.iter().map(|&source| source.to_owned()).collect(),
        split: split.map(str::to_owned),
        storage_options: options
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect::<BTreeMap<_, _>>(),
        ..OpenRequest::default()
    };
    Io::current()?.block_on(Dataset::open(request, &Progress::default()))
}

/// Opens a file, `x.parquet`, of these bytes.
fn of_bytes(folder: &Path, body: impl AsRef<[u8]>) -> Result<Dataset> {
    let path = folder.join("x.parquet");
    std::fs::write(&path, body).unwrap();
    open(&[path.to_str().unwrap()], None, &[])
}

/// Opens a file whose column `big` is a `ClassLabel`.
fn labelled(folder: &Path) -> Result<Dataset> {
    of_bytes(folder, sound())?.with_features(r#"{"big": {"names": ["cat", "dog"], "_type": "ClassLabel"}}"#)
}

/// Opens a file and counts the rows that a filter keeps.
fn keep(folder: &Path, sql: &str) -> Result<u64> {
    let dataset = of_bytes(folder, sound())?.filter(sql)?;
    let connections = dataset.connect(&Arc::default())?;
    Io::current()?
        .block_on(dataset.answer(connections, None, Reading::Later, &Arc::default()))
        .map(|kept| kept.num_rows())
}

/// Opens a file and makes it ready to deliver.
fn prepare(folder: &Path, settings: OrderSettings) -> Result<EpochReader> {
    let dataset = of_bytes(folder, sound())?;
    let answer = dataset.known_answer().unwrap();
    EpochReader::try_new(&dataset, answer, settings, 1 << 30)
}

/// Changes the end of a file, where its footer's length and the magic are.
fn with_tail(tail: [u8; 8]) -> Vec<u8> {
    let mut body = sound();
    let end = body.len() - 8;
    body[end..].copy_from_slice(&tail);
    body
}

fn with_footer(footer: &[u8]) -> Vec<u8> {
    let len = u32::try_from(footer.len()).unwrap();
    [b"PAR1", footer, &len.to_le_bytes(), b"PAR1"].concat()
}

fn chain(term: &str, operator: &str, count: usize) -> String {
    vec![term; count].join(operator)
}

/// Makes a mistake in an empty folder.
type Act = Box<dyn Fn(&Path) -> Result<()>>;

struct Mistake {
    name: &'static str,
    act: Act,
    is_expected: fn(&Error) -> bool,
    names: &'static [&'static str],
}

macro_rules! mistake {
    ($name:literal, $act:expr, $error:pat, [$($names:literal),*]) => {
        Mistake {
            name: $name,
            act: Box::new(|folder: &Path| {
                let act: fn(&Path) -> Result<_> = $act;
                act(folder).map(drop)
            }),
            is_expected: |error| matches!(error, $error),
            names: &[$($names),*],
        }
    };
}

/// A filter that is refused or fails, with its error and what that names.
macro_rules! filter {
    ($sql:literal, $error:pat, [$($names:literal),*]) => {
        mistake!($sql, |folder| keep(folder, $sql), $error, [$($names),*])
    };
}

fn sources() -> Vec<Mistake> {
    vec![
        mistake!("no source", |_| open(&[], None, &[]), Error::Uri { .. }, ["list of sources is empty"]),
        mistake!("empty text", |_| open(&[""], None, &[]), Error::Uri { .. }, ["cannot understand the source"]),
        mistake!("a scheme", |_| open(&["ftp://h/x"], None, &[]), Error::Uri { .. }, ["ftp", "s3://"]),
        mistake!("a NUL", |_| open(&["/tmp/a\0b"], None, &[]), Error::Uri { .. }, ["illegal"]),
        mistake!(
            "nothing there",
            |folder| open(&[folder.join("y").to_str().unwrap()], None, &[]),
            Error::NotFound { .. },
            ["no such object or folder", "y"]
        ),
        mistake!(
            "an empty folder",
            |folder| open(&[folder.to_str().unwrap()], None, &[]),
            Error::NoObjects { .. },
            ["no Parquet objects match", "the folder is empty"]
        ),
        mistake!(
            "a pattern",
            |folder| open(&[folder.join("[").to_str().unwrap()], None, &[]),
            Error::Uri { .. },
            ["["]
        ),
        mistake!(
            "a pattern of nothing",
            |folder| {
                of_bytes(folder, sound())?;
                open(&[folder.join("y*").to_str().unwrap()], None, &[])
            },
            Error::NoObjects { .. },
            ["1 object is under"]
        ),
        mistake!(
            "named twice",
            |folder| {
                of_bytes(folder, sound())?;
                open(&[folder.join("x.parquet").to_str().unwrap(), folder.to_str().unwrap()], None, &[])
            },
            Error::Setting { .. },
            ["source: ", "x.parquet", "twice"]
        ),
        mistake!(
            "a split",
            |folder| {
                of_bytes(folder, sound())?;
                open(&[folder.to_str().unwrap()], Some("test"), &[])
            },
            Error::UnknownSplit { .. },
            ["no split `test`", "it has train"]
        ),
        mistake!(
            "a manifest that is none",
            |folder| {
                std::fs::write(folder.join("m.forebay"), b"PAR1").unwrap();
                open(&[folder.join("m.forebay").to_str().unwrap()], None, &[])
            },
            Error::Manifest { .. },
            ["m.forebay", "manifest", "save it again"]
        ),
        mistake!(
            "an option",
            |_| open(&["s3://b/x"], None, &[("acess_key_id", "k")]),
            Error::Setting { .. },
            ["acess_key_id", "did you mean", "access_key_id"]
        ),
        mistake!(
            "an option of s3fs",
            |_| open(&["s3://b/x"], None, &[("key", "k")]),
            Error::Setting { .. },
            ["`key` is not an option of `s3://b`; here it is `aws_access_key_id`"]
        ),
        mistake!(
            "a local option",
            |_| open(&["/tmp"], None, &[("aws_region", "x")]),
            Error::Setting { .. },
            ["aws_region", "local files"]
        ),
    ]
}

fn bodies() -> Vec<Mistake> {
    vec![
        mistake!("no bytes", |folder| of_bytes(folder, b""), Error::NotParquet { .. }, ["x.parquet", "0 bytes"]),
        mistake!(
            "the magic",
            |folder| of_bytes(folder, b"PAR1PAR1"),
            Error::NotParquet { .. },
            ["x.parquet", "8 bytes"]
        ),
        mistake!(
            "a text",
            |folder| of_bytes(folder, b"id,label\n1,a\n"),
            Error::NotParquet { .. },
            ["x.parquet", "another kind"]
        ),
        mistake!(
            "a pointer",
            |folder| of_bytes(folder, b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
            Error::NotParquet { .. },
            ["x.parquet", "a Git LFS pointer", "git lfs pull"]
        ),
        mistake!(
            "half",
            |folder| of_bytes(folder, &sound()[..600]),
            Error::NotParquet { .. },
            ["x.parquet", "truncated"]
        ),
        mistake!(
            "encrypted",
            |folder| of_bytes(folder, with_tail(*b"\x50\0\0\0PARE")),
            Error::NotParquet { .. },
            ["encrypted"]
        ),
        mistake!(
            "a length",
            |folder| of_bytes(folder, with_tail(*b"\xff\xff\xff\x7fPAR1")),
            Error::NotParquet { .. },
            ["claims 2147483647 bytes"]
        ),
        mistake!(
            "a length of nothing",
            |folder| of_bytes(folder, with_tail(*b"\0\0\0\0PAR1")),
            Error::NotParquet { .. },
            ["x.parquet"]
        ),
        mistake!(
            "a length that is off",
            |folder| of_bytes(folder, with_tail(*b"\x21\0\0\0PAR1")),
            Error::NotParquet { .. },
            ["x.parquet"]
        ),
        mistake!(
            "noise",
            |folder| of_bytes(folder, with_footer(&[0xa5; 600])),
            Error::NotParquet { .. },
            ["x.parquet"]
        ),
        mistake!("zeros", |folder| of_bytes(folder, with_footer(&[0; 600])), Error::NotParquet { .. }, ["x.parquet"]),
        mistake!(
            "a huge schema",
            |folder| of_bytes(folder, with_footer(&[0x15, 4, 0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 7])),
            Error::NotParquet { .. },
            ["x.parquet"]
        ),
        mistake!(
            "a deep schema",
            |folder| of_bytes(
                folder,
                with_footer(
                    &[&[0x15, 4, 0x19, 0xfc, 0xff, 0xff, 3][..], &[0x48, 1, b'g', 0x15, 2, 0].repeat(65_535)].concat()
                )
            ),
            Error::NotParquet { .. },
            ["128 levels"]
        ),
    ]
}

fn uses() -> Vec<Mistake> {
    vec![
        mistake!(
            "two columns of a name",
            |folder| {
                let column = || -> ArrayRef { Arc::new(Int64Array::from(vec![1])) };
                of_bytes(folder, parquet(vec![("n", column()), ("n", column())]))
            },
            Error::DuplicateColumn { .. },
            ["x.parquet", "`n`"]
        ),
        mistake!(
            "types that clash",
            |folder| {
                of_bytes(folder, sound())?;
                let other: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
                std::fs::write(folder.join("y.parquet"), parquet(vec![("big", other)])).unwrap();
                open(&[folder.to_str().unwrap()], None, &[])
            },
            Error::SchemaMismatch { .. },
            ["`big`", "`Int64`", "x.parquet", "`Utf8`", "y.parquet"]
        ),
        mistake!(
            "a folder whose value is none of a column",
            |folder| {
                std::fs::create_dir(folder.join("big=two")).unwrap();
                let other: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
                std::fs::write(folder.join("big=two/y.parquet"), parquet(vec![("other", other)])).unwrap();
                of_bytes(folder, sound())?;
                open(&[folder.to_str().unwrap()], None, &[])
            },
            Error::FolderMismatch { .. },
            ["`big=two`", "`Int64`", "x.parquet", "y.parquet"]
        ),
        mistake!(
            "a column that is not there",
            |folder| of_bytes(folder, sound())?.select_columns(&["biq".into()]),
            Error::UnknownColumn { .. },
            ["`biq`", "did you mean `big`"]
        ),
        mistake!(
            "a column twice",
            |folder| of_bytes(folder, sound())?.select_columns(&["big".into(), "big".into()]),
            Error::Setting { .. },
            ["`big`", "twice"]
        ),
        mistake!(
            "another name for a column that is not there",
            |folder| of_bytes(folder, sound())?.rename_columns(&BTreeMap::from([("biq".into(), "b".into())])),
            Error::UnknownColumn { .. },
            ["`biq`", "did you mean `big`"]
        ),
        mistake!(
            "two columns of one name",
            |folder| of_bytes(folder, sound())?.rename_columns(&BTreeMap::from([("big".into(), "zero".into())])),
            Error::Setting { .. },
            ["`zero`", "two columns"]
        ),
        mistake!(
            "no lanes",
            |folder| prepare(
                folder,
                OrderSettings::Shuffled {
                    seed: 1,
                    shuffle_bytes: 1,
                    num_lanes: Some(0),
                    window_rows: None,
                    weights: None
                }
            ),
            Error::Setting { .. },
            ["num_lanes", "at least 1"]
        ),
        mistake!(
            "no state",
            |folder| prepare(folder, OrderSettings::Sequential)?.read_state("{}"),
            Error::NotAState { .. },
            ["not a Forebay state"]
        ),
        mistake!(
            "a foreign state",
            |folder| {
                let reader = prepare(folder, OrderSettings::Sequential)?;
                reader.read_state(&reader.state(0, 99).to_json())
            },
            Error::StateMismatch { .. },
            ["position", "at most 3, got 99"]
        ),
    ]
}

/// Makes the rows of a file ready to be read by number.
fn rows(folder: &Path) -> Result<RowAccess> {
    let dataset = of_bytes(folder, sound())?;
    let answer = dataset.known_answer().unwrap();
    Ok(RowAccess::new(&dataset, answer, 1 << 30))
}

/// Returns all rows of a file as a selection.
fn all(folder: &Path) -> Result<Subset> {
    let dataset = of_bytes(folder, sound())?;
    Ok(dataset.subset(dataset.known_selection().unwrap()))
}

fn selections() -> Vec<Mistake> {
    vec![
        mistake!(
            "a row beyond the last",
            |folder| rows(folder)?.resolve(&[-3, 3]),
            Error::RowIndex { .. },
            ["no row 3", "-3 to 2 for 3 rows"]
        ),
        mistake!(
            "a row twice",
            |folder| of_bytes(folder, sound())?.select_rows(&rows(folder)?, &[2, 0, -1]),
            Error::Setting { .. },
            ["indices", "row -1 is named twice"]
        ),
        mistake!(
            "an order of rows that are not there",
            |folder| prepare(folder, OrderSettings::Given(vec![7].into())),
            Error::Setting { .. },
            ["order", "row 7", "less than 3"]
        ),
        mistake!(
            "a selection of other rows",
            |folder| {
                let selected = all(folder)?;
                let other: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
                of_bytes(folder, parquet(vec![("big", other)]))?.select(&selected)
            },
            Error::SelectionMismatch { .. },
            ["expected rows of the snapshot", "select again"]
        ),
        mistake!(
            "a part",
            |folder| {
                let dataset = of_bytes(folder, sound())?;
                let part = dataset.shard(1, 4)?;
                dataset.select(&part.subset(part.known_selection().unwrap()))
            },
            Error::SelectionMismatch { .. },
            ["part 1 of 4", "merge all parts first"]
        ),
        mistake!(
            "no selection",
            |folder| Subset::from_bytes(&sound(), folder.to_str().unwrap()),
            Error::NotASelection { .. },
            ["is not a saved selection", "`fbselect`"]
        ),
        mistake!(
            "a sample of too many",
            |folder| all(folder)?.sample(4, 0),
            Error::Setting { .. },
            ["4 rows", "has 3"]
        ),
        mistake!(
            "a shard of none",
            |folder| of_bytes(folder, sound())?.shard(0, 0),
            Error::Setting { .. },
            ["index", "less than the number of shards `0`", "the index comes first"]
        ),
    ]
}

fn filters() -> Vec<Mistake> {
    vec![
        filter!("big >", Error::Sql { .. }, ["`big >`", "Expected"]),
        filter!("", Error::Sql { .. }, ["Expected", "EOF"]),
        filter!("big > 1 AS x", Error::Sql { .. }, ["leave `AS x` out"]),
        filter!("biq > 1", Error::UnknownColumn { .. }, ["`biq` at line 1, column 1", "`big`"]),
        filter!("df.big > 1", Error::UnknownColumn { .. }, ["no column `df.big` at line 1, column 1", "mean `big`?"]),
        mistake!(
            "a name with a dot",
            |folder| {
                let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
                of_bytes(folder, parquet(vec![("a.b", column)]))?.filter("a.b > 1")
            },
            Error::UnknownColumn { .. },
            ["no column `a.b`", "; write a name with a dot in double quotes"]
        ),
        mistake!(
            "a misspelt name in double quotes",
            |folder| keep(folder, "\"biq\" > 1"),
            Error::UnknownColumn { hint: "", .. },
            ["did you mean `big`?"]
        ),
        mistake!(
            "a class that is not there",
            |folder| labelled(folder)?.filter("big = 'doq'"),
            Error::UnknownClass { .. },
            ["no class `doq` in column `big`", "did you mean `dog`"]
        ),
        mistake!(
            "an order of classes",
            |folder| labelled(folder)?.filter("'dog' > big"),
            Error::UnorderedClass { .. },
            ["`big` is a ClassLabel", "`dog`"]
        ),
        mistake!(
            "features that are none",
            |folder| of_bytes(folder, sound())?.with_features("[]"),
            Error::Setting { .. },
            ["features", "JSON object"]
        ),
        filter!("big + 1", Error::NotBoolean { .. }, ["`big + 1` is `Int64`"]),
        filter!("text > 1 + ", Error::Sql { .. }, ["text > 1 +"]),
        filter!("lenght(text) > 1", Error::Sql { .. }, ["lenght"]),
        filter!("max(big) > 1", Error::Sql { .. }, ["row by row", "`sql` runs whole SELECTs"]),
        filter!("random() > 0.5", Error::Sql { .. }, ["depends on more than the row"]),
        filter!("big > $1", Error::Sql { .. }, ["write the value out"]),
        filter!("big IN ()", Error::Sql { .. }, ["Expected"]),
        filter!("regexp_like(text, '(')", Error::Sql { .. }, ["unclosed group"]),
        filter!("1 / 0 > 1", Error::Sql { .. }, ["1 / 0", "Divide by zero", "nullif"]),
        filter!(
            "big > 9223372036854775807 + 1",
            Error::Sql { .. } | Error::Evaluate { .. },
            ["9223372036854775807 + 1"]
        ),
        filter!("big / zero > 0", Error::Evaluate { .. }, ["row group 0", "x.parquet", "Divide by zero", "nullif"]),
        filter!("big % zero > 0", Error::Evaluate { .. }, ["row group 0", "Divide by zero"]),
        filter!("big + big > 0", Error::Evaluate { .. }, ["row group 0", "Overflow", "wider type"]),
        filter!("big - 1 < 0", Error::Evaluate { .. }, ["-9223372036854775808 - 1"]),
        filter!("big * 4 > 0", Error::Evaluate { .. }, ["4611686018427387904 * 4"]),
        filter!("-big > 0", Error::Evaluate { .. }, ["Overflow", "-9223372036854775808"]),
        filter!("small + small > 0", Error::Evaluate { .. }, ["127 + 127"]),
        filter!("abs(big) > 0", Error::Evaluate { .. }, ["abs(-9223372036854775808)"]),
        filter!("CAST(big AS TINYINT) > 0", Error::Evaluate { .. }, ["4611686018427387904", "Int8"]),
        filter!("CAST(price AS DECIMAL(4, 2)) > 0", Error::Evaluate { .. }, ["row group 0", "999.99"]),
        filter!("CAST(text AS INT) > 0", Error::Evaluate { .. }, ["'x'", "Int32"]),
        filter!("CAST(score AS INT) > 0", Error::Evaluate { .. }, ["NaN", "Int32"]),
        filter!("CAST('2024-13-45' AS DATE) > '2020-01-01'", Error::Sql { .. }, ["2024-13-45"]),
        filter!("repeat(text, 2000000000000) = 'a'", Error::Evaluate { .. }, ["overflow"]),
        filter!("range(0, 1000000000000)[1] = big", Error::Sql { .. }, ["Range too large"]),
        filter!("date_bin(interval '0 day', to_timestamp(big)) IS NULL", Error::Sql { .. }, ["stride"]),
        mistake!(
            "brackets",
            |folder| keep(folder, &format!("{}big > 0{}", "(".repeat(20_000), ")".repeat(20_000))),
            Error::Sql { .. },
            ["Recursion", "…`"]
        ),
        mistake!(
            "negations",
            |folder| keep(folder, &format!("{}(big > 0)", "NOT ".repeat(20_000))),
            Error::Sql { .. },
            ["…`"]
        ),
        mistake!(
            "a sum of 20,000",
            |folder| keep(folder, &format!("{} > 0", chain("big", " + ", 20_000))),
            Error::Sql { .. },
            ["300 levels", "`IN`"]
        ),
        mistake!(
            "a text of 20,000",
            |folder| keep(folder, &format!("{} = ''", chain("text", " || ", 20_000))),
            Error::Sql { .. },
            ["300 levels"]
        ),
        mistake!(
            "too many terms",
            |folder| keep(folder, &chain("big = 1", " OR ", 200_000)),
            Error::Sql { .. },
            ["399999 operators", "at most 120000", "`IN (...)`"]
        ),
    ]
}

/// Features of other SQL dialects that filters lack.
fn dialects() -> Vec<Mistake> {
    vec![
        filter!("text = \"x\"", Error::UnknownColumn { .. }, ["no column `x`", "; write text in single quotes"]),
        filter!("text <> zz", Error::UnknownColumn { .. }, ["no column `zz`", "; write text in single quotes"]),
        filter!("text REGEXP 'a'", Error::Sql { .. }, ["`REGEXP` and `RLIKE` are not supported", "x ~ "]),
        filter!("big > 1 && zero > 1", Error::Sql { .. }, ["write `AND`"]),
        filter!("big > 1 || zero > 1", Error::Sql { .. }, ["join conditions with `OR`"]),
        filter!("big IN $values", Error::Sql { .. }, ["`x = ANY($name)`"]),
        filter!("big IN ([1, 2])", Error::Sql { .. }, ["`x = ANY(values)`"]),
        filter!("big IN (SELECT 1)", Error::Sql { .. }, ["big IN (SELECT 1)", "without a subquery; `sql` runs"]),
        filter!("EXISTS (SELECT 1 FROM dataset)", Error::Sql { .. }, ["without a subquery; `sql` runs"]),
        filter!("big = ANY(SELECT 1)", Error::Sql { .. }, ["without a subquery; `sql` runs"]),
        filter!("big > (SELECT max(big) FROM dataset)", Error::Sql { .. }, ["without a subquery; `sql` runs"]),
        filter!("text SIMILAR TO '('", Error::Sql { .. }, ["`SIMILAR TO` is not supported", "regexp_like"]),
        filter!("text IN ['a', 'b']", Error::Sql { .. }, ["`x IN ('a', 'b')`"]),
        filter!("WHERE text = 'a'", Error::Sql { .. }, ["a condition and nothing else: leave out `WHERE`"]),
        filter!("text IS None", Error::Sql { .. }, ["`x IS NULL`"]),
        filter!("len(text) > 5", Error::Sql { .. }, ["Invalid function 'len'; `length(x)` counts the characters"]),
        filter!("YEAR(text) = 2026", Error::Sql { .. }, ["Invalid function '", "; `date_part('year', x)`"]),
        filter!("strftime(text, '%Y') = ''", Error::Sql { .. }, ["Invalid function 'strftime'; `to_char(x, "]),
        filter!("datediff(text, text) = 1", Error::Sql { .. }, ["'datediff'; `x - y` is what lies between"]),
        filter!("int(text) = 1", Error::Sql { .. }, ["'int'; `CAST(text AS INT)`"]),
        filter!("text.startswith('a')", Error::Sql { .. }, ["; write `starts_with(text, 'a')`"]),
        filter!("text + text = ''", Error::Sql { .. }, ["; `||` joins texts"]),
        filter!("(big > 1) = 'true'", Error::Sql { .. }, ["; a Boolean is a condition of its own"]),
        filter!("to_timestamp(big) > 1700000000", Error::Sql { .. }, ["; write a time: `TIMESTAMP '"]),
        filter!("to_date(text) > 2020", Error::Sql { .. }, ["is a date, and 2020 a number; write `DATE '"]),
        filter!("1 BETWEEN big AND 2 AND to_date(text) IN (1)", Error::Sql { .. }, ["is a date, and 1 a number"]),
        filter!("text ~ 'a('", Error::Sql { .. }, ["\n    a(\n"]),
        filter!("text ~ '*'", Error::Sql { .. }, ["\n    *\n"]),
        filter!("big ** 2 > 4", Error::Sql { .. }, ["; a power is `power(x, 2)`"]),
        filter!("!(big = 1)", Error::Sql { .. }, ["; write `NOT` for `!`"]),
        filter!("big // 2 > 4", Error::Sql { .. }, ["`floor(x / y)`"]),
        filter!("text COLLATE nocase = 'x'", Error::Sql { .. }, ["`COLLATE` is not supported", "`lower(x)`"]),
        filter!("hash(text) = 1", Error::Sql { .. }, ["Invalid function 'hash'; `md5(x)` is a hash as text"]),
        filter!("octet_length(X'00') > 5", Error::Sql { .. }, ["`length(encode(X'00', 'hex')) / 2`"]),
    ]
}

#[test]
fn a_mistake_is_an_error_of_its_kind_that_says_what_and_where() {
    let mistakes: Vec<_> =
        [sources(), bodies(), uses(), selections(), filters(), dialects()].into_iter().flatten().collect();
    assert!(mistakes.len() >= 60, "{}", mistakes.len());
    for Mistake { name, act, is_expected, names } in mistakes {
        let folder = tempfile::tempdir().unwrap();
        let error = act(folder.path()).err().unwrap_or_else(|| panic!("{name}: not refused"));
        let said = error.to_string();
        assert!(is_expected(&error), "{name}: {error:?}");
        for expected in names {
            assert!(said.contains(expected), "{name}: no {expected:?} in {said}");
        }
        assert!(!said.contains("internal error") && !said.contains("bug in DataFusion"), "{name}: {said}");
    }
}

#[test]
fn long_predicates_keep_the_rows_that_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let case = |index: i64| format!("WHEN big = {index} THEN {}", index % 2 == 1);
    let terms = |term: &dyn Fn(i64) -> String, with: &str| (0..20_000).map(term).collect::<Vec<_>>().join(with);
    for (sql, kept) in [
        (terms(&|index| format!("big = {index}"), " OR "), 1),
        (terms(&|index| format!("big <> {index}"), " AND "), 2),
        (format!("big IN ({})", terms(&|index| index.to_string(), ",")), 1),
        (format!("big NOT IN ({})", terms(&|index| index.to_string(), ",")), 2),
        (format!("CASE {} ELSE false END", terms(&case, " ")), 1),
    ] {
        assert_eq!(keep(folder.path(), &sql).unwrap(), kept, "{}", &sql[..50]);
    }
}
