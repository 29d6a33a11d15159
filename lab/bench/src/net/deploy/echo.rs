//! The kernel's echo server: one thread, epoll, all sessions.
//!
//! Why here: it is the usual server on the kernel's stack, written with care. Must stay true:
//! CUBIC, no delay; it reads until there is no more, and answers at once; it ends when its handle
//! is dropped.

use crate::net::BenchError;
use crate::net::kernel::plain;
use crate::net::namespace::Namespace;
use rustix::event::{Timespec, epoll};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::JoinHandle;

/// A running server.
pub(super) struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), BenchError>>>,
    /// Number of its thread, once it runs.
    number: Arc<AtomicI32>,
}

impl Echo {
    /// Serves at `local` in a namespace.
    pub(super) fn start(at: &Namespace, local: SocketAddr) -> Result<Self, BenchError> {
        let listener = plain::listen(at, local)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (stop, number) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicI32::new(0)),
        );
        let thread = std::thread::Builder::new().name("bench-echo".into());
        let (stopped, told) = (Arc::clone(&stop), Arc::clone(&number));
        let thread = thread.spawn(move || {
            // Relaxed: nothing else is handed over.
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            told.store(own, Ordering::Relaxed);
            serve(&listener, &stopped)
        });
        Ok(Self {
            stop,
            thread: Some(thread.map_err(BenchError::io("start a thread"))?),
            number,
        })
    }

    /// Processor time of its thread, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> u64 {
        let number = self.number.load(Ordering::Relaxed);
        crate::measure::child::thread_cpu_ns(std::process::id(), number.cast_unsigned())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The measurement has already shown that it does not answer.
            thread.join().ok();
        }
    }
}

fn serve(listener: &TcpListener, stop: &AtomicBool) -> Result<(), BenchError> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let add = |socket: &dyn std::os::fd::AsFd, number: u64| {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&poll, socket, data, epoll::EventFlags::IN).map_err(|error| failed(error.into()))
    };
    add(listener, LISTENER)?;
    let mut sessions: HashMap<u64, TcpStream> = HashMap::new();
    let mut next = LISTENER + 1;
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut bytes = vec![0; BLOCK_BYTES];
    while !stop.load(Ordering::Acquire) {
        events.clear();
        let space = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&poll, space, Some(&STOP_POLL)).map_err(|error| failed(error.into()))?;
        for event in &events {
            let number = event.data.u64();
            if number == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).map_err(failed)?;
                    stream.set_nodelay(true).map_err(failed)?;
                    add(&stream, next)?;
                    sessions.insert(next, stream);
                    next += 1;
                }
                continue;
            }
            // A session that ended earlier in this batch may have an event left.
            let Some(stream) = sessions.get_mut(&number) else {
                continue;
            };
            if answer(stream, &mut bytes).is_err() {
                sessions.remove(&number);
            }
        }
    }
    Ok(())
}

/// Sends back its input, once: the rest is announced again.
fn answer(stream: &mut TcpStream, bytes: &mut [u8]) -> std::io::Result<()> {
    match stream.read(bytes) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => stream.write_all(&bytes[..count]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

fn failed(error: std::io::Error) -> BenchError {
    BenchError::io("serve plain sockets")(error)
}

const LISTENER: u64 = 0;
const EVENTS_MAX: usize = 256;
const BLOCK_BYTES: usize = 16 << 10;
/// Longest time until it notices `stop`.
const STOP_POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
