//! Streams whose bytes pass through rings: requests of the preload library.
//!
//! A session's pair stays open; its bytes pass through rings once the library of the program that
//! uses it has requested that ([`sidecore_net_rings`]). Must stay true: a stream can be taken back
//! at any time without losing or reordering a byte. Bytes in the pair of a stream with rings come
//! from a process other than the rings' owner, so the stream is then taken back for good. A process
//! that has exited, or has executed another program, has no rings.

use super::{Reply, Supervisor, ZERO};
use crate::caller::Caller;
use crate::socket::{RingEnd, State, is_hung_up};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use sidecore_net::sock::client::EventSource;
use sidecore_net_rings::{self as rings, LARGE_BYTES, Process, SEGMENT_BYTES, SLAB_BYTES, Served};
use sidecore_sync::Changed;
use sidecore_sys::{SharedMap, Sharing};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// All processes with rings.
#[derive(Debug, Default)]
pub(super) struct Rings {
    processes: Vec<Option<Member>>,
    /// Waiters to notify, by process.
    told: Vec<(usize, u32)>,
    /// Streams that are to be taken back once no copy is in progress.
    retaking: Vec<u64>,
    streams: usize,
    /// Earliest time of the next upgrade: many sessions that begin together request rings together,
    /// and upgrading them all at once would delay the stack.
    upgrade_at: Option<Instant>,
    /// Processes without rings: they use pairs in ways that the library does not see (io_uring).
    barred: VecDeque<i32>,
    /// The warning about a library of another version was logged.
    has_told_of_version: bool,
}

/// A process with rings.
#[derive(Debug)]
struct Member {
    segment: SharedMap,
    /// The process, by its thread group leader.
    leader: i32,
    /// The far ends of its waiters' sockets.
    waiters: Vec<OwnedFd>,
    /// Slabs with the rings of several streams each.
    slabs: Vec<Rc<SharedMap>>,
    streams: Vec<Place>,
    /// Number of streams with large rings.
    large: usize,
}

/// A stream's large rings, and the socket that uses it.
#[derive(Debug, Default)]
struct Place {
    large: Option<Rc<SharedMap>>,
    inode: Option<u64>,
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
    pub(super) fn tell(&mut self, ring: &RingEnd) {
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
        for waiter in stream.tells() {
            process.tell_waiter(waiter, ring.stream);
            if !self.told.contains(&(ring.process, waiter)) && self.told.len() < TOLD_MAX {
                self.told.push((ring.process, waiter));
            }
        }
    }

    /// Wakes the notified waiters that sleep.
    pub(super) fn wake_told(&mut self) {
        if self.told.is_empty() {
            return;
        }
        let changed = Changed::publish();
        for (process, waiter) in self.told.drain(..) {
            let Some(Some(member)) = self.processes.get(process) else {
                continue;
            };
            let view = Process::over(member.segment.slice());
            let word = view.and_then(|view| view.waiter_word(waiter));
            if word.is_some_and(|word| word.claim_after(changed))
                && let Some(socket) = member.waiters.get(waiter as usize)
            {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                // Full: it has been woken often enough. Closed: `answer_waiter` notices.
                rustix::net::send(socket, &[1], flags).ok();
            }
        }
    }

    fn member(&mut self, attachment: u32, leader: i32) -> Result<&mut Member, Errno> {
        let member = self.processes.get_mut(attachment as usize);
        let member = member.and_then(Option::as_mut).ok_or(Errno::STALE)?;
        if member.leader != leader {
            return Err(Errno::STALE);
        }
        Ok(member)
    }
}

impl Supervisor {
    /// Serves a request of the library.
    pub(super) fn serve_rings(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let name = caller.int(2);
        let target = caller.call.arguments[3];
        let asked = caller.read_int(target)?.cast_unsigned();
        let words = match name {
            rings::ATTACH => self.attach_process(caller, asked)?,
            rings::WAITER => self.add_waiter(caller, asked)?,
            rings::UPGRADE => self.upgrade(caller, asked)?,
            rings::GROW => self.grow(caller, asked)?,
            rings::TAKE_BACK => {
                let inode = caller.inode(caller.int(0)).ok_or(Errno::BADF)?;
                if !self.take_back(inode, false) {
                    return Err(Errno::AGAIN);
                }
                self.bar(inode);
                return Ok(ZERO);
            }
            rings::LISTENER_CLOSED => {
                self.look_at_listener(asked.into());
                return Ok(ZERO);
            }
            _ => return Err(Errno::NOPROTOOPT),
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        caller.write(target, &bytes)?;
        Ok(ZERO)
    }

    fn attach_process(
        &mut self,
        caller: &Caller<'_>,
        version: u32,
    ) -> Result<[u32; rings::WORDS], Errno> {
        if version != rings::VERSION {
            if !std::mem::replace(&mut self.rings.has_told_of_version, true) {
                crate::aside::say(format!(
                    "a program has loaded a libsidecore_net_preload.so of another version \
                     ({version}, not {}): it is served by pairs, slower; put the library of this \
                     build beside `sidecore`, or say where it is by SIDECORE_NET_LIBRARY",
                    rings::VERSION
                ));
            }
            return Err(Errno::OPNOTSUPP);
        }
        // Only sessions of the stack use rings.
        if self.client.is_none() {
            return Err(Errno::OPNOTSUPP);
        }
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        if self.rings.barred.contains(&leader) {
            return Err(Errno::OPNOTSUPP);
        }
        // The index is a part of the waiters' epoll data, so entries do not move; free ones are
        // used again.
        let places = &mut self.rings.processes;
        let index = places.iter().position(Option::is_none);
        let index = index.unwrap_or(places.len());
        if index >= PROCESSES_MAX {
            return Err(Errno::NOSPC);
        }
        let segment = SharedMap::reserve("sidecore-rings", SEGMENT_BYTES, Sharing::ReadWrite);
        let segment = segment.map_err(|_| Errno::NOMEM)?;
        let file = self.listener.give(caller.call.id, segment.file(), true)?;
        let member = Member {
            segment,
            leader,
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
        Ok([rings::VERSION, index as u32, file.cast_unsigned(), 0])
    }

    fn add_waiter(
        &mut self,
        caller: &Caller<'_>,
        attachment: u32,
    ) -> Result<[u32; rings::WORDS], Errno> {
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        let listener = Rc::clone(&self.listener);
        let member = self.rings.member(attachment, leader)?;
        let number = member.waiters.len();
        if number >= rings::WAITERS {
            return Err(Errno::NOSPC);
        }
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let mark = PROCESSES + u64::from(attachment) * rings::WAITERS as u64 + number as u64;
        epoll::add(&self.epoll, &far, EventData::new_u64(mark), EventFlags::IN)?;
        let file = listener.give(caller.call.id, near.as_fd(), true)?;
        member.waiters.push(far);
        Ok([number as u32, file.cast_unsigned(), 0, 0])
    }

    fn upgrade(
        &mut self,
        caller: &Caller<'_>,
        attachment: u32,
    ) -> Result<[u32; rings::WORDS], Errno> {
        let begun = Instant::now();
        if self.rings.upgrade_at.is_some_and(|at| begun < at) {
            return Err(Errno::AGAIN);
        }
        let upgraded = self.upgrade_now(caller, attachment);
        let pause = begun.elapsed() * UPGRADE_PAUSE;
        self.rings.upgrade_at = Some(Instant::now() + pause.min(UPGRADE_PAUSE_MAX));
        upgraded
    }

    fn upgrade_now(
        &mut self,
        caller: &Caller<'_>,
        attachment: u32,
    ) -> Result<[u32; rings::WORDS], Errno> {
        let inode = caller.inode(caller.int(0)).ok_or(Errno::BADF)?;
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        self.rings.member(attachment, leader)?;
        // The process uses io_uring, which writes past the library.
        if self.rings.barred.contains(&leader) {
            return Err(Errno::OPNOTSUPP);
        }
        // Bytes that the program wrote to the pair precede those it will write to the rings.
        self.take_from_program(inode);
        let socket = self.sockets.get_mut(&inode).ok_or(Errno::OPNOTSUPP)?;
        let (State::Open(stream), Some(far)) = (&mut socket.state, &socket.far) else {
            return Err(Errno::OPNOTSUPP);
        };
        if stream.ring.is_some() {
            // Another process has the rings: two use the stream, so neither may keep them.
            stream.is_barred = true;
            self.rings.retaking.push(inode);
            self.retake();
            return Err(Errno::OPNOTSUPP);
        }
        // A stream that ends, or that has a place in rings already, keeps its pair.
        let is_over = stream.near_is_ending || stream.near_ended || stream.peer_ended;
        if stream.is_barred || is_over || socket.ring_place.is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        // Bytes of the pair precede those of the rings, so the stack has to take them first; the
        // library asks again.
        let waits = rustix::io::ioctl_fionread(far).is_ok_and(|bytes| bytes > 0);
        if stream.near_waits || stream.filler > 0 || waits {
            return Err(Errno::AGAIN);
        }
        if self.rings.streams >= STREAMS_MAX {
            return Err(Errno::OPNOTSUPP);
        }
        let member = self.rings.member(attachment, leader)?;
        // The place of a stream that is over is used again before a new one is added.
        let free = member
            .streams
            .iter()
            .position(|place| place.inode.is_none());
        let number = free.unwrap_or(member.streams.len());
        if number >= rings::STREAMS as usize {
            return Err(Errno::OPNOTSUPP);
        }
        // Only the first stream of a slab passes the descriptor of its memory.
        let mut file = -1;
        let slab = number / rings::SLAB_STREAMS as usize;
        if slab == member.slabs.len() {
            let memory = SharedMap::reserve("sidecore-ring", SLAB_BYTES, Sharing::ReadWrite);
            let memory = memory.map_err(|_| Errno::OPNOTSUPP)?;
            file = self.listener.give(caller.call.id, memory.file(), true)?;
            member.slabs.push(Rc::new(memory));
        }
        if number == member.streams.len() {
            member.streams.push(Place::default());
        }
        let memory = member.slabs.get(slab).ok_or(Errno::NOSPC)?;
        let place = member.streams.get_mut(number).ok_or(Errno::NOSPC)?;
        let ring = RingEnd {
            process: attachment as usize,
            stream: number as u32,
            memory: Rc::clone(memory),
            large: place.large.clone(),
            served: Served::default(),
            is_back: false,
        };
        // The memory is checked before the place is taken, so that it stays free after a failure.
        ring.view().ok_or(Errno::NOMEM)?.begin();
        place.inode = Some(inode);
        stream.ring = Some(ring);
        socket.ring_place = Some((attachment as usize, number as u32));
        self.rings.streams += 1;
        Ok([number as u32, file.cast_unsigned(), 0, 0])
    }

    /// Gives a stream large rings, which later streams with its number inherit.
    fn grow(&mut self, caller: &Caller<'_>, attachment: u32) -> Result<[u32; rings::WORDS], Errno> {
        let leader = caller.leader().ok_or(Errno::SRCH)?;
        let inode = caller.inode(caller.int(0)).ok_or(Errno::BADF)?;
        let member = self.rings.member(attachment, leader)?;
        let socket = self.sockets.get_mut(&inode).ok_or(Errno::OPNOTSUPP)?;
        let State::Open(stream) = &mut socket.state else {
            return Err(Errno::OPNOTSUPP);
        };
        let ring = stream.ring.as_mut().filter(|ring| !ring.is_back);
        let ring = ring.filter(|ring| ring.process == attachment as usize);
        let ring = ring.ok_or(Errno::OPNOTSUPP)?;
        let place = member.streams.get_mut(ring.stream as usize);
        let place = place.ok_or(Errno::OPNOTSUPP)?;
        if place.large.is_some() || member.large >= LARGE_OF_PROCESS_MAX {
            return Err(Errno::OPNOTSUPP);
        }
        let memory = SharedMap::reserve("sidecore-large", LARGE_BYTES, Sharing::ReadWrite);
        let memory = Rc::new(memory.map_err(|_| Errno::OPNOTSUPP)?);
        let file = self.listener.give(caller.call.id, memory.file(), true)?;
        place.large = Some(Rc::clone(&memory));
        ring.large = Some(memory);
        member.large += 1;
        Ok([ring.stream, file.cast_unsigned(), 0, 0])
    }

    /// Moves a stream from rings back to its pair; false while the program copies.
    pub(super) fn take_back(&mut self, inode: u64, by_force: bool) -> bool {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return true;
        };
        let State::Open(stream) = &mut socket.state else {
            return true;
        };
        let Some(ring) = stream.ring.as_mut().filter(|ring| !ring.is_back) else {
            return true;
        };
        let Some(view) = ring.view() else {
            return true;
        };
        if !view.take_back(by_force) {
            return false;
        }
        // If the program has corrupted its positions, the bytes that they refer to are lost.
        let unread = view.unread(&ring.served).unwrap_or_default();
        ring.is_back = true;
        if !unread.is_empty() {
            stream.leftover = Some((unread, 0));
        }
        self.rings.tell(ring);
        self.take_from_program(inode);
        self.give_to_program(inode);
        true
    }

    /// Keeps a stream on its pair from now on.
    fn bar(&mut self, inode: u64) {
        if let Some(socket) = self.sockets.get_mut(&inode)
            && let State::Open(stream) = &mut socket.state
        {
            stream.is_barred = true;
        }
    }

    /// Takes a stream back soon: another process uses its pair.
    pub(super) fn take_back_soon(&mut self, inode: u64) {
        self.bar(inode);
        if !self.rings.retaking.contains(&inode) {
            self.rings.retaking.push(inode);
        }
    }

    /// A process sets up io_uring, which reads and writes past the library: it gets no rings from
    /// now on.
    pub(super) fn keep_to_pairs(&mut self, caller: &Caller<'_>) {
        let Some(leader) = caller.leader() else {
            return;
        };
        if self.rings.barred.len() >= BARRED_MAX {
            self.rings.barred.pop_front();
        }
        self.rings.barred.push_back(leader);
        let members = self.rings.processes.iter().flatten();
        let its = members.filter(|member| member.leader == leader);
        let places = its.flat_map(|member| &member.streams);
        let inodes: Vec<u64> = places.filter_map(|place| place.inode).collect();
        for inode in inodes {
            self.take_back_soon(inode);
        }
        self.retake();
    }

    /// Tries again to take streams back.
    pub(super) fn retake(&mut self) {
        for inode in std::mem::take(&mut self.rings.retaking) {
            if !self.take_back(inode, false) {
                self.rings.retaking.push(inode);
            }
        }
    }

    /// True while streams wait to be taken back.
    pub(super) fn is_retaking(&self) -> bool {
        !self.rings.retaking.is_empty()
    }

    /// Serves the rings with new bytes or new room; the number of streams.
    pub(super) fn take_ring_news(&mut self) -> usize {
        let mut inodes = Vec::new();
        for member in self.rings.processes.iter().flatten() {
            if let Some(process) = Process::over(member.segment.slice()) {
                process.take_supervisor_news(|stream| {
                    let place = member.streams.get(stream as usize);
                    inodes.extend(place.and_then(|place| place.inode));
                });
            }
        }
        let served = inodes.len();
        for inode in inodes {
            self.take_from_program(inode);
            self.give_to_program(inode);
        }
        served
    }

    /// An event of a waiter's socket: a wake-up call, or the exit of its process.
    pub(super) fn answer_waiter(&mut self, mark: u64) {
        let mark = (mark - PROCESSES) as usize;
        let (process, waiter) = (mark / rings::WAITERS, mark % rings::WAITERS);
        let Some(Some(member)) = self.rings.processes.get(process) else {
            return;
        };
        let Some(socket) = member.waiters.get(waiter) else {
            return;
        };
        let mut bytes = [0; 64];
        let received = rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT);
        let is_gone = match received {
            Ok((_, count)) => count == 0,
            Err(error) => error != Errno::AGAIN && error != Errno::INTR,
        };
        // Another waiter's socket may be closed alone and is idle then; the first one stands for
        // the process.
        if is_gone && (waiter == 0 || is_hung_up(socket)) {
            epoll::delete(&self.epoll, socket).ok();
            if waiter == 0 {
                self.lose_process(process);
            }
        }
    }

    /// A process has exited, or has executed another program.
    fn lose_process(&mut self, process: usize) {
        let Some(member) = self.rings.processes.get_mut(process).and_then(Option::take) else {
            return;
        };
        for inode in member.streams.iter().filter_map(|place| place.inode) {
            self.take_back(inode, true);
            if let Some(socket) = self.sockets.get_mut(&inode) {
                socket.ring_place = None;
            }
            self.rings.streams -= 1;
        }
    }

    /// A socket is removed: its stream number becomes free.
    pub(super) fn release_ring(&mut self, (process, stream): (usize, u32)) {
        let member = self.rings.processes.get_mut(process);
        let place = member
            .and_then(Option::as_mut)
            .and_then(|member| member.streams.get_mut(stream as usize));
        if let Some(place) = place {
            place.inode = None;
            self.rings.streams -= 1;
        }
    }
}

/// Pause after an upgrade, as a multiple of its duration: a request within it is answered with
/// EAGAIN.
const UPGRADE_PAUSE: u32 = 4;
const UPGRADE_PAUSE_MAX: Duration = Duration::from_millis(5);
/// Epoll data of waiters' sockets.
pub(super) const PROCESSES: u64 = 1 << 52;
const PROCESSES_MAX: usize = 1024;
/// Remembered processes without rings.
const BARRED_MAX: usize = 1024;
/// Streams with large rings per process, 1 MiB each.
const LARGE_OF_PROCESS_MAX: usize = 32;
/// Streams with rings, of all processes: 68 KiB each.
const STREAMS_MAX: usize = 4096;
/// Waiters that are notified in one round; others find their events at their next poll.
const TOLD_MAX: usize = 4096;
