//! The program that redirects an interface's frames to a socket.
//!
//! Source: Documentation/networking/af_xdp.rst.

use super::Mode;
use crate::SysError;
use crate::bpf::{self, instruction};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

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
        let table = bpf::socket_table(queues)?;
        let program = bpf::load(PROG_TYPE_XDP, ATTACH_XDP, &instructions(table.as_fd()))?;
        let flags = match mode {
            Mode::Generic => FLAG_SKB_MODE,
            Mode::Native | Mode::ZeroCopy => FLAG_DRIVER_MODE,
        };
        let link = bpf::attach(&program, interface, ATTACH_XDP, flags)?;
        Ok(Self {
            table,
            _program: program,
            _link: link,
        })
    }

    /// Redirects incoming frames on `queue` to `socket` from now on.
    pub(super) fn redirect(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), SysError> {
        bpf::table_set(&self.table, queue, socket)
    }
}

/// `return bpf_redirect_map(table, context->rx_queue_index, XDP_PASS)`.
fn instructions(table: BorrowedFd<'_>) -> [u64; 6] {
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

const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const PSEUDO_MAP_FD: u8 = 1;
const FLAG_SKB_MODE: u32 = 2;
const FLAG_DRIVER_MODE: u32 = 4;
