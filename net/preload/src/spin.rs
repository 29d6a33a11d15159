//! Looking again for a moment before a thread sleeps in an epoll.
//!
//! Why here: between two programs of one machine the answer comes within microseconds, and sleeping
//! and being woken takes longer than that. Must stay true: only processes with sessions of the
//! loopback do so; a wait looks for [`SPIN_MAX`] at most, and one that finds nothing so keeps the
//! thread from it for ever longer, so that who is idle, or shares its core, sleeps at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

thread_local! {
    static HABIT: Cell<Habit> = const { Cell::new(Habit { pause: 0, last: 0, found: 0 }) };
}

/// Outcome of a thread's looks.
#[derive(Clone, Copy)]
struct Habit {
    /// Waits that are to sleep at once.
    pause: u32,
    /// Their number the last time.
    last: u32,
    /// Looks, one behind the other, that have found something.
    found: u32,
}

/// 0: no session of the loopback's; 1: one, on a machine of one processor; 2: may look again.
static STATE: AtomicU32 = AtomicU32::new(0);

/// This process has a session of the loopback's.
pub(crate) fn allow() {
    if STATE.load(Ordering::Relaxed) == 0 {
        let state = if processors() > 1 { 2 } else { 1 };
        STATE.store(state, Ordering::Relaxed);
    }
}

/// Makes `look` again and again for a moment, until it finds something; what it has found.
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
    let begun = Instant::now();
    loop {
        let found = look();
        if found != 0 {
            habit.found += 1;
            if habit.found >= FOUND_MIN {
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
    // SAFETY: zeros are an empty set, and the kernel writes one of the size that is said.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) != 0 {
            return 1;
        }
        libc::CPU_COUNT(&set)
    }
}

/// Half of what sleeping and being woken takes in a virtual machine.
const SPIN_MAX: Duration = Duration::from_micros(10);
/// Waits that sleep at once after many that looked in vain.
const PAUSE_MAX: u32 = 4095;
/// Looks that find something before fewer waits are to sleep at once after the next one in vain.
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
