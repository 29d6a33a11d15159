//! Processes with rings: their shared memory, their waiters, and what they may have of both.
//!
//! Must stay true: memory, waiters and streams are bounded; a stream's number is free as soon as
//! its socket is gone ([`Lease`]); new rings take at most a fifth of the supervisor's time.

use super::mark::{Mark, WaiterId};
use crate::caller::Caller;
use crate::socket::files::is_hung_up;
use crate::socket::{Lease, Path, RingEnd, Socket, State};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use sidecore_bare::width::{ToU64 as _, ToUsize as _};
use sidecore_net::sock::client::EventSource;
use sidecore_net::sock::layout::RingStatus;
use sidecore_net_rings::{self as rings, LARGE_BYTES, Process, SEGMENT_BYTES, SLAB_BYTES, Served};
use sidecore_sync::Changed;
use sidecore_sys::{SharedMap, Sharing};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// All processes with rings.
#[derive(Debug, Default)]
pub(super) struct Rings {
    processes: Vec<Option<Member>>,
    /// Waiters to notify, by process.
    notified: Vec<(usize, u32)>,
    /// Each lease has a reference to it: their number is that of the streams.
    leases: Rc<()>,
    budget: Budget,
    /// Processes without rings: they use pairs in ways that the library does not see (io_uring).
    barred: VecDeque<i32>,
    /// Outcomes of requests so far.
    outcomes: RingStatus,
    /// The warning about a library of another version was logged.
    has_warned: bool,
}

/// The answer to a request of the library.
pub(super) type Words = [u32; rings::WORDS];

/// A process with rings.
#[derive(Debug)]
struct Member {
    segment: SharedMap,
    /// The process, by its thread group leader.
    leader: i32,
    /// The process itself, whose end the loop notices: one may exit before it has a waiter.
    _exit: OwnedFd,
    /// The far ends of its waiters' sockets.
    waiters: Vec<OwnedFd>,
    /// Slabs with the rings of several streams each.
    slabs: Vec<Rc<SharedMap>>,
    streams: Vec<Place>,
    /// Number of streams with large rings.
    large: usize,
}

impl Member {
    /// Memory for large rings, if it has fewer than `most` of them.
    fn new_large(&self, most: usize) -> Result<Rc<SharedMap>, Errno> {
        if self.large >= most {
            return Err(Errno::NOSPC);
        }
        let memory = SharedMap::reserve("sidecore-large", LARGE_BYTES, Sharing::ReadWrite);
        Ok(Rc::new(memory.map_err(|_| Errno::NOMEM)?))
    }
}

/// Memory for the rings of several streams.
fn new_slab() -> Result<Rc<SharedMap>, Errno> {
    let memory = SharedMap::reserve("sidecore-ring", SLAB_BYTES, Sharing::ReadWrite);
    Ok(Rc::new(memory.map_err(|_| Errno::NOMEM)?))
}

/// A place that a socket has got, and what its library is answered.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) ring: RingEnd,
    pub(super) lease: Rc<Lease>,
    pub(super) words: Words,
}

/// The memory of one stream's number, and the socket that uses it.
#[derive(Debug, Default)]
struct Place {
    /// Large rings stay for the next stream with the number.
    large: Option<Rc<SharedMap>>,
    inode: u64,
    is_of_datagrams: bool,
    lease: Weak<Lease>,
}

impl Place {
    /// The socket, if it still has the place.
    fn inode(&self) -> Option<u64> {
        (self.lease.strong_count() > 0).then_some(self.inode)
    }
}

/// The time for new rings: many sessions that begin together request rings together, and the stack
/// must be served meanwhile.
#[derive(Debug, Default)]
struct Budget {
    /// Earliest time of the next upgrade.
    next: Option<Instant>,
}

impl Budget {
    fn is_spent(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| now < next)
    }

    fn spend(&mut self, begun: Instant, ended: Instant) {
        let pause = ended.saturating_duration_since(begun) * UPGRADE_PAUSE;
        self.next = Some(ended + pause.min(UPGRADE_PAUSE_MAX));
    }
}

/// Event source that is polled together with the stack's rings.
pub(super) struct Watch<'s> {
    pub(super) epoll: &'s OwnedFd,
    pub(super) rings: &'s Rings,
}

impl EventSource for Watch<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn is_ready(&self) -> bool {
        let mut views = self.rings.views();
        views.any(Process::has_supervisor_news)
    }

    fn announce_sleep(&self) {
        let words = self.rings.views().filter_map(Process::supervisor_word);
        sidecore_sync::SleepWord::announce_sleep_at(words);
    }

    fn cancel_sleep(&self) {
        for word in self.rings.views().filter_map(Process::supervisor_word) {
            word.cancel_sleep();
        }
    }
}

impl Rings {
    fn views(&self) -> impl Iterator<Item = Process<'_>> {
        let members = self.processes.iter().flatten();
        members.filter_map(|member| Process::over(member.segment.slice()))
    }

    /// Notifies the waiters of a stream, at the latest at the end of this round of the loop.
    pub(super) fn notify(&mut self, ring: &RingEnd) {
        let Some(Some(member)) = self.processes.get(ring.process) else {
            return;
        };
        let (Some(process), Some(stream)) = (Process::over(member.segment.slice()), ring.view())
        else {
            return;
        };
        // A thread that starts to wait publishes its waiter before it looks again: one of the two
        // sees the other's write.
        let _ = Changed::publish();
        // Others would fill the list: a program writes any number.
        let known = |waiter: &u32| waiter.to_usize() < member.waiters.len();
        for waiter in stream.tells().filter(known) {
            process.tell_waiter(waiter, ring.stream);
            let notified = (ring.process, waiter);
            if !self.notified.contains(&notified) && self.notified.len() < NOTIFIED_MAX {
                self.notified.push(notified);
            }
        }
    }

    /// Wakes the notified waiters that sleep.
    pub(super) fn wake_notified(&mut self) {
        if self.notified.is_empty() {
            return;
        }
        let changed = Changed::publish();
        for (process, waiter) in self.notified.drain(..) {
            let Some(Some(member)) = self.processes.get(process) else {
                continue;
            };
            let view = Process::over(member.segment.slice());
            let word = view.and_then(|view| view.waiter_word(waiter));
            if word.is_some_and(|word| word.claim_after(changed))
                && let Some(socket) = member.waiters.get(waiter.to_usize())
            {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                // Full: it has been woken often enough. Closed: `has_exited` notices.
                rustix::net::send(socket, &[1], flags).ok();
            }
        }
    }

    fn member(&mut self, attachment: u32, leader: i32) -> Result<&mut Member, Errno> {
        let member = self.processes.get_mut(attachment.to_usize());
        let member = member.and_then(Option::as_mut).ok_or(Errno::STALE)?;
        // The numbers of processes are no secret: a process gets at its own memory alone.
        if member.leader != leader {
            return Err(Errno::STALE);
        }
        Ok(member)
    }

    /// True if the process of the caller gets no rings.
    fn is_barred(&self, leader: i32) -> bool {
        self.barred.contains(&leader)
    }

    /// A process uses its pairs past the library: it gets no rings from now on. Returns the sockets
    /// whose rings have to be taken back.
    pub(super) fn bar(&mut self, leader: i32) -> Vec<u64> {
        if self.barred.len() >= BARRED_MAX {
            self.barred.pop_front();
        }
        self.barred.push_back(leader);
        let members = self.processes.iter().flatten();
        let its = members.filter(|member| member.leader == leader);
        let places = its.flat_map(|member| &member.streams);
        places.filter_map(Place::inode).collect()
    }

    /// Attaches a process: it gets its segment.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it has another version, or is barred, or there is no stack. No memory or
    /// descriptors are left.
    pub(super) fn attach(
        &mut self,
        caller: &Caller<'_>,
        version: u32,
        has_stack: bool,
        epoll: &OwnedFd,
    ) -> Result<Words, Errno> {
        if version != rings::VERSION {
            if !std::mem::replace(&mut self.has_warned, true) {
                crate::aside::say(format!(
                    "a program has loaded a libsidecore_net_preload.so of another version \
                     ({version}, not {}): it is served by pairs, slower; install program \
                     and library from one package, or name the library in SIDECORE_NET_LIBRARY",
                    rings::VERSION
                ));
            }
            return Err(Errno::OPNOTSUPP);
        }
        // Only sessions of the stack use rings.
        if !has_stack {
            return Err(Errno::OPNOTSUPP);
        }
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        if self.is_barred(leader) {
            return Err(Errno::OPNOTSUPP);
        }
        // The index is a part of the waiters' epoll data, so entries do not move; free ones are
        // used again.
        let places = &mut self.processes;
        let is_former = |place: &Option<Member>| {
            let member = place.as_ref();
            member.is_some_and(|it| it.leader == leader && it.waiters.is_empty())
        };
        if let Some(former) = places.iter().position(is_former) {
            // It could not use what it was given, or has executed another program since. It has no
            // rings, which need a waiter.
            places[former] = None;
        }
        let index = places.iter().position(Option::is_none);
        let index = index.unwrap_or(places.len());
        if index >= PROCESSES_MAX {
            return Err(Errno::NOSPC);
        }
        let number = u32::try_from(index).map_err(|_| Errno::NOSPC)?;
        let exit = caller.process(leader)?;
        epoll::add(epoll, &exit, Mark::Process(index).data(), EventFlags::IN)?;
        let segment = SharedMap::reserve("sidecore-rings", SEGMENT_BYTES, Sharing::ReadWrite);
        let segment = segment.map_err(|_| Errno::NOMEM)?;
        let file = caller.give(segment.file())?;
        let member = Member {
            segment,
            leader,
            _exit: exit,
            waiters: Vec::new(),
            slabs: Vec::new(),
            streams: Vec::new(),
            large: 0,
        };
        if index == places.len() {
            places.push(Some(member));
        } else {
            places[index] = Some(member);
        }
        Ok([rings::VERSION, number, file.cast_unsigned(), 0])
    }

    /// Adds a waiter to a process: a socket by which its thread is woken.
    ///
    /// # Errors
    /// `ESTALE`: the process is not attached so. No place or descriptors are left.
    pub(super) fn add_waiter(
        &mut self,
        caller: &Caller<'_>,
        attachment: u32,
        epoll: &OwnedFd,
    ) -> Result<Words, Errno> {
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        let member = self.member(attachment, leader)?;
        let waiter = member.waiters.len();
        if waiter >= rings::WAITERS {
            return Err(Errno::NOSPC);
        }
        let number = u32::try_from(waiter).map_err(|_| Errno::NOSPC)?;
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let process = attachment.to_usize();
        let mark = Mark::Waiter(WaiterId { process, waiter }).data();
        epoll::add(epoll, &far, mark, EventFlags::IN)?;
        let file = caller.give(near.as_fd())?;
        member.waiters.push(far);
        Ok([number, file.cast_unsigned(), 0, 0])
    }

    /// Checks that a process may request an upgrade now.
    ///
    /// # Errors
    /// `EAGAIN`: too many were made. `ESTALE`, `EOPNOTSUPP`: not this process.
    pub(super) fn admit(&mut self, caller: &Caller<'_>, attachment: u32) -> Result<(), Errno> {
        if self.budget.is_spent(Instant::now()) {
            return Err(Errno::AGAIN);
        }
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        // Without a waiter a program would hear nothing of its rings.
        if self.member(attachment, leader)?.waiters.is_empty() {
            return Err(Errno::OPNOTSUPP);
        }
        // The process uses io_uring, which writes past the library.
        if self.is_barred(leader) {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// An upgrade was tried, successfully or not.
    pub(super) fn spend(&mut self, begun: Instant) {
        self.budget.spend(begun, Instant::now());
    }

    /// Counts the outcome of a request for rings, or of one that precedes it.
    pub(super) fn count<T>(&mut self, outcome: &Result<T, Errno>) {
        let outcomes = &mut self.outcomes;
        let counter = match outcome {
            Ok(_) => &mut outcomes.granted,
            Err(Errno::AGAIN) => &mut outcomes.put_off,
            Err(Errno::NOSPC) => &mut outcomes.refused_limit,
            Err(Errno::NOMEM | Errno::MFILE | Errno::NFILE) => &mut outcomes.refused_memory,
            Err(_) => &mut outcomes.refused_use,
        };
        *counter += 1;
    }

    /// The account of all processes.
    pub(super) fn status(&self) -> RingStatus {
        let members = self.processes.iter().flatten();
        let places = members.flat_map(|member| &member.streams);
        let used = || places.clone().filter(|place| place.inode().is_some());
        let count = |is_of_datagrams| {
            let alike = used().filter(|place| place.is_of_datagrams == is_of_datagrams);
            alike.count().to_u64()
        };
        RingStatus {
            sessions: count(false),
            datagram_sockets: count(true),
            ..self.outcomes
        }
    }

    /// Moves a stream from its pair to rings.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it keeps its pair. `EAGAIN`: bytes of the pair have to pass first.
    pub(super) fn upgrade(
        &mut self,
        caller: &Caller<'_>,
        attachment: u32,
        inode: u64,
        socket: &mut Socket,
    ) -> Result<Words, Errno> {
        let (State::Open(stream), Some(far)) = (&mut socket.state, &socket.far) else {
            return Err(Errno::OPNOTSUPP);
        };
        // A stream that ends, or that has a place in rings already, keeps its pair.
        let is_pair = matches!(stream.path, Path::Pair);
        if !is_pair || stream.is_ending() || socket.ring_place.is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        // Bytes of the pair precede those of the rings, so the stack has to take them first; the
        // library asks again.
        let waits = rustix::io::ioctl_fionread(far).is_ok_and(|bytes| bytes > 0);
        if stream.outbound.is_waiting() || stream.head.is_filler() || waits {
            return Err(Errno::AGAIN);
        }
        let taken = self.take_place(caller, attachment, inode, false)?;
        // The memory is checked before the place is used, so that it stays free after a failure.
        taken.ring.view().ok_or(Errno::NOMEM)?.begin();
        stream.path = Path::Rings(taken.ring);
        socket.ring_place = Some(taken.lease);
        Ok(taken.words)
    }

    /// A free place in a process for the socket with this inode, with rings that are to be begun.
    /// Those of datagrams are large ones from the start.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOMEM`: none is left. `EMFILE`: the program has no descriptors left;
    /// `EOPNOTSUPP` if only some. `ESTALE`: the process is not attached so.
    pub(super) fn take_place(
        &mut self,
        caller: &Caller<'_>,
        attachment: u32,
        inode: u64,
        is_large: bool,
    ) -> Result<Taken, Errno> {
        if self.streams() >= STREAMS_MAX {
            return Err(Errno::NOSPC);
        }
        let all = Rc::clone(&self.leases);
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        let member = self.member(attachment, leader)?;
        // The place of a stream that is over is used again before a new one is added.
        let is_free = |place: &Place| place.inode().is_none();
        let has_large = |place: &Place| is_large && is_free(place) && place.large.is_some();
        let free = member.streams.iter().position(has_large);
        let free = free.or_else(|| member.streams.iter().position(is_free));
        let index = free.unwrap_or(member.streams.len());
        let number = u32::try_from(index).map_err(|_| Errno::NOSPC)?;
        if number >= rings::STREAMS {
            return Err(Errno::NOSPC);
        }
        // All memory first: the program cannot be relieved of a descriptor.
        let slab = (number / rings::SLAB_STREAMS).to_usize();
        let new_slab = match slab == member.slabs.len() {
            true => Some(new_slab()?),
            false => None,
        };
        let mut large = member.streams.get(index).and_then(|it| it.large.clone());
        let mut large_file = -1;
        if is_large && large.is_none() {
            // Streams that fill their rings find some left.
            let memory = member.new_large(LARGE_OF_PROCESS_MAX / 2)?;
            large_file = caller.give(memory.file())?;
            large = Some(memory);
        }
        // Only the first stream of a slab passes the descriptor of its memory: last, so that no
        // failure loses that.
        let mut file = -1;
        if let Some(memory) = new_slab {
            // The library would ask again after EMFILE, and the program have one more descriptor
            // of large rings each time.
            let final_or = |error| {
                if large_file < 0 {
                    error
                } else {
                    Errno::OPNOTSUPP
                }
            };
            file = caller.give(memory.file()).map_err(final_or)?;
            member.slabs.push(memory);
        }
        if index == member.streams.len() {
            member.streams.push(Place::default());
        }
        let memory = member.slabs.get(slab).ok_or(Errno::NOSPC)?;
        let place = member.streams.get_mut(index).ok_or(Errno::NOSPC)?;
        let lease = Rc::new(Lease::of(&all));
        place.large.clone_from(&large);
        place.inode = inode;
        place.is_of_datagrams = is_large;
        place.lease = Rc::downgrade(&lease);
        let ring = RingEnd {
            process: attachment.to_usize(),
            stream: number,
            memory: Rc::clone(memory),
            large,
            served: Served::default(),
        };
        member.large += usize::from(large_file >= 0);
        let words = [number, file.cast_unsigned(), large_file.cast_unsigned(), 0];
        Ok(Taken { ring, lease, words })
    }

    /// Gives a stream large rings, which later streams with its number inherit.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it has them, or the process has enough of them.
    pub(super) fn grow(
        &mut self,
        caller: &Caller<'_>,
        attachment: u32,
        path: &mut Path,
    ) -> Result<Words, Errno> {
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        let member = self.member(attachment, leader)?;
        let Path::Rings(ring) = path else {
            return Err(Errno::OPNOTSUPP);
        };
        if ring.process != attachment.to_usize() {
            return Err(Errno::OPNOTSUPP);
        }
        let place = member.streams.get(ring.stream.to_usize());
        if place.ok_or(Errno::OPNOTSUPP)?.large.is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        let memory = member.new_large(LARGE_OF_PROCESS_MAX)?;
        let file = caller.give(memory.file())?;
        if let Some(place) = member.streams.get_mut(ring.stream.to_usize()) {
            place.large = Some(Rc::clone(&memory));
        }
        ring.large = Some(memory);
        member.large += 1;
        Ok([ring.stream, file.cast_unsigned(), 0, 0])
    }

    /// Number of streams with rings.
    fn streams(&self) -> usize {
        Rc::strong_count(&self.leases) - 1
    }

    /// The sockets whose rings have new bytes or new room.
    pub(super) fn take_news(&mut self) -> Vec<u64> {
        let mut inodes = Vec::new();
        for member in self.processes.iter().flatten() {
            if let Some(process) = Process::over(member.segment.slice()) {
                process.take_supervisor_news(|stream| {
                    let place = member.streams.get(stream.to_usize());
                    inodes.extend(place.and_then(Place::inode));
                });
            }
        }
        inodes
    }

    /// Reads an event of a waiter's socket: a wake-up call, or its close. Returns true if the
    /// process has exited, or has executed another program.
    pub(super) fn has_exited(&self, id: WaiterId, epoll: &OwnedFd) -> bool {
        let WaiterId { process, waiter } = id;
        let Some(Some(member)) = self.processes.get(process) else {
            return false;
        };
        let Some(socket) = member.waiters.get(waiter) else {
            return false;
        };
        let mut bytes = [0; 64];
        let received = rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT);
        let is_gone = match received {
            Ok((_, count)) => count == 0,
            Err(error) => error != Errno::AGAIN && error != Errno::INTR,
        };
        // Another waiter's socket may be closed alone and is idle then; the first one stands for
        // the process.
        if !is_gone || waiter != 0 && !is_hung_up(socket) {
            return false;
        }
        epoll::delete(epoll, socket).ok();
        waiter == 0
    }

    /// Removes a process; the sockets that had rings with it.
    pub(super) fn remove(&mut self, process: usize) -> Vec<u64> {
        let member = self.processes.get_mut(process).and_then(Option::take);
        let places = member.iter().flat_map(|member| &member.streams);
        places.filter_map(Place::inode).collect()
    }
}

/// Pause after an upgrade, as a multiple of its duration: a request within it is answered with
/// EAGAIN.
const UPGRADE_PAUSE: u32 = 4;
const UPGRADE_PAUSE_MAX: Duration = Duration::from_millis(5);
const PROCESSES_MAX: usize = 1024;
/// Remembered processes without rings.
const BARRED_MAX: usize = 1024;
/// Streams with large rings per process, 1 MiB each.
const LARGE_OF_PROCESS_MAX: usize = 32;
/// Streams with rings, of all processes: 68 KiB each.
const STREAMS_MAX: usize = 4096;
/// Waiters that are notified in one round; others find their events at their next poll.
const NOTIFIED_MAX: usize = 4096;

#[cfg(test)]
mod tests;
