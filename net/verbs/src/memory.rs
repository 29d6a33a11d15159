//! Protection domains and what is in one: registered memory, address handles, shared receive
//! queues.
//!
//! A key is a steering tag, the same for both sides. Memory is used where it is: nothing is pinned,
//! and pages need not be there.

use crate::abi::*;
use crate::device::{self, ContextObject, SGE_MAX};
use crate::direct::ends_of;
use crate::engine::Engine;
use crate::state::{Core, Mr, Pd, Table};
use crate::{errno, number_of, pointer_failed};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_rdma::{Access, RECEIVES_MAX, SharedId};
use std::ffi::{c_int, c_uint, c_void};
use std::net::Ipv6Addr;

/// Most address handles.
pub(crate) const AH_MAX: usize = 1 << 16;

/// The engine and the handle of a domain that exists.
///
/// # Safety
/// NULL, or memory that can be read.
pub(crate) unsafe fn pd_of(pd: *mut ibv_pd) -> Option<(&'static Engine, u32)> {
    // SAFETY: the caller's promise.
    let raw = unsafe { pd.as_ref()? };
    // SAFETY: a domain has the context that it was made in.
    let engine = unsafe { ContextObject::engine(raw.context)? };
    engine.lock().pds.find(raw.handle, pd.addr())?;
    Some((engine, raw.handle))
}

impl Table<Pd> {
    /// Counts a user of a domain.
    pub(crate) fn count(&mut self, pd: u32, change: isize) {
        if let Some(pd) = self.get(pd) {
            pd.users = pd.users.saturating_add_signed(change);
        }
    }
}

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: a context, as ibv_alloc_pd(3) demands; others are refused.
    let Some((engine, owner)) = (unsafe { device::context_of(context) }) else {
        return pointer_failed(libc::EINVAL);
    };
    let mut core = engine.lock();
    let number = core.device.adapter_mut().new_owner();
    let handle = core.pds.insert(Pd {
        context: owner,
        owner: number,
        users: 0,
    });
    let pd = Box::into_raw(Box::new(ibv_pd { context, handle }));
    core.pds.name(handle, pd.expose_provenance());
    pd
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a domain, as ibv_alloc_pd(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = pd_of(pd) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        if core.pds.get(handle).is_none_or(|pd| pd.users > 0) {
            return libc::EBUSY;
        }
        core.pds.remove(handle);
        drop(core);
        drop(Box::from_raw(pd));
        0
    }
}

/// Rights by the interface's flags; none if they contradict each other.
fn rights(flags: c_uint) -> Option<Access> {
    let table = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ];
    // Flags that are not listed (relaxed ordering, huge pages) change nothing here.
    let chosen = table.iter().filter(|(flag, _)| flags & flag != 0);
    let all = chosen.fold(Access::NONE, |all, (_, right)| all | *right);
    // ibv_reg_mr(3): a peer may change only what this side may change.
    let changes = flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    (!changes || flags & IBV_ACCESS_LOCAL_WRITE != 0).then_some(all | Access::REMOTE_INVALIDATE)
}

/// Registers memory.
///
/// # Safety
/// As ibv_reg_mr(3): the memory is there until its deregistration; or any arguments, which are
/// refused if they are no domain's.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let (engine, handle) = pd_of(pd).ok_or(libc::EINVAL)?;
        let access = rights(flags).ok_or(libc::EINVAL)?;
        // Each later check adds an offset to the start: a range that wraps would pass them.
        addr.addr().checked_add(length).ok_or(libc::EINVAL)?;
        let base = match flags & IBV_ACCESS_ZERO_BASED {
            0 => iova,
            _ => 0,
        };
        let mut core = engine.lock();
        let owner = core.pds.get(handle).ok_or(libc::EINVAL)?.owner;
        let adapter = core.device.adapter_mut();
        let region = adapter.register_mapped(addr.cast(), length, base, access, owner);
        let region = region.map_err(|error| number_of(&error))?;
        let key = region.stag.0;
        let number = core.mrs.insert(Mr {
            pd: handle,
            region,
            access: flags,
        });
        let mr = Box::into_raw(Box::new(ibv_mr {
            context: (*pd).context,
            pd,
            addr,
            length,
            handle: number,
            lkey: key,
            rkey: key,
        }));
        core.mrs.name(number, mr.expose_provenance());
        core.pds.count(handle, 1);
        Ok(mr)
    }
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = addr.addr().to_u64();
    // SAFETY: the arguments of ibv_reg_mr(3).
    let registered = unsafe { register(pd, addr, length, iova, access.cast_unsigned()) };
    registered.unwrap_or_else(pointer_failed)
}

pub(crate) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the arguments of ibv_reg_mr_iova(3).
    let registered = unsafe { register(pd, addr, length, iova, access.cast_unsigned()) };
    registered.unwrap_or_else(pointer_failed)
}

pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the arguments of ibv_reg_mr_iova(3).
    unsafe { register(pd, addr, length, iova, access) }.unwrap_or_else(pointer_failed)
}

/// The engine and the handle of a registration's structure.
///
/// # Safety
/// NULL, or memory that can be read.
unsafe fn mr_of(mr: *mut ibv_mr) -> Option<(&'static Engine, u32)> {
    // SAFETY: the caller's promise; a registration has the context that it was made in.
    unsafe {
        let raw = mr.as_ref()?;
        Some((ContextObject::engine(raw.context)?, raw.handle))
    }
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: registered memory, as ibv_dereg_mr(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = mr_of(mr) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        // Under one lock: of two threads that end it, one frees its structure.
        if core.mrs.find(handle, mr.addr()).is_none() {
            return libc::EINVAL;
        }
        if let Some(gone) = core.mrs.remove(handle) {
            core.device.adapter_mut().deregister(gone.region);
            core.pds.count(gone.pd, -1);
        }
        drop(core);
        drop(Box::from_raw(mr));
        0
    }
}

pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // IBV_REREG_MR_ERR_INPUT: the old registration stays.
    const REFUSED: c_int = -1;
    // SAFETY: registered memory and what `flags` names, as ibv_rereg_mr(3) demands.
    unsafe {
        let found = mr_of(mr).and_then(|(engine, handle)| {
            let mut core = engine.lock();
            let old = core.mrs.find(handle, mr.addr())?;
            Some((engine, old.access, old.region.base))
        });
        let Some((engine, old_access, old_base)) = found else {
            errno(libc::EINVAL);
            return REFUSED;
        };
        let changes = |flag: c_int| flags & flag != 0;
        let raw = *mr;
        let pd = if changes(IBV_REREG_MR_CHANGE_PD) {
            pd
        } else {
            raw.pd
        };
        let (addr, length, iova) = match changes(IBV_REREG_MR_CHANGE_TRANSLATION) {
            true => (addr, length, addr.addr().to_u64()),
            false => (raw.addr, raw.length, old_base),
        };
        let access = match changes(IBV_REREG_MR_CHANGE_ACCESS) {
            true => access.cast_unsigned(),
            false => old_access,
        };
        let made = match register(pd, addr, length, iova, access) {
            Ok(made) => made,
            Err(error) => {
                errno(error);
                return REFUSED;
            }
        };
        // The program's structure takes over the new registration, and the old one goes.
        let mut core = engine.lock();
        std::ptr::swap(mr, made);
        // Both tables' names follow the swap: each entry is found by handle and address together.
        core.mrs.name((*mr).handle, mr.expose_provenance());
        core.mrs.name((*made).handle, made.expose_provenance());
        drop(core);
        dereg_mr(made)
    }
}

pub(crate) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    _advice: c_int,
    _flags: u32,
    _pieces: *mut ibv_sge,
    _count: u32,
) -> c_int {
    // Pages come at their first use, as everywhere: advice has nothing to change.
    0
}

/// An address handle: the way to a port, checked.
pub(crate) struct Ah {
    pub(crate) pd: u32,
    /// Identifiers of this port and of the peer's.
    pub(crate) ends: (Ipv6Addr, Ipv6Addr),
}

pub(crate) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the arguments of ibv_create_ah(3).
    unsafe {
        let (Some((engine, domain)), Some(attr)) = (pd_of(pd), attr.as_ref()) else {
            return pointer_failed(libc::EINVAL);
        };
        let ends = match ends_of(attr) {
            Ok(ends) => ends,
            Err(error) => return pointer_failed(error),
        };
        let mut core = engine.lock();
        if core.ahs.len() >= AH_MAX {
            return pointer_failed(libc::ENOMEM);
        }
        let handle = core.ahs.insert(Ah { pd: domain, ends });
        let ah = Box::into_raw(Box::new(ibv_ah {
            context: (*pd).context,
            pd,
            handle,
        }));
        core.ahs.name(handle, ah.expose_provenance());
        core.pds.count(domain, 1);
        ah
    }
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: an address handle, as ibv_create_ah(3) demands; others are refused.
    unsafe {
        let Some(raw) = ah.as_ref() else {
            return libc::EINVAL;
        };
        let Some(engine) = ContextObject::engine(raw.context) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        if core.ahs.find(raw.handle, ah.addr()).is_none() {
            return libc::EINVAL;
        }
        if let Some(gone) = core.ahs.remove(raw.handle) {
            core.pds.count(gone.pd, -1);
        }
        drop(core);
        drop(Box::from_raw(ah));
        0
    }
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) id: SharedId,
    pub(crate) context: u32,
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
        Some((ContextObject::engine(raw.context)?, raw.handle))
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
            // Once: ibv_modify_srq(3) arms it again.
            srq.limit = 0;
            let context = srq.context;
            self.contexts
                .raise_async(context, address, IBV_EVENT_SRQ_LIMIT_REACHED);
        }
    }
}

unsafe fn make_srq(
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
    core.pds.count(domain, 1);
    Ok(srq)
}

pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the arguments of ibv_create_srq(3).
    unsafe {
        match attr.as_mut() {
            Some(init) => {
                make_srq(pd, init.srq_context, &mut init.attr).unwrap_or_else(pointer_failed)
            }
            None => pointer_failed(libc::EINVAL),
        }
    }
}

pub(crate) unsafe extern "C" fn create_srq_ex(
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

pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a queue and attributes, as ibv_modify_srq(3) demands; others are refused.
    unsafe {
        let (Some((engine, handle)), Some(attr)) = (srq_of(srq), attr.as_ref()) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let Some(found) = core.srqs.find(handle, srq.addr()) else {
            return libc::EINVAL;
        };
        if mask & IBV_SRQ_MAX_WR != 0 {
            return libc::EOPNOTSUPP;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            if attr.srq_limit > found.max_wr {
                return libc::EINVAL;
            }
            found.limit = attr.srq_limit;
            // Below the new limit already: the event is raised now, as no further receive may be
            // taken.
            core.look_at_limit(handle);
        }
        0
    }
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a queue and a place for attributes, as ibv_query_srq(3) demands.
    unsafe {
        let Some((engine, handle)) = srq_of(srq).filter(|_| !attr.is_null()) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let Some(found) = core.srqs.find(handle, srq.addr()) else {
            return libc::EINVAL;
        };
        attr.write(ibv_srq_attr {
            max_wr: found.max_wr,
            max_sge: SGE_MAX,
            srq_limit: found.limit,
        });
        0
    }
}

pub(crate) unsafe extern "C" fn srq_number(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: a queue and a place for a number, as ibv_get_srq_num(3) demands.
    unsafe {
        let Some((engine, handle)) = srq_of(srq).filter(|_| !number.is_null()) else {
            return libc::EINVAL;
        };
        if engine.lock().srqs.find(handle, srq.addr()).is_none() {
            return libc::EINVAL;
        }
        number.write(handle);
        0
    }
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: a queue, as ibv_destroy_srq(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = srq_of(srq) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let Some(found) = core.srqs.find(handle, srq.addr()) else {
            return libc::EINVAL;
        };
        if found.users > 0 {
            return libc::EBUSY;
        }
        let Some(gone) = core.srqs.remove(handle) else {
            return libc::EINVAL;
        };
        core.device.drop_shared(gone.id);
        core.pds.count(gone.pd, -1);
        while !core.contexts.forget_async(gone.context, srq.addr()) {
            core = engine.wait(core);
        }
        drop(core);
        drop(Box::from_raw(srq));
        0
    }
}
