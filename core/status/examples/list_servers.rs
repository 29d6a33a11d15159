//! Publishes a number of servers in this process, and times how long a reader takes to list them.
//!
//!     cargo run --release -p sidecore-status --example list_servers -- 100
#![allow(clippy::print_stdout)] // It shows a figure.

use serde_json::json;
use sidecore_status::{Kind, Publisher, Servers};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = std::env::args()
        .nth(1)
        .map_or(Ok(100), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let servers = Servers::at(folder.path().join("servers"));
    let published: Vec<Publisher> = (0..count)
        .map(|number: u32| {
            let fields = move || json!({"image": format!("{number}.img"), "read_bytes": number});
            Publisher::start_in(&servers, Kind::Image, format!("{number}.img"), fields)
        })
        .collect();
    let mut times_ms: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            let found = servers.list(Duration::from_secs(60)).len();
            assert_eq!(found, published.len());
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times_ms.sort_by(f64::total_cmp);
    let (median, longest) = (times_ms[ROUNDS / 2], times_ms[ROUNDS - 1]);
    println!("{count} servers listed in {median:.1} ms (median of {ROUNDS}; longest {longest:.1})");
    Ok(())
}

const ROUNDS: usize = 31;
