//! Corrects plans of whole queries where the engine would answer something else than SQL says, or nothing.
//!
//! [`aggregates`] are made exact, over frames that move by [`sliding`]. [`keys`], [`key_columns`] and [`windows`] are
//! orders that the engine refuses, [`ties`] those that it leaves open, [`firsts`] first rows that do not fit in memory,
//! [`views`] rows whose memory it counts many times. [`correlated`] refuses subqueries that it gets wrong; [`totals`] are
//! some of these that it need not, [`compared`] is what these compare, [`missing`] are those without rows, [`membership`]
//! those of `IN`. [`named_casts`] are columns that it gives one name, [`as_written`] those that a query does not name.
//!
//! What filters need as well is corrected by [`engine`](crate::engine).

mod aggregates;
mod as_written;
mod compared;
pub(super) mod correlated;
mod firsts;
mod key_columns;
mod keys;
mod membership;
mod missing;
pub(super) mod named_casts;
mod sliding;
mod ties;
mod totals;
mod views;
mod windows;

pub(super) use self::aggregates::{exact_aggregates, with_wide_means};
pub(super) use self::as_written::Columns;
pub(super) use self::compared::with_compared_columns;
pub(super) use self::firsts::with_large_firsts_sorted;
pub(super) use self::key_columns::KeyColumns;
pub(super) use self::keys::{OrderedOnce, distinct_once};
pub(super) use self::membership::with_unknown_members;
pub(super) use self::ties::with_closed_sorts;
pub(super) use self::totals::with_plain_totals;
pub(super) use self::views::with_views_copied;
pub(super) use self::windows::framed_by_peers;
