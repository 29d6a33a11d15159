//! The sending half of a connection: a [`Sink`] over a socket that several threads share.
//!
//! Why here: it keeps a slow client from harming others. Replies are sent straight from the
//! device's cache, with one system call for header and pieces. If a client takes nothing for
//! [`PINNED_WAIT_MAX`], the rest of *its* reply is copied aside, so that the cache's memory is free
//! again, and the wait continues outside `deliver`.
//! Must stay true: at most one message per worker is set aside; messages of different threads never
//! mix (the write lock is held from a message's first byte to its last).
//! Every worker of a connection has one; the lock is theirs together.
//! Source: own; `sendmsg(2)`, `socket(7)` (SO_SNDTIMEO: a blocked send gives back what it sent so
//! far).

use super::reply::{Disconnected, Sink};
use arrayvec::ArrayVec;
use parking_lot::{Mutex, MutexGuard};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::IoSlice;
use std::time::{Duration, Instant};

/// One worker's sender to the client.
pub(super) struct Outlet<'c> {
    socket: BorrowedFd<'c>,
    lock: &'c Mutex<()>,
    held: Option<MutexGuard<'c, ()>>,
    /// A message has begun and not ended.
    open: bool,
    aside: Vec<u8>,
    patience: Duration,
}

impl<'c> Outlet<'c> {
    /// A sender on `socket`, which must have SO_SNDTIMEO set to [`PINNED_WAIT_MAX`]. A client that
    /// takes no byte for `patience` is given up.
    pub(super) fn new(socket: BorrowedFd<'c>, lock: &'c Mutex<()>, patience: Duration) -> Self {
        Self {
            socket,
            lock,
            held: None,
            open: false,
            aside: Vec::new(),
            patience,
        }
    }

    /// Sends as much as the client takes within the socket's time limit; returns the number of
    /// bytes.
    fn push(&self, head: &[u8], pieces: &[&[u8]]) -> Result<usize, Disconnected> {
        let total = head.len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let mut sent = 0;
        while sent < total {
            // Made anew after a partial send; more pieces than fit are sent by the next turn.
            let mut slices: ArrayVec<IoSlice<'_>, SLICES_MAX> = ArrayVec::new();
            let mut skip = sent;
            for piece in std::iter::once(&head).chain(pieces) {
                if skip >= piece.len() {
                    skip -= piece.len();
                } else if slices.try_push(IoSlice::new(&piece[skip..])).is_err() {
                    break;
                } else {
                    skip = 0;
                }
            }
            let mut control = SendAncillaryBuffer::default();
            match sendmsg(self.socket, &slices, &mut control, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(Disconnected::Client),
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return Err(Disconnected::Client),
            }
        }
        Ok(sent)
    }

    /// Copies the bytes after the first `sent` ones.
    fn set_aside(&mut self, head: &[u8], pieces: &[&[u8]], sent: usize) {
        let mut skip = sent;
        for piece in std::iter::once(&head).chain(pieces) {
            let from = skip.min(piece.len());
            skip -= from;
            self.aside.extend_from_slice(&piece[from..]);
        }
    }

    fn release(&mut self) {
        // Between the parts of a message the lock is kept, or another reply could come in between.
        if !self.open {
            self.held = None;
        }
    }
}

impl Sink for Outlet<'_> {
    fn send(&mut self, head: &[u8], pieces: &[&[u8]], more: bool) -> Result<(), Disconnected> {
        self.open = more;
        // Bytes that are set aside precede these: a message must not overtake its own beginning.
        if self.aside.is_empty() && self.held.is_none() {
            self.held = match self.lock.try_lock() {
                Some(guard) => Some(guard),
                // Inside `deliver` slots of the cache are pinned: no longer than for a slow client.
                None => self.lock.try_lock_for(PINNED_WAIT_MAX),
            };
        }
        let sent = if self.aside.is_empty() && self.held.is_some() {
            self.push(head, pieces)?
        } else {
            0
        };
        self.set_aside(head, pieces, sent);
        if self.aside.is_empty() {
            self.release();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Disconnected> {
        if self.aside.is_empty() {
            return Ok(());
        }
        if self.held.is_none() {
            // The holder of the lock gives its client up after the same patience.
            let guard = self.lock.try_lock_for(self.patience * 2);
            self.held = Some(guard.ok_or(Disconnected::Client)?);
        }
        let mut sent = 0;
        let mut progress = Instant::now();
        while sent < self.aside.len() {
            let count = self.push(&self.aside[sent..], &[])?;
            sent += count;
            // Any progress counts: a slow client is served, one that takes nothing is not.
            if count > 0 {
                progress = Instant::now();
            } else if progress.elapsed() >= self.patience {
                return Err(Disconnected::Client);
            }
        }
        self.aside.clear();
        self.release();
        Ok(())
    }
}

/// Time limit for a client to keep slots of the cache from being reused.
pub(super) const PINNED_WAIT_MAX: Duration = Duration::from_millis(50);
/// The most slices in one system call.
const SLICES_MAX: usize = 64;
