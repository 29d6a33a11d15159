//! Sessions that fail: resets towards programs.

use super::*;
use sidecore_sys::local_socket;

impl Streams {
    /// The session was reset, or cannot continue: the program's calls fail.
    pub(in super::super) fn reset(&mut self, table: &mut Table, inode: u64, errno: Errno) {
        table.calls.fail(inode, errno);
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return;
        };
        let engines = socket.engines();
        table.engine.return_chunk(&mut socket.state);
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
            && stream.inbound != Inbound::Open
        {
            // A reset behind the peer's end: writes fail with EPIPE, as in the kernel, so the
            // library must not find a session that was reset.
            socket.peer = None;
        }
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
                process: 0,
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
fn leave_unread(far: &OwnedFd, inode: u64, mut holder: Holder) {
    if rustix::io::ioctl_fionread(far).is_ok_and(|bytes| bytes > 0) {
        return;
    }
    if holder.process == 0
        && let Ok(listener) = local_socket::peer(far.as_fd())
    {
        // The thread that has accepted it may have ended; the process listens.
        holder.process = listener.pid;
    }
    let near = if named::is_accepting(inode) {
        // Its inode is not known, but the name of its peer is.
        let name = named::own_name(far);
        let inode_of = |thread| crate::caller::socket_inode(thread, holder.descriptor);
        let number = inode_of(holder.thread).or_else(|| inode_of(holder.process));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::files::inode_of;
    use crate::socket::tests::{datagram_socket, socket};
    use crate::socket::{Head, Report};
    use crate::supervisor::tests::fixtures::{callers, table};
    use sidecore_net::DatagramPart;
    use sidecore_net::sock::client::{ClientOptions, chunks_held};
    use sidecore_net::sock::control::{Admission, Control};
    use sidecore_net::sock::{Id, SocketError, SocketOption, Sockets, Status};
    use sidecore_sys::socket_option;
    use std::net::SocketAddr;
    use std::os::fd::AsRawFd as _;
    use std::sync::{Arc, Mutex};

    /// A stack whose sessions receive one byte each.
    #[derive(Default)]
    struct OneByte {
        last: u64,
        is_new: bool,
        is_unread: bool,
        /// Options that were set.
        told: Arc<Mutex<Vec<SocketOption>>>,
    }

    impl Sockets for OneByte {
        fn listen(&mut self, _: SocketAddr, _: usize, _: Option<u32>) -> Result<Id, SocketError> {
            Err(SocketError::InUse)
        }

        fn connect(&mut self, _: SocketAddr, _: u16) -> Result<Id, SocketError> {
            self.last += 1;
            (self.is_new, self.is_unread) = (true, true);
            Ok(Id(self.last))
        }

        fn accept(&mut self, _: Id) -> Option<(Id, SocketAddr)> {
            None
        }

        fn send(
            &mut self,
            _: Id,
            _: usize,
            _: &mut dyn FnMut(&mut [u8]),
        ) -> Result<usize, SocketError> {
            Ok(0)
        }

        fn receive(&mut self, _: Id, bytes_max: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
            if bytes_max == 0 || !std::mem::take(&mut self.is_unread) {
                return 0;
            }
            sink(b"x");
            1
        }

        fn status(&self, _: Id) -> Status {
            Status {
                connected: true,
                ..Status::default()
            }
        }

        fn shutdown(&mut self, _: Id) {}

        fn close(&mut self, _: Id) {}

        fn abort(&mut self, _: Id) {}

        fn set(&mut self, _: Id, option: SocketOption) -> Result<(), SocketError> {
            self.told.lock().unwrap().push(option);
            Ok(())
        }

        fn bind_udp(&mut self, _: SocketAddr, _: Option<u32>) -> Result<Id, SocketError> {
            self.last += 1;
            Ok(Id(self.last))
        }

        fn send_to(&mut self, _: Id, _: SocketAddr, _: &[u8]) -> Result<bool, SocketError> {
            Ok(true)
        }

        fn receive_from(
            &mut self,
            _: Id,
            _: usize,
            _: usize,
            _: &mut dyn FnMut(&[u8]),
        ) -> Option<DatagramPart> {
            None
        }

        fn local(&self, _: Id) -> Option<SocketAddr> {
            "192.0.2.1:9".parse().ok()
        }

        fn next_ready(&mut self) -> Option<Id> {
            std::mem::take(&mut self.is_new).then_some(Id(self.last))
        }
    }

    /// Serves a stack at this path until the result is dropped, and what ends with it.
    fn serve(path: &std::path::Path, mut stack: OneByte) -> (Control, Arc<()>) {
        let (control, mut server) = Control::start(path, Admission::default()).unwrap();
        let alive = Arc::new(());
        let of_thread = Arc::clone(&alive);
        std::thread::spawn(move || {
            // Until the test is over, however it ends.
            while Arc::strong_count(&of_thread) > 1 {
                if server.poll(&mut stack) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        (control, alive)
    }

    /// A program sets it once; an engine that has come back knew none of a UDP socket.
    #[test]
    fn an_engine_that_comes_back_is_told_the_class_of_a_datagram_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.sock");
        let stack = OneByte::default();
        let told = Arc::clone(&stack.told);
        let _served = serve(&path, stack);
        let mut client = Client::attach(&path, &ClientOptions::default()).unwrap();
        let (mut of, near) = datagram_socket();
        let inode = inode_of(&near).unwrap();
        let (level, name) = (libc::IPPROTO_IP, libc::IP_TOS);
        socket_option::set(near.as_fd(), level, name, &0x28_i32.to_ne_bytes()).unwrap();
        of.holder = Holder {
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            descriptor: near.as_raw_fd(),
            process: 0,
        };
        if let State::Datagram(datagram) = &mut of.state {
            let session = client.bind_udp("192.0.2.1:9".parse().unwrap()).unwrap();
            datagram.engines.push(session);
        }
        let (listener, _callers) = callers(0);
        let mut table = table(listener);
        table.sockets.insert(inode, of);
        table.engine.client = Some(client);
        table.tell_options(inode);
        let mut client = table.engine.client.take().unwrap();
        let begun = Instant::now();
        while told.lock().unwrap().is_empty() && begun.elapsed() < Duration::from_secs(60) {
            client.poll(Duration::from_millis(10)).unwrap();
        }
        assert_eq!(*told.lock().unwrap(), [SocketOption::TrafficClass(0x28)]);
    }

    /// The chunk of a piece that a full pair has not taken stayed lent: each session that ended so
    /// made a chunk less for all others.
    #[test]
    fn a_stream_that_ends_with_bytes_left_holds_no_chunk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.sock");
        let _served = serve(&path, OneByte::default());
        let mut client = Client::attach(&path, &ClientOptions::default()).unwrap();
        let (listener, _callers) = callers(0);
        let mut table = table(listener);
        let mut streams = Streams::default();
        for (name, head) in [
            ("reset", Head::Data),
            ("reset", Head::Greeting(7)),
            ("forgotten", Head::Data),
            ("shut", Head::Data),
        ] {
            let session = client.connect("192.0.2.1:80".parse().unwrap()).unwrap();
            let piece = loop {
                client.poll(Duration::from_millis(10)).unwrap();
                if let Some(piece) = client.receive(session).unwrap() {
                    break piece;
                }
            };
            assert_eq!((piece.bytes(), chunks_held(&client)), (&b"x"[..], 1));
            let mut stream = Stream::new(session, Report::Made, head);
            stream.carried = Some((piece, 0));
            table.sockets.insert(1, socket(State::Open(stream)));
            table.engine.client = Some(client);
            match name {
                "reset" => streams.reset(&mut table, 1, Errno::CONNRESET),
                "forgotten" => table.forget(1),
                _ => table.end_shut(1),
            }
            client = table.engine.client.take().unwrap();
            assert_eq!(chunks_held(&client), 0, "{name} {head:?}");
            table.sockets.remove(&1);
        }
    }
}
