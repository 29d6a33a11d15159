//! A device with counters, for the status of its server.
//!
//! Why here: exports see a [`BlockSource`] alone, and each would have to count by itself. Must stay
//! true: a read costs two additions more, and no lock; everything else is read when it is asked
//! for. Reads that the kernel makes of a raw image's file by itself (passthrough) are not seen.
//! Any thread.

use crate::device::Device;
use crate::overlay::Overlay;
use crate::source::{BlockSource, BlockWrites, Deliver, Extent, ReadError, WriteError, Written};
use serde::Serialize;
use sidecore_bare::width::ToU64;
use sidecore_sys::clock::memory_in_use;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Figures of a served image since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Size of the device.
    pub size_bytes: u64,
    /// Reads of clients.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Reads that ended in an error.
    pub failed_reads: u64,
    /// Bytes that clients wrote.
    pub written_bytes: u64,
    /// Look-ups of frames that the cache answered, those included that waited for another reader.
    pub cache_hits: u64,
    /// Look-ups of frames that had to decompress.
    pub cache_misses: u64,
    /// Compressed bytes that came over a network.
    pub fetched_bytes: u64,
    /// Requests to a network that were repeated.
    pub retries: u64,
    /// Different frames that were found damaged, as far as they are remembered (1,024).
    pub damaged_frames: u64,
    /// Physical memory of this process.
    pub memory_bytes: u64,
    /// Bytes of the overlay's grains in use.
    pub overlay_bytes: u64,
    /// Bytes of its grains that were changed and are not durable yet.
    pub overlay_dirty_bytes: u64,
}

/// A device, with or without an overlay, that counts.
pub struct Meter {
    source: Arc<dyn BlockSource>,
    device: Arc<Device>,
    overlay: Option<Arc<Overlay>>,
    counters: Counters,
}

/// On lines of their own: the fields around them are read with every request.
#[derive(Default)]
#[repr(align(128))]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    failed_reads: AtomicU64,
    written_bytes: AtomicU64,
}

impl Meter {
    /// Counts the reads of `device`, or of `overlay` above it.
    #[must_use]
    pub fn new(device: Arc<Device>, overlay: Option<Arc<Overlay>>) -> Arc<Self> {
        let source: Arc<dyn BlockSource> = match &overlay {
            Some(overlay) => Arc::clone(overlay) as _,
            None => Arc::clone(&device) as _,
        };
        Arc::new(Self {
            source,
            device,
            overlay,
            counters: Counters::default(),
        })
    }

    /// The figures as of now. Takes the cache's lock for a moment, and reads `/proc`.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let cache = self.device.cache_counts();
        let traffic = self.device.image().remote().map(|remote| remote.traffic());
        let traffic = traffic.unwrap_or_default();
        let used = self.overlay.as_ref().map(|overlay| overlay.used());
        let used = used.unwrap_or_default();
        let (_, memory_bytes) = memory_in_use().unwrap_or_default();
        // Relaxed: counters alone, which order nothing.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            size_bytes: self.source.size_bytes(),
            reads: read(&self.counters.reads),
            read_bytes: read(&self.counters.read_bytes),
            failed_reads: read(&self.counters.failed_reads),
            written_bytes: read(&self.counters.written_bytes),
            cache_hits: cache.hits + cache.joins,
            cache_misses: cache.misses,
            fetched_bytes: traffic.fetched_bytes,
            retries: traffic.retries,
            damaged_frames: self.device.damaged_frames().to_u64(),
            memory_bytes,
            overlay_bytes: used.bytes,
            overlay_dirty_bytes: used.dirty_bytes,
        }
    }

    fn count(&self, len: usize) {
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = &self.counters.read_bytes;
        bytes.fetch_add(len.to_u64(), Ordering::Relaxed);
    }

    fn failed(&self) {
        self.counters.failed_reads.fetch_add(1, Ordering::Relaxed);
    }

    fn written(&self, len: u64) {
        let bytes = &self.counters.written_bytes;
        bytes.fetch_add(len, Ordering::Relaxed);
    }
}

impl BlockSource for Meter {
    fn size_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    fn preferred_bytes(&self) -> u32 {
        self.source.preferred_bytes()
    }

    fn read_with_max_bytes(&self) -> usize {
        self.source.read_with_max_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        let read = self.source.read_into(offset, dst);
        match read {
            Ok(()) => self.count(dst.len()),
            Err(_) => self.failed(),
        }
        read
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        self.source.read_with(offset, len, &mut |bytes| {
            // Before the delivery: a client that has its bytes finds them counted.
            match bytes {
                Ok(_) => self.count(len),
                Err(_) => self.failed(),
            }
            deliver(bytes);
        });
    }

    fn extent(&self, offset: u64) -> Extent {
        self.source.extent(offset)
    }

    fn written(&self, offset: u64) -> Option<Written> {
        self.source.written(offset)
    }

    fn writes(&self) -> Option<&dyn BlockWrites> {
        self.source.writes().map(|_| self as &dyn BlockWrites)
    }

    fn passthrough(&self) -> Option<&File> {
        self.source.passthrough()
    }

    fn waits_for_a_network(&self) -> bool {
        self.source.waits_for_a_network()
    }

    fn identity(&self) -> Option<String> {
        self.source.identity()
    }

    fn release_idle(&self, idle: Duration) {
        self.source.release_idle(idle);
    }
}

impl Meter {
    fn inner(&self) -> Result<&dyn BlockWrites, WriteError> {
        self.source.writes().ok_or_else(|| WriteError::Io {
            reason: "the device is read-only".into(),
        })
    }
}

impl BlockWrites for Meter {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        self.inner()?.write(offset, bytes)?;
        self.written(bytes.len().to_u64());
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        self.inner()?.write_zeroes(offset, len)?;
        self.written(len);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        self.inner()?.discard(offset, len)
    }

    fn flush(&self) -> Result<(), WriteError> {
        self.inner()?.flush()
    }

    fn grain_bytes(&self) -> u32 {
        self.inner().map_or(1, BlockWrites::grain_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::{open_least, packed};
    use crate::format::Format;
    use crate::overlay::open_to_write;
    use sidecore_bare::width::ToUsize;
    use std::os::unix::fs::FileExt;

    #[test]
    fn reads_are_counted_whichever_way_they_come() {
        let packed = packed(Format::Zstd, 4 << 20);
        let meter = Meter::new(open_least(&packed.image, 2), None);
        assert!(meter.writes().is_none() && meter.write(0, b"x").is_err());
        let mut bytes = vec![0; 100_000];
        meter.read_into(5000, &mut bytes).unwrap();
        assert_eq!(bytes, packed.raw[5000..105_000]);
        let mut seen = 0;
        meter.read_with(0, 4096, &mut |pieces| {
            // The client may ask for its status as soon as it has the bytes.
            assert_eq!(meter.figures().read_bytes, 104_096);
            seen += pieces
                .unwrap()
                .iter()
                .map(|piece| piece.len())
                .sum::<usize>();
        });
        assert_eq!(seen, 4096);
        let figures = meter.figures();
        assert_eq!(
            (figures.reads, figures.failed_reads, figures.damaged_frames),
            (2, 0, 0)
        );
        assert_eq!(figures.size_bytes.to_usize(), packed.raw.len());
        assert!(figures.cache_hits + figures.cache_misses > 0 && figures.memory_bytes > 1 << 20);
        assert!(meter.read_into(figures.size_bytes, &mut bytes).is_err());
        assert_eq!(meter.figures().failed_reads, 1);
    }

    #[test]
    fn damage_is_counted_once_a_frame() {
        let packed = packed(Format::Zstd, 4 << 20);
        let device = open_least(&packed.image, 1);
        let frame = device.index().frame(2);
        let middle = frame.offset + u64::from(frame.stored_bytes) / 2;
        packed.image.write_all_at(&[0xa5; 8], middle).unwrap();
        let meter = Meter::new(device, None);
        for _ in 0..3 {
            meter
                .read_into(frame.raw_offset, &mut [0; 512])
                .unwrap_err();
        }
        let figures = meter.figures();
        assert_eq!((figures.failed_reads, figures.damaged_frames), (3, 1));
    }

    #[test]
    fn what_is_not_durable_is_dirty() {
        let packed = packed(Format::Zstd, 4 << 20);
        let device = open_least(&packed.image, 1);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("overlay");
        let overlay = Arc::new(open_to_write(&device, &path, Some(4096), None, "base").unwrap());
        let meter = Meter::new(device, Some(overlay));
        let writes = meter.writes().unwrap();
        writes.write(4096, &[7; 8192]).unwrap();
        let figures = meter.figures();
        assert_eq!(
            (figures.overlay_bytes, figures.overlay_dirty_bytes),
            (8192, 8192)
        );
        assert_eq!(figures.written_bytes, 8192);
        writes.flush().unwrap();
        assert_eq!(meter.figures().overlay_dirty_bytes, 0);
        assert_eq!(meter.figures().overlay_bytes, 8192);
    }
}
