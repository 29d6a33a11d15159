//! Frames of a running engine's NIC, as `sidecore net capture` writes them.
//!
//! The engine copies frames that pass a [`Filter`] into a ring of records in shared memory,
//! whatever its NIC is; a reader in another process ([`record`]) writes them as pcapng. Both
//! directions are in it, super-segments whole; a checksum that the NIC completes is not yet.
//!
//! Only the engine's own user and root read frames. The engine's end is `sock/taps.rs`, with the
//! layout of the ring. Source: draft-ietf-opsawg-pcapng, sections 4.1 to 4.6.

mod file;
pub(crate) mod filter;

pub use file::destination;
pub use filter::Filter;
pub(crate) use filter::{is_within, parse_prefix};

use crate::sock::client::siblings;
use crate::sock::control::{PROTOCOL, SockError};
use crate::sock::layout::KIND_CAPTURE;
use crate::sock::taps::{
    ADMITTED, DROPPED, READ, READERS_MAX, RECORD_BYTES, RING, RING_BYTES, SEGMENT_BYTES, SENT,
    SIZES, SKIP, STARTED, TEXT, WRITTEN, word,
};
use serde::Serialize;
use sidecore_attach::protocol::KIND_ATTACH;
use sidecore_attach::{Introduction, Trust};
use sidecore_bare::width::{ToU64 as _, ToUsize as _};
use sidecore_sys::{SharedMap, Sharing, clock, local_socket};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Options of [`record`].
#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// The frames that are wanted ([`Filter::parse`]).
    pub filter: String,
    /// Bytes that are kept of each, at most 262,144.
    pub frame_bytes_max: u32,
    /// The number of frames after which it ends.
    pub frames_max: Option<u64>,
    /// Ends it after this time.
    pub time_max: Option<Duration>,
}

/// Counts of a capture's file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CaptureSummary {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames, as far as they were kept.
    pub bytes: u64,
    /// Further frames that passed the filter and were lost, because this reader was too slow.
    pub dropped: u64,
}

impl CaptureSummary {
    /// The counts of the file of this name, on a line for people.
    #[must_use]
    pub fn line(&self, name: &str) -> String {
        let (frames, bytes, dropped) = (self.frames, self.bytes, self.dropped);
        format!("{name}: {frames} frames, {bytes} bytes; {dropped} more were lost")
    }
}

/// Why a capture failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// An expression that is no filter.
    #[error(
        "filter: {reason}; write `host ADDRESS`, `net PREFIX/BITS`, `port N`, `portrange A-B` \
         (each after `src` or `dst`, too), `proto N`, `tcp`, `udp`, `icmp`, `icmp6`, `arp`, `ip`, \
         `ip6` (each before one of these, too), with `and`, `or`, `not` and parentheses between \
         them"
    )]
    Filter {
        /// The fault, and its word.
        reason: String,
    },
    /// The engine.
    #[error(transparent)]
    Sock(#[from] SockError),
    /// The file.
    #[error("cannot write the capture: {0}")]
    Write(#[from] io::Error),
    /// A file that cannot be made.
    #[error("cannot write {}", path.display())]
    Create {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Standard output that was to be several files.
    #[error("--file-bytes divides files; write to one")]
    Divided,
}

/// Writes the frames of the engines at `path` to `file` as pcapng, until `stop` or a limit of the
/// options. It also ends, without an error, when the engines do, or when the file is a pipe that no
/// process reads any more. `begun` is called once frames are copied. Blocks.
///
/// # Errors
/// [`CaptureError`].
pub fn record(
    path: &Path,
    trust: &Trust,
    options: &CaptureOptions,
    file: impl Write,
    stop: &AtomicBool,
    begun: impl FnOnce(),
) -> Result<CaptureSummary, CaptureError> {
    // Refused here, with its fault: the engine only cuts a bad one off.
    Filter::parse(&options.filter)?;
    let sockets = siblings(path, trust)?;
    let readers = sockets
        .iter()
        .map(|socket| Reader::attach(socket, trust, options));
    let mut readers = readers.collect::<Result<Vec<_>, SockError>>()?;
    let mut file = PcapNg {
        file,
        // Of the wall clock, at the zero of the engine's.
        epoch_ns: wall_ns().saturating_sub(clock::now_ns()),
        summary: CaptureSummary::default(),
    };
    let ran = copy(&mut readers, options, &mut file, stop, begun);
    match ran {
        Err(CaptureError::Write(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        ran => ran?,
    }
    Ok(file.summary)
}

fn copy(
    readers: &mut [Reader],
    options: &CaptureOptions,
    file: &mut PcapNg<impl Write>,
    stop: &AtomicBool,
    begun: impl FnOnce(),
) -> Result<(), CaptureError> {
    file.begin(readers, options.frame_bytes_max)?;
    // `begun` promises that no frame is missed from then on.
    for reader in &*readers {
        reader.wait_until_admitted()?;
    }
    begun();
    let until = options.time_max.map(|time| Instant::now() + time);
    let frames_max = options.frames_max.unwrap_or(u64::MAX);
    let mut is_last = false;
    loop {
        // Looked at first: frames that were copied before are written all the same.
        is_last |= stop.load(Ordering::Acquire)
            || until.is_some_and(|until| Instant::now() >= until)
            || readers.iter().all(Reader::is_over);
        let before = file.summary.frames;
        for (index, reader) in readers.iter_mut().enumerate() {
            reader.drain(index, file, frames_max)?;
        }
        if is_last || file.summary.frames == frames_max {
            break;
        }
        if file.summary.frames == before {
            std::thread::sleep(NAP);
        } else {
            // Others may read the file while it grows.
            file.file.flush()?;
        }
    }
    Ok(file.end(readers)?)
}

/// One engine's frames.
struct Reader {
    path: PathBuf,
    socket: OwnedFd,
    map: SharedMap,
    read: u64,
    frame: Vec<u8>,
}

impl Reader {
    fn attach(path: &Path, trust: &Trust, options: &CaptureOptions) -> Result<Self, SockError> {
        let question = PROTOCOL.question(KIND_CAPTURE, &[]);
        let asked =
            Introduction::begin_within(PROTOCOL, path, trust, &question, ANSWER_BYTES, PATIENCE)?;
        let answer = asked.wait(PATIENCE)?;
        let file = answer.descriptors.into_iter().next();
        let Some(file) = file.filter(|_| answer.kind == KIND_ATTACH) else {
            return Err(asked.nonsense().into());
        };
        let map = SharedMap::open(file, SEGMENT_BYTES, Sharing::ReadWrite)?;
        let memory = map.slice();
        memory.write_at(TEXT, options.filter.as_bytes());
        let text = options.filter.len().to_u64() << 32;
        let kept = u64::from(options.frame_bytes_max);
        word(memory, SIZES).store(text | kept, Ordering::Relaxed);
        // Release: the engine's Acquire sees the filter.
        word(memory, STARTED).store(1, Ordering::Release);
        Ok(Self {
            path: path.to_owned(),
            socket: asked.into_socket(),
            map,
            read: 0,
            frame: Vec::new(),
        })
    }

    /// Waits until the engine's loop copies frames.
    fn wait_until_admitted(&self) -> Result<(), SockError> {
        let begun = Instant::now();
        while word(self.map.slice(), ADMITTED).load(Ordering::Acquire) == 0 {
            // An engine with too many readers hangs up instead of admitting one.
            if self.is_over() {
                let reason = format!("frames already have {READERS_MAX} readers; end one");
                return Err(SockError::Refused { reason });
            }
            if begun.elapsed() > PATIENCE {
                return Err(SockError::Silent {
                    socket: self.path.clone(),
                    waited_ms: u64::try_from(PATIENCE.as_millis()).unwrap_or_default(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// True if the engine is gone, or has cut this reader off.
    fn is_over(&self) -> bool {
        local_socket::is_hung_up(self.socket.as_fd())
    }

    fn dropped(&self) -> u64 {
        word(self.map.slice(), DROPPED).load(Ordering::Relaxed)
    }

    /// Writes the records that are there, at most as many as the ring holds.
    fn drain(
        &mut self,
        index: usize,
        file: &mut PcapNg<impl Write>,
        frames_max: u64,
    ) -> Result<(), CaptureError> {
        let memory = self.map.slice();
        // Acquire: partner of the engine's Release, before which its records are whole.
        let written = word(memory, WRITTEN).load(Ordering::Acquire);
        while self.read < written && file.summary.frames < frames_max {
            let place = (self.read % RING_BYTES.to_u64()).to_usize();
            let mut header = [0; RECORD_BYTES];
            memory.read_at(RING + place, &mut header);
            let number = |at: usize| {
                let bytes = header[at..].first_chunk().copied().unwrap_or_default();
                u32::from_le_bytes(bytes)
            };
            let (whole, kept, flags) = (number(0).to_usize(), number(4).to_usize(), number(12));
            // The engine is another process: a record is checked before it is used.
            let is_sound = whole >= RECORD_BYTES
                && whole.is_multiple_of(RECORD_BYTES)
                && whole <= RING_BYTES - place
                && kept <= whole - RECORD_BYTES;
            if !is_sound {
                let socket = self.path.clone();
                return Err(SockError::Nonsense { socket }.into());
            }
            if flags & SKIP == 0 {
                self.frame.resize(kept, 0);
                memory.read_at(RING + place + RECORD_BYTES, &mut self.frame);
                let time = header[16..24].first_chunk().copied().unwrap_or_default();
                let at = (index, u64::from_le_bytes(time));
                file.frame(at, flags, number(8), &self.frame)?;
            }
            self.read += whole.to_u64();
            // Release: all bytes are copied before the engine may write over them.
            word(memory, READ).store(self.read, Ordering::Release);
        }
        Ok(())
    }
}

/// A file of frames: draft-ietf-opsawg-pcapng.
struct PcapNg<W> {
    file: W,
    epoch_ns: u64,
    summary: CaptureSummary,
}

impl<W: Write> PcapNg<W> {
    /// The section, and an interface for each engine.
    fn begin(&mut self, readers: &[Reader], frame_bytes_max: u32) -> io::Result<()> {
        let mut body = BYTE_ORDER.to_le_bytes().to_vec();
        // Version 1.0 of the format.
        body.extend([1, 0, 0, 0]);
        // The length of the section is not known.
        body.extend([0xff; 8]);
        option(&mut body, SHB_USERAPPL, b"sidecore net capture");
        self.block(SECTION, body)?;
        for reader in readers {
            let mut body = [LINK_ETHERNET, 0, 0, 0].to_vec();
            body.extend(frame_bytes_max.to_le_bytes());
            option(
                &mut body,
                IF_NAME,
                reader.path.display().to_string().as_bytes(),
            );
            option(&mut body, IF_TSRESOL, &[NANOSECONDS]);
            self.block(INTERFACE, body)?;
        }
        self.file.flush()
    }

    fn frame(
        &mut self,
        (interface, time_ns): (usize, u64),
        flags: u32,
        bytes: u32,
        kept: &[u8],
    ) -> io::Result<()> {
        let mut body = length(interface).to_le_bytes().to_vec();
        body.extend(halves(self.epoch_ns + time_ns));
        body.extend(length(kept.len()).to_le_bytes());
        body.extend(bytes.to_le_bytes());
        body.extend(kept);
        // Packet data are padded to 32 bits (section 4.3).
        body.resize(body.len().next_multiple_of(4), 0);
        let direction = if flags & SENT == 0 { INBOUND } else { OUTBOUND };
        option(&mut body, EPB_FLAGS, &direction.to_le_bytes());
        self.block(PACKET, body)?;
        self.summary.frames += 1;
        self.summary.bytes += kept.len().to_u64();
        Ok(())
    }

    /// Statistics of each interface.
    fn end(&mut self, readers: &[Reader]) -> io::Result<()> {
        let now = halves(self.epoch_ns + clock::now_ns());
        for (index, reader) in readers.iter().enumerate() {
            self.summary.dropped += reader.dropped();
            let mut body = length(index).to_le_bytes().to_vec();
            body.extend(now);
            option(&mut body, ISB_IFDROP, &reader.dropped().to_le_bytes());
            self.block(STATISTICS, body)?;
        }
        self.file.flush()
    }

    /// Writes a block, whose options end here if it has any, in one piece.
    fn block(&mut self, kind: u32, body: Vec<u8>) -> io::Result<()> {
        // The length stands at both ends, so that files can be read backwards (section 3.1).
        let whole = length(body.len() + 16).to_le_bytes();
        let block = [&kind.to_le_bytes(), &whole, &body[..], &[0; 4], &whole].concat();
        self.file.write_all(&block)
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(OPTION_BYTES_MAX)];
    body.extend(code.to_le_bytes());
    body.extend(u16::try_from(value.len()).unwrap_or_default().to_le_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// A time as its upper and its lower half.
fn halves(time_ns: u64) -> [u8; 8] {
    // The upper half comes first, each half in the section's order of bytes.
    time_ns.rotate_left(32).to_le_bytes()
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

/// Time between two looks at an empty ring.
const NAP: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_BYTES: usize = 4096;
/// Blocks and options of draft-ietf-opsawg-pcapng.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const LINK_ETHERNET: u8 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const NANOSECONDS: u8 = 9;
const EPB_FLAGS: u16 = 2;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
const ISB_IFDROP: u16 = 5;
const OPTION_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests;
