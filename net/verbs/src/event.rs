//! Events of connections, and the channels that programs read them from.
//!
//! Must stay true: an identifier is not destroyed before the events about it that were read are
//! acknowledged; those that were not read are dropped with it.

use crate::abi::*;
use crate::cm::{self, IdObject, id_of};
use crate::engine::Engine;
use crate::state::Core;
use crate::{fail, pointer_failed};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};

/// A queue of events with a descriptor that is readable while there is one.
pub(crate) struct Events<T> {
    descriptor: OwnedFd,
    queue: VecDeque<T>,
}

impl<T> Events<T> {
    pub(crate) fn new() -> std::io::Result<Self> {
        // A semaphore: each read takes one event, also where several threads read.
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        Ok(Self {
            descriptor: eventfd(0, flags)?,
            queue: VecDeque::new(),
        })
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.descriptor.as_raw_fd()
    }

    pub(crate) fn push(&mut self, event: T) {
        // Before the count: a reader that has a count finds the event, as it needs this lock for
        // it.
        self.queue.push_back(event);
        rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes()).ok();
    }

    /// The next event, for a caller that has taken one from the descriptor.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.queue.pop_front()
    }

    /// Removes events without a reader, and their counts.
    pub(crate) fn remove(&mut self, mut is_one: impl FnMut(&T) -> bool) -> Vec<T> {
        let (gone, kept) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition::<VecDeque<T>, _>(&mut is_one);
        self.queue = kept;
        for _ in &gone {
            // Never blocks: each event has its count, unless a reader has just taken it, which then
            // finds no event and reads again.
            if is_readable(self.descriptor()) {
                rustix::io::read(&self.descriptor, &mut [0; 8]).ok();
            }
        }
        gone.into()
    }
}

fn is_readable(descriptor: c_int) -> bool {
    let mut place = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one place on this stack.
    unsafe { libc::poll(&raw mut place, 1, 0) == 1 }
}

/// Takes a count from an eventfd, as the program has set it: blocking or not.
///
/// # Errors
/// -1 with `errno`.
pub(crate) fn take_count(descriptor: c_int) -> Result<(), c_int> {
    let mut count = [0_u8; 8];
    // SAFETY: room for eight bytes; a descriptor of ours.
    let taken = unsafe { libc::read(descriptor, count.as_mut_ptr().cast(), count.len()) };
    match taken {
        8 => Ok(()),
        // `errno` is that of read(2): EAGAIN, EINTR.
        _ => Err(-1),
    }
}

/// A channel.
pub(crate) struct CmChannel {
    pub(crate) events: Events<Box<EventObject>>,
    pub(crate) ids: usize,
}

/// The program's structure of a channel.
#[repr(C)]
pub(crate) struct CmChannelObject {
    raw: rdma_event_channel,
    handle: u32,
    engine: &'static Engine,
}

/// The program's structure of an event, and the data that it points to.
#[repr(C)]
pub(crate) struct EventObject {
    raw: rdma_cm_event,
    /// The identifier that it counts for, and that of a request that was not read.
    of: u32,
    requested: Option<u32>,
    _data: Box<[u8]>,
}

// SAFETY: its pointers are those of structures that live longer than it, which the program reads.
unsafe impl Send for EventObject {}

/// An event that is to be raised.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) data: Vec<u8>,
    /// Reads that the receiver may serve, and have outstanding.
    pub(crate) depths: (u8, u8),
    /// The new identifier of a request.
    pub(crate) requested: Option<u32>,
}

impl News {
    pub(crate) fn new(event: c_int, status: c_int) -> Self {
        Self {
            event,
            status,
            ..Self::default()
        }
    }
}

impl Core {
    /// Raises an event about an identifier.
    pub(crate) fn tell(&mut self, id: u32, news: News) {
        // By handles until now: structures are the program's, and may be gone by the time of an
        // event.
        let own = std::ptr::with_exposed_provenance_mut(self.ids.address(id));
        let Some(channel) = self.ids.get(id).map(|id| id.channel) else {
            return;
        };
        let data: Box<[u8]> = news.data.into();
        let (about, listener) = match news.requested {
            Some(new) => (self.ids.address(new), own),
            None => (self.ids.address(id), std::ptr::null_mut()),
        };
        let raw = rdma_cm_event {
            id: std::ptr::with_exposed_provenance_mut(about),
            listen_id: listener,
            event: news.event,
            status: news.status,
            param: Param {
                ud: crate::abi::zeroed(),
            },
        };
        let mut object = Box::new(EventObject {
            raw,
            of: id,
            requested: news.requested,
            _data: data,
        });
        // The pointer is into the box that the event owns, so it lives until the acknowledgment.
        let mut conn: rdma_conn_param = crate::abi::zeroed();
        if !object._data.is_empty() {
            conn.private_data = object._data.as_ptr().cast();
            // The interface has eight bits: longer data is cut, as the kernel does.
            conn.private_data_len = u8::try_from(object._data.len()).unwrap_or(u8::MAX);
        }
        (conn.responder_resources, conn.initiator_depth) = news.depths;
        object.raw.param.conn = conn;
        if let Some(channel) = self.cm_channels.get(channel) {
            channel.events.push(object);
        }
    }

    /// Drops events about an identifier that were not read; requests among them are rejected.
    pub(crate) fn forget_events(&mut self, id: u32) {
        let Some(channel) = self.ids.get(id).map(|id| id.channel) else {
            return;
        };
        let Some(channel) = self.cm_channels.get(channel) else {
            return;
        };
        let gone = channel
            .events
            .remove(|event| event.of == id || event.requested == Some(id));
        for event in gone {
            // Its own request event is dropped where the request itself is; no second release.
            if let Some(new) = event.requested.filter(|&new| new != id) {
                self.drop_request(new);
            }
        }
    }
}

/// Creates a channel.
///
/// # Errors
/// An error number.
fn make_channel() -> Result<*mut rdma_event_channel, c_int> {
    let engine = Engine::get().map_err(|error| crate::number_of(&error))?;
    let events = Events::new().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
    let fd = events.descriptor();
    let mut core = engine.lock();
    let handle = core.cm_channels.insert(CmChannel { events, ids: 0 });
    let object = Box::into_raw(Box::new(CmChannelObject {
        raw: rdma_event_channel { fd },
        handle,
        engine,
    }));
    core.cm_channels.name(handle, object.expose_provenance());
    Ok(object.cast())
}

/// The engine and the handle of a channel that exists.
///
/// # Safety
/// NULL, or memory that can be read.
unsafe fn channel_of(channel: *mut rdma_event_channel) -> Option<(&'static Engine, u32)> {
    // SAFETY: the caller's promise.
    let object = unsafe { channel.cast::<CmChannelObject>().as_ref()? };
    let mut core = object.engine.lock();
    core.cm_channels.find(object.handle, channel.addr())?;
    Some((object.engine, object.handle))
}

/// The engine of an identifier's channel, its handle and the channel; for NULL it is a new one, of
/// this identifier alone.
///
/// # Safety
/// As [`channel_of`].
pub(crate) unsafe fn channel_or_own(
    channel: *mut rdma_event_channel,
) -> Result<(&'static Engine, (u32, *mut rdma_event_channel)), c_int> {
    let channel = match channel.is_null() {
        false => channel,
        true => make_channel()?,
    };
    // SAFETY: the caller's promise, or a channel that was just made.
    let (engine, handle) = unsafe { channel_of(channel) }.ok_or(libc::EINVAL)?;
    Ok((engine, (handle, channel)))
}

pub(crate) unsafe extern "C" fn create_channel() -> *mut rdma_event_channel {
    make_channel().unwrap_or_else(pointer_failed)
}

pub(crate) unsafe extern "C" fn destroy_channel(channel: *mut rdma_event_channel) {
    // SAFETY: a channel, as rdma_destroy_event_channel(3) demands; others are passed over.
    unsafe {
        if let Some((engine, handle)) = channel_of(channel) {
            let mut core = engine.lock();
            // The program's fault, as its manual page says: identifiers without a channel are deaf.
            core.cm_channels.remove(handle);
            drop(core);
            drop(Box::from_raw(channel.cast::<CmChannelObject>()));
        }
    }
}

pub(crate) unsafe extern "C" fn get(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: a channel and a place for a pointer, as rdma_get_cm_event(3) demands.
    unsafe {
        let Some((engine, handle)) = channel_of(channel).filter(|_| !event.is_null()) else {
            return fail(libc::EINVAL);
        };
        loop {
            {
                // Without a switch of threads if something is there already.
                let mut core = engine.lock();
                core.progress();
            }
            if let Err(failed) = take_count((*channel).fd) {
                return failed;
            }
            let mut core = engine.lock();
            let Some(found) = core.cm_channels.find(handle, channel.addr()) else {
                return fail(libc::EINVAL);
            };
            // Its identifier may have been destroyed between the count and this lock.
            let Some(mut object) = found.events.pop() else {
                continue;
            };
            // A request counts for its listener as long as it is not read, then for its own.
            if let Some(new) = object.requested.take() {
                object.of = new;
                if let Some(id) = core.ids.get(new) {
                    id.is_given = true;
                }
            }
            if let Some(id) = core.ids.get(object.of) {
                // Under the lock of the removal: rdma_destroy_id(3) waits for it from here on.
                id.unacknowledged += 1;
            }
            let kind = object.raw.event;
            let id = object.raw.id;
            event.write(Box::into_raw(object).cast());
            drop(core);
            // As the interface has it: the new identifier of a listener that waits in its calls
            // does so, too.
            if kind == CONNECT_REQUEST && cm::is_synchronous((**event).listen_id) {
                return migrate(id, std::ptr::null_mut());
            }
            return 0;
        }
    }
}

pub(crate) unsafe extern "C" fn ack(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: an event that was read, once, as rdma_ack_cm_event(3) demands.
    let object = unsafe { Box::from_raw(event.cast::<EventObject>()) };
    let Ok(engine) = Engine::get() else {
        return fail(libc::EINVAL);
    };
    if let Some(id) = engine.lock().ids.get(object.of) {
        id.unacknowledged = id.unacknowledged.saturating_sub(1);
    }
    // The lock is free again: the waiting thread would only run into it.
    engine.acknowledged.notify_all();
    0
}

pub(crate) unsafe extern "C" fn migrate(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: an identifier, and a channel or NULL, as rdma_migrate_id(3) demands.
    unsafe {
        let Some((engine, handle)) = id_of(id) else {
            return fail(libc::EINVAL);
        };
        let is_synchronous = channel.is_null();
        let (target, channel) = match channel_or_own(channel) {
            Ok((_, found)) => found,
            Err(error) => return fail(error),
        };
        let mut core = engine.lock();
        let Some(found) = core.ids.get(handle) else {
            return fail(libc::EINVAL);
        };
        let source = std::mem::replace(&mut found.channel, target);
        // Events that were not read move with it.
        let moved = match core.cm_channels.get(source) {
            Some(old) => {
                old.ids -= 1;
                old.events.remove(|event| event.of == handle)
            }
            None => Vec::new(),
        };
        if let Some(new) = core.cm_channels.get(target) {
            new.ids += 1;
            for event in moved {
                new.events.push(event);
            }
        }
        drop(core);
        let old = std::mem::replace(&mut (*id).channel, channel);
        let object = id.cast::<IdObject>();
        // The old channel was this identifier's alone, and no call can reach it any more.
        if std::mem::replace(&mut (*object).is_synchronous, is_synchronous) {
            destroy_channel(old);
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_counts_the_events_that_are_left() {
        let mut events = Events::new().unwrap();
        let descriptor = events.descriptor();
        for event in 0..5 {
            events.push(event);
        }
        assert_eq!(events.remove(|event| event % 2 == 1), [1, 3]);
        let mut left = Vec::new();
        while is_readable(descriptor) {
            take_count(descriptor).unwrap();
            left.extend(events.pop());
        }
        assert_eq!(left, [0, 2, 4]);
        assert_eq!(events.pop(), None);
        // One that a reader has taken the count of already.
        events.push(7);
        take_count(descriptor).unwrap();
        assert_eq!(events.remove(|_| true), [7]);
        assert!(!is_readable(descriptor));
    }
}
