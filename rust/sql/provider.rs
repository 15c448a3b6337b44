//! A dataset as a table for another engine: DataFusion in another library, or in a program that uses this crate.
//!
//! The engine plans, and requests columns, rows and how many of them; reading happens on our own threads, so it does
//! not matter which runtime or library polls. Dropping a stream ends its work.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{DFSchema, DataFusionError, Result as PlanResult, Statistics};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use super::leaf::{Leaf, Scan};
use super::plan;
use super::scan::{self, Scanning};
use super::table::DatasetTable;
use crate::config;
use crate::dataset::Dataset;
use crate::engine::walk::Walk;
use crate::engine::{self, apart, floats};
use crate::error::{Error, Result};
use crate::io::Io;
use crate::panics;
use crate::process::OfProcess;
use crate::selection::Filter;
use crate::stream::OF_ANOTHER_PROCESS;

/// Number of batches that wait for the engine.
const READY_BATCHES: usize = 2;

/// The DataFusion version of [`Dataset::table_provider`].
pub const DATAFUSION_VERSION: &str = datafusion::DATAFUSION_VERSION;

/// A dataset as a table that any session may read.
#[derive(Debug)]
struct SharedTable {
    dataset: Dataset,
    table: DatasetTable,
}

impl Dataset {
    /// Returns the dataset as a DataFusion table, for DataFusion [`DATAFUSION_VERSION`].
    ///
    /// Its rows come in dataset order, read as far as a query needs them: columns, limits and filters on the row's own
    /// columns are pushed down, and the number of rows is exact if it is known. Filters of the dataset itself are
    /// evaluated when the table is first read, if that has not been done.
    pub fn table_provider(&self) -> Arc<dyn TableProvider> {
        Arc::new(SharedTable { dataset: self.clone(), table: DatasetTable::new(self, false) })
    }
}

impl SharedTable {
    /// Returns the engine's filters as the dataset's; `None` for one that the engine has to evaluate itself.
    fn filters(&self, exprs: &[&Expr]) -> Vec<Option<Filter>> {
        let made = || Ok(exprs.iter().map(|expr| self.filter(expr)).collect());
        // The engine's threads have ordinary stacks.
        engine::with_large_stack("", made).unwrap_or_else(|_| vec![None; exprs.len()])
    }

    fn filter(&self, expr: &Expr) -> Option<Filter> {
        if engine::nests_too_deep(expr).is_some() || !is_plain(expr) {
            return None;
        }
        let snapshot = self.dataset.snapshot();
        let exact = || {
            let schema = DFSchema::try_from(Arc::clone(&snapshot.schema))?;
            let Some(pushed) = self.table.pushed_down(&engine::balance(expr.clone())?)? else { return Ok(None) };
            floats::with_canonical_floats(apart::keep_cases(pushed)?, &schema).map(Some)
        };
        let exact: PlanResult<Option<Expr>> = exact();
        Filter::try_from_expr(expr.to_string(), plan::simple(exact.ok()??, snapshot), snapshot).ok()
    }
}

/// Returns whether an expression only has constructs that our own filters have.
fn is_plain(expr: &Expr) -> bool {
    let is_foreign = expr.exists(|node| {
        Ok(matches!(
            node,
            Expr::HigherOrderFunction(_)
                | Expr::Lambda(_)
                | Expr::LambdaVariable(_)
                | Expr::Placeholder(_)
                | Expr::ScalarVariable(..)
                | Expr::SetComparison(_)
                | Expr::GroupingSet(_)
        ))
    });
    is_foreign.is_ok_and(|is_foreign| !is_foreign)
}

#[async_trait]
impl TableProvider for SharedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.dataset.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(statistics(&self.dataset, None))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> PlanResult<Vec<TableProviderFilterPushDown>> {
        let support = |filter: Option<Filter>| match filter {
            Some(_) => TableProviderFilterPushDown::Exact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        caught(|| Ok(self.filters(filters).into_iter().map(support).collect()))
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        caught(|| {
            let kept = self.filters(&filters.iter().collect::<Vec<_>>());
            let filters = kept.into_iter().zip(filters).map(|(kept, filter)| {
                let refused =
                    || DataFusionError::Internal(format!("the filter `{filter}` is not one of the dataset's"));
                kept.ok_or_else(refused)
            });
            let filters = filters.collect::<PlanResult<Vec<_>>>()?;
            let mut dataset = self.dataset.with_filters(filters);
            if let Some(columns) = projection {
                dataset = dataset.project(columns);
            }
            let scan: Arc<dyn ExecutionPlan> = Arc::new(Scan::new(Shared { dataset, limit }));
            Ok(scan)
        })
    }
}

/// Returns what is known about the rows of `dataset`, of which the first `limit` are read.
fn statistics(dataset: &Dataset, limit: Option<usize>) -> Statistics {
    let narrow = |num_rows: u64| usize::try_from(num_rows).unwrap_or(usize::MAX).min(limit.unwrap_or(usize::MAX));
    let num_rows = match dataset.known_answer() {
        Some(answer) => Precision::Exact(narrow(answer.num_rows())),
        None => Precision::Inexact(narrow(dataset.snapshot().num_rows)),
    };
    Statistics::new_unknown(dataset.schema()).with_num_rows(num_rows)
}

/// Some columns and rows of a dataset, for another engine.
#[derive(Debug)]
struct Shared {
    dataset: Dataset,
    limit: Option<usize>,
}

impl Leaf for Shared {
    const NAME: &'static str = "ForebayScan";

    fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    fn schema(&self) -> &SchemaRef {
        self.dataset.schema()
    }

    fn note(&self) -> String {
        self.limit.map_or_else(String::new, |limit| format!(", first {limit}"))
    }

    fn statistics(&self) -> Statistics {
        statistics(&self.dataset, self.limit)
    }

    fn batches(&self, _: &TaskContext) -> PlanResult<BoxStream<'static, PlanResult<RecordBatch>>> {
        let (dataset, limit) = (self.dataset.clone(), self.limit);
        // Nothing starts before the first batch is requested: the engine may read another table first.
        let batches = stream::once(async move { Reading::start(dataset, limit) }).try_flatten();
        Ok(batches.map_err(|error| DataFusionError::External(Box::new(Told(error)))).boxed())
    }
}

/// The batches of one scan, produced by our own threads.
struct Reading(OfProcess<Running>);

/// What produces the batches.
struct Running {
    batches: Receiver<Result<RecordBatch>>,
    task: JoinHandle<()>,
    /// Ends the threads.
    _io: Io,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reading {
    fn start(dataset: Dataset, limit: Option<usize>) -> Result<Self> {
        let io = Io::for_scan()?;
        let (sender, batches) = channel(READY_BATCHES);
        let task = io.spawn(async move {
            let delivered = AssertUnwindSafe(deliver(dataset, limit, &sender)).catch_unwind().await;
            let failed = match delivered {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(panic) => Error::internal(panic.as_ref()),
            };
            // If the reader is gone, nobody needs the error.
            drop(sender.send(Err(failed)).await);
        });
        Ok(Self(OfProcess::new(Running { batches, task, _io: io })))
    }
}

impl Stream for Reading {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.0.get_mut() {
            Some(running) => running.batches.poll_recv(context),
            None => Poll::Ready(Some(Err(Error::Closed { reason: OF_ANOTHER_PROCESS }))),
        }
    }
}

/// Delivers the batches of a scan until no more are wanted.
async fn deliver(dataset: Dataset, limit: Option<usize>, sender: &Sender<Result<RecordBatch>>) -> Result<()> {
    // As much as scans of our own queries may hold.
    let scanning = Scanning::new(config::QUERY_MEMORY_BYTES / 2, &Arc::default(), &Arc::default());
    let limit = limit.map(|limit| u64::try_from(limit).unwrap_or(u64::MAX));
    let mut batches = scan::open(dataset, None, Arc::new(scanning), false, limit).await?;
    while let Some(scanned) = batches.next().await {
        if sender.send(Ok(scanned?.batch)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Runs a call into another library, in which a panic would end the process.
fn caught<T>(work: impl FnOnce() -> PlanResult<T>) -> PlanResult<T> {
    panics::caught(work).unwrap_or_else(|reason| Err(DataFusionError::Internal(reason)))
}

/// An error with the text of its causes: only text crosses to another library.
#[derive(Debug)]
struct Told(Error);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.describe())
    }
}

impl std::error::Error for Told {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[cfg(test)]
mod tests;
