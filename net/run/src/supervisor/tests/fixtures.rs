//! Callers for unit tests: threads whose pwrite(2) stops at a filter, as a program's calls do. Any
//! result is one of it, and no other code here makes it.

use super::super::Supervisor;
use super::super::calls::Calls;
use super::super::engine::Engine;
use super::super::table::Table;
use crate::scope::Scope;
use crate::socket::files::local_stream;
use rustix::event::epoll::{self, CreateFlags};
use rustix::io::Errno;
use sidecore_sys::seccomp::{self, Call, Listener, When};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Threads that wait for their calls.
pub(in super::super) struct Callers {
    /// The calls; their fourth arguments are their numbers, from 0.
    pub(in super::super) calls: Vec<Call>,
    threads: Vec<JoinHandle<Result<(), Errno>>>,
    /// The socket that the calls are about.
    pub(in super::super) socket: Arc<OwnedFd>,
}

/// As many callers, and the file by which their calls came.
pub(in super::super) fn callers(count: i32) -> (Listener, Callers) {
    let socket = Arc::new(local_stream(false).unwrap());
    let (sender, receiver) = mpsc::channel();
    let of_threads = Arc::clone(&socket);
    let starting = std::thread::spawn(move || {
        // Threads inherit the filter of the one that starts them.
        let listener = seccomp::install(&[(libc::SYS_pwrite64, When::Always)]).unwrap();
        let threads = (0..count).map(|number| {
            let socket = Arc::clone(&of_threads);
            std::thread::spawn(move || {
                let number = u64::from(number.unsigned_abs());
                rustix::io::pwrite(&*socket, &[], number).map(drop)
            })
        });
        sender.send((listener, threads.collect())).unwrap();
    });
    let (listener, threads): (Listener, Vec<_>) = receiver.recv().unwrap();
    starting.join().unwrap();
    let calls = (0..count).map(|_| listener.receive().unwrap().unwrap());
    let mut calls: Vec<Call> = calls.collect();
    calls.sort_by_key(|call| call.arguments[3]);
    let callers = Callers {
        calls,
        threads,
        socket,
    };
    (listener, callers)
}

impl Callers {
    /// The result of each call, once all were answered.
    pub(in super::super) fn results(self) -> Vec<Result<(), Errno>> {
        let threads = self.threads.into_iter();
        threads.map(|thread| thread.join().unwrap()).collect()
    }
}

/// A scope of the loopback alone.
pub(in super::super) fn loopback() -> Scope {
    Scope {
        has_loopback: true,
        ..Scope::default()
    }
}

/// A supervisor of the loopback, without other runs.
pub(in super::super) fn supervisor(listener: Listener) -> Supervisor {
    Supervisor::new(listener, None, None, loopback(), None).unwrap()
}

/// A table of the loopback, without sockets.
pub(in super::super) fn table(listener: Listener) -> Table {
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    Table::new(
        Calls::new(listener),
        Engine::new(None, None),
        loopback(),
        epoll,
    )
}
