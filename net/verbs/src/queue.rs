//! Completion queues, their channels, and asynchronous events of contexts.
//!
//! A channel's descriptor is an eventfd that counts events, and a read takes one: programs poll it,
//! read it blocking or not, as they set it.

use crate::abi::*;
use crate::device::{self, ContextObject};
use crate::engine::Engine;
use crate::event::{Events, take_count};
use crate::state::{Core, Table};
use crate::{errno, fail, pointer_failed, steps};
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicBool;

/// Most entries of a completion queue.
pub(crate) const CQE_MAX: c_int = 1 << 18;

/// A program's handle: asynchronous events.
pub(crate) struct Context {
    pub(crate) events: Events<(usize, c_int)>,
    /// Events that were read and not acknowledged, by object.
    pub(crate) unread: Vec<usize>,
}

/// A channel.
pub(crate) struct Channel {
    pub(crate) events: Events<u32>,
    pub(crate) queues: usize,
}

/// The program's structure of a channel.
#[repr(C)]
struct ChannelObject {
    raw: ibv_comp_channel,
    handle: u32,
    engine: &'static Engine,
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) context: u32,
    pub(crate) channel: Option<u32>,
    entries: VecDeque<(ibv_wc, Option<u32>)>,
    armed: Option<bool>,
    /// Events that were read and not acknowledged.
    unacknowledged: u32,
    /// Pairs and shared queues that use it.
    pub(crate) users: usize,
}

/// The program's structure of a queue, of either kind.
#[repr(C)]
pub(crate) struct CqObject {
    /// It begins with the shorter kind.
    pub(crate) raw: ibv_cq_ex,
    /// A thread is between the start and the end of an extended poll.
    pub(crate) is_taken: AtomicBool,
    /// The completion that this poll shows.
    pub(crate) shown: ibv_wc,
}

impl Cq {
    /// Adds a completion; true if that raises an event, which disarms the queue.
    pub(crate) fn push(&mut self, wc: ibv_wc, of: Option<u32>, solicited: bool) -> bool {
        self.entries.push_back((wc, of));
        match self.armed {
            Some(only_solicited) if solicited || !only_solicited => {
                // One event a request: the program polls until the queue is empty before it asks
                // again.
                self.armed = None;
                true
            }
            _ => false,
        }
    }

    /// Forgets the completions of a pair.
    pub(crate) fn forget(&mut self, number: u32) {
        // A later pair may have its handle, and must not get back slots that were never its own.
        self.entries.retain(|(wc, _)| wc.qp_num != number);
    }
}

impl Table<Context> {
    /// Adds an asynchronous event about an object.
    pub(crate) fn raise_async(&mut self, context: u32, element: usize, event: c_int) {
        if let Some(context) = self.get(context) {
            context.events.push((element, event));
        }
    }

    /// Forgets asynchronous events about an object; true once all read ones are acknowledged.
    pub(crate) fn forget_async(&mut self, context: u32, element: usize) -> bool {
        let Some(context) = self.get(context) else {
            return true;
        };
        context.events.remove(|event| event.0 == element);
        !context.unread.contains(&element)
    }
}

impl Core {
    /// Adds an event of a queue to its channel.
    pub(crate) fn raise(&mut self, cq: u32) {
        let channel = self.cqs.get(cq).and_then(|cq| cq.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get(channel)) {
            channel.events.push(cq);
        }
    }

    /// Ends a queue's requests for events; true if it has a channel, which forgets it.
    pub(crate) fn leave_channel(&mut self, handle: u32) -> bool {
        let Some(cq) = self.cqs.get(handle) else {
            return false;
        };
        cq.armed = None;
        let channel = cq.channel.take();
        let Some(channel) = channel.and_then(|channel| self.channels.get(channel)) else {
            return false;
        };
        // The handle may soon be another queue's, which would get this one's event.
        channel.events.remove(|&one| one == handle);
        channel.queues -= 1;
        true
    }

    /// The next completion of a queue.
    fn take(&mut self, cq: u32) -> Option<ibv_wc> {
        let (wc, of) = self.cqs.get(cq)?.entries.pop_front()?;
        // A poll that finds something: the peer is at work and needs no yield of this core.
        self.vain = 0;
        if let Some(qp) = of.and_then(|qp| self.qps.get(qp))
            // The pair may be gone and its handle taken again: numbers differ then.
            && qp.number == wc.qp_num
        {
            match wc.opcode & IBV_WC_RECV {
                0 => qp.unread -= 1,
                _ => qp.receives -= 1,
            }
        }
        Some(wc)
    }
}

/// The engine and the handle of a queue's structure.
///
/// # Safety
/// NULL, or memory that can be read.
pub(crate) unsafe fn cq_of(cq: *mut ibv_cq) -> Option<(&'static Engine, u32)> {
    // SAFETY: the caller's promise.
    unsafe {
        let raw = cq.as_ref()?;
        Some((ContextObject::engine(raw.context)?, raw.handle))
    }
}

pub(crate) unsafe extern "C" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: a context, as ibv_create_comp_channel(3) demands; others are refused.
    unsafe {
        let Some((engine, _)) = device::context_of(context) else {
            return pointer_failed(libc::EINVAL);
        };
        let events = match Events::new() {
            Ok(events) => events,
            Err(error) => return pointer_failed(error.raw_os_error().unwrap_or(libc::EMFILE)),
        };
        let mut core = engine.lock();
        let fd = events.descriptor();
        let handle = core.channels.insert(Channel { events, queues: 0 });
        let object = Box::into_raw(Box::new(ChannelObject {
            raw: ibv_comp_channel {
                context,
                fd,
                refcnt: 0,
            },
            handle,
            engine,
        }));
        core.channels.name(handle, object.expose_provenance());
        object.cast()
    }
}

pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a channel, as ibv_destroy_comp_channel(3) demands; others are refused.
    unsafe {
        let Some(object) = channel.cast::<ChannelObject>().as_ref() else {
            return fail(libc::EINVAL);
        };
        let mut core = object.engine.lock();
        let found = core.channels.find(object.handle, channel.addr());
        let Some(found) = found else {
            return fail(libc::EINVAL);
        };
        if found.queues > 0 {
            return fail(libc::EBUSY);
        }
        core.channels.remove(object.handle);
        drop(core);
        drop(Box::from_raw(channel.cast::<ChannelObject>()));
        0
    }
}

/// Creates a queue, in a structure of the longer kind, which begins with the other one.
///
/// # Safety
/// A context or NULL; a channel or NULL.
unsafe fn create(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> Result<*mut ibv_cq_ex, c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let (engine, owner) = device::context_of(context).ok_or(libc::EINVAL)?;
        if !(1..=CQE_MAX).contains(&cqe) || !(0..(*context).num_comp_vectors).contains(&vector) {
            return Err(libc::EINVAL);
        }
        let mut core = engine.lock();
        let mut handle_of_channel = None;
        if let Some(object) = channel.cast::<ChannelObject>().as_ref() {
            let found = core.channels.find(object.handle, channel.addr());
            // Counted before the queue exists: its channel cannot be destroyed in between, as the
            // lock is held throughout.
            found.ok_or(libc::EINVAL)?.queues += 1;
            handle_of_channel = Some(object.handle);
            (*channel).refcnt += 1;
        }
        let handle = core.cqs.insert(Cq {
            context: owner,
            channel: handle_of_channel,
            entries: VecDeque::new(),
            armed: None,
            unacknowledged: 0,
            users: 0,
        });
        let object = Box::into_raw(Box::new(CqObject {
            raw: ibv_cq_ex {
                context,
                channel,
                cq_context,
                handle,
                cqe,
                ..steps::queue()
            },
            is_taken: AtomicBool::new(false),
            shown: zeroed(),
        }));
        core.cqs.name(handle, object.expose_provenance());
        Ok(object.cast())
    }
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the arguments of ibv_create_cq(3).
    match unsafe { create(context, cqe, cq_context, channel, vector) } {
        Ok(cq) => cq.cast(),
        Err(error) => pointer_failed(error),
    }
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the arguments of ibv_create_cq_ex(3).
    unsafe {
        let Some(attr) = attr.as_ref() else {
            return pointer_failed(libc::EINVAL);
        };
        // A program that asks for time stamps would read zeros as such.
        if attr.wc_flags & !WC_PARTS != 0 {
            return pointer_failed(libc::EOPNOTSUPP);
        }
        let cqe = c_int::try_from(attr.cqe).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(attr.comp_vector).unwrap_or(c_int::MAX);
        match create(context, cqe, attr.cq_context, attr.channel, vector) {
            Ok(cq) => cq,
            Err(error) => pointer_failed(error),
        }
    }
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a queue, as ibv_destroy_cq(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = cq_of(cq) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let Some(found) = core.cqs.find(handle, cq.addr()) else {
            return libc::EINVAL;
        };
        if found.users > 0 {
            return libc::EBUSY;
        }
        let context = found.context;
        if core.leave_channel(handle) {
            (*(*cq).channel).refcnt -= 1;
        }
        // As ibv_get_cq_event(3) says: it waits for the events that were read.
        while core.cqs.get(handle).is_some_and(|cq| cq.unacknowledged > 0)
            || !core.contexts.forget_async(context, cq.addr())
        {
            core = engine.wait(core);
        }
        core.cqs.remove(handle);
        drop(core);
        drop(Box::from_raw(cq.cast::<CqObject>()));
        0
    }
}

pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a queue, as ibv_resize_cq(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = cq_of(cq) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        match core.cqs.find(handle, cq.addr()) {
            // Entries grow as needed: the number is what the program is shown.
            Some(_) if (1..=CQE_MAX).contains(&cqe) => (*cq).cqe = cqe,
            _ => return libc::EINVAL,
        }
        0
    }
}

pub(crate) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel, and places for two pointers, as ibv_get_cq_event(3) demands.
    unsafe {
        let Some(object) = channel.cast::<ChannelObject>().as_ref() else {
            return fail(libc::EINVAL);
        };
        loop {
            if let Err(failed) = take_count(object.raw.fd) {
                return failed;
            }
            let mut core = object.engine.lock();
            let Some(found) = core.channels.find(object.handle, channel.addr()) else {
                return fail(libc::EINVAL);
            };
            // Its queue may have been destroyed between the count and this lock.
            let Some(handle) = found.events.pop() else {
                continue;
            };
            let address = core.cqs.address(handle);
            if let Some(found) = core.cqs.get(handle) {
                // Under the same lock as the event's removal: a destruction in between waits for
                // this one.
                found.unacknowledged += 1;
            }
            let raw: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(address);
            cq.write(raw);
            cq_context.write((*raw).cq_context);
            return 0;
        }
    }
}

pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: a queue, as ibv_get_cq_event(3) demands; others are passed over.
    unsafe {
        if let Some((engine, handle)) = cq_of(cq) {
            let mut core = engine.lock();
            if let Some(found) = core.cqs.find(handle, cq.addr()) {
                found.unacknowledged = found.unacknowledged.saturating_sub(count);
                (*cq).comp_events_completed = (*cq).comp_events_completed.wrapping_add(count);
                // All: destructions of several objects wait on one condition, each for its own.
                engine.acknowledged.notify_all();
            }
        }
    }
}

pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: a context and a place for an event, as ibv_get_async_event(3) demands.
    unsafe {
        let Some((engine, handle)) = device::context_of(context) else {
            return fail(libc::EINVAL);
        };
        loop {
            if let Err(failed) = take_count((*context).async_fd) {
                return failed;
            }
            let mut core = engine.lock();
            let Some(found) = core.contexts.get(handle) else {
                return fail(libc::EINVAL);
            };
            let Some((element, event_type)) = found.events.pop() else {
                continue;
            };
            found.unread.push(element);
            event.write(ibv_async_event {
                element: std::ptr::with_exposed_provenance_mut(element),
                event_type,
            });
            return 0;
        }
    }
}

pub(crate) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event that was read, as ibv_get_async_event(3) demands.
    let Some(event) = (unsafe { event.as_ref() }) else {
        return;
    };
    let Ok(engine) = Engine::get() else {
        return;
    };
    let element = event.element.addr();
    let mut core = engine.lock();
    for (_, context) in core.contexts.each() {
        if let Some(at) = context.unread.iter().position(|&one| one == element) {
            context.unread.swap_remove(at);
            break;
        }
    }
    engine.acknowledged.notify_all();
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a queue and room for `count` completions, as ibv_poll_cq(3) demands.
    unsafe {
        let Some((engine, handle)) = cq_of(cq) else {
            return -libc::EINVAL;
        };
        let mut core = engine.lock_to_poll();
        if core.cqs.find(handle, cq.addr()).is_none() {
            return -libc::EINVAL;
        }
        let mut taken = 0;
        // First what was booked already, then once more after a look at the device.
        for round in 0..2 {
            while taken < count
                && let Some(one) = core.take(handle)
            {
                wc.add(taken.unsigned_abs().to_usize()).write(one);
                taken += 1;
            }
            // Without a look at the device, as long as there are completions.
            if taken > 0 || count <= 0 || round == 1 {
                break;
            }
            core.progress();
        }
        if taken == 0 {
            // With the lock, which it gives up before it yields.
            engine.looked_in_vain(core);
        }
        taken
    }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a queue, as ibv_req_notify_cq(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = cq_of(cq) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let Some(found) = core.cqs.find(handle, cq.addr()) else {
            return libc::EINVAL;
        };
        // The wider request stays.
        let only_solicited = solicited_only != 0 && found.armed != Some(false);
        found.armed = Some(only_solicited);
        // Data that arrived before this request raises nothing by itself: the thread looks at once.
        engine.watch(&mut core);
        0
    }
}

pub(crate) unsafe extern "C" fn modify_cq(_cq: *mut ibv_cq, _attr: *mut c_void) -> c_int {
    // Moderation of events is not offered.
    errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(armed: Option<bool>) -> Cq {
        Cq {
            context: 0,
            channel: None,
            entries: VecDeque::new(),
            armed,
            unacknowledged: 0,
            users: 0,
        }
    }

    #[test]
    fn a_request_is_for_one_completion_of_its_kind() {
        // Requested: none, any, solicited only; the completion: not solicited, solicited.
        let table = [
            (None, false, false),
            (None, true, false),
            (Some(false), false, true),
            (Some(false), true, true),
            (Some(true), false, false),
            (Some(true), true, true),
        ];
        for (armed, solicited, raises) in table {
            let mut cq = queue(armed);
            assert_eq!(cq.push(zeroed(), None, solicited), raises);
            // A second one raises nothing more, unless the request is still open.
            assert_eq!(cq.push(zeroed(), None, true), armed.is_some() && !raises);
            assert_eq!(cq.entries.len(), 2);
        }
    }

    #[test]
    fn a_destroyed_pair_leaves_no_completions() {
        let mut cq = queue(None);
        for number in [1, 2, 1, 3] {
            let wc = ibv_wc {
                qp_num: number,
                ..zeroed()
            };
            cq.push(wc, None, false);
        }
        cq.forget(1);
        let left: Vec<_> = cq.entries.iter().map(|(wc, _)| wc.qp_num).collect();
        assert_eq!(left, [2, 3]);
    }
}
