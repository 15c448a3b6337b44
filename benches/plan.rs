//! Measures how fast an epoch is planned and walked, and how well it is shuffled.
//!
//! `cargo bench --bench plan` prints everything; `-- speed`, `-- quality` and `-- tune` print a part. No network, fixed
//! seeds. `docs/order.md` has the tables and explains the columns.

#![expect(clippy::print_stdout, reason = "prints a table")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::plan::resolve::{DEFAULT_SHUFFLE_BYTES, mean_span_rows, resolve};
use forebay::plan::seed::{Key, Purpose};
use forebay::plan::{EpochPlan, Mixing, Order, Span};

fn main() {
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let asked = |part: &str| parts.iter().any(|arg| arg == part);
    if parts.is_empty() || asked("speed") {
        plan_ten_million_spans();
        walk_epochs();
        jump_into_epochs();
    }
    if parts.is_empty() || asked("quality") {
        quality_table(&published());
    }
    if asked("tune") {
        quality_table(&tried());
    }
}

/// Spans of `span_rows` rows in row groups of `group_rows`.
fn layout(num_groups: u32, group_rows: u32, span_rows: u32) -> Arc<[Span]> {
    let spans_of = |row_group| {
        (0..group_rows).step_by(span_rows as usize).map(move |start| {
            let end = group_rows.min(start + span_rows);
            Span { row_group, start, end, num_kept: end - start }
        })
    };
    (0..num_groups).flat_map(spans_of).collect()
}

fn shuffled(seed: u64, mixing: Mixing) -> Order {
    Order::Shuffled { seed, num_lanes: mixing.num_lanes, window_rows: mixing.window_rows }
}

fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = run();
    (result, start.elapsed())
}

/// The most memory that this process has held so far, if the system reports it.
fn peak_mib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or_else(|| "unknown".to_owned(), |kib| format!("{} MiB", kib >> 10))
}

fn plan_ten_million_spans() {
    let spans = layout(400_000, 1000, 40);
    let num_spans = spans.len();
    let before = peak_mib();
    let (plan, took) = timed(|| EpochPlan::new(spans, shuffled(0, Mixing { num_lanes: 192, window_rows: 240 }), 0));
    println!("plan[{num_spans} spans, 192 lanes]: {took:.2?}, peak {} (spans alone {before})", peak_mib());
    let mut rows = Vec::new();
    let ((), took) = timed(|| plan.walk(0).visit(0, 1, 256, &mut rows, &mut Vec::new()));
    println!("  first batch of 256: {took:.2?}");
    drop(plan);

    let spans = layout(400_000, 1000, 40);
    let (_, took) = timed(|| black_box(EpochPlan::new(spans, Order::Sequential, 0)));
    println!("plan[{num_spans} spans, sequential]: {took:.2?}");

    let spans = layout(10_000, 1000, 40);
    let mixing = Mixing { num_lanes: 192, window_rows: 60_000 };
    let (plan, took) = timed(|| EpochPlan::new(spans, shuffled(0, mixing), 0));
    println!("plan[10000000 rows, one permutation]: {took:.2?}, peak {}\n", peak_mib());
    black_box(plan.is_permuted());
}

/// Walks 4 million rows in batches of one rank of several.
fn walk_epochs() {
    const ROWS: u64 = 4_000_000;
    println!("{:<58} {:>10}", "walk[layout, lanes x window, ranks x batch]", "ns/row");
    let cases = [
        ("40-row spans", 10_000_000, 40, 192, 240, 1, 256),
        ("40-row spans", 10_000_000, 40, 192, 240, 8, 256),
        ("40-row spans", 10_000_000, 40, 192, 240, 5, 256),
        ("1-row spans", 10_000_000, 1, 192, 240, 1, 256),
        ("1000-row spans", 10_000_000, 1000, 24, 4592, 1, 256),
        ("40000-row spans", 100_000_000, 40_000, 48, 960_000, 1, 256),
        ("40-row spans, one permutation", 4_000_000, 40, 192, 60_000, 1, 256),
        ("40-row spans, sequential", 4_000_000, 40, 0, 0, 1, 256),
    ];
    for (name, num_rows, span_rows, num_lanes, window_rows, world, batch) in cases {
        let group_rows = span_rows.max(1000);
        let spans = layout(num_rows / group_rows, group_rows, span_rows);
        let order = match num_lanes {
            0 => Order::Sequential,
            _ => shuffled(0, Mixing { num_lanes, window_rows }),
        };
        let plan = EpochPlan::new(spans, order, 0);
        let mut walk = plan.walk(0);
        let (mut rows, mut finished, mut first) = (Vec::new(), Vec::new(), 0);
        let mut step = || {
            rows.clear();
            finished.clear();
            walk.visit(first, world, batch, &mut rows, &mut finished);
            first += world * batch as u64;
            black_box((&rows, &finished));
            rows.len() as u64
        };
        let mut num_rows = step();
        let (visited, took) = timed(|| {
            while num_rows < ROWS / world {
                num_rows += step();
            }
            num_rows
        });
        let each = took.as_secs_f64() * 1e9 / visited as f64;
        println!("{:<58} {each:>10.1}", format!("walk[{name}, {num_lanes} x {window_rows}, {world} x {batch}]"));
    }
    println!();
}

/// Resumes in the middle of an epoch: the time to the first batch.
fn jump_into_epochs() {
    for (span_rows, num_lanes, window_rows, world) in
        [(40, 192, 240, 1), (40, 192, 240, 8), (1000, 24, 4592, 1), (40_000, 12, 3_840_000, 1)]
    {
        let group_rows = span_rows.max(1000);
        let spans = layout(100_000_000 / group_rows, group_rows, span_rows);
        let plan = EpochPlan::new(spans, shuffled(0, Mixing { num_lanes, window_rows }), 0);
        let from = plan.num_rows() / 2;
        let mut rows = Vec::new();
        let ((), took) = timed(|| plan.walk(from).visit(from, world, 256, &mut rows, &mut Vec::new()));
        println!("jump[{span_rows}-row spans, {num_lanes} x {window_rows}, {world} ranks]: {took:.2?}");
        black_box(rows);
    }
    println!();
}

/// A case of the quality table: rows per span, and how they are mixed.
struct Case {
    name: &'static str,
    span_rows: u32,
    mixing: Mixing,
}

const NUM_GROUPS: u32 = 1000;
const GROUP_ROWS: u32 = 1000;
const NUM_ROWS: usize = NUM_GROUPS as usize * GROUP_ROWS as usize;
const ROW_BYTES: u64 = 8000;
const GLOBAL_BATCH: usize = 256;
const NUM_SEEDS: u64 = 10;

/// The cases whose figures are published.
fn published() -> Vec<Case> {
    let derived = |name, span_rows, shuffle_bytes| {
        let mean = mean_span_rows(&layout(NUM_GROUPS, GROUP_ROWS, span_rows));
        Case { name, span_rows, mixing: resolve(mean, ROW_BYTES, shuffle_bytes) }
    };
    vec![
        Case { name: "full shuffle", span_rows: 1000, mixing: Mixing { num_lanes: 1, window_rows: NUM_ROWS as u64 } },
        derived("offset index, 1 GiB (default)", 40, DEFAULT_SHUFFLE_BYTES),
        derived("offset index, 256 MiB", 40, 256 << 20),
        derived("offset index, 64 MiB", 40, 64 << 20),
        derived("no offset index, 1 GiB (default)", 1000, DEFAULT_SHUFFLE_BYTES),
        derived("no offset index, 4 GiB", 1000, 4 << 30),
        derived("no offset index, 256 MiB", 1000, 256 << 20),
    ]
}

/// Lanes and windows of the same memory, to choose the constants of `resolve`.
fn tried() -> Vec<Case> {
    let mut cases = Vec::new();
    for (span_rows, budget_rows) in
        [(40, 134_217), (40, 53_760), (40, 33_554), (40, 8_388), (1000, 134_217), (1000, 268_434)]
    {
        for num_lanes in [192_u32, 96, 48, 24, 12, 6, 3, 1] {
            let window_rows = (budget_rows / u64::from(num_lanes)).saturating_sub(u64::from(span_rows));
            if window_rows > 0 {
                let name = if span_rows == 40 { "offset index" } else { "no offset index" };
                cases.push(Case { name, span_rows, mixing: Mixing { num_lanes, window_rows } });
            }
        }
    }
    for spans_per_window in [3, 4, 5, 6, 7, 8] {
        let mixing = Mixing { num_lanes: 192, window_rows: 40 * spans_per_window };
        cases.push(Case { name: "192 lanes", span_rows: 40, mixing });
    }
    cases
}

/// The quality of a shuffle, relative to a full one.
#[derive(Default)]
struct Quality {
    entropy: f64,
    sorted: f64,
    periodic: f64,
    per_group: f64,
    held: f64,
}

fn quality_table(cases: &[Case]) {
    println!(
        "quality[{NUM_GROUPS} row groups x {GROUP_ROWS} rows of {ROW_BYTES} bytes, global batch {GLOBAL_BATCH}], mean of {NUM_SEEDS} seeds"
    );
    println!(
        "| files, `shuffle_bytes` | span | lanes | window | entropy | sorted | periodic | per group | rows held |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for case in cases {
        let spans = layout(NUM_GROUPS, GROUP_ROWS, case.span_rows);
        let mut mean = Quality::default();
        for seed in 0..NUM_SEEDS {
            let quality = measure(&EpochPlan::new(Arc::clone(&spans), shuffled(seed, case.mixing), 0), seed);
            let share = 1.0 / NUM_SEEDS as f64;
            mean.entropy += share * quality.entropy;
            mean.sorted += share * quality.sorted;
            mean.periodic += share * quality.periodic;
            mean.per_group += share * quality.per_group;
            mean.held += share * quality.held;
        }
        let Mixing { num_lanes, window_rows } = case.mixing;
        println!(
            "| {} | {} | {num_lanes} | {window_rows} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} % |",
            case.name,
            case.span_rows,
            mean.entropy,
            mean.sorted,
            mean.periodic,
            mean.per_group,
            mean.held * 100.0
        );
    }
    println!();
}

fn measure(plan: &EpochPlan, seed: u64) -> Quality {
    let (mut rows, mut finished) = (Vec::new(), Vec::new());
    let (mut order, mut walk) = (Vec::with_capacity(NUM_ROWS), plan.walk(0));
    let (mut held, mut held_sum) = (0_i64, 0_i64);
    let mut touched = std::collections::BTreeSet::new();
    let len_of = |id| i64::try_from(plan.piece(id).kept.len()).unwrap_or(0);
    let batches = || (0..NUM_ROWS as u64).step_by(GLOBAL_BATCH);
    for first in batches() {
        rows.clear();
        finished.clear();
        walk.visit(first, 1, GLOBAL_BATCH, &mut rows, &mut finished);
        for row in &rows {
            if touched.insert(row.piece) {
                held += len_of(row.piece);
            }
            let span = plan.spans()[row.piece.span as usize];
            let kept = plan.piece(row.piece).kept.start + row.row;
            order.push(span.row_group * GROUP_ROWS + span.start + kept);
        }
        // Rows are in memory from the first batch that needs one of their piece to the last that does.
        held_sum += held;
        held -= finished.iter().map(|id| len_of(*id)).sum::<i64>();
    }
    let group = |row: &u32| row / GROUP_ROWS;
    let groups: Vec<u32> = order.iter().map(group).collect();
    let mut draws = Key::new(seed, 0, Purpose::All).draws(1);
    let labels: Vec<f64> = (0..NUM_GROUPS).map(|_| draws.next_uniform()).collect();
    Quality {
        entropy: 2.0 / (1.0 / entropy(&order) + 1.0 / entropy(&groups)),
        sorted: variance(order.iter().map(|row| f64::from(*row))),
        periodic: variance(groups.iter().map(|group| f64::from(group % 10))),
        per_group: variance(groups.iter().map(|group| labels[*group as usize])),
        held: held_sum as f64 / batches().count() as f64 / NUM_ROWS as f64,
    }
}

/// The entropy in bits of the distances between neighbours.
fn entropy(values: &[u32]) -> f64 {
    let mut counts = vec![0_u32; NUM_ROWS];
    for pair in values.windows(2) {
        counts[pair[0].abs_diff(pair[1]) as usize] += 1;
    }
    let total = (values.len() - 1) as f64;
    counts.iter().filter(|count| **count > 0).map(|count| f64::from(*count) / total).map(|p| -p * p.log2()).sum()
}

/// The variance of the labels' batch means, relative to that of batches drawn from all rows.
fn variance(labels: impl Iterator<Item = f64>) -> f64 {
    let labels: Vec<f64> = labels.collect();
    let spread = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64
    };
    let means: Vec<f64> =
        labels.chunks_exact(GLOBAL_BATCH).map(|batch| batch.iter().sum::<f64>() / GLOBAL_BATCH as f64).collect();
    let (n, b) = (labels.len() as f64, GLOBAL_BATCH as f64);
    spread(&means) / (spread(&labels) / b * (n - b) / (n - 1.0))
}
