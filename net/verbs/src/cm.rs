//! Identifiers of connections: their life, options and addresses.

use crate::abi::*;
use crate::device;
use crate::direct::change;
use crate::engine::Engine;
use crate::event::{self, channel_or_own};
use crate::state::Core;
use crate::{address, fail};
use sidecore_rdma::{ConnectionId, ListenerId};
use std::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// An identifier.
pub(crate) struct Id {
    pub(crate) channel: u32,
    /// The program knows it.
    pub(crate) is_given: bool,
    /// Events that were read and not acknowledged.
    pub(crate) unacknowledged: u32,
    pub(crate) bound: Option<SocketAddr>,
    /// Keeps the port of its address until it is used.
    pub(crate) reserved: Option<OwnedFd>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) listener: Option<ListenerId>,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) stage: Stage,
    /// Reads that the peer of a request may have outstanding, and serves.
    pub(crate) asked: (u8, u8),
}

/// Stages of an identifier's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    Bound,
    Resolved,
    Routed,
    Listening,
    /// A request that was not answered.
    Requested,
    /// The peer was asked.
    Connecting,
    Connected,
    Over,
}

/// The program's structure of an identifier.
#[repr(C)]
pub(crate) struct IdObject {
    pub(crate) raw: rdma_cm_id,
    pub(crate) handle: u32,
    engine: &'static Engine,
    /// Calls wait for their event, on a channel that was made for it alone.
    pub(crate) is_synchronous: bool,
    /// Domain and attributes for the pairs of requests, by rdma_create_ep(3).
    pub(crate) template: Option<(*mut ibv_pd, ibv_qp_init_attr)>,
    /// Its shared queue was made for it.
    pub(crate) owns_srq: bool,
}

impl IdObject {
    pub(crate) fn engine(&self) -> &'static Engine {
        self.engine
    }
}

/// The engine and the handle of an identifier that exists.
///
/// # Safety
/// NULL, or memory that can be read.
pub(crate) unsafe fn id_of(id: *mut rdma_cm_id) -> Option<(&'static Engine, u32)> {
    // SAFETY: the caller's promise.
    let object = unsafe { id.cast::<IdObject>().as_ref()? };
    object.engine.lock().ids.find(object.handle, id.addr())?;
    Some((object.engine, object.handle))
}

/// True if an identifier's calls wait for their event.
///
/// # Safety
/// NULL, or an identifier.
pub(crate) unsafe fn is_synchronous(id: *mut rdma_cm_id) -> bool {
    // SAFETY: the caller's promise.
    unsafe { id.cast::<IdObject>().as_ref() }.is_some_and(|object| object.is_synchronous)
}

/// Waits for the event of a call, if the identifier's calls wait; the call's result.
///
/// # Safety
/// An identifier that exists.
pub(crate) unsafe fn finish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !is_synchronous(id) {
            return 0;
        }
        release_event(id);
        let outcome = event::get((*id).channel, &raw mut (*id).event);
        match (outcome, (*id).event.as_ref()) {
            (0, Some(event)) if event.status != 0 => fail(event.status.abs()),
            (outcome, _) => outcome,
        }
    }
}

/// Acknowledges the event that the last call of an identifier has waited for.
///
/// # Safety
/// An identifier that exists.
pub(crate) unsafe fn release_event(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    unsafe {
        let event = std::mem::replace(&mut (*id).event, std::ptr::null_mut());
        if !event.is_null() {
            event::ack(event);
        }
    }
}

impl Core {
    /// Makes an identifier, on a channel.
    pub(crate) fn make_id(
        &mut self,
        engine: &'static Engine,
        channel: (u32, *mut rdma_event_channel),
        context: *mut c_void,
        ps: c_int,
    ) -> (u32, *mut IdObject) {
        let handle = self.ids.insert(Id {
            channel: channel.0,
            is_given: true,
            unacknowledged: 0,
            bound: None,
            reserved: None,
            peer: None,
            listener: None,
            connection: None,
            stage: Stage::Idle,
            asked: (0, 0),
        });
        let object = Box::into_raw(Box::new(IdObject {
            raw: rdma_cm_id {
                channel: channel.1,
                context,
                ps,
                qp_type: IBV_QPT_RC,
                ..zeroed()
            },
            handle,
            engine,
            is_synchronous: false,
            template: None,
            owns_srq: false,
        }));
        self.ids.name(handle, object.expose_provenance());
        if let Some(channel) = self.cm_channels.get(channel.0) {
            channel.ids += 1;
        }
        (handle, object)
    }

    /// Frees a request that the program never learnt of.
    pub(crate) fn drop_request(&mut self, handle: u32) {
        let address = self.ids.address(handle);
        if self.ids.get(handle).is_some_and(|id| !id.is_given) {
            self.release(handle);
            let object: *mut IdObject = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the program never had it.
            drop(unsafe { Box::from_raw(object) });
        }
    }

    /// Ends what an identifier stands for, and forgets it.
    pub(crate) fn release(&mut self, handle: u32) {
        self.forget_events(handle);
        let Some(id) = self.ids.remove(handle) else {
            return;
        };
        if let Some(channel) = self.cm_channels.get(id.channel) {
            channel.ids -= 1;
        }
        if let Some(listener) = id.listener {
            self.device.close_listener(listener);
            self.listeners.remove(&listener);
        }
        let Some(connection) = id.connection else {
            return;
        };
        let qp = self
            .connections
            .remove(&connection)
            .and_then(|users| users.qp);
        match id.stage {
            Stage::Requested => self.device.reject(connection, &[]).is_ok(),
            // A pair keeps its connection for its destruction.
            _ if qp.is_some() => {
                let users = crate::state::Users { qp, id: None };
                self.connections.insert(connection, users);
                true
            }
            _ => self.device.close(connection).is_ok(),
        };
    }
}

pub(crate) unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    if out.is_null() {
        return fail(libc::EINVAL);
    }
    // Datagrams have no counterpart on TCP.
    if ps != RDMA_PS_TCP {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: a channel or NULL, and a place for a pointer, as rdma_create_id(3) demands.
    unsafe {
        let is_synchronous = channel.is_null();
        let (engine, channel) = match channel_or_own(channel) {
            Ok(found) => found,
            Err(error) => return fail(error),
        };
        let (_, object) = engine.lock().make_id(engine, channel, context, ps);
        (*object).is_synchronous = is_synchronous;
        out.write(object.cast());
    }
    0
}

pub(crate) unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: an identifier, as rdma_destroy_id(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = id_of(id) else {
            return fail(libc::EINVAL);
        };
        // The event of its own last call, which no program acknowledges: the wait below would not
        // end.
        release_event(id);
        let mut core = engine.lock();
        while core.ids.get(handle).is_some_and(|id| id.unacknowledged > 0) {
            core = engine.wait(core);
        }
        core.release(handle);
        drop(core);
        let object = Box::from_raw(id.cast::<IdObject>());
        if object.is_synchronous {
            event::destroy_channel(object.raw.channel);
        }
    }
    0
}

/// Binds an identifier to the device: as soon as its address is known.
///
/// # Safety
/// An identifier that exists.
pub(crate) unsafe fn bind_device(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).verbs.is_null() {
            (*id).verbs = device::shared_context()?;
            (*id).port_num = 1;
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: an identifier, as rdma_get_src_port(3) demands.
    let address = unsafe { id.as_ref() }.map(|id| id.route.addr.src_storage);
    let address = address.and_then(|address| address::read(&raw const address));
    address.map_or(0, |address| address.port().to_be())
}

pub(crate) unsafe extern "C" fn dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: an identifier, as rdma_get_dst_port(3) demands.
    let address = unsafe { id.as_ref() }.map(|id| id.route.addr.dst_storage);
    let address = address.and_then(|address| address::read(&raw const address));
    address.map_or(0, |address| address.port().to_be())
}

pub(crate) unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: an identifier, as rdma_set_option(3) demands; others are refused.
    let is_known = unsafe { id_of(id) }.is_some();
    // A service type, reuse of addresses, one family only, the time for acknowledgments: the
    // kernel's TCP decides, and addresses may be used again anyway.
    match (level, option, bytes) {
        _ if !is_known || value.is_null() => fail(libc::EINVAL),
        (0, 0 | 3, 1) | (0, 1 | 2, 4) => 0,
        _ => fail(libc::ENOSYS),
    }
}

pub(crate) unsafe extern "C" fn notify(id: *mut rdma_cm_id, _event: c_int) -> c_int {
    // SAFETY: an identifier, as rdma_notify(3) demands; others are refused.
    match unsafe { id_of(id) } {
        // Communication is established by the time that any event could say so.
        Some(_) => 0,
        None => fail(libc::EINVAL),
    }
}

pub(crate) unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    const RIGHTS: c_uint =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    // SAFETY: an identifier, attributes with a state, and a place for a mask, as the interface
    // demands.
    unsafe {
        if id_of(id).is_none() || attr.is_null() || mask.is_null() {
            return fail(libc::EINVAL);
        }
        let to = (*attr).qp_state;
        let from = match to {
            IBV_QPS_RTR => IBV_QPS_INIT,
            IBV_QPS_RTS => IBV_QPS_RTR,
            _ => IBV_QPS_RESET,
        };
        let Some((required, _)) = change(from, to) else {
            return fail(libc::EINVAL);
        };
        // The peer has no number: the identifier makes the connection.
        attr.write(ibv_qp_attr {
            qp_state: to,
            qp_access_flags: RIGHTS,
            path_mtu: IBV_MTU_4096,
            port_num: 1,
            retry_cnt: 7,
            rnr_retry: 7,
            ..zeroed()
        });
        mask.write(IBV_QP_STATE | required);
    }
    0
}
