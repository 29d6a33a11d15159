//! Random sequences of all functions, by this library and by the system's zlib, call by call.
//!
//! Calls that both must answer alike are compared to the last field (`inflating`, `rest`). Where
//! zlib lets the bytes differ (`deflating`), both must keep its rules. 200,000 calls here, a third
//! each with engines, without, and with the library's own paths off; `scripts/check-zlib-calls`
//! runs as many as wanted and sets:
//!
//! | variable | |
//! |---|---|
//! | `ZLIB_CALLS` | calls at least, in each mode |
//! | `ZLIB_CALLS_SEED` | the first sequence; each has the next number |
//! | `ZLIB_CALLS_SECONDS` | a mode ends earlier after that time |
//! | `ZLIB_CALLS_MODE` | `engines`, `local` or `off` alone |
//! | `ZLIB_CALLS_LIBRARY` | another zlib to compare with |
//!
//! A difference is reported with the shortest sequence found that shows it.

#![allow(unsafe_code)] // the tests call C functions
#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included
#![allow(clippy::print_stdout)] // the long run says where it is

mod api;
#[path = "../common/mod.rs"]
mod common;
mod deflate_side;
mod deflating;
mod inflating;
mod rest;
mod streams;

use api::Pair;
use deflating::Deflating;
use inflating::Inflating;
use rest::{File, Single};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_random::choices::Choices;
use std::fmt::Debug;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A sequence of calls.
trait Case: Clone + Debug + Sized {
    fn draw(pair: &Pair, choices: &mut Choices) -> Self;
    /// The calls made, or the first difference.
    fn run(&self, pair: &Pair) -> Result<u64, String>;
    /// Candidates for a shorter one with the same difference.
    fn smaller(&self) -> Vec<Self>;
}

/// Each list without one entry, without a half.
fn without_each<T: Clone>(ops: &[T]) -> impl Iterator<Item = Vec<T>> {
    let half = ops.len() / 2;
    let halves = (half > 1).then(|| [ops[..half].to_vec(), ops[half..].to_vec()]);
    let single = (0..ops.len()).map(|left_out| {
        let mut shorter = ops.to_vec();
        shorter.remove(left_out);
        shorter
    });
    halves.into_iter().flatten().chain(single)
}

/// Runs one sequence; a difference with the shortest sequence that shows one.
fn one<C: Case>(pair: &Pair, seed: u64) -> Result<u64, String> {
    let mut case = C::draw(pair, &mut Choices::seeded(seed));
    let mut difference = match case.run(pair) {
        Ok(calls) => return Ok(calls),
        Err(difference) => difference,
    };
    let begun = Instant::now();
    'shorter: while begun.elapsed() < Duration::from_secs(20) {
        for smaller in case.smaller() {
            if let Err(found) = smaller.run(pair) {
                (case, difference) = (smaller, found);
                continue 'shorter;
            }
        }
        break;
    }
    Err(format!("ZLIB_CALLS_SEED={seed}\n{case:?}\n{difference}"))
}

/// Streams that libdeflate inflates and zlib refuses, though the checksum is right (docs/zlib.md,
/// "What differs").
static EXCUSED: AtomicU64 = AtomicU64::new(0);

fn excuse() {
    EXCUSED.fetch_add(1, Ordering::Relaxed);
}

/// True where zlib refuses a stream for a code in it.
fn is_excused(zlib: &str) -> bool {
    let messages = [
        "invalid literal/length code",
        "invalid distance code",
        "too many length or distance symbols",
        "invalid code lengths set",
        "invalid literal/lengths set",
        "invalid distances set",
        "missing end-of-block",
    ];
    zlib.starts_with("code -3") && messages.iter().any(|message| zlib.contains(message))
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

const MODES: [&str; 3] = ["engines", "local", "off"];

/// The library reads its environment once: each mode is a process of its own.
#[test]
fn every_call_answers_as_zlib_does() {
    if Pair::new().is_none() {
        eprintln!("NOT TESTED: no libz.so.1 to compare with");
        return;
    }
    let only = std::env::var("ZLIB_CALLS_MODE").ok();
    for mode in MODES {
        if only.as_deref().is_some_and(|only| only != mode) {
            continue;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "sequences", "--nocapture"]);
        command.env("ZLIB_CALLS_WORKER", mode);
        if mode != "engines" {
            command.env("SIDECORE_ZLIB", mode);
        }
        assert!(command.status().unwrap().success(), "{mode}");
    }
}

/// One mode, where it is requested.
#[test]
fn sequences() {
    let Ok(mode) = std::env::var("ZLIB_CALLS_WORKER") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let _daemon = (mode == "engines").then(|| {
        let socket = folder.path().join("daemon.sock");
        // SAFETY: no other thread looks at the environment now.
        unsafe { std::env::set_var("SIDECORE_ZLIB_SOCKET", &socket) };
        let registry = sidecore_deflate::served::register(Registry::builtin());
        Daemon::start(DaemonOptions {
            socket,
            engines: 1,
            registry: registry.unwrap(),
            ..DaemonOptions::default()
        })
        .unwrap()
    });
    let pair = Pair::new().unwrap();
    let wanted = number("ZLIB_CALLS", 67_000);
    let first = number("ZLIB_CALLS_SEED", 1);
    let seconds = number("ZLIB_CALLS_SECONDS", 3600);
    let begun = Instant::now();
    let (mut calls, mut seed, mut told) = (0, first, begun);
    let kept = Inflating::kept().into_iter();
    let mut differences: Vec<_> = kept.filter_map(|case| case.run(&pair).err()).collect();
    let say = |calls: u64, seed: u64, found: usize| {
        println!(
            "{mode}: {calls} calls in {} sequences from seed {first}: {found} differences, {} \
             excused, {:.0} s",
            seed - first,
            EXCUSED.load(Ordering::Relaxed),
            begun.elapsed().as_secs_f64()
        );
    };
    while calls < wanted && begun.elapsed() < Duration::from_secs(seconds) {
        if std::env::var_os("ZLIB_CALLS_TRACE").is_some() {
            eprintln!("sequence {seed}");
        }
        let kind = Choices::seeded(seed ^ 0x5eed).below(100);
        let result = match number("ZLIB_CALLS_KIND", kind) {
            0..45 => one::<Inflating>(&pair, seed),
            45..88 => one::<Deflating>(&pair, seed),
            88..98 => one::<Single>(&pair, seed),
            _ => one::<File>(&pair, seed),
        };
        seed += 1;
        match result {
            Ok(count) => calls += count,
            Err(difference) => {
                println!("{mode}: {difference}");
                differences.push(difference);
            }
        }
        if differences.len() >= number("ZLIB_CALLS_DIFFERENCES", 5) as usize {
            break;
        }
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            say(calls, seed, differences.len());
        }
    }
    say(calls, seed, differences.len());
    assert!(differences.is_empty(), "{} differences", differences.len());
}
