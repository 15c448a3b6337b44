//! Explanations and counters as Python dicts.

use std::time::Duration;

use forebay::{Counted, Explanation, Known};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns the facts for `Dataset.explain`. Unknown ones are left out.
pub(crate) fn explanation_dict<'py>(py: Python<'py>, facts: &Explanation) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("objects", facts.num_objects)?;
    dict.set_item("rows_total", facts.num_rows)?;
    dict.set_item("rows_kept", facts.num_kept)?;
    dict.set_item("row_groups_total", facts.num_row_groups)?;
    dict.set_item("row_groups_whole", facts.num_whole)?;
    dict.set_item("row_groups_partial", facts.num_partial)?;
    let selection = &facts.selection;
    if let Some(num_empty) = facts.num_empty() {
        dict.set_item("row_groups_pruned", selection.num_pruned)?;
        dict.set_item("row_groups_pruned_by_bloom", selection.num_pruned_by_bloom)?;
        dict.set_item("pages_judged", selection.num_pages)?;
        dict.set_item("pages_pruned", selection.num_pages_pruned)?;
        dict.set_item("row_groups_read", selection.num_read)?;
        dict.set_item("row_groups_empty", num_empty)?;
    }
    dict.set_item("selection_bytes", selection.bytes)?;
    dict.set_item("selection_requests", selection.requests)?;
    dict.set_item("selection_cached", u64::from(selection.is_cached))?;
    dict.set_item("row_groups_outside", selection.num_outside)?;
    dict.set_item("payload_bytes", facts.payload_bytes)?;
    dict.set_item("payload_bytes_fetched", facts.payload_fetched)?;
    dict.set_item("payload_requests", facts.payload_requests)?;
    dict.set_item("depth", facts.depth())?;
    dict.set_item("stages", stages_dict(py, facts)?)?;
    dict.set_item("seconds", seconds_dict(py, facts)?)?;
    let stores = PyDict::new(py);
    for (url, known) in &facts.stores {
        if let Some(known) = known {
            stores.set_item(url, known_dict(py, known)?)?;
        }
    }
    dict.set_item("stores", stores)?;
    Ok(dict)
}

/// Returns the requests of each stage that made any.
fn stages_dict<'py>(py: Python<'py>, facts: &Explanation) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let stages = [
        ("footers", &facts.opening.footers),
        ("indexes", &facts.selection.indexes),
        ("predicates", &facts.selection.predicates),
    ];
    for (name, counted) in stages {
        if counted.requests > 0 {
            dict.set_item(name, counted_dict(py, counted)?)?;
        }
    }
    Ok(dict)
}

fn seconds_dict<'py>(py: Python<'py>, facts: &Explanation) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    if let Some(listing) = facts.opening.listing {
        dict.set_item("listing", listing.as_secs_f64())?;
    }
    dict.set_item("opening", facts.opening.elapsed.as_secs_f64())?;
    if let Some(pruning) = facts.selection.pruning {
        dict.set_item("pruning", pruning.as_secs_f64())?;
    }
    if let Some(elapsed) = facts.selection.elapsed {
        dict.set_item("selection", elapsed.as_secs_f64())?;
    }
    dict.set_item("planning", facts.planning.as_secs_f64())?;
    Ok(dict)
}

/// Returns request counts.
fn counted_dict<'py>(py: Python<'py>, counted: &Counted) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("requests", counted.requests)?;
    dict.set_item("bytes_wanted", counted.bytes_wanted)?;
    dict.set_item("bytes_fetched", counted.bytes_fetched)?;
    dict.set_item("retries", counted.recovered.retries())?;
    dict.set_item("depth", counted.depth)?;
    dict.set_item("seconds", counted.busy.as_secs_f64())?;
    Ok(dict)
}

fn known_dict<'py>(py: Python<'py>, known: &Known) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    if known.is_file_system {
        dict.set_item("adapter", "fsspec")?;
    }
    dict.set_item("concurrency", known.concurrency)?;
    dict.set_item("gap_bytes", known.gap_bytes)?;
    if let Some(first_byte) = known.first_byte.as_ref().map(Duration::as_secs_f64) {
        dict.set_item("seconds_to_first_byte", first_byte)?;
    }
    if let Some(bytes_per_second) = known.bytes_per_second {
        dict.set_item("bytes_per_second", bytes_per_second)?;
    }
    Ok(dict)
}
