//! The data of epoll events: the file that has an event.
//!
//! Must stay true: the ranges do not overlap. Inodes of sockets have 32 bits, and temporary numbers
//! of sessions ([`super::named::ACCEPTING`]) at most 47.

use rustix::event::epoll::EventData;
use sidecore_bare::width::ToU64;
use sidecore_net_rings::WAITERS;

/// A file that the loop watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// The one by which calls come.
    Calls,
    /// The supervisor's end of a pair, or of a carrier, by the socket's number.
    Far(u64),
    /// A program's own datagram socket, while one of its calls waits.
    Near(u64),
    /// The socket to which the library sends the frames of the datagram socket with this number.
    Desk(u64),
    /// The process that has made the listener with this number.
    Owner(u64),
    /// A rendezvous socket of the listener with this number.
    Rendezvous(u64),
    /// The far end of a waiter of a process with rings.
    Waiter(WaiterId),
    /// A process with rings itself (pidfd), by its number: it has exited.
    Process(usize),
}

/// A waiter of a process with rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaiterId {
    pub(super) process: usize,
    pub(super) waiter: usize,
}

impl Mark {
    pub(super) fn data(self) -> EventData {
        EventData::new_u64(match self {
            Self::Calls => CALLS,
            Self::Far(inode) => inode,
            Self::Near(inode) => NEARS + inode,
            Self::Owner(inode) => OWNERS + inode,
            Self::Desk(inode) => DESKS + inode,
            Self::Rendezvous(inode) => RENDEZVOUS + inode,
            Self::Waiter(WaiterId { process, waiter }) => {
                PROCESSES + (process * WAITERS + waiter).to_u64()
            }
            Self::Process(process) => EXITS + process.to_u64(),
        })
    }

    pub(super) fn of(data: u64) -> Self {
        match data {
            CALLS => Self::Calls,
            // Only this module makes such data, from a `usize`.
            exit if exit >= EXITS => Self::Process((exit - EXITS).try_into().unwrap_or(usize::MAX)),
            waiter if waiter >= PROCESSES => {
                // Only this module makes such data, from a `usize`.
                let number = usize::try_from(waiter - PROCESSES).unwrap_or(usize::MAX);
                Self::Waiter(WaiterId {
                    process: number / WAITERS,
                    waiter: number % WAITERS,
                })
            }
            listener if listener >= RENDEZVOUS => Self::Rendezvous(listener - RENDEZVOUS),
            desk if desk >= DESKS => Self::Desk(desk - DESKS),
            owned if owned >= OWNERS => Self::Owner(owned - OWNERS),
            near if near >= NEARS => Self::Near(near - NEARS),
            inode => Self::Far(inode),
        }
    }
}

const CALLS: u64 = u64::MAX;
const NEARS: u64 = 1 << 47;
const OWNERS: u64 = NEARS + (1 << 40);
const DESKS: u64 = NEARS + (1 << 41);
const RENDEZVOUS: u64 = 1 << 48;
const PROCESSES: u64 = 1 << 52;
const EXITS: u64 = 1 << 56;

#[cfg(test)]
mod tests {
    use super::super::named::ACCEPTING;
    use super::*;

    #[test]
    fn each_mark_comes_back() {
        let inode = u64::from(u32::MAX);
        let last_key = 2 * ACCEPTING - 1;
        let waiter = |process, waiter| Mark::Waiter(WaiterId { process, waiter });
        for mark in [
            Mark::Calls,
            Mark::Far(0),
            Mark::Far(inode),
            Mark::Far(ACCEPTING),
            Mark::Far(last_key),
            Mark::Near(0),
            Mark::Near(inode),
            Mark::Owner(0),
            Mark::Owner(inode),
            Mark::Desk(0),
            Mark::Desk(inode),
            Mark::Rendezvous(0),
            Mark::Rendezvous(inode),
            waiter(0, 0),
            waiter(0, WAITERS - 1),
            waiter(1023, 1),
            Mark::Process(0),
            Mark::Process(1023),
        ] {
            assert_eq!(Mark::of(mark.data().u64()), mark);
        }
    }

    #[test]
    fn no_two_marks_share_their_data() {
        let numbers = [0, 1, u64::from(u32::MAX)];
        let mut data: Vec<u64> = vec![Mark::Calls.data().u64()];
        for number in numbers {
            for mark in [
                Mark::Far(number),
                Mark::Far(ACCEPTING + number),
                Mark::Near(number),
                Mark::Owner(number),
                Mark::Desk(number),
                Mark::Rendezvous(number),
                Mark::Process(number.try_into().unwrap()),
            ] {
                data.push(mark.data().u64());
            }
        }
        for (process, waiter) in [(0, 0), (0, 1), (1, 0), (1023, WAITERS - 1)] {
            data.push(Mark::Waiter(WaiterId { process, waiter }).data().u64());
        }
        let all = data.len();
        data.sort_unstable();
        data.dedup();
        assert_eq!(data.len(), all);
    }
}
