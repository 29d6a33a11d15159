//! Drops pages of the FUSE file behind its readers.
//!
//! Why here: a file system that is mounted on the FUSE file keeps its files' pages itself; the FUSE
//! file's own pages would hold every byte once more. Direct I/O below the file system would avoid
//! them, but would also end the read-ahead that reads many small files with one request.
//!
//! Delivered ranges wait in a queue of [`KEPT_BYTES`], so that read-ahead is used before it is
//! dropped. Then the kernel is asked to drop their pages (`FUSE_NOTIFY_INVAL_INODE`). A second read
//! of them is served from the device's cache.
//!
//! Must stay true: the notifying thread serves no reads: the notice waits for pages that are being
//! read. A range that finds the queue full keeps its pages; no thread waits for room.
//! Source: `Documentation/filesystems/fuse/fuse.rst`, `fs/fuse/inode.c` of Linux
//! (`fuse_reverse_inval_inode`).

use super::outlet::Notices;
use sidecore_bare::width::ToU64;
use sidecore_sys::hold_only;
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A delivered range: offset and length in bytes.
type Stretch = (u64, usize);

/// The sending side, for threads that serve reads. Dropping the last one ends the thread.
#[derive(Debug, Clone)]
pub(super) struct Behind(SyncSender<Stretch>);

/// The thread's side, before it has begun.
#[derive(Debug)]
pub(super) struct Delivered(Receiver<Stretch>);

/// Both ends of a queue.
pub(super) fn line() -> (Behind, Delivered) {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    (Behind(sender), Delivered(receiver))
}

impl Behind {
    /// These bytes were delivered. Never blocks.
    pub(super) fn delivered(&self, offset: u64, len: usize) {
        // A full queue drops the report: those pages stay until the kernel needs their memory.
        let _ = self.0.try_send((offset, len));
    }
}

impl Delivered {
    /// Starts the thread that has the kernel drop pages of `node`. With `is_alone` it has no other
    /// descriptor than the device: it may wait for a reply that a killed process does not send any
    /// more, and nothing else of that process may stay open meanwhile.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn forget_with(self, notices: Notices, node: u64, is_alone: bool) -> io::Result<()> {
        std::thread::Builder::new()
            .name("fuse-behind".into())
            .spawn(move || {
                if is_alone && let Err(error) = leave_others(&notices) {
                    tracing::warn!("pages are not dropped: {error}");
                    return;
                }
                let mut kept = Kept::default();
                for stretch in self.0 {
                    kept.push(stretch);
                    while let Some((offset, len)) = kept.pop() {
                        // The inode is gone, or the file system is being unmounted: both are fine.
                        let _ = notices.forget_pages(node, offset, len);
                    }
                }
            })
            .map(drop)
    }
}

/// Leaves all descriptors but the device to the other threads; also the standard three, of which
/// one may be a pipe whose reader waits for its end.
fn leave_others(notices: &Notices) -> io::Result<()> {
    hold_only(notices.device())?;
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Ranges whose pages are still kept, oldest first.
#[derive(Debug, Default)]
struct Kept {
    line: VecDeque<Stretch>,
    bytes: usize,
}

impl Kept {
    fn push(&mut self, stretch: Stretch) {
        self.bytes += stretch.1;
        match self.line.back_mut() {
            // Joined, so that a sequential reader costs one notice for each MiB.
            Some(last) if last.0 + last.1.to_u64() == stretch.0 && last.1 < JOINED_BYTES => {
                last.1 += stretch.1;
            }
            _ => self.line.push_back(stretch),
        }
    }

    /// The oldest range, if there are too many bytes.
    fn pop(&mut self) -> Option<Stretch> {
        if self.bytes <= KEPT_BYTES {
            return None;
        }
        let oldest = self.line.pop_front()?;
        self.bytes -= oldest.1;
        Some(oldest)
    }
}

/// Bytes whose pages are kept: more than a few streams have read ahead.
const KEPT_BYTES: usize = 16 << 20;
/// Adjacent ranges are dropped together, up to this length.
const JOINED_BYTES: usize = 1 << 20;
/// Most ranges that wait for the thread.
const WAITING_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_a_bound_is_kept() {
        let mut kept = Kept::default();
        let mut gone = Vec::new();
        for number in 0..200_u64 {
            // Every other one follows its neighbour.
            let offset = number / 2 * (10 << 20) + number % 2 * 300_000;
            kept.push((offset, 300_000));
            while let Some(stretch) = kept.pop() {
                gone.push(stretch);
            }
            assert!(kept.bytes <= KEPT_BYTES);
            assert_eq!(kept.bytes, kept.line.iter().map(|it| it.1).sum::<usize>());
        }
        assert_eq!(gone[0], (0, 600_000));
        assert_eq!(gone[1], (10 << 20, 600_000));
        let all = gone.iter().map(|it| it.1).sum::<usize>() + kept.bytes;
        assert_eq!(all, 200 * 300_000);
    }
}
