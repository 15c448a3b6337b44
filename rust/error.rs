//! The error type of the crate.
//!
//! Every variant says where the error is: the object, row group, byte range, column or setting. Messages say what to
//! do; causes are chained by `source()` and never printed twice.

use std::fmt::Display;
use std::io::ErrorKind;
use std::ops::Range;
use std::time::Duration;

use arrow_schema::{ArrowError, DataType};
use parquet::errors::ParquetError;

/// A result whose error is [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What has the columns that are asked for, mostly.
pub(crate) const DATASET: &str = "the dataset";

/// Codes with which S3 and Azure refuse an archived object, which must be restored before it can be read.
pub(crate) const ARCHIVED: [&str; 3] = ["InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"];

/// Everything that can go wrong between a URI and a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a source that can be opened.
    #[error("cannot understand the source `{uri}`: {reason}")]
    Uri {
        /// The text as given, without credentials.
        uri: String,
        /// What is wrong with it and what would work.
        reason: String,
    },

    /// Nothing is stored under the source.
    #[error("no such object or folder: `{url}`")]
    NotFound {
        /// The missing object, folder or bucket.
        url: String,
        /// What the store said, if it was asked.
        #[source]
        source: Option<Box<object_store::Error>>,
    },

    /// The source exists, but holds no Parquet object that matches.
    #[error("no Parquet objects match `{url}`: {reason}")]
    NoObjects {
        /// The folder or pattern.
        url: String,
        /// What was found instead.
        reason: String,
    },

    /// The store refused the credentials, or the operating system refused the user.
    #[error("permission denied for `{url}`; {}", advice_on(url, source))]
    PermissionDenied {
        /// The object or bucket.
        url: String,
        /// What the store said.
        source: Box<object_store::Error>,
    },

    /// There are no credentials, and none could be found.
    #[error(
        "no credentials for `{url}`; put them into the environment or `storage_options`, or set `skip_signature` to `true` there for a public bucket{hint}"
    )]
    NoCredentials {
        /// The object or bucket.
        url: String,
        /// Where else they may have been meant to come from; may be empty.
        hint: &'static str,
        /// What was tried.
        source: Box<object_store::Error>,
    },

    /// The store failed in another way.
    #[error("the store failed for `{url}`")]
    Store {
        /// The object or bucket.
        url: String,
        /// What the store said.
        source: Box<object_store::Error>,
    },

    /// A server presented a certificate that is not trusted; retrying does not help.
    #[error("the server of `{url}` is not trusted: {reason}")]
    Untrusted {
        /// The object or bucket.
        url: String,
        /// What is wrong with the certificate, and what to do.
        reason: &'static str,
        /// What the store's client said.
        source: Box<object_store::Error>,
    },

    /// The process or the machine has reached its limit of open files and connections.
    #[error("no file descriptor is left to read `{url}`; open fewer at once, or raise their number (`ulimit -n`)")]
    NoDescriptors {
        /// The object or bucket.
        url: String,
        /// What the system said.
        source: Box<object_store::Error>,
    },

    /// The store did not answer within the time limit, despite retries.
    #[error(
        "the store did not answer in time for `{url}`; try again later, or raise `timeout`, `read_timeout` or `connect_timeout` in `storage_options`"
    )]
    TimedOut {
        /// The object or bucket.
        url: String,
        /// What the store said.
        source: Box<object_store::Error>,
    },

    /// A store kept refusing or failing until the time limit.
    #[error(
        "{}`{url}` could not be read from the store within {} seconds; try again later, or raise `{option}` in `storage_options`",
        of_range(.range.as_ref()),
        .limit.as_secs_f64()
    )]
    Impatient {
        /// The object.
        url: String,
        /// The requested bytes, if only a part of the object was read.
        range: Option<Range<u64>>,
        /// The time limit.
        limit: Duration,
        /// The option that sets it.
        option: &'static str,
        /// What the store said last.
        source: Box<object_store::Error>,
    },

    /// Reading a range failed.
    #[error("cannot read bytes {}..{} of `{url}`", .range.start, .range.end)]
    Read {
        /// The object.
        url: String,
        /// The bytes asked for.
        range: Range<u64>,
        /// What the store said.
        source: Box<object_store::Error>,
    },

    /// The store answered a range request with the wrong number of bytes.
    #[error("`{url}` gave {got} bytes for the range {}..{}; the object is truncated or changed", .range.start, .range.end)]
    ShortRead {
        /// The object.
        url: String,
        /// The bytes asked for.
        range: Range<u64>,
        /// The number of bytes received.
        got: u64,
    },

    /// The object has changed since it was opened.
    #[error(
        "`{url}` changed since the dataset was opened (expected e-tag `{expected}`); open the dataset again, and if that is by a manifest, save that anew"
    )]
    ObjectChanged {
        /// The object.
        url: String,
        /// The entity tag recorded when the dataset was opened.
        expected: String,
    },

    /// A cache in front of a store has another version of the object.
    #[error("`{url}` changed since it was put into a cache: {reason}")]
    StaleCache {
        /// The object.
        url: String,
        /// What the cache has, and what to do.
        reason: String,
    },

    /// The object is not a readable Parquet file.
    #[error("`{url}` is not a readable Parquet file: {reason}")]
    NotParquet {
        /// The object.
        url: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A row group's pages cannot be decoded.
    #[error("cannot decode {}row group {row_group} of `{url}`: {}", of_column(.column.as_deref()), said(.source))]
    Decode {
        /// The object.
        url: String,
        /// The row group within the object, from 0.
        row_group: usize,
        /// The column at fault, if known.
        column: Option<String>,
        /// What the decoder said; part of the message because it describes what is wrong with the page.
        source: Box<ParquetError>,
    },

    /// A value cannot be used as requested: a broken image, a NULL list.
    #[error("column `{column}`, row {row} of row group {row_group} of `{url}`: {reason}")]
    Value {
        /// The object.
        url: String,
        /// The row group within the object, from 0.
        row_group: usize,
        /// The row within the row group, from 0.
        row: u64,
        /// The column.
        column: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },

    /// A column's values do not fit the type that all objects agreed on.
    #[error(
        "cannot convert column `{column}` of `{url}` (row group {row_group}) to `{to}`: {}; select other columns, or open the object alone",
        said(.source)
    )]
    Cast {
        /// The object.
        url: String,
        /// The row group within the object, from 0.
        row_group: usize,
        /// The column.
        column: String,
        /// The dataset's type of the column.
        to: DataType,
        /// What the conversion said.
        source: Box<ArrowError>,
    },

    /// Two objects have types for a column that cannot be widened to a common one.
    #[error(
        "column `{column}` is `{left}` in `{left_url}` but `{right}` in `{right_url}`; open the objects separately, `cast` the column of some, and join them by `datasets.concatenate_datasets([a.to_hf(), b.to_hf()])`"
    )]
    SchemaMismatch {
        /// The column.
        column: String,
        /// Its type in the first object.
        left: Box<DataType>,
        /// The first object.
        left_url: String,
        /// Its type in the second object.
        right: Box<DataType>,
        /// The second object.
        right_url: String,
    },

    /// A folder's value is none of the column of that name, which other objects have.
    #[error(
        "`{url}` has no column `{column}`, and its folder `{column}={value}` no `{stored}`, which the column is in `{stored_url}`; rename the folder, or open the objects separately"
    )]
    FolderMismatch {
        /// The object.
        url: String,
        /// The column.
        column: String,
        /// The folder's value.
        value: String,
        /// The type of the column.
        stored: Box<DataType>,
        /// The first object that has the column.
        stored_url: String,
    },

    /// An object has two columns of the same name.
    #[error("`{url}` has more than one column named `{column}`; columns of such a file cannot be selected by name")]
    DuplicateColumn {
        /// The object.
        url: String,
        /// The column.
        column: String,
    },

    /// A column is not in the dataset.
    #[error("no column `{column}`{}{hint}", near_names(.near, .available, owner))]
    UnknownColumn {
        /// The column asked for.
        column: String,
        /// Similar names, best first.
        near: Vec<String>,
        /// All names; none if they do not matter.
        available: Vec<String>,
        /// What has these names.
        owner: &'static str,
        /// What else may have been meant, or empty.
        hint: &'static str,
    },

    /// A `ClassLabel` has no class with that name.
    #[error("no class `{name}` in column `{column}`{}", near_names(.near, .classes, "it"))]
    UnknownClass {
        /// The column.
        column: String,
        /// The name it was compared with.
        name: String,
        /// Similar names, best first.
        near: Vec<String>,
        /// All names.
        classes: Vec<String>,
    },

    /// Class names were compared as if they had an order.
    #[error(
        "column `{column}` is a ClassLabel: `{name}` stands for a class, and classes have no order; compare by `=`, `<>` or `IN`, or with a number"
    )]
    UnorderedClass {
        /// The column.
        column: String,
        /// The name it was compared with.
        name: String,
    },

    /// A split is not in the source.
    #[error("no split `{split}` in `{url}`; it has {}", .available.join(", "))]
    UnknownSplit {
        /// The split asked for.
        split: String,
        /// The source.
        url: String,
        /// The existing splits.
        available: Vec<String>,
    },

    /// A filter or query does not parse or type-check, uses something that does not exist, or fails on a value.
    #[error("cannot run the SQL `{sql}`: {reason}")]
    Sql {
        /// The filter or query.
        sql: String,
        /// What is wrong, where, and similar names.
        reason: String,
    },

    /// A query returns rows that are not rows of the dataset.
    #[error("`{sql}` does not return rows of the dataset: {reason}; `query()` runs any SELECT")]
    ManyRows {
        /// The query.
        sql: String,
        /// The part of the query that makes other rows.
        reason: String,
    },

    /// A query needs more memory than its limit.
    #[error("`{sql}` needs more than its {limit_bytes} bytes of memory: {reason}; raise `memory_limit`")]
    QueryMemory {
        /// The query.
        sql: String,
        /// The memory limit.
        limit_bytes: u64,
        /// The operator that requested more.
        reason: String,
    },

    /// A query needs to spill to temporary files, which cannot be written.
    #[error(
        "cannot write temporary files in `{folder}` for the data of the query `{sql}` that does not fit into memory: {reason}; set `TMPDIR` to a folder with room, or raise memory_limit"
    )]
    Spill {
        /// The query.
        sql: String,
        /// Where the files are.
        folder: String,
        /// What the system said.
        reason: String,
    },

    /// A user-defined function of a query failed.
    #[error("the function `{name}` failed: {reason}")]
    Function {
        /// The function.
        name: String,
        /// What it said, or what is wrong with what it returned.
        reason: String,
    },

    /// A filter is not a Boolean expression.
    #[error("the filter `{sql}` is `{got}`, expected a Boolean expression such as `{sql} > 0`")]
    NotBoolean {
        /// The expression.
        sql: String,
        /// Its type.
        got: Box<DataType>,
    },

    /// A filter or a computed column failed on values of the data, such as a division by zero.
    #[error("cannot compute values of row group {row_group} of `{url}`: {reason}")]
    Evaluate {
        /// The object.
        url: String,
        /// The row group within the object, from 0.
        row_group: usize,
        /// What went wrong.
        reason: String,
    },

    /// A setting has an invalid value.
    #[error("{name}: {reason}")]
    Setting {
        /// The setting, as the user wrote it.
        name: &'static str,
        /// The value, and what would work.
        reason: String,
    },

    /// A state belongs to another dataset, query or order.
    #[error("this state does not belong to this stream: {}", .differences.join("; "))]
    StateMismatch {
        /// The differences, each as `what: expected X, got Y`.
        differences: Vec<String>,
    },

    /// A manifest is damaged, or is not a manifest.
    #[error("cannot use the manifest `{url}`: {reason}; save it again, or open the objects themselves")]
    Manifest {
        /// The manifest.
        url: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The text is not a state of this library.
    #[error("not a Forebay state: {reason}")]
    NotAState {
        /// What is missing or malformed.
        reason: String,
    },

    /// A row number is out of range.
    #[error("no row {index}: {}", row_numbers(*.num_rows))]
    RowIndex {
        /// The requested number.
        index: i64,
        /// The number of rows.
        num_rows: u64,
    },

    /// Bytes are not a saved selection.
    #[error("`{url}` is not a saved selection: {reason}")]
    NotASelection {
        /// Where the bytes are from.
        url: String,
        /// What is wrong with them.
        reason: String,
    },

    /// A selection belongs to other rows than those it is used with.
    #[error("this selection does not fit: {reason}")]
    SelectionMismatch {
        /// What differs, and what to do.
        reason: String,
    },

    /// The memory limit is smaller than the least that is needed at once.
    #[error(
        "memory_limit of {limit_bytes} bytes is too small: row group {row_group} of `{url}` needs {needed_bytes} bytes at once: {hint}"
    )]
    MemoryLimit {
        /// The object.
        url: String,
        /// The row group within the object, from 0.
        row_group: usize,
        /// The limit.
        limit_bytes: u64,
        /// The smallest sufficient limit.
        needed_bytes: u64,
        /// Why, and what to do.
        hint: &'static str,
    },

    /// The memory limit cannot hold one batch in addition to the rows it is made of.
    #[error(
        "memory_limit of {limit_bytes} bytes is too small: a batch of {batch_rows} rows needs {needed_bytes} bytes at once, decoded and gathered; use a smaller batch_size, select fewer columns, or raise the limit"
    )]
    BatchMemory {
        /// Rows of the batch.
        batch_rows: usize,
        /// The limit.
        limit_bytes: u64,
        /// The smallest sufficient limit.
        needed_bytes: u64,
    },

    /// The memory limit cannot hold the documents that are packed together.
    #[error(
        "memory_limit of {limit_bytes} bytes is too small: {num_documents} documents for a window of {window} take {held_bytes} bytes; raise the limit, or use a smaller `window` in `Pack`, which states do not let you change"
    )]
    WindowMemory {
        /// Number of documents that are packed together.
        window: usize,
        /// The limit.
        limit_bytes: u64,
        /// Number of documents that are held.
        num_documents: usize,
        /// The bytes of these.
        held_bytes: u64,
    },

    /// More rows were unreadable than may be skipped.
    #[error(
        "skipped {num_rows} rows that could not be read, more than max_skipped ({max_rows}); the last ones for the following reason"
    )]
    TooManySkipped {
        /// Number of skipped rows, including the last ones.
        num_rows: u64,
        /// Maximum number of skipped rows.
        max_rows: u64,
        /// Why the last ones could not be read.
        source: Box<Error>,
    },

    /// A column's type has no representation in the requested format.
    #[error("column `{column}` of type `{data_type}` cannot become a tensor: {hint}")]
    NoTensor {
        /// The column.
        column: String,
        /// Its type.
        data_type: Box<DataType>,
        /// What would work.
        hint: String,
    },

    /// The operating system refused to create a thread.
    #[error("cannot start a thread; allow more open files (`ulimit -n`), threads (`ulimit -u`) or memory")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },

    /// A worker thread panicked: a bug in this crate.
    #[error("internal error: {reason}; please report it")]
    Internal {
        /// The panic's message.
        reason: String,
    },

    /// The stream was closed, or belongs to the parent of this forked process.
    #[error("the stream is closed: {reason}")]
    Closed {
        /// Why.
        reason: &'static str,
    },
}

/// Returns advice for a refusal of `url` that the operating system or store identified by a number.
fn advice_on(url: &str, source: &object_store::Error) -> &'static str {
    // How S3, STS and Azure report that a signature's time is off.
    const SKEWED: [&str; 3] = ["RequestTimeTooSkewed", "Signature not yet current", "Request date header too old"];
    let said = source.to_string();
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if says(&["(os error "]) {
        "this user lacks the necessary permissions"
    } else if says(&ARCHIVED) {
        "it is archived; restore it before reading it"
    } else if says(&SKEWED) {
        "the clock of this machine differs from the store's by more than the store allows: set it"
    } else if url.starts_with("hf://") {
        "check the `token` that was passed, or that of `HF_TOKEN` or the login: it may have been revoked, or have expired"
    } else if url.starts_with("https://") || url.starts_with("http://") {
        match source {
            object_store::Error::Unauthenticated { .. } => {
                "the server wants to know who asks: check `authorization` in `storage_options`, or pass it"
            }
            _ => {
                "access to it is granted by its URL, where a signature may have expired, or by `authorization` in \
                 `storage_options`"
            }
        }
    } else {
        "check the credentials in the environment or `storage_options`"
    }
}

fn of_range(range: Option<&Range<u64>>) -> String {
    range.map_or(String::new(), |range| format!("bytes {}..{} of ", range.start, range.end))
}

fn of_column(column: Option<&str>) -> String {
    column.map_or(String::new(), |column| format!("column `{column}` in "))
}

/// Returns whether an error is what the system says of a file that does not exist.
fn is_absence(cause: &(dyn std::error::Error + 'static)) -> bool {
    let of_system = cause.downcast_ref::<std::io::Error>().filter(|error| error.raw_os_error().is_some());
    of_system.is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Returns a library's message without the kinds of errors that it puts before it.
fn said(error: &impl Display) -> String {
    without_kinds(&error.to_string()).to_owned()
}

/// Returns `text`, what a library says of an error, without the kinds of errors before it, often several.
pub(crate) fn without_kinds(text: &str) -> &str {
    const KINDS: [&str; 14] = [
        "Arrow error: ",
        "Arrow: ",
        "Cast error: ",
        "Compute error: ",
        "EOF: ",
        "Error during planning: ",
        "Execution error: ",
        "External error: ",
        "External: ",
        "Internal error: ",
        "Invalid argument error: ",
        "NYI: ",
        "Parquet argument error: ",
        "Parquet error: ",
    ];
    let mut rest = text;
    while let Some(left) = KINDS.iter().find_map(|kind| rest.strip_prefix(kind)) {
        rest = left;
    }
    rest
}

fn row_numbers(num_rows: u64) -> String {
    match num_rows {
        0 => "the dataset has no rows".into(),
        _ => format!("expected -{num_rows} to {} for {num_rows} rows", num_rows - 1),
    }
}

pub(crate) fn near_names(near: &[String], available: &[String], owner: &str) -> String {
    const SHOWN: usize = 20;
    if !near.is_empty() {
        return format!("; did you mean `{}`?", near.join("`, `"));
    }
    if available.is_empty() {
        return String::new();
    }
    let more = available.len().saturating_sub(SHOWN);
    let shown = available.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("; {owner} has {shown} and {more} more") } else { format!("; {owner} has {shown}") }
}

impl Error {
    /// Returns the message together with its causes, for contexts that show no error chain; without secrets.
    pub fn describe(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        if let Self::NotFound { source: Some(source), .. } = self
            && matches!(**source, object_store::Error::NotFound { .. })
        {
            // Says the same, with the path once more, and so does the system.
            cause = std::error::Error::source(&**source).filter(|cause| !is_absence(*cause));
        }
        while let Some(source) = cause {
            let said = said(&source);
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            cause = source.source();
        }
        crate::secrets::redacted(&text)
    }

    /// Returns whether an object or its store is at fault, so that other objects may still be readable.
    pub(crate) fn is_of_object(&self) -> bool {
        let is_of_store = matches!(
            self,
            Self::NotFound { .. }
                | Self::PermissionDenied { .. }
                | Self::Store { .. }
                | Self::TimedOut { .. }
                | Self::Impatient { .. }
                | Self::Read { .. }
                | Self::ShortRead { .. }
                | Self::ObjectChanged { .. }
                | Self::StaleCache { .. }
        );
        is_of_store || matches!(self, Self::NotParquet { .. } | Self::Decode { .. } | Self::Cast { .. })
    }

    /// Returns the error for a panic caught at a thread's end.
    pub(crate) fn internal(panic: &(dyn std::any::Any + Send)) -> Self {
        Self::Internal { reason: crate::panics::message(panic) }
    }

    /// Returns the error for rows that cannot be gathered into a batch.
    pub(crate) fn gather(error: &ArrowError) -> Self {
        let reason = match error {
            ArrowError::ComputeError(reason) => reason.clone(),
            error => error.to_string(),
        };
        Self::Setting { name: "batch_size", reason }
    }
}
