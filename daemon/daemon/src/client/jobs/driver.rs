//! The thread that wakes futures: it sleeps at the engines' wake-ups, and does jobs that no engine
//! does.
//!
//! Why here: a future may be polled by an executor that knows nothing of engines, so another thread
//! has to sleep for it. Must stay true: it exists only while a future was pending within the last
//! second, and ends with the client and its tickets.

use super::Queue;
use super::book::Book;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Starts the thread, unless there is one.
pub(super) fn start(queue: &Arc<Queue>) {
    if queue.with(|book| std::mem::replace(&mut book.driven, true)) {
        return;
    }
    let driven = Arc::clone(queue);
    let started = std::thread::Builder::new()
        .name("sidecore-jobs".to_owned())
        .spawn(move || drive(&driven));
    if started.is_err() {
        // Out of threads: callers that poll go on polling.
        queue.with(|book| {
            book.driven = false;
            book.wake_all();
        });
    }
}

fn drive(queue: &Arc<Queue>) {
    let mut awaited = Instant::now();
    loop {
        queue.run_awaited();
        if queue.with(|book| book.wakers > 0) {
            awaited = Instant::now();
            queue.rest(None, |book: &mut Book| {
                book.wakers == 0 || book.next_awaited().is_some()
            });
            continue;
        }
        let is_last = Arc::strong_count(queue) == 1;
        let is_over = is_last || awaited.elapsed() > LINGER;
        // Decided with the book open: a future that leaves a waker later starts another thread.
        if queue.with(|book| {
            let ends = is_over && book.wakers == 0;
            book.driven = !ends;
            ends
        }) {
            return;
        }
        let is_wanted = || (queue.book.lock().wakers > 0).then_some(());
        queue.changed.wait_until(0, Some(LINGER / 20), is_wanted);
    }
}

/// Time for which it stays when no future is pending.
const LINGER: Duration = Duration::from_secs(1);
