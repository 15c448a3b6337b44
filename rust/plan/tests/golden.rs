//! Orders that must not change between releases: `tests/golden/order.py` wrote them, without this crate.

use std::path::Path;

use serde::Deserialize;

use super::super::seed::{Key, Purpose};
use super::super::*;
use super::{resolve_row, spans};

#[derive(Deserialize)]
struct Golden {
    draws: Vec<GoldenDraw>,
    orders: Vec<GoldenOrder>,
}

#[derive(Deserialize)]
struct GoldenDraw {
    seed: u64,
    epoch: u64,
    purpose: String,
    stream: u64,
    x: u64,
    bits: u64,
}

#[derive(Deserialize)]
struct GoldenOrder {
    name: String,
    spans: Vec<u32>,
    shuffle: Option<GoldenShuffle>,
    rows: Vec<(u32, u32)>,
}

#[derive(Deserialize)]
struct GoldenShuffle {
    seed: u64,
    epoch: u64,
    num_lanes: u32,
    window_rows: u64,
}

fn golden() -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/orders.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn golden_draws_are_unchanged() {
    for draw in golden().draws {
        let purpose = match &*draw.purpose {
            "spans" => Purpose::Spans,
            "all" => Purpose::All,
            _ => Purpose::Place,
        };
        let mut draws = Key::new(draw.seed, draw.epoch, purpose).draws(draw.stream);
        draws.seek(draw.x);
        assert_eq!(draws.next_bits(), draw.bits, "{} {} {}", draw.purpose, draw.stream, draw.x);
    }
}

#[test]
fn golden_orders_are_unchanged() {
    for case in golden().orders {
        let (order, epoch) = match case.shuffle {
            None => (Order::Sequential, 0),
            Some(GoldenShuffle { seed, epoch, num_lanes, window_rows }) => {
                (Order::Shuffled { seed, num_lanes, window_rows }, epoch)
            }
        };
        let plan = EpochPlan::new(spans(&case.spans), order, epoch);
        let mut rows = Vec::new();
        plan.walk(0).visit(0, 1, usize::MAX, &mut rows, &mut Vec::new());
        let rows: Vec<_> = rows.into_iter().map(|row| resolve_row(&plan, row)).collect();
        assert_eq!(rows, case.rows, "{}", case.name);
    }
}
