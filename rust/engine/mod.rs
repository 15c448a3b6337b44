//! The engine, DataFusion, as filters and whole queries use it: one session, with SQL's own semantics where the engine's
//! differ.
//!
//! **Text.** [`parser`] parses it, [`passed_over`] finds clauses that would be ignored, [`depth`] refuses what nests too
//! deep for a thread's stack, [`parameters`] and [`labels`] replace what stands for a value. [`digest`] is by what values
//! and tables are known.
//!
//! **Types.** [`operators`] are expressions that need a type before they have values, [`any`] is `= ANY`. What is
//! compared with [`literals`] is compared with the number that is written ([`digits`]), with [`moments`] in the unit of
//! the column; [`choices`] of times and [`printed`] lists are typed likewise.
//!
//! **Values.** [`numbers`] do not wrap around, [`floats`] have one NaN and one zero ([`canonical`]), [`distant`] times are
//! computed. [`casts`] and [`vector`] are functions of our own, and so is [`get_field`].
//!
//! **Rules.** [`constants`] are computed before, [`apart`] and [`lists`] is what the simplifier must not see, [`rules`]
//! are those of optimization, [`keyed`] and [`fence`] what they may know. [`nulls`] finds what may be NULL, [`walk`] walks
//! over all of it.
//!
//! **Messages.** [`reason`] makes sentences of the engine's errors, [`unknown`] and [`fields`] say what there is instead
//! of what is not, [`advice`] what to write.

pub(crate) mod advice;
pub(crate) mod any;
pub(crate) mod apart;
mod canonical;
mod casts;
mod choices;
pub(crate) mod constants;
mod depth;
pub(crate) mod digest;
mod digits;
mod distant;
mod fence;
pub(crate) mod fields;
pub(crate) mod floats;
mod get_field;
pub(crate) mod keyed;
pub(crate) mod labels;
pub(crate) mod lists;
pub(crate) mod literals;
pub(crate) mod moments;
pub(crate) mod nulls;
pub(crate) mod numbers;
pub(crate) mod operators;
pub(crate) mod parameters;
pub(crate) mod parser;
pub(crate) mod passed_over;
mod printed;
mod reason;
mod rules;
mod session;
pub(crate) mod unknown;
mod vector;
pub(crate) mod walk;

pub(crate) use self::depth::{all_of, balance, is_long_chain, nests_too_deep, too_deep, with_large_stack};
pub(crate) use self::reason::{explain, no_parameter, reason, refused, shortened};
pub(crate) use self::session::session;
pub use self::unknown::unknown_column;
