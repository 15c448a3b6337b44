//! What a dataset is made of when it is opened: objects, their footers, one schema.

mod fingerprint;
mod footer;
mod fragment;
mod row_group;
mod schema;
mod snapshot;
#[cfg(test)]
mod tests;
mod thrift;

pub use self::fragment::Fragment;
pub(crate) use self::row_group::RowGroupRead;
pub use self::snapshot::{OpenRequest, RowGroupRef, Snapshot};
