//! The program that redirects an interface's frames to a socket: loaded and attached by bpf(2).
//!
//! Why by hand: it is six instructions, and needs neither a compiler for BPF nor a loader library.
//! Must stay true: the attachment ends with its descriptor, so a killed process leaves nothing
//! behind. Source: bpf(2), `include/uapi/linux/bpf.h` (whose layout the requests have),
//! Documentation/networking/af_xdp.rst.

use super::{Mode, call};
use crate::SysError;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// A loaded and attached program, with the table of sockets that it redirects to.
#[derive(Debug)]
pub(super) struct Program {
    table: OwnedFd,
    _program: OwnedFd,
    _link: OwnedFd,
}

impl Program {
    /// Loads it and attaches it to the interface of that number; it passes all frames on to the
    /// kernel until a socket is in its table.
    pub(super) fn attach(interface: u32, queues: u32, mode: Mode) -> Result<Self, SysError> {
        let table = bpf(
            MAP_CREATE,
            &MapCreate {
                map_type: MAP_TYPE_XSKMAP,
                key_bytes: 4,
                value_bytes: 4,
                entries_max: queues,
                ..MapCreate::default()
            },
            "bpf(BPF_MAP_CREATE)",
        )?;
        let instructions = instructions(table.as_fd());
        let license = c"MIT";
        let program = bpf(
            PROG_LOAD,
            &ProgramLoad {
                program_type: PROG_TYPE_XDP,
                instructions: instructions.len() as u32,
                first: instructions.as_ptr().addr() as u64,
                license: license.as_ptr().addr() as u64,
                attach_type: ATTACH_XDP,
                ..ProgramLoad::default()
            },
            "bpf(BPF_PROG_LOAD)",
        )?;
        let link = bpf(
            LINK_CREATE,
            &LinkCreate {
                program: program.as_raw_fd().cast_unsigned(),
                interface,
                attach_type: ATTACH_XDP,
                flags: match mode {
                    Mode::Generic => FLAG_SKB_MODE,
                    Mode::Native | Mode::ZeroCopy => FLAG_DRIVER_MODE,
                },
            },
            "bpf(BPF_LINK_CREATE)",
        )?;
        Ok(Self {
            table,
            _program: program,
            _link: link,
        })
    }

    /// Redirects what comes in on `queue` to `socket` from now on.
    pub(super) fn redirect(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), SysError> {
        let value = socket.as_raw_fd();
        let request = MapUpdate {
            map: self.table.as_raw_fd().cast_unsigned(),
            key: ptr::from_ref(&queue).addr() as u64,
            value: ptr::from_ref(&value).addr() as u64,
            ..MapUpdate::default()
        };
        // SAFETY: the request has the kernel's layout; its pointers are to a key and a value of four
        // bytes each, as the table was made, that live until the call returns.
        let result = unsafe { bpf_call(MAP_UPDATE, &request) };
        if result < 0 {
            return Err(call("bpf(BPF_MAP_UPDATE_ELEM)")(super::last()));
        }
        Ok(())
    }
}

/// `return bpf_redirect_map(table, context->rx_queue_index, XDP_PASS)`.
fn instructions(table: BorrowedFd<'_>) -> [u64; 6] {
    // code: 8 bits, target: 4, source: 4, offset: 16, immediate: 32.
    let instruction = |code: u8, target: u8, source: u8, offset: i16, immediate: i32| {
        u64::from(code)
            | u64::from(target) << 8
            | u64::from(source) << 12
            | u64::from(offset.cast_unsigned()) << 16
            | u64::from(immediate.cast_unsigned()) << 32
    };
    [
        // r2 = *(u32 *)(r1 + offsetof(struct xdp_md, rx_queue_index))
        instruction(0x61, 2, 1, 16, 0),
        // r1 = the table, by its descriptor: two instructions wide
        instruction(0x18, 1, PSEUDO_MAP_FD, 0, table.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        // r3 = XDP_PASS, for a queue without a socket
        instruction(0xb7, 3, 0, 0, 2),
        // call bpf_redirect_map
        instruction(0x85, 0, 0, 0, 51),
        // exit
        instruction(0x95, 0, 0, 0, 0),
    ]
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

/// A request whose answer is a new descriptor.
fn bpf<T>(command: i32, request: &T, what: &'static str) -> Result<OwnedFd, SysError> {
    // SAFETY: the callers' requests have the kernel's layout, and point to memory that outlives the
    // call: the program's instructions and its license.
    let result = unsafe { bpf_call(command, request) };
    let descriptor = i32::try_from(result).unwrap_or(-1);
    if descriptor < 0 {
        return Err(call(what)(super::last()));
    }
    // SAFETY: a new descriptor, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// # Safety
/// `request` is what `command` reads, and what it points to lives until the call returns.
unsafe fn bpf_call<T>(command: i32, request: &T) -> i64 {
    // SAFETY: the caller's promise; the kernel takes what is beyond the given size as zeros.
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_ref(request),
            size_of::<T>() as u32,
        )
    }
}

const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const PSEUDO_MAP_FD: u8 = 1;
const FLAG_SKB_MODE: u32 = 2;
const FLAG_DRIVER_MODE: u32 = 4;
