//! One thread keeps two engines of a daemon busy with jobs of 20 us.
//!
//! `cargo run --release -p sidecore-daemon --example jobs`
#![allow(clippy::print_stdout)] // A program for people.

use sidecore_daemon::client::{Client, ClientOptions, Job};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions};
use std::time::{Duration, Instant};

const JOBS: u64 = 20_000;
const KERNEL_US: u64 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    // In a process of its own, as a rule: `sidecore daemon --spin-us`.
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        registry: Registry::with_spin_us(),
        ..DaemonOptions::default()
    })?;
    let options = ClientOptions {
        registry: Registry::with_spin_us(),
        silence_max: Duration::from_secs(1),
        ..ClientOptions::default()
    };
    let client = Client::attach_with(daemon.socket(), options)?;
    let kernel = client.kernel("spin_us")?;
    for depth in [1, 16, 256, 1000] {
        let busy_us = || -> Result<u64, Box<dyn std::error::Error>> {
            Ok(client.status()?.clients.iter().map(|it| it.busy_us).sum())
        };
        let (busy_before, begun) = (busy_us()?, Instant::now());
        let (mut submitted, mut done) = (0, 0);
        while done < JOBS {
            while submitted < JOBS && submitted - done < depth {
                client.post(Job::new(kernel).words(&[KERNEL_US]).token(submitted))?;
                submitted += 1;
            }
            if let Some(outcome) = client.wait(None) {
                outcome.result?;
                done += 1;
            }
        }
        let elapsed_us = begun.elapsed().as_micros() as f64;
        let busy = (busy_us()? - busy_before) as f64 / (2.0 * elapsed_us);
        let rate = JOBS as f64 / elapsed_us * 1e6;
        let percent = busy * 100.0;
        println!("{depth:4} open: {rate:6.0} jobs/s, two engines {percent:.1} % busy");
    }
    println!("{:?}", client.counters());
    Ok(())
}
