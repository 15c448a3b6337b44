//! What a dataset consists of when it is opened: objects, their footers, one schema; and how their rows are read.
//!
//! [`find`] finds the objects, and [`open`] their footers: in a [`manifest`], in the cache on disk ([`pack`]), both of
//! which store them [`packed`], or with [`footer`], one request each. [`thrift`] checks their claims before they are
//! parsed; column indexes and bloom filters that come along are [`kept`]. Each object is then a [`fragment`]; its
//! [`types`] are derived once per schema, with the [`zones`] of timestamps. [`schema`] unifies them, [`inner`] makes
//! columns of the fields of structs and [`partition`] of the names of folders. A [`snapshot`] holds all of this, and a
//! [`fingerprint`] identifies it.
//!
//! [`cost`] estimates what reading a row group takes, [`ranges`] computes the bytes of rows, and [`page_bounds`] reads
//! the bounds of pages. [`row_group`] reads rows: columns that [`decode`](crate::decode) supports by [`own_column`],
//! the others by [`parquet_columns`]. [`trial`] decodes objects in memory, to compare the two.

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
