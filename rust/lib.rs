//! Streams training data from Parquet in object storage: SQL selection, exact order, zero copies.
//!
//! ```text
//! source ──► snapshot ──► selection ──► plan ──► stream
//! objects    footers     kept rows     order    batches
//! ```
//!
//! Stages depend on those to their left; `docs/architecture.md` names the modules that need each other. [`plan`]
//! decides the position of every row and does no IO; the stream carries out the plan within a memory limit. The Python
//! package is a thin layer over this crate.

mod batch;
mod cache;
mod cast;
pub mod config;
mod dataset;
mod decode;
pub mod display;
mod engine;
mod error;
mod features;
mod finish;
pub mod forms;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod hex;
mod image;
mod io;
pub mod ipc;
mod memory;
mod metrics;
#[cfg(test)]
mod mistakes;
mod nested;
mod notices;
mod pack;
mod panics;
pub mod parts;
mod past_caches;
pub mod plan;
mod process;
mod reader;
#[cfg(test)]
mod requests;
mod rows;
mod secrets;
mod selection;
mod snapshot;
mod source;
mod sql;
mod stream;

pub use arrow_schema::SchemaRef;

pub use crate::cast::Conversion;
pub use crate::dataset::{Answer, Dataset, Explanation, Reading, RowAccess};
pub use crate::engine::unknown_column;
pub use crate::error::{Error, Result};
pub use crate::finish::{Documents, Finish, FinishSettings, Integers, Padding, Side};
pub use crate::image::{ColorMode, Crop, ImageSettings, Layout, OnError};
pub use crate::io::Io;
pub use crate::metrics::{Counted, Metrics, Progress, Recovered, Stage};
pub use crate::notices::{Notice, take_notices};
pub use crate::pack::{Mark, PackMode, PackSettings, PackedBatch, Packer};
pub use crate::process::{OfProcess, prepare};
pub use crate::reader::{Coarse, EpochReader, OrderSettings, Refetched, Unindexed};
pub use crate::rows::RowSet;
#[doc(hidden)]
pub use crate::secrets::redacted;
pub use crate::selection::{Filter, Report, Selection, SetOperation, Shard, Subset};
pub use crate::snapshot::{
    Audience, FileRequest, FilesRequest, Fragment, OpenRequest, Opening, RowGroupRef, Snapshot, SplitFiles, plain_rows,
};
#[doc(hidden)]
pub use crate::snapshot::{Decoders, Trial};
pub use crate::source::{
    Connection, FileAnswer, FileCall, FileError, FileErrorKind, FileInfo, FileReply, FileSystem, Known, Object,
    OpenFileSystem, Store, WholeObject, bytes_of, duration, refuse_tables, set_file_systems,
};
pub use crate::sql::{
    DATAFUSION_VERSION, Function, FunctionBody, QueryStream, Request, Rows, ScalarValue, Table, scalar,
};
pub use crate::stream::{
    BatchStream, Cause, Most, OF_ANOTHER_PROCESS, Polled, Skipped, Slab, StreamOptions, StreamStats, Taken, rest,
};
