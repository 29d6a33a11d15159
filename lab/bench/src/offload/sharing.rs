//! Two processes on the same cores, compared with one alone.
//!
//! Why here: programs that each take all cores and wait actively for their own threads stall each
//! other as soon as there are two; a client that shares engines must get its fair share, not less.
//! Must stay true: the two begin at the same moment and are counted over the same time; the one
//! alone runs in the same round.
//! One thread, which sleeps meanwhile. Source: own; OpenMP 5.2, OMP_WAIT_POLICY.

use super::children;
use super::report::{SHARED_ENGINES, SharingRow, UNEQUAL};
use super::roles::{Role, Served};
use super::work::{Counted, HostWork, Window};
use super::{Bench, BenchError, Candidate};
use crate::measure::child::Speaker;
use crate::measure::stats::{Outcome, Series};
use sidecore_sys::clock;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Measures all pairs.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpus = bench.cpus.iter().copied().take(2).collect::<Vec<_>>();
    let threads = cpus.len();
    let program = bench.config.sidecore.clone();
    let work = HostWork::calibrate(UNIT_NS);
    let pool = Role::Loops { cpus, work };
    let cancel = bench.cancel.clone();
    let ours = || children::start(&program, &pool, &cancel);
    pair(
        bench,
        POOLS,
        "loops/s",
        "a loop is a unit of 100 us for each core",
        &ours,
    )?;

    engines_of_a_daemon(bench)?;

    match compile(&bench.config.scratch) {
        Err(BenchError::Missing(reason)) => bench.missing(&reason),
        Err(error) => bench.failed(&error),
        Ok(peer) => {
            let theirs = || {
                let mut command = Command::new(&peer);
                command
                    .arg(UNIT_NS.to_string())
                    .env("OMP_WAIT_POLICY", "active")
                    .env("OMP_PROC_BIND", "true")
                    .env("OMP_NUM_THREADS", threads.to_string());
                let mut peer = Speaker::spawn(&mut command)?;
                peer.expect_ready(&cancel)?;
                Ok(peer)
            };
            let note = "the same loops; active waiting, a thread bound to each core";
            pair(bench, OPENMP, "loops/s", note, &theirs)?;
        }
    }
    Ok(())
}

/// Two clients of one daemon, which has every core but the clients'.
fn engines_of_a_daemon(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let &[host, ref engines @ ..] = bench.cpus.as_slice() else {
        return Ok(());
    };
    if engines.is_empty() {
        bench.missing("a daemon's engines need a core besides the clients'");
        return Ok(());
    }
    let socket = bench.config.scratch.join("shared.sock");
    // One engine, so that it is contended whatever the machine.
    let daemon = Role::Daemon(Served {
        socket: socket.clone(),
        cpus: vec![engines[0]],
        grace_ms: None,
        allow_uids: Vec::new(),
    });
    let _daemon = children::start(&bench.config.sidecore, &daemon, &bench.cancel)?;
    let client = |call_us| Role::Client {
        socket: socket.clone(),
        cpus: vec![host],
        call_us,
    };
    let (program, cancel) = (bench.config.sidecore.clone(), bench.cancel.clone());
    let (equal, short, long) = (client(CALL_US), client(SHORT_CALL_US), client(LONG_CALL_US));
    let start = |role| children::start(&program, role, &cancel);
    let note = "calls of 20 us to one engine; both clients on one core";
    pair(bench, SHARED_ENGINES, "calls/s", note, &|| start(&equal))?;
    let note = "one's calls take 10 us, the other's 10 ms; the engine's time that each gets";
    beside(
        bench,
        UNEQUAL,
        note,
        (&|| start(&short), SHORT_CALL_US),
        (&|| start(&long), LONG_CALL_US),
    )
}

/// A client with short calls alone, then next to one with long calls, interleaved. The figure is
/// the engine's time, in milliseconds a second.
fn beside(
    bench: &mut Bench<'_>,
    name: &str,
    note: &str,
    (short, short_us): (&Start<'_>, u64),
    (long, long_us): (&Start<'_>, u64),
) -> Result<(), BenchError> {
    bench.say(name);
    let cancel = bench.cancel.clone();
    let counted_ns = bench.choose(300_000_000, 600_000_000);
    let used = |per_s: f64, call_us: u64| per_s * call_us as f64 / 1e3;
    let mut candidates = [
        Candidate::new(format!("{name}, short ones alone"), |()| {
            let rates = rates(&cancel, counted_ns, &[short])?;
            Ok(vec![used(rates[0], short_us); 2])
        }),
        Candidate::new(format!("{name}, both at once"), |()| {
            let rates = rates(&cancel, counted_ns, &[short, long])?;
            Ok(vec![used(rates[0], short_us), used(rates[1], long_us)])
        }),
    ];
    let rounds = bench.choose(2, 5);
    let metrics = [("short", ENGINE_TIME), ("long", ENGINE_TIME)];
    let series = bench.interleave(&metrics, rounds, &mut candidates)?;
    add_row(bench, name, note, ENGINE_TIME, &series);
    Ok(())
}

/// Starts one of the processes.
type Start<'a> = dyn Fn() -> Result<Speaker, BenchError> + 'a;

/// One alone, then two at once, interleaved.
fn pair(
    bench: &mut Bench<'_>,
    name: &str,
    unit: &'static str,
    note: &str,
    start: &Start<'_>,
) -> Result<(), BenchError> {
    bench.say(name);
    let cancel = bench.cancel.clone();
    let counted_ns = bench.choose(150_000_000, 400_000_000);
    let count = |processes: usize| -> Result<Vec<f64>, BenchError> {
        let mut per_s = rates(&cancel, counted_ns, &vec![start; processes])?;
        per_s.sort_by(f64::total_cmp);
        Ok(per_s)
    };
    let mut candidates = [
        Candidate::new(format!("{name}, one alone"), |()| {
            let alone = count(1)?[0];
            Ok(vec![alone, alone])
        }),
        Candidate::new(format!("{name}, two at once"), |()| count(2)),
    ];
    let rounds = bench.choose(2, 5);
    let metrics = [("slower", unit), ("faster", unit)];
    let series = bench.interleave(&metrics, rounds, &mut candidates)?;
    add_row(bench, name, note, unit, &series);
    Ok(())
}

/// Rates of several processes that begin at the same moment, in units per second. They are started
/// anew each time: one that waits for its turn may not be idle (OpenMP's threads spin).
fn rates(
    cancel: &Arc<AtomicBool>,
    counted_ns: u64,
    starts: &[&Start<'_>],
) -> Result<Vec<f64>, BenchError> {
    let started: Result<Vec<Speaker>, BenchError> = starts.iter().map(|start| start()).collect();
    let mut processes = started?;
    let begin_ns = clock::now_ns() + 3_000_000;
    let from_ns = begin_ns + WARM_NS;
    let window = Window {
        begin_ns,
        from_ns,
        until_ns: from_ns + counted_ns,
    };
    for process in &mut processes {
        process.tell(&window)?;
    }
    let mut per_s = Vec::new();
    for process in &mut processes {
        let counted = process.answer::<Vec<Counted>>(cancel)?;
        if counted.is_empty() {
            let fault = process.fault("did not count what was to be measured");
            return Err(fault.into());
        }
        let cycles: u64 = counted.iter().map(|worker| worker.cycles).sum();
        per_s.push(cycles as f64 * 1e9 / counted_ns as f64);
    }
    Ok(per_s)
}

/// Reports a pair: the first of the two is the one that must get its share.
fn add_row(
    bench: &mut Bench<'_>,
    name: &str,
    note: &str,
    unit: &'static str,
    series: &[Option<Vec<Series>>],
) {
    let [Some(alone), Some(two)] = series else {
        return;
    };
    let outcome = Outcome::of(&two[0], &alone[0]);
    bench.report.sharing.push(SharingRow {
        name: name.to_owned(),
        alone: alone[0].median(),
        slower: two[0].median(),
        faster: two[1].median(),
        unit,
        fair_share: 2.0 * outcome.ratio,
        spread: outcome.spread,
        rounds: outcome.rounds,
        note: note.to_owned(),
    });
}

/// Builds the peer, where there is a compiler with OpenMP.
fn compile(scratch: &Path) -> Result<PathBuf, BenchError> {
    let (source, program) = (scratch.join("omp_peer.c"), scratch.join("omp_peer"));
    std::fs::write(&source, PEER_SOURCE).map_err(BenchError::io("write a C program"))?;
    let mut command = Command::new("cc");
    command
        .args(["-O2", "-fopenmp", "-o"])
        .arg(&program)
        .arg(&source);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let missing = |what: String| {
        BenchError::Missing(format!(
            "two OpenMP programs: {what}: apt install build-essential"
        ))
    };
    match command.stderr(Stdio::null()).status() {
        Err(error) => Err(missing(format!("no C compiler ({error})"))),
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(missing(format!("`cc -fopenmp` ended with {status}"))),
    }
}

/// Warm-up before anything is counted.
const WARM_NS: u64 = 50_000_000;
const POOLS: &str = "two pools, each of all cores";
const OPENMP: &str = "two OpenMP programs, each of all cores";
/// Work of each core in one loop.
const UNIT_NS: u64 = 100_000;
/// Work of an engine in one call of a client, in microseconds.
const CALL_US: u64 = 20;
/// The same for the shorter calls of two unequal clients.
const SHORT_CALL_US: u64 = 10;
const LONG_CALL_US: u64 = 10_000;
const ENGINE_TIME: &str = "ms/s";
const PEER_SOURCE: &str = include_str!("../../peers/omp_peer.c");
