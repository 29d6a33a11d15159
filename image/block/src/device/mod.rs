//! The block device over an image: reads come in, engines decompress frames, bytes go out.
//!
//! [`Device`] connects the pure parts and owns all that is not pure: the mapped image, the slots'
//! bytes, the locks.
//!
//! - `cache` (pure): which frame is in which slot; `pins`: its part that needs no lock.
//! - `growth`: touches the slots' memory before a reader needs it.
//! - `readahead` (pure): detects sequential readers and sizes their read-ahead.
//! - `fetched`: frames of a remote image, fetched before an engine is requested.
//! - `inflate`: the kernel that runs on an engine.
//! - [`stages`]: time of each stage of a block's read, for the papers' table.
//!
//! **Parallelism follows the load.** A read of one frame runs on the engine of the caller's own
//! core. A read of several frames is a loop that the scheduler splits over the idle engines: one
//! reader gets all engines, many readers get one each. Read-ahead is background work of the engines
//! that are left over.
//!
//! **One reader decompresses, others wait.** A slot being filled is write-locked before the cache
//! says so. A reader that finds it filling takes the read lock, and thus waits for exactly that
//! frame. The reader that fills it waits only for an engine, and a reader that has an engine waits
//! for nothing, so no cycle of waits is possible. No reader waits for a slot: a reader that finds
//! none decompresses past the cache.
//!
//! Must stay true: bytes are delivered only after the frame's check (its compressed bytes', or its
//! decompressed bytes' as a whole); memory stays within `memory_bytes`.

mod cache;
mod fetched;
mod growth;
mod inflate;
mod pins;
mod read;
mod readahead;
pub mod stages;

#[cfg(test)]
mod core_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod tests;

use crate::format::{Format, FormatError, Index};
use crate::image::Image;
use crate::overlay::identity::Identity;
use crate::source::{BlockSource, Deliver, Extent, ReadError};
use crate::trust::digits_of;
use cache::{Cache, CacheCounts};
use growth::Growth;
use parking_lot::{Mutex, RwLock};
use pins::Pins;
use readahead::ReadAhead;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_engine::page_advice::PageAdvice;
use sidecore_offload::{Background, Pool};
use sidecore_sched::ClassId;
use sidecore_sys::{FileMap, HugePages, RegionOptions, Slab, SlotBuf, region};
use stages::Stages;
use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The class under which the scheduler measures the cost of decompressing frames.
pub(crate) const INFLATE_CLASS: ClassId = ClassId(1);

/// The most that [`Device::read_with`] serves in one piece.
const READ_WITH_BYTES_MAX: usize = 1 << 20;

/// Most frames of one such read; larger reads go through a buffer.
const PIECES_MAX: usize = 260;

/// Frames and runs of holes that [`Device::extent`] looks through in one call.
const EXTENT_FRAMES_MAX: u64 = 65_536;

/// Damaged frames that are remembered so that each is logged once.
const LOGGED_FRAMES_MAX: usize = 1024;

/// Memory of an engine in addition to its slot: the local store in a page of 2 MiB, the codecs'
/// tables, the stack.
const ENGINE_BYTES: u64 = 5 << 19;

/// Other memory of the process: its heap, and the stacks and buffers of the serving threads.
const PROCESS_BYTES: u64 = 5 << 20;

/// Options of [`Device::open`].
#[derive(Debug, Clone, Copy)]
pub struct DeviceConfig {
    /// The most memory in bytes that the device and its process hold: index, cache, engines, heap
    /// and stacks, and the image where it is mapped (although its pages belong to the page cache).
    /// The program's own pages, which all its processes share, do not count. A read of several
    /// frames that finds too few slots additionally holds its own length, until it is delivered.
    pub memory_bytes: u64,
    /// Read-ahead of a sequential reader in bytes; 0 turns it off.
    pub read_ahead_bytes: u64,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            memory_bytes: 128 << 20,
            read_ahead_bytes: 2 << 20,
        }
    }
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The file is no readable image.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The system refused memory or a map.
    #[error("cannot map the image: {0}")]
    System(#[from] sidecore_sys::SysError),
    /// The operating system refused something on the file.
    #[error("cannot read the image: {0}")]
    Io(#[from] std::io::Error),
    /// `memory_bytes` does not even hold the index and a few frames.
    #[error(
        "this image needs at least {needed_bytes} bytes of memory (index {index_bytes}, {engines} \
         engines, {slots_min} frames of {frame_bytes}), --memory allows {memory_bytes}; allow \
         more, or take fewer --engines"
    )]
    Memory {
        /// The least that suffices.
        needed_bytes: u64,
        /// The part of it for the index.
        index_bytes: u64,
        /// Number of engines, each of which takes memory, too.
        engines: u64,
        /// The smallest number of frames in the cache.
        slots_min: u64,
        /// Size of each of these frames.
        frame_bytes: u64,
        /// The limit given.
        memory_bytes: u64,
    },
}

/// A compressed image, opened for reading. Share it behind an [`Arc`].
pub struct Device {
    index: Index,
    image: Image,
    /// The image, if all of it may stay mapped; see `inflate`.
    map: Option<FileMap>,
    pool: Arc<Pool>,
    cache: Mutex<Cache>,
    /// The cache's, which readers release without its lock.
    pins: Arc<Pins>,
    growth: Arc<Growth>,
    slots: Box<[RwLock<SlotBuf>]>,
    readers: Mutex<ReadAhead>,
    read_ahead_bytes: u64,
    zeros: Box<[u8]>,
    stages: Stages,
    logged: Mutex<HashSet<u64>>,
    opened: Instant,
    background: OnceLock<Arc<dyn Background>>,
    trace: OnceLock<Arc<dyn TraceSink>>,
}

/// Listener to a device's first reads of frames; see [`Device::trace_into`].
pub trait TraceSink: Send + Sync {
    /// These frames are being read. Called by any reading thread, before the bytes are there; must
    /// return at once.
    fn touched(&self, frames: std::ops::Range<u64>);
}

impl Device {
    /// Opens `image`, local or remote, on the engines of `pool`. Blocks while the tables are read.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn open(
        image: impl Into<Image>,
        pool: Arc<Pool>,
        config: DeviceConfig,
    ) -> Result<Arc<Self>, DeviceError> {
        let image = image.into();
        let index = image.index(false)?;
        Self::open_indexed(image, index, pool, config)
    }

    /// As [`Self::open`], with the index that was read from `image`.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn open_indexed(
        image: impl Into<Image>,
        index: Index,
        pool: Arc<Pool>,
        config: DeviceConfig,
    ) -> Result<Arc<Self>, DeviceError> {
        index.check_unlocked()?;
        let budget = Budget::divide(&index, pool.engines().to_u64(), config.memory_bytes)?;
        Self::open_divided(image, index, pool, &budget, config.read_ahead_bytes)
    }

    fn open_divided(
        image: impl Into<Image>,
        index: Index,
        pool: Arc<Pool>,
        budget: &Budget,
        read_ahead_bytes: u64,
    ) -> Result<Arc<Self>, DeviceError> {
        let frame_bytes = index.frame_bytes().to_usize();
        let slots = budget.slots.to_usize();
        // Not touched now: a device that is never read should not take its cache's memory. Readers
        // do not touch it either: see `growth`.
        let options = RegionOptions {
            huge: cache_pages(frame_bytes * slots),
            lock: false,
            touch: false,
        };
        let slab = Slab::new(frame_bytes, slots, options)?;
        let slots: Box<[_]> = std::iter::from_fn(|| slab.take())
            .map(RwLock::new)
            .collect();
        // All or nothing: a map of a part would have to be moved while reading.
        let image = image.into();
        let map = match (image.file(), usize::try_from(index.stored_bytes())) {
            (Some(file), Ok(bytes)) if budget.maps => Some(FileMap::new(file, 0, bytes)?),
            _ => None,
        };
        // A stream that reads ahead over the whole cache pushes out what it is about to read.
        let read_ahead_bytes = read_ahead_bytes.min(budget.slots * frame_bytes.to_u64() / 4);
        // The need of the largest reads and of the read-ahead of a few streams at once.
        let ahead_slots = read_ahead_bytes.to_usize() / frame_bytes;
        let open = budget.slots_min.to_usize() + OPEN_STREAMS * ahead_slots;
        let cache = Cache::with_open(slots.len(), open);
        let device = Arc::new(Self {
            pins: Arc::clone(cache.pins()),
            cache: Mutex::new(cache),
            growth: Arc::default(),
            zeros: vec![0; frame_bytes].into(),
            index,
            image,
            map,
            pool,
            slots,
            readers: Mutex::new(ReadAhead::default()),
            read_ahead_bytes,
            stages: Stages::default(),
            logged: Mutex::new(HashSet::with_capacity(16)),
            opened: Instant::now(),
            background: OnceLock::new(),
            trace: OnceLock::new(),
        });
        // Weak: the pool may hold posted work longer than any caller holds the device.
        let ahead: Arc<dyn Background> = Arc::new(Ahead(Arc::downgrade(&device)));
        let _ = device.background.set(ahead);
        if let Err(error) = device.growth.start(Arc::downgrade(&device)) {
            tracing::warn!("the cache takes its memory while it is read: no thread: {error}");
            // No other thread would open them.
            device.cache.lock().open_slots(device.slots.len());
        }
        Ok(device)
    }

    /// The image's index.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The image's compressed bytes.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The engines that serve it.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Counters of the cache since the start.
    pub(crate) fn cache_counts(&self) -> CacheCounts {
        self.cache.lock().counts()
    }

    /// Different frames that were found damaged; the first 1,024 are remembered.
    #[must_use]
    pub fn damaged_frames(&self) -> usize {
        self.logged.lock().len()
    }

    /// Time per block by stage, since the start.
    #[must_use]
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Slots of the cache, each of one frame.
    #[must_use]
    pub fn cache_slots(&self) -> usize {
        self.slots.len()
    }

    /// Evicts every cached frame that no reader has pinned and gives its memory back; for benches
    /// that compare cold with warm caches.
    pub fn drop_cache(&self) {
        self.release(Duration::ZERO, usize::MAX);
        if let Some(map) = &self.map {
            map.drop_resident();
        }
    }

    /// The extent of data or hole that begins at `offset` of a raw image.
    fn file_extent(&self, offset: u64) -> Extent {
        use rustix::fs::{SeekFrom, seek};
        let end = self.index.raw_bytes();
        let Some(file) = self.image.file() else {
            return Extent {
                len: end - offset,
                zero: false,
            };
        };
        // If the file system does not report holes, all is data.
        let data = match seek(file, SeekFrom::Data(offset)) {
            Ok(data) => data.min(end),
            Err(rustix::io::Errno::NXIO) => end,
            Err(_) => offset,
        };
        if data > offset {
            return Extent {
                len: data - offset,
                zero: true,
            };
        }
        let hole = seek(file, SeekFrom::Hole(offset)).unwrap_or(end);
        Extent {
            len: hole.clamp(offset + 1, end.max(offset + 1)) - offset,
            zero: false,
        }
    }

    fn seconds(&self) -> u64 {
        self.opened.elapsed().as_secs()
    }

    fn release(&self, idle: Duration, limit: usize) {
        let mut cache = self.cache.lock();
        cache.set_tick(self.seconds());
        cache.release_idle(idle.as_secs(), limit, |slot| {
            // Unpinned and not filling: no reader holds this lock, nor can one take a pin
            // meanwhile.
            if let Some(mut bytes) = self.slots[slot.0].try_write() {
                // A refusal only means that the process keeps the memory.
                let _ = bytes.release_pages();
            }
        });
    }

    /// Logs a frame's damage, once.
    fn log_damage(&self, frame: u64, error: &ReadError) {
        let mut logged = self.logged.lock();
        // A reader that retries must fill neither the log nor the memory of this set.
        if logged.len() < LOGGED_FRAMES_MAX && logged.insert(frame) {
            tracing::error!("{error}; reads that touch it get an I/O error");
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.growth.end();
    }
}

impl BlockSource for Device {
    fn size_bytes(&self) -> u64 {
        self.index.raw_bytes()
    }

    fn preferred_bytes(&self) -> u32 {
        self.index.frame_bytes().next_power_of_two()
    }

    fn read_with_max_bytes(&self) -> usize {
        let frame_bytes = self.index.frame_bytes().to_usize();
        READ_WITH_BYTES_MAX
            .min((PIECES_MAX - 2) * frame_bytes)
            .max(64 << 10)
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        self.read_into_buffer(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        self.read_in_pieces(offset, len, deliver);
    }

    fn extent(&self, offset: u64) -> Extent {
        if offset >= self.size_bytes() {
            return Extent {
                len: 0,
                zero: false,
            };
        }
        if self.index.format() == Format::Raw {
            return self.file_extent(offset);
        }
        let first = self.index.frame_at(offset);
        let zero = self.index.is_zero(first);
        let frames = self.index.frames();
        // A run of holes is one step. Bounded, since a client may ask for the extents of an image
        // of many frames; a client that needs more asks again from the end.
        let mut end = first;
        for _ in 0..EXTENT_FRAMES_MAX {
            if end >= frames || self.index.is_zero(end) != zero {
                break;
            }
            end += self.index.hole_run(end).max(1);
        }
        let last = self.index.frame(end - 1);
        Extent {
            len: last.raw_offset + u64::from(last.raw_bytes) - offset,
            zero,
        }
    }

    fn passthrough(&self) -> Option<&File> {
        (self.image.file()).filter(|_| self.index.format() == Format::Raw)
    }

    fn waits_for_a_network(&self) -> bool {
        self.image.remote().is_some()
    }

    fn identity(&self) -> Option<String> {
        let found = Identity::of(&self.index, &self.image)
            .inspect_err(|error| tracing::warn!("the image is not known again: {error}"))
            .ok()?;
        let text = format!("{} {}", found.size_bytes, digits_of(&found.hash));
        if self.index.is_checked() {
            return Some(text);
        }
        // The ends of such an image say little of what lies between them.
        let version = match &self.image {
            Image::File(file) => (file.metadata().ok())
                .filter(Metadata::is_file)
                .map(|it| (it.dev(), it.ino(), it.mtime(), it.mtime_nsec()))
                .map(|(device, inode, s, ns)| format!("{device}:{inode} {s}.{ns:09}")),
            Image::Remote(source) => source.version(),
        };
        Some(format!("{text} {}", version.unwrap_or_default()))
    }

    fn release_idle(&self, idle: Duration) {
        self.release(idle, 256);
    }
}

/// Division of `memory_bytes`.
struct Budget {
    slots: u64,
    /// The fewest slots with which every engine can serve a largest read.
    slots_min: u64,
    /// True when the whole image may be mapped in at once.
    maps: bool,
}

impl Budget {
    fn divide(index: &Index, engines: u64, memory_bytes: u64) -> Result<Self, DeviceError> {
        let index_bytes = index.memory_bytes().to_u64();
        let frame_bytes = u64::from(index.frame_bytes()).next_multiple_of(4096);
        // Enough that every engine can serve one largest read and read ahead of it.
        let per_read = READ_WITH_BYTES_MAX.to_u64().div_ceil(frame_bytes) + 1;
        let slots_min = (per_read + 1) * engines.max(2);
        // For each engine a buffer for compressed bytes and one for a frame without a slot.
        let engine_bytes = ENGINE_BYTES + u64::from(index.stored_bytes_max()) + frame_bytes;
        let fixed_bytes = PROCESS_BYTES + index_bytes + engines * engine_bytes + frame_bytes;
        let needed_bytes = fixed_bytes + slots_min * frame_bytes;
        if memory_bytes < needed_bytes {
            return Err(DeviceError::Memory {
                needed_bytes,
                index_bytes,
                engines,
                slots_min,
                frame_bytes,
                memory_bytes,
            });
        }
        let free_bytes = memory_bytes - fixed_bytes;
        let maps = index.stored_bytes() <= free_bytes / MAP_SHARE;
        let map_bytes = if maps { index.stored_bytes() } else { 0 };
        let frames_bytes = (free_bytes - map_bytes).min(
            // A cache larger than the device's stored frames is of no use.
            (index.stored_frames().saturating_add(slots_min)).saturating_mul(frame_bytes),
        );
        Ok(Self {
            slots: (frames_bytes / frame_bytes).max(slots_min),
            slots_min,
            maps,
        })
    }
}

/// Page size for a cache of `bytes`: small pages where this machine was measured to gain nothing
/// from larger ones. Reserved huge pages are never used: they could not be given back slot by slot.
fn cache_pages(bytes: usize) -> HugePages {
    let learned = PageAdvice::of_this_machine();
    match learned.map(|learned| learned.advise(bytes).page_bytes <= region::page_bytes()) {
        Some(true) => HugePages::None,
        _ => HugePages::Transparent,
    }
}

/// Streams for whose read-ahead the cache has room from the beginning.
const OPEN_STREAMS: usize = 4;

/// The mapped image takes at most one part in this many of the memory.
const MAP_SHARE: u64 = 4;

/// Read-ahead as background work; the token is the frame.
struct Ahead(Weak<Device>);

impl Background for Ahead {
    fn run(&self, core: &mut sidecore_engine::Core, token: u64) {
        if let Some(device) = self.0.upgrade() {
            device.fill_ahead(core, token);
        }
    }
}
