//! Making and ending connections: the calls of identifiers, and what comes of them.

use crate::abi::*;
use crate::cm::{IdObject, Stage, bind_device, finish, id_of};
use crate::engine::Engine;
use crate::event::News;
use crate::pair::{options, qp_of};
use crate::state::{Core, Users};
use crate::{address, fail, number_of};
use sidecore_rdma::{ConnectionId, Device, End, ListenerId};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

/// Most connections that wait to be accepted, of a listener without a number.
const BACKLOG: usize = 1024;

/// Parameters of a program for its connection.
struct Asked {
    data: Vec<u8>,
    ird: u8,
    ord: u8,
    qp_num: u32,
}

impl Asked {
    /// Reads them.
    ///
    /// # Safety
    /// NULL, or parameters as rdma_connect(3) demands.
    unsafe fn read(param: *const rdma_conn_param, default: (u8, u8)) -> Self {
        // SAFETY: the caller's promise.
        let Some(param) = (unsafe { param.as_ref() }) else {
            return Self {
                data: Vec::new(),
                ird: default.0,
                ord: default.1,
                qp_num: 0,
            };
        };
        Self {
            // SAFETY: as above.
            data: unsafe { private_data(param.private_data, param.private_data_len) },
            ird: param.responder_resources,
            ord: param.initiator_depth,
            qp_num: param.qp_num,
        }
    }
}

/// Copies private data.
///
/// # Safety
/// `count` bytes at `data`, unless it is NULL.
unsafe fn private_data(data: *const c_void, count: u8) -> Vec<u8> {
    if data.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), count.into()) }.to_vec()
}

/// Reads that this side may serve, and have outstanding, as the peer's start frame says.
fn depths_of(device: &Device, connection: ConnectionId) -> (u8, u8) {
    let pair = device.pair(connection);
    let depths = pair.and_then(|pair| pair.depths().1);
    let least = |depth: u16| u8::try_from(depth).unwrap_or(u8::MAX);
    // What the peer serves is what this side may have outstanding, and the other way round.
    depths.map_or((0, 0), |(ird, ord)| (least(ord), least(ird)))
}

impl Core {
    /// The handle of an identifier's pair: its own one, or the one with a number.
    unsafe fn pair_of(&mut self, id: *mut rdma_cm_id, number: u32) -> Option<u32> {
        // SAFETY: an identifier that exists; its pair is one of ours or NULL.
        unsafe {
            let qp = (*id).qp;
            // rdma_connect(3): the number in the parameters counts only without a pair of its own.
            let handle = if qp.is_null() {
                self.exchange.pair_with(number)?
            } else {
                let (_, handle) = qp_of(qp)?;
                self.qps.find(handle, qp.addr())?;
                handle
            };
            // A pair whose peer the program has named has its connection by that, and one of
            // datagrams has none.
            let found = self.qps.get(handle)?;
            (found.direct.is_none() && !found.is_datagram).then_some(handle)
        }
    }

    /// A peer asks for a connection.
    pub(crate) fn requested(
        &mut self,
        listener: ListenerId,
        connection: ConnectionId,
        data: Vec<u8>,
    ) {
        if self.exchange.listener == Some(listener) {
            return self.asked_by_pair(connection, &data);
        }
        let Some(&parent) = self.listeners.get(&listener) else {
            // The listener may have gone while its request waited in the device.
            self.device.reject(connection, &[]).ok();
            return;
        };
        let address = self.ids.address(parent);
        let (Some(old), Some((local, peer))) =
            (self.ids.get(parent), self.device.addresses(connection))
        else {
            self.device.reject(connection, &[]).ok();
            return;
        };
        let number = old.channel;
        let asked = depths_of(&self.device, connection);
        // SAFETY: the structure of a listener that exists, and the context of the process.
        let object = unsafe {
            let parent: *mut IdObject = std::ptr::with_exposed_provenance_mut(address);
            let raw = &(*parent).raw;
            let engine = (*parent).engine();
            let (handle, object) = self.make_id(engine, (number, raw.channel), raw.context, raw.ps);
            (*object).raw.verbs = raw.verbs;
            (*object).raw.port_num = 1;
            address::write_route(&mut (*object).raw.route, Some(local), Some(peer));
            handle
        };
        if let Some(id) = self.ids.get(object) {
            // Until its event is read, only this library knows it and has to free it.
            id.is_given = false;
            id.bound = Some(address::plain(local));
            id.peer = Some(address::plain(peer));
            id.connection = Some(connection);
            id.stage = Stage::Requested;
            id.asked = asked;
        }
        let users = Users {
            qp: None,
            id: Some(object),
        };
        // Before the event: an end that is booked next must find the identifier.
        self.connections.insert(connection, users);
        let news = News {
            event: CONNECT_REQUEST,
            data,
            depths: asked,
            requested: Some(object),
            ..News::default()
        };
        self.tell(parent, news);
    }

    /// Messages can be exchanged.
    pub(crate) fn established(&mut self, connection: ConnectionId, data: Vec<u8>) {
        let users = self
            .connections
            .get(&connection)
            .copied()
            .unwrap_or_default();
        if let Some(qp) = users.qp.filter(|&qp| self.qps.is_direct(qp)) {
            return self.joined(qp, connection, &data);
        }
        if let Some(qp) = users.qp {
            // Before the event: the program may post as soon as it reads that.
            self.set_state(qp, IBV_QPS_RTS);
        }
        let depths = depths_of(&self.device, connection);
        let local = self.device.addresses(connection).map(|both| both.0);
        let Some(handle) = users.id else {
            return;
        };
        let address = self.ids.address(handle);
        if let Some(id) = self.ids.get(handle) {
            id.stage = Stage::Connected;
        }
        if address != 0 && local.is_some() {
            let object: *mut IdObject = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the structure of an identifier that exists.
            unsafe { address::write_route(&mut (*object).raw.route, local, None) };
        }
        let news = News {
            event: ESTABLISHED,
            data,
            depths,
            ..News::default()
        };
        self.tell(handle, news);
    }

    /// A connection has ended, or was never made.
    pub(crate) fn ended(&mut self, connection: ConnectionId, end: &End, data: Vec<u8>) {
        // Those that were flushed by an event of this round.
        self.book_completions();
        // Out of the table first: what is raised below must not look for it again.
        let users = self.connections.remove(&connection).unwrap_or_default();
        self.device.close(connection).ok();
        self.exchange.unpark(connection);
        let goes_on = users.qp.is_some_and(|qp| self.parted(qp, connection, end));
        if let Some(handle) = users.qp.filter(|_| !goes_on) {
            let context = self.qps.get(handle).map(|qp| {
                qp.connection = None;
                qp.context
            });
            self.set_state(handle, IBV_QPS_ERR);
            // A peer's fault that this side has found, in its memory or its queue.
            let event = match end {
                End::Sent(fault) if matches!(fault.numbers, [0 | 1, 1, _]) => {
                    Some(IBV_EVENT_QP_ACCESS_ERR)
                }
                End::Sent(_) => Some(IBV_EVENT_QP_FATAL),
                _ => None,
            };
            if let (Some(context), Some(event)) = (context, event) {
                let address = self.qps.address(handle);
                self.contexts.raise_async(context, address, event);
            }
        }
        let Some(handle) = users.id else {
            return;
        };
        let Some(id) = self.ids.get(handle) else {
            return;
        };
        id.connection = None;
        // The stage says what the program was waiting for, and with it which event it expects.
        let was = std::mem::replace(&mut id.stage, Stage::Over);
        let news = match (was, end) {
            (Stage::Connected, _) => News::new(DISCONNECTED, 0),
            (_, End::Rejected) => News {
                data,
                ..News::new(REJECTED, -libc::ECONNREFUSED)
            },
            // Of a socket that was refused, or closed before its answer.
            (Stage::Connecting, End::Lost | End::Orderly) => {
                News::new(REJECTED, -libc::ECONNREFUSED)
            }
            (Stage::Requested, _) => News::new(CONNECT_ERROR, -libc::ECONNRESET),
            (_, _) => News::new(UNREACHABLE, -libc::ECONNABORTED),
        };
        self.tell(handle, news);
    }
}

/// The stage of an identifier, if it exists.
fn stage(core: &mut Core, handle: u32) -> Option<Stage> {
    core.ids.get(handle).map(|id| id.stage)
}

/// The result of a call as its interface has it.
fn answer(outcome: Result<(), c_int>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

pub(crate) unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: an identifier and an address, as rdma_bind_addr(3) demands; others are refused.
    unsafe { answer(bind(id, addr)) }
}

unsafe fn bind(id: *mut rdma_cm_id, addr: *const libc::sockaddr) -> Result<(), c_int> {
    // SAFETY: as `bind_addr`.
    unsafe {
        let (engine, handle) = id_of(id).ok_or(libc::EINVAL)?;
        let address = address::read(addr.cast()).ok_or(libc::EINVAL)?;
        if stage(&mut engine.lock(), handle) != Some(Stage::Idle) {
            return Err(libc::EINVAL);
        }
        // A port of the system's choice is known from here on, as programs expect.
        let (bound, reserved) = address::probe(address)?;
        if !bound.ip().is_unspecified() {
            bind_device(id)?;
        }
        address::write_route(&mut (*id).route, Some(bound), None);
        if let Some(id) = engine.lock().ids.get(handle) {
            id.bound = Some(bound);
            id.reserved = reserved;
            id.stage = Stage::Bound;
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut libc::sockaddr,
    target: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: an identifier and addresses, as rdma_resolve_addr(3) demands; others are refused.
    unsafe {
        match resolve(id, source, target) {
            Ok(()) => finish(id),
            Err(error) => fail(error),
        }
    }
}

unsafe fn resolve(
    id: *mut rdma_cm_id,
    source: *mut libc::sockaddr,
    target: *mut libc::sockaddr,
) -> Result<(), c_int> {
    // SAFETY: as `resolve_addr`.
    unsafe {
        let (engine, handle) = id_of(id).ok_or(libc::EINVAL)?;
        let peer = address::read(target.cast()).ok_or(libc::EINVAL)?;
        let is_idle = stage(&mut engine.lock(), handle) == Some(Stage::Idle);
        match address::read(source.cast()).filter(|_| is_idle) {
            // Its port is chosen with the connection.
            Some(source) if source.port() == 0 => {
                address::probe(source)?;
                if let Some(id) = engine.lock().ids.get(handle) {
                    id.bound = Some(source);
                }
            }
            Some(_) => bind(id, source)?,
            None => {}
        }
        let bound = {
            let mut core = engine.lock();
            let found = core.ids.get(handle).ok_or(libc::EINVAL)?;
            if !matches!(found.stage, Stage::Idle | Stage::Bound) {
                return Err(libc::EINVAL);
            }
            found.bound
        };
        // Again without the lock, so the identifier is looked up anew below.
        let local = address::route(bound, peer);
        if local.is_ok() {
            bind_device(id)?;
        }
        let mut core = engine.lock();
        let found = core.ids.get(handle).ok_or(libc::EINVAL)?;
        found.peer = Some(peer);
        let news = match local {
            Ok(local) => {
                found.stage = Stage::Resolved;
                address::write_route(&mut (*id).route, Some(local), Some(peer));
                News::new(ADDR_RESOLVED, 0)
            }
            Err(error) => News::new(ADDR_ERROR, -error),
        };
        core.tell(handle, news);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: an identifier, as rdma_resolve_route(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = id_of(id) else {
            return fail(libc::EINVAL);
        };
        {
            let mut core = engine.lock();
            match core.ids.get(handle) {
                Some(found) if found.stage == Stage::Resolved => found.stage = Stage::Routed,
                _ => return fail(libc::EINVAL),
            }
            // TCP's route is the kernel's: there is nothing to look up.
            core.tell(handle, News::new(ROUTE_RESOLVED, 0));
        }
        finish(id)
    }
}

pub(crate) unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: an identifier and parameters, as rdma_connect(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = id_of(id) else {
            return fail(libc::EINVAL);
        };
        let asked = Asked::read(param, (0, 0));
        let begun = begin(engine, id, handle, &asked);
        match begun {
            Ok(()) => finish(id),
            Err(error) => fail(error),
        }
    }
}

unsafe fn begin(
    engine: &Engine,
    id: *mut rdma_cm_id,
    handle: u32,
    asked: &Asked,
) -> Result<(), c_int> {
    let mut core = engine.lock();
    let found = core.ids.get(handle).ok_or(libc::EINVAL)?;
    let (Stage::Routed, Some(peer)) = (found.stage, found.peer) else {
        return Err(libc::EINVAL);
    };
    let bound: Option<SocketAddr> = found.bound;
    // The port is held by a socket of ours, which would refuse the connection's own bind.
    found.reserved = None;
    // SAFETY: an identifier that exists.
    let qp = unsafe { core.pair_of(id, asked.qp_num) }.ok_or(libc::EINVAL)?;
    let options = core
        .options_of(qp, asked.ird, asked.ord)
        .ok_or(libc::EINVAL)?;
    let queues = core.queues();
    let connection = core
        .device
        .connect_from(bound, peer, options, queues, &asked.data);
    let connection = match connection {
        Ok(connection) => connection,
        Err(error) => {
            let number = number_of(&error);
            // The way to the peer is known only now.
            if !matches!(
                number,
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ECONNREFUSED
            ) {
                return Err(number);
            }
            if let Some(id) = core.ids.get(handle) {
                id.stage = Stage::Over;
            }
            core.tell(handle, News::new(UNREACHABLE, -number));
            return Ok(());
        }
    };
    if let Some(id) = core.ids.get(handle) {
        id.connection = Some(connection);
        id.stage = Stage::Connecting;
    }
    let users = Users {
        id: Some(handle),
        ..Users::default()
    };
    core.connections.insert(connection, users);
    core.attach(qp, connection, false);
    core.progress();
    engine.watch(&mut core);
    Ok(())
}

pub(crate) unsafe extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: an identifier, as rdma_listen(3) demands; others are refused.
    unsafe { answer(begin_listening(id, backlog)) }
}

unsafe fn begin_listening(id: *mut rdma_cm_id, backlog: c_int) -> Result<(), c_int> {
    // SAFETY: as `listen`.
    unsafe {
        let (engine, handle) = id_of(id).ok_or(libc::EINVAL)?;
        let mut core = engine.lock();
        let found = core.ids.get(handle).ok_or(libc::EINVAL)?;
        let (Stage::Bound, Some(bound)) = (found.stage, found.bound) else {
            return Err(libc::EINVAL);
        };
        found.reserved = None;
        let backlog = usize::try_from(backlog).ok().filter(|&count| count > 0);
        // The most: a request's pair, and with it the program's depths, are known at its
        // acceptance.
        let options = options(u8::MAX, u8::MAX);
        let listener = core
            .device
            .listen(bound, backlog.unwrap_or(BACKLOG), options);
        let listener = listener.map_err(|error| number_of(&error))?;
        if let Some(id) = core.ids.get(handle) {
            id.listener = Some(listener);
            id.stage = Stage::Listening;
        }
        core.listeners.insert(listener, handle);
        drop(core);
        // Its requests have a context, whatever address they come to.
        bind_device(id)
    }
}

pub(crate) unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: an identifier and parameters, as rdma_accept(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = id_of(id) else {
            return fail(libc::EINVAL);
        };
        let default = engine.lock().ids.get(handle).map_or((0, 0), |id| id.asked);
        let asked = Asked::read(param, default);
        let accepted = {
            let mut core = engine.lock();
            answer_request(&mut core, id, handle, &asked)
        };
        match accepted {
            Ok(()) => finish(id),
            Err(error) => fail(error),
        }
    }
}

unsafe fn answer_request(
    core: &mut Core,
    id: *mut rdma_cm_id,
    handle: u32,
    asked: &Asked,
) -> Result<(), c_int> {
    let found = core.ids.get(handle).ok_or(libc::EINVAL)?;
    let (Stage::Requested, Some(connection)) = (found.stage, found.connection) else {
        // The peer may have given up meanwhile, which an event says.
        return match found.stage {
            Stage::Over => Err(libc::ECONNRESET),
            _ => Err(libc::EINVAL),
        };
    };
    // SAFETY: an identifier that exists.
    let qp = unsafe { core.pair_of(id, asked.qp_num) }.ok_or(libc::EINVAL)?;
    let options = core
        .options_of(qp, asked.ird, asked.ord)
        .ok_or(libc::EINVAL)?;
    let queues = core.queues();
    // Before any receive: the listener's options had no domain and no depths.
    let adapted = core.device.adapt(connection, options);
    adapted.map_err(|error| number_of(&error))?;
    // Receives first: the peer's first message may be there by the end of the call.
    core.attach(qp, connection, false);
    core.set_state(qp, IBV_QPS_RTS);
    let accepted = core.device.accept(connection, queues, &asked.data);
    accepted.map_err(|error| number_of(&error))?;
    core.progress();
    Ok(())
}

pub(crate) unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: an identifier, as rdma_establish(3) demands; others are refused.
    match unsafe { id_of(id) } {
        // An RNIC's connection is established by the peer's answer.
        Some(_) => 0,
        None => fail(libc::EINVAL),
    }
}

pub(crate) unsafe extern "C" fn reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    count: u8,
) -> c_int {
    // SAFETY: an identifier and data, as rdma_reject(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = id_of(id) else {
            return fail(libc::EINVAL);
        };
        let data = private_data(data, count);
        let mut core = engine.lock();
        let Some(found) = core.ids.get(handle) else {
            return fail(libc::EINVAL);
        };
        let (Stage::Requested, Some(connection)) = (found.stage, found.connection.take()) else {
            return fail(libc::EINVAL);
        };
        found.stage = Stage::Over;
        core.connections.remove(&connection);
        let rejected = core.device.reject(connection, &data);
        core.progress();
        answer(rejected.map_err(|error| number_of(&error)))
    }
}

pub(crate) unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: an identifier, as rdma_disconnect(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = id_of(id) else {
            return fail(libc::EINVAL);
        };
        {
            let mut core = engine.lock();
            let Some(found) = core.ids.get(handle) else {
                return fail(libc::EINVAL);
            };
            match (found.stage, found.connection) {
                // Orderly: what was posted before is sent, and the peer's end ends the connection.
                (Stage::Connected, Some(connection)) => {
                    let is_open = core.device.shut(connection).is_ok();
                    core.progress();
                    // It went with its pair, which was destroyed: no event is to come.
                    if !is_open {
                        return 0;
                    }
                }
                // It has ended by itself, which an event says.
                (Stage::Over, _) => return 0,
                _ => return fail(libc::EINVAL),
            }
            engine.watch(&mut core);
        }
        finish(id)
    }
}
