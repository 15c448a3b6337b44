//! `forebay._lib.Selection`: which rows of which snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay::{Error, Io, Progress, SetOperation, Subset, WholeObject};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::error::to_py;
use crate::runtime::wait;

/// A standalone, immutable selection.
#[pyclass(name = "Selection", module = "forebay._lib", frozen)]
pub(crate) struct PySelection {
    subset: Subset,
}

impl PySelection {
    pub(crate) fn new(subset: Subset) -> Self {
        Self { subset }
    }

    pub(crate) fn subset(&self) -> &Subset {
        &self.subset
    }
}

#[pymethods]
impl PySelection {
    #[getter]
    fn num_rows(&self) -> u64 {
        self.subset.num_rows()
    }

    /// Number of rows in the objects, kept or not.
    #[getter]
    fn num_rows_total(&self) -> u64 {
        self.subset.num_rows_total()
    }

    #[getter]
    fn num_bytes(&self) -> usize {
        self.subset.memory_bytes()
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.subset.fingerprint()
    }

    /// The filters that made it, if nothing else did.
    #[getter]
    fn query(&self) -> Option<Vec<String>> {
        self.subset.query().map(<[String]>::to_vec)
    }

    /// For a shard: its number, and the number of shards.
    #[getter]
    fn part(&self) -> Option<(u32, u32)> {
        self.subset.shard().map(|shard| (shard.index, shard.num_shards))
    }

    fn equals(&self, other: &Self) -> bool {
        self.subset == other.subset
    }

    #[pyo3(name = "and_")]
    fn and(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        self.combine(py, other, SetOperation::And)
    }

    #[pyo3(name = "or_")]
    fn or(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        self.combine(py, other, SetOperation::Or)
    }

    fn minus(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        self.combine(py, other, SetOperation::Minus)
    }

    fn xor(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        self.combine(py, other, SetOperation::Xor)
    }

    fn sample(&self, py: Python<'_>, n: u64, seed: u64) -> PyResult<Self> {
        py.detach(|| self.subset.sample(n, seed)).map(Self::new).map_err(|error| to_py(&error))
    }

    fn split(&self, py: Python<'_>, fractions: Vec<f64>, seed: u64) -> PyResult<Vec<Self>> {
        let parts = py.detach(|| self.subset.split(&fractions, seed)).map_err(|error| to_py(&error))?;
        Ok(parts.into_iter().map(Self::new).collect())
    }

    #[staticmethod]
    fn merge(py: Python<'_>, parts: Vec<Py<Self>>) -> PyResult<Self> {
        let parts: Vec<Subset> = parts.iter().map(|part| part.get().subset.clone()).collect();
        py.detach(|| Subset::merge(&parts)).map(Self::new).map_err(|error| to_py(&error))
    }

    fn save(&self, py: Python<'_>, uri: &str, storage_options: BTreeMap<String, String>) -> PyResult<()> {
        // Connecting initializes process-wide state, which a fork must not find half done: keep the GIL.
        let object = WholeObject::connect(uri, &storage_options).map_err(|error| to_py(&error))?;
        let io = Io::current().map_err(|error| to_py(&error))?;
        let bytes = py.detach(|| self.subset.to_bytes());
        wait(py, &io, &Arc::new(Progress::default()), None, async move { object.write(bytes).await })
    }

    #[staticmethod]
    fn load(py: Python<'_>, uri: &str, storage_options: BTreeMap<String, String>) -> PyResult<Self> {
        let object = WholeObject::connect(uri, &storage_options).map_err(|error| to_py(&error))?;
        let io = Io::current().map_err(|error| to_py(&error))?;
        let url = object.url();
        let bytes = wait(py, &io, &Arc::new(Progress::default()), None, async move { object.read().await })?;
        py.detach(|| Subset::from_bytes(&bytes, &url)).map(Self::new).map_err(|error| to_py(&error))
    }

    /// Restores what `__reduce__` wrote.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        py.detach(|| Subset::from_bytes(bytes, "pickled bytes")).map(Self::new).map_err(|error| to_py(&error))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let bytes = py.detach(|| self.subset.to_bytes());
        let arguments = (PyBytes::new(py, &bytes),).into_pyobject(py)?;
        Ok((py.get_type::<Self>().getattr("from_bytes")?, arguments))
    }
}

impl PySelection {
    fn combine(&self, py: Python<'_>, other: &Self, operation: SetOperation) -> PyResult<Self> {
        let combine = || -> Result<Subset, Error> { self.subset.combine(&other.subset, operation) };
        py.detach(combine).map(Self::new).map_err(|error| to_py(&error))
    }
}
