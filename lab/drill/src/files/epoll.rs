//! Readiness of many descriptors: epoll(7), level- and edge-triggered.
//!
//! The stack announces each change once ([`sidecore_net_stack::Stack::next_event`]); that is an
//! edge. Source: epoll(7), epoll_ctl(2).

use super::{Answer, Files, Kind, Socket, fail};
use sidecore_net_stack::Event;

/// A descriptor that an epoll watches.
#[derive(Debug, Clone, Copy)]
struct Interest {
    fd: i32,
    events: u32,
    data: u64,
    /// Something happened since this was last reported.
    changed: bool,
}

/// State of one epoll descriptor.
#[derive(Debug, Clone, Default)]
pub(super) struct Epoll {
    interests: Vec<Interest>,
}

/// Descriptors that one epoll may watch.
const INTERESTS_MAX: usize = 4096;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EDGE: u32 = libc::EPOLLET as u32;

impl Files {
    /// epoll_create(2).
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn epoll_create(&mut self) -> Answer<i32> {
        let mut socket = Socket::new(Kind::Epoll, false, false);
        socket.epoll = Some(Box::default());
        self.insert(socket)
    }

    fn epoll(&mut self, epfd: i32) -> Answer<&mut Epoll> {
        match &mut self.socket_mut(epfd)?.epoll {
            Some(epoll) => Ok(epoll),
            None => fail(libc::EINVAL),
        }
    }

    /// epoll_ctl(2): `events` are `EPOLL*`, and `data` is what epoll_wait gives back.
    ///
    /// # Errors
    /// `EBADF`, `EEXIST`, `ENOENT`, `EINVAL`, `ENOSPC`.
    pub fn epoll_ctl(
        &mut self,
        epfd: i32,
        operation: i32,
        fd: i32,
        events: u32,
        data: u64,
    ) -> Answer<()> {
        if self.socket_at(fd)?.epoll.is_some() {
            return fail(libc::EINVAL);
        }
        self.take_edges();
        let interests = &mut self.epoll(epfd)?.interests;
        let place = interests.iter().position(|interest| interest.fd == fd);
        let interest = Interest {
            fd,
            events,
            data,
            // Readiness that is there already is an edge, too.
            changed: true,
        };
        match (operation, place) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return fail(libc::EEXIST),
            (libc::EPOLL_CTL_ADD, None) if interests.len() >= INTERESTS_MAX => {
                return fail(libc::ENOSPC);
            }
            (libc::EPOLL_CTL_ADD, None) => interests.push(interest),
            (libc::EPOLL_CTL_MOD, Some(place)) => interests[place] = interest,
            (libc::EPOLL_CTL_DEL, Some(place)) => {
                interests.remove(place);
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return fail(libc::ENOENT),
            _ => return fail(libc::EINVAL),
        }
        Ok(())
    }

    /// epoll_wait(2): at most `most` descriptors that are ready, each with its events and its data.
    /// Waiting is the caller's part.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`.
    pub fn epoll_wait(&mut self, epfd: i32, most: usize) -> Answer<Vec<(u32, u64)>> {
        self.take_edges();
        // Taken out while the descriptors are looked at, which needs the rest of `self`.
        let mut interests = std::mem::take(&mut self.epoll(epfd)?.interests);
        let mut ready = Vec::new();
        for interest in &mut interests {
            if ready.len() == most {
                break;
            }
            let edge = interest.events & EDGE != 0;
            // All bits of poll(2) are epoll's; a descriptor that was closed is no longer watched.
            let Ok(events) = self.poll(interest.fd, (interest.events & 0x3fff) as i16) else {
                continue;
            };
            let spent = interest.events & !(EDGE | ONE_SHOT) == 0;
            if events == 0 || spent || edge && !interest.changed {
                continue;
            }
            interest.changed = false;
            if interest.events & ONE_SHOT != 0 {
                interest.events &= EDGE | ONE_SHOT;
            }
            ready.push((u32::from(events as u16), interest.data));
        }
        self.epoll(epfd)?.interests = interests;
        Ok(ready)
    }

    /// Hands the stack's events to the epolls that watch their descriptors.
    fn take_edges(&mut self) {
        while let Some(event) = self.host().stack().next_event() {
            let fd = self.open.iter().position(|socket| {
                let kind = socket.as_ref().map(|socket| socket.kind);
                match (kind, event) {
                    (Some(Kind::Session(id)), Event::Session(other)) => id == other,
                    (Some(Kind::Listener(id)), Event::Listener(other)) => id == other,
                    (Some(Kind::Udp(Some(id))), Event::Udp(other)) => id == other,
                    _ => false,
                }
            });
            let Some(fd) = fd else { continue };
            let fd = fd as i32 + super::FIRST;
            let epolls = self.open.iter_mut().flatten();
            let interests = epolls
                .filter_map(|socket| socket.epoll.as_mut())
                .flat_map(|epoll| &mut epoll.interests);
            for interest in interests.filter(|interest| interest.fd == fd) {
                interest.changed = true;
            }
        }
    }

    /// No epoll watches a descriptor that is closed: epoll(7).
    pub(super) fn leave_epolls(&mut self, fd: i32) {
        for socket in self.open.iter_mut().flatten() {
            if let Some(epoll) = &mut socket.epoll {
                epoll.interests.retain(|interest| interest.fd != fd);
            }
        }
    }
}
