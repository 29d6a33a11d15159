//! Guest memory over userfaultfd: pages of a virtual machine, brought from an image when the guest
//! first touches them.
//!
//! Why here: a restored snapshot runs at once, and takes only the memory that it uses. The protocol
//! is Firecracker's for its snapshots: a client connects to a Unix socket and sends, in one
//! message, a JSON array of regions and the descriptor of its userfaultfd. Nothing is answered.
//!
//! Must stay true: regions lie inside the image and do not overlap, and their number and length are
//! bounded. Pages that the guest gave back read as zeros ever after. A damaged frame is never
//! delivered: its pages are made unreadable. A client ends with its process and holds up no other.
//! Threads: [`Server::run`] keeps the calling one; a client has a few that answer, and one that
//! prefetches.
//! Source: Firecracker's "Handling page faults on snapshot resume"; userfaultfd(2).

mod session;
#[cfg(test)]
mod tests;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use serde::Deserialize;
use session::serve_client;
use sidecore_bare::width::ToUsize;
use sidecore_format::source::BlockSource;
use sidecore_sys::{SysError, local_socket};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Reasons why guest memory is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestMemoryError {
    /// The image is shorter than a page.
    #[error("the image has less than a page of {PAGE_BYTES} bytes")]
    Empty,
    /// Bytes that one fault brings.
    #[error("one fault brings a power of two from 4KiB to 2MiB, not {0} bytes")]
    Around(u64),
    /// The socket.
    #[error("cannot listen at {path}: {source}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server itself.
    #[error("cannot serve: {0}")]
    Serve(#[from] SysError),
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Clients at a time.
    pub clients_max: usize,
    /// Bytes around a fault that are brought with it, a power of two from 4 KiB to 2 MiB.
    pub around_bytes: u64,
    /// Ranges of the image that each client gets from the start, in this order.
    pub prefetch: Vec<Range<u64>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clients_max: 64,
            around_bytes: PAGE_BYTES,
            prefetch: Vec::new(),
        }
    }
}

/// A server of one image to any number of guests.
pub struct Server {
    shared: Arc<Shared>,
    listener: OwnedFd,
    path: PathBuf,
}

struct Shared {
    source: Arc<dyn BlockSource>,
    options: Options,
    /// Readable from the stop on.
    over: OwnedFd,
    clients: Mutex<usize>,
    client_left: Condvar,
}

/// Ends [`Server::run`], from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Ends the server. Guests that run keep the pages that they have, and wait for others.
    pub fn stop(&self) {
        local_socket::poke(self.0.over.as_fd());
    }
}

impl Server {
    /// Listens at a socket, which this user alone may open.
    ///
    /// # Errors
    /// [`GuestMemoryError`]; the socket of a process that lives is not taken.
    pub fn bind(
        source: Arc<dyn BlockSource>,
        path: &Path,
        options: Options,
    ) -> Result<Self, GuestMemoryError> {
        let around = options.around_bytes;
        if !around.is_power_of_two() || !(PAGE_BYTES..=HUGE_PAGE_BYTES).contains(&around) {
            return Err(GuestMemoryError::Around(around));
        }
        if source.size_bytes() < PAGE_BYTES {
            return Err(GuestMemoryError::Empty);
        }
        let listener = local_socket::take_path(path, 0o600, BACKLOG);
        let listener = listener.map_err(|source| GuestMemoryError::Socket {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            shared: Arc::new(Shared {
                source,
                options,
                over: local_socket::poker()?,
                clients: Mutex::new(0),
                client_left: Condvar::new(),
            }),
            listener,
            path: path.to_owned(),
        })
    }

    /// Ends it from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Serves until it is stopped; removes the socket then, and waits for clients' threads, up to
    /// a second.
    ///
    /// # Errors
    /// [`GuestMemoryError::Serve`].
    pub fn run(self) -> Result<(), GuestMemoryError> {
        let served = self.serve_all();
        let _ = std::fs::remove_file(&self.path);
        let end = Instant::now() + GOODBYE;
        let mut clients = self.shared.clients.lock();
        while *clients > 0 {
            let waited = self.shared.client_left.wait_until(&mut clients, end);
            if waited.timed_out() {
                break;
            }
        }
        drop(clients);
        served
    }

    fn serve_all(&self) -> Result<(), GuestMemoryError> {
        let mut ready = Vec::new();
        loop {
            let waited_for = [self.shared.over.as_fd(), self.listener.as_fd()];
            local_socket::poll(&waited_for, &mut ready, TICK)?;
            if ready[0] {
                return Ok(());
            }
            if ready[1] {
                match local_socket::accept(self.listener.as_fd()) {
                    Ok(Some(client)) => self.welcome(client),
                    Ok(None) => {}
                    Err(error) => {
                        // For lack of descriptors, for example: the client stays in the queue.
                        tracing::warn!("cannot accept a client of guest memory: {error}");
                        std::thread::sleep(ACCEPT_PAUSE);
                    }
                }
            }
            self.shared.source.release_idle(IDLE_MIN);
        }
    }

    /// Starts a thread for a client, or rejects it.
    fn welcome(&self, client: OwnedFd) {
        let Some(place) = Place::take(&self.shared) else {
            let most = self.shared.options.clients_max;
            tracing::warn!("turned a client of guest memory away: {most} are served, the limit");
            return;
        };
        let started = Builder::new().name("guest-memory".into()).spawn(move || {
            let shared = &place.0;
            match serve_client(shared, &client) {
                Ok(faults) => tracing::info!("a client of guest memory left: {faults} faults"),
                Err(refusal) => tracing::warn!("a client of guest memory is refused: {refusal}"),
            }
        });
        if let Err(error) = started {
            tracing::warn!("turned a client of guest memory away: no thread: {error}");
        }
    }
}

/// A client's place among those that are served.
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let mut clients = shared.clients.lock();
        (*clients < shared.options.clients_max).then(|| {
            *clients += 1;
            Self(Arc::clone(shared))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.clients.lock() -= 1;
        self.0.client_left.notify_all();
    }
}

/// Reasons to refuse a client.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("it left, or sent nothing for {} s", HANDSHAKE.as_secs())]
    Silent,
    #[error("its message has more than {MESSAGE_BYTES_MAX} bytes")]
    Long,
    #[error("its message is no list of regions: {0}")]
    Json(serde_json::Error),
    #[error("it has {0} regions; 1 to {REGIONS_MAX} are allowed")]
    Count(usize),
    #[error("it sent {0} descriptors in place of one userfaultfd")]
    Descriptors(usize),
    #[error("its descriptor is no userfaultfd: {0}")]
    Descriptor(Errno),
    #[error("pages of {0} bytes; 4096 and 2097152 are allowed")]
    Page(u64),
    #[error("the region at {0:#x} is empty or not of whole pages, or its offset is not")]
    Unaligned(u64),
    #[error("the region at {start:#x} ends past the image's {size_bytes} bytes")]
    Outside { start: u64, size_bytes: u64 },
    #[error("the region at {0:#x} overlaps another one")]
    Overlap(u64),
    #[error("its regions have {0} bytes together, more than the image")]
    Large(u64),
    #[error(transparent)]
    System(#[from] SysError),
}

/// A region as a client describes it.
#[derive(Deserialize)]
struct Mapping {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    /// Of older versions, which put bytes there, too.
    page_size_kib: Option<u64>,
}

impl Mapping {
    fn page_bytes(&self) -> u64 {
        match (self.page_size, self.page_size_kib) {
            (Some(bytes), _) => bytes,
            (None, Some(kib)) if kib < PAGE_BYTES => kib * 1024,
            (None, Some(bytes)) => bytes,
            (None, None) => PAGE_BYTES,
        }
    }
}

/// Memory of a client, and its place in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: u64,
    bytes: u64,
    offset: u64,
    page_bytes: u64,
}

impl Region {
    /// The place in the image of an address inside.
    fn offset_of(&self, address: u64) -> u64 {
        self.offset + (address - self.start)
    }
}

/// The regions of a client, by their addresses.
#[derive(Debug)]
struct Regions(Vec<Region>);

impl Regions {
    /// Checks a client's list against an image of `size_bytes`.
    fn check(mappings: &[Mapping], size_bytes: u64) -> Result<Self, Refusal> {
        if mappings.is_empty() || mappings.len() > REGIONS_MAX {
            return Err(Refusal::Count(mappings.len()));
        }
        let mut regions = Vec::with_capacity(mappings.len());
        for mapping in mappings {
            let page_bytes = mapping.page_bytes();
            if page_bytes != PAGE_BYTES && page_bytes != HUGE_PAGE_BYTES {
                return Err(Refusal::Page(page_bytes));
            }
            let region = Region {
                start: mapping.base_host_virt_addr,
                bytes: mapping.size,
                offset: mapping.offset,
                page_bytes,
            };
            let start = region.start;
            let mut numbers = [start, region.bytes, region.offset].into_iter();
            if region.bytes == 0 || !numbers.all(|it| it.is_multiple_of(page_bytes)) {
                return Err(Refusal::Unaligned(start));
            }
            let end = region.offset.checked_add(region.bytes);
            if end.is_none_or(|end| end > size_bytes) || start.checked_add(region.bytes).is_none() {
                return Err(Refusal::Outside { start, size_bytes });
            }
            regions.push(region);
        }
        regions.sort_unstable_by_key(|region| region.start);
        for pair in regions.windows(2) {
            if pair[0].start + pair[0].bytes > pair[1].start {
                return Err(Refusal::Overlap(pair[1].start));
            }
        }
        // Bounds the books of pages that are given back.
        let lengths = regions.iter().map(|region| region.bytes);
        let all = lengths.fold(0, u64::saturating_add);
        match all <= size_bytes {
            true => Ok(Self(regions)),
            false => Err(Refusal::Large(all)),
        }
    }

    /// The region that has an address, and its number.
    fn find(&self, address: u64) -> Option<(usize, &Region)> {
        let behind = self.0.partition_point(|region| region.start <= address);
        let number = behind.checked_sub(1)?;
        let region = &self.0[number];
        (address - region.start < region.bytes).then_some((number, region))
    }
}

/// Pages that a guest has given back: a bit each, a list for each region, made with its first one.
struct Removed(Vec<Vec<u64>>);

impl Removed {
    fn new(regions: &Regions) -> Self {
        Self(vec![Vec::new(); regions.0.len()])
    }

    /// Takes note of the part of `range` that lies in regions.
    fn add(&mut self, regions: &Regions, range: Range<u64>) {
        for (region, bits) in regions.0.iter().zip(&mut self.0) {
            let start = range.start.max(region.start);
            let end = range.end.min(region.start + region.bytes);
            if start >= end {
                continue;
            }
            let pages = region.bytes / region.page_bytes;
            if bits.is_empty() {
                *bits = vec![0; pages.div_ceil(64).to_usize()];
            }
            let first = (start - region.start) / region.page_bytes;
            let last = (end - region.start).div_ceil(region.page_bytes);
            for page in first..last {
                bits[(page / 64).to_usize()] |= 1 << (page % 64);
            }
        }
    }

    fn has(&self, number: usize, region: &Region, address: u64) -> bool {
        let page = (address - region.start) / region.page_bytes;
        let word = self.0[number].get((page / 64).to_usize());
        word.is_some_and(|word| word >> (page % 64) & 1 == 1)
    }
}

/// Page of ordinary memory.
const PAGE_BYTES: u64 = 4096;
/// Huge page of hugetlbfs.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Most regions of a guest.
const REGIONS_MAX: usize = 256;
/// Longest message of a client.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Clients that wait for the server.
const BACKLOG: i32 = 64;
/// Longest wait for a client's message.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longest wait for clients' threads at the end.
const GOODBYE: Duration = Duration::from_secs(1);
/// Interval at which idle memory is looked for.
const TICK: Duration = Duration::from_secs(1);
/// Frames that were not read for so long leave the cache.
const IDLE_MIN: Duration = Duration::from_secs(10);
/// Pause before a client is accepted again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
