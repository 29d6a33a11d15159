//! Records of descriptors.
//!
//! Must stay true: an empty record costs one load; a record written by an ancestor process is
//! recognized as such; no lock, so that signal handlers may read it.

use crate::real::count;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unknown: left to the kernel.
    Other,
    /// A socket that may get rings.
    Candidate,
    /// One thread is requesting rings.
    Upgrading,
    /// Its bytes pass through rings.
    Ring,
    /// A socket that stays on its pair.
    Barred,
    /// An epoll instance with descriptors that have rings.
    Epoll,
    /// An ancestor process has rings for it.
    Inherited,
    /// An epoll instance of an ancestor process.
    InheritedEpoll,
    /// An epoll instance that may get descriptors with rings.
    Instance,
    /// A duplicate of an epoll instance, whose descriptor is the record's number.
    Alias,
}

/// Record of one descriptor.
#[derive(Debug)]
pub(crate) struct Record {
    /// Kind in the low bits, above it the number of forks when it was written.
    state: AtomicU32,
    /// Calls that carried bytes.
    pub(crate) calls: AtomicU32,
    /// Threads in calls that may wait for it, or for an earlier file with the number.
    pub(crate) waits: AtomicU32,
    /// The stream's number, or the epoll set's.
    pub(crate) number: AtomicU32,
    /// The epoll instance that contains it, plus 1; 0 for none.
    epoll: AtomicI32,
    /// Events as passed to epoll_ctl(2).
    pub(crate) events: AtomicU32,
    pub(crate) data: AtomicU64,
    /// [`DRAINED`], [`SHUT_WRITE`], [`GONE`], [`LISTENS`], [`ENDED`], [`PARDONED`], [`ALIASED`],
    /// [`ROUTES`], [`LINGERS`], [`DATAGRAMS`], [`IS_V6`]; from [`TOLD_SHIFT`] on control messages.
    pub(crate) flags: AtomicU32,
    /// Children that the process had when the descriptor came.
    born: AtomicU32,
    /// Number of refused requests for rings.
    pub(crate) put_off: AtomicU32,
    /// Number of times that its rings were full; above [`CRAMPED_MAX`] once larger ones were
    /// requested. Of a datagram socket: calls since it asked for rings.
    pub(crate) cramped: AtomicU32,
    /// The place in the run's directory of a datagram socket, by its bits; 0: it has none.
    pub(crate) place: AtomicU64,
    /// Number of descriptors that had the number before.
    turns: AtomicU32,
    /// SO_RCVTIMEO and SO_SNDTIMEO in microseconds, plus 1; 0: not read yet.
    pub(crate) patience: [AtomicU64; 2],
}

/// Times that rings are full before larger ones are asked for.
pub(crate) const CRAMPED_MAX: u32 = 8;
/// The bytes that the pair held before the rings were read.
pub(crate) const DRAINED: u32 = 1;
/// The program writes no more.
pub(crate) const SHUT_WRITE: u32 = 2;
/// The other end of the pair is closed.
pub(crate) const GONE: u32 = 4;
/// It is a listener from which this process accepts directly.
pub(crate) const LISTENS: u32 = 8;
/// The program has read the peer's end.
pub(crate) const ENDED: u32 = 16;
/// One write was accepted, or one error reported, after the peer's close.
pub(crate) const PARDONED: u32 = 32;

/// An epoll instance with a duplicate, which the record's data names.
pub(crate) const ALIASED: u32 = 64;
/// A netlink socket by which programs ask for interfaces: calls without an address get one, by
/// which the supervisor sees them.
pub(crate) const ROUTES: u32 = 128;
/// Its close waits (SO_LINGER with a time).
pub(crate) const LINGERS: u32 = 256;
/// A UDP socket, which may get a place in the run's directory.
pub(crate) const DATAGRAMS: u32 = 512;

/// A UDP socket with rings is of IPv6.
pub(crate) const IS_V6: u32 = 1024;

/// Control messages that the program of a UDP socket with rings has asked for: the bits of a grant
/// ([`sidecore_net_rings::datagram::TELLS`]), this many higher.
pub(crate) const TOLD_SHIFT: u32 = 16;

/// Higher descriptors are left to the kernel.
pub(crate) const DESCRIPTORS: usize = 1 << 16;

static RECORDS: [Record; DESCRIPTORS] = [const { Record::new() }; DESCRIPTORS];
static FORKS: AtomicU32 = AtomicU32::new(0);
static PROCESS: AtomicI32 = AtomicI32::new(0);
static CHILDREN: AtomicU32 = AtomicU32::new(0);
/// The process was executed with descriptors that may be sessions of an ancestor.
static HAS_INHERITED: AtomicBool = AtomicBool::new(false);

impl Record {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            number: AtomicU32::new(0),
            epoll: AtomicI32::new(0),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            born: AtomicU32::new(0),
            put_off: AtomicU32::new(0),
            cramped: AtomicU32::new(0),
            place: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            patience: [const { AtomicU64::new(0) }; 2],
        }
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        let state = self.state.load(Ordering::Acquire);
        if state == 0 {
            return Kind::Other;
        }
        // Relaxed: the number changes only in a child with a single thread.
        let is_ours = state >> KIND_BITS == FORKS.load(Ordering::Relaxed);
        match (state & KIND_MASK, is_ours) {
            // A child's candidate is as good as its parent's: neither has rings.
            (CANDIDATE, _) => Kind::Candidate,
            (UPGRADING, true) => Kind::Upgrading,
            (UPGRADING, false) | (BARRED, _) => Kind::Barred,
            (RING, true) => Kind::Ring,
            (RING, false) => Kind::Inherited,
            (EPOLL, true) => Kind::Epoll,
            (EPOLL, false) => Kind::InheritedEpoll,
            (INSTANCE, _) => Kind::Instance,
            (ALIAS, _) => Kind::Alias,
            _ => Kind::Other,
        }
    }

    /// The kind once no thread is requesting rings.
    pub(crate) fn settled_kind(&self) -> Kind {
        loop {
            match self.kind() {
                // It lasts for one request to the supervisor.
                Kind::Upgrading => std::thread::yield_now(),
                kind => return kind,
            }
        }
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        let forks = FORKS.load(Ordering::Relaxed) << KIND_BITS;
        self.state.store(forks | code(kind), Ordering::Release);
    }

    /// Changes a candidate to upgrading, for one thread. SeqCst: [`Self::has_begun_upgrade`].
    pub(crate) fn begin_upgrade(&self) -> bool {
        // A candidate of a parent process is upgraded as the child's own.
        self.change_kind(Kind::Candidate, Kind::Upgrading)
    }

    /// Changes the kind, if it is still `from`, which is one of this process.
    pub(crate) fn change_kind(&self, from: Kind, to: Kind) -> bool {
        let before = self.state.load(Ordering::Acquire);
        let forks = FORKS.load(Ordering::Relaxed) << KIND_BITS;
        self.kind() == from
            && before & KIND_MASK == code(from)
            && self
                .state
                .compare_exchange(
                    before,
                    forks | code(to),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// True if a thread requests rings, or has got some. SeqCst: a thread counts itself in `waits`
    /// and looks here then; an upgrade changes the state and looks at `waits` then. So one of them
    /// sees the other.
    #[inline]
    pub(crate) fn has_begun_upgrade(&self) -> bool {
        matches!(
            self.state.load(Ordering::SeqCst) & KIND_MASK,
            UPGRADING | RING
        )
    }

    /// True if it has rings, or gets some at this moment. The caller has counted itself in `waits`.
    #[inline]
    pub(crate) fn has_got_rings(&self) -> bool {
        self.has_begun_upgrade() && self.settled_kind() == Kind::Ring
    }

    /// A new descriptor has the number.
    pub(crate) fn begin(&self, kind: Kind) {
        // Most numbers had no record before.
        if kind == Kind::Other && self.state.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.calls.store(0, Ordering::Relaxed);
        self.epoll.store(0, Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
        self.cramped.store(0, Ordering::Relaxed);
        self.put_off.store(0, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.place.store(0, Ordering::SeqCst);
        self.born
            .store(CHILDREN.load(Ordering::Relaxed), Ordering::Relaxed);
        self.forget_patience();
        if kind == Kind::Other {
            self.state.store(0, Ordering::Release);
        } else {
            self.set_kind(kind);
        }
    }

    /// True if a child was forked off since the descriptor came, and may have it, too: what that
    /// polls is the pair.
    pub(crate) fn may_be_a_childs(&self) -> bool {
        self.born.load(Ordering::Relaxed) != CHILDREN.load(Ordering::Relaxed)
    }

    /// Sets the place that `ask` gets for the descriptor's socket; false, and no place, if another
    /// descriptor has the number by now. SeqCst: either [`Self::begin`] clears the place later, or
    /// its turn is seen here.
    pub(crate) fn ask_place<E>(&self, ask: impl FnOnce() -> Result<u64, E>) -> Result<bool, E> {
        let turn = self.turns.load(Ordering::SeqCst);
        self.place.store(ask()?, Ordering::SeqCst);
        let is_its = self.turns.load(Ordering::SeqCst) == turn;
        if !is_its {
            self.place.store(0, Ordering::SeqCst);
        }
        Ok(is_its)
    }

    pub(crate) fn epoll(&self) -> Option<c_int> {
        self.epoll
            .load(Ordering::Acquire)
            .checked_sub(1)
            .filter(|it| *it >= 0)
    }

    pub(crate) fn set_epoll(&self, epoll: Option<c_int>) {
        self.epoll
            .store(epoll.map_or(0, |it| it + 1), Ordering::Release);
    }

    /// The program sets options: drops the cached timeouts.
    pub(crate) fn forget_patience(&self) {
        for micros in &self.patience {
            micros.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    pub(crate) fn add(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
    }

    pub(crate) fn take_off(&self, flag: u32) {
        self.flags.fetch_and(!flag, Ordering::AcqRel);
    }
}

/// The record of a descriptor; none beyond [`DESCRIPTORS`].
#[inline]
pub(crate) fn record(descriptor: c_int) -> Option<&'static Record> {
    RECORDS.get(usize::try_from(descriptor).ok()?)
}

/// Records a new descriptor, which is returned.
pub(crate) fn new(file: c_int, kind: Kind) -> c_int {
    if let Some(record) = record(file) {
        record.begin(kind);
    }
    file
}

/// The descriptor by which an epoll instance is known: of a duplicate, the first one.
#[inline]
pub(crate) fn instance(epoll: c_int) -> c_int {
    match record(epoll) {
        Some(record) if record.kind() == Kind::Alias => {
            record.number.load(Ordering::Relaxed).cast_signed()
        }
        _ => epoll,
    }
}

/// The kind of a descriptor.
#[inline]
pub(crate) fn kind(descriptor: c_int) -> Kind {
    record(descriptor).map_or(Kind::Other, Record::kind)
}

/// True in the process that owns this memory: a child of vfork(2) shares its parent's memory, but
/// has its own descriptors.
pub(crate) fn is_own_process() -> bool {
    // SAFETY: a call without pointers.
    let now = unsafe { libc::syscall(libc::SYS_getpid) };
    now == libc::c_long::from(PROCESS.load(Ordering::Relaxed))
}

/// The library was loaded into this process, or it is a forked child.
pub(crate) fn begin_process() {
    PROCESS.store(std::process::id().cast_signed(), Ordering::Relaxed);
}

/// A child was forked off.
pub(crate) fn note_child() {
    CHILDREN.fetch_add(1, Ordering::AcqRel);
}

/// True if this process has forked children, which may have its descriptors.
pub(crate) fn has_forked() -> bool {
    CHILDREN.load(Ordering::Acquire) > 0
}

/// True if an ancestor process may have rings for a descriptor of this one.
#[inline]
pub(crate) fn may_inherit() -> bool {
    FORKS.load(Ordering::Relaxed) > 0 || HAS_INHERITED.load(Ordering::Relaxed)
}

/// A descriptor of an executed program may be a session for which an ancestor has rings.
pub(crate) fn note_inherited(record: &Record) {
    HAS_INHERITED.store(true, Ordering::Relaxed);
    // Of another number of forks than any record of this process.
    let other = FORKS.load(Ordering::Relaxed).wrapping_sub(1);
    record
        .state
        .store(other << KIND_BITS | RING, Ordering::Release);
}

/// This process is a forked child: all records are those of an ancestor.
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    begin_process();
}

/// The descriptors in an ancestor's epoll instance, with that process's rings.
pub(crate) fn inherited_of(epoll: c_int) -> impl Iterator<Item = c_int> {
    // Bounded, since this runs in the middle of a program's wait.
    let limit = RECORDS.len().min(INHERITED_MAX);
    (0..count(limit)).filter(move |descriptor| {
        record(*descriptor)
            .is_some_and(|record| record.kind() == Kind::Inherited && record.epoll() == Some(epoll))
    })
}

fn code(kind: Kind) -> u32 {
    match kind {
        Kind::Candidate => CANDIDATE,
        Kind::Upgrading => UPGRADING,
        Kind::Ring => RING,
        Kind::Barred => BARRED,
        Kind::Epoll => EPOLL,
        Kind::Instance => INSTANCE,
        Kind::Alias => ALIAS,
        Kind::Other | Kind::Inherited | Kind::InheritedEpoll => 0,
    }
}

const CANDIDATE: u32 = 1;
const UPGRADING: u32 = 2;
const RING: u32 = 3;
const BARRED: u32 = 4;
const EPOLL: u32 = 5;
const INSTANCE: u32 = 6;
const ALIAS: u32 = 7;
const KIND_BITS: u32 = 4;
const KIND_MASK: u32 = (1 << KIND_BITS) - 1;
/// Descriptors searched after a fork.
const INHERITED_MAX: usize = 20_000;
