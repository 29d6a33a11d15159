//! The descriptor that becomes readable when a job is done: for epoll and its like.
//!
//! Why here: the attachment's own descriptor comes and goes with the daemon, and a job may also be
//! done by this process; a program wants one descriptor for all of its life. So it gets an epoll
//! instance, which holds the attachment's and one of this process. Must stay true: readable from a
//! completion on until [`super::Queue::poll`] gives nothing; the only possible error is a spurious
//! wake-up.

use super::super::link::Link;
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use sidecore_sys::{SysError, local_socket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Descriptor {
    /// A child has the same descriptors, and must leave them alone.
    process: u32,
    all: OwnedFd,
    /// Rung by this process.
    own: OwnedFd,
    /// The attachment whose descriptor is in `all`.
    followed: Mutex<Option<Arc<Link>>>,
}

impl Descriptor {
    pub(super) fn new() -> Result<Self, SysError> {
        let own = local_socket::bell()?;
        let all = epoll::create(CreateFlags::CLOEXEC).map_err(refused("epoll_create"))?;
        add(&all, &own)?;
        Ok(Self {
            process: std::process::id(),
            all,
            own,
            followed: Mutex::new(None),
        })
    }

    /// Another attachment, or none, from now on.
    pub(super) fn follow(&self, link: Option<&Arc<Link>>) {
        if !self.is_ours() {
            return;
        }
        let mut followed = self.followed.lock();
        if let Some(before) = followed.take() {
            // It fails where it could not be added.
            epoll::delete(&self.all, &before.bell).ok();
        }
        if let Some(link) = link {
            // Out of memory at worst; a caller that polls now and then still makes progress.
            add(&self.all, &link.bell).ok();
            *followed = Some(Arc::clone(link));
        }
        drop(followed);
        self.ring();
    }

    /// Makes it readable.
    pub(super) fn ring(&self) {
        if self.is_ours() {
            local_socket::poke(self.own.as_fd());
        }
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Makes it silent, and asks engines to make it readable at the next completion. The caller
    /// looks for completions once more, then.
    pub(super) fn arm(&self) {
        if !self.is_ours() {
            return;
        }
        local_socket::drain(self.own.as_fd());
        let followed = self.followed.lock().clone();
        let Some(link) = followed else {
            return;
        };
        let mut byte = [0; 8];
        // One byte for each time that it was armed, so that this ends; none at the daemon's end.
        while let Ok(local_socket::Received::Message(..)) =
            local_socket::receive(link.bell.as_fd(), &mut byte)
        {}
        if let Some(jobs) = link.segment.jobs() {
            jobs.sleep.descriptor.announce_sleep();
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

fn add(all: &OwnedFd, one: &OwnedFd) -> Result<(), SysError> {
    epoll::add(all, one, EventData::new_u64(0), EventFlags::IN).map_err(refused("epoll_ctl"))
}

fn refused(call: &'static str) -> impl Fn(rustix::io::Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}
