//! Waiting on words that several processes share, one or many at once.
//!
//! Why here: a client sleeps until an engine of another process has an answer, and an engine until
//! any client has a request. Source: futex(2), futex_waitv(2) (Linux 5.16).
//!
//! ```
//! use sidecore_sys::futex::Woken;
//! use sidecore_sys::shared_futex;
//! use std::sync::atomic::AtomicU32;
//! use std::time::Duration;
//!
//! // In memory that two processes map; here one looks for itself.
//! let word = AtomicU32::new(7);
//! assert_eq!(shared_futex::wait(&word, 6, Duration::from_secs(60)), Woken::LookAgain);
//! assert_eq!(shared_futex::wake(&word, u32::MAX), 0, "nobody sleeps");
//! ```

pub use crate::futex::Woken;
use crate::{SysError, clock};
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::ClockId;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The most words that one sleep can be about.
pub const WORDS_MAX: usize = 128;

/// Sleeps while `word` holds `expected`, for at most `timeout`. May return early for no reason.
#[inline]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> Woken {
    let limit = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match futex::wait(word, Flags::empty(), expected, Some(&limit)) {
        Err(Errno::TIMEDOUT) => Woken::TimedOut,
        _ => Woken::LookAgain,
    }
}

/// Wakes at most `count` threads, of any process, that wait on `word`, and says how many it woke.
#[inline]
pub fn wake(word: &AtomicU32, count: u32) -> usize {
    futex::wake(word, Flags::empty(), count.min(i32::MAX as u32)).unwrap_or(0)
}

/// Sleeps while every word holds the value that is given with it, for at most `timeout`. May return
/// early for no reason. All words are shared ones: [`wake`] wakes them.
///
/// # Errors
/// [`SysError::Call`] where the kernel has no such call (before 5.16) or forbids it;
/// [`SysError::Size`] for no words or more than [`WORDS_MAX`].
pub fn wait_any(words: &[(&AtomicU32, u32)], timeout: Duration) -> Result<Woken, SysError> {
    if words.is_empty() || words.len() > WORDS_MAX {
        return Err(SysError::Size {
            what: "a wait for many words (4 bytes each)",
            value: words.len() * 4,
            rule: "1 to 128 words",
        });
    }
    let mut waits = [Wait::new(); WORDS_MAX];
    for (wait, &(word, expected)) in waits.iter_mut().zip(words) {
        wait.val = expected.into();
        wait.uaddr = WaitPtr::new(word.as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
    }
    // This call takes a moment, not a length of time.
    let until = Duration::from_nanos(clock::now_ns()).saturating_add(timeout);
    let until = Timespec {
        tv_sec: i64::try_from(until.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: until.subsec_nanos().into(),
    };
    let waits = &waits[..words.len()];
    match futex::waitv(waits, WaitvFlags::empty(), Some(&until), ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(Woken::LookAgain),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(source) => Err(SysError::Call {
            call: "futex_waitv (Linux 5.16 or newer)",
            source: source.into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{SharedMap, Sharing};
    use std::sync::atomic::Ordering;

    #[test]
    fn any_of_many_words_wakes_through_another_mapping() {
        let map = SharedMap::create("test", 4096, Sharing::ReadWrite).unwrap();
        let file = map.file().try_clone_to_owned().unwrap();
        let other = SharedMap::open(file, 4096, Sharing::ReadWrite).unwrap();
        let word = |map: &'static SharedMap, index: usize| -> &'static AtomicU32 {
            map.slice().overlay(index * 128).unwrap()
        };
        let (map, other) = (&*Box::leak(Box::new(map)), &*Box::leak(Box::new(other)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let words: Vec<_> = (0..5).map(|index| (word(map, index), 0)).collect();
                while word(map, 3).load(Ordering::Acquire) == 0 {
                    wait_any(&words, Duration::from_secs(20)).unwrap();
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            word(other, 3).store(1, Ordering::Release);
            wake(word(other, 3), 1);
        });
        assert_eq!(
            wait(word(map, 3), 0, Duration::from_secs(20)),
            Woken::LookAgain
        );
        let timed_out = wait_any(&[(word(map, 3), 1)], Duration::from_millis(1)).unwrap();
        assert_eq!(timed_out, Woken::TimedOut);
        assert!(wait_any(&[], Duration::ZERO).is_err());
    }
}
