//! Ranks started by `mpirun`, `srun` or the like: their messages, their barriers, their cores.
//!
//! All communication goes over MPI. Orders, events and states go point to point ([`Post`]). The
//! sums of one search that several ranks share are gathers on a team's communicator ([`Peers`]).
//!
//! Must stay true: only the thread that initialised MPI calls it (`MPI_THREAD_FUNNELED`: the level
//! that every library supports at full speed). That suffices: a rank's coordinator and tasks talk
//! to that thread by channels, and a team's search runs on it. [`Job`] cannot leave that thread,
//! and a team's communicator is a local variable of that thread, so that no other thread can call.
//! No thread waits in a blocking receive: it would spin, as MPI's waits do. In a gather all ranks
//! of a team are at work, so there spinning is right.
//!
//! A rank that dies ends the job: the launcher ends the others, and a new job resumes from the
//! checkpoint. (Under `mpirun --enable-recovery` of Open MPI 4.1 a trial program hung after a
//! rank's death; and recovery by ULFM needs calls that the `mpi` crate lacks.)

use super::ranks::layout::Layout;
use super::ranks::post::{Mail, Pause, Post};
use crate::analysis::coordinator::Member;
use crate::runner::Share;
use crate::runner::split::Peers;
use mpi::Threading;
use mpi::datatype::Equivalence;
use mpi::environment::Universe;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Root, Source};
use sidecore_sys::cpu;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Errors that keep an MPI job from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum MpiError {
    /// MPI was initialised already.
    #[error("MPI is started in this process already")]
    Twice,
    /// The library does not support the threads of this program.
    #[error("this MPI library wants programs of one thread; use one with MPI_THREAD_FUNNELED")]
    Threads,
    /// The ranks have different runs.
    #[error(
        "rank {rank} has another alignment, program or options than rank 0: give all ranks the \
         same command and files"
    )]
    Different {
        /// The first such rank.
        rank: usize,
    },
    /// The cores.
    #[error(transparent)]
    Sys(#[from] sidecore_sys::SysError),
}

/// This process as one rank of a job, on the thread that initialised MPI. Dropping it finalises
/// MPI, which waits for the other ranks.
pub struct Job {
    world: SimpleCommunicator,
    /// Arrived while a message was being sent.
    arrived: VecDeque<Mail>,
    cpus: Vec<usize>,
    // Last: it ends MPI.
    _universe: Universe,
}

/// True if this process was started by `mpirun` or the like.
#[must_use]
pub(crate) fn is_launched() -> bool {
    let names = ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"];
    names.iter().any(|name| std::env::var_os(name).is_some())
}

impl Job {
    /// Joins the other ranks, all of which must have the run of this `identity`. Blocks until all
    /// are there.
    ///
    /// # Errors
    /// `MpiError`: all ranks get `MpiError::Different` where one does.
    pub fn begin(identity: &str) -> Result<Self, MpiError> {
        // Only this thread calls MPI.
        let begun = mpi::initialize_with_threading(Threading::Funneled);
        let (universe, level) = begun.ok_or(MpiError::Twice)?;
        if level < Threading::Funneled {
            return Err(MpiError::Threads);
        }
        let world = universe.world();
        // Ranks with other input or options would compute parts of another analysis.
        let own = xxhash_rust::xxh3::xxh3_64(identity.as_bytes());
        let mut all = vec![0_u64; world.size() as usize];
        world.all_gather_into(&own, &mut all[..]);
        if let Some(rank) = all.iter().position(|other| *other != all[0]) {
            return Err(MpiError::Different { rank });
        }
        let cpus = own_cpus(&world)?;
        Ok(Self {
            world,
            arrived: VecDeque::new(),
            cpus,
            _universe: universe,
        })
    }

    /// This rank's number, from 0.
    #[must_use]
    pub fn rank(&self) -> Member {
        self.world.rank() as Member
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.world.size() as u32
    }

    /// This rank's own cores: those that it may use, divided among the ranks that may use them,
    /// too.
    #[must_use]
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Broadcasts rank 0's number. Blocks until all ranks have called it.
    #[must_use]
    pub fn agree(&self, number: u32) -> u32 {
        let mut agreed = number;
        self.world.process_at_rank(0).broadcast_into(&mut agreed);
        agreed
    }

    /// Joins this rank's team. Blocks until all ranks have called it, with the same layout.
    #[must_use]
    pub(crate) fn join_team(&self, layout: Layout) -> MpiTeam {
        let rank = self.rank();
        let color = Color::with_value(layout.team(rank) as i32);
        let team = self.world.split_by_color(color);
        TEAM.with(|own| *own.borrow_mut() = team);
        MpiTeam {
            share: layout.share(rank),
        }
    }

    /// Ends all ranks of the job, with this exit status for the launcher. Messages must have been
    /// printed before.
    pub fn abort(&self, status: i32) -> ! {
        self.world.abort(status)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A communicator is freed before MPI ends.
        TEAM.with(|own| own.borrow_mut().take());
    }
}

impl Post for Job {
    fn send(&mut self, to: Member, message: &[u8]) {
        let to = self.world.process_at_rank(to as i32);
        mpi::request::scope(|scope| {
            let mut sending = to.immediate_send_with_tag(scope, message, TAG);
            let mut pause = Pause::default();
            loop {
                sending = match sending.test() {
                    Ok(_) => return,
                    Err(unfinished) => unfinished,
                };
                // The receiver may be sending to this rank: receive meanwhile, or both would wait
                // for ever.
                match take(&self.world) {
                    Some(mail) => self.arrived.push_back(mail),
                    None => std::thread::sleep(pause.take()),
                }
            }
        });
    }

    fn receive(&mut self) -> Option<Mail> {
        self.arrived.pop_front().or_else(|| take(&self.world))
    }
}

/// A message that has arrived, whole.
fn take(world: &SimpleCommunicator) -> Option<Mail> {
    let any = world.any_process();
    let (message, status) = any.immediate_matched_probe_with_tag(TAG)?;
    let mut bytes = vec![0_u8; status.count(u8::equivalent_datatype()) as usize];
    message.matched_receive_into(&mut bytes[..]);
    Some(Mail::From(status.source_rank() as Member, bytes))
}

/// This rank's place in a team: gathers only on the thread that initialised MPI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MpiTeam {
    share: Share,
}

impl Peers for MpiTeam {
    fn share(&self) -> Share {
        self.share
    }

    /// # Panics
    /// On another thread than the one that joined the team.
    fn gather(&self, own: &[f64], all: &mut [f64]) {
        TEAM.with(|team| match team.borrow().as_ref() {
            Some(team) => team.all_gather_into(own, all),
            None => panic!("a thread that has no team wants to meet one"),
        });
    }
}

thread_local! {
    /// The communicator of this rank's team.
    static TEAM: RefCell<Option<SimpleCommunicator>> = const { RefCell::new(None) };
}

/// This rank's share of its machine's cores.
fn own_cpus(world: &SimpleCommunicator) -> Result<Vec<usize>, MpiError> {
    let near = world.split_shared(world.rank());
    let own = cpu::allowed()?;
    let mut mask = [0_u64; MASK];
    for &cpu in own.iter().filter(|&&cpu| cpu < 64 * MASK) {
        mask[cpu / 64] |= 1 << (cpu % 64);
    }
    let mut masks = vec![0_u64; MASK * near.size() as usize];
    near.all_gather_into(&mask[..], &mut masks[..]);
    let masks: Vec<&[u64]> = masks.chunks(MASK).collect();
    Ok(share(&own, &masks, near.rank() as usize))
}

/// The cores of `own` that belong to rank `me`, where `masks` are the cores of the machine's ranks.
fn share(own: &[usize], masks: &[&[u64]], me: usize) -> Vec<usize> {
    let may = |rank: usize, cpu: usize| {
        let word = masks[rank].get(cpu / 64);
        word.is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    };
    let mine = own.iter().enumerate().filter(|&(at, &cpu)| {
        let sharers: Vec<usize> = (0..masks.len()).filter(|&rank| may(rank, cpu)).collect();
        sharers.is_empty() || sharers[at % sharers.len()] == me
    });
    let mine: Vec<usize> = mine.map(|(_, &cpu)| cpu).collect();
    if mine.is_empty() {
        // More ranks than cores.
        return own
            .iter()
            .copied()
            .skip(me % own.len().max(1))
            .take(1)
            .collect();
    }
    mine
}

/// Words of a set of cores: 1,024.
const MASK: usize = 16;
/// All our messages.
const TAG: i32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_shared_out() {
        let both: &[u64] = &[0b1111];
        let masks = [both, both];
        assert_eq!(share(&[0, 1, 2, 3], &masks, 0), [0, 2]);
        assert_eq!(share(&[0, 1, 2, 3], &masks, 1), [1, 3]);
        // Bound by mpirun: each its own.
        let masks: [&[u64]; 2] = [&[0b01], &[0b10]];
        assert_eq!(share(&[0], &masks, 0), [0]);
        assert_eq!(share(&[1], &masks, 1), [1]);
        // More ranks than cores.
        let one: &[u64] = &[0b1];
        let masks = [one, one, one];
        for me in 0..3 {
            assert_eq!(share(&[0], &masks, me), [0]);
        }
    }
}
