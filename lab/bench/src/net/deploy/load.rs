//! A client of the kernel's with many sessions: each asks, waits for the answer, and asks again.
//!
//! Why here: every deployment must get the same requests, in the same way. One thread, epoll, on
//! whatever core the kernel likes, as a client without knowledge of cores. Must stay true: every
//! answer has the length of its request; no wait is longer than [`PATIENCE`].

use crate::net::{BenchError, interrupted};
use rustix::event::{Timespec, epoll};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Outcome of a load.
pub(super) struct Answered {
    /// Answers.
    pub(super) count: u64,
    pub(super) time: Duration,
    /// Of each request, in nanoseconds, in ascending order.
    sorted_ns: Vec<u32>,
}

impl Answered {
    /// Answers a second.
    pub(super) fn rate(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }

    /// The time under which this share of the requests was answered, in microseconds.
    pub(super) fn under_us(&self, share: f64) -> f64 {
        let last = self.sorted_ns.len().saturating_sub(1);
        let at = (last as f64 * share) as usize;
        f64::from(self.sorted_ns.get(at).copied().unwrap_or(0)) / 1e3
    }
}

/// A session that waits for an answer.
struct Asking {
    stream: TcpStream,
    since: Instant,
    /// Bytes of the answer that have arrived.
    have: usize,
}

/// Sends requests on all of `streams` for `time`. Requests in flight at its end do not count.
///
/// # Errors
/// [`BenchError::Wrong`] when a session ends, or when nothing is answered for [`PATIENCE`].
pub(super) fn ask(
    streams: Vec<TcpStream>,
    time: Duration,
    cancel: &AtomicBool,
) -> Result<Answered, BenchError> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    let mut sessions = Vec::with_capacity(streams.len());
    for stream in streams {
        stream.set_nonblocking(true).map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let number = epoll::EventData::new_u64(sessions.len() as u64);
        epoll::add(&poll, &stream, number, epoll::EventFlags::IN).map_err(failed)?;
        sessions.push(Asking {
            stream,
            since: Instant::now(),
            have: 0,
        });
    }
    let begun = Instant::now();
    for session in &mut sessions {
        session.ask()?;
    }
    let mut times_ns = Vec::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    while begun.elapsed() < time {
        interrupted(cancel)?;
        events.clear();
        let space = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&poll, space, Some(&PATIENCE)).map_err(failed)? == 0 {
            return Err(BenchError::Wrong(format!(
                "no answer within {} s",
                PATIENCE.tv_sec
            )));
        }
        for event in &events {
            let session = &mut sessions[event.data.u64() as usize];
            if session.take()? {
                let taken = session.since.elapsed().as_nanos();
                times_ns.push(u32::try_from(taken).unwrap_or(u32::MAX));
                session.ask()?;
            }
        }
    }
    // The loop may end late, so the rate is taken over the real time.
    let time = begun.elapsed();
    times_ns.sort_unstable();
    Ok(Answered {
        count: times_ns.len() as u64,
        time,
        sorted_ns: times_ns,
    })
}

impl Asking {
    fn ask(&mut self) -> Result<(), BenchError> {
        self.since = Instant::now();
        self.have = 0;
        // An empty socket takes this much at once.
        self.stream
            .write_all(&[b'?'; REQUEST_BYTES])
            .map_err(refused)
    }

    /// Takes the bytes that have arrived; true once the answer is whole.
    fn take(&mut self) -> Result<bool, BenchError> {
        let mut bytes = [0; REQUEST_BYTES];
        match self.stream.read(&mut bytes[self.have..]) {
            Ok(0) => Err(BenchError::Wrong("a session ended".into())),
            Ok(count) => {
                self.have += count;
                Ok(self.have == REQUEST_BYTES)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(refused(error)),
        }
    }
}

fn refused(error: std::io::Error) -> BenchError {
    BenchError::io("ask over a plain socket")(error)
}

fn failed(error: rustix::io::Errno) -> BenchError {
    refused(error.into())
}

/// Size of a request and of an answer.
pub(super) const REQUEST_BYTES: usize = 64;
const EVENTS_MAX: usize = 256;
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};
