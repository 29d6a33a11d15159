//! The arithmetic and the bookkeeping of honest comparisons: interleaved candidates, medians of the
//! rounds' ratios, spreads, targets, tables, raw samples.
//!
//! Why here: a ratio must mean the same in each bench, and nothing but benches compares.
//!
//! - [`stats`]: rounds, medians, ratios, spreads. A ratio is the median of the rounds' own ratios:
//!   the two samples of a round ran side by side and share the state of the machine.
//! - [`interleave`]: interleaved candidates, every round beginning with another one; noisy rounds
//!   repeat.
//! - [`quiet`]: foreign load, which makes a round noisy: processor time of processes that the
//!   measurement did not start, and time that a hypervisor took. A noisy round is repeated, a
//!   bounded number of times; a report says how many were, and `noisy` where one had to be kept.
//! - [`report`]: a figure next to a paper's ([`Row`]), next to a peer's ([`Peer`]), a [`Sample`].
//! - [`markdown`], [`Table`]: the same for people and for `docs/results`.
//! - [`distance`]: how far apart two cores are, which changes on virtual machines.
//! - [`child`]: other processes that speak in lines, ended whatever happens.
//!
//! Must stay true: no figure without its spread and rounds; losses and misses are written like
//! wins; the subject of a bench and its peers are not in here.
//! Source: own.
//!
//! ```
//! use sidecore_bench::measure::interleave::{Candidate, Collected, KeepAll, run};
//! use sidecore_bench::measure::stats::Outcome;
//! use std::convert::Infallible;
//! use std::time::Instant;
//!
//! let time = |work: fn()| {
//!     let began = Instant::now();
//!     work();
//!     Ok::<_, Infallible>(began.elapsed().as_secs_f64())
//! };
//! let mut candidates = [
//!     Candidate::of_one("ours", |(): &()| time(|| drop(vec![0_u8; 1 << 16]))),
//!     Candidate::of_one("peer", |(): &()| time(|| drop(vec![1_u8; 1 << 16]))),
//! ];
//! let every_turn = |_round, _turn| Ok(true);
//! let measured = run(5, 1, &(), &mut candidates, every_turn, |_| false, &mut KeepAll).unwrap();
//! let collected = Collected::of("allocation", &[("time", "s")], measured);
//! let [Some(ours), Some(peer)] = &collected.series[..] else { unreachable!() };
//! let outcome = Outcome::of(&ours[0], &peer[0]);
//! assert_eq!(outcome.rounds, 5);
//! ```

pub mod child;
pub mod distance;
pub mod interleave;
pub mod markdown;
pub mod quiet;
pub mod report;
pub mod stats;

pub use report::{Better, Figures, Peer, Row, Sample};
pub use sidecore_measure::Machine;
pub use sidecore_terminal::Table;
