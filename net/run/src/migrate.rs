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
        // Duplicates, because the exchange runs on a thread with a table of its own.
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
        // `tfd: 5 events: 19 data: 5 pos:0 ino:61 sdev:1` (proc_pid_fdinfo(5)).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::files::pair;
    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use std::os::fd::AsRawFd;

    fn own_thread() -> i32 {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    #[test]
    fn an_entry_is_read_with_its_events_and_data() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let (one, other) = pair(false).unwrap();
        let data = EventData::new_u64(0x1234_5678_9abc_def0);
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &one, data, flags).unwrap();
        let read = |file: &OwnedFd, bytes_max| {
            watched(own_thread(), epoll.as_raw_fd(), file.as_raw_fd(), bytes_max)
        };
        let entry = read(&one, usize::MAX).unwrap();
        assert_eq!(entry.data, 0x1234_5678_9abc_def0);
        assert_eq!(entry.events & flags.bits(), flags.bits());
        assert_eq!(read(&other, usize::MAX), None);
        // A table of which too little is read has no entry.
        assert_eq!(read(&one, 1), None);
        // A file that is no epoll instance has none, either.
        let none = watched(own_thread(), one.as_raw_fd(), one.as_raw_fd(), 4096);
        assert_eq!(none, None);
        assert_eq!(watched(own_thread(), -1, 0, 4096), None);
    }

    #[test]
    fn the_epoll_instances_of_a_thread_are_found() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        assert!(epolls_of(own_thread()).contains(&epoll.as_raw_fd()));
        let (one, _other) = pair(false).unwrap();
        assert!(!epolls_of(own_thread()).contains(&one.as_raw_fd()));
        assert!(epolls_of(-1).is_empty());
    }

    #[test]
    fn tables_are_read_anew_after_another_instance_was_made() {
        let mut migration = Migration::default();
        migration.epolls.insert(1, vec![2]);
        migration.early.insert(1);
        migration.forget();
        assert!(migration.epolls.is_empty() && migration.early.is_empty());
    }
}
