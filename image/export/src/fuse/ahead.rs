//! Predicts the files of a tree that a reader opens next, so that their pages can be stored before.
//!
//! Why here, apart from the threads that read and store: it is pure, so that it can be tested
//! without a kernel. A small file costs its reader a request: two context switches and a sleep. A
//! reader that goes through a directory's files in order (`cat`, `grep -r`, `tar`) is spared most
//! of them.
//!
//! A reader is recognised by the order in which its directory was listed. One of the files ahead of
//! it is left out of each run: the *mark*. The kernel sends no request for a file whose pages it
//! has; so the mark's request shows that the reader has come there, and the next run can begin.
//!
//! ```text
//!   read  mark  stored stored stored  mark' ...
//!          ^ its read has the files after mark' stored, while the reader goes through these
//! ```
//!
//! Must stay true: a reader that follows no order causes nothing. A run is at most
//! [`RUN_BYTES_MAX`] long. The history is bounded. No file is handed out twice.

use std::collections::{HashMap, HashSet};

/// Readers of trees, and the order of files.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The file that was listed after a file.
    next: HashMap<u64, u64>,
    /// The one listed last.
    listed: Option<u64>,
    /// Files that were read or handed out: their pages are there.
    seen: HashSet<u64>,
    streams: Vec<Stream>,
    clock: u64,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// The file whose read shows that the reader has come here.
    mark: u64,
    /// The last file before the next run: the mark itself, or the last one handed out after it.
    last: u64,
    /// Reads that matched the prediction.
    hits: u32,
    used: u64,
}

/// Files to store, for a thread that takes one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The run's mark: its files come after it.
    pub mark: u64,
    /// Bytes that they may have together.
    pub bytes: u64,
}

impl Ahead {
    /// Takes in files in the order in which they were listed. Those of the directory that is listed
    /// next follow them: a walk over the tree reads them in that order.
    pub(super) fn listed(&mut self, files: &[u64]) {
        for &file in files {
            if self.next.len() >= FILES_MAX {
                // Forgotten as a whole: an order with gaps would end runs at random places.
                self.next.clear();
            }
            if let Some(before) = self.listed.replace(file)
                && before != file
            {
                self.next.insert(before, file);
            }
        }
    }

    /// Takes in the first read of a file; returns the files to store now.
    pub(super) fn read(&mut self, file: u64) -> Option<Run> {
        self.clock += 1;
        self.see(file);
        let next = self.next.get(&file).copied()?;
        let found = self.streams.iter_mut().find(|stream| stream.mark == file);
        // A reader is followed only from its second file on; a single read says nothing.
        let Some(stream) = found else {
            // A large file that was left to its reader already has a stream.
            if !self.streams.iter().any(|stream| stream.mark == next) {
                self.begin(next);
            }
            return None;
        };
        stream.used = self.clock;
        stream.hits = stream.hits.saturating_add(1);
        // The first file after those that were handed out.
        let mark = self.next.get(&stream.last).copied();
        let Some(mark) = mark.filter(|mark| !self.seen.contains(mark)) else {
            // The order ends here, or other files are stored already.
            // The first to be replaced.
            stream.used = 0;
            return None;
        };
        stream.mark = mark;
        stream.last = mark;
        if stream.hits < HITS_MIN {
            return None;
        }
        // Runs grow with each confirmed prediction, as a kernel's read-ahead window does.
        let doublings = (stream.hits - HITS_MIN).min(16);
        let bytes = (RUN_BYTES_MIN << doublings).min(RUN_BYTES_MAX);
        Some(Run { mark, bytes })
    }

    /// The file of a run that comes after `file`, `None` where the run ends: at a file that was
    /// read already. From now on the returned file counts as read.
    pub(super) fn take_after(&mut self, mark: u64, file: u64) -> Option<u64> {
        let next = self.next.get(&file).copied()?;
        if self.seen.contains(&next) {
            return None;
        }
        let stream = self.streams.iter_mut().find(|stream| stream.mark == mark)?;
        stream.last = next;
        self.see(next);
        Some(next)
    }

    fn see(&mut self, file: u64) {
        if self.seen.len() >= FILES_MAX {
            self.seen.clear();
        }
        self.seen.insert(file);
    }

    fn begin(&mut self, mark: u64) {
        let stream = Stream {
            mark,
            last: mark,
            hits: 0,
            used: self.clock,
        };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|it| it.used) {
            *oldest = stream;
        }
    }
}

/// Readers that are tracked at once; the one seen longest ago makes room.
const STREAMS_MAX: usize = 64;
/// Files whose place in the order is remembered.
const FILES_MAX: usize = 32_768;
/// Foreseen reads after which files are stored.
const HITS_MIN: u32 = 2;
/// The first run, which doubles.
const RUN_BYTES_MIN: u64 = 64 << 10;
/// The longest run.
pub(super) const RUN_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a reader of `files` in this order: returns the stored files, and the reads that
    /// were needed.
    fn walk(ahead: &mut Ahead, files: &[u64], size: u64) -> (Vec<u64>, usize) {
        let mut stored = Vec::new();
        let mut reads = 0;
        for &file in files {
            if stored.contains(&file) {
                continue;
            }
            reads += 1;
            let Some(run) = ahead.read(file) else {
                continue;
            };
            let (mut last, mut bytes) = (run.mark, 0);
            while bytes < run.bytes
                && let Some(next) = ahead.take_after(run.mark, last)
            {
                stored.push(next);
                bytes += size;
                last = next;
            }
        }
        (stored, reads)
    }

    fn listing(count: u64) -> Ahead {
        let mut ahead = Ahead::default();
        // Two directories.
        let files: Vec<u64> = (1..=count).collect();
        let (first, second) = files.split_at(files.len() / 3);
        ahead.listed(first);
        ahead.listed(second);
        ahead
    }

    #[test]
    fn who_reads_in_order_is_spared_most_reads_and_nothing_is_stored_twice() {
        let files: Vec<u64> = (1..=1000).collect();
        let (stored, reads) = walk(&mut listing(1000), &files, 10_000);
        let unique: HashSet<_> = stored.iter().collect();
        assert_eq!(unique.len(), stored.len());
        assert_eq!(stored.len() + reads, 1000);
        assert!(reads < 30, "{reads}");
        // Not one of them had been read before it was stored.
        assert!(stored.is_sorted());
    }

    #[test]
    fn who_reads_in_another_order_causes_nothing() {
        let mut state = 7_u64;
        let mut files: Vec<u64> = (1..=1000).collect();
        for at in (1..files.len()).rev() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            files.swap(at, (state >> 33) as usize % (at + 1));
        }
        let (stored, _) = walk(&mut listing(1000), &files, 10_000);
        assert!(stored.len() < 20, "{}", stored.len());
        let backwards: Vec<u64> = (1..=1000).rev().collect();
        assert!(walk(&mut listing(1000), &backwards, 10_000).0.is_empty());
    }

    #[test]
    fn many_readers_side_by_side_do_not_store_what_others_have_read() {
        // Each of 32 has 16 files, as `xargs -P 32 -n 16` deals them out.
        let mut ahead = listing(512);
        let dealt = |step: u64| (0..32).map(move |reader| reader * 16 + step + 1);
        let files: Vec<u64> = (0..16).flat_map(dealt).collect();
        let (stored, reads) = walk(&mut ahead, &files, 10_000);
        let unique: HashSet<_> = stored.iter().collect();
        assert_eq!(unique.len(), stored.len());
        assert_eq!(reads + stored.len(), 512);
        assert!(ahead.streams.len() <= STREAMS_MAX);
    }

    #[test]
    fn memory_is_bounded_and_circles_end() {
        let mut ahead = Ahead::default();
        for file in 0..3 * FILES_MAX as u64 {
            ahead.listed(&[file, file + 1]);
            let _ = ahead.read(file);
        }
        assert!(ahead.next.len() <= FILES_MAX && ahead.seen.len() <= FILES_MAX);
        assert!(ahead.streams.len() <= STREAMS_MAX);
        let mut ahead = Ahead::default();
        let files: Vec<u64> = (0..10).collect();
        ahead.listed(&files);
        ahead.listed(&files);
        let (stored, reads) = walk(&mut ahead, &files, 1);
        assert_eq!(stored.len() + reads, 10);
    }
}
