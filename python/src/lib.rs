//! The Python extension of Forebay: converts arguments, calls the core, converts results.
//!
//! ```text
//! dataset, selection, sql, weights    what is read: rows and columns, queries, weights of rows
//! reader, stream, packer              epochs, their batches, documents packed into sequences
//! batch, objects                      batches through the Arrow C interface, and as Python objects
//! forms, tensor, dlpack               batches as tensors of any library
//! parcel, block                       batches for other processes
//! explain, error                      explanations, counters and errors
//! file_system, datafusion             file systems of `fsspec`; datasets as tables of the package `datafusion`
//! runtime, exit                       waiting without the GIL; the end of Python
//! alloc, small, kept                  the allocator, and freed memory that is used again
//! ```

#[cfg(target_os = "linux")]
mod alloc;
mod batch;
mod block;
mod datafusion;
mod dataset;
mod dlpack;
mod error;
mod exit;
mod explain;
mod file_system;
mod forms;
#[cfg(target_os = "linux")]
mod kept;
mod objects;
mod packer;
mod parcel;
mod reader;
mod runtime;
mod selection;
#[cfg(target_os = "linux")]
mod small;
mod sql;
mod stream;
mod tensor;
mod weights;

use pyo3::prelude::*;

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: alloc::LargeBlocks = alloc::LargeBlocks;

/// Registers the classes and functions of `forebay._lib`.
#[pymodule]
fn _lib(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // The import keeps the GIL, so no thread forks meanwhile.
    forebay::prepare();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DATAFUSION_VERSION", forebay::DATAFUSION_VERSION)?;
    exit::register(module)?;
    file_system::register();
    module.add_class::<file_system::PyReply>()?;
    module.add_class::<dataset::PyDataset>()?;
    module.add_class::<reader::PyReader>()?;
    module.add_class::<weights::PyWeights>()?;
    module.add_class::<selection::PySelection>()?;
    module.add_class::<stream::PyStream>()?;
    module.add_class::<sql::PyTable>()?;
    module.add_class::<sql::PyFunction>()?;
    module.add_class::<sql::PyRows>()?;
    module.add_class::<batch::PyBatch>()?;
    module.add_class::<batch::PyColumn>()?;
    module.add_class::<block::PyParts>()?;
    module.add_class::<forms::PyForms>()?;
    module.add_class::<tensor::PyTensor>()?;
    module.add_class::<packer::PyPacker>()?;
    module.add_class::<packer::PyPackedBatch>()?;
    module.add_function(wrap_pyfunction!(dataset::refuse_tables, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::save_manifest, module)?)?;
    module.add_function(wrap_pyfunction!(error::redacted, module)?)?;
    module.add_function(wrap_pyfunction!(parcel::address_of, module)?)?;
    module.add_function(wrap_pyfunction!(tensor::tensor_over, module)?)?;
    module.add_function(wrap_pyfunction!(reader::bytes_of, module)?)?;
    module.add_function(wrap_pyfunction!(reader::seconds_of, module)?)?;
    module.add_function(wrap_pyfunction!(reader::plan_order, module)?)
}
