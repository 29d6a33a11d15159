//! Work that may wait for others, on threads of its own: closing files that are no sockets, and
//! writing notices.
//!
//! Must stay true: nothing here waits in the caller's thread; what does not fit is bounded.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Something to do.
enum Work {
    Close(OwnedFd),
    Say(String),
}

/// Closes a file whose closing may wait: another process may serve its file system.
pub(crate) fn close(file: OwnedFd) {
    hand_over(&CLOSING, Work::Close(file));
}

/// Writes a line to the log. The other end of standard error may read slowly, or not at all: lines
/// beyond a bound are dropped.
pub(crate) fn say(line: String) {
    hand_over(&SAYING, Work::Say(line));
}

/// Waits until all lines are written, at most for `limit`.
pub(crate) fn finish(limit: Duration) {
    let begun = Instant::now();
    while UNSAID.load(Ordering::Acquire) > 0 && begun.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn hand_over(worker: &OnceLock<Option<SyncSender<Work>>>, work: Work) {
    let is_said = matches!(work, Work::Say(_));
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
    // Without a thread nothing is said.
    thread.spawn(work).ok()?;
    Some(sender)
}

static CLOSING: OnceLock<Option<SyncSender<Work>>> = OnceLock::new();
static SAYING: OnceLock<Option<SyncSender<Work>>> = OnceLock::new();
static UNSAID: AtomicUsize = AtomicUsize::new(0);
/// Files to close, and lines to write, that wait.
const WAITING_MAX: usize = 64;
