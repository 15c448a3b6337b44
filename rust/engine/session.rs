//! The session whose functions and rules filters and queries share.

use std::sync::{Arc, OnceLock};

use datafusion::common::config::ConfigOptions;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::prelude::SessionConfig;

use super::operators::{Operators, Types};
use super::{any, casts, distant, get_field, rules, vector};

/// Nesting depth at which the parser gives up; far above what people write, and far below the stack's limit.
const MAX_NESTING: &str = "300";

/// Returns the session whose functions and rules filters use.
pub(crate) fn session() -> &'static SessionState {
    static SESSION: OnceLock<SessionState> = OnceLock::new();
    SESSION.get_or_init(|| {
        let mut options = ConfigOptions::new();
        options.sql_parser.enable_ident_normalization = false;
        options.sql_parser.map_string_types_to_utf8view = false;
        options.sql_parser.collect_spans = true;
        // It takes every NaN for another group.
        options.optimizer.enable_topk_aggregation = false;
        // It compares whether `x IS TRUE` may be NULL, which plans before and after it say differently.
        options.execution.skip_physical_aggregate_schema_check = true;
        let mut config = SessionConfig::from(options);
        config = config.set_str("datafusion.sql_parser.recursion_limit", MAX_NESTING);
        // The first is asked first.
        let builder = SessionStateBuilder::new().with_expr_planners(vec![Arc::new(get_field::Fields)]);
        let builder = builder.with_config(config).with_default_features();
        let builder = builder.with_optimizer_rules(rules::logical()).with_physical_optimizer_rules(rules::physical());
        let mut state = builder.with_type_planner(Arc::new(Types)).build();
        let own = [Arc::clone(casts::function()), Arc::clone(get_field::function()), any::function()];
        let own = own.into_iter().chain(distant::functions());
        for function in vector::functions().iter().cloned().chain(own) {
            // Nothing can fail, as a session takes functions.
            drop(state.register_udf(function));
        }
        // It is added to a list, which cannot fail.
        drop(state.register_expr_planner(Arc::new(Operators)));
        state
    })
}
