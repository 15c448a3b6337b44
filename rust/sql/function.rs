//! User-defined functions of a query.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use datafusion::common::{DataFusionError, Result as PlanResult};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use crate::error::Error;

/// The body of a function: takes arrays of its arguments, all of one length, and returns an array of that length, or
/// why it fails.
pub type FunctionBody = dyn Fn(&[ArrayRef], usize) -> Result<ArrayRef, String> + Send + Sync;

/// A pure function of a row: equal arguments give equal values.
#[derive(Clone)]
pub struct Function {
    name: String,
    /// The name as normalized by the planner if it is not quoted.
    aliases: Vec<String>,
    signature: Signature,
    returns: DataType,
    body: Arc<FunctionBody>,
}

impl Function {
    /// Returns a function on columns of the types `arguments`.
    pub fn new(name: String, arguments: Vec<DataType>, returns: DataType, body: Arc<FunctionBody>) -> Self {
        let signature = match arguments.is_empty() {
            true => Signature::nullary(Volatility::Immutable),
            false => Signature::exact(arguments, Volatility::Immutable),
        };
        let aliases = vec![name.to_ascii_lowercase()];
        Self { name, aliases, signature, returns, body }
    }

    /// Returns the name by which queries call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn to_udf(&self) -> Arc<ScalarUDF> {
        Arc::new(ScalarUDF::new_from_impl(self.clone()))
    }

    fn failed(&self, reason: String) -> DataFusionError {
        DataFusionError::External(Box::new(Error::Function { name: self.name.clone(), reason }))
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        &self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let num_rows = arguments.number_rows;
        let arrays = ColumnarValue::values_to_arrays(&arguments.args)?;
        // If all arguments are constants, arrays have one row.
        let arrays = arrays.into_iter().map(|array| match array.len() == num_rows {
            true => Ok(array),
            false => ColumnarValue::Array(array).into_array(num_rows),
        });
        let arrays = arrays.collect::<PlanResult<Vec<_>>>()?;
        let value = (self.body)(&arrays, num_rows).map_err(|reason| self.failed(reason))?;
        if value.len() != num_rows {
            return Err(self.failed(format!("it returned {} values for {num_rows} rows", value.len())));
        }
        if *value.data_type() != self.returns {
            let reason = format!("it returned values of type {}, expected {}", value.data_type(), self.returns);
            return Err(self.failed(reason));
        }
        Ok(ColumnarValue::Array(value))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.body, &other.body)
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
