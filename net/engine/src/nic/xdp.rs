//! AF_XDP: one queue of a network interface, through memory shared with the kernel.
//!
//! Why here: for users' real NICs; the highest rate of small packets. No segmentation, and the
//! state of a received checksum is unknown. On veth the sender's kernel leaves checksums incomplete
//! without reporting it: disable that (`ethtool -K PEER tx off`), or declare it by
//! [`XdpOptions::checksum`]. Must stay true: frames of other queues stay with the kernel. Source:
//! Documentation/networking/af_xdp.rst.

use super::checksum;
use super::{
    Capabilities, ETHERNET_BYTES_MAX, Interface, Nic, NicError, Outgoing, Received,
    ReceivedChecksum, TransmitChecksum,
};
use sidecore_sys::SysError;
use sidecore_sys::xdp::{FRAME_BYTES_MAX, XdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

pub use sidecore_sys::xdp::Mode;

/// Options of an AF_XDP queue.
#[derive(Debug, Clone)]
pub struct XdpOptions {
    /// The interface.
    pub name: String,
    /// The queue, counted from 0.
    pub queue: u32,
    /// Copy mode of the socket.
    pub mode: Mode,
    /// Our hardware address; none for the interface's own. A different one needs the interface to
    /// be promiscuous (`ip link set NAME promisc on`) on NICs that filter.
    pub address: Option<[u8; 6]>,
    /// State of received checksums: [`ReceivedChecksum::Unknown`] unless all senders are kernels of
    /// this machine that leave them partial.
    pub checksum: ReceivedChecksum,
}

/// A queue.
#[derive(Debug)]
pub struct Xdp {
    socket: XdpSocket,
    name: String,
    capabilities: Capabilities,
    checksum: ReceivedChecksum,
}

impl Xdp {
    /// Opens the queue; waits up to 2 s for one that was just closed.
    ///
    /// # Errors
    /// [`NicError::Sys`] with the remedy.
    pub fn open(options: &XdpOptions) -> Result<Self, NicError> {
        Ok(Self::open_queues(options, 1)?.remove(0))
    }

    /// Opens `count` queues from [`XdpOptions::queue`] on, one per engine; the device spreads flows
    /// over them (receive side scaling, configured by `ethtool -X`).
    ///
    /// # Errors
    /// As [`Self::open`]; the remedy if the interface does not have that many queues.
    pub fn open_queues(options: &XdpOptions, count: usize) -> Result<Vec<Self>, NicError> {
        let name = &options.name;
        let Interface {
            address: own,
            mtu_bytes,
            ..
        } = Interface::find(name)?;
        let sockets = open_patiently(options, count)?;
        let queue = |socket| Self {
            socket,
            name: name.clone(),
            capabilities: Capabilities {
                address: options.address.unwrap_or(own),
                // A frame has to fit one slot of the shared memory, whatever the interface allows.
                mtu_bytes: mtu_bytes.min(FRAME_BYTES_MAX - ETHERNET_BYTES_MAX),
                super_segment_bytes: 0,
                completes_checksums: false,
                cuts_datagrams: false,
                merges_received: options.checksum == ReceivedChecksum::Partial,
            },
            checksum: options.checksum,
        };
        Ok(sockets.into_iter().map(queue).collect())
    }
}

impl Nic for Xdp {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let checksum = self.checksum;
        Ok(self.socket.receive(budget, |bytes| {
            sink(Received {
                bytes,
                checksum,
                segment_bytes: None,
            });
        }))
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        // It can never be sent, so it is dropped: the stack must not keep it.
        if frame.len() > self.capabilities.frame_bytes_max().min(FRAME_BYTES_MAX) {
            return Ok(true);
        }
        let pieces = [frame.header, frame.payload[0], frame.payload[1]];
        if let TransmitChecksum::Partial { start, offset } = frame.checksum {
            // Our capabilities do not request this; a frame with a partial checksum is served
            // anyway.
            let whole = checksum::complete(frame, start, offset);
            return Ok(self.socket.transmit(&[&whole]));
        }
        Ok(self.socket.transmit(&pieces))
    }

    fn flush(&mut self) -> Result<(), NicError> {
        let flushed = self.socket.flush();
        flushed.map_err(|error| NicError::gone(&self.name, error))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn has_carrier(&self) -> bool {
        Interface::has_carrier(&self.name)
    }
}

/// A queue whose last user has just ended is busy for a while.
fn open_patiently(options: &XdpOptions, count: usize) -> Result<Vec<XdpSocket>, NicError> {
    let begun = Instant::now();
    let name = &options.name;
    loop {
        let queues = options.queue..options.queue.saturating_add(count as u32);
        let error = match XdpSocket::open_queues(name, queues.clone(), options.mode) {
            Ok(sockets) => return Ok(sockets),
            Err(error) => error,
        };
        let number = match &error {
            SysError::Call { source, .. } => source.raw_os_error(),
            _ => None,
        };
        let remedy = match number {
            // The kernel frees a queue some time after its socket was closed.
            Some(EBUSY) if begun.elapsed() < BUSY_WAIT_MAX => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            Some(EBUSY) => {
                "another program has it (`ip link` shows `xdp`), and an engine hands nothing over: \
                 end that one, or choose another interface"
            }
            Some(EPERM | EACCES) => "root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, are needed",
            Some(EOPNOTSUPP) => "its driver cannot; use the mode `generic`",
            Some(EINVAL) => "it has no such queue; `ethtool -l` tells how many it has",
            _ => "see `ip link`",
        };
        let what = match count {
            1 => format!("cannot take queue {} of `{name}`: {remedy}", queues.start),
            _ => format!("cannot take queues {queues:?} of `{name}`: {remedy}"),
        };
        return Err(NicError::sys(what, error));
    }
}

const BUSY_WAIT_MAX: Duration = Duration::from_secs(2);
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
