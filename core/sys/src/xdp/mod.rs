//! AF_XDP: frames of one queue of an interface, through memory that we share with the kernel.
//!
//! Four rings lead into one memory of chunks: *fill* (to the kernel: chunks for frames to come),
//! *receive* (from it: chunks with frames), *transmit* (to it: chunks to send), *completion* (from
//! it: chunks that were sent). Half of the chunks are for receiving, half for sending.
//! Why here: rings shared with the kernel, a memory that it writes to, and a program that redirects
//! frames. Must stay true: a chunk has one owner at a time; a reference to its bytes exists only
//! while it is ours; contents of rings are checked against the memory's bounds. One thread at a
//! time.
//! Source: Documentation/networking/af_xdp.rst.
#![allow(unsafe_code)] // rings and memory shared with the kernel; bpf(2)

mod program;
mod ring;

use crate::region::{Region, RegionOptions};
use crate::{SysError, interface};
use program::Program;
use ring::Ring;
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use sidecore_bare::width::{ToU64, ToUsize};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

/// Receive mode of the socket: the kernel or the driver runs the program, with or without a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The kernel receives and copies: works on every interface.
    #[default]
    Generic,
    /// The driver runs the program; the kernel copies. On veth this turns the other end's
    /// segmentation off and limits its MTU.
    Native,
    /// The device writes into our memory. Few drivers; not veth.
    ZeroCopy,
}

/// An AF_XDP socket and its memory (UMEM).
#[derive(Debug)]
pub struct XdpSocket {
    fill: Ring<u64>,
    receive: Ring<Descriptor>,
    transmit: Ring<Descriptor>,
    completion: Ring<u64>,
    /// Chunks that may be filled and sent.
    free: Vec<u64>,
    /// True if frames are in the transmit ring that the kernel was not woken for.
    unannounced: bool,
    /// Start of the chunks; owned by `memory`, which is not touched otherwise.
    chunks: NonNull<u8>,
    socket: OwnedFd,
    _program: Arc<Program>,
    /// Dropped last: the kernel may write to it until the socket is closed.
    _memory: Region,
}

// SAFETY: the pointer is into memory that the value owns; it is used through `&mut self` only.
unsafe impl Send for XdpSocket {}

/// `struct xdp_desc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Descriptor {
    address: u64,
    bytes: u32,
    options: u32,
}

impl XdpSocket {
    /// Takes queue `queue` of the interface `name`: its frames no longer reach the kernel.
    ///
    /// # Errors
    /// [`SysError::Call`]: `ENODEV`; `EPERM` without CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF;
    /// `EBUSY` where another program or socket has it (also for a moment after that one ended);
    /// `EOPNOTSUPP` where the driver does not support `mode`.
    pub fn open(name: &str, queue: u32, mode: Mode) -> Result<Self, SysError> {
        Ok(Self::open_queues(name, queue..queue.saturating_add(1), mode)?.remove(0))
    }

    /// Takes several queues, by one program; at least one. They may go to different threads.
    ///
    /// # Errors
    /// As [`Self::open`]; `EINVAL` where the interface has not as many.
    pub fn open_queues(name: &str, queues: Range<u32>, mode: Mode) -> Result<Vec<Self>, SysError> {
        let index = interface::index(name)?;
        let program = Arc::new(Program::attach(index, queues.end, mode)?);
        let queue = |queue| Self::open_one(index, queue, mode, Arc::clone(&program));
        queues.map(queue).collect()
    }

    fn open_one(
        index: u32,
        queue: u32,
        mode: Mode,
        program: Arc<Program>,
    ) -> Result<Self, SysError> {
        let kind = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, kind, None)
            .map_err(call("socket(AF_XDP)"))?;
        let mut memory = Region::new(2 * CHUNKS * CHUNK_BYTES, RegionOptions::default())?;
        let chunks = NonNull::from(memory.bytes_mut()).cast::<u8>();
        let register = XdpUmemReg {
            addr: chunks.as_ptr().addr() as u64,
            len: (2 * CHUNKS * CHUNK_BYTES).to_u64(),
            chunk_size: CHUNK_BYTES as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, register).map_err(call("XDP_UMEM_REG"))?;
        let entries = CHUNKS as u32;
        sockopt::set_xdp_umem_fill_ring_size(&socket, entries)
            .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(&socket, entries))
            .and_then(|()| sockopt::set_xdp_rx_ring_size(&socket, entries))
            .and_then(|()| sockopt::set_xdp_tx_ring_size(&socket, entries))
            .map_err(call("setting the size of an AF_XDP ring"))?;
        let at = sockopt::xdp_mmap_offsets(&socket).map_err(call("XDP_MMAP_OFFSETS"))?;
        let mut fill = Ring::map(&socket, XDP_UMEM_PGOFF_FILL_RING, &at.fr, entries)?;
        let completion = Ring::map(&socket, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, entries)?;
        let receive = Ring::map(&socket, XDP_PGOFF_RX_RING, &at.rx, entries)?;
        let transmit = Ring::map(&socket, XDP_PGOFF_TX_RING, &at.tx, entries)?;
        for chunk in 0..CHUNKS {
            fill.push((chunk * CHUNK_BYTES).to_u64());
        }
        fill.publish();
        let free = (CHUNKS..2 * CHUNKS).map(|chunk| (chunk * CHUNK_BYTES).to_u64());
        let flags = match mode {
            Mode::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
            Mode::Generic | Mode::Native => SocketAddrXdpFlags::XDP_COPY,
        };
        rustix::net::bind(&socket, &SocketAddrXdp::new(flags, index, queue))
            .map_err(call("bind of an AF_XDP socket"))?;
        program.redirect(queue, socket.as_fd())?;
        Ok(Self {
            fill,
            receive,
            transmit,
            completion,
            free: free.collect(),
            unannounced: false,
            chunks,
            socket,
            _program: program,
            _memory: memory,
        })
    }

    /// Hands at most `budget` waiting frames to `sink`; returns how many.
    #[inline]
    pub fn receive(&mut self, budget: usize, mut sink: impl FnMut(&mut [u8])) -> usize {
        let mut count = 0;
        while count < budget {
            let Some(frame) = self.receive.pop() else {
                break;
            };
            // The frame may begin anywhere in its chunk; the chunk goes back.
            let (address, bytes) = (frame.address.to_usize(), frame.bytes.to_usize());
            if address < CHUNKS * CHUNK_BYTES && bytes <= CHUNK_BYTES - address % CHUNK_BYTES {
                // SAFETY: within a chunk (checked) that the kernel gave to us; it writes to it
                // again only after it is in the fill ring, below. `&mut self`: there is no other
                // reference.
                let frame =
                    unsafe { slice::from_raw_parts_mut(self.chunks.as_ptr().add(address), bytes) };
                sink(frame);
                self.fill.push((address - address % CHUNK_BYTES).to_u64());
            }
            count += 1;
        }
        if count > 0 {
            self.receive.release();
            self.fill.publish();
        }
        count
    }

    /// Puts a frame, given in pieces, into the transmit ring; false where there is no room now or
    /// it is longer than [`FRAME_BYTES_MAX`].
    #[inline]
    pub fn transmit(&mut self, pieces: &[&[u8]]) -> bool {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.free.is_empty() {
            self.reclaim();
        }
        if bytes > FRAME_BYTES_MAX || self.transmit.is_full() {
            return false;
        }
        let Some(address) = self.free.pop() else {
            return false;
        };
        let mut at = address.to_usize();
        for piece in pieces {
            // SAFETY: `address` is a chunk of ours in the second half, and the pieces fit
            // (checked); they are borrowed elsewhere and cannot overlap it.
            unsafe {
                ptr::copy_nonoverlapping(piece.as_ptr(), self.chunks.as_ptr().add(at), piece.len());
            }
            at += piece.len();
        }
        self.transmit.push(Descriptor {
            address,
            bytes: bytes as u32,
            options: 0,
        });
        self.unannounced = true;
        true
    }

    /// Tells the kernel to send the frames in the transmit ring.
    ///
    /// # Errors
    /// [`SysError::Call`]: `ENETDOWN`, `ENXIO` where the interface was removed.
    pub fn flush(&mut self) -> Result<(), SysError> {
        if !self.unannounced && self.transmit.is_idle() {
            return Ok(());
        }
        self.transmit.publish();
        // The kernel takes some dozens a call when it copies.
        for _ in 0..CHUNKS / 16 {
            // SAFETY: sends no bytes and no address; only wakes the socket.
            let sent = unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    ptr::null(),
                    0,
                )
            };
            if sent < 0 {
                match last() {
                    // More in the next call, or in the next round.
                    Errno::AGAIN => {}
                    Errno::BUSY | Errno::NOBUFS | Errno::INTR => break,
                    error => return Err(call("sendto on an AF_XDP socket")(error)),
                }
            }
            self.reclaim();
            if self.transmit.is_idle() {
                break;
            }
        }
        self.unannounced = false;
        Ok(())
    }

    fn reclaim(&mut self) {
        while let Some(address) = self.completion.pop() {
            let address = address.to_usize() - address.to_usize() % CHUNK_BYTES;
            let ours = (CHUNKS * CHUNK_BYTES..2 * CHUNKS * CHUNK_BYTES).contains(&address);
            if ours && self.free.len() < CHUNKS {
                self.free.push(address.to_u64());
            }
        }
        self.completion.release();
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn call(call: &'static str) -> impl Fn(Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}

/// The longest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = CHUNK_BYTES;
const CHUNK_BYTES: usize = 2048;
/// Chunks for each direction, and entries of each ring.
const CHUNKS: usize = 2048;
