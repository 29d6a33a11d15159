//! Recording: spans, instants, counters and flows, into the calling thread's ring.
//!
//! Why here: products call this on their data paths. Off, a call costs one relaxed load and a
//! branch; on, a time stamp and a record in the thread's own ring.
//!
//! Must stay true: no lock and no allocation, but at a thread's first record and a name's first
//! use. A span ends on the thread that began it. Nothing here fails: a thread without a ring
//! records nothing.

use crate::name::{LABELS_MAX, LANES_MAX, Lane, Name};
use crate::registry::registry;
use crate::ring::Ring;
use sidecore_sys::{clock, cpu};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// The meaning of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A span begins; its arguments.
    Begin,
    /// The thread enters a lane; the lane, and one argument.
    Enter,
    /// The last span of this name ends; its result.
    End,
    /// A span that began at the first argument's time ends; one argument.
    Whole,
    Instant,
    /// A value from now on.
    Counter,
    /// A flow leaves from here; its number.
    FlowFrom,
    /// A flow arrives here; its number.
    FlowTo,
    /// The thread goes on with a fiber; its number.
    Resume,
    /// The thread leaves the fiber.
    Suspend,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Begin,
        Self::Enter,
        Self::End,
        Self::Whole,
        Self::Instant,
        Self::Counter,
        Self::FlowFrom,
        Self::FlowTo,
        Self::Resume,
        Self::Suspend,
    ];

    /// The second word of a record.
    #[inline]
    fn with(self, name: u32) -> u64 {
        u64::from(name) << 8 | u64::from(self as u8)
    }

    /// The parts of a second word.
    pub(crate) fn of(word: u64) -> Option<(Self, u32)> {
        let kind = Self::ALL.get(usize::from(word.to_le_bytes()[0]))?;
        Some((*kind, u32::try_from(word >> 8).ok()?))
    }
}

/// True while something is recorded. For callers that would prepare arguments in vain.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    // Relaxed: a thread that sees it late misses some records, nothing else.
    ON.load(Ordering::Relaxed)
}

pub(crate) fn turn(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

static ON: AtomicBool = AtomicBool::new(false);

/// A span under way, which ends when it is dropped.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span {
    name: Option<&'static Name>,
    result: u64,
    /// It ends on its own thread.
    _not_send: PhantomData<*const ()>,
}

impl Span {
    /// The value that it ends with, if its name has one ([`Name::with_result`]).
    #[inline]
    pub fn set_result(&mut self, result: u64) {
        self.result = result;
    }

    #[inline]
    fn new(name: Option<&'static Name>) -> Self {
        Self {
            name,
            result: 0,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some(name) = self.name {
            record(Kind::End, name, self.result, 0);
        }
    }
}

/// Begins a span with the values of its name's arguments.
#[inline]
pub fn span(name: &'static Name, first: u64, second: u64) -> Span {
    if !is_on() {
        return Span::new(None);
    }
    record(Kind::Begin, name, first, second);
    Span::new(Some(name))
}

impl Lane {
    /// Begins a span on this lane, where this thread's spans stand until it ends; with the value
    /// of its name's first argument. Threads take turns: no two are in one lane at a time.
    #[inline]
    pub fn enter(self, name: &'static Name, first: u64) -> Span {
        if !is_on() {
            return Span::new(None);
        }
        match self.0 {
            0 => record(Kind::Begin, name, first, 0),
            lane => record(Kind::Enter, name, u64::from(lane), first),
        }
        Span::new(Some(name))
    }
}

/// The time, for [`span_since`]; `None` while nothing is recorded.
#[inline]
#[must_use]
pub fn begin() -> Option<Begun> {
    is_on().then(|| Begun(clock::cycles()))
}

/// A moment at which a span may have begun.
#[derive(Debug, Clone, Copy)]
pub struct Begun(u64);

/// Records a span from `begun` to now, with the value of its name's first argument: for work of
/// which only the end says that it is worth a record.
#[inline]
pub fn span_since(begun: Option<Begun>, name: &'static Name, first: u64) {
    if let Some(Begun(cycles)) = begun {
        record(Kind::Whole, name, cycles, first);
    }
}

/// Records a span from `begun` to `ended`, which may be some time ago: for a wait whose end shows
/// only after the work that it waited for.
#[inline]
pub fn span_between(begun: Option<Begun>, ended: Option<Begun>, name: &'static Name, first: u64) {
    if let (Some(Begun(begun)), Some(Begun(ended))) = (begun, ended) {
        record_at(ended, Kind::Whole, name, begun, first);
    }
}

/// Records that something happened, with the values of its name's arguments.
#[inline]
pub fn instant(name: &'static Name, first: u64, second: u64) {
    if is_on() {
        record(Kind::Instant, name, first, second);
    }
}

/// Records the present value of something that all threads count together.
#[inline]
pub fn counter(name: &'static Name, value: u64) {
    if is_on() {
        record(Kind::Counter, name, value, 0);
    }
}

/// Records that something goes from the present span to another one, where [`flow_to`] takes it
/// with the same name and number.
#[inline]
pub fn flow_from(name: &'static Name, number: u64) {
    if is_on() {
        record(Kind::FlowFrom, name, number, 0);
    }
}

/// Records that the present span was caused by the one that [`flow_from`] was called in.
#[inline]
pub fn flow_to(name: &'static Name, number: u64) {
    if is_on() {
        record(Kind::FlowTo, name, number, 0);
    }
}

/// Records that this thread goes on with the fiber of this number. The spans that are open there
/// go on, too.
#[inline]
pub fn resume(fiber: u64) {
    if is_on() {
        record(Kind::Resume, &FIBER, fiber, 0);
    }
}

/// Records that this thread leaves the fiber that it resumed.
#[inline]
pub fn suspend() {
    if is_on() {
        record(Kind::Suspend, &FIBER, 0, 0);
    }
}

/// Names the calling thread's track; `name` is called only while something is recorded. Takes a
/// lock: not for the data path.
pub fn name_thread(name: impl FnOnce() -> String) {
    if is_on()
        && let Some(ring) = RING.get().or_else(join)
    {
        registry().rename(ring, name());
    }
}

/// The span of a fiber on its thread's track.
pub(crate) static FIBER: Name = Name::new("engine", "task", ["number", ""]);

// Kept out of its callers, whose code is for the usual case: nothing is recorded.
#[cold]
#[inline(never)]
fn record(kind: Kind, name: &'static Name, first: u64, second: u64) {
    record_at(clock::cycles(), kind, name, first, second);
}

#[inline]
fn record_at(cycles: u64, kind: Kind, name: &'static Name, first: u64, second: u64) {
    let Some(ring) = RING.get().or_else(join) else {
        return;
    };
    let what = kind.with(name.number());
    ring.push([cycles, what, first, second]);
}

/// Gets this thread a ring.
#[cold]
fn join() -> Option<&'static Ring> {
    // A thread that is ending gets none: nothing would take it back.
    let may_join = LEAVES.try_with(|leaves| !leaves.has_tried.replace(true));
    if !may_join.unwrap_or(false) {
        return None;
    }
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("thread").to_owned();
    let ring = registry().admit(cpu::thread_id(), name);
    RING.set(ring);
    ring
}

thread_local! {
    static RING: Cell<Option<&'static Ring>> = const { Cell::new(None) };
    static LEAVES: Leaves = const { Leaves { has_tried: Cell::new(false) } };
}

/// Gives the ring back when its thread ends.
struct Leaves {
    /// A thread that found no ring asks no more.
    has_tried: Cell<bool>,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        if let Some(ring) = RING.take() {
            registry().dismiss(ring);
        }
    }
}

/// The number of a text, for arguments whose name begins with `$`: the same for the same text. 0
/// while nothing is recorded, and for more than 4,096 texts. Takes a lock: not for the
/// data path.
#[must_use]
pub fn label(text: &str) -> u64 {
    if !is_on() {
        return 0;
    }
    u64::from(number_of(&mut registry().labels, text))
}

impl Lane {
    /// A track with the name that `name` gives. While nothing is recorded, and with more than
    /// [`LANES_MAX`] lanes, it is none, and `name` may not be called.
    #[must_use]
    pub fn new(name: impl FnOnce() -> String) -> Self {
        if !is_on() {
            return Self(0);
        }
        let name = name();
        let lanes = &mut registry().lanes;
        if lanes.len() == LANES_MAX {
            return Self(0);
        }
        lanes.push(name);
        Self(u32::try_from(lanes.len()).unwrap_or(0))
    }

    /// A number for the flow to this lane that `count` counts.
    #[inline]
    #[must_use]
    pub fn flow(self, count: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(count)
    }
}

fn number_of(table: &mut Vec<String>, text: &str) -> u32 {
    let place = table.iter().position(|known| known == text);
    let place = place.or_else(|| {
        (table.len() < LABELS_MAX).then(|| {
            table.push(text.to_owned());
            table.len() - 1
        })
    });
    place.map_or(0, |place| u32::try_from(place + 1).unwrap_or(0))
}
