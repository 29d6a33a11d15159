//! Polling for a moment before a thread sleeps in an epoll instance.
//!
//! Why here: between two programs of one machine the reply arrives within microseconds, and
//! sleeping and waking take longer. Must stay true: only processes with loopback sessions do so; a
//! wait polls for [`SPIN_MAX`] at most, and each unsuccessful one lets more of the thread's waits
//! sleep at once, so that a thread that is idle, or shares its core, sleeps at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

thread_local! {
    static HABIT: Cell<Habit> = const { Cell::new(Habit { pause: 0, last: 0, found: 0 }) };
}

/// History of a thread's polls.
#[derive(Clone, Copy)]
struct Habit {
    /// Waits that will sleep at once.
    pause: u32,
    /// Their number after the last unsuccessful poll.
    last: u32,
    /// Consecutive successful polls.
    found: u32,
}

/// 0: no loopback session; 1: one, on a machine with one processor; 2: polling is allowed.
static STATE: AtomicU32 = AtomicU32::new(0);

/// This process has a loopback session.
pub(crate) fn allow() {
    if STATE.load(Ordering::Relaxed) == 0 {
        let state = if processors() > 1 { 2 } else { 1 };
        STATE.store(state, Ordering::Relaxed);
    }
}

/// Repeats `look` for a moment, until it finds something; its result.
#[inline]
pub(crate) fn before_sleep(look: impl FnMut() -> i32) -> i32 {
    if STATE.load(Ordering::Relaxed) < 2 {
        return 0;
    }
    spin(look)
}

fn spin(mut look: impl FnMut() -> i32) -> i32 {
    let mut habit = HABIT.get();
    if habit.pause > 0 {
        habit.pause -= 1;
        HABIT.set(habit);
        return 0;
    }
    // The clock is read around the kernel's call, which takes longer than it.
    let begun = Instant::now();
    loop {
        let found = look();
        if found != 0 {
            habit.found += 1;
            if habit.found >= FOUND_MIN {
                // Slowly: one lucky look among many does not pay for the others.
                habit.last /= 2;
                habit.found = 0;
            }
            HABIT.set(habit);
            return found;
        }
        if begun.elapsed() >= SPIN_MAX {
            break;
        }
        std::hint::spin_loop();
    }
    // Doubled with each failure, so that an idle thread soon stops looking.
    let next = (habit.last * 2 + 1).min(PAUSE_MAX);
    HABIT.set(Habit {
        pause: next,
        last: next,
        found: 0,
    });
    0
}

/// Processors that this process may use.
fn processors() -> i32 {
    // SAFETY: zeros are an empty set, and the kernel writes one of the given size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) != 0 {
            return 1;
        }
        libc::CPU_COUNT(&set)
    }
}

/// Half of the time that sleeping and waking take in a virtual machine.
const SPIN_MAX: Duration = Duration::from_micros(10);
/// Most waits that sleep at once, after many unsuccessful polls.
const PAUSE_MAX: u32 = 4095;
/// Successful polls after which the number of waits that sleep at once is reduced.
const FOUND_MIN: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_in_vain_looks_ever_less() {
        let mut looked = 0;
        for _ in 0..20_000 {
            let mut is_first = true;
            spin(|| {
                looked += i32::from(std::mem::take(&mut is_first));
                0
            });
        }
        // 1, 3, 7, ... 4095, and then each 4096th.
        assert!((12..=18).contains(&looked), "{looked}");
        HABIT.set(Habit {
            pause: 0,
            last: 0,
            found: 0,
        });
        assert_eq!(spin(|| 3), 3);
        assert_eq!(spin(|| 4), 4);
    }
}
