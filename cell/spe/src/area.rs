//! Problem-state areas: addresses at which another context's registers can be written by DMA.
//!
//! An area is a page that no plain access gets through to: the words that it shows lie in a second
//! one. An MFC's puts to a signal register or to the inbound mailbox of an area reach the context;
//! the mailbox status word of the control area is kept up to date. A plain load or store of the
//! host's faults and is done in the second page by a single step. Before a load of the outbound
//! mailbox its word is taken, and a word that was stored is written to the register.
//!
//! Must stay true: the table's lock is held only for a look-up, and no context's lock under it. The
//! library itself reads and writes the second pages alone, so that the handler's locks are free.

use crate::registers::{Register as Word, Registers};
use crate::stray;
use parking_lot::RwLock;
use sidecore_bare::width::{ToU64, ToUsize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Areas, in the order of libspe2's `enum ps_area`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sync,
    Command,
    Control,
    Signal1,
    Signal2,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] = [
        Kind::Sync,
        Kind::Command,
        Kind::Control,
        Kind::Signal1,
        Kind::Signal2,
    ];

    /// Its page among those of a context.
    const fn page(self) -> u64 {
        self as u64
    }
}

/// A write to a register of a context.
#[derive(Debug)]
pub(crate) struct Write {
    context: Weak<dyn Target>,
    register: Register,
    value: u32,
}

/// Registers that stores and DMA can write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Register {
    Signal(usize),
    InMailbox,
    /// Class and code of a host's command, by the words that were stored before: its place in the
    /// store, both halves of its effective address, size and tag.
    Command([u32; 4]),
    /// Tags whose state the host asks for.
    Tags,
}

/// A context, as its areas see it.
pub(crate) trait Target: Debug + Send + Sync {
    fn write_register(&self, register: Register, value: u32);

    /// Takes the outbound word.
    fn read_mailbox(&self) -> Option<u32>;
}

impl Write {
    /// Does it; the caller holds no context's lock.
    pub(crate) fn deliver(self) {
        if let Some(context) = self.context.upgrade() {
            context.write_register(self.register, self.value);
        }
    }
}

const PAGE: u64 = 4096;
/// Distance from a register's address to the word that it shows; areas lie at multiples of it.
const SHADOW: u64 = 32 * 1024;
/// The bit of a page fault's error that says that something was stored.
const ERROR_STORE: u64 = 2;
/// Bytes of an instruction at most.
const INSTRUCTION_BYTES: u64 = 15;

thread_local! {
    /// The address of a plain store that a single step does.
    static STORED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Offsets of registers within their areas (Cell Broadband Engine Architecture).
const SIGNAL: u64 = 12;
const IN_MAILBOX: u64 = 12;
const OUT_MAILBOX: u64 = 4;
const MAILBOX_STATUS: u64 = 20;
/// A command's words, the last of which begins it and then shows whether it was taken.
const COMMAND_WORDS: [u64; 4] = [4, 8, 12, 16];
const COMMAND: u64 = 20;
const QUERY_MASK: u64 = 0x21c;
/// State of the queue of the host's commands: empty, since each is done when it is accepted, and
/// its free places; tags whose commands are done.
const QUEUE_STATUS: u64 = 0x104;
const TAG_STATUS: u64 = 0x22c;
const QUEUE_EMPTY: u32 = 1 << 31;
const PROXY_QUEUE: u32 = 8;

static TABLE: RwLock<BTreeMap<u64, Weak<dyn Target>>> = RwLock::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The areas of one context: pages in the order of [`Kind::ALL`].
#[derive(Debug)]
pub(crate) struct Areas {
    pages: u64,
}

impl Areas {
    pub(crate) fn new(context: Weak<dyn Target>) -> io::Result<Areas> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // Below 4 GiB: programs keep these addresses in 32-bit words.
        let pages = crate::store::map_low((2 * SHADOW).to_usize(), access)?.to_u64();
        let areas = Areas { pages };
        // SAFETY: the lower half of the mapping, whose address no other code has yet.
        if unsafe { libc::mprotect(pages as *mut _, SHADOW.to_usize(), libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        areas.show(Kind::Command, QUEUE_STATUS, QUEUE_EMPTY | PROXY_QUEUE);
        areas.show(Kind::Command, TAG_STATUS, u32::MAX);
        TABLE.write().insert(pages, context);
        // Release partners with the Acquire in `find`; the table has a lock of its own.
        COUNT.fetch_add(1, Ordering::Release);
        Ok(areas)
    }

    pub(crate) fn address(&self, kind: Kind) -> u64 {
        self.pages + PAGE * kind.page()
    }

    /// Shows the mailboxes' state: outbound entries, inbound places, interrupting entries.
    pub(crate) fn show_mailboxes(&self, status: u32) {
        self.show(Kind::Control, MAILBOX_STATUS, status);
    }

    /// Shows whether the last command was taken: 0, or 1 for one that is none.
    pub(crate) fn show_command(&self, state: u32) {
        self.show(Kind::Command, COMMAND, state);
    }

    /// Shows the tags of a mask, whose commands are all done.
    pub(crate) fn show_tags(&self, mask: u32) {
        self.show(Kind::Command, TAG_STATUS, mask);
    }

    /// Shows a register's value to loads of the host.
    fn show(&self, kind: Kind, offset: u64, value: u32) {
        // SAFETY: an area of this context, which lives as long as this value.
        let word = unsafe { shown(self.address(kind) + offset) };
        // Release: a reader that sees an entry counted sees all writes before it.
        word.store(value, Ordering::Release);
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        TABLE.write().remove(&self.pages);
        COUNT.fetch_sub(1, Ordering::Release);
        // SAFETY: the mapping of `new`; the table no longer names it.
        unsafe { crate::store::unmap_low(self.pages.to_usize(), (2 * SHADOW).to_usize()) };
    }
}

/// The context, area and offset of an address of the process, if it is in an area.
fn place(address: u64) -> Option<(Weak<dyn Target>, Kind, u64)> {
    within(address, |context, kind, offset| {
        (context.clone(), kind, offset)
    })
}

/// As [`place`], for questions that need the table's lock.
fn within<R>(address: u64, ask: impl FnOnce(&Weak<dyn Target>, Kind, u64) -> R) -> Option<R> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let table = TABLE.read();
    let (pages, context) = table.range(..=address).next_back()?;
    let offset = address - pages;
    let kind = Kind::ALL.get((offset / PAGE).to_usize())?;
    Some(ask(context, *kind, offset % PAGE))
}

/// The word that the register at an address shows.
///
/// # Safety
/// The address is in an area, whose context lives.
unsafe fn shown<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: an aligned word of the area's second page.
    unsafe { AtomicU32::from_ptr(((address + SHADOW) & !3) as *mut u32) }
}

/// Reads the register at an address: the outbound mailbox's word, 0 where there is none, is taken.
/// `None` where there is no register.
pub(crate) fn read(address: u64) -> Option<u32> {
    let (context, kind, offset) = place(address)?;
    let context = context.upgrade()?;
    if matches!((kind, offset), (Kind::Control, OUT_MAILBOX)) {
        return Some(context.read_mailbox().unwrap_or(0));
    }
    // SAFETY: an area of the context, which is kept.
    Some(unsafe { shown(address) }.load(Ordering::Acquire))
}

/// The place of memory of the process: the words of areas lie in their second pages.
pub(crate) fn memory(address: u64) -> u64 {
    within(address, |_, _, _| address + SHADOW).unwrap_or(address)
}

/// Prepares a faulted plain access of the host's to an area for a single step. False where it is no
/// such access, or an instruction that is not known.
pub(crate) fn redirect(registers: &mut Registers) -> bool {
    let address = registers[Word::Fault];
    let Some((context, kind, offset)) = place(address) else {
        return false;
    };
    let stores = registers[Word::Error] & ERROR_STORE != 0;
    let pc = registers[Word::Rip];
    // The next page is read where the instruction goes on there alone.
    let near = INSTRUCTION_BYTES.min(PAGE - pc % PAGE);
    let base = (address & !(SHADOW - 1)) + SHADOW;
    let done = [near, INSTRUCTION_BYTES].into_iter().any(|bytes| {
        // SAFETY: the interrupted instruction.
        let code = unsafe { std::slice::from_raw_parts(pc as *const u8, bytes.to_usize()) };
        stray::redirect(code, registers, base, SHADOW - 1).is_some()
    });
    if !done {
        return false;
    }
    if let (false, Kind::Control, OUT_MAILBOX, Some(context)) =
        (stores, kind, offset, context.upgrade())
    {
        let word = context.read_mailbox().unwrap_or(0);
        // SAFETY: an area of the context, which is kept.
        unsafe { shown(address) }.store(word, Ordering::Release);
    }
    STORED.with(|stored| stored.set(stores.then_some(address)));
    true
}

/// Writes the word that a single step has stored to its register.
pub(crate) fn stepped() {
    let Some(address) = STORED.with(Cell::take) else {
        return;
    };
    if place(address).is_some() {
        // SAFETY: an area, in which a step of this thread has just stored.
        let value = unsafe { shown(address) }.load(Ordering::Acquire);
        if let Some(write) = find(address, value) {
            write.deliver();
        }
    }
}

/// The register at an address of the process, if it is one.
pub(crate) fn find(address: u64, value: u32) -> Option<Write> {
    let (context, kind, offset) = place(address)?;
    let register = match (kind, offset) {
        (Kind::Signal1, SIGNAL) => Register::Signal(0),
        (Kind::Signal2, SIGNAL) => Register::Signal(1),
        (Kind::Control, IN_MAILBOX) => Register::InMailbox,
        (Kind::Command, QUERY_MASK) => Register::Tags,
        (Kind::Command, COMMAND) => {
            let _kept = context.upgrade()?;
            let area = address - COMMAND;
            // SAFETY: an area of the context, which is kept.
            let word = |offset: u64| unsafe { shown(area + offset) }.load(Ordering::Acquire);
            Register::Command(COMMAND_WORDS.map(word))
        }
        _ => return None,
    };
    Some(Write {
        context,
        register,
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// A context that records writes and has words to be read.
    #[derive(Debug, Default)]
    struct Recorder {
        writes: Mutex<Vec<(usize, u32)>>,
        words: Mutex<Vec<u32>>,
    }

    impl Target for Recorder {
        fn write_register(&self, register: Register, value: u32) {
            let index = match register {
                Register::Signal(index) => index,
                Register::InMailbox => 9,
                Register::Tags => 10,
                Register::Command(words) => words.iter().filter(|word| **word != 0).count(),
            };
            self.writes.lock().push((index, value));
        }

        fn read_mailbox(&self) -> Option<u32> {
            self.words.lock().pop()
        }
    }

    fn areas() -> (Arc<Recorder>, Areas) {
        let recorder = Arc::new(Recorder::default());
        let weak: Weak<Recorder> = Arc::downgrade(&recorder);
        let areas = Areas::new(weak).unwrap();
        (recorder, areas)
    }

    #[test]
    fn areas_are_pages_below_4_gib() {
        let (_recorder, areas) = areas();
        let addresses = Kind::ALL.map(|kind| areas.address(kind));
        assert!(addresses.windows(2).all(|pair| pair[1] == pair[0] + PAGE));
        assert!(addresses[4] + PAGE < 1 << 32 && addresses[0].is_multiple_of(SHADOW));
    }

    #[test]
    fn registers_are_found_by_their_addresses_alone() {
        let (recorder, areas) = areas();
        let registers = [
            (Kind::Signal1, SIGNAL, 0),
            (Kind::Signal2, SIGNAL, 1),
            (Kind::Control, IN_MAILBOX, 9),
        ];
        for (kind, offset, index) in registers {
            let write = find(areas.address(kind) + offset, 5).expect("a register");
            write.deliver();
            assert_eq!(recorder.writes.lock().pop(), Some((index, 5)));
            // Not at other offsets, nor in other areas.
            assert!(find(areas.address(kind) + offset + 4, 5).is_none());
            assert!(find(areas.address(kind), 5).is_none());
        }
        assert!(find(areas.address(Kind::Sync) + SIGNAL, 5).is_none());
        assert!(find(areas.address(Kind::Command) + SIGNAL, 5).is_none());
        // Behind the last area, and where there is none.
        assert!(find(areas.address(Kind::Signal2) + PAGE + SIGNAL, 5).is_none());
        assert!(find(0, 5).is_none() && find(u64::MAX, 5).is_none());
    }

    #[test]
    fn a_command_has_the_words_before_it() {
        let (recorder, areas) = areas();
        let command = areas.address(Kind::Command);
        let words = [0x100, 1, 0x2000, 0x80_0003];
        for (offset, word) in COMMAND_WORDS.into_iter().zip(words) {
            areas.show(Kind::Command, offset, word);
        }
        let write = find(command + COMMAND, 0x40).expect("a register");
        assert!(matches!(write.register, Register::Command(found) if found == words));
        write.deliver();
        assert_eq!(recorder.writes.lock().pop(), Some((4, 0x40)));
        assert!(find(command + QUERY_MASK, 8).is_some_and(|write| write.value == 8));
        areas.show_command(1);
        areas.show_tags(8);
        assert_eq!(read(command + COMMAND), Some(1));
        assert_eq!(read(command + TAG_STATUS), Some(8));
    }

    #[test]
    fn words_are_shown_in_the_second_pages() {
        let (recorder, areas) = areas();
        let control = areas.address(Kind::Control);
        areas.show_mailboxes(0x0403);
        assert_eq!(read(control + MAILBOX_STATUS), Some(0x0403));
        assert_eq!(memory(control + 8), control + 8 + SHADOW);
        assert_eq!(memory(0x1234), 0x1234);
        // A read of the outbound mailbox takes its word; of an empty one it is 0.
        recorder.words.lock().push(7);
        assert_eq!(read(control + OUT_MAILBOX), Some(7));
        assert_eq!(read(control + OUT_MAILBOX), Some(0));
        // The queue of the host's commands is always empty, and all tags are done.
        let command = areas.address(Kind::Command);
        assert_eq!(
            read(command + QUEUE_STATUS),
            Some(QUEUE_EMPTY | PROXY_QUEUE)
        );
        assert_eq!(read(command + TAG_STATUS), Some(u32::MAX));
        assert_eq!(read(4), None);
    }

    #[test]
    fn areas_end_with_their_context() {
        let (recorder, areas) = areas();
        let signal = areas.address(Kind::Signal1) + SIGNAL;
        let write = find(signal, 1).expect("a register");
        drop(recorder);
        // The context is gone: its registers are no more, and a write under way goes nowhere.
        write.deliver();
        assert_eq!(read(signal), None);
        drop(areas);
        assert!(find(signal, 1).is_none());
    }
}
