//! Started by `mpirun`: who this process is, where rank 0 is, which cores are its own.
//!
//! MPI is needed at the start only: it numbers the processes, and tells all of them where rank 0
//! listens. Then it is ended, in all of them, and the rest goes over TCP (`ranks.rs`). So a rank
//! may die: with `mpirun --enable-recovery` (Open MPI 4 and 5) the others live on and do its
//! pieces. Without that, Open MPI ends them all as soon as one dies; what was done is in the
//! checkpoint, and the same command goes on.
//!
//! Must stay true: every rank calls [`begin`], or none; no rank waits for another after it.

use super::ranks::Leader;
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};
use sidecore_sys::cpu;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Errors that keep an MPI job from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// MPI itself.
    #[error("MPI is started in this process already")]
    Twice,
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen for the others: {0}")]
    Listen(std::io::Error),
    /// Rank 0 has announced nothing.
    #[error("rank 0 could not start: see its message")]
    NoLeader,
    /// The cores.
    #[error(transparent)]
    Sys(#[from] sidecore_sys::SysError),
}

/// One process of a job.
#[derive(Debug)]
pub struct Rank {
    /// From 0.
    pub rank: u32,
    /// Number found.
    pub size: u32,
    /// The cores that are its own: those that it may use, shared out among the ranks that may, too.
    pub cpus: Vec<usize>,
    /// Rank 0's host and port.
    pub address: String,
    /// The token that rank 0 lets in.
    pub token: String,
    /// Rank 0: where the others connect.
    pub leader: Option<Leader>,
}

/// True where this process was started by `mpirun` or the like.
#[must_use]
pub fn is_launched() -> bool {
    let names = ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"];
    names.iter().any(|name| std::env::var_os(name).is_some())
}

/// Meets the other ranks. Blocks until all are there. The seed of the token is taken from the
/// system by rank 0.
///
/// # Errors
/// [`MpiError`].
pub fn begin() -> Result<Rank, MpiError> {
    let universe = mpi::initialize().ok_or(MpiError::Twice)?;
    let world = universe.world();
    let (rank, size) = (world.rank() as u32, world.size() as u32);
    // The ranks of this machine.
    let near = world.split_shared(world.rank());
    let mut nearest = near.size() as u32;
    let mut least = 0;
    world.all_reduce_into(&nearest, &mut least, SystemOperation::min());
    nearest = least;
    let own = cpu::allowed()?;
    let mut mask = [0_u64; MASK];
    for &cpu in own.iter().filter(|&&cpu| cpu < 64 * MASK) {
        mask[cpu / 64] |= 1 << (cpu % 64);
    }
    let mut masks = vec![0_u64; MASK * near.size() as usize];
    near.all_gather_into(&mask[..], &mut masks[..]);
    let masks: Vec<&[u64]> = masks.chunks(MASK).collect();
    let cpus = share(&own, &masks, near.rank() as usize);
    let mut announced = [0_u8; ANNOUNCED_BYTES];
    let mut leader = None;
    let mut failed = None;
    if rank == 0 {
        let one_machine = nearest == size;
        match listen(one_machine) {
            Ok((text, made)) => {
                announced[..text.len()].copy_from_slice(text.as_bytes());
                leader = Some(made);
            }
            Err(error) => failed = Some(error),
        }
    }
    world.process_at_rank(0).broadcast_into(&mut announced[..]);
    drop(near);
    drop(universe);
    if let Some(error) = failed {
        return Err(MpiError::Listen(error));
    }
    let text = String::from_utf8_lossy(&announced);
    let (address, token) = text
        .trim_end_matches('\0')
        .split_once(' ')
        .ok_or(MpiError::NoLeader)?;
    Ok(Rank {
        rank,
        size,
        cpus,
        address: address.to_owned(),
        token: token.to_owned(),
        leader,
    })
}

/// Rank 0's address and token as one text, and where it listens.
fn listen(one_machine: bool) -> std::io::Result<(String, Leader)> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let (host, bound) = match one_machine {
        true => (
            "127.0.0.1".to_owned(),
            vec![IpAddr::from(Ipv4Addr::LOCALHOST)],
        ),
        false => (
            std::fs::read_to_string("/proc/sys/kernel/hostname")?
                .trim()
                .to_owned(),
            vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
        ),
    };
    let mut last = std::io::ErrorKind::AddrNotAvailable.into();
    for address in bound {
        match Leader::bind(address, token.clone()) {
            Ok(leader) => {
                let text = format!("{host}:{} {token}", leader.port()?);
                if text.len() > ANNOUNCED_BYTES {
                    return Err(std::io::Error::other("this machine's name is too long"));
                }
                return Ok((text, leader));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Of the cores `own`, those that are rank `me`'s where `masks` may be used by the machine's ranks.
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
/// Bytes of rank 0's address and token.
const ANNOUNCED_BYTES: usize = 512;

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
