//! User-defined functions of a query.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, new_null_array};
use arrow_schema::{DataType, Field, FieldRef};
use datafusion::common::{DataFusionError, Result as PlanResult, plan_err};
use datafusion::logical_expr::type_coercion::functions::{UDFCoercionExt, fields_with_udf};
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
    arguments: Vec<DataType>,
    signature: Signature,
    returns: DataType,
    body: Arc<FunctionBody>,
}

impl Function {
    /// Returns a function on columns of the types `arguments`.
    pub fn new(name: String, arguments: Vec<DataType>, returns: DataType, body: Arc<FunctionBody>) -> Self {
        let signature = match arguments.is_empty() {
            true => Signature::nullary(Volatility::Immutable),
            false => Signature::user_defined(Volatility::Immutable),
        };
        let aliases = vec![name.to_ascii_lowercase()];
        Self { name, aliases, arguments, signature, returns, body }
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

    fn coerce_types(&self, given: &[DataType]) -> PlanResult<Vec<DataType>> {
        let taken = given.iter().enumerate().map(|(place, given)| {
            let taken = self.arguments.get(place).filter(|taken| is_alike(taken, given)).unwrap_or(given);
            Arc::new(Field::new("", taken.clone(), true))
        });
        let exact = Exact(&self.name, Signature::exact(self.arguments.clone(), Volatility::Immutable));
        match fields_with_udf(&taken.collect::<Vec<_>>(), &exact) {
            Ok(fields) => Ok(fields.iter().map(|field| field.data_type().clone()).collect()),
            Err(_) => plan_err!("it takes ({}), got ({})", listed(&self.arguments), listed(given)),
        }
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
        // What no row or only NULLs made has no type of its own.
        if *value.data_type() == DataType::Null {
            return Ok(ColumnarValue::Array(new_null_array(&self.returns, num_rows)));
        }
        if *value.data_type() != self.returns {
            let reason = format!("it returned values of type {}, expected {}", value.data_type(), self.returns);
            return Err(self.failed(reason));
        }
        Ok(ColumnarValue::Array(value))
    }
}

/// The arguments of a function, for which the engine converts what it converts for its own.
struct Exact<'a>(&'a str, Signature);

impl UDFCoercionExt for Exact<'_> {
    fn name(&self) -> &str {
        self.0
    }

    fn signature(&self) -> &Signature {
        &self.1
    }

    fn coerce_types(&self, _: &[DataType]) -> PlanResult<Vec<DataType>> {
        plan_err!("it takes exactly its types")
    }
}

/// Returns whether two types differ at most in what the items of lists, or the entries of maps, are called.
fn is_alike(one: &DataType, other: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List, Map, Struct};
    let alike = |one: &Field, other: &Field| is_alike(one.data_type(), other.data_type());
    match (one, other) {
        (List(one), List(other)) | (LargeList(one), LargeList(other)) => alike(one, other),
        (FixedSizeList(one, len), FixedSizeList(other, of_other)) => len == of_other && alike(one, other),
        (Map(one, is_sorted), Map(other, of_other)) if is_sorted == of_other => {
            match (one.data_type(), other.data_type()) {
                (Struct(one), Struct(other)) => {
                    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
                }
                _ => false,
            }
        }
        (Struct(one), Struct(other)) => {
            let is_same = |(one, other): (&FieldRef, &FieldRef)| one.name() == other.name() && alike(one, other);
            one.len() == other.len() && one.iter().zip(other).all(is_same)
        }
        _ => one == other,
    }
}

fn listed(types: &[DataType]) -> String {
    types.iter().map(DataType::to_string).collect::<Vec<_>>().join(", ")
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
