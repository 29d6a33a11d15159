//! Packet sockets (AF_PACKET): a network interface shared with the kernel's stack.
//!
//! Why here: works on every interface and needs only CAP_NET_RAW. Super-segments and incomplete
//! checksums are supported (PACKET_VNET_HDR). The kernel still sees every frame. It ignores them if
//! our stack has its own hardware and IP addresses; if the kernel has the same ones,
//! [`PacketOptions::shield`] hides received frames from it. Must stay true: small frames wait for
//! one call in [`Nic::flush`] and leave in order. Source: packet(7).

use super::vnet::{self, HEADER_BYTES};
use super::{Capabilities, FRAME_BYTES_MAX, Interface, Nic, NicError, Outgoing, Received};
use sidecore_sys::bpf::Shield;
use sidecore_sys::packet_socket::{BATCH_MAX, PacketSocket};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};

/// Options of a packet socket on an interface.
#[derive(Debug, Clone)]
pub struct PacketOptions {
    /// The interface.
    pub name: String,
    /// Our hardware address; none for the interface's own.
    pub address: Option<[u8; 6]>,
    /// Segmentation offload: super-segments are passed to the device; partial checksums always are.
    pub offload: bool,
    /// Drops received frames before the kernel's own stack sees them, as long as this NIC exists.
    /// Needs CAP_NET_ADMIN, CAP_BPF and Linux 6.6; with an older kernel, `tc qdisc add dev NAME
    /// clsact` and a filter that drops at ingress do the same.
    pub shield: bool,
}

/// A packet socket on an interface.
#[derive(Debug)]
pub struct Packet {
    socket: PacketSocket,
    name: String,
    capabilities: Capabilities,
    received: Box<[u8]>,
    lengths: [usize; BATCH_MAX],
    /// Small frames with their headers that wait for [`Nic::flush`]: `STAGED_BYTES` bytes each.
    staged: Box<[u8]>,
    staged_lengths: [usize; BATCH_MAX],
    staged_count: usize,
    _shield: Option<Shield>,
}

impl Packet {
    /// Opens the interface and sets it up if it is down and that is permitted.
    ///
    /// # Errors
    /// [`NicError::Sys`] with the remedy.
    pub fn open(options: &PacketOptions) -> Result<Self, NicError> {
        let name = &options.name;
        let Interface {
            index,
            address: own,
            mtu_bytes,
        } = Interface::find(name)?;
        let address = options.address.unwrap_or(own);
        // Raised first: the kernel must not also process frames that the socket receives.
        let shield = options.shield.then(|| Shield::raise(name)).transpose();
        let shield = shield.map_err(|error| {
            let what = format!(
                "cannot keep the kernel from what comes in on `{name}`; root (or CAP_NET_ADMIN and \
                 CAP_BPF) and Linux 6.6 are needed"
            );
            NicError::sys(what, error)
        })?;
        // The interface accepts frames to another address only in promiscuous mode.
        let socket = PacketSocket::open(index, address != own).map_err(|error| {
            let what = format!(
                "cannot open a packet socket on `{name}`; root or CAP_NET_RAW is needed, and the \
                 interface must be up (`ip link set {name} up`)"
            );
            NicError::sys(what, error)
        })?;
        Ok(Self {
            socket,
            name: name.clone(),
            capabilities: Capabilities {
                address,
                mtu_bytes,
                super_segment_bytes: if options.offload { 65_535 } else { 0 },
                completes_checksums: true,
                cuts_datagrams: false,
                merges_received: true,
            },
            received: vec![0; BATCH_MAX * SLOT_BYTES].into(),
            lengths: [0; BATCH_MAX],
            staged: vec![0; BATCH_MAX * STAGED_BYTES].into(),
            staged_lengths: [0; BATCH_MAX],
            staged_count: 0,
            _shield: shield,
        })
    }

    /// Opens `count` sockets, one per engine, over which the kernel spreads flows by a hash
    /// (`PACKET_FANOUT_HASH`), independently of the sending socket.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_queues(options: &PacketOptions, count: usize) -> Result<Vec<Self>, NicError> {
        let mut all = vec![Self::open(options)?];
        let failed = |error| {
            let what = format!(
                "cannot spread what comes in on `{}` over engines",
                options.name
            );
            NicError::sys(what, error)
        };
        if count > 1 {
            let group = all[0].socket.begin_fanout().map_err(failed)?;
            // One shield is enough for all.
            let unshielded = PacketOptions {
                shield: false,
                ..options.clone()
            };
            while all.len() < count {
                let one = Self::open(&unshielded)?;
                one.socket.join_fanout(group).map_err(failed)?;
                all.push(one);
            }
        }
        Ok(all)
    }

    /// True if frames skip the queueing discipline (`PACKET_QDISC_BYPASS`).
    #[must_use]
    pub fn bypasses_queue(&self) -> bool {
        self.socket.bypasses_queue()
    }

    /// Sends staged frames; false if some are left.
    fn send_staged(&mut self) -> Result<bool, NicError> {
        let mut done = 0;
        while done < self.staged_count {
            let mut frames = [&[][..]; BATCH_MAX];
            let lengths = &self.staged_lengths[..self.staged_count];
            for (frame, (slot, &length)) in frames
                .iter_mut()
                .zip(self.staged.chunks_exact(STAGED_BYTES).zip(lengths))
            {
                *frame = &slot[..length];
            }
            let sent = self.socket.send(&frames[done..self.staged_count]);
            let sent = sent.map_err(|error| NicError::gone(&self.name, error))?;
            // The device's queue is full; a wait here would hold up the whole round.
            if sent == 0 {
                break;
            }
            done += sent;
        }
        self.staged
            .copy_within(done * STAGED_BYTES..self.staged_count * STAGED_BYTES, 0);
        // What is left goes first the next time, so frames leave in order.
        self.staged_lengths.copy_within(done..self.staged_count, 0);
        self.staged_count -= done;
        Ok(self.staged_count == 0)
    }
}

impl Nic for Packet {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let mut count = 0;
        while count < budget {
            // One call receives at most a batch; a short one means that none waits.
            let wanted = (budget - count).min(BATCH_MAX);
            let received =
                self.socket
                    .receive(&mut self.received, SLOT_BYTES, &mut self.lengths[..wanted]);
            let received = received.map_err(|error| NicError::gone(&self.name, error))?;
            let slots = self.received.chunks_exact_mut(SLOT_BYTES);
            for (slot, &length) in slots.zip(&self.lengths[..received]) {
                // Never beyond the slot, whatever length was reported.
                let slot = &mut slot[..length.min(SLOT_BYTES)];
                if let Some(frame) = vnet::received(slot) {
                    sink(frame);
                }
            }
            count += received;
            if received < wanted {
                break;
            }
        }
        Ok(count)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        // It can never be sent, so it is dropped: the stack must not keep it.
        if frame.len() > self.capabilities.frame_bytes_max() {
            return Ok(true);
        }
        let header = vnet::encode(frame);
        let length = HEADER_BYTES + frame.len();
        // A large frame is not staged, but must not overtake the frames that are.
        if length > STAGED_BYTES {
            if !self.send_staged()? {
                return Ok(false);
            }
            let pieces = [
                IoSlice::new(&header),
                IoSlice::new(frame.header),
                IoSlice::new(frame.payload[0]),
                IoSlice::new(frame.payload[1]),
            ];
            let sent = self.socket.send_pieces(&pieces);
            return sent.map_err(|error| NicError::gone(&self.name, error));
        }
        if self.staged_count == BATCH_MAX {
            self.send_staged()?;
            // The kernel takes no more frames; this one stays with the stack.
            if self.staged_count == BATCH_MAX {
                return Ok(false);
            }
        }
        // Copied, because the stack may reuse its memory when this call returns.
        let at = self.staged_count * STAGED_BYTES;
        let mut slot = &mut self.staged[at..at + length];
        for piece in [&header, frame.header, frame.payload[0], frame.payload[1]] {
            let (target, rest) = slot.split_at_mut(piece.len());
            target.copy_from_slice(piece);
            slot = rest;
        }
        self.staged_lengths[self.staged_count] = length;
        self.staged_count += 1;
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.send_staged().map(drop)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn has_carrier(&self) -> bool {
        Interface::has_carrier(&self.name)
    }
}

/// Slot for a received frame.
const SLOT_BYTES: usize = (HEADER_BYTES + FRAME_BYTES_MAX).next_multiple_of(64);
/// A frame up to this size, including its header, is copied and sent in a batch.
const STAGED_BYTES: usize = 2048;
