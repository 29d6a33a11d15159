//! A handle of one job.

use super::book::Key;
use super::{Outcome, Queue, start_driver};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A job that was submitted. Wait for it, poll it, or await it; dropping it cancels the job.
///
/// As a `Future` it needs no runtime. Where no thread calls [`Client::poll`](super::Client::poll)
/// for the client's descriptor, a thread of the client wakes it. That thread starts when the first
/// future is pending and ends after a second without one.
///
/// ```
/// use sidecore_daemon::client::{Client, ClientOptions, Job};
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// let client = Client::detached("/nonexistent.sock", ClientOptions::default());
/// let empty = client.kernel("empty")?;
/// let mut ticket = pin!(client.submit(Job::new(empty).token(3))?);
/// // In the place of a runtime.
/// let mut context = Context::from_waker(Waker::noop());
/// let outcome = loop {
///     match ticket.as_mut().poll(&mut context) {
///         Poll::Ready(outcome) => break outcome,
///         Poll::Pending => std::thread::yield_now(),
///     }
/// };
/// assert_eq!(outcome.token, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a ticket cancels its job"]
pub struct Ticket {
    queue: Arc<Queue>,
    /// `None` once the outcome was taken.
    key: Option<Key>,
    token: u64,
}

impl Ticket {
    pub(super) fn new(queue: Arc<Queue>, key: Key, token: u64) -> Self {
        Self {
            queue,
            key: Some(key),
            token,
        }
    }

    /// The job's mark.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// True if the job has ended, so that [`Self::wait`] returns at once. Does not wait. But where
    /// the daemon has ended it does the job, by the host version of its kernel.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let Some(key) = self.key else {
            return true;
        };
        // A program that only asks would else never learn that the daemon has ended.
        self.queue.look_now_and_then();
        if self.queue.with(|book| book.is_local(key)) {
            // Not under the lock of the book: other threads wait for their jobs meanwhile.
            self.queue.run(key);
        }
        self.queue.with(|book| book.is_done(key))
    }

    /// Waits for the job. Where the daemon has ended this thread does it.
    ///
    /// # Panics
    /// If its outcome was taken before, by polling it as a future.
    #[must_use]
    pub fn wait(mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.take_until(None) {
                return outcome;
            }
        }
    }

    /// The same, at most for `timeout`.
    ///
    /// # Errors
    /// This ticket, where the time was up.
    ///
    /// # Panics
    /// As [`Self::wait`].
    pub fn wait_for(mut self, timeout: Duration) -> Result<Outcome, Self> {
        self.take_until(Some(Instant::now() + timeout)).ok_or(self)
    }

    /// Takes the job back, or cancels it at the running kernel. True if it will not have been done;
    /// [`Self::wait`] then gives [`ClientError::Cancelled`](super::ClientError::Cancelled) at once.
    pub fn cancel(&self) -> bool {
        let key = self.key;
        self.queue
            .with(|book| key.is_some_and(|key| book.cancel(key)))
    }

    fn take_until(&mut self, deadline: Option<Instant>) -> Option<Outcome> {
        let outcome = self.queue.wait_for(self.key(), deadline);
        // So that dropping the ticket cancels nothing.
        if outcome.is_some() {
            self.key = None;
        }
        outcome
    }

    fn key(&self) -> Key {
        match self.key {
            Some(key) => key,
            None => panic!("the outcome of this job was taken before"),
        }
    }
}

impl Future for Ticket {
    type Output = Outcome;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let key = self.key();
        let (outcome, is_driven) = self.queue.with(|book| {
            let outcome = book.take(key);
            // Under the same lock: a job that ends in between would wake no task.
            if outcome.is_none() {
                book.set_waker(key, context.waker());
            }
            (outcome, book.driven || book.descriptor.is_some())
        });
        match outcome {
            Some(outcome) => {
                self.key = None;
                Poll::Ready(outcome)
            }
            None => {
                // Neither a driver nor a thread with the descriptor looks at the completions.
                if !is_driven {
                    start_driver(&self.queue);
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.queue.with(|book| book.abandon(key));
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ticket of job {}", self.token)
    }
}
