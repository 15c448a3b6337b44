//! A dataset as a table of the Python package `datafusion`: a capsule of DataFusion's foreign function interface.
//!
//! Filters arrive serialized, with functions given by name. What a name means is up to the session, and users may
//! register names of their own; so functions other than nested field access are left to the engine. This also makes the
//! table independent of the session: it works in several, and outlives the one it was first registered with.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, not_impl_err};
use datafusion::execution::{SessionStateDefaults, TaskContext, TaskContextProvider};
use datafusion::functions::core::get_field;
use datafusion::logical_expr::{
    ColumnarValue, Extension, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionConfig;
use datafusion_ffi::execution::FFI_TaskContextProvider;
use datafusion_ffi::table_provider::FFI_TableProvider;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Returns a capsule of a table that `datafusion` can read.
pub(crate) fn table_capsule<'py>(py: Python<'py>, provider: Arc<dyn TableProvider>) -> PyResult<Bound<'py, PyCapsule>> {
    // Initialized once, with the GIL held, so that no fork finds it half done.
    static FUNCTIONS: LazyLock<Arc<Functions>> = LazyLock::new(|| Arc::new(Functions::new()));
    // Tables hold only a weak reference.
    let functions: Arc<dyn TaskContextProvider> = Arc::clone(&FUNCTIONS) as _;
    let functions = FFI_TaskContextProvider::from(&functions);
    let table = FFI_TableProvider::new(provider, true, None, functions, Some(Arc::new(Codec)));
    PyCapsule::new_with_value(py, table, c"datafusion_table_provider")
}

/// The functions that the engine's filters may name.
struct Functions(Arc<TaskContext>);

impl Functions {
    fn new() -> Self {
        let get_field = get_field();
        let named = HashMap::from([(get_field.name().to_owned(), get_field)]);
        // Only so that filters with lambdas can be decoded, and refused.
        let with_lambdas = SessionStateDefaults::default_higher_order_functions();
        let with_lambdas = with_lambdas.into_iter().map(|function| (function.name().to_owned(), function));
        let context = TaskContext::new(
            None,
            "forebay".to_owned(),
            SessionConfig::new(),
            named,
            with_lambdas.collect(),
            HashMap::new(),
            HashMap::new(),
            Arc::default(),
        );
        Self(Arc::new(context))
    }
}

impl TaskContextProvider for Functions {
    fn task_ctx(&self) -> Arc<TaskContext> {
        Arc::clone(&self.0)
    }
}

/// Decodes the engine's filters; nothing else is passed across.
#[derive(Debug)]
struct Codec;

impl LogicalExtensionCodec for Codec {
    fn try_decode(&self, _: &[u8], _: &[LogicalPlan], _: &TaskContext) -> Result<Extension> {
        not_impl_err!("a plan does not pass to Forebay")
    }

    fn try_encode(&self, _: &Extension, _: &mut Vec<u8>) -> Result<()> {
        not_impl_err!("a plan does not pass to Forebay")
    }

    fn try_decode_table_provider(
        &self,
        _: &[u8],
        _: &TableReference,
        _: SchemaRef,
        _: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        not_impl_err!("a table of Forebay cannot be made from a serialised plan; register the dataset")
    }

    fn try_encode_table_provider(&self, _: &TableReference, _: Arc<dyn TableProvider>, _: &mut Vec<u8>) -> Result<()> {
        not_impl_err!("a table of Forebay cannot be serialised with a plan; register the dataset where the plan is run")
    }

    fn try_decode_udf(&self, name: &str, _: &[u8]) -> Result<Arc<ScalarUDF>> {
        let signature = Signature::variadic_any(Volatility::Volatile);
        Ok(Arc::new(ScalarUDF::new_from_impl(OfTheEngine { name: name.to_owned(), signature })))
    }
}

/// A function that only the engine knows. It is declared volatile, so it is not evaluated here.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OfTheEngine {
    name: String,
    signature: Signature,
}

impl ScalarUDFImpl for OfTheEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        not_impl_err!("`{}` is a function of the engine", self.name)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        not_impl_err!("`{}` is a function of the engine", self.name)
    }
}
