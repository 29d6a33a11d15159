//! TAP: the local kernel at the other end of the wire.
//!
//! Why here: the best way to programs of this machine that use the kernel's sockets. Super-segments
//! of up to 64 KiB cross in one call each way, and neither side sums their bytes. Must stay true:
//! the interface at the kernel's end has its own address, different from ours. Source:
//! Documentation/networking/tuntap.rst.

use super::vnet::{self, HEADER_BYTES};
use super::{
    Capabilities, FRAME_BYTES_MAX, Intake, Interface, Nic, NicError, Outgoing, Received, Whole,
};
use sidecore_sys::interface_features::set_feature;
use sidecore_sys::tun::{Queues, Tap as TapFile, Written};
use sidecore_sys::{SysError, interface};
use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Options of a TAP.
#[derive(Debug, Clone)]
pub struct TapOptions {
    /// Interface name; at most 15 bytes. The kernel replaces `%d` by a number.
    pub name: String,
    /// Our hardware address.
    pub address: [u8; 6],
    /// The largest IP packet on the wire, in bytes.
    pub mtu_bytes: usize,
    /// Offload: super-segments and partial checksums are supported.
    pub offload: bool,
    /// Addresses and prefix lengths at the kernel's end; empty if it is configured elsewhere.
    pub host: Vec<(IpAddr, u8)>,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self {
            name: "sidecore%d".to_owned(),
            address: [0x02, 0x51, 0xde, 0xc0, 0x4e, 0x01],
            mtu_bytes: 1500,
            offload: true,
            host: Vec::new(),
        }
    }
}

/// A TAP.
#[derive(Debug)]
pub struct Tap {
    file: TapFile,
    capabilities: Capabilities,
    buffer: Box<[u8]>,
    /// Frames that the kernel refused because its end is down or they are malformed.
    refused: u64,
}

impl Tap {
    /// Creates the interface, or opens a persistent one; waits up to 2 s for one that was just
    /// closed. Configures the kernel's end if that is permitted.
    ///
    /// # Errors
    /// [`NicError::Sys`] with the remedy.
    pub fn open(options: &TapOptions) -> Result<Self, NicError> {
        Ok(Self::open_queues(options, 1)?.remove(0))
    }

    /// Opens `count` queues, one per engine: the kernel sends replies of a flow to the queue that
    /// the flow was sent by, and spreads new flows by a hash.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_queues(options: &TapOptions, count: usize) -> Result<Vec<Self>, NicError> {
        let queues = match count {
            1 => Queues::One,
            _ => Queues::Several,
        };
        let mut files = vec![open_patiently(options, queues)?];
        // The actual name, if the kernel has chosen a number.
        let named = TapOptions {
            name: files[0].name().to_owned(),
            ..options.clone()
        };
        while files.len() < count {
            files.push(open_patiently(&named, queues)?);
        }
        // After all queues are open, so that the first frames are spread over all of them.
        configure(&named)?;
        let taps = files.into_iter().map(|file| Self::over(file, &named));
        Ok(taps.collect())
    }

    fn over(file: TapFile, options: &TapOptions) -> Self {
        Self {
            capabilities: Capabilities {
                address: options.address,
                mtu_bytes: options.mtu_bytes,
                super_segment_bytes: if options.offload { 65_535 } else { 0 },
                completes_checksums: true,
                cuts_datagrams: options.offload && file.cuts_datagrams(),
                merges_received: options.offload,
            },
            file,
            // The longest frame that the kernel merges, so that none is cut.
            buffer: vec![0; HEADER_BYTES + FRAME_BYTES_MAX].into(),
            refused: 0,
        }
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Frames that the kernel refused because its end is down or they are malformed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl Nic for Tap {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        // One loop for both, because the read is the same system call.
        self.receive_split(budget, &mut Whole(sink))
    }

    fn splits(&self) -> bool {
        self.capabilities.merges_received
    }

    fn receive_split(&mut self, budget: usize, intake: &mut dyn Intake) -> Result<usize, NicError> {
        let mut bytes_read = 0;
        for count in 0..budget {
            // The constant has the reason: acknowledgments wait for the end of the round.
            if bytes_read >= ROUND_BYTES {
                return Ok(count);
            }
            // If a payload is expected, the kernel copies it to the session's buffer directly.
            let (read, head_bytes) = match intake.room() {
                None => (self.file.read(&mut self.buffer), usize::MAX),
                Some(room) => {
                    // The expected headers have a known length, so the payload begins at a known
                    // place.
                    let head_bytes = HEADER_BYTES + room.header_bytes;
                    let [first, second] = room.payload;
                    let mut pieces = [
                        IoSliceMut::new(&mut self.buffer[..head_bytes]),
                        IoSliceMut::new(first),
                        IoSliceMut::new(second),
                    ];
                    (self.file.read_pieces(&mut pieces), head_bytes)
                }
            };
            let Some(length) = read.map_err(|error| NicError::gone(self.file.name(), error))?
            else {
                return Ok(count);
            };
            bytes_read += length;
            let read = self.buffer.get_mut(..length);
            // A shorter frame lies in the buffer as a whole.
            match read.and_then(vnet::received) {
                Some(frame) if length > head_bytes => intake.take_split(frame),
                Some(frame) => intake.take(frame),
                None => {}
            }
        }
        Ok(budget)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        if frame.len() > self.capabilities.frame_bytes_max() {
            self.refused += 1;
            return Ok(true);
        }
        let header = vnet::encode(frame);
        let pieces = [
            IoSlice::new(&header),
            IoSlice::new(frame.header),
            IoSlice::new(frame.payload[0]),
            IoSlice::new(frame.payload[1]),
        ];
        // Empty pieces would cost the kernel a look each.
        let used = 2
            + usize::from(!frame.payload[0].is_empty() || !frame.payload[1].is_empty())
            + usize::from(!frame.payload[1].is_empty());
        let written = self.file.write(&pieces[..used]);
        match written.map_err(|error| NicError::gone(self.file.name(), error))? {
            Written::Sent => Ok(true),
            // The stack keeps the frame and tries again in the next round.
            Written::NoRoom => Ok(false),
            Written::Refused => {
                self.refused += 1;
                Ok(true)
            }
        }
    }

    fn flush(&mut self) -> Result<(), NicError> {
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn has_carrier(&self) -> bool {
        Interface::has_carrier(self.file.name())
    }
}

/// Configures the interface at the kernel's end.
fn configure(options: &TapOptions) -> Result<(), NicError> {
    let name = &options.name;
    let failed = |what: &str| {
        let what = format!("cannot {what} the TAP `{name}`; root or CAP_NET_ADMIN is needed");
        move |error| NicError::sys(what, error)
    };
    // Set only if it differs: a user without privileges may open a TAP that root has made.
    if interface::mtu_bytes(name).is_ok_and(|now| now != options.mtu_bytes) {
        interface::set_mtu(name, options.mtu_bytes).map_err(failed("set the MTU of"))?;
    }
    // The kernel drops frames beyond this. If setting it is refused, retransmissions increase.
    if interface::queue_frames(name).is_ok_and(|now| now < QUEUE_FRAMES) {
        interface::set_queue_frames(name, QUEUE_FRAMES).ok();
    }
    for &(address, prefix_bits) in &options.host {
        interface::add_address(name, address, prefix_bits)
            .map_err(failed(&format!("give {address}/{prefix_bits} to")))?;
    }
    // Frames of the kernel's programs are read next by the engine on another core. A copy through
    // the program's cache would make each line move back from our cache when its memory is reused.
    // If this is refused (no privilege, an older kernel), it is only slower.
    set_feature(name, "tx-nocache-copy", true).ok();
    interface::set_up(name).map_err(failed("set up"))
}

/// A TAP that was just closed is busy for a while.
fn open_patiently(options: &TapOptions, queues: Queues) -> Result<TapFile, NicError> {
    let begun = Instant::now();
    loop {
        let opened = TapFile::open(&options.name, HEADER_BYTES as u8, options.offload, queues);
        let error = match opened {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        let kind = match &error {
            SysError::Call { source, .. } => source.raw_os_error(),
            _ => None,
        };
        let name = &options.name;
        // Another process may have closed it just now: tried again for a while.
        let remedy = match kind {
            Some(EBUSY) if begun.elapsed() < BUSY_WAIT_MAX => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            Some(EBUSY) => {
                "another program has it, and an engine hands nothing over: end that one, or choose \
                 another name and address"
            }
            Some(EPERM | EACCES) => {
                "root or CAP_NET_ADMIN is needed; or let root make it once: `ip tuntap add \
                 dev NAME mode tap vnet_hdr user USER`"
            }
            Some(ENOENT | ENODEV | ENXIO) => "the kernel has no TAP; try `modprobe tun`",
            Some(EINVAL) if queues == Queues::Several => {
                "an interface of another kind has that name, or a TAP with one queue; remove it, \
                 make it with `multi_queue`, or choose another name"
            }
            Some(EINVAL) => "an interface of another kind has that name; choose another",
            _ => "see `ip link`",
        };
        return Err(NicError::sys(
            format!("cannot open the TAP `{name}`: {remedy}"),
            error,
        ));
    }
}

/// A round stops receiving after this many bytes. Received data is acknowledged at the end of a
/// round, and a kernel with an exhausted window would wait for it. With two super-segments a round,
/// the kernel's core and ours work at the same time, and the data stays in this core's cache until
/// the application reads it.
const ROUND_BYTES: usize = 64 << 10;
/// Minimum queue of frames to us: a thousand sessions that send requests at the same time, their
/// acknowledgments, and a window of data. Linux creates TAPs with 500.
const QUEUE_FRAMES: usize = 4096;
const BUSY_WAIT_MAX: Duration = Duration::from_secs(2);
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ENXIO: i32 = 6;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
