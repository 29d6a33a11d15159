//! Stores files of a tree in the page cache before their reader opens them.
//!
//! Why here: the thread that executes the predictions of [`super::ahead`]. It decompresses a run of
//! files at once, on all free engines, while the reader goes through the run before.
//!
//! Must stay true: storing waits for a page that is being read, so the thread holds nothing then
//! that the reply needs: bytes are copied out of the source first, and no thread of the session
//! does this work. A run that finds the queue full is left to its reader.
//! Source: `fuse_notify_store` in `fs/fuse/dev.c` of Linux.

use super::ahead::{RUN_BYTES_MAX, Run};
use super::outlet::Notices;
use super::tree_fs::{Files, fill};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_erofs::{Extent, Kind};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// The thread's end of the queue, before it has begun.
pub(super) struct Runs {
    files: Arc<Files>,
    runs: Receiver<Run>,
}

/// A file of a run: its node, and its place among the bytes of a group.
struct Stored {
    node: u64,
    from: usize,
    len: usize,
}

/// Files whose bytes are contiguous in the image, as many as are read at once.
#[derive(Default)]
struct Group {
    start: u64,
    len: usize,
    files: Vec<Stored>,
}

impl Runs {
    /// The receiving end; dropping the sender ends the thread.
    pub(super) fn new(files: Arc<Files>, runs: Receiver<Run>) -> Self {
        Self { files, runs }
    }

    /// Starts the thread that stores.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn store_with(self, notices: Notices) -> io::Result<()> {
        std::thread::Builder::new()
            .name("fuse-ahead".into())
            .spawn(move || {
                let mut buffer = Vec::new();
                for run in &self.runs {
                    // The file is gone, or the file system is being unmounted: both are fine.
                    let _ = self.store(run, &notices, &mut buffer);
                }
            })
            .map(drop)
    }

    fn store(&self, run: Run, notices: &Notices, buffer: &mut Vec<u8>) -> io::Result<()> {
        let (mut last, mut bytes) = (run.mark, 0);
        let mut group = Group::default();
        while bytes < run.bytes {
            // Locked for each file alone: readers report under the same lock.
            let next = self.files.ahead.lock().take_after(run.mark, last);
            let Some(nid) = next else { break };
            last = nid;
            // The reader gets the error of a damaged file.
            let Ok(inode) = self.files.inode_of(nid) else {
                continue;
            };
            // The kernel itself reads ahead in a large file.
            if inode.kind != Kind::File || inode.size_bytes > FILE_BYTES_MAX {
                break;
            }
            let len = inode.size_bytes.to_usize();
            bytes += inode.size_bytes;
            let mut extents = Vec::new();
            let erofs = &self.files.tree.erofs;
            if len == 0
                || erofs
                    .extents(&inode, 0, len.to_u64(), &mut extents)
                    .is_err()
            {
                continue;
            }
            let node = self.files.node(nid);
            match extents[..] {
                [Extent { at: Some(at), .. }] => {
                    // Files of one directory are neighbours in the image: one read serves many of
                    // them.
                    if !group.takes(at, len) {
                        self.flush(&mut group, notices, buffer)?;
                        group.start = at;
                    }
                    group.add(node, at, len);
                }
                // Holes, and files whose pieces belong to other files.
                _ => {
                    let part = part(buffer, len);
                    if fill(&*self.files.tree.source, &extents, part).is_ok() {
                        notices.store(node, 0, part)?;
                    }
                }
            }
        }
        self.flush(&mut group, notices, buffer)
    }

    /// Reads and stores a group, and empties it.
    fn flush(&self, group: &mut Group, notices: &Notices, buffer: &mut Vec<u8>) -> io::Result<()> {
        let part = part(buffer, group.len);
        let read = self.files.tree.source.read_into(group.start, part);
        // A damaged piece fails only the reads of its files, which the kernel then requests.
        if read.is_ok() {
            for file in &group.files {
                notices.store(file.node, 0, &part[file.from..file.from + file.len])?;
            }
        }
        // The list keeps its memory for the next group.
        group.files.clear();
        group.len = 0;
        Ok(())
    }
}

impl Group {
    /// True when a file lies behind the others, and not far away.
    fn takes(&self, at: u64, len: usize) -> bool {
        let end = self.start + self.len.to_u64();
        let near = (end..=end + GAP_BYTES_MAX).contains(&at);
        near && !self.files.is_empty() && at + len.to_u64() - self.start <= GROUP_BYTES_MAX
    }

    fn add(&mut self, node: u64, at: u64, len: usize) {
        let from = (at - self.start).to_usize();
        self.files.push(Stored { node, from, len });
        self.len = from + len;
    }
}

/// The first `len` bytes of a buffer, which is sized for the longest read at once.
fn part(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(GROUP_BYTES_MAX.to_usize(), 0);
    }
    &mut buffer[..len]
}

/// Longer files are left to their readers.
const FILE_BYTES_MAX: u64 = 512 << 10;
/// Bytes that are read at once: a run, whose last file may reach over its end.
const GROUP_BYTES_MAX: u64 = RUN_BYTES_MAX + FILE_BYTES_MAX;
/// Largest gap between two files that is read with them: padding to a block or a chunk.
const GAP_BYTES_MAX: u64 = 64 << 10;
