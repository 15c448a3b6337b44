//! Decodes Parquet with the `parquet` crate alone: the ceiling that the benchmarks compare Forebay with.
//!
//! `cargo bench --bench decode -- FOLDER [--threads K] [--passes N] [--json]` decodes all columns of all row groups of
//! the objects in the folder, each thread taking the next row group, into arrays that are dropped at once. The objects
//! are in memory before the clock starts. Two batch sizes, because neither is best for every column: 1024 rows, and the
//! whole row group. The result is the median of the passes.
//!
//! Without a folder it uses the tokens that `benches/python/data.py` writes, and says so if they are missing.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, hint, thread};

use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};

type AnyError = Box<dyn Error + Send + Sync>;

const BATCH_ROWS: usize = 1024;
const DEFAULT_PASSES: usize = 5;

fn main() -> Result<(), AnyError> {
    let arguments = Arguments::parse()?;
    if !arguments.folder.is_dir() {
        let folder = arguments.folder.display();
        println!("decode: no data in {folder}; `python benches/python/data.py` writes it");
        return Ok(());
    }
    let objects = open(&arguments.folder)?;
    let tasks: Vec<(usize, usize)> = objects
        .iter()
        .enumerate()
        .flat_map(|(object, (_, metadata))| {
            (0..metadata.metadata().num_row_groups()).map(move |row_group| (object, row_group))
        })
        .collect();
    for (name, batch_rows) in [("batches-1024", BATCH_ROWS), ("row-groups", usize::MAX)] {
        let pass = Pass { objects: &objects, tasks: &tasks, batch_rows, num_threads: arguments.num_threads };
        let (num_rows, seconds) = pass.median(arguments.num_passes)?;
        let rate = num_rows as f64 / seconds;
        if arguments.json {
            println!(
                "{{\"name\": \"{name}\", \"rows\": {num_rows}, \"seconds\": {seconds:.6}, \"rows_per_second\": {rate:.1}}}"
            );
        } else {
            let num_threads = arguments.num_threads;
            println!("decode[{name}, {num_threads} threads]: {rate:.0} rows/s");
        }
    }
    Ok(())
}

type Objects = Vec<(Bytes, ArrowReaderMetadata)>;

/// Reads the objects of a folder into memory, with their footers.
fn open(folder: &PathBuf) -> Result<Objects, AnyError> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    paths.sort();
    let load = |path| {
        let object = Bytes::from(fs::read(path)?);
        let metadata = ArrowReaderMetadata::load(&object, ArrowReaderOptions::new())?;
        Ok((object, metadata))
    };
    paths.into_iter().map(load).collect()
}

/// One way to decode every row group.
struct Pass<'a> {
    objects: &'a Objects,
    /// Object and row group.
    tasks: &'a [(usize, usize)],
    batch_rows: usize,
    num_threads: usize,
}

impl Pass<'_> {
    /// Returns the number of rows and the median seconds of a pass, after one to warm up.
    fn median(&self, num_passes: usize) -> Result<(usize, f64), AnyError> {
        let (num_rows, _) = self.run()?;
        let mut times =
            (0..num_passes.max(1)).map(|_| self.run().map(|(_, time)| time)).collect::<Result<Vec<_>, _>>()?;
        times.sort();
        Ok((num_rows, times[times.len() / 2].as_secs_f64()))
    }

    fn run(&self) -> Result<(usize, Duration), AnyError> {
        let next = AtomicUsize::new(0);
        let started = Instant::now();
        let num_rows = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.num_threads).map(|_| scope.spawn(|| self.decode_tasks(&next))).collect();
            let mut num_rows = 0;
            for thread in threads {
                num_rows += thread.join().map_err(|_| "a thread panicked")??;
            }
            Ok::<usize, AnyError>(num_rows)
        })?;
        Ok((num_rows, started.elapsed()))
    }

    fn decode_tasks(&self, next: &AtomicUsize) -> Result<usize, AnyError> {
        let mut num_rows = 0;
        while let Some(&(object, row_group)) = self.tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (bytes, metadata) = &self.objects[object];
            let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes.clone(), metadata.clone())
                .with_row_groups(vec![row_group])
                .with_batch_size(self.batch_rows)
                .build()?;
            for batch in reader {
                num_rows += hint::black_box(batch?).num_rows();
            }
        }
        Ok(num_rows)
    }
}

struct Arguments {
    folder: PathBuf,
    num_threads: usize,
    num_passes: usize,
    json: bool,
}

impl Arguments {
    fn parse() -> Result<Self, AnyError> {
        let data = env::var_os("FOREBAY_BENCH_DATA").map_or_else(|| "target/bench-data".into(), PathBuf::from);
        let mut parsed = Self {
            folder: data.join("tokens"),
            num_threads: thread::available_parallelism()?.get(),
            num_passes: DEFAULT_PASSES,
            json: false,
        };
        let mut arguments = env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || arguments.next().ok_or("expected a number")?.parse().map_err(AnyError::from);
            match argument.as_str() {
                "--threads" => parsed.num_threads = number()?,
                "--passes" => parsed.num_passes = number()?,
                "--json" => parsed.json = true,
                // Passed by Cargo.
                "--bench" => {}
                folder => parsed.folder = folder.into(),
            }
        }
        Ok(parsed)
    }
}
