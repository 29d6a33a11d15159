//! Prefetch of a layer: the rest of a file that is being read, the window that a sequential reader
//! needs next, and all that is missing in the end.
//!
//! Must stay true: a span that was claimed here is fetched or given back; a thread here keeps the
//! device for one request only, so that a layer's server ends soon after its unmount.
//! Called from: any thread; only the threads here wait for the network.

use super::through::is_full;
use super::{LayerDevice, Span, Unfinished};
use crate::tree::Extent;
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl LayerDevice {
    /// Opens a connection to the registry in the background: the handshake, a token and a redirect
    /// cost the first reader nothing then.
    pub fn connect(self: &Arc<Self>) {
        let device = Arc::downgrade(self);
        let work = move || {
            let found = device.upgrade().map(|device| device.blob.size_bytes());
            if let Some(Err(error)) = found {
                // The first read tries again, and its failure counts.
                tracing::info!("the registry does not answer yet: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("connect".into());
        if let Err(error) = thread.spawn(work) {
            tracing::info!("the first read connects to the registry: {error}");
        }
    }

    /// Fetches all that is missing, on threads of their own, at most at `rate_bytes` a second (0:
    /// unlimited), and then makes the layer complete. Ends early if the device is dropped; after a
    /// fault it tries again, seconds later.
    pub fn fetch_rest(self: &Arc<Self>, rate_bytes: u64) {
        let after = BACKGROUND_AFTER;
        let pace = Arc::new(Mutex::new(Instant::now() + after));
        for number in 0..BACKGROUND_THREADS {
            // Threads that own the device would keep an unmounted layer's server alive.
            let device = Arc::downgrade(self);
            let pace = Arc::clone(&pace);
            let work = move || {
                std::thread::sleep(after);
                // A reference for a part at a time, so that the device can be dropped in between.
                while let Some(device) = device.upgrade() {
                    match device.fetch_next(&pace, rate_bytes) {
                        Ok(true) => {}
                        // All have come or are coming: one thread waits for them and ends it.
                        Ok(false) if number > 0 => return,
                        Ok(false) => match device.complete() {
                            Ok(true) => return,
                            Ok(false) => std::thread::sleep(FETCH_PAUSE),
                            Err(error) => {
                                tracing::error!("the layer is not complete: {error}");
                                return;
                            }
                        },
                        Err(error) => {
                            tracing::warn!("the rest of the layer is not fetched now: {error}");
                            std::thread::sleep(match is_full(&error) {
                                // Each try fills the disk to the brim and is thrown away.
                                true => FULL_PAUSE,
                                false => FETCH_PAUSE,
                            });
                        }
                    }
                }
            };
            let thread = std::thread::Builder::new().name("fetch-rest".into());
            if let Err(error) = thread.spawn(work) {
                tracing::warn!("the rest of the layer is not fetched: {error}");
            }
        }
    }

    /// Fetches the first spans that are missing; false if none is.
    pub(crate) fn fetch_next(&self, pace: &Mutex<Instant>, rate_bytes: u64) -> io::Result<bool> {
        if rate_bytes > 0 {
            // Before the claim: a reader of claimed spans would wait for the pace, too.
            let begin = *pace.lock();
            std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        }
        let claimed = {
            let mut spans = self.spans.lock();
            let Some(first) = spans.iter().position(|&it| it == Span::Missing) else {
                return Ok(false);
            };
            let within = first..spans.len();
            self.claim(&mut spans, within, first + 1, CLUSTER_BYTES)
        };
        if rate_bytes > 0 {
            let blob = self.index.blob_range(claimed.clone());
            let time = Duration::from_secs_f64((blob.end - blob.start) as f64 / rate_bytes as f64);
            // The pace is of all threads together.
            let mut next = pace.lock();
            *next = (*next).max(Instant::now()) + time;
        }
        self.fetch(claimed).map(|()| true)
    }

    /// Begins to fetch what follows a read of the spans `wanted`, which lie in the file `extent`.
    pub(super) fn begin_ahead(&self, wanted: &Range<usize>, extent: &Extent) {
        let Some(device) = self.own.upgrade() else {
            return;
        };
        // Relaxed: a bound, which orders nothing.
        if self.ahead.fetch_add(1, Ordering::Relaxed) >= AHEAD_THREADS {
            self.ahead.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let claimed = self.claim_ahead(wanted, extent);
        let spans = claimed.clone();
        let work = move || {
            if let Err(error) = device.fetch(claimed) {
                tracing::info!("nothing is fetched ahead of a reader: {error}");
            }
            device.ahead.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("fetch-ahead".into());
        if spans.is_empty() || thread.spawn(work).is_err() {
            self.ahead.fetch_sub(1, Ordering::Relaxed);
            // Readers would wait for them for ever.
            drop(Unfinished {
                device: self,
                spans,
            });
        }
    }

    /// Marks spans as coming that a reader of `wanted` needs next. Programs and libraries are read
    /// by pages here and there, and soon as a whole: the rest of a small file is taken. A reader in
    /// sequence gets a window that moves on while it waits for the one before.
    pub(crate) fn claim_ahead(&self, wanted: &Range<usize>, extent: &Extent) -> Range<usize> {
        let mut spans = self.spans.lock();
        let file = match extent.bytes <= FILE_BYTES_MAX {
            true => (self.index).spans_of(extent.tar_at..extent.tar_at + extent.bytes),
            false => wanted.clone(),
        };
        let is_sequential = wanted.start > 0 && spans[wanted.start - 1] != Span::Missing;
        let is_near = |span: usize| {
            let blob = self.index.blob_range(wanted.end..span + 1);
            blob.end - blob.start <= AHEAD_BYTES
        };
        let missing = (wanted.end..spans.len()).find(|&span| spans[span] == Span::Missing);
        match missing {
            Some(first) if is_sequential && is_near(first) => {
                let within = first..spans.len();
                self.claim(&mut spans, within, file.end, AHEAD_BYTES)
            }
            Some(first) if first < file.end => self.claim(&mut spans, first..file.end, file.end, 0),
            _ => 0..0,
        }
    }
}

/// Compressed bytes of a background request.
const CLUSTER_BYTES: u64 = 4 << 20;
/// Compressed bytes that are fetched ahead of a reader in sequence.
const AHEAD_BYTES: u64 = 2 << 20;
/// Bytes of a file whose rest is fetched once a part of it is read.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Threads that fetch ahead of readers.
const AHEAD_THREADS: usize = 4;
/// Threads that fetch the rest: one decompresses while another one waits.
const BACKGROUND_THREADS: usize = 2;
/// The program that starts reads alone at first.
const BACKGROUND_AFTER: Duration = Duration::from_secs(2);
/// Pause after a failed background request.
const FETCH_PAUSE: Duration = Duration::from_secs(5);
/// The same where the disk was full.
const FULL_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::build;
    use crate::layer::{Store, sha256_of};
    use crate::tests::{gunzip, gzip_tar, unused_blob};
    use sidecore_random::Random;

    /// A layer of one file, of which nothing is here, and the file's place.
    fn device(folder: &std::path::Path, bytes: u64) -> (Arc<LayerDevice>, Extent) {
        let mut random = Random::new(bytes);
        let contents: Vec<u8> = (0..bytes).map(|_| random.bits().to_le_bytes()[0]).collect();
        // Spans of one MiB each.
        let blob = gunzip(&gzip_tar(&contents));
        let sha256 = sha256_of(&blob);
        let store = Store::open(folder).unwrap();
        store
            .keep_index(&build(&mut &blob[..], None).unwrap().index)
            .unwrap();
        let device = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
        let extent = device.tree.extents[0];
        assert_eq!(extent.bytes, bytes);
        (device, extent)
    }

    #[test]
    fn the_rest_of_a_small_file_is_fetched_with_its_first_part() {
        let folder = tempfile::tempdir().unwrap();
        let (device, file) = device(folder.path(), 4 << 20);
        let end = device
            .index
            .spans_of(file.tar_at..file.tar_at + file.bytes)
            .end;
        assert!(end > 3);
        device.spans.lock()[2] = Span::Here;
        // Up to what is here already; what the reader itself needs is left to it.
        assert_eq!(device.claim_ahead(&(0..1), &file), 1..2);
        assert_eq!(
            device.spans.lock()[..3],
            [Span::Missing, Span::Coming, Span::Here]
        );
        assert_eq!(device.claim_ahead(&(0..1), &file), 3..end);
        assert_eq!(device.claim_ahead(&(0..1), &file), 0..0);
    }

    #[test]
    fn of_a_large_file_what_a_reader_in_sequence_needs_next_is_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let (device, file) = device(folder.path(), FILE_BYTES_MAX + (1 << 20));
        let bytes = |spans: Range<usize>| {
            let blob = device.index.blob_range(spans);
            blob.end - blob.start
        };
        // Somewhere, and then where the read before has ended.
        assert_eq!(device.claim_ahead(&(2..3), &file), 0..0);
        device.spans.lock()[2] = Span::Here;
        let window = device.claim_ahead(&(3..4), &file);
        assert_eq!(window.start, 4);
        assert!(bytes(window.clone()) <= AHEAD_BYTES && bytes(4..window.end + 1) > AHEAD_BYTES);
        device.spans.lock()[3] = Span::Coming;
        // The reader waits for the window's first span: the next window is on its way.
        assert_eq!(device.claim_ahead(&(4..5), &file).start, window.end);
    }

    /// Readers would wait for ever for spans that are not being fetched.
    #[test]
    fn spans_that_cannot_be_fetched_are_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let (device, file) = device(folder.path(), 4 << 20);
        device.ahead.store(AHEAD_THREADS, Ordering::Relaxed);
        device.begin_ahead(&(0..1), &file);
        assert!(device.is_empty());
        assert_eq!(device.ahead.load(Ordering::Relaxed), AHEAD_THREADS);
    }
}
