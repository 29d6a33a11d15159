//! Cost of a span, off and on: `cargo run --release -p sidecore-trace --example cost`.

#![allow(clippy::print_stdout)] // An example prints.

use sidecore_sys::clock;
use sidecore_trace::{Name, Recording, begin, span, span_since};
use std::hint::black_box;

static WORK: Name = Name::new("cost", "work", ["number", ""]);

const SPANS: u64 = 200_000;
const ROUNDS: usize = 25;

/// The median and the least over rounds of nanoseconds of processor time for each of `SPANS` calls.
fn measure(mut call: impl FnMut(u64)) -> String {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = clock::thread_cpu_ns();
            (0..SPANS).for_each(|number| call(black_box(number)));
            (clock::thread_cpu_ns() - begun) as f64 / SPANS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    format!("{:.2} ({:.2})", rounds[ROUNDS / 2], rounds[0])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let print = |state: &str| {
        let empty = measure(|number| {
            black_box(number);
        });
        let spans = measure(|number| {
            let _span = span(&WORK, number, 0);
            black_box(number);
        });
        let whole = measure(|number| {
            let begun = begin();
            black_box(number);
            span_since(begun, &WORK, number);
        });
        let stamp = measure(|_| {
            black_box(clock::cycles());
        });
        println!(
            "{state}, median (least) ns: empty loop {empty}, span {spans}, span_since {whole}, \
             time stamp {stamp}"
        );
    };
    print("off");
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("events.json");
    let recording = Recording::begin(&path, "cost", Box::new(drop))?;
    print("on");
    drop(recording);
    Ok(())
}
