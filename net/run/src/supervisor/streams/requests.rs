//! Requests of the preload library: streams whose bytes pass through rings.
//!
//! A session's pair stays open; its bytes pass through rings once the library of the program that
//! uses it has requested that ([`sidecore_net_rings`]). Must stay true: a stream can be taken back
//! at any time without losing or reordering a byte. Bytes in the pair of a stream with rings come
//! from a process other than the rings' owner, so the stream is then taken back for good. A process
//! that has exited, or has executed another program, has no rings.

use super::super::mark::WaiterId;
use super::super::rings::Words;
use super::super::{Reply, ZERO};
use super::*;
use crate::caller::Caller;
use sidecore_net_rings as rings;
use std::time::Instant;

impl Streams {
    /// Serves a request of the library.
    pub(in super::super) fn serve_request(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let target = caller.call.arguments[3];
        let asked = caller.read_int(target)?.cast_unsigned();
        let name = caller.int(2);
        if name == rings::TAKE_BACK {
            let inode = caller.inode(caller.int(0)).ok_or(Errno::BADF)?;
            if !self.take_back(table, inode, false) {
                return Err(Errno::AGAIN);
            }
            bar(table, inode);
            return Ok(ZERO);
        }
        let answered = self.answer(table, caller, (name, asked));
        // Of those before a grant, refusals alone.
        if name == rings::UPGRADE || name == rings::ATTACH && answered.is_err() {
            self.rings.count(&answered);
        }
        let words = answered?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        caller.write(target, &bytes)?;
        Ok(ZERO)
    }

    fn answer(
        &mut self,
        table: &mut Table,
        caller: &Caller<'_>,
        (name, asked): (i32, u32),
    ) -> Result<Words, Errno> {
        match name {
            rings::ATTACH => {
                let has_stack = table.engine.client.is_some();
                self.rings.attach(caller, asked, has_stack, &table.epoll)
            }
            rings::WAITER => self.rings.add_waiter(caller, asked, &table.epoll),
            rings::UPGRADE => self.upgrade(table, caller, asked),
            rings::GROW => {
                let inode = caller.inode(caller.int(0)).ok_or(Errno::BADF)?;
                let socket = table.sockets.get_mut(&inode);
                // Large rings hold more than a program allows that has set SO_SNDBUF or SO_RCVBUF.
                let socket = socket.filter(|it| it.send_bytes.or(it.window_max).is_none());
                let Some(State::Open(stream)) = socket.map(|it| &mut it.state) else {
                    return Err(Errno::OPNOTSUPP);
                };
                self.rings.grow(caller, asked, &mut stream.path)
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn upgrade(
        &mut self,
        table: &mut Table,
        caller: &Caller<'_>,
        attachment: u32,
    ) -> Result<Words, Errno> {
        let begun = Instant::now();
        self.rings.admit(caller, attachment)?;
        // A refused request has its price, too: memory was reserved, or bytes were moved.
        let upgraded = self.upgrade_now(table, caller, attachment);
        self.rings.spend(begun);
        upgraded
    }

    fn upgrade_now(
        &mut self,
        table: &mut Table,
        caller: &Caller<'_>,
        attachment: u32,
    ) -> Result<Words, Errno> {
        let inode = caller.inode(caller.int(0)).ok_or(Errno::BADF)?;
        // Bytes that the program wrote to the pair precede those it will write to the rings.
        self.take_from_program(table, inode);
        let socket = table.sockets.get_mut(&inode).ok_or(Errno::OPNOTSUPP)?;
        let receive_bytes = socket.window_max.map(|window| 2 * window);
        let mut allowed = socket.send_bytes.into_iter().chain(receive_bytes);
        if allowed.any(|bytes| bytes < RINGS_FROM) {
            // A ring would hold more than the program allows.
            return Err(Errno::OPNOTSUPP);
        }
        if socket.holder.is_elsewhere(caller, inode) {
            // It polls the pair, perhaps. A parent that leaves it to its child closes it soon.
            return Err(Errno::AGAIN);
        }
        if let State::Open(stream) = &socket.state
            && stream.path.all_rings().is_some()
        {
            // Another process has the rings: two use the stream, so neither may keep them.
            self.take_back_soon(table, inode);
            self.retake(table);
            return Err(Errno::OPNOTSUPP);
        }
        self.rings.upgrade(caller, attachment, inode, socket)
    }

    /// Moves a stream from rings back to its pair; false while the program copies.
    fn take_back(&mut self, table: &mut Table, inode: u64, by_force: bool) -> bool {
        let state = table.sockets.get_mut(&inode).map(|it| &mut it.state);
        let Some(State::Open(stream)) = state else {
            return true;
        };
        let Path::Rings(ring) = &stream.path else {
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
        // The program learns by it that its bytes come through the pair again.
        self.rings.notify(ring);
        if !unread.is_empty() {
            stream.leftover = Some((unread, 0));
        }
        stream.path.reclaim();
        self.take_from_program(table, inode);
        self.give_to_program(table, inode);
        true
    }

    /// Takes a stream back soon: another process uses its pair.
    pub(super) fn take_back_soon(&mut self, table: &mut Table, inode: u64) {
        bar(table, inode);
        // A program that copies holds the rings for that time; the loop asks again.
        if !self.retaking.contains(&inode) {
            self.retaking.push(inode);
        }
    }

    /// A process sets up io_uring, which reads and writes past the library: it gets no rings from
    /// now on. Returns the sockets that had some, whose datagrams are others'.
    pub(in super::super) fn keep_to_pairs(
        &mut self,
        table: &mut Table,
        caller: &Caller<'_>,
    ) -> Vec<u64> {
        let Some(leader) = caller.leader() else {
            return Vec::new();
        };
        let inodes = self.rings.bar(leader);
        for inode in &inodes {
            self.take_back_soon(table, *inode);
        }
        self.retake(table);
        inodes
    }

    /// Tries again to take streams back.
    pub(in super::super) fn retake(&mut self, table: &mut Table) {
        for inode in std::mem::take(&mut self.retaking) {
            if !self.take_back(table, inode, false) {
                self.retaking.push(inode);
            }
        }
    }

    /// Serves the rings with new bytes or new room; their sockets, of which some may be datagrams'.
    pub(in super::super) fn take_ring_news(&mut self, table: &mut Table) -> Vec<u64> {
        let inodes = self.rings.take_news();
        for inode in &inodes {
            self.take_from_program(table, *inode);
            self.give_to_program(table, *inode);
        }
        inodes
    }

    /// Handles an event of a waiter's socket: a wake-up call, or the exit of its process. Returns
    /// the sockets that had rings there, whose datagrams are others'.
    pub(in super::super) fn look_at_waiter(&mut self, table: &mut Table, id: WaiterId) -> Vec<u64> {
        if !self.rings.has_exited(id, &table.epoll) {
            return Vec::new();
        }
        self.end_process(table, id.process)
    }

    /// A process has exited, or has executed another program: its rings end. Returns the sockets
    /// that had some, whose datagrams are others'.
    pub(in super::super) fn end_process(&mut self, table: &mut Table, process: usize) -> Vec<u64> {
        let inodes = self.rings.remove(process);
        for inode in &inodes {
            // No thread is left that could copy, so nothing has to be waited for.
            self.take_back(table, *inode, true);
            if let Some(socket) = table.sockets.get_mut(inode) {
                socket.ring_place = None;
            }
        }
        inodes
    }
}

/// Keeps a stream on its pair from now on.
fn bar(table: &mut Table, inode: u64) {
    let state = table.sockets.get_mut(&inode).map(|it| &mut it.state);
    if let Some(State::Open(stream)) = state {
        stream.path.bar();
    }
}

/// SO_SNDBUF and SO_RCVBUF from which on rings hold no more than the pair, in bytes.
const RINGS_FROM: u32 = 128 << 10;
