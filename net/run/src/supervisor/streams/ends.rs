//! Sessions that fail: resets towards programs.

use super::*;

impl Streams {
    /// The session was reset, or cannot continue: the program's calls fail.
    pub(in super::super) fn reset(&mut self, table: &mut Table, inode: u64, errno: Errno) {
        table.calls.fail(inode, errno);
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return;
        };
        let engines = socket.engines();
        let is_unaccepted = match &socket.state {
            State::Open(stream) => stream.head.is_greeting(),
            _ => false,
        };
        if is_unaccepted {
            // The program that accepts it has to see the reset, so the pair stays until then.
            socket.state = State::Doomed;
            for engine in engines {
                table.engine.end(engine, Close::Reset);
            }
            return self.take_greeting(table, inode);
        }
        let next = match socket.state {
            State::Connecting(_) => State::Failed(Some(errno)),
            _ => State::Over,
        };
        let before = std::mem::replace(&mut socket.state, next);
        // Without a far end, only a sweep finds that the program closes its own.
        let far = socket.far.take();
        table.sweeps.note_unseen();
        if let State::Open(stream) = &before
            && let Some(ring) = stream.path.all_rings()
            && let Some(view) = ring.view()
        {
            view.fail(errno.raw_os_error());
            self.rings.notify(ring);
        }
        if let Some(far) = &far {
            leave_unread(far, inode, socket.holder);
        }
        // Closing it with unread bytes is a reset for the near end.
        drop(far);
        for engine in engines {
            table.engine.end(engine, Close::Reset);
        }
        // A close that waited for this session waits no more.
        table.calls.wake(inode);
    }

    /// Handles an event of the far end of a session that failed before it was accepted.
    pub(in super::super) fn look_at_doomed(
        &mut self,
        table: &mut Table,
        inode: u64,
        is_gone: bool,
    ) {
        self.take_greeting(table, inode);
        if is_gone {
            table.forget(inode);
        }
    }

    /// Checks if a failed session was accepted meanwhile.
    fn take_greeting(&mut self, table: &mut Table, inode: u64) {
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return;
        };
        let (State::Doomed, Some(far), Some(number)) = (&socket.state, &socket.far, socket.named)
        else {
            return;
        };
        let mut bytes = [0; HELLO_BYTES];
        let received = rustix::net::recv(far, &mut bytes, RecvFlags::DONTWAIT);
        if let Ok((_, count)) = received
            && let Some(hello) = Hello::read(&bytes[..count], number)
        {
            socket.holder = Holder {
                thread: hello.thread,
                descriptor: hello.descriptor,
            };
            self.end_doomed(table, inode);
        }
    }

    /// Resets a failed session towards the program that has accepted it.
    pub(in super::super) fn end_doomed(&mut self, table: &mut Table, inode: u64) {
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return;
        };
        if !matches!(socket.state, State::Doomed) {
            return;
        }
        socket.state = State::Over;
        table.sweeps.note_unseen();
        if let Some(far) = socket.far.take() {
            leave_unread(&far, inode, socket.holder);
        }
    }
}

/// Makes sure that a far end has unread bytes.
fn leave_unread(far: &OwnedFd, inode: u64, holder: Holder) {
    if rustix::io::ioctl_fionread(far).is_ok_and(|bytes| bytes > 0) {
        return;
    }
    let near = if named::is_accepting(inode) {
        // Its inode is not known, but the name of its peer is.
        let name = named::own_name(far);
        let number = crate::caller::socket_inode(holder.thread, holder.descriptor);
        let near = number.and_then(|number| holder.fetch(number));
        near.filter(|near| name.is_some() && named::peers_name(near) == name)
    } else {
        holder.fetch(inode)
    };
    if let Some(near) = near {
        // If that fails, the program reads an end of file instead of a reset.
        rustix::net::send(&near, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ok();
    }
}
