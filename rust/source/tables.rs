//! Recognizes folders of table formats, which also hold files that their table no longer has.
//!
//! A table's log tells which files it has; without it, rows that were deleted or replaced would be read as well. So such
//! a folder is refused. Files that are named, one by one or by a pattern, are read as they are.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// A table format.
struct Format {
    name: &'static str,
    /// The folder of the log, within that of the table.
    log: &'static str,
    /// Whether an object of that folder is part of a log.
    is_log: fn(&str) -> bool,
    /// What lists the files that a table has.
    files: &'static str,
}

const FORMATS: [Format; 2] = [
    Format {
        name: "a Delta table",
        log: "_delta_log",
        is_log: |name| name.ends_with(".json"),
        files: "`deltalake.DeltaTable(...).file_uris()`",
    },
    Format {
        name: "an Iceberg table",
        log: "metadata",
        // `v3.metadata.json` or `00003-<uuid>.metadata.json`; other folders are called so, too.
        is_log: |name| {
            let number = name.strip_prefix('v').unwrap_or(name);
            number.starts_with(|first: char| first.is_ascii_digit()) && name.ends_with(".metadata.json")
        },
        files: "`[task.file.file_path for task in table.scan().plan_files()]` with a `table` of `pyiceberg`",
    },
];

/// Refuses to read `wanted` of a folder if that is, or holds, the folder of a table with them; `names` are those of all
/// objects there, relative to it.
///
/// # Errors
///
/// [`Error::Setting`].
pub fn refuse_tables<'a>(
    folder: &str,
    names: impl Iterator<Item = &'a str>,
    mut wanted: impl Iterator<Item = &'a str>,
) -> Result<()> {
    let tables: BTreeMap<&str, &Format> = names.filter_map(table_of).collect();
    if tables.is_empty() {
        return Ok(());
    }
    let found = wanted.find_map(|name| tables.iter().find(|(root, _)| name.starts_with(**root)));
    let Some((root, Format { name, files, .. })) = found else { return Ok(()) };
    let folder = format!("{}/{root}", folder.trim_end_matches('/'));
    Err(Error::Setting {
        name: "source",
        reason: format!(
            "`{}` is {name}, and files that it no longer has would be read as well; pass the files that it has, {files}",
            folder.trim_end_matches('/')
        ),
    })
}

/// Returns the folder of the table whose log an object is part of: a prefix of the names of its files.
fn table_of(name: &str) -> Option<(&str, &'static Format)> {
    let (folder, name) = name.rsplit_once('/')?;
    FORMATS.iter().find_map(|format| {
        let root = folder.strip_suffix(format.log)?;
        let is_log = (root.is_empty() || root.ends_with('/')) && (format.is_log)(name);
        is_log.then_some((root, format))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(names: &[&str]) -> Option<String> {
        let wanted = names.iter().copied().filter(|name| name.ends_with(".parquet") && !name.contains("_delta_log"));
        refuse_tables("s3://b/d/", names.iter().copied(), wanted).err().map(|error| error.to_string())
    }

    #[test]
    fn a_folder_of_a_table_is_refused_wherever_it_is() {
        for (names, says) in [
            (&["p.parquet", "_delta_log/00000000000000000000.json"][..], "`s3://b/d` is a Delta table"),
            (&["k=1/p.parquet", "_delta_log/0.checkpoint.parquet", "_delta_log/1.json"], "`s3://b/d` is a Delta table"),
            (&["a.parquet", "x/t/p.parquet", "x/t/_delta_log/0.json"], "`s3://b/d/x/t` is a Delta table"),
            (&["data/p.parquet", "metadata/00001-5f3e.metadata.json"], "`s3://b/d` is an Iceberg table"),
            (&["t/data/p.parquet", "t/metadata/v12.metadata.json"], "`s3://b/d/t` is an Iceberg table"),
        ] {
            let said = refused(names).unwrap_or_default();
            assert!(said.starts_with(&format!("source: {says}, and files")), "{names:?}: {said}");
        }
    }

    #[test]
    fn other_folders_are_none() {
        for names in [
            &["p.parquet"][..],
            &["p.parquet", "metadata/info.json"],
            &["data/p.parquet", "metadata/p.metadata.json"],
            &["data/p.parquet", "metadata/00001.json", "00002-5f3e.metadata.json"],
            &["p.parquet", "_delta_log/_last_checkpoint"],
            &["p.parquet", "my_delta_log/0.json"],
            &["a/p.parquet", "b/_delta_log/0.json", "ab/metadata/v1.metadata.json"],
        ] {
            assert_eq!(refused(names), None, "{names:?}");
        }
    }
}
