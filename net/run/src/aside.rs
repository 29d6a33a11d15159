//! Work that may block, on threads of its own: closing files that are not sockets, and writing
//! notices.
//!
//! Must stay true: the caller does not block while the queues have room; they are bounded: beyond
//! that, a line is dropped, and a file is closed by the caller.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// One item of work.
enum Work {
    Close(OwnedFd),
    Say(String),
}

/// Closes a file whose close may block: another process may serve its file system (FUSE).
pub(crate) fn close(file: OwnedFd) {
    hand_over(&CLOSING, Work::Close(file));
}

/// Writes a line to the log. The reader of standard error may be slow or absent: lines beyond the
/// bound of the queue are dropped.
pub(crate) fn say(line: String) {
    hand_over(&SAYING, Work::Say(line));
}

/// Waits until all lines are written, for at most `limit`.
pub(crate) fn finish(limit: Duration) {
    let begun = Instant::now();
    // Acquire pairs with the AcqRel of the worker: the line is written before it is counted off.
    while UNSAID.load(Ordering::Acquire) > 0 && begun.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn hand_over(worker: &OnceLock<Option<SyncSender<Work>>>, work: Work) {
    let is_said = matches!(work, Work::Say(_));
    // Two threads, so that a blocked close does not hold notices up.
    let Some(sender) = worker.get_or_init(start) else {
        return;
    };
    UNSAID.fetch_add(usize::from(is_said), Ordering::AcqRel);
    if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sender.try_send(work) {
        UNSAID.fetch_sub(usize::from(is_said), Ordering::AcqRel);
    }
}

fn start() -> Option<SyncSender<Work>> {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let thread = std::thread::Builder::new().name("sidecore-aside".to_owned());
    let work = move || {
        for work in receiver {
            match work {
                Work::Close(file) => drop(file),
                Work::Say(line) => {
                    tracing::warn!("{line}");
                    UNSAID.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    };
    // Without a thread, files stay open and lines are dropped; the caller must not block instead.
    thread.spawn(work).ok()?;
    Some(sender)
}

static CLOSING: OnceLock<Option<SyncSender<Work>>> = OnceLock::new();
static SAYING: OnceLock<Option<SyncSender<Work>>> = OnceLock::new();
static UNSAID: AtomicUsize = AtomicUsize::new(0);
/// Bound of each queue: files to close, lines to write.
const WAITING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_file_is_closed_by_another_thread() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        close(writer.into());
        // It ends once the last writer is closed.
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
    }

    #[test]
    fn lines_are_written_before_the_end() {
        say("a line of a test".to_owned());
        finish(Duration::from_secs(60));
        assert_eq!(UNSAID.load(Ordering::Acquire), 0);
        // Without lines there is nothing to wait for.
        finish(Duration::ZERO);
    }
}
