//! Splits one search's chunks among processes.
//!
//! Why here: an alignment too long for one machine's cores is split by chunks: each process has
//! every n-th block, and after a loop all of them receive every chunk's result
//! ([`Runner::gather`]). Each then adds the same terms in the same tree as one process would. So
//! all processes take the same decisions, and the result has the same bits on any number of
//! processes. (A reduction by the message library would add in an order of its own.)
//!
//! Must stay true: all processes call [`Peers::gather`] equally often, in the same order, with the
//! same number of terms. So no local information (a clock, a signal) may decide the next step of a
//! search, unless it goes through [`Peers::decide`].
//! Source: the scheme of ExaML (Kozlov, Aberer, Stamatakis, Bioinformatics 31, 2015): every process
//! runs the whole search on its share of the sites.

use super::{Runner, Work};
use parking_lot::{Condvar, Mutex};
use sidecore_offload::OffloadError;
use std::sync::Arc;

/// The blocks of chunks of one of several processes: every `count`-th, from `number` on. A process
/// has distant blocks, since patterns are sorted and neighbouring blocks cost about the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// From 0, below `count`.
    pub number: usize,
    /// Number of processes, at least 1.
    pub count: usize,
}

impl Share {
    /// All chunks.
    pub const WHOLE: Self = Self {
        number: 0,
        count: 1,
    };

    /// True if a block, counted from 0 over all partitions, is in this share.
    #[must_use]
    pub fn has(self, block: usize) -> bool {
        block % self.count == self.number
    }
}

/// The processes that share one search's chunks.
pub trait Peers: Sync {
    /// This process's share.
    fn share(&self) -> Share;

    /// Gathers `own` of all processes: in `all` those of share 0 come first. Blocks until all have
    /// called it.
    ///
    /// # Panics
    /// May, where `all` is not as long as all `own` together.
    fn gather(&self, own: &[f64], all: &mut [f64]);

    /// The flag that the process of share 0 gives; the others' flags do not matter. Blocks until
    /// all have called it.
    fn decide(&self, flag: bool) -> bool {
        let mut all = vec![0.0; self.share().count];
        self.gather(&[f64::from(u8::from(flag))], &mut all);
        all[0] != 0.0
    }
}

impl<P: Peers + ?Sized> Peers for &P {
    fn share(&self) -> Share {
        (**self).share()
    }

    fn gather(&self, own: &[f64], all: &mut [f64]) {
        (**self).gather(own, all);
    }
}

/// Runs this process's share of the chunks on `runner`.
#[derive(Debug, Clone, Copy)]
pub struct Split<R, P> {
    /// Runs the share.
    pub runner: R,
    /// The other processes.
    pub peers: P,
}

impl<R: Runner, P: Peers> Runner for Split<R, P> {
    fn run<T: Send>(
        &self,
        work: Work,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        self.runner.run(work, chunks, unit)
    }

    fn run_sized<T: Send>(
        &self,
        work: Work,
        ns: u64,
        chunks: &mut [T],
        unit: impl Fn(&mut T) + Sync,
    ) -> Result<(), OffloadError> {
        self.runner.run_sized(work, ns, chunks, unit)
    }

    fn share(&self) -> Share {
        self.peers.share()
    }

    fn gather(&self, own: &[f64], all: &mut [f64]) {
        self.peers.gather(own, all);
    }
}

/// A thread of this process as one of several peers: for tests, in place of processes.
#[derive(Debug, Clone)]
pub struct Seat {
    share: Share,
    table: Arc<Table>,
}

#[derive(Debug, Default)]
struct Table {
    round: Mutex<Round>,
    over: Condvar,
}

/// Terms of the present round, and those of the last one, which slow peers may still be reading.
#[derive(Debug, Default)]
struct Round {
    number: u64,
    arrived: usize,
    terms: Vec<f64>,
    last: Vec<f64>,
}

impl Seat {
    /// One seat for each of `count` peers; each is for a thread of its own.
    #[must_use]
    pub fn all(count: usize) -> Vec<Self> {
        let table = Arc::new(Table::default());
        let seat = |number| Self {
            share: Share { number, count },
            table: Arc::clone(&table),
        };
        (0..count).map(seat).collect()
    }
}

impl Peers for Seat {
    fn share(&self) -> Share {
        self.share
    }

    fn gather(&self, own: &[f64], all: &mut [f64]) {
        let Share { number, count } = self.share;
        let mut round = self.table.round.lock();
        if round.arrived == 0 {
            round.terms.clear();
            round.terms.resize(count * own.len(), 0.0);
        }
        round.terms[number * own.len()..][..own.len()].copy_from_slice(own);
        round.arrived += 1;
        if round.arrived == count {
            let Round { terms, last, .. } = &mut *round;
            // Swapped: the next round may begin while others still copy this one.
            std::mem::swap(terms, last);
            round.arrived = 0;
            round.number += 1;
            self.table.over.notify_all();
        } else {
            let entered = round.number;
            self.table
                .over
                .wait_while(&mut round, |round| round.number == entered);
        }
        all.copy_from_slice(&round.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hear_all_in_order() {
        let heard = |seat: Seat| {
            let own = seat.share().number as f64;
            let mut rounds = Vec::new();
            for round in 0..200 {
                let mut all = [0.0; 6];
                seat.gather(&[own, own + f64::from(round)], &mut all);
                assert!(seat.decide(own == 0.0));
                rounds.push(all);
            }
            rounds
        };
        let threads: Vec<_> = Seat::all(3)
            .into_iter()
            .map(|seat| std::thread::spawn(move || heard(seat)))
            .collect();
        for thread in threads {
            for (round, all) in thread.join().unwrap().into_iter().enumerate() {
                let round = round as f64;
                assert_eq!(all, [0.0, round, 1.0, 1.0 + round, 2.0, 2.0 + round]);
            }
        }
    }

    #[test]
    fn every_chunk_is_in_one_share() {
        for chunk in 0..20 {
            let owners = (0..3).filter(|&number| Share { number, count: 3 }.has(chunk));
            assert_eq!(owners.count(), 1);
            assert!(Share::WHOLE.has(chunk));
        }
    }
}
