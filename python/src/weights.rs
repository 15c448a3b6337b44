//! `forebay._lib.Weights`: the weights of rows for epochs that are drawn from them.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, RecordBatch};
use forebay::Error;
use forebay::plan::Weights;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::batch::PyBatch;
use crate::error::to_py;

/// The cumulative weights of all kept rows, and the number of draws.
#[pyclass(name = "Weights", module = "forebay._lib", frozen)]
pub(crate) struct PyWeights {
    pub(crate) weights: Arc<Weights>,
}

#[pymethods]
impl PyWeights {
    /// Makes weights from batches of all rows in dataset order, with one float64 column.
    #[new]
    fn new(py: Python<'_>, batches: Vec<PyRef<'_, PyBatch>>, num_draws: u32) -> PyResult<Self> {
        let batches: Vec<RecordBatch> = batches.iter().map(|batch| batch.batch().clone()).collect();
        let made = py.detach(|| add_up(&batches, num_draws));
        let refused = |reason| to_py(&Error::Setting { name: "weights", reason });
        Ok(Self { weights: Arc::new(made.map_err(refused)?) })
    }

    /// Restores what `__reduce__` wrote.
    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        let weights = Weights::from_bytes(bytes);
        let damaged = || to_py(&Error::Setting { name: "weights", reason: "pickled bytes are cut off".into() });
        Ok(Self { weights: Arc::new(weights.ok_or_else(damaged)?) })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let arguments = (PyBytes::new(py, &self.weights.to_bytes()),).into_pyobject(py)?;
        Ok((py.get_type::<Self>().getattr("from_bytes")?, arguments))
    }
}

fn add_up(batches: &[RecordBatch], num_draws: u32) -> Result<Weights, String> {
    let (mut num_rows, mut values) = (0, Vec::new());
    for batch in batches {
        let column = batch.columns().first().and_then(|column| column.as_primitive_opt::<Float64Type>());
        let column = column.ok_or("expected one column of float64")?;
        if let Some(row) = (0..column.len()).find(|&row| column.is_null(row)) {
            return Err(format!(
                "row {} has the weight NULL; expected a finite number of 0 or more; `coalesce(x, 0)` is 0 for NULL",
                num_rows + row
            ));
        }
        num_rows += column.len();
        values.push(column.values());
    }
    Weights::try_new(values.into_iter().flatten().copied(), num_draws)
}
