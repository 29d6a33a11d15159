//! Shared receive queues.

use crate::abi::*;
use crate::device::{self, ContextObject, SGE_MAX};
use crate::engine::Engine;
use crate::memory::pd_of;
use crate::state::Core;
use crate::{number_of, pointer_failed};
use sidecore_bare::width::ToUsize;
use sidecore_rdma::{RECEIVES_MAX, SharedId};
use std::ffi::{c_int, c_void};

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) id: SharedId,
    context: u32,
    pd: u32,
    max_wr: u32,
    /// An event is raised once fewer receives are left; 0 for none.
    limit: u32,
    /// Pairs that use it.
    pub(crate) users: usize,
}

/// The engine and the handle of a queue's structure.
///
/// # Safety
/// NULL, or memory that can be read.
pub(crate) unsafe fn srq_of(srq: *mut ibv_srq) -> Option<(&'static Engine, u32)> {
    // SAFETY: the caller's promise; a queue has the context that it was made in.
    unsafe {
        let raw = srq.as_ref()?;
        let engine = ContextObject::engine(raw.context)?;
        engine.lock().srqs.find(raw.handle, srq.addr())?;
        Some((engine, raw.handle))
    }
}

impl Core {
    /// Raises the event of a queue that has fewer receives than its limit, once.
    pub(crate) fn look_at_limit(&mut self, handle: u32) {
        let address = self.srqs.address(handle);
        let Some(srq) = self.srqs.get(handle).filter(|srq| srq.limit > 0) else {
            return;
        };
        if self.device.shared_receives(srq.id) < srq.limit.to_usize() {
            srq.limit = 0;
            let context = srq.context;
            self.raise_async(context, address, IBV_EVENT_SRQ_LIMIT_REACHED);
        }
    }
}

unsafe fn make(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: a domain, as ibv_create_srq(3) demands; others are refused.
    let (engine, domain) = unsafe { pd_of(pd).ok_or(libc::EINVAL)? };
    let depth = attr.max_wr.to_usize();
    if depth == 0 || depth > RECEIVES_MAX || attr.max_sge > SGE_MAX {
        return Err(libc::EINVAL);
    }
    let mut core = engine.lock();
    let id = core.device.create_shared(depth);
    let id = id.map_err(|error| number_of(&error))?;
    let context = core.pds.get(domain).ok_or(libc::EINVAL)?.context;
    let handle = core.srqs.insert(Srq {
        id,
        context,
        pd: domain,
        max_wr: attr.max_wr,
        limit: 0,
        users: 0,
    });
    attr.max_sge = SGE_MAX;
    let srq = Box::into_raw(Box::new(ibv_srq {
        // SAFETY: a domain, as was just checked.
        context: unsafe { (*pd).context },
        srq_context,
        pd,
        handle,
        ..zeroed()
    }));
    core.srqs.name(handle, srq.expose_provenance());
    core.count_pd(domain, 1);
    core.count(context, 1);
    Ok(srq)
}

pub(crate) unsafe extern "C" fn create(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the arguments of ibv_create_srq(3).
    unsafe {
        match attr.as_mut() {
            Some(init) => make(pd, init.srq_context, &mut init.attr).unwrap_or_else(pointer_failed),
            None => pointer_failed(libc::EINVAL),
        }
    }
}

pub(crate) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // Those with a plain mask come by `create`; the others are XRC or tag matching.
    // SAFETY: the arguments of ibv_create_srq_ex(3).
    match unsafe { device::context_of(context).is_some() } && !attr.is_null() {
        true => pointer_failed(libc::EOPNOTSUPP),
        false => pointer_failed(libc::EINVAL),
    }
}

pub(crate) unsafe extern "C" fn modify(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a queue and attributes, as ibv_modify_srq(3) demands; others are refused.
    unsafe {
        let (Some((engine, handle)), Some(attr)) = (srq_of(srq), attr.as_ref()) else {
            return libc::EINVAL;
        };
        if mask & IBV_SRQ_MAX_WR != 0 {
            return libc::EOPNOTSUPP;
        }
        let mut core = engine.lock();
        if mask & IBV_SRQ_LIMIT != 0
            && let Some(found) = core.srqs.get(handle)
        {
            if attr.srq_limit > found.max_wr {
                return libc::EINVAL;
            }
            found.limit = attr.srq_limit;
            core.look_at_limit(handle);
        }
        0
    }
}

pub(crate) unsafe extern "C" fn query(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a queue and a place for attributes, as ibv_query_srq(3) demands.
    unsafe {
        let Some((engine, handle)) = srq_of(srq).filter(|_| !attr.is_null()) else {
            return libc::EINVAL;
        };
        if let Some(found) = engine.lock().srqs.get(handle) {
            attr.write(ibv_srq_attr {
                max_wr: found.max_wr,
                max_sge: SGE_MAX,
                srq_limit: found.limit,
            });
        }
        0
    }
}

pub(crate) unsafe extern "C" fn number(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: a queue and a place for a number, as ibv_get_srq_num(3) demands.
    unsafe {
        let Some((_, handle)) = srq_of(srq).filter(|_| !number.is_null()) else {
            return libc::EINVAL;
        };
        number.write(handle);
        0
    }
}

pub(crate) unsafe extern "C" fn destroy(srq: *mut ibv_srq) -> c_int {
    // SAFETY: a queue, as ibv_destroy_srq(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = srq_of(srq) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        if core.srqs.get(handle).is_some_and(|srq| srq.users > 0) {
            return libc::EBUSY;
        }
        let Some(gone) = core.srqs.remove(handle) else {
            return libc::EINVAL;
        };
        core.device.drop_shared(gone.id);
        core.count_pd(gone.pd, -1);
        core.count(gone.context, -1);
        while !core.forget_async(gone.context, srq.addr()) {
            core = engine.wait(core);
        }
        drop(core);
        drop(Box::from_raw(srq));
        0
    }
}
