//! Initial fuzzing inputs, if there are no others: valid ones of all kinds, small, since most of their bytes are
//! mutated.

use std::path::Path;

use crate::{selection, snapshot};

const STATES: [&str; 3] = [
    r#"{"version":1,"fingerprint":"5f3a","query":[],"order":{"kind":"sequential"},"epoch":0,"position":7}"#,
    r#"{"version":1,"fingerprint":"5f3a","commit":"0a1b","query":["lang = 'de'"],"order":{"kind":"shuffled","seed":18446744073709551615,"num_lanes":192,"window_rows":240,"shuffle_bytes":1073741824},"epoch":3,"position":76800}"#,
    r#"{"version":2,"holes":[]}"#,
];

const URIS: [&str; 12] = [
    "s3://bucket/data/2024/*/part-?.parquet",
    "s3://bucket/a b/100%/ü+=1.parquet",
    "gs://bucket/x/",
    "abfss://container@account.dfs.core.windows.net/x",
    "az://container/x[0-9].parquet",
    "https://host:8080/a%20b/x.parquet",
    "https://host/x.parquet?X-Amz-Signature=secret",
    "hf://datasets/a/b@refs/convert/parquet/default/x.parquet",
    "hf://buckets/a/b/x",
    "file:///data/part-?.parquet",
    "~/x/../y",
    "s3://key:secret@bucket/x",
];

const FILTERS: [&str; 10] = [
    "lang = 'de' AND score > 0.8",
    "id IN (1, -7, 42) OR lang IS NULL",
    "lang LIKE 'd%' OR lang ILIKE '%\\_%' ESCAPE '\\'",
    "CASE WHEN id > 0 THEN upper(lang) = 'DE' ELSE NOT (score < 1e3) END",
    "id BETWEEN -10 AND 10 AND coalesce(lang, '') <> substr('abc', 1, 2)",
    "array_length(xs) > 0 AND xs[1] = 7",
    "CAST(lang AS BIGINT) = 1",
    "id + 1 > 9223372036854775807 OR id * 2 < 0 OR id % 7 = 0",
    "date_trunc('day', TIMESTAMP '2024-01-01 10:00:00') = DATE '2024-01-01'",
    "regexp_like(lang, '^w.*t$') AND score = 'NaN'::float",
];

fn write(target: &str, inputs: impl IntoIterator<Item = Vec<u8>>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&folder).unwrap();
    for (number, input) in inputs.into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number:03}")), input).unwrap();
    }
}

#[test]
#[ignore = "it writes into fuzz/corpus"]
fn seeds_are_written() {
    let texts = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    write("states", texts(&STATES));
    write("uris", texts(&URIS));
    write("sql", texts(&FILTERS));
    write(
        "levels",
        [vec![1, 0, 7, 100, 0, 3, 0xaa, 0x10, 1, 0x80, 1, 0], vec![9, 1, 3, 40, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9]],
    );
    write("selections", selection::fuzz::seeds());
    write("pages", snapshot::fuzz::seeds::pages());
    write("objects", snapshot::fuzz::seeds::objects());
    write("footers", snapshot::fuzz::seeds::footers());
    write("manifests", snapshot::fuzz::seeds::manifests());
}
