//! Epoll instances that had a descriptor before its socket was taken from the kernel.
//!
//! Programs may add a socket to an epoll instance before they connect it (nginx does). An epoll
//! instance holds files, not descriptor numbers: the file that replaces the socket is not in it. So
//! the old file is removed and the new one added, with the same number, events and data. That needs
//! a descriptor table in which the number is free: a thread with a table of its own.
//!
//! Must stay true: a process without an epoll instance pays one table look-up; one with a large
//! instance pays for reading its beginning only, unless it has added sockets too early before.

use crate::caller::{self, Caller};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Epoll instances of the processes.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    /// The descriptors of epoll instances, by thread.
    epolls: HashMap<i32, Vec<i32>>,
    /// Threads that have added a socket to an epoll instance before they connected it.
    early: HashSet<i32>,
}

/// The epoll instances that held a descriptor.
#[derive(Debug)]
pub(crate) struct Moved {
    descriptor: i32,
    old: Rc<OwnedFd>,
    places: Vec<(OwnedFd, Watched)>,
}

/// An entry of an epoll instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watched {
    events: u32,
    data: u64,
}

impl Migration {
    /// Drops the cached tables: there may be an epoll instance that is not known.
    pub(crate) fn forget(&mut self) {
        self.epolls.clear();
        self.early.clear();
    }

    /// Finds the epoll instances with a descriptor of the caller, before it is replaced.
    pub(crate) fn begin(&mut self, caller: &Caller<'_>, descriptor: i32) -> Option<Moved> {
        let thread = caller.call.thread;
        // The library knows that its process has no epoll instance, so no table has to be read.
        if caller.call.number == libc::SYS_connect
            && caller.int(0) == descriptor
            && caller.hint().is_some_and(|hint| hint.has_no_epoll)
        {
            return None;
        }
        let epolls = self
            .epolls
            .entry(thread)
            .or_insert_with(|| epolls_of(thread));
        // A long table is read in full only for a thread that added a socket too early before.
        let bytes_max = if self.early.contains(&thread) {
            usize::MAX
        } else {
            LOOKED_AT_BYTES
        };
        let places: Vec<(i32, Watched)> = epolls
            .iter()
            .filter_map(|epoll| Some((*epoll, watched(thread, *epoll, descriptor, bytes_max)?)))
            .collect();
        if places.is_empty() {
            return None;
        }
        self.early.insert(thread);
        let old = caller.fetch(descriptor).ok()?;
        let places = places.into_iter().filter_map(|(epoll, watched)| {
            let file = caller::fetch(thread, epoll).ok()?;
            Some((file, watched))
        });
        let places = places.collect();
        // The files belong to the caller: its call has waited all the time.
        caller.is_waiting().then_some(Moved {
            descriptor,
            old,
            places,
        })
    }

    /// Replaces the old file by the new one.
    pub(crate) fn end(&self, moved: Moved, new: &OwnedFd) {
        for (epoll, watched) in &moved.places {
            let done = sidecore_sys::epoll_entry::exchange(
                epoll,
                moved.descriptor,
                &moved.old,
                new,
                watched.events,
                watched.data,
            );
            if let Err(error) = done {
                crate::aside::say(format!("an epoll does not get its socket back: {error}"));
            }
        }
    }
}

/// The descriptors of a thread that are epoll instances.
fn epolls_of(thread: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{thread}/fd")) else {
        return Vec::new();
    };
    let entries = entries.flatten().filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|name| name.as_os_str() == EPOLL)
    });
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The entry of `descriptor` in an epoll instance, from /proc; at most `bytes_max` bytes are read.
fn watched(thread: i32, epoll: i32, descriptor: i32, bytes_max: usize) -> Option<Watched> {
    let file = File::open(format!("/proc/{thread}/fdinfo/{epoll}")).ok()?;
    let mut text = String::new();
    let bytes_max = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    file.take(bytes_max).read_to_string(&mut text).ok()?;
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let mut number = |name: &str, radix: u32| {
            let named = words.next()? == name;
            let value = words.next()?;
            named.then(|| u64::from_str_radix(value, radix).ok())?
        };
        let of = number("tfd:", 10)?;
        let events = number("events:", 16)?;
        let data = number("data:", 16)?;
        (of == u64::try_from(descriptor).ok()?).then_some(Watched {
            events: events as u32,
            data,
        })
    })
}

/// About 250 entries. A thread that never added a socket too early, while its instances were
/// smaller than this, is assumed not to do so.
const LOOKED_AT_BYTES: usize = 16 << 10;
const EPOLL: &str = "anon_inode:[eventpoll]";
