//! Pairs and shared queues of identifiers, and the calls that make both at once.

use crate::abi::*;
use crate::cm::{self, IdObject, Stage, id_of, release_event};
use crate::device::{self, PerProcess};
use crate::{connect, event, fail, last_errno, memory, pair, queue};
use std::ffi::c_int;

/// The domain of identifiers whose program names none: one for the process.
fn default_pd() -> Result<*mut ibv_pd, c_int> {
    static PD: PerProcess<ibv_pd> = PerProcess::new();
    PD.get(|| {
        // SAFETY: the context of the process.
        let pd = unsafe { memory::alloc_pd(device::shared_context()?) };
        match pd.is_null() {
            false => Ok(pd),
            true => Err(last_errno()),
        }
    })
}

/// The domain for an object of an identifier.
///
/// # Safety
/// An identifier that exists; a domain or NULL.
unsafe fn pd_for(id: *mut rdma_cm_id, pd: *mut ibv_pd) -> Result<*mut ibv_pd, c_int> {
    // SAFETY: the caller's promise.
    let own = unsafe { (*id).pd };
    match (pd.is_null(), own.is_null()) {
        (false, _) => Ok(pd),
        (true, false) => Ok(own),
        (true, true) => default_pd(),
    }
}

/// Makes the queues that an identifier's pair lacks, each with a channel.
///
/// # Safety
/// An identifier that is bound to the device.
unsafe fn make_queues(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr) -> Result<(), c_int> {
    // SAFETY: the caller's promise; objects of ours.
    unsafe {
        for is_send in [true, false] {
            let given = if is_send { attr.send_cq } else { attr.recv_cq };
            if !given.is_null() {
                continue;
            }
            let (size, cap) = (attr.cap, &raw mut *id);
            let size = if is_send {
                size.max_send_wr
            } else {
                size.max_recv_wr
            };
            // A pair with a shared queue has receives, too, although it asks for none.
            let size = c_int::try_from(size.max(1)).unwrap_or(c_int::MAX);
            let channel = queue::create_comp_channel((*id).verbs);
            if channel.is_null() {
                return Err(libc::ENOMEM);
            }
            let size = if attr.srq.is_null() {
                size
            } else {
                size.max(1024)
            };
            let cq = queue::create_cq((*id).verbs, size, id.cast(), channel, 0);
            if cq.is_null() {
                queue::destroy_comp_channel(channel);
                return Err(libc::ENOMEM);
            }
            if is_send {
                ((*cap).send_cq_channel, (*cap).send_cq, attr.send_cq) = (channel, cq, cq);
            } else {
                ((*cap).recv_cq_channel, (*cap).recv_cq, attr.recv_cq) = (channel, cq, cq);
            }
        }
    }
    Ok(())
}

/// Frees the queues that [`make_queues`] has made.
///
/// # Safety
/// An identifier that exists.
unsafe fn free_queues(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; objects of ours.
    unsafe {
        for (cq, channel) in [
            (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
            (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
        ] {
            let (old, old_channel) = (*cq, *channel);
            if !old.is_null() && queue::destroy_cq(old) == 0 {
                *cq = std::ptr::null_mut();
                queue::destroy_comp_channel(old_channel);
                *channel = std::ptr::null_mut();
            }
        }
    }
}

pub(crate) unsafe extern "C" fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: an identifier, a domain or NULL, and attributes, as rdma_create_qp(3) demands.
    unsafe {
        let Some(attr) = attr.as_mut() else {
            return fail(libc::EINVAL);
        };
        made(
            id,
            attach_qp(id, pd, attr, |pd, attr| pair::create(pd, attr)),
        )
    }
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: an identifier and attributes, as rdma_create_qp(3) demands; they begin with those of
    // the shorter kind.
    unsafe {
        let Some(extended) = attr.as_mut() else {
            return fail(libc::EINVAL);
        };
        let given = match extended.comp_mask & IBV_QP_INIT_ATTR_PD {
            0 => std::ptr::null_mut(),
            _ => extended.pd,
        };
        let short = &mut *attr.cast::<ibv_qp_init_attr>();
        made(
            id,
            attach_qp(id, given, short, |pd, _| {
                (*attr).pd = pd;
                (*attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
                pair::create_ex((*id).verbs, attr)
            }),
        )
    }
}

/// The result of a call that makes a pair; what was made with it goes if that failed.
unsafe fn made(id: *mut rdma_cm_id, outcome: Result<(), c_int>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: an identifier that exists, or an unknown one, which is not looked at.
            unsafe {
                if id_of(id).is_some() && (*id).qp.is_null() {
                    free_queues(id);
                }
            }
            fail(error)
        }
    }
}

unsafe fn attach_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    create: impl FnOnce(*mut ibv_pd, &mut ibv_qp_init_attr) -> *mut ibv_qp,
) -> Result<(), c_int> {
    // SAFETY: as the calls of the interface.
    unsafe {
        let (engine, _) = id_of(id).ok_or(libc::EINVAL)?;
        if (*id).verbs.is_null() || !(*id).qp.is_null() {
            return Err(libc::EINVAL);
        }
        // An identifier connects its pair, and datagrams have no connection.
        if attr.qp_type == IBV_QPT_UD {
            return Err(libc::EOPNOTSUPP);
        }
        let pd = pd_for(id, pd)?;
        // One process has one engine, and so one device: contexts of it may be mixed.
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
        make_queues(id, attr)?;
        let qp = create(pd, attr);
        if qp.is_null() {
            return Err(last_errno());
        }
        // As librdmacm does: receives may be posted from here on.
        engine.lock().set_state((*qp).handle, IBV_QPS_INIT);
        (*id).qp = qp;
        (*id).pd = pd;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: an identifier, as rdma_destroy_qp(3) demands; others are passed over.
    unsafe {
        if id_of(id).is_none() {
            return;
        }
        let qp = std::mem::replace(&mut (*id).qp, std::ptr::null_mut());
        if !qp.is_null() {
            pair::destroy(qp);
        }
        free_queues(id);
    }
}

pub(crate) unsafe extern "C" fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: an identifier, a domain or NULL, and attributes, as rdma_create_srq(3) demands.
    unsafe {
        if id_of(id).is_none() || (*id).verbs.is_null() || !(*id).srq.is_null() {
            return fail(libc::EINVAL);
        }
        let pd = match pd_for(id, pd) {
            Ok(pd) => pd,
            Err(error) => return fail(error),
        };
        let srq = memory::create_srq(pd, attr);
        if srq.is_null() {
            return -1;
        }
        (*id).srq = srq;
        (*id).pd = pd;
        (*id.cast::<IdObject>()).owns_srq = true;
    }
    0
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: as `create_srq`; the attributes begin with those of the shorter kind.
    unsafe {
        match attr.as_ref() {
            None => fail(libc::EINVAL),
            Some(extended) if extended.srq_type != 0 => fail(libc::EOPNOTSUPP),
            Some(extended) => create_srq(id, extended.pd, attr.cast()),
        }
    }
}

pub(crate) unsafe extern "C" fn destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: an identifier, as rdma_destroy_srq(3) demands; others are passed over.
    unsafe {
        if id_of(id).is_some() && (*id.cast::<IdObject>()).owns_srq {
            let srq = std::mem::replace(&mut (*id).srq, std::ptr::null_mut());
            memory::destroy_srq(srq);
        }
    }
}

pub(crate) unsafe extern "C" fn create_ep(
    out: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a place for a pointer, an address, a domain and attributes or NULL, as
    // rdma_create_ep(3) demands.
    unsafe {
        let Some(info) = info.as_ref().filter(|_| !out.is_null()) else {
            return fail(libc::EINVAL);
        };
        if info.ai_qp_type != IBV_QPT_RC {
            return fail(libc::EOPNOTSUPP);
        }
        // As the interface has it: programs leave the kind of their pair to the address.
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = info.ai_qp_type;
        }
        let mut id = std::ptr::null_mut();
        let none = std::ptr::null_mut();
        if cm::create_id(none, &raw mut id, none.cast(), info.ai_port_space) != 0 {
            return -1;
        }
        let outcome = match info.ai_flags & RAI_PASSIVE {
            0 => prepare(id, info, pd, attr),
            _ => {
                let object = &mut *id.cast::<IdObject>();
                object.template = attr.as_ref().map(|attr| (pd, *attr));
                connect::bind_addr(id, info.ai_src_addr)
            }
        };
        if outcome != 0 {
            let error = last_errno();
            destroy_ep(id);
            return fail(error);
        }
        release_event(id);
        out.write(id);
    }
    0
}

/// Resolves the active side's addresses, and makes its pair.
unsafe fn prepare(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: as `create_ep`.
    unsafe {
        let (source, target) = (info.ai_src_addr, info.ai_dst_addr);
        for outcome in [
            connect::resolve_addr(id, source, target, 2000),
            connect::resolve_route(id, 2000),
        ] {
            if outcome != 0 {
                return outcome;
            }
        }
        match attr.is_null() {
            true => 0,
            false => create_qp(id, pd, attr),
        }
    }
}

pub(crate) unsafe extern "C" fn destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: an identifier, as rdma_destroy_ep(3) demands; others are passed over.
    unsafe {
        destroy_qp(id);
        destroy_srq(id);
        cm::destroy_id(id);
    }
}

pub(crate) unsafe extern "C" fn get_request(
    listener: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: an identifier and a place for a pointer, as rdma_get_request(3) demands.
    unsafe {
        let Some((engine, handle)) = id_of(listener).filter(|_| !out.is_null()) else {
            return fail(libc::EINVAL);
        };
        let stage = engine.lock().ids.get(handle).map(|id| id.stage);
        if !cm::is_synchronous(listener) || stage != Some(Stage::Listening) {
            return fail(libc::EINVAL);
        }
        release_event(listener);
        let mut found: *mut rdma_cm_event = std::ptr::null_mut();
        if event::get((*listener).channel, &raw mut found) != 0 {
            return -1;
        }
        if (*found).event != CONNECT_REQUEST {
            event::ack(found);
            return fail(libc::EINVAL);
        }
        let id = (*found).id;
        if let Some((pd, attr)) = (*listener.cast::<IdObject>()).template {
            let mut attr = attr;
            if create_qp(id, pd, &raw mut attr) != 0 {
                let error = last_errno();
                event::ack(found);
                cm::destroy_id(id);
                return fail(error);
            }
        }
        (*id).event = found;
        out.write(id);
    }
    0
}
