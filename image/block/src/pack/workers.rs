//! Runs frames in parallel on engines and returns results in order: the one interface between
//! packing and the pool.
//!
//! Why here: packing, unpacking and verifying all walk an image's frames in order and spend their
//! time in one kernel per frame. This file alone decides which threads run the kernels.
//!
//! Three batches of jobs circulate between two threads. The caller's thread runs a batch as one
//! loop on the engines (`Pool::for_each`). The other thread finishes the batch before it and fills
//! the one after, so that reading and writing overlap with the kernels. Where no second thread can
//! be started, the caller's thread does both, in turn.
//!
//! Must stay true: jobs are made at the start and used again, so memory is bounded whatever the
//! image's size; `done` sees jobs in the order in which `fill` made them.

use sidecore_engine::Core;
use sidecore_offload::{OffloadError, Pool};
use sidecore_sched::ClassId;
use std::sync::{Mutex, PoisonError, mpsc};

/// The class under which the scheduler measures the cost of these loops.
const CLASS: ClassId = ClassId(2);

/// Batches in circulation: one on the engines, one being finished and filled, one in transit.
const BATCHES: usize = 3;

/// Jobs of a batch per engine: enough that the engine that ends first does not wait long.
const JOBS_PER_ENGINE: usize = 16;

/// The most bytes of frames in a batch, where frames are large; but two jobs per engine at least.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// The same where frames are so large that two jobs per engine would be more than this.
const HUGE_BYTES_MAX: usize = 160 << 20;

/// A job and its kernel's result.
struct Slot<J, E> {
    job: J,
    result: Result<(), E>,
}

/// Runs `kernel` on the jobs that `fill` makes, on the engines of `pool`, and passes them to `done`
/// in order. A job's frame has `frame_bytes`; `jobs_max` jobs fit the memory. `fill` returns false
/// when there are no more jobs. Blocks until all is done.
///
/// # Errors
/// The first that `fill`, `kernel` or `done` returns, in the order of the jobs. Jobs after it may
/// have been run.
///
/// # Panics
/// When a kernel does.
#[allow(clippy::too_many_arguments)] // Two bounds, and the steps of a job's life.
pub(super) fn run_frames<J, K, E>(
    pool: &Pool,
    frame_bytes: usize,
    jobs_max: usize,
    make_job: impl Fn() -> J,
    make_kernel: impl Fn() -> Result<K, E>,
    fill: impl FnMut(&mut J) -> Result<bool, E> + Send,
    kernel: impl Fn(&mut K, &mut J) -> Result<(), E> + Sync,
    done: impl FnMut(&mut J) -> Result<(), E> + Send,
) -> Result<(), E>
where
    J: Send,
    K: Send,
    E: Send,
{
    let engines = pool.engines();
    let kernels = (0..engines)
        .map(|_| make_kernel().map(Mutex::new))
        .collect::<Result<Vec<_>, E>>()?;
    // Batches are bounded by bytes; but large frames get two jobs an engine, within a wider bound.
    let fit = |bytes: usize| (bytes / frame_bytes.max(1)).max(1);
    let jobs = (engines * JOBS_PER_ENGINE)
        .min(fit(BATCH_BYTES_MAX))
        .max((2 * engines).min(fit(HUGE_BYTES_MAX)));
    let batches = BATCHES.min(jobs_max.max(1));
    let jobs = jobs.min(jobs_max / batches).max(1);
    let batch = || {
        let slots = (0..jobs).map(|_| Slot {
            job: make_job(),
            result: Ok(()),
        });
        slots.collect::<Vec<_>>()
    };
    let on_engines = |slots: &mut Vec<Slot<J, E>>| {
        let run = |_: &mut Core, slot: &mut Slot<J, E>| {
            slot.result = with_any(&kernels, |state| kernel(state, &mut slot.job));
        };
        pool.for_each(CLASS, slots, run)
    };
    // Either the I/O thread takes these or, if it cannot be started, this thread.
    let ends = Mutex::new(Some(Ends {
        fill,
        done,
        more: true,
    }));
    let take_ends = || ends.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (to_io, finished) = mpsc::channel::<Vec<Slot<J, E>>>();
    let (to_engines, filled) = mpsc::channel::<Vec<Slot<J, E>>>();
    std::thread::scope(|scope| {
        let spare: Vec<_> = (0..batches).map(|_| batch()).collect();
        let take_ends = &take_ends;
        let io = std::thread::Builder::new().spawn_scoped(scope, move || {
            let Some(mut ends) = take_ends() else {
                return Ok(());
            };
            for mut slots in spare {
                ends.fill(&mut slots)?;
                // An empty batch is the end; the receiver is gone only when the engines failed.
                let _ = to_engines.send(slots);
            }
            while let Ok(mut slots) = finished.recv() {
                ends.finish(&mut slots)?;
                ends.fill(&mut slots)?;
                let _ = to_engines.send(slots);
            }
            Ok(())
        });
        let io = match io {
            Ok(io) => io,
            // No second thread: then one step after another. The closure was dropped, not run.
            Err(_) => {
                let (Some(mut ends), mut slots) = (take_ends(), batch()) else {
                    return Ok(());
                };
                loop {
                    ends.fill(&mut slots)?;
                    if slots.is_empty() {
                        return Ok(());
                    }
                    on_engines(&mut slots).unwrap_or_else(|error| fail(error));
                    ends.finish(&mut slots)?;
                }
            }
        };
        while let Ok(mut slots) = filled.recv() {
            if slots.is_empty() {
                break;
            }
            // A failed loop ends the I/O thread first: dropping its channel makes its next receive
            // return.
            if let Err(error) = on_engines(&mut slots) {
                drop(to_io);
                let _ = io.join();
                fail(error);
            }
            if to_io.send(slots).is_err() {
                break;
            }
        }
        // Dropping the channels ends the I/O thread's loop, for which the join waits.
        drop(to_io);
        drop(filled);
        match io.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The two ends of the walk: `fill` makes jobs, `done` consumes them.
struct Ends<F, D> {
    fill: F,
    done: D,
    more: bool,
}

impl<F, D> Ends<F, D> {
    /// Fills a batch; it is empty when there are no more jobs.
    fn fill<J, E>(&mut self, slots: &mut Vec<Slot<J, E>>) -> Result<(), E>
    where
        F: FnMut(&mut J) -> Result<bool, E>,
    {
        let mut count = 0;
        while self.more && count < slots.len() {
            self.more = (self.fill)(&mut slots[count].job)?;
            count += usize::from(self.more);
        }
        slots.truncate(count);
        Ok(())
    }

    /// Passes the jobs of a batch on.
    fn finish<J, E>(&mut self, slots: &mut [Slot<J, E>]) -> Result<(), E>
    where
        D: FnMut(&mut J) -> Result<(), E>,
    {
        for slot in slots {
            std::mem::replace(&mut slot.result, Ok(()))?;
            (self.done)(&mut slot.job)?;
        }
        Ok(())
    }
}

/// A kernel's panic is a bug of ours: it is passed on here.
fn fail(error: OffloadError) -> ! {
    match error {
        OffloadError::Panicked { message } => panic!("{message}"),
        other => panic!("{other}"),
    }
}

/// Runs `work` with a kernel that no other thread is using; there is one for each engine.
fn with_any<K, R>(kernels: &[Mutex<K>], work: impl FnOnce(&mut K) -> R) -> R {
    loop {
        for kernel in kernels {
            if let Ok(mut kernel) = kernel.try_lock() {
                return work(&mut kernel);
            }
        }
        // All held: impossible while there are as many kernels as engines, unless one was poisoned
        // by a panic that is propagating.
        if let Some(first) = kernels.first() {
            return work(&mut first.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_offload::PoolConfig;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn pool(engines: usize) -> Pool {
        Pool::start(PoolConfig {
            engines,
            ..PoolConfig::default()
        })
        .unwrap()
    }

    #[test]
    fn results_come_in_order_and_jobs_are_bounded() {
        let made = AtomicUsize::new(0);
        let mut next = 0_u64;
        let mut seen = Vec::new();
        run_frames::<u64, (), ()>(
            &pool(3),
            64 << 10,
            usize::MAX,
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
        assert_eq!(made.into_inner(), BATCHES * 3 * JOBS_PER_ENGINE);
    }

    #[test]
    #[should_panic(expected = "a bug")]
    fn a_panic_is_passed_on() {
        let _ = run_frames::<i32, (), ()>(
            &pool(2),
            64 << 10,
            usize::MAX,
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
                &pool(2),
                64 << 10,
                usize::MAX,
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
