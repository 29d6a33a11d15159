//! The memory flow controller: commands between a store and the process's memory.
//!
//! A command is done at once, which is one of the orders that the hardware may choose; fences and
//! barriers are then kept by themselves. The exception is a list that stalls: commands that must
//! wait for it are queued here. That is those of its tag with a fence or a barrier, and, of any
//! tag, the barrier command (`mfc_barrier`) with all behind it.
//!
//! Must stay true: at most [`QUEUE`] commands wait; every store address is masked; sizes and
//! alignments are the hardware's. Source: Cell Broadband Engine Architecture, chapters 7 and 8.

use crate::area;
use crate::line::{self, LINE_BYTES, Reservation};
use crate::store::{STORE_BYTES, STORE_MASK, Store};
use crate::switch::{copy, low};
use sidecore_bare::width::ToU64;
use std::collections::VecDeque;

/// Places of the SPU's command queue.
pub(crate) const QUEUE: usize = 16;
/// Bytes that one command moves at most.
const TRANSFER_MAX: u32 = 16 * 1024;

/// Runtime exceptions, as libspe2 numbers them.
pub(crate) const DMA_ALIGNMENT: u32 = 0x8;
pub(crate) const DMA_STORAGE: u32 = 0x40;
pub(crate) const INVALID_DMA: u32 = 0x800;

/// One command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) lsa: u32,
    pub(crate) ea: u64,
    pub(crate) size: u32,
    pub(crate) tag: u32,
    pub(crate) code: u32,
}

impl Command {
    /// True of the barrier that orders all commands behind it after all before it, of any tag.
    fn is_barrier(&self) -> bool {
        self.code & 0xffff == 0xc0
    }

    /// True of the unconditional put of a line that goes through the queue.
    fn is_queued_line(&self) -> bool {
        self.code & 0xffff == 0xb8
    }
}

/// Bytes and commands that a context's MFC moved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) commands: u64,
    pub(crate) got_bytes: u64,
    pub(crate) put_bytes: u64,
}

/// State of one MFC.
#[derive(Debug, Default)]
pub(crate) struct Mfc {
    /// Lists that stalled, with where they go on; at most one per tag goes first.
    stalled: VecDeque<Stalled>,
    waiting: VecDeque<Command>,
    /// Tags whose list stalled since the status was read.
    pub(crate) stall_mask: u32,
    /// Value of the atomic-status channel, if its count is 1.
    pub(crate) atomic_status: Option<u32>,
    pub(crate) reservation: Option<Reservation>,
    /// Writes to other contexts' registers, which are done once this context's lock is free.
    pub(crate) outbox: Vec<area::Write>,
    pub(crate) traffic: Traffic,
    /// True where the program's words have the most significant byte first.
    pub(crate) big: bool,
}

#[derive(Clone, Copy, Debug)]
struct Stalled {
    command: Command,
    /// List elements that are done.
    done: u32,
    /// Place of the next element's data.
    lsa: u32,
}

enum Kind {
    Get,
    Put,
    GetList,
    PutList,
    Signal,
    GetLine,
    PutLine,
    PutLineAlways,
    Nothing,
}

impl Mfc {
    /// Free places of the queue.
    pub(crate) fn free(&self) -> usize {
        QUEUE - (self.waiting.len() + self.stalled.len()).min(QUEUE)
    }

    /// Tags with commands under way, as a mask.
    pub(crate) fn busy(&self) -> u32 {
        let stalled = self.stalled.iter().map(|stalled| stalled.command.tag);
        let waiting = self.waiting.iter().map(|command| command.tag);
        stalled.chain(waiting).fold(0, |mask, tag| mask | 1 << tag)
    }

    /// Takes a command; the caller saw to it that there is a free place.
    ///
    /// # Errors
    /// The runtime exception.
    pub(crate) fn issue(&mut self, store: &Store, command: Command) -> Result<(), u32> {
        // Refused ones count, too: the trace shows what the program asked for.
        self.traffic.commands += 1;
        let kind = kind(command.code)?;
        // The low half of a list's is where the list lies; its elements are looked at one by one.
        let list = matches!(kind, Kind::GetList | Kind::PutList);
        let ea = match list && command.ea >> 32 == 1 {
            true => command.ea,
            false => effective(command.ea),
        };
        let command = Command { ea, ..command };
        // Before anything is queued: masks have a bit a tag.
        if command.tag > 31 {
            return Err(INVALID_DMA);
        }
        check(&kind, &command)?;
        // Bits 0 and 1 of these codes: barrier and fence, both within the command's tag group.
        let ordered = command.code & 3 != 0 || matches!(kind, Kind::Nothing);
        // The barrier command orders all tags.
        let earlier = match command.is_barrier() {
            true => self.busy(),
            false => self.busy() >> command.tag & 1,
        };
        if ordered && earlier != 0 || self.barred(&kind, &command) {
            self.waiting.push_back(command);
            return Ok(());
        }
        self.perform(store, command, &kind)
    }

    /// True if a barrier that waits itself, of its tag group or of all, holds the command up.
    fn barred(&self, kind: &Kind, command: &Command) -> bool {
        // Lines are moved at once, in no tag group; but one form of them is in the queue.
        let queued = match kind {
            Kind::GetLine | Kind::PutLine => false,
            Kind::PutLineAlways => command.is_queued_line(),
            _ => true,
        };
        // Of the barriers of a tag group those that move nothing are no part.
        let in_group = !matches!(kind, Kind::Nothing | Kind::PutLineAlways);
        let mut waiting = self.waiting.iter();
        let bars = |other: &Command| in_group && other.tag == command.tag && other.code & 1 == 1;
        queued && waiting.any(|other| other.is_barrier() || bars(other))
    }

    /// The program acknowledged a stall: the tag's list goes on.
    ///
    /// # Errors
    /// The runtime exception.
    pub(crate) fn resume(&mut self, store: &Store, tag: u32) -> Result<(), u32> {
        let Some(index) = self.stalled.iter().position(|s| s.command.tag == tag) else {
            return Ok(());
        };
        // Taken out before it goes on, since it may stall again.
        if let Some(stalled) = self.stalled.remove(index) {
            self.list(store, stalled)?;
        }
        // Each waiting command is looked at once, in order: it goes on unless a list of its tag
        // still stalls. Those behind it in the queue are no reason to wait, or two would wait for
        // each other.
        let (mut kept, mut barred) = (false, false);
        for _ in 0..self.waiting.len() {
            let Some(command) = self.waiting.pop_front() else {
                break;
            };
            let mut stalled = self.stalled.iter();
            let waits = match command.is_barrier() {
                true => kept || stalled.len() > 0,
                false => barred || stalled.any(|s| s.command.tag == command.tag),
            };
            if waits {
                kept = true;
                barred |= command.is_barrier();
                self.waiting.push_back(command);
            } else {
                let kind = kind(command.code)?;
                self.perform(store, command, &kind)?;
            }
        }
        Ok(())
    }

    fn perform(&mut self, store: &Store, command: Command, kind: &Kind) -> Result<(), u32> {
        match kind {
            Kind::Get => self.get(store, command.lsa, command.ea, command.size),
            Kind::Put => self.put(store, command.lsa, command.ea, command.size),
            Kind::GetList | Kind::PutList => self.list(
                store,
                Stalled {
                    command,
                    done: 0,
                    lsa: command.lsa,
                },
            ),
            Kind::Signal => self.put(store, command.lsa, command.ea, 4),
            Kind::GetLine => {
                // The old one goes even if the new line cannot be read.
                self.reservation = None;
                let taken = Reservation::take(command.ea, store.at(command.lsa.into()));
                self.reservation = Some(taken.ok_or(DMA_STORAGE)?);
                self.atomic_status = Some(4);
                self.traffic.got_bytes += LINE_BYTES;
                Ok(())
            }
            Kind::PutLine => {
                // A conditional put ends the reservation, whether it succeeds or not.
                let own = self.reservation.take();
                let from = store.at(command.lsa.into());
                let put = own.map_or(Some(false), |own| own.put(command.ea, from));
                let put = put.ok_or(DMA_STORAGE)?;
                self.atomic_status = Some(u32::from(!put));
                self.traffic.put_bytes += LINE_BYTES;
                Ok(())
            }
            Kind::PutLineAlways => {
                let from = store.at(command.lsa.into());
                if !line::put_unconditionally(command.ea, from) {
                    return Err(DMA_STORAGE);
                }
                // The queued form reports by its tag group, not by the status channel.
                if !command.is_queued_line() {
                    self.atomic_status = Some(2);
                }
                self.traffic.put_bytes += LINE_BYTES;
                Ok(())
            }
            Kind::Nothing => Ok(()),
        }
    }

    /// A word of the program's.
    fn word(&self, store: &Store, address: u64) -> u32 {
        let word = store.word(address & STORE_MASK);
        if self.big { word.swap_bytes() } else { word }
    }

    /// Does a list's elements until it ends or stalls.
    fn list(&mut self, store: &Store, mut at: Stalled) -> Result<(), u32> {
        let command = at.command;
        // All elements lie in the list's own 4 GiB: each has a low half alone.
        let high = command.ea & !0xffff_ffff;
        while at.done < command.size / 8 {
            let element = command.ea + u64::from(at.done) * 8;
            let first = self.word(store, element);
            let low = self.word(store, element + 4);
            let (size, notify) = element_of(first);
            let ea = effective(high | u64::from(low));
            // Each element's data keep the place within a quadword that their address has.
            let lsa = at.lsa & !15 | low & 15;
            transfer_rules(lsa, ea, size)?;
            match kind(command.code)? {
                Kind::GetList => self.get(store, lsa, ea, size)?,
                _ => self.put(store, lsa, ea, size)?,
            }
            at.lsa = (lsa + size).next_multiple_of(16);
            at.done += 1;
            if notify {
                // Also behind the last element: the list counts as done when acknowledged.
                self.stall_mask |= 1 << command.tag;
                self.stalled.push_back(at);
                return Ok(());
            }
        }
        Ok(())
    }

    fn get(&mut self, store: &Store, lsa: u32, ea: u64, size: u32) -> Result<(), u32> {
        self.traffic.got_bytes += u64::from(size);
        let ea = area::memory(ea);
        if !in_pieces(lsa, size, |offset, at, bytes| {
            // SAFETY: the store's part lies inside it; the rest is memory that the program names.
            unsafe { copy(store.at(at), ea + offset, bytes) }
        }) {
            return Err(DMA_STORAGE);
        }
        Ok(())
    }

    fn put(&mut self, store: &Store, lsa: u32, ea: u64, size: u32) -> Result<(), u32> {
        self.traffic.put_bytes += u64::from(size);
        // Registers are words: a longer transfer is to memory.
        if size <= 16 {
            let value = self.word(store, u64::from(lsa) & !3);
            if let Some(write) = area::find(ea, value) {
                self.outbox.push(write);
                return Ok(());
            }
        }
        let ea = area::memory(ea);
        if !in_pieces(lsa, size, |offset, at, bytes| {
            // SAFETY: as in `get`.
            unsafe { copy(ea + offset, store.at(at), bytes) }
        }) {
            return Err(DMA_STORAGE);
        }
        // Behind the copy: a reservation that read before it must see the change.
        line::written(ea, size.into());
        Ok(())
    }
}

/// A command of the host's side: done at once, by the same rules. Of the result the traffic counts,
/// and the outbox, which the caller delivers. `big` is as in [`Mfc`].
///
/// # Errors
/// The runtime exception.
pub(crate) fn proxy(store: &Store, command: Command, big: bool) -> Result<Mfc, u32> {
    let mut mfc = Mfc {
        big,
        ..Mfc::default()
    };
    mfc.issue(store, command)?;
    Ok(mfc)
}

/// Size and notify bit of a list element. Programs have two layouts: the word of the hardware (size
/// below, notify in bit 31) and the bit fields of the SDK's structure. A little-endian compiler
/// lays the latter out from bit 0 (notify, reserved, size above).
fn element_of(first: u32) -> (u32, bool) {
    if first & 0x7fff_0000 == 0 {
        (first & 0xffff, first >> 31 == 1)
    } else {
        (first >> 16, first & 1 == 1)
    }
}

/// Splits a transfer where the store's addresses wrap.
fn in_pieces(lsa: u32, size: u32, mut piece: impl FnMut(u64, u64, u64) -> bool) -> bool {
    let start = u64::from(lsa) & STORE_MASK;
    let size = u64::from(size);
    let first = size.min(STORE_BYTES.to_u64() - start);
    (first == 0 || piece(0, start, first)) && (first == size || piece(first, 0, size - first))
}

fn kind(code: u32) -> Result<Kind, u32> {
    Ok(match code & 0xffff {
        0x40..=0x42 | 0x48..=0x4a => Kind::Get,
        0x20..=0x22 | 0x28..=0x2a | 0x30..=0x32 | 0x38..=0x3a => Kind::Put,
        0x44..=0x46 | 0x4c..=0x4e => Kind::GetList,
        0x24..=0x26 | 0x2c..=0x2e | 0x34..=0x36 | 0x3c..=0x3e => Kind::PutList,
        0xa0..=0xa2 => Kind::Signal,
        0xd0 => Kind::GetLine,
        0xb4 => Kind::PutLine,
        0xb0 | 0xb8 => Kind::PutLineAlways,
        // Barriers and synchronisation; hints for a cache.
        0xc0 | 0xc8 | 0xcc | 0x80 | 0x81 | 0x89 | 0x8d | 0x8f => Kind::Nothing,
        _ => return Err(INVALID_DMA),
    })
}

/// An effective address reduced to 32 bits in two cases. It came from a 32-bit pointer by sign
/// extension, as hosts with pointers of 4 bytes cast them to 64-bit numbers. Or it is the sum of
/// two, as programs add the address of another's store and that of a variable. Memory is there only
/// if a host asked for it by its address.
fn effective(ea: u64) -> u64 {
    let of_sign = ea >> 31 == 0x1_ffff_ffff;
    if of_sign || ea >> 32 == 1 && !is_mapped(ea) {
        ea & 0xffff_ffff
    } else {
        ea
    }
}

fn is_mapped(address: u64) -> bool {
    let mut resident = 0;
    let page = (address & !4095) as *mut libc::c_void;
    // SAFETY: asks about one page, whether it is there or not, and writes one byte.
    unsafe { libc::mincore(page, 1, &raw mut resident) == 0 }
}

fn check(kind: &Kind, command: &Command) -> Result<(), u32> {
    match kind {
        Kind::Get | Kind::Put => transfer_rules(command.lsa, command.ea, command.size),
        Kind::GetList | Kind::PutList => {
            let list = low(command.ea);
            let fits = command.size <= TRANSFER_MAX && command.size.is_multiple_of(8);
            let aligned = list.is_multiple_of(8);
            (fits && aligned).then_some(()).ok_or(DMA_ALIGNMENT)
        }
        Kind::Signal => {
            let aligned = command.ea & 3 == 0 && (low(command.ea) ^ command.lsa) & 15 == 0;
            aligned.then_some(()).ok_or(DMA_ALIGNMENT)
        }
        Kind::GetLine | Kind::PutLine | Kind::PutLineAlways => {
            let aligned = command.ea.is_multiple_of(LINE_BYTES)
                && u64::from(command.lsa).is_multiple_of(LINE_BYTES);
            aligned.then_some(()).ok_or(DMA_ALIGNMENT)
        }
        Kind::Nothing => Ok(()),
    }
}

/// 1, 2, 4 or 8 bytes at a natural boundary and the same place in a quadword; or quadwords.
fn transfer_rules(lsa: u32, ea: u64, size: u32) -> Result<(), u32> {
    let aligned = match size {
        0 => true,
        1 | 2 | 4 | 8 => (lsa ^ low(ea)) & 15 == 0 && ea.is_multiple_of(size.into()),
        _ if size <= TRANSFER_MAX => {
            size.is_multiple_of(16) && lsa.is_multiple_of(16) && ea.is_multiple_of(16)
        }
        _ => false,
    };
    aligned.then_some(()).ok_or(DMA_ALIGNMENT)
}

#[cfg(test)]
mod tests;
