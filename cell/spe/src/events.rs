//! Event handlers: an epoll set over the sources of contexts.
//!
//! Must stay true: a registration names its context by the caller's pointer alone, which is given
//! back as it came and never followed. Its source's file ends with the context.

use crate::source::Source;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// User data of a registration, as the C union's 8 bytes.
pub(crate) type Data = u64;

/// One event that occurred: its bit, the context's pointer, the user's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) bit: u32,
    pub(crate) context: usize,
    pub(crate) data: Data,
}

/// Target of a `spe_event_handler_ptr_t`.
#[derive(Debug)]
pub(crate) struct Handler {
    epoll: OwnedFd,
    /// By what the kernel gives back for the source's file ([`key`]).
    registered: Mutex<BTreeMap<u64, Event>>,
}

/// Events that one wait gives back at most.
const EVENTS_MAX: usize = 256;

impl Handler {
    pub(crate) fn new() -> io::Result<Handler> {
        // SAFETY: plain arguments.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Handler {
            // SAFETY: just opened, ours alone.
            epoll: unsafe { OwnedFd::from_raw_fd(epoll) },
            registered: Mutex::new(BTreeMap::new()),
        })
    }

    /// Watches a source's file.
    pub(crate) fn add(
        &self,
        file: i32,
        source: Source,
        context: usize,
        data: Data,
    ) -> Result<(), i32> {
        // Held over both, so that a wait in between finds the set and the table agree.
        let mut registered = self.registered.lock();
        self.control(libc::EPOLL_CTL_ADD, file)?;
        let event = Event {
            bit: source.bit(),
            context,
            data,
        };
        registered.insert(key(file), event);
        Ok(())
    }

    /// Watches it no longer.
    pub(crate) fn remove(&self, file: i32) -> Result<(), i32> {
        let mut registered = self.registered.lock();
        self.control(libc::EPOLL_CTL_DEL, file)?;
        registered.remove(&key(file));
        Ok(())
    }

    fn control(&self, operation: i32, file: i32) -> Result<(), i32> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: key(file),
        };
        // SAFETY: our own structure; the files are open.
        let done = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, file, &mut event) };
        if done == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO))
    }

    /// Waits for events; an interrupted wait counts as one whose time is over.
    pub(crate) fn wait(&self, most: usize, timeout_ms: i32) -> Result<Vec<Event>, i32> {
        let most = most.min(EVENTS_MAX);
        let room = i32::try_from(most).unwrap_or(i32::MAX);
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; most];
        loop {
            let epoll = self.epoll.as_raw_fd();
            let place = events.as_mut_ptr();
            // SAFETY: room for `most` events.
            let got = unsafe { libc::epoll_wait(epoll, place, room, timeout_ms) };
            let Ok(got) = usize::try_from(got) else {
                let error = io::Error::last_os_error().raw_os_error();
                match error {
                    Some(libc::EINTR) if timeout_ms < 0 => continue,
                    Some(libc::EINTR) => return Ok(Vec::new()),
                    other => return Err(other.unwrap_or(libc::EIO)),
                }
            };
            // Only now: a wait that held it would keep registrations out.
            let registered = self.registered.lock();
            // A source that was deregistered since the kernel looked is in the set no more.
            let occurred = events.iter().take(got);
            return Ok(occurred
                .filter_map(|event| registered.get(&{ event.u64 }).copied())
                .collect());
        }
    }
}

/// The number by which the kernel names a file's events.
fn key(file: i32) -> u64 {
    u64::from(file.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Sources;

    fn number(result: Result<(), i32>) -> i32 {
        result.expect_err("it is refused")
    }

    #[test]
    fn a_source_is_readable_while_its_condition_holds() {
        let handler = Handler::new().unwrap();
        let mut sources = Sources::default();
        assert!(sources.is_empty());
        // Shown before anything watches: nothing happens.
        sources.show(Source::Stopped, true);
        let stopped = sources.file(Source::Stopped).unwrap();
        assert_eq!(sources.file(Source::Stopped).unwrap(), stopped);
        assert!(sources.has(Source::Stopped) && !sources.has(Source::TagGroup));
        handler.add(stopped, Source::Stopped, 0x1000, 77).unwrap();
        assert!(handler.wait(8, 0).unwrap().is_empty());
        sources.show(Source::Stopped, true);
        sources.show(Source::Stopped, true);
        for _ in 0..2 {
            let events = handler.wait(8, -1).unwrap();
            assert_eq!(events.len(), 1);
            let Event { bit, context, data } = events[0];
            assert_eq!((bit, context, data), (Source::Stopped.bit(), 0x1000, 77));
        }
        sources.show(Source::Stopped, false);
        assert!(handler.wait(8, 0).unwrap().is_empty());
    }

    #[test]
    fn a_file_is_registered_once_and_removed_once() {
        let handler = Handler::new().unwrap();
        let mut sources = Sources::default();
        let file = sources.file(Source::InMailbox).unwrap();
        handler.add(file, Source::InMailbox, 1, 2).unwrap();
        assert_eq!(
            number(handler.add(file, Source::InMailbox, 1, 2)),
            libc::EEXIST
        );
        handler.remove(file).unwrap();
        assert_eq!(number(handler.remove(file)), libc::ENOENT);
        assert_eq!(
            number(handler.add(-1, Source::InMailbox, 1, 2)),
            libc::EBADF
        );
        sources.show(Source::InMailbox, true);
        assert!(handler.wait(8, 0).unwrap().is_empty());
    }

    #[test]
    fn a_wait_gives_no_more_than_there_is_room_for() {
        let handler = Handler::new().unwrap();
        let mut sources = Sources::default();
        for source in Source::ALL {
            let file = sources.file(source).unwrap();
            handler.add(file, source, 5, source.bit().into()).unwrap();
            sources.show(source, true);
        }
        assert_eq!(handler.wait(2, 0).unwrap().len(), 2);
        let mut bits: Vec<u32> = handler
            .wait(1000, 0)
            .unwrap()
            .iter()
            .map(|it| it.bit)
            .collect();
        bits.sort();
        assert_eq!(bits, [1, 2, 4, 8]);
        // Files that are gone are no longer in the set.
        drop(sources);
        assert!(handler.wait(8, 0).unwrap().is_empty());
    }

    #[test]
    fn a_wait_ends_with_its_time() {
        let handler = Handler::new().unwrap();
        assert!(handler.wait(1, 1).unwrap().is_empty());
    }
}
