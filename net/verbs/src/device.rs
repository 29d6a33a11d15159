//! The one device, contexts, and the properties of both.
//!
//! The device looks like a RoCE adapter with one port: identifiers of the port are addresses of the
//! host, and pairs are connected by librdmacm or by programs themselves. On the wire it is iWARP.

use crate::abi::*;
use crate::engine::Engine;
use crate::event::Events;
use crate::left::drop_all_of;
use crate::queue::Context;
use crate::{address, fail, fast, memory, node, pair, pointer_failed, queue};
use sidecore_bare::width::ToUsize;
use sidecore_rdma::{MESSAGE_BYTES_MAX, PIECES_MAX, QUEUES_MAX, RECEIVES_MAX, SHARED_QUEUES_MAX};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicPtr;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The device's name, in the manner of the kernel's drivers.
const NAME: &CStr = c"sidecore0";
/// Most regions, as the interface's number.
const MR_MAX: c_int = 1 << 20;
/// Most pairs: numbers have fourteen bits for them, and InfiniBand's first two are reserved.
pub(crate) const QP_MAX: u16 = (1 << 14) - 2;
/// Most scattered pieces of a message.
pub(crate) const SGE_MAX: u32 = PIECES_MAX as u32;
/// Most reads and atomics that a pair serves, or has outstanding.
pub(crate) const READS_MAX: u8 = 128;
/// The partition of all devices.
const PKEY: u16 = 0xffff;
/// Errors of a port of a link layer without partitions are the same.
const LINK_LAYER_ETHERNET: u8 = 2;
const PHYS_STATE_LINK_UP: u8 = 5;

/// The program's structure of a device, as drivers have it: drivers that are linked to a program
/// look behind the public part for their own calls.
#[repr(C)]
struct DriverDevice {
    raw: ibv_device,
    calls: *const c_void,
}

/// The structure; there is one in a process.
struct DeviceObject(std::cell::UnsafeCell<DriverDevice>);

// SAFETY: it is written once, before its address is given away.
unsafe impl Sync for DeviceObject {}
// SAFETY: as above; its pointers are empty.
unsafe impl Send for DeviceObject {}

static DEVICE: LazyLock<DeviceObject> = LazyLock::new(|| {
    let mut device = ibv_device {
        // As RoCE adapters say: programs take iWARP for a device that librdmacm alone connects.
        node_type: IBV_NODE_CA,
        transport_type: IBV_TRANSPORT_IB,
        ..zeroed()
    };
    put(&mut device.name, NAME);
    put(&mut device.dev_name, node::NAME);
    put(&mut device.dev_path, c"/nonexistent/sidecore-verbs0");
    put(&mut device.ibdev_path, c"/nonexistent/sidecore0");
    let calls = std::ptr::null();
    DeviceObject(std::cell::UnsafeCell::new(DriverDevice {
        raw: device,
        calls,
    }))
});

/// The program's pointer to the device.
fn device_pointer() -> *mut ibv_device {
    DEVICE.0.get().cast()
}

fn put(target: &mut [c_char], text: &CStr) {
    let bytes = text.to_bytes_with_nul();
    for (place, &byte) in target.iter_mut().zip(bytes) {
        *place = c_char::from_ne_bytes([byte]);
    }
}

/// The program's structure of a context.
#[repr(C)]
pub(crate) struct ContextObject {
    raw: verbs_context,
    handle: u32,
    engine: &'static Engine,
}

impl ContextObject {
    /// The engine behind a context.
    ///
    /// # Safety
    /// NULL, or a context of this library.
    pub(crate) unsafe fn engine(context: *mut ibv_context) -> Option<&'static Engine> {
        // SAFETY: the caller's promise.
        unsafe { Some(Self::of(context)?.engine) }
    }

    unsafe fn of<'a>(context: *mut ibv_context) -> Option<&'a Self> {
        if context.is_null() {
            return None;
        }
        // SAFETY: the caller's promise; the context is the last field of an object's first one.
        unsafe {
            let object = context.byte_sub(std::mem::offset_of!(verbs_context, context));
            object.cast::<Self>().as_ref()
        }
    }
}

/// The engine and the handle of a context that is open.
///
/// # Safety
/// NULL, or a context of this library.
pub(crate) unsafe fn context_of(context: *mut ibv_context) -> Option<(&'static Engine, u32)> {
    // SAFETY: the caller's promise.
    let object = unsafe { ContextObject::of(context)? };
    // The address alone proves nothing: memory that was freed may still be readable.
    let mut core = object.engine.lock();
    core.contexts.find(object.handle, context.addr())?;
    Some((object.engine, object.handle))
}

pub(crate) unsafe extern "C" fn list(count: *mut c_int) -> *mut *mut ibv_device {
    // Ended by NULL, as ibv_get_device_list(3) says; the device itself lives as long as the
    // process.
    let list = Box::new([device_pointer(), std::ptr::null_mut()]);
    // SAFETY: NULL or a place for a number, as ibv_get_device_list(3) demands.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = 1;
    }
    Box::into_raw(list).cast()
}

pub(crate) unsafe extern "C" fn free_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: a list of ours, once.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

pub(crate) unsafe extern "C" fn name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device, as ibv_get_device_name(3) demands.
    unsafe { device.as_ref() }.map_or(std::ptr::null(), |device| device.name.as_ptr())
}

pub(crate) unsafe extern "C" fn guid(_device: *mut ibv_device) -> u64 {
    node_guid()
}

/// The device's number, in network byte order: a local one that the host's name decides.
fn node_guid() -> u64 {
    static GUID: LazyLock<u64> = LazyLock::new(|| {
        let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        // FNV-1a: any function that spreads names would do.
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        // The bit of locally administered numbers.
        (hash & !(1 << 56) | 1 << 57).to_be()
    });
    *GUID
}

pub(crate) unsafe extern "C" fn index(_device: *mut ibv_device) -> c_int {
    // As of a device that the kernel has no number for.
    -1
}

pub(crate) unsafe extern "C" fn open(device: *mut ibv_device) -> *mut ibv_context {
    if device.is_null() {
        return pointer_failed(libc::EINVAL);
    }
    match open_context() {
        Ok(context) => context,
        Err(error) => pointer_failed(error),
    }
}

/// Opens a context.
///
/// # Errors
/// An error number.
pub(crate) fn open_context() -> Result<*mut ibv_context, c_int> {
    let engine = Engine::get().map_err(|error| crate::number_of(&error))?;
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EMFILE);
    let events = Events::new().map_err(number)?;
    let async_fd = events.descriptor();
    let mut core = engine.lock();
    let handle = core.contexts.insert(Context {
        events,
        unread: Vec::new(),
    });
    let context = ibv_context {
        device: device_pointer(),
        ops: ibv_context_ops {
            poll_cq: Some(queue::poll_cq),
            req_notify_cq: Some(queue::req_notify_cq),
            post_srq_recv: Some(fast::post_srq_recv),
            post_send: Some(fast::post_send),
            post_recv: Some(fast::post_recv),
            ..zeroed()
        },
        cmd_fd: -1,
        async_fd,
        num_comp_vectors: 1,
        // libibverbs' mark of a context that is embedded in the longer structure
        // (`__VERBS_ABI_IS_EXTENDED`).
        abi_compat: std::ptr::without_provenance_mut(usize::MAX),
        ..zeroed()
    };
    let object = Box::into_raw(Box::new(ContextObject {
        raw: verbs_context {
            query_port: Some(query_port),
            advise_mr: Some(memory::advise_mr),
            modify_cq: Some(queue::modify_cq),
            create_cq_ex: Some(queue::create_cq_ex),
            query_device_ex: Some(query_ex),
            create_qp_ex: Some(pair::create_ex),
            get_srq_num: Some(memory::srq_number),
            create_srq_ex: Some(memory::create_srq_ex),
            sz: size_of::<verbs_context>(),
            context,
            ..zeroed()
        },
        handle,
        engine,
    }));
    // SAFETY: a field of the object that was just made.
    let context = unsafe { &raw mut (*object).raw.context };
    core.contexts.name(handle, context.expose_provenance());
    Ok(context)
}

pub(crate) unsafe extern "C" fn close(context: *mut ibv_context) -> c_int {
    // SAFETY: a context, as ibv_open_device(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = context_of(context) else {
            return fail(libc::EINVAL);
        };
        let mut core = engine.lock();
        let was_left = drop_all_of(&mut core, handle);
        core.contexts.remove(handle);
        drop(core);
        if was_left {
            // Structures of what was left point to the context.
            return 0;
        }
        let object = context.byte_sub(std::mem::offset_of!(verbs_context, context));
        drop(Box::from_raw(object.cast::<ContextObject>()));
        0
    }
}

/// A limit as the interface's structures have it.
fn limit(count: impl TryInto<c_int>) -> c_int {
    count.try_into().unwrap_or(c_int::MAX)
}

fn attributes() -> ibv_device_attr {
    let mut attr = ibv_device_attr {
        node_guid: node_guid(),
        sys_image_guid: node_guid(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        max_qp: QP_MAX.into(),
        max_qp_wr: limit(pair::WORK_MAX),
        device_cap_flags: IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_CURR_QP_STATE_MOD,
        max_sge: limit(SGE_MAX),
        // RFC 5040: a read has one place for its data.
        max_sge_rd: 1,
        max_cq: limit(QUEUES_MAX),
        max_cqe: queue::CQE_MAX,
        max_mr: MR_MAX,
        max_pd: 1 << 16,
        max_qp_rd_atom: READS_MAX.into(),
        max_res_rd_atom: c_int::from(QP_MAX) * c_int::from(READS_MAX),
        max_qp_init_rd_atom: READS_MAX.into(),
        atomic_cap: IBV_ATOMIC_HCA,
        max_ah: limit(memory::AH_MAX),
        max_srq: limit(SHARED_QUEUES_MAX),
        max_srq_wr: limit(RECEIVES_MAX),
        max_srq_sge: limit(SGE_MAX),
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..zeroed()
    };
    let version = concat!(env!("CARGO_PKG_VERSION"), "\0");
    if let Ok(version) = CStr::from_bytes_with_nul(version.as_bytes()) {
        put(&mut attr.fw_ver, version);
    }
    attr
}

pub(crate) unsafe extern "C" fn query(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: a context and a place for attributes, as ibv_query_device(3) demands.
    unsafe { give(context, attr, size_of::<ibv_device_attr>(), &attributes()) }
}

/// Writes attributes of a context: a shorter structure of an older program gets the beginning, a
/// longer one zeros at its end.
///
/// # Safety
/// A context of this library or NULL, and room for `bytes` bytes or NULL.
unsafe fn give<T: Copy>(context: *mut ibv_context, target: *mut T, bytes: usize, all: &T) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if context_of(context).is_none() || target.is_null() {
            return libc::EINVAL;
        }
        // Programs are built against older and newer headers: fields of both sides alone are
        // copied, others are 0.
        let count = bytes.min(size_of::<T>());
        target.cast::<u8>().write_bytes(0, bytes);
        std::ptr::copy_nonoverlapping((&raw const *all).cast(), target.cast::<u8>(), count);
    }
    0
}

unsafe extern "C" fn query_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    bytes: usize,
) -> c_int {
    let all = ibv_device_attr_ex {
        orig_attr: attributes(),
        phys_port_cnt_ex: 1,
        ..zeroed()
    };
    // SAFETY: a context and room for `bytes` bytes, as ibv_query_device_ex(3) demands.
    unsafe { give(context, attr, bytes, &all) }
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    bytes: usize,
) -> c_int {
    let all = ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_4096,
        gid_tbl_len: limit(address::places().len()),
        port_cap_flags: IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: MESSAGE_BYTES_MAX,
        pkey_tbl_len: 1,
        // Four lanes of 25 Gb/s in the interface's codes, as a common card says: a stream has no
        // rate of its own.
        active_width: 2,
        active_speed: 32,
        phys_state: PHYS_STATE_LINK_UP,
        link_layer: LINK_LAYER_ETHERNET,
        ..zeroed()
    };
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: a context and room for `bytes` bytes, as ibv_query_port(3) demands.
    unsafe { give(context, attr, bytes, &all) }
}

pub(crate) unsafe extern "C" fn query_port_compat(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: programs of before version 1.1 have a structure that ends with `link_layer`, `flags`.
    unsafe { query_port(context, port, attr, OLD_PORT_BYTES) }
}

/// Length of the port's attributes before they grew.
const OLD_PORT_BYTES: usize = std::mem::offset_of!(ibv_port_attr, link_layer);

pub(crate) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut [u64; 2],
) -> c_int {
    let place = usize::try_from(index)
        .ok()
        .and_then(|at| address::places().get(at));
    // SAFETY: a context and a place for an identifier, as ibv_query_gid(3) demands.
    unsafe {
        match place {
            Some(place) if port == 1 && context_of(context).is_some() && !gid.is_null() => {
                gid.write(address::gid(place.ip));
                0
            }
            _ => fail(libc::EINVAL),
        }
    }
}

/// The entry of the table at an index.
fn entry(index: u32) -> Option<ibv_gid_entry> {
    // As packets over UDP are said to be: IBV_GID_TYPE_ROCE_V2.
    const ROCE_V2: u32 = 2;
    let place = address::places().get(index.to_usize())?;
    Some(ibv_gid_entry {
        gid: address::gid(place.ip),
        gid_index: index,
        port_num: 1,
        gid_type: ROCE_V2,
        ndev_ifindex: place.interface,
    })
}

pub(crate) unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    target: *mut ibv_gid_entry,
    _flags: u32,
    bytes: usize,
) -> c_int {
    // SAFETY: a context and a place of `bytes` bytes for an entry, as ibv_query_gid_ex(3) demands.
    unsafe {
        let is_short = target.is_null() || bytes < size_of::<ibv_gid_entry>();
        if context_of(context).is_none() || is_short || port != 1 {
            return libc::EINVAL;
        }
        let Some(entry) = entry(index) else {
            return libc::ENODATA;
        };
        target.write(entry);
    }
    0
}

pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    count: usize,
    _flags: u32,
    bytes: usize,
) -> isize {
    // SAFETY: a context, and room for `count` entries of `bytes` bytes, as ibv_query_gid_table(3)
    // demands.
    unsafe {
        if context_of(context).is_none()
            || entries.is_null()
            || bytes < size_of::<ibv_gid_entry>()
            || count < address::places().len()
        {
            return isize::try_from(-libc::EINVAL).unwrap_or(-1);
        }
        for (at, entry) in (0..).map_while(entry).enumerate() {
            entries.byte_add(at * bytes).write(entry);
        }
    }
    isize::try_from(address::places().len()).unwrap_or(isize::MAX)
}

pub(crate) unsafe extern "C" fn query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut c_int,
) -> c_int {
    // The kernel's number in sysfs for RoCE v2.
    const ROCE_V2: c_int = 1;
    // SAFETY: a place for a number.
    unsafe {
        if kind.is_null() || port != 1 || entry(index).is_none() {
            return fail(libc::EINVAL);
        }
        kind.write(ROCE_V2);
    }
    0
}

pub(crate) unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: a context and a place for a number, as ibv_query_pkey(3) demands.
    unsafe {
        if context_of(context).is_none() || pkey.is_null() || port != 1 || index != 0 {
            return fail(libc::EINVAL);
        }
        pkey.write(PKEY.to_be());
    }
    0
}

pub(crate) unsafe extern "C" fn pkey_index(
    _context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    match port == 1 && u16::from_be(pkey) == PKEY {
        true => 0,
        false => fail(libc::EINVAL),
    }
}

pub(crate) unsafe extern "C" fn sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

pub(crate) unsafe extern "C" fn read_sysfs_file(
    _folder: *const c_char,
    _file: *const c_char,
    _into: *mut c_char,
    _bytes: usize,
) -> c_int {
    // The device has no files there.
    fail(libc::ENOENT)
}

pub(crate) unsafe extern "C" fn fork_init() -> c_int {
    // Nothing to do: memory is not pinned, and a child gets copies of it as of all other.
    0
}

pub(crate) unsafe extern "C" fn fork_status() -> c_int {
    // IBV_FORK_UNNEEDED.
    2
}

pub(crate) unsafe extern "C" fn fork_range(_base: *mut c_void, _bytes: usize) -> c_int {
    0
}

/// An object that a process has once: a child of `fork` makes its own, on its own engine.
pub(crate) struct PerProcess<T>(Mutex<(u32, AtomicPtr<T>)>);

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        // No process has the number 0.
        Self(Mutex::new((0, AtomicPtr::new(std::ptr::null_mut()))))
    }

    /// The process's object, which its first user makes.
    pub(crate) fn get(
        &self,
        make: impl FnOnce() -> Result<*mut T, c_int>,
    ) -> Result<*mut T, c_int> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if place.0 != process {
            *place = (process, AtomicPtr::new(make()?));
        }
        Ok(*place.1.get_mut())
    }
}

/// The context of connections' identifiers: one for the process.
pub(crate) fn shared_context() -> Result<*mut ibv_context, c_int> {
    static CONTEXT: PerProcess<ibv_context> = PerProcess::new();
    CONTEXT.get(open_context)
}

pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> *mut *mut ibv_context {
    let context = match shared_context() {
        Ok(context) => context,
        Err(error) => return pointer_failed(error),
    };
    // SAFETY: NULL or a place for a number, as rdma_get_devices(3) demands.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = 1;
    }
    Box::into_raw(Box::new([context, std::ptr::null_mut()])).cast()
}

pub(crate) unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
    if !list.is_null() {
        // SAFETY: a list of ours, once.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
    }
}
