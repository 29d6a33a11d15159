//! Readiness: poll(2).

use super::{Answer, Errno, Files, Kind, errno};

impl Files {
    /// Which of poll(2)'s events hold now, of `wanted` and those that are always reported.
    ///
    /// # Errors
    /// `EBADF`; poll(2) itself tells that by `POLLNVAL`.
    pub fn poll(&mut self, fd: i32, wanted: i16) -> Answer<i16> {
        let socket = self.socket_at(fd)?;
        let both = socket.shut_read && socket.shut_write;
        let (kind, error_reported) = (socket.kind, socket.error_reported);
        let mut events = 0;
        match kind {
            Kind::Fresh => events |= libc::POLLOUT | libc::POLLHUP,
            Kind::Listener(id) => {
                // The stack tells whether there is one by handing it over; it is kept for accept.
                if self.socket_at(fd)?.next.is_none() {
                    let next = self.host.stack().accept(id).map_err(errno)?;
                    self.socket_mut(fd)?.next = next;
                }
                if self.socket_at(fd)?.next.is_some() {
                    events |= libc::POLLIN;
                }
            }
            Kind::Session(id) => {
                let readiness = self.host.stack().readiness(id).map_err(errno)?;
                if readiness.readable {
                    events |= libc::POLLIN;
                }
                if readiness.end_of_input() {
                    events |= libc::POLLRDHUP;
                }
                if readiness.writable || both {
                    events |= libc::POLLOUT;
                }
                if readiness.is_closed() || readiness.end_of_input() && both {
                    events |= libc::POLLHUP;
                }
                let reports = readiness.stamped || self.socket_at(fd)?.zero_copy.has_reports();
                if readiness.error.is_some() && !error_reported || reports {
                    events |= libc::POLLERR;
                }
            }
            Kind::Epoll => {}
            Kind::Udp(_) => {
                events |= libc::POLLOUT;
                match self.take_datagram(fd) {
                    Ok(datagram) => {
                        self.socket_mut(fd)?.datagram = Some(datagram);
                        events |= libc::POLLIN;
                    }
                    Err(Errno(libc::EAGAIN)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(events & (wanted | libc::POLLERR | libc::POLLHUP))
    }
}
