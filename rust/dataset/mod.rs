//! What a dataset consists of when it is opened: objects, their footers, one schema.

mod cost;
mod find;
mod fingerprint;
mod footer;
mod fragment;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod inner;
mod kept;
mod manifest;
mod open;
mod own_column;
mod pack;
mod packed;
mod page_bounds;
mod parquet_columns;
mod partition;
mod ranges;
mod row_group;
mod schema;
mod snapshot;
#[cfg(test)]
mod tests;
pub(crate) mod thrift;
mod trial;
mod types;
mod zones;

pub(crate) use self::cost::{ColumnLayout, ReadCost};
pub use self::find::{FileRequest, FilesRequest, OpenRequest, SplitFiles};
pub use self::fragment::Fragment;
pub(crate) use self::fragment::levels_of;
pub use self::manifest::Audience;
pub(crate) use self::page_bounds::PageBounds;
pub(crate) use self::parquet_columns::FetchedRanges;
pub(crate) use self::partition::Constant;
pub use self::row_group::Decoders;
pub(crate) use self::row_group::{Coded, ColumnReader, Decoded, RowGroupRead, Storing};
pub(crate) use self::schema::field_of;
pub use self::snapshot::{Opening, RowGroupRef, Snapshot};
pub use self::trial::Trial;
pub use self::types::plain_rows;
pub(crate) use self::types::plain_type;
