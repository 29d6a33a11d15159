//! Independent simulations on all cores of the machine that this runs on.
//!
//! Must stay true: results come in the order of their inputs, from whichever thread.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Applies `work` to all `inputs`, the last first: those take longest.
pub(crate) fn map<I: Copy + Sync, O: Send>(inputs: Vec<I>, work: impl Fn(I) -> O + Sync) -> Vec<O> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    // Counted down by relaxed read-modify-writes: each is dealt once, and the order does not
    // matter; joining the threads publishes their results.
    let left = AtomicUsize::new(inputs.len());
    let one_thread = || {
        let mut made = Vec::new();
        while let Ok(before) =
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        {
            made.push((before - 1, work(inputs[before - 1])));
        }
        made
    };
    let mut all: Vec<(usize, O)> = std::thread::scope(|scope| {
        // With fewer threads where no more can be started.
        let start = |_| {
            std::thread::Builder::new()
                .spawn_scoped(scope, one_thread)
                .ok()
        };
        let others = 1..cores.min(inputs.len()).max(1);
        let threads: Vec<_> = others.map_while(start).collect();
        let mut all = one_thread();
        for thread in threads {
            match thread.join() {
                Ok(made) => all.extend(made),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|&(index, _)| index);
    all.into_iter().map(|(_, output)| output).collect()
}
