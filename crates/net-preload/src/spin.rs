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
    /// Waits that are to sleep at once, and how many those were the last time.
    static PAUSE: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
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
    let (left, last) = PAUSE.get();
    if left > 0 {
        PAUSE.set((left - 1, last));
        return 0;
    }
    let begun = Instant::now();
    loop {
        let found = look();
        if found != 0 {
            PAUSE.set((0, last / 2));
            return found;
        }
        if begun.elapsed() >= SPIN_MAX {
            break;
        }
        std::hint::spin_loop();
    }
    let next = (last * 2 + 1).min(PAUSE_MAX);
    PAUSE.set((next, next));
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
const SPIN_MAX: Duration = Duration::from_micros(20);
/// Waits that sleep at once after many that looked in vain.
const PAUSE_MAX: u32 = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_in_vain_looks_ever_less() {
        let mut looked = 0;
        for _ in 0..2_000 {
            let mut is_first = true;
            spin(|| {
                looked += i32::from(std::mem::take(&mut is_first));
                0
            });
        }
        // 1, 3, 7, ... 255, and then each 256th.
        assert!((8..=16).contains(&looked), "{looked}");
        PAUSE.set((0, 0));
        assert_eq!(spin(|| 3), 3);
        assert_eq!(spin(|| 4), 4);
    }
}
