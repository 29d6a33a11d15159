//! Frames side by side, results in order: the one seam between packing and the cores that do the
//! work.
//!
//! Why here: packing, unpacking and verifying all walk an image's frames in order and spend their
//! time in one kernel per frame. Who runs the kernels is this file's business alone.
//! Must stay true: at most [`IN_FLIGHT_PER_ENGINE`] jobs per engine exist, made at the start and
//! used again, so memory is bounded whatever the image's size; `done` sees jobs in the order in
//! which `fill` made them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Jobs per engine between being filled and being done.
pub(super) const IN_FLIGHT_PER_ENGINE: usize = 4;

/// Runs `kernel` on the jobs that `fill` makes, on `engines` threads, and hands them to `done` in
/// order. `fill` and `done` run on the calling thread; `fill` returns false when there are no more
/// jobs.
///
/// # Errors
/// The first that `fill`, `kernel` or `done` returns, in the order of the jobs. Jobs after it may
/// have been run.
pub(super) fn run_frames<J, K, E>(
    engines: usize,
    make_job: impl Fn() -> J,
    make_kernel: impl Fn() -> Result<K, E>,
    mut fill: impl FnMut(&mut J) -> Result<bool, E>,
    kernel: impl Fn(&mut K, &mut J) -> Result<(), E> + Sync,
    mut done: impl FnMut(&mut J) -> Result<(), E>,
) -> Result<(), E>
where
    J: Send,
    K: Send,
    E: Send,
{
    let engines = engines.max(1);
    let in_flight = engines * IN_FLIGHT_PER_ENGINE;
    let kernels = (0..engines)
        .map(|_| make_kernel())
        .collect::<Result<Vec<_>, E>>()?;
    let queue = Queue::default();
    let kernel = &kernel;
    std::thread::scope(|scope| {
        let (finished, results) = mpsc::channel();
        for mut state in kernels {
            let finished = finished.clone();
            let queue = &queue;
            scope.spawn(move || {
                while let Some((number, mut job)) = queue.pop() {
                    let run = AssertUnwindSafe(|| kernel(&mut state, &mut job));
                    let result = catch_unwind(run);
                    let panicked = result.is_err();
                    if finished.send((number, job, result)).is_err() || panicked {
                        break;
                    }
                }
            });
        }
        drop(finished);
        // Ends the threads on every way out of this closure, panics included.
        let _closing = Closing(&queue);
        let mut free: Vec<J> = (0..in_flight).map(|_| make_job()).collect();
        // Results by their distance from the next job to be done.
        let mut waiting: VecDeque<Option<(J, Result<(), E>)>> = VecDeque::new();
        let (mut filled, mut finished, mut more) = (0_u64, 0_u64, true);
        loop {
            while more && let Some(mut job) = free.pop() {
                more = fill(&mut job)?;
                if more {
                    queue.push((filled, job));
                    waiting.push_back(None);
                    filled += 1;
                }
            }
            if finished == filled {
                return Ok(());
            }
            // The threads end only when the queue is closed, or after a panic, which comes as a
            // result.
            let Ok((number, job, result)) = results.recv() else {
                unreachable!("all threads ended while jobs were under way");
            };
            // A kernel's panic is a bug of ours: it goes on here, and ends the others on its way.
            let result = result.unwrap_or_else(|panic| resume_unwind(panic));
            waiting[(number - finished) as usize] = Some((job, result));
            while let Some(Some(_)) = waiting.front() {
                if let Some((mut job, result)) = waiting.pop_front().flatten() {
                    result?;
                    done(&mut job)?;
                    finished += 1;
                    free.push(job);
                }
            }
        }
    })
}

/// What is to be run next. Bounded by the number of jobs there are.
struct Queue<J> {
    state: Mutex<(VecDeque<(u64, J)>, bool)>,
    changed: Condvar,
}

impl<J> Default for Queue<J> {
    fn default() -> Self {
        Self {
            state: Mutex::new((VecDeque::new(), false)),
            changed: Condvar::new(),
        }
    }
}

impl<J> Queue<J> {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<(u64, J)>, bool)> {
        // Nothing in here can be left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: (u64, J)) {
        self.lock().0.push_back(job);
        self.changed.notify_one();
    }

    /// The next job; blocks until there is one. `None` when the queue was closed.
    fn pop(&self) -> Option<(u64, J)> {
        let mut state = self.lock();
        loop {
            if state.1 {
                return None;
            }
            if let Some(job) = state.0.pop_front() {
                return Some(job);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct Closing<'a, J>(&'a Queue<J>);

impl<J> Drop for Closing<'_, J> {
    fn drop(&mut self) {
        self.0.lock().1 = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_come_in_order_and_jobs_are_bounded() {
        let made = AtomicUsize::new(0);
        let mut next = 0_u64;
        let mut seen = Vec::new();
        run_frames::<u64, (), ()>(
            3,
            || {
                made.fetch_add(1, Ordering::Relaxed);
                0
            },
            || Ok(()),
            |job| {
                *job = next;
                next += 1;
                Ok(next <= 500)
            },
            |(), job| {
                // Later jobs finish first.
                if *job % 7 == 0 {
                    std::thread::sleep(std::time::Duration::from_micros(300));
                }
                *job *= 2;
                Ok(())
            },
            |job| {
                seen.push(*job);
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(seen, (0..500).map(|i| i * 2).collect::<Vec<_>>());
        assert_eq!(made.into_inner(), 3 * IN_FLIGHT_PER_ENGINE);
    }

    #[test]
    #[should_panic(expected = "a bug")]
    fn a_panic_is_passed_on() {
        let _ = run_frames::<i32, (), ()>(
            2,
            || 0,
            || Ok(()),
            |_| Ok(true),
            |(), _| panic!("a bug"),
            |_| Ok(()),
        );
    }

    #[test]
    fn the_first_error_ends_it() {
        for at in ["fill", "kernel", "done"] {
            let mut next = 0;
            let mut done = 0;
            let result = run_frames(
                2,
                || 0,
                || Ok(()),
                |job| {
                    *job = next;
                    next += 1;
                    if at == "fill" && next == 40 {
                        Err("fill")
                    } else {
                        Ok(true)
                    }
                },
                |(), job: &mut i32| {
                    if at == "kernel" && *job == 33 {
                        Err("kernel")
                    } else {
                        Ok(())
                    }
                },
                |job| {
                    done = *job;
                    if at == "done" && *job == 20 {
                        Err("done")
                    } else {
                        Ok(())
                    }
                },
            );
            assert_eq!(result, Err(at));
            assert!(done < 40, "{at}: {done}");
        }
    }
}
