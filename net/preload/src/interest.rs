//! Epoll registrations of descriptors with rings.
//!
//! In the kernel's epoll instance they have no events, next to a waiter's socket of the library.
//! Must stay true: a descriptor is in at most one such instance, and is watched by the kernel again
//! when it loses its rings.

use crate::attachment::{self, Attachment, Blocked, STREAM_COUNT, Waiter, drain};
use crate::real::{errno, real};
use crate::table::{Kind, Record, record};
use sidecore_bare::width::ToUsize;
use sidecore_net_rings::WAITERS;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An epoll instance with descriptors that have rings.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) waiter: Waiter,
    /// Threads that sleep in it.
    pub(crate) sleepers: AtomicU32,
    /// Number of wake-ups by the supervisor.
    pub(crate) wakes: AtomicU32,
    pub(crate) inner: Mutex<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// By the stream's number.
    pub(crate) interests: Vec<Option<Interest>>,
    /// Streams that may be ready.
    pub(crate) ready: VecDeque<u32>,
    /// Events reported since the kernel was last polled.
    pub(crate) told: u32,
    /// Events that the kernel had then; 0 once that was used.
    pub(crate) kernel_had: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Interest {
    pub(crate) descriptor: c_int,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// True if it is in the list `ready`.
    pub(crate) is_queued: bool,
    /// It was reported, with EPOLLONESHOT.
    pub(crate) is_spent: bool,
}

/// A thread prepares an instance. No mutex: a forked child frees it from a thread that it has not.
static BEGINS: AtomicBool = AtomicBool::new(false);

/// The right to prepare an instance.
struct Turn;

impl Turn {
    fn take() -> Self {
        while BEGINS.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BEGINS.store(false, Ordering::Release);
    }
}

/// By their waiters' numbers. A set whose epoll instance was closed is reused with its waiter.
static SETS: [AtomicPtr<Set>; WAITERS] = [const { AtomicPtr::new(ptr::null_mut()) }; WAITERS];

impl Set {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    pub(crate) fn queue(&mut self, number: u32) {
        if let Some(Some(interest)) = self.interests.get_mut(number.to_usize())
            && !std::mem::replace(&mut interest.is_queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Takes a stream's registration out, and its entry in the list: the number may be registered
    /// again, and would be in the list twice.
    fn remove(&mut self, number: usize) -> Option<Interest> {
        let interest = self.interests.get_mut(number)?.take()?;
        if interest.is_queued {
            self.ready.retain(|queued| queued.to_usize() != number);
        }
        Some(interest)
    }

    pub(crate) fn put(&mut self, number: u32, descriptor: c_int, events: u32, data: u64) {
        if let Some(place) = self.interests.get_mut(number.to_usize()) {
            // A stream is in the list once, whatever its registration says.
            let is_queued = place.is_some_and(|interest| interest.is_queued);
            *place = Some(Interest {
                descriptor,
                events,
                data,
                is_queued,
                is_spent: false,
            });
            self.queue(number);
        }
    }
}

pub(crate) fn set_of(epoll: c_int) -> Option<&'static Set> {
    let record = record(epoll).filter(|record| record.kind() == Kind::Epoll)?;
    set_at(record.number.load(Ordering::Relaxed))
}

fn set_at(number: u32) -> Option<&'static Set> {
    let set = SETS.get(number.to_usize())?.load(Ordering::Acquire);
    // SAFETY: it was leaked when it was stored, and is never freed.
    unsafe { set.as_ref() }
}

/// Prepares an epoll instance for descriptors with rings; false if that fails.
pub(crate) fn begin(attachment: &Attachment, epoll: c_int) -> bool {
    let Some(record) = record(epoll) else {
        return false;
    };
    if record.kind() == Kind::Epoll {
        return true;
    }
    // One at a time: the waiter of a second one would not be the set's. A handler on this thread
    // would wait for it.
    let _blocked = Blocked::begin();
    let _turn = Turn::take();
    let kind = record.kind();
    match kind {
        Kind::Epoll => return true,
        // Something else watches the instance.
        Kind::InheritedEpoll | Kind::Barred => return false,
        _ => {}
    }
    let Some(waiter) = attachment.waiter(epoll) else {
        return false;
    };
    drain(waiter);
    // Edge-triggered: the wake-up bytes need not be read each time.
    let events = libc::EPOLLIN.cast_unsigned() | EDGE;
    if control(epoll, libc::EPOLL_CTL_ADD, waiter.socket, events, OWN_DATA) != 0 {
        attachment.give_waiter_back(waiter);
        return false;
    }
    if set_at(waiter.number).is_none()
        && let Some(place) = SETS.get(waiter.number.to_usize())
    {
        // Leaked: a thread may sleep in it while another one closes the instance.
        let set = Box::leak(Box::new(Set {
            waiter,
            sleepers: AtomicU32::new(0),
            wakes: AtomicU32::new(0),
            inner: Mutex::new(Inner {
                interests: vec![None; STREAM_COUNT],
                ready: VecDeque::with_capacity(STREAM_COUNT),
                told: 0,
                kernel_had: 0,
            }),
        }));
        place.store(set, Ordering::Release);
    }
    // Threads may sleep in it already, unknown to the library.
    if let Some(word) = attachment.word(waiter) {
        word.announce_sleep();
    }
    // Before the kind, whose Release makes it visible.
    record.number.store(waiter.number, Ordering::Relaxed);
    // Something else may watch the instance by now.
    let is_epoll = record.change_kind(kind, Kind::Epoll);
    if !is_epoll {
        control(epoll, libc::EPOLL_CTL_DEL, waiter.socket, 0, OWN_DATA);
        attachment.give_waiter_back(waiter);
    }
    is_epoll
}

/// A registered descriptor has got rings; false if the instance takes none any more.
#[must_use]
pub(crate) fn adopt(
    attachment: &Attachment,
    epoll: c_int,
    descriptor: c_int,
    record: &Record,
) -> bool {
    let Some(set) = set_of(epoll) else {
        return false;
    };
    let number = record.number.load(Ordering::Relaxed);
    if let Some(stream) = attachment.stream(number) {
        // Before the first look: news from now on reach the set.
        stream.tell(0, Some(set.waiter.number));
    }
    let data = mute_data(descriptor);
    if control(epoll, libc::EPOLL_CTL_MOD, descriptor, MUTE, data) != 0 {
        // It is in no instance: the one that contained it was closed, and its number is another's.
        record.set_epoll(None);
        if let Some(stream) = attachment.stream(number) {
            stream.tell(0, None);
        }
        return true;
    }
    let (events, data) = (
        record.events.load(Ordering::Relaxed),
        record.data.load(Ordering::Relaxed),
    );
    // Queued as if ready: its bytes may have come before the set knew of it.
    set.lock().put(number, descriptor, events, data);
    wake(epoll, set);
    // A thread that dissolves the instance changes its kind, and looks for interests then.
    set_of(epoll).is_some()
}

/// Makes a set report a descriptor again: its program has changed the descriptor's state.
pub(crate) fn nudge(record: &Record) {
    let Some((epoll, set)) = record.epoll().and_then(|it| Some((it, set_of(it)?))) else {
        return;
    };
    set.lock().queue(record.number.load(Ordering::Relaxed));
    wake(epoll, set);
}

/// Wakes a thread that sleeps in a set to which something was queued: it counts itself before it
/// looks, so either it sees what was queued, or it is seen here.
pub(crate) fn wake(epoll: c_int, set: &Set) {
    if set.sleepers.load(Ordering::SeqCst) > 0 {
        // The socket is always writable: registering that anew wakes one thread.
        let events = (libc::EPOLLIN | libc::EPOLLOUT).cast_unsigned() | EDGE;
        let socket = set.waiter.socket;
        control(epoll, libc::EPOLL_CTL_MOD, socket, events, OWN_DATA);
    }
}

/// Takes one registration out of a set.
pub(crate) fn take_one(set: &Set) -> Option<Interest> {
    let mut inner = set.lock();
    let number = inner.interests.iter().position(Option::is_some)?;
    inner.remove(number)
}

/// A descriptor has lost its rings: the kernel's epoll instance watches it again.
pub(crate) fn release(descriptor: c_int, record: &Record) {
    let Some(epoll) = record.epoll() else {
        return;
    };
    forget(epoll, record);
    let events = record.events.load(Ordering::Relaxed);
    let data = record.data.load(Ordering::Relaxed);
    control(epoll, libc::EPOLL_CTL_MOD, descriptor, events, data);
}

/// Removes a descriptor with rings from the set.
pub(crate) fn forget(epoll: c_int, record: &Record) {
    if let Some(set) = set_of(epoll) {
        let number = record.number.load(Ordering::Relaxed).to_usize();
        set.lock().remove(number);
    }
}

/// An epoll's descriptor is closed.
pub(crate) fn close(epoll: c_int) {
    let (Some(set), Some(attachment)) = (set_of(epoll), attachment::current()) else {
        return;
    };
    // Its descriptors have no epoll instance until they are added to one.
    let mut inner = set.lock();
    for interest in inner.interests.iter_mut().filter_map(Option::take) {
        if let Some(record) = record(interest.descriptor)
            && record.epoll() == Some(epoll)
        {
            record.set_epoll(None);
        }
    }
    inner.ready.clear();
    drop(inner);
    attachment.give_waiter_back(set.waiter);
}

/// This process is a forked child: its parent uses the epoll instances, too.
pub(crate) fn forked() {
    BEGINS.store(false, Ordering::Release);
    for set in &SETS {
        // Not freed: it is a copy, whose waiter is the parent's.
        set.store(ptr::null_mut(), Ordering::Release);
    }
}

pub(crate) fn control(
    epoll: c_int,
    operation: c_int,
    descriptor: c_int,
    events: u32,
    data: u64,
) -> c_int {
    let mut event = libc::epoll_event { events, u64: data };
    let before = errno();
    let result = real!(epoll_ctl(epoll => c_int, operation => c_int, descriptor => c_int,
        &raw mut event => *mut libc::epoll_event) -> c_int);
    crate::real::set_errno(before);
    result
}

/// True if an epoll instance reports a descriptor once, until it is armed again.
pub(crate) fn is_told_once(record: &Record) -> bool {
    let events = record.events.load(Ordering::Relaxed);
    record.epoll().is_some() && events & ONE_SHOT != 0
}

/// Epoll data of a waiter's socket.
pub(crate) const OWN_DATA: u64 = 0x5349_4445_434f_5245;

/// Events of a descriptor with rings in the kernel's epoll instance: only the hang-up of its pair,
/// once.
pub(crate) const MUTE: u32 = EDGE;

pub(crate) const EDGE: u32 = libc::EPOLLET.cast_unsigned();
pub(crate) const ONE_SHOT: u32 = libc::EPOLLONESHOT.cast_unsigned();

/// Epoll data of a descriptor with rings.
pub(crate) fn mute_data(descriptor: c_int) -> u64 {
    OWN_STREAMS | u64::from(descriptor.cast_unsigned())
}

/// The descriptor in such epoll data.
pub(crate) fn muted(data: u64) -> Option<c_int> {
    let number = data ^ OWN_STREAMS;
    c_int::try_from(number).ok()
}

const OWN_STREAMS: u64 = 0x5349_4452 << 32;
