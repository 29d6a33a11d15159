//! Processor time of engines with nothing to do.
//!
//! Why here: engines spin for a grace period before they sleep; after it they must cost next to
//! nothing. Must stay true: work was done before, and the grace is over when the count begins.
//! One thread, which sleeps meanwhile. Source: proc(5), `schedstat`.

use super::children;
use super::report::Figure;
use super::roles::{Role, Served};
use super::{Bench, BenchError, Candidate, interrupted};
use crate::measure::child::Speaker;
use std::time::{Duration, Instant};

/// Measures both, interleaved.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpus = bench.cpus.clone();
    let (program, cancel) = (bench.config.sidecore.clone(), bench.cancel.clone());
    let time = bench.choose(Duration::from_millis(500), Duration::from_secs(2));
    let pool = children::start(&program, &Role::IdlePool { cpus }, &cancel)?;
    let daemon = Role::Daemon(Served {
        socket: bench.config.scratch.join("idle.sock"),
        cpus: bench.cpus.clone(),
        grace_ms: None,
        allow_uids: Vec::new(),
    });
    let daemon = children::start(&program, &daemon, &cancel)?;
    let percent = |peer: &Speaker| {
        let begun = Instant::now();
        let before_ns = peer.cpu_ns();
        while begun.elapsed() < time {
            interrupted(&cancel)?;
            std::thread::sleep(Duration::from_millis(100).min(time));
        }
        let used_ns = peer.cpu_ns().saturating_sub(before_ns);
        Ok(vec![
            100.0 * used_ns as f64 / begun.elapsed().as_nanos() as f64,
        ])
    };
    // Longer than any grace.
    std::thread::sleep(Duration::from_millis(200));
    let mut candidates = vec![
        Candidate::new(POOL, |()| percent(&pool)),
        Candidate::new(DAEMON, |()| percent(&daemon)),
    ];
    bench.say("something idle");
    let rounds = bench.choose(2, 3);
    let series = bench.interleave(&[("processor time", "%")], rounds, &mut candidates)?;
    drop(candidates);
    for (name, series) in [POOL, DAEMON].into_iter().zip(series) {
        if let Some([series]) = series.as_deref() {
            let figure = Figure::new(name, series, "% of a core");
            bench.report.idle.push(figure);
        }
    }
    Ok(())
}

const DAEMON: &str = "an idle daemon with an engine on each core";
const POOL: &str = "an idle pool with an engine on each core";
