//! Rings between engines that share one address, and their wake-ups.
//!
//! Each ordered pair of engines has a ring of its own (one producer, one consumer), whose entries
//! keep their memory. The contents are defined by [`sidecore_net_stack::Errand`]. An engine reads
//! one word in each round, which its siblings write only when they hand something over; then it
//! reads its rings.
//!
//! Why here: the loop carries the handoffs between the stacks of one address. Must stay true: no
//! lock, and no waiting: a frame for a full ring is lost, as on a wire, and counted. The sender
//! commits to the ring first, sets the word next and checks for a sleeper last; a sleeper announces
//! its sleep first and checks the word afterwards (`sidecore-sync`'s protocol). Partners: the
//! Release of [`Inbox::waiting`] in `hand_over` and its Acquire in `receive`.

use crate::Stack;
use sidecore_bare::width::ToU64;
use sidecore_net_stack::{Handoff, HandoffKind};
use sidecore_sync::spsc::{Receiver, Sender, ring};
use sidecore_sync::{Changed, Private, SleepWord};
use sidecore_sys::{SysError, clock, local_socket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Engines that share an address, at most.
pub const ENGINES_MAX: usize = 64;

/// Counters of handoffs between an engine and its siblings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Exchanged {
    /// Frames given to siblings; a frame for all of them counts once for each.
    pub(super) given: u64,
    /// Frames for siblings that were lost because a ring or the outbox was full.
    pub(super) lost: u64,
    /// Frames taken from siblings.
    pub(super) taken: u64,
}

/// One engine's part of the rings; see [`siblings`].
#[derive(Debug)]
pub struct Siblings {
    index: usize,
    epoch_ns: u64,
    /// Rings to the siblings; none to itself.
    to: Vec<Option<Sender<Handoff>>>,
    /// Rings from the siblings.
    from: Vec<Receiver<Handoff>>,
    /// The inboxes of all engines.
    inboxes: Arc<[Inbox]>,
    exchanged: Exchanged,
}

/// Words by which an engine's siblings report a handoff, on cache lines of their own (processors
/// fetch lines in pairs): read in every round, written at a handoff or when the engine sleeps.
#[derive(Debug)]
#[repr(align(128))]
struct Inbox {
    /// A ring may hold an entry.
    waiting: AtomicBool,
    asleep: SleepWord<Private>,
    bell: OwnedFd,
}

/// The parts of `count` engines that share one address, for one [`super::Engine`] each.
///
/// # Errors
/// [`SysError`] if there are no descriptors left for the bells, one for each engine.
///
/// # Panics
/// If `count` is 0 or more than [`ENGINES_MAX`].
pub fn siblings(count: usize) -> Result<Vec<Siblings>, SysError> {
    assert!((1..=ENGINES_MAX).contains(&count), "{count} engines");
    let inboxes = (0..count).map(|_| {
        Ok(Inbox {
            waiting: AtomicBool::new(false),
            asleep: SleepWord::new(),
            bell: local_socket::bell()?,
        })
    });
    let inboxes: Result<Vec<Inbox>, SysError> = inboxes.collect();
    let inboxes: Arc<[Inbox]> = inboxes?.into();
    let epoch_ns = clock::now_ns();
    let place = |index| Siblings {
        index,
        epoch_ns,
        to: Vec::with_capacity(count),
        from: Vec::with_capacity(count - 1),
        inboxes: Arc::clone(&inboxes),
        exchanged: Exchanged::default(),
    };
    let mut all: Vec<Siblings> = (0..count).map(place).collect();
    // Two engines have a ring in each direction, so that each ring has one writer and one reader.
    for from in 0..count {
        for to in 0..count {
            if from == to {
                // The empty entry keeps the indices of the others.
                all[from].to.push(None);
                continue;
            }
            let (sender, receiver) = ring(RING_FRAMES, |_| Handoff::default());
            all[from].to.push(Some(sender));
            all[to].from.push(receiver);
        }
    }
    Ok(all)
}

impl Siblings {
    /// Number of this engine, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of engines.
    #[must_use]
    pub fn count(&self) -> usize {
        self.to.len()
    }

    /// Its number and their number.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.index, self.to.len())
    }

    /// The common start of their clocks: a value of one stack that depends on time (a SYN cookie, a
    /// timestamp) is valid in the others.
    pub(super) fn epoch_ns(&self) -> u64 {
        self.epoch_ns
    }

    pub(super) fn exchanged(&self) -> Exchanged {
        self.exchanged
    }

    /// True if a sibling has handed something over.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        // Acquire: partner of the Release in `hand_over`.
        self.inboxes[self.index].waiting.load(Ordering::Acquire)
    }

    /// Passes at most `budget` frames of siblings to `stack`; returns their number.
    #[cold]
    pub(super) fn receive(&mut self, now_ns: u64, stack: &mut Stack, budget: usize) -> usize {
        let waiting = &self.inboxes[self.index].waiting;
        // AcqRel: entries committed before the word was set are visible; later ones set it again.
        waiting.swap(false, Ordering::AcqRel);
        // Each ring has its share, so that one sibling cannot starve the others.
        let share = (budget / self.from.len().max(1)).max(1);
        let (mut count, mut more) = (0, false);
        for ring in &mut self.from {
            for taken in 0.. {
                let Some(mut handed) = ring.wait() else {
                    break;
                };
                if taken == share {
                    more = true;
                    break;
                }
                stack.receive_handoff(now_ns, &mut handed);
                // A super-segment would make each entry of the ring keep 64 KiB.
                handed.bytes.shrink_to(PLACE_BYTES);
                handed.release();
                count += 1;
            }
        }
        if more {
            waiting.store(true, Ordering::Release);
        }
        self.exchanged.taken += count.to_u64();
        count
    }

    /// Hands over the frames that `stack` has for siblings.
    #[inline]
    pub(super) fn hand_over(&mut self, stack: &mut Stack) {
        if stack.has_handoffs() {
            self.carry(stack);
        }
    }

    #[cold]
    fn carry(&mut self, stack: &mut Stack) {
        let mut told = 0_u64;
        let Self {
            index,
            to,
            exchanged,
            ..
        } = self;
        let (count, next) = (to.len(), (*index + 1) % to.len());
        let lost = stack.take_handoffs(&mut |handed| {
            // Fragments go to the first engine, which reassembles packets; a stray goes round the
            // circle.
            let targets = match handed.kind {
                HandoffKind::Notice | HandoffKind::Copy => 0..count,
                HandoffKind::Fragment => 0..1,
                HandoffKind::Stray { .. } => next..next + 1,
            };
            for target in targets {
                let Some(ring) = &mut to[target] else {
                    continue;
                };
                // Full: the sibling is behind. A lost frame is retransmitted, a wait would stop
                // this engine.
                let Some(mut place) = ring.acquire() else {
                    exchanged.lost += 1;
                    continue;
                };
                place.bytes.clear();
                place.bytes.extend_from_slice(&handed.bytes);
                place.checksum = handed.checksum;
                place.kind = handed.kind;
                place.from_self = handed.from_self;
                place.commit();
                exchanged.given += 1;
                // Woken after all frames are in the rings: one wake-up for each sibling and round.
                told |= 1 << target;
            }
        });
        exchanged.lost += lost;
        for (target, inbox) in self.inboxes.iter().enumerate() {
            if told >> target & 1 == 0 {
                continue;
            }
            // Release: partner of the Acquire in `receive` and `waits`; the frames are committed.
            inbox.waiting.store(true, Ordering::Release);
            // A sleeping sibling waits on descriptors, so it is woken by its bell.
            if inbox.asleep.claim_after(Changed::publish()) {
                local_socket::poke(inbox.bell.as_fd());
            }
        }
    }

    /// Announces a sleep; false if something waits already.
    pub(super) fn arm(&self) -> bool {
        // Announced before the look: a handoff in between finds a sleeper, or is seen here.
        self.inboxes[self.index].asleep.announce_sleep();
        !self.waits()
    }

    /// Ends the sleep.
    pub(super) fn disarm(&self) {
        let inbox = &self.inboxes[self.index];
        inbox.asleep.cancel_sleep();
        local_socket::drain(inbox.bell.as_fd());
    }

    /// Descriptor that becomes readable when a sibling hands something over during a sleep.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.inboxes[self.index].bell.as_fd()
    }
}

/// Entries of a ring from one engine to another.
const RING_FRAMES: usize = 256;
/// Memory that an entry keeps: a frame of the usual size. Longer ones are rare.
const PLACE_BYTES: usize = 2048;

const _: () = assert!(ENGINES_MAX <= 64, "a bit for each in a word");
