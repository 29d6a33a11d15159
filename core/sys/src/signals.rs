//! Signals that a thread waits for, one after the other.
//!
//! Why here: `signal-hook`'s own iterators panic where the system is out of memory for a moment,
//! and a server without the thread that waits for signals cannot be ended any more. Must stay true:
//! no error of the system ends the wait. No signal is lost, neither one that came before the wait
//! nor one whose handler could not send its wake-up byte, for which the kernel may have no memory.
//! One thread waits; any may close.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::iterator::backend::{Pending, SignalDelivery};
use signal_hook::iterator::exfiltrator::{Exfiltrator, SignalOnly};
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub use signal_hook::iterator::Handle;
pub use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};

/// Signals that have come and are to come, without end until it is closed ([`Self::handle`]): by
/// their numbers, or with their senders ([`WithOrigin`]). Several of one number may come as one.
#[derive(Debug)]
pub struct Signals<E: Exfiltrator = SignalOnly> {
    delivery: SignalDelivery<UnixStream, E>,
    pending: Option<Pending<E>>,
    was_woken: bool,
}

impl<E: Exfiltrator + Default> Signals<E> {
    /// Begins to take these signals, which do not end the process from here on.
    ///
    /// # Errors
    /// Those of `sigaction` and `socketpair`.
    pub fn new(signals: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        Ok(Self {
            delivery: SignalDelivery::with_pipe(read, write, E::default(), signals)?,
            pending: None,
            was_woken: false,
        })
    }

    /// A handle that closes it, from any thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.delivery.handle()
    }

    /// True once it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.handle().is_closed()
    }
}

impl<E: Exfiltrator> Iterator for Signals<E> {
    type Item = E::Output;

    /// Waits for the next one; `None` once it was closed.
    fn next(&mut self) -> Option<E::Output> {
        loop {
            if let Some(pending) = &mut self.pending {
                if let Some(signal) = pending.next() {
                    return Some(signal);
                }
                if self.was_woken {
                    // A spurious wake-up, or the bytes that woke us could not be read.
                    std::thread::sleep(PAUSE);
                }
            }
            let mut was_woken = true;
            let polled = self.delivery.poll_pending(&mut |pipe| {
                was_woken = wait(pipe);
                Ok(true)
            });
            self.was_woken = was_woken;
            self.pending = polled.ok()?;
            self.pending.as_ref()?;
        }
    }
}

/// Waits until there is news, or it is time to look all the same; true where there is, or that
/// cannot be known.
fn wait(pipe: &UnixStream) -> bool {
    let mut places = [PollFd::new(pipe, PollFlags::IN)];
    poll(&mut places, Some(&LOOK_EVERY)) != Ok(0)
}

/// Time for memory to come back.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest time until a signal is seen whose handler could not wake us. Together with the time
/// that a server takes to end it is less than a second.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 150_000_000,
};

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    #[test]
    fn a_signal_that_could_not_wake_who_waits_comes_all_the_same() {
        let (read, _write) = UnixStream::pair().unwrap();
        // The handler's bytes go elsewhere.
        let (elsewhere, _kept) = UnixStream::pair().unwrap();
        let taken = [Signal::USR1.as_raw()];
        let signals = Signals {
            delivery: SignalDelivery::with_pipe(read, elsewhere, SignalOnly, taken).unwrap(),
            pending: None,
            was_woken: false,
        };
        let handle = signals.handle();
        let (sender, receiver) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || {
            for signal in signals {
                sender.send(signal).unwrap();
            }
        });
        kill_process(getpid(), Signal::USR1).unwrap();
        assert_eq!(receiver.recv().unwrap(), Signal::USR1.as_raw());
        // So is its end.
        handle.close();
        waits.join().unwrap();
    }

    #[test]
    fn signals_come_until_it_is_closed() {
        let mut signals = Signals::<WithOrigin>::new([Signal::USR2.as_raw()]).unwrap();
        let handle = signals.handle();
        kill_process(getpid(), Signal::USR2).unwrap();
        let origin = signals.next().unwrap();
        assert_eq!(origin.signal, Signal::USR2.as_raw());
        let sender = origin.process.unwrap();
        assert_eq!(sender.pid, getpid().as_raw_nonzero().get());
        let waits = std::thread::spawn(move || signals.count());
        kill_process(getpid(), Signal::USR2).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        handle.close();
        assert_eq!(waits.join().unwrap(), 1);
    }
}
