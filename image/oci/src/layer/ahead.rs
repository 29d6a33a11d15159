//! Prefetch of a layer: what a container reads as it starts, the libraries of a program that is
//! being started, the rest of a file that is being read, the window that a sequential reader needs
//! next, and all that is missing in the end.
//!
//! Must stay true: a span that was claimed here is fetched or given back; a thread here keeps the
//! device for one request only, or for one step of a program's libraries, so that a layer's server
//! ends soon after its unmount. The image is hostile: what it names costs a bounded number of
//! threads and look-ups.
//! Called from: any thread; only the threads here wait for the network.

use super::program::{Files, names_in};
use super::through::is_full;
use super::{LayerDevice, Span, Unfinished};
use crate::store::{read_or_zeros, read_start};
use crate::tree::Extent;
use parking_lot::Mutex;
use sidecore_bare::width::ToU64;
use std::collections::BTreeSet;
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

    /// Fetches in the background what a container reads as it starts: the programs that the image
    /// names (a shell, if none is known), the libraries that these name in turn, and files that are
    /// read before any program.
    pub fn fetch_start(self: &Arc<Self>) {
        let Some(tree) = Files::open(&self.data, self.tree.device_bytes) else {
            return;
        };
        let named = read_start(&self.folder).unwrap_or_else(|| b"bin/sh".to_vec());
        let named = named.split(|&byte| byte == b'\n').take(PROGRAMS_MAX);
        let names = EARLY_FILES.iter().map(|it| it.as_bytes()).chain(named);
        let places = names.filter_map(|name| tree.file(name));
        self.fetch_programs(places.filter_map(|at| self.file_at(at)).collect());
    }

    /// A read of the file system has found a program, or a library, that begins at this byte of the
    /// device: the loader opens the libraries that it names one after the other, and would wait for
    /// each.
    pub(super) fn follow(&self, device_at: u64) {
        if let (Some(device), Some(file)) = (self.own.upgrade(), self.file_at(device_at)) {
            device.fetch_programs(vec![file]);
        }
    }

    /// The file whose contents begin at a byte of the device.
    fn file_at(&self, device_at: u64) -> Option<Extent> {
        let extents = &self.tree.extents;
        let found = extents.binary_search_by_key(&device_at, |it| it.device_at);
        found.ok().map(|at| extents[at])
    }

    /// Fetches files, and the libraries that they name, on a thread of their own. Each file is
    /// looked at once.
    fn fetch_programs(self: &Arc<Self>, mut files: Vec<Extent>) {
        let mut known = self.known.lock();
        // Each thread has one; counted under the lock, so that no two take the last place.
        if Arc::strong_count(&self.followers) > FOLLOWERS_MAX {
            return;
        }
        files.retain(|it| known.len() < PROGRAMS_MAX && known.insert(it.device_at));
        if files.is_empty() {
            return;
        }
        let place = Arc::clone(&self.followers);
        drop(known);
        let device = Arc::downgrade(self);
        let work = move || {
            let _place = place;
            // A reference for a step at a time, so that the device can be dropped in between.
            while let Some(device) = device.upgrade().filter(|_| !files.is_empty()) {
                device.fetch_files(&files);
                files = device.libraries_of(&files);
            }
        };
        let thread = std::thread::Builder::new().name("fetch-start".into());
        if let Err(error) = thread.spawn(work) {
            tracing::info!("a program's files are fetched as they are read: {error}");
        }
    }

    /// Files of the layer that are named in others, and were not looked at before.
    fn libraries_of(&self, files: &[Extent]) -> Vec<Extent> {
        let Some(tree) = Files::open(&self.data, self.tree.device_bytes) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for file in files {
            let read = |at: u64, dst: &mut [u8]| self.read_file(file, at, dst);
            // Relaxed: a bound, which orders nothing.
            let is_allowed = |_: &&Vec<u8>| self.names.fetch_add(1, Ordering::Relaxed) < NAMES_MAX;
            let names = names_in(&read);
            let names = names.iter().take_while(is_allowed);
            for at in names.filter_map(|it| tree.library(it)) {
                let mut known = self.known.lock();
                if known.len() < PROGRAMS_MAX && known.insert(at) {
                    found.extend(self.file_at(at));
                }
            }
        }
        found
    }

    /// Reads a part of a file, which is fetched where it is missing; `None` beyond its end.
    fn read_file(&self, file: &Extent, at: u64, dst: &mut [u8]) -> Option<()> {
        let end = at.checked_add(dst.len().to_u64())?;
        if end > file.bytes || self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let at = file.device_at + at;
        let read = self
            .ensure(at..at + dst.len().to_u64())
            .and_then(|()| read_or_zeros(&self.data, dst, at));
        read.ok()
    }

    /// Fetches what is missing of files, by several requests at once: of large ones the first part.
    fn fetch_files(&self, files: &[Extent]) {
        let mut wanted = BTreeSet::new();
        for file in files {
            let bytes = match file.bytes <= FILE_BYTES_MAX {
                true => file.bytes,
                false => file.bytes.min(LARGE_FILE_BYTES),
            };
            wanted.extend(self.index.spans_of(file.tar_at..file.tar_at + bytes));
        }
        let runs = self.claim_runs(&wanted);
        let threads = runs.len().min(START_THREADS);
        let left = Mutex::new(runs);
        let work = || {
            loop {
                // Not held during the fetch.
                let Some(run) = left.lock().pop() else {
                    return;
                };
                if let Err(error) = self.fetch(run) {
                    tracing::info!("a program's files are fetched as they are read: {error}");
                    // Readers that wait for the others would learn of a dead network only after
                    // each had failed in turn.
                    let others = std::mem::take(&mut *left.lock());
                    for spans in others {
                        drop(Unfinished {
                            device: self,
                            spans,
                        });
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                let thread = std::thread::Builder::new().name("fetch-start".into());
                // This thread does what no other one does.
                let _ = thread.spawn_scoped(scope, work);
            }
            work();
        });
    }

    /// Marks the missing ones of some spans as coming; neighbours are fetched by one request.
    fn claim_runs(&self, wanted: &BTreeSet<usize>) -> Vec<Range<usize>> {
        let mut spans = self.spans.lock();
        let mut runs: Vec<Range<usize>> = Vec::new();
        for &span in wanted.iter().filter(|&&it| it < self.index.spans()) {
            if spans[span] != Span::Missing {
                continue;
            }
            spans[span] = Span::Coming;
            let fits = |run: &Range<usize>| {
                let blob = self.index.blob_range(run.start..span + 1);
                run.end == span && blob.end - blob.start <= RUN_BYTES_MAX
            };
            match runs.last_mut() {
                Some(run) if fits(run) => run.end = span + 1,
                _ => runs.push(span..span + 1),
            }
        }
        // The first ones are taken from the end.
        runs.reverse();
        runs
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
    pub(super) fn begin_ahead(&self, wanted: &Range<usize>, extent: &Extent, is_sequential: bool) {
        let Some(device) = self.own.upgrade() else {
            return;
        };
        // Relaxed: a bound, which orders nothing.
        if self.ahead.fetch_add(1, Ordering::Relaxed) >= AHEAD_THREADS {
            self.ahead.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let claimed = self.claim_ahead(wanted, extent, is_sequential);
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
    pub(crate) fn claim_ahead(
        &self,
        wanted: &Range<usize>,
        extent: &Extent,
        is_sequential: bool,
    ) -> Range<usize> {
        let mut spans = self.spans.lock();
        let file = match extent.bytes <= FILE_BYTES_MAX {
            true => (self.index).spans_of(extent.tar_at..extent.tar_at + extent.bytes),
            false => wanted.clone(),
        };
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

/// The last readers of a layer: where each of them was, and how far it has come in sequence. What
/// is here, or coming, does not tell them from others: much of it was fetched ahead.
#[derive(Default)]
pub(super) struct Readers {
    /// The span after the last one of a read, and spans that were read in sequence before it.
    last: [(usize, usize); READERS_MAX],
    /// The one that is forgotten next.
    oldest: usize,
}

impl Readers {
    /// Takes note of a read of these spans; true if its reader has come a while in sequence.
    pub(super) fn follow(&mut self, wanted: &Range<usize>) -> bool {
        let mut last = self.last.iter_mut();
        // It goes on in the span in which it was, or in the next one.
        match last.find(|(end, _)| (wanted.start..=wanted.start + 1).contains(end)) {
            Some((end, steps)) => {
                *steps += wanted.end.saturating_sub(*end);
                *end = wanted.end.max(*end);
                *steps >= SEQUENCE_MIN
            }
            None => {
                self.last[self.oldest] = (wanted.end, 0);
                self.oldest = (self.oldest + 1) % READERS_MAX;
                false
            }
        }
    }
}

/// Readers that are distinguished.
const READERS_MAX: usize = 8;
/// Spans after which a reader is taken for one in sequence.
const SEQUENCE_MIN: usize = 4;
/// Files that containerd and a loader read before any program of the image runs.
const EARLY_FILES: [&str; 6] = [
    "etc/passwd",
    "etc/group",
    "etc/ld.so.cache",
    "lib64/ld-linux-x86-64.so.2",
    "lib/ld-linux-aarch64.so.1",
    "usr/lib/x86_64-linux-gnu/libc.so.6",
];
/// Programs and libraries of a layer that are looked at.
const PROGRAMS_MAX: usize = 1024;
/// Threads that follow programs to their libraries, and names of libraries that are looked up.
const FOLLOWERS_MAX: usize = 8;
const NAMES_MAX: usize = 16 << 10;
/// Bytes of a large program that are fetched with its beginning.
const LARGE_FILE_BYTES: u64 = 1 << 20;
/// Requests at once for files that a start needs.
const START_THREADS: usize = 8;
/// Compressed bytes of one of them: several are decompressed at the same time.
const RUN_BYTES_MAX: u64 = 1 << 20;
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
    use crate::layer::program::tests::elf;
    use crate::layer::{Store, sha256_of};
    use crate::tests::{gunzip, gzip_tar, unused_blob};
    use sidecore_random::Random;
    use sidecore_remote::blob::RemoteBlob;
    use sidecore_remote::{Repository, Retry};
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    /// A layer of one file, of which nothing is here, and the file's place.
    fn device(folder: &std::path::Path, bytes: u64) -> (Arc<LayerDevice>, Extent) {
        let mut random = Random::new(bytes);
        let contents: Vec<u8> = (0..bytes).map(|_| random.bits().to_le_bytes()[0]).collect();
        // Spans of 256 KiB each.
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
        let ahead = |wanted: Range<usize>| device.claim_ahead(&wanted, &file, false);
        assert_eq!(ahead(0..1), 1..2);
        assert_eq!(
            device.spans.lock()[..3],
            [Span::Missing, Span::Coming, Span::Here]
        );
        assert_eq!(ahead(0..1), 3..end);
        assert_eq!(ahead(0..1), 0..0);
    }

    #[test]
    fn readers_in_sequence_are_known_by_their_own_reads() {
        let mut readers = Readers::default();
        let mut follow = |wanted: Range<usize>| readers.follow(&wanted);
        assert!(!follow(5..6) && !follow(5..6) && !follow(6..7));
        // Another one in between.
        assert!(!follow(20..21));
        assert!(!follow(6..9) && follow(8..10) && follow(10..11));
        assert!(!follow(3..4));
        for elsewhere in 0..READERS_MAX {
            assert!(!follow(100 * (elsewhere + 1)..100 * (elsewhere + 1) + 1));
        }
        assert!(!follow(11..12));
    }

    #[test]
    fn of_a_large_file_what_a_reader_in_sequence_needs_next_is_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let (device, file) = device(folder.path(), FILE_BYTES_MAX + (1 << 20));
        let bytes = |spans: Range<usize>| {
            let blob = device.index.blob_range(spans);
            blob.end - blob.start
        };
        // Somewhere, also behind what is here, and then in sequence.
        device.spans.lock()[2] = Span::Here;
        assert_eq!(device.claim_ahead(&(3..4), &file, false), 0..0);
        let window = device.claim_ahead(&(3..4), &file, true);
        assert_eq!(window.start, 4);
        assert!(bytes(window.clone()) <= AHEAD_BYTES && bytes(4..window.end + 1) > AHEAD_BYTES);
        device.spans.lock()[3] = Span::Coming;
        // The reader waits for the window's first span: the next window is on its way.
        let next = device.claim_ahead(&(4..5), &file, true);
        assert_eq!(next.start, window.end);
    }

    /// Gives ranges of a blob to any request; returns the registry's address.
    fn registry(blob: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = move |stream: &TcpStream, blob: &[u8]| -> Option<()> {
            let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
            let range = lines.find_map(|it| Some(it.split_once("bytes=")?.1.to_owned()))?;
            let (first, last) = range.split_once('-')?;
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            let head = format!(
                "HTTP/1.1 206 x\r\nConnection: close\r\nContent-Length: {}\r\n\
                 Content-Range: bytes {first}-{last}/{}\r\n\r\n",
                last + 1 - first,
                blob.len(),
            );
            let mut stream = stream;
            stream.write_all(head.as_bytes()).ok()?;
            stream.write_all(blob.get(first..=last)?).ok()
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let blob = blob.clone();
                std::thread::spawn(move || answer(&stream, &blob));
            }
        });
        address
    }

    /// A layer with a program, a library that it names, and much that nothing needs; and their
    /// extents.
    fn device_of_programs(folder: &std::path::Path) -> (Arc<LayerDevice>, [Extent; 3]) {
        let mut random = Random::new(3);
        let mut noise = |bytes: usize| -> Vec<u8> {
            (0..bytes).map(|_| random.bits().to_le_bytes()[0]).collect()
        };
        let mut tar = tar::Builder::new(Vec::new());
        let mut add = |path: &str, contents: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(contents.len() as u64);
            header.set_mode(0o755);
            tar.append_data(&mut header, path, contents).unwrap();
        };
        add("usr/bin/program", &elf("/lib/ld.so", &["liba.so"]));
        add("usr/bin/rest", &noise(5 << 20));
        add("usr/lib/liba.so", &noise(3 << 20));
        add("usr/lib/rest", &noise(5 << 20));
        let blob = tar.into_inner().unwrap();
        let sha256 = sha256_of(&blob);
        let store = Store::open(folder).unwrap();
        let index = build(&mut &blob[..], None).unwrap().index;
        store.keep_index(&index).unwrap();
        let repository = Repository::new(&registry(blob), "a", Retry::default()).unwrap();
        let blob = RemoteBlob::new(&repository, &sha256).unwrap();
        let device = LayerDevice::open(&store, &sha256, blob).unwrap();
        let extents = [0, 2, 3].map(|at| device.tree.extents[at]);
        (device, extents)
    }

    /// Waits until a file is here.
    fn wait_for(device: &LayerDevice, file: &Extent) {
        let wanted = (device.index).spans_of(file.tar_at..file.tar_at + file.bytes);
        let begun = Instant::now();
        while !device.are_here(&wanted) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The loader would wait for one after the other.
    #[test]
    fn libraries_of_a_program_are_fetched_before_they_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (device, [program, library, rest]) = device_of_programs(folder.path());
        // The kernel reads the first page of a program.
        let mut page = [0; 64];
        device.read(program.device_at, &mut page).unwrap();
        wait_for(&device, &library);
        let end = (device.index).spans_of(rest.tar_at + rest.bytes - 1..rest.tar_at + rest.bytes);
        assert_eq!(device.spans.lock()[end.start], Span::Missing);
    }

    #[test]
    fn programs_that_the_image_names_are_fetched_from_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let (device, [program, library, rest]) = device_of_programs(folder.path());
        let store = Store::open(folder.path()).unwrap();
        let paths = ["/no/such/program", "/usr/bin/program"].map(str::to_owned);
        store.keep_start(&device.index.layer(), &paths).unwrap();
        device.fetch_start();
        wait_for(&device, &program);
        wait_for(&device, &library);
        let end = (device.index).spans_of(rest.tar_at + rest.bytes - 1..rest.tar_at + rest.bytes);
        assert_eq!(device.spans.lock()[end.start], Span::Missing);
    }

    /// A program may read all others, and each would have a thread.
    #[test]
    fn programs_are_followed_by_a_bounded_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let (device, file) = device(folder.path(), 4 << 20);
        let places = [(); FOLLOWERS_MAX].map(|()| Arc::clone(&device.followers));
        device.follow(file.device_at);
        assert!(device.known.lock().is_empty() && device.is_empty());
        drop(places);
    }

    #[test]
    fn neighbours_are_fetched_by_one_request_up_to_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        // Spans of 256 KiB that do not compress.
        let (device, _) = device(folder.path(), 8 << 20);
        device.spans.lock()[2] = Span::Here;
        let wanted = (0..9).chain([11, 1000]).collect();
        // From the end on.
        assert_eq!(device.claim_runs(&wanted), [11..12, 7..9, 3..7, 0..2]);
        assert!(device.claim_runs(&wanted).is_empty());
    }

    /// Readers would wait for ever for spans that are not being fetched.
    #[test]
    fn spans_that_cannot_be_fetched_are_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let (device, file) = device(folder.path(), 4 << 20);
        device.ahead.store(AHEAD_THREADS, Ordering::Relaxed);
        device.begin_ahead(&(0..1), &file, false);
        assert!(device.is_empty());
        assert_eq!(device.ahead.load(Ordering::Relaxed), AHEAD_THREADS);
    }
}
