//! Commands that are issued but not waited for, in `Checked` mode.
//!
//! Why here: real DMA is late and out of order. This queue is as late as it can be and does the
//! newest first. So a program that forgot a wait, a fence or a barrier is wrong every time, not
//! once in a month. Must stay true: a fence's command is done after all earlier ones of its group,
//! a barrier's also before all later ones. At most 16 commands are not done. The buffer of a
//! command stays here until its handle takes it.

use super::command::{Command, Order};
use super::{IN_FLIGHT_MAX, QUEUE_COMMANDS, Tag, TagMask};
use crate::error::DmaError;
use crate::store::Buf;

#[derive(Debug)]
struct Entry<'c> {
    /// Counts commands: smaller is earlier.
    number: u64,
    done: bool,
    /// True if its handle was dropped: the entry is freed when done.
    abandoned: bool,
    command: Command<'c>,
}

#[derive(Debug)]
pub(crate) struct Queue<'c> {
    /// `None` until the first command: making a queue costs a run nothing in the other modes.
    entries: Option<[Option<Entry<'c>>; IN_FLIGHT_MAX]>,
    next_number: u64,
    stalls: u64,
}

impl<'c> Queue<'c> {
    pub(crate) fn new() -> Self {
        Self {
            entries: None,
            next_number: 0,
            stalls: 0,
        }
    }

    /// Queues a command and says where. Stalls, which here means to do the oldest, when 16 are not
    /// done.
    pub(crate) fn push(&mut self, command: Command<'c>) -> Result<usize, DmaError> {
        if self.queued() == QUEUE_COMMANDS {
            self.stalls += 1;
            if let Some(oldest) = self.pending().min_by_key(|&(_, number, ..)| number) {
                self.perform(oldest.0);
            }
        }
        let entries = self.entries.get_or_insert([const { None }; IN_FLIGHT_MAX]);
        let free = entries.iter().position(Option::is_none);
        let slot = free.ok_or(DmaError::TooManyInFlight {
            limit: IN_FLIGHT_MAX,
        })?;
        entries[slot] = Some(Entry {
            number: self.next_number,
            done: false,
            abandoned: false,
            command,
        });
        self.next_number += 1;
        Ok(slot)
    }

    /// Commands that are not done.
    pub(crate) fn queued(&self) -> usize {
        self.pending().count()
    }

    pub(crate) fn stalls(&self) -> u64 {
        self.stalls
    }

    /// Performs a command and returns its buffer. `None` only for an entry that does not exist.
    pub(crate) fn finish(&mut self, slot: usize) -> Option<Buf<'c, u8>> {
        self.perform(slot);
        self.take(slot)
    }

    /// Returns a command's buffer; a command that is not done will never be.
    pub(crate) fn take(&mut self, slot: usize) -> Option<Buf<'c, u8>> {
        self.entry(slot)?.take().map(|entry| entry.command.buffer)
    }

    /// Its handle was dropped, and with it the buffer; the transfer still happens.
    pub(crate) fn abandon(&mut self, slot: usize) {
        if let Some(place) = self.entry(slot)
            && let Some(entry) = place
        {
            entry.abandoned = true;
            if entry.done {
                *place = None;
            }
        }
    }

    /// Does all commands of the groups in `mask`, the newest first within the limits of fences and
    /// barriers.
    pub(crate) fn perform_all(&mut self, mask: TagMask) {
        while let Some((slot, ..)) = self
            .pending()
            .filter(|&(_, _, tag, _)| mask.holds(tag))
            .max_by_key(|&(_, number, ..)| number)
        {
            self.perform(slot);
        }
    }

    /// If every group in `mask` has commands left, does those of the one that was used last. Says
    /// which have none.
    pub(crate) fn perform_any(&mut self, mask: TagMask) -> TagMask {
        if self.idle(mask).0 == 0
            && let Some((_, _, tag, _)) = self
                .pending()
                .filter(|&(_, _, tag, _)| mask.holds(tag))
                .max_by_key(|&(_, number, ..)| number)
        {
            self.perform_all(tag.mask());
        }
        self.idle(mask)
    }

    /// The groups of `mask` that have no command left.
    pub(crate) fn idle(&self, mask: TagMask) -> TagMask {
        let busy = self
            .pending()
            .fold(0, |busy, (_, _, tag, _)| busy | tag.mask().0);
        TagMask(mask.0 & !busy)
    }

    /// Does one command, after those that must come before it.
    fn perform(&mut self, slot: usize) {
        while let Some(before) = self.must_come_before(slot) {
            self.perform_alone(before);
        }
        self.perform_alone(slot);
    }

    /// The earliest command that is not done and must precede the one in `slot`. No command must
    /// precede the result: it would have to precede `slot`, too, and so be the earliest itself.
    fn must_come_before(&self, slot: usize) -> Option<usize> {
        let entry = self.entries.as_ref()?.get(slot)?.as_ref();
        let entry = entry.filter(|entry| !entry.done)?;
        let tag = entry.command.tag;
        let last_barrier = self
            .pending()
            .filter(|&(_, number, other, order)| {
                other == tag && number < entry.number && order == Order::Barrier
            })
            .map(|(_, number, ..)| number)
            .max();
        self.pending()
            .filter(|&(_, number, other, _)| {
                other == tag
                    && number < entry.number
                    && (entry.command.order != Order::Free
                        || last_barrier.is_some_and(|barrier| number <= barrier))
            })
            .min_by_key(|&(_, number, ..)| number)
            .map(|(before, ..)| before)
    }

    fn perform_alone(&mut self, slot: usize) {
        if let Some(place) = self.entry(slot)
            && let Some(entry) = place
            && !entry.done
        {
            entry.command.perform();
            entry.done = true;
            if entry.abandoned {
                *place = None;
            }
        }
    }

    fn entry(&mut self, slot: usize) -> Option<&mut Option<Entry<'c>>> {
        self.entries.as_mut()?.get_mut(slot)
    }

    /// Slot, number, group and order of each command that is not done.
    fn pending(&self) -> impl Iterator<Item = (usize, u64, Tag, Order)> {
        let entries = self.entries.iter().flatten();
        entries.enumerate().filter_map(|(slot, entry)| {
            let entry = entry.as_ref().filter(|entry| !entry.done)?;
            Some((slot, entry.number, entry.command.tag, entry.command.order))
        })
    }
}
