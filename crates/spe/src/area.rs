//! Problem-state areas: addresses at which another context's registers can be written by DMA.
//!
//! An area is a page of memory. What an MFC puts to a signal register or to the inbound mailbox of
//! an area reaches the context; the mailbox status word of the control area is kept up to date.
//! Plain loads and stores of the host are not seen: `cbe_mfc.h`'s functions for registers, and
//! libspe2's calls, are for those.
//!
//! Must stay true: the table's lock is held only for a look-up, and no context's lock under it.

use parking_lot::RwLock;
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
}

/// A write to a register of a context.
#[derive(Debug)]
pub(crate) struct Write {
    context: Weak<dyn Target>,
    register: Register,
    value: u32,
}

/// Registers that DMA can write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Register {
    Signal(usize),
    InMailbox,
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
/// Offsets of registers within their areas (Cell Broadband Engine Architecture).
const SIGNAL: u64 = 12;
const IN_MAILBOX: u64 = 12;
const OUT_MAILBOX: u64 = 4;
const MAILBOX_STATUS: usize = 20;
/// State of the queue of the host's commands: empty, since each is done when it is accepted, and
/// its free places; tags whose commands are done.
const QUEUE_STATUS: usize = 0x104;
const TAG_STATUS: usize = 0x22c;
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
        let bytes = Kind::ALL.len() * PAGE as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // Below 4 GiB: programs keep these addresses in 32-bit words.
        let pages = crate::store::map_low(bytes, access)? as u64;
        let areas = Areas { pages };
        areas.show(Kind::Command, QUEUE_STATUS, QUEUE_EMPTY | PROXY_QUEUE);
        areas.show(Kind::Command, TAG_STATUS, u32::MAX);
        TABLE.write().insert(pages, context);
        // Release partners with the Acquire in `find`; the table has a lock of its own.
        COUNT.fetch_add(1, Ordering::Release);
        Ok(areas)
    }

    pub(crate) fn address(&self, kind: Kind) -> u64 {
        self.pages + PAGE * kind as u64
    }

    /// Shows the mailboxes' state: outbound entries, inbound places, interrupting entries.
    pub(crate) fn show_mailboxes(&self, status: u32) {
        self.show(Kind::Control, MAILBOX_STATUS, status);
    }

    /// Shows a register's value to loads of the host.
    fn show(&self, kind: Kind, offset: usize, value: u32) {
        let at = self.address(kind) as usize + offset;
        // SAFETY: an aligned word of our own page, which lives as long as this value.
        let word = unsafe { AtomicU32::from_ptr(at as *mut u32) };
        // Release: whoever sees an entry counted sees what was written before it.
        word.store(value, Ordering::Release);
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        TABLE.write().remove(&self.pages);
        COUNT.fetch_sub(1, Ordering::Release);
        let bytes = Kind::ALL.len() * PAGE as usize;
        // SAFETY: the mapping of `new`; the table no longer names it.
        unsafe { crate::store::unmap_low(self.pages as usize, bytes) };
    }
}

/// The context, area and offset of an address of the process, if it is in an area.
fn place(address: u64) -> Option<(Weak<dyn Target>, Kind, u64)> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let table = TABLE.read();
    let (pages, context) = table.range(..=address).next_back()?;
    let offset = address - pages;
    let kind = Kind::ALL.get((offset / PAGE) as usize)?;
    Some((context.clone(), *kind, offset % PAGE))
}

/// Reads the register at an address: the outbound mailbox's word, 0 where there is none, is taken.
/// `None` where no register can be read there.
pub(crate) fn read(address: u64) -> Option<u32> {
    let (context, kind, offset) = place(address)?;
    let mailbox = matches!((kind, offset), (Kind::Control, OUT_MAILBOX));
    let context = context.upgrade().filter(|_| mailbox)?;
    Some(context.read_mailbox().unwrap_or(0))
}

/// The register at an address of the process, if it is one.
pub(crate) fn find(address: u64, value: u32) -> Option<Write> {
    let (context, kind, offset) = place(address)?;
    let register = match (kind, offset) {
        (Kind::Signal1, SIGNAL) => Register::Signal(0),
        (Kind::Signal2, SIGNAL) => Register::Signal(1),
        (Kind::Control, IN_MAILBOX) => Register::InMailbox,
        _ => return None,
    };
    Some(Write {
        context,
        register,
        value,
    })
}
