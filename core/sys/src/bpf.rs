//! Small programs for the kernel, loaded and attached by bpf(2).
//!
//! Why by hand: they are a handful of instructions, and need neither a compiler for BPF nor a
//! loader library. Must stay true: an attachment ends with its descriptor, so a killed process
//! leaves nothing behind. Source: bpf(2), `include/uapi/linux/bpf.h` (whose layout the requests
//! have).
#![allow(unsafe_code)] // bpf(2) takes untyped requests

use crate::{SysError, interface};
use rustix::io::Errno;
use sidecore_bare::width::ToU64;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Keeps an interface's incoming frames from the kernel's own stack; packet sockets still see them.
/// Ends when this value is dropped.
#[derive(Debug)]
pub struct Shield {
    _program: OwnedFd,
    _link: OwnedFd,
}

impl Shield {
    /// Raises it in front of the interface `name`.
    ///
    /// # Errors
    /// [`SysError::Call`]: `EPERM` without CAP_NET_ADMIN and CAP_BPF, `EINVAL` before Linux 6.6.
    pub fn raise(name: &str) -> Result<Self, SysError> {
        let interface = interface::index(name)?;
        // r0 = TC_ACT_SHOT; exit
        let drop_all = [instruction(0xb7, 0, 0, 0, 2), instruction(0x95, 0, 0, 0, 0)];
        let program = load(PROG_TYPE_SCHED_CLS, 0, &drop_all)?;
        let link = attach(&program, interface, ATTACH_TCX_INGRESS, 0)?;
        Ok(Self {
            _program: program,
            _link: link,
        })
    }
}

/// Encodes one instruction. code: 8 bits, target: 4, source: 4, offset: 16, immediate: 32.
pub(crate) fn instruction(code: u8, target: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(code)
        | u64::from(target) << 8
        | u64::from(source) << 12
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(immediate.cast_unsigned()) << 32
}

/// Creates a table of AF_XDP sockets with `entries` entries.
pub(crate) fn socket_table(entries: u32) -> Result<OwnedFd, SysError> {
    let request = MapCreate {
        map_type: MAP_TYPE_XSKMAP,
        key_bytes: 4,
        value_bytes: 4,
        entries_max: entries,
        ..MapCreate::default()
    };
    bpf(MAP_CREATE, &request, "bpf(BPF_MAP_CREATE)")
}

/// Puts `socket` at `key` of a table of sockets.
pub(crate) fn table_set(table: &OwnedFd, key: u32, socket: BorrowedFd<'_>) -> Result<(), SysError> {
    let value = socket.as_raw_fd();
    let request = MapUpdate {
        map: table.as_raw_fd().cast_unsigned(),
        key: ptr::from_ref(&key).addr().to_u64(),
        value: ptr::from_ref(&value).addr().to_u64(),
        ..MapUpdate::default()
    };
    // SAFETY: the request has the kernel's layout; its pointers are to a key and a value of four
    // bytes each, as the table was made, that live until the call returns.
    let result = unsafe { bpf_call(MAP_UPDATE, &request) };
    if result < 0 {
        return Err(last("bpf(BPF_MAP_UPDATE_ELEM)"));
    }
    Ok(())
}

/// Loads a program.
pub(crate) fn load(
    program_type: u32,
    attach_type: u32,
    instructions: &[u64],
) -> Result<OwnedFd, SysError> {
    // Helpers for GPL programs are not used.
    let license = c"MIT";
    let request = ProgramLoad {
        program_type,
        instructions: instructions.len() as u32,
        first: instructions.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        attach_type,
        ..ProgramLoad::default()
    };
    bpf(PROG_LOAD, &request, "bpf(BPF_PROG_LOAD)")
}

/// Attaches a program to an interface, until the descriptor is closed.
pub(crate) fn attach(
    program: &OwnedFd,
    interface: u32,
    attach_type: u32,
    flags: u32,
) -> Result<OwnedFd, SysError> {
    let request = LinkCreate {
        program: program.as_raw_fd().cast_unsigned(),
        interface,
        attach_type,
        flags,
    };
    bpf(LINK_CREATE, &request, "bpf(BPF_LINK_CREATE)")
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    program_type: u32,
    instructions: u32,
    first: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

const _: () = assert!(size_of::<MapUpdate>() == 32 && size_of::<ProgramLoad>() == 72);

/// Performs a bpf(2) request that returns a new descriptor.
fn bpf<T>(command: i32, request: &T, what: &'static str) -> Result<OwnedFd, SysError> {
    // SAFETY: the callers' requests have the kernel's layout, and point to memory that outlives the
    // call: the program's instructions and its license.
    let result = unsafe { bpf_call(command, request) };
    let descriptor = i32::try_from(result).unwrap_or(-1);
    if descriptor < 0 {
        return Err(last(what));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// # Safety
/// `request` has the type that `command` reads, and its pointers are valid until the call returns.
unsafe fn bpf_call<T>(command: i32, request: &T) -> i64 {
    // SAFETY: the caller's promise; the kernel takes bytes beyond the given size as zeros.
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_ref(request),
            size_of::<T>() as u32,
        )
    }
}

fn last(call: &'static str) -> SysError {
    SysError::Call {
        call,
        source: Errno::from_io_error(&std::io::Error::last_os_error())
            .unwrap_or(Errno::IO)
            .into(),
    }
}

const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_SCHED_CLS: u32 = 3;
const ATTACH_TCX_INGRESS: u32 = 46;
