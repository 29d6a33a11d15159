//! Sockets at the stack: requests for them, and their use once the stack has answered.
//!
//! An engine may answer late, or not at all while it is stopped. A call that needs the answer is
//! therefore parked in its socket's wait queue, and all others are served meanwhile. Must stay
//! true: nothing here waits; if no call waits for an answer any more, it is kept for the repeated
//! call, or the socket at the stack is closed with the program's.

use super::{Reply, Supervisor, errno_of};
use crate::caller::Caller;
use crate::ports::Transport;
use crate::socket::{Adopting, Asked, AtStack, Connecting, Purpose, State};
use rustix::io::Errno;
use sidecore_net::sock::SocketError;
use sidecore_net::sock::client::{Client, Opening, Socket as Session};
use sidecore_sys::seccomp::{Answer, Call};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

impl Supervisor {
    /// Requests the sockets that a listener or a datagram socket needs at the stack, unless they
    /// were requested; `backlog` is a listener's. True while an answer is missing.
    pub(super) fn ask_stack(
        &mut self,
        inode: u64,
        backlog: Option<u32>,
        purpose: Purpose,
    ) -> Result<bool, Errno> {
        let Some(socket) = self.sockets.get(&inode) else {
            return Ok(false);
        };
        if let Some(asked) = &socket.asked {
            return Ok(!asked.openings.is_empty());
        }
        let local = socket.local;
        if !self.scope.has_stack() || local.ip().is_loopback() {
            return Ok(false);
        }
        let mut addresses = vec![local];
        if local.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED) && !socket.is_v6_only {
            addresses.push(SocketAddr::from((Ipv4Addr::UNSPECIFIED, local.port())));
        }
        let client = self.client.as_mut().ok_or(Errno::NETDOWN)?;
        let mut asked = Asked {
            purpose,
            openings: Vec::new(),
            engines: Vec::new(),
            refused: None,
        };
        for address in addresses {
            // Programs' datagram sockets at one address share a single socket at the stack.
            let shared = self
                .sharers
                .keys()
                .find(|engine| client.local(**engine) == Some(address));
            let begun = match (backlog, shared) {
                (Some(backlog), _) => client.begin_listen(address, backlog),
                (None, None) => client.begin_bind_udp(address),
                (None, Some(engine)) => {
                    asked.engines.push(*engine);
                    continue;
                }
            };
            match begun {
                Ok(opening) => asked.openings.push(opening),
                Err(error) => asked.refused = Some(errno_of(&error)),
            }
        }
        let openings = asked.openings.iter().map(|opening| (*opening, inode));
        self.openings.extend(openings);
        let is_missing = !asked.openings.is_empty();
        if let Some(socket) = self.sockets.get_mut(&inode) {
            socket.asked = Some(asked);
        }
        Ok(is_missing)
    }

    /// The requested sockets at the stack, once all answers have arrived.
    pub(super) fn take_asked(&mut self, inode: u64) -> Result<Vec<Session>, Errno> {
        let socket = self.sockets.get_mut(&inode).ok_or(Errno::BADF)?;
        let Some(asked) = socket.asked.take() else {
            return Ok(Vec::new());
        };
        // A stack may have only one family, so one refusal is fine; an address in use is an error.
        let is_taken = asked.refused == Some(Errno::ADDRINUSE);
        if let Some(error) = asked
            .refused
            .filter(|_| asked.engines.is_empty() || is_taken)
        {
            self.let_go_of(asked.engines);
            return Err(error);
        }
        Ok(asked.engines)
    }

    /// Closes sockets at the stack, except those that other sockets share.
    fn let_go_of(&mut self, engines: Vec<Session>) {
        for engine in engines {
            if !self.sharers.contains_key(&engine) {
                self.close_session(engine, false);
            }
        }
    }

    /// Cancels the requests of a socket that is being removed.
    pub(super) fn give_up_asking(&mut self, socket: &mut crate::socket::Socket) {
        let openings = socket.openings();
        if let Some(asked) = socket.asked.take() {
            self.let_go_of(asked.engines);
        }
        for opening in openings {
            self.openings.remove(&opening);
            if let Some(client) = &mut self.client {
                // The loop notices when the engine is gone.
                client.give_up(opening).ok();
            }
        }
    }

    /// Processes the stack's answers.
    pub(super) fn take_openings(&mut self) {
        while let Some((opening, answer)) = self.client.as_mut().and_then(Client::next_opened) {
            let Some(inode) = self.openings.remove(&opening) else {
                // The socket was removed meanwhile.
                if let Ok(session) = answer {
                    self.close_session(session, true);
                }
                continue;
            };
            let state = self.sockets.get(&inode).map(|socket| &socket.state);
            if matches!(state, Some(State::Connecting(_))) {
                self.go_on_connecting(inode, answer);
            } else {
                self.note_answer(inode, opening, answer);
            }
        }
    }

    fn note_answer(&mut self, inode: u64, opening: Opening, answer: Result<Session, SocketError>) {
        let asked = self
            .sockets
            .get_mut(&inode)
            .and_then(|it| it.asked.as_mut());
        let Some(asked) = asked else {
            return;
        };
        asked.openings.retain(|it| *it != opening);
        match answer {
            Ok(engine) => asked.engines.push(engine),
            Err(error) => asked.refused = Some(errno_of(&error.into())),
        }
        if !asked.openings.is_empty() {
            return;
        }
        match asked.purpose {
            Purpose::Listen => self.retry(inode),
            Purpose::Datagrams(_) => self.finish_adopting(inode),
            Purpose::Again => {
                if let Err(error) = self.serve_again(inode) {
                    crate::aside::say(format!("a socket does not come back: {error}"));
                }
            }
        }
    }

    /// Serves a socket again after the engine has come back.
    pub(super) fn serve_again(&mut self, inode: u64) -> Result<(), Errno> {
        let engines = self.take_asked(inode)?;
        self.give_engines(inode, engines);
        self.take_accepted(inode);
        Ok(())
    }

    /// Assigns these sockets at the stack to a listener or a datagram socket.
    pub(super) fn give_engines(&mut self, inode: u64, engines: Vec<Session>) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return self.let_go_of(engines);
        };
        let ours = engines.iter().map(|engine| (*engine, inode));
        self.sessions.extend(ours);
        match &mut socket.state {
            State::Listening(listening) => listening.engines = engines,
            State::Datagram(sockets) => {
                for engine in &engines {
                    self.sharers.entry(*engine).or_default().push(inode);
                }
                *sockets = engines;
            }
            _ => {}
        }
    }

    /// Continues the calls that waited for a datagram socket at the stack.
    fn finish_adopting(&mut self, inode: u64) {
        let calls: Vec<Call> = self.take_waiting(inode).iter().map(|it| it.call).collect();
        let asked = self.sockets.get_mut(&inode).and_then(|it| {
            let purpose = &mut it.asked.as_mut()?.purpose;
            Some(std::mem::replace(purpose, Purpose::Again))
        });
        let Some(Purpose::Datagrams(adopting)) = asked else {
            return;
        };
        let settled = self.settle_datagrams(inode, &adopting, calls.first().copied());
        let listener = Rc::clone(&self.listener);
        for call in calls {
            match settled {
                Ok(()) if call.number == libc::SYS_bind => {
                    self.answer(&Caller::new(call, &listener), Answer::Value(0), Some(inode));
                }
                Ok(()) => self.dispatch(call),
                Err(error) => {
                    listener.answer(call.id, Answer::Fail(error));
                }
            }
        }
    }

    /// Puts a datagram socket into service, or removes it if that fails.
    pub(super) fn settle_datagrams(
        &mut self,
        inode: u64,
        adopting: &Adopting,
        call: Option<Call>,
    ) -> Result<(), Errno> {
        let settled = self.take_asked(inode).and_then(|engines| {
            self.give_engines(inode, engines);
            if let Some(carrier) = self.carrier(inode) {
                carrier.settle(&adopting.near, &adopting.shared)?;
            }
            match call {
                // The program keeps its own socket if that is in this network namespace.
                _ if adopting.is_near => Ok(()),
                Some(call) => {
                    let listener = Rc::clone(&self.listener);
                    let caller = Caller::new(call, &listener);
                    self.replace(&caller, caller.int(0), &adopting.near, adopting.flags)
                }
                None => Err(Errno::SRCH),
            }
        });
        match settled {
            Ok(()) => {
                if let Some(local) = self.sockets.get(&inode).map(|socket| socket.local) {
                    self.welcome(local);
                }
                Ok(())
            }
            Err(error) => {
                let port = self.sockets.get(&inode).map(|it| it.local.port());
                self.forget(inode);
                self.ports
                    .release(Transport::Udp, port.unwrap_or_default(), inode);
                Err(error)
            }
        }
    }

    /// Processes the stack's answer about a session that is being opened.
    fn go_on_connecting(&mut self, inode: u64, answer: Result<Session, SocketError>) {
        let session = match answer {
            Ok(session) => session,
            Err(error) => {
                let error = match errno_of(&error.into()) {
                    // connect(2) reports a port in use as EADDRNOTAVAIL.
                    Errno::ADDRINUSE => Errno::ADDRNOTAVAIL,
                    errno => errno,
                };
                return self.refuse_connecting(inode, error);
            }
        };
        let local = self.client.as_ref().and_then(|it| it.local(session));
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        if let State::Connecting(Connecting { at_stack, .. }) = &mut socket.state {
            *at_stack = AtStack::Begun(session);
        }
        // The stack may have chosen the source address and the port.
        if let Some(local) = local {
            (socket.local, socket.bound) = (local, local.ip());
        }
        self.sessions.insert(session, inode);
        self.tell_options(inode);
        // A nonblocking connect(2) is answered now; the others wait until the session is open.
        let (begun, waiting) = self
            .take_waiting(inode)
            .into_iter()
            .partition(|it| it.only_begins);
        self.put_waiting(inode, waiting);
        for it in begun {
            let answer = Answer::Fail(Errno::INPROGRESS);
            self.listener.answer(it.call.id, answer);
        }
        self.finish_connecting(inode);
    }

    /// The stack refuses the session: the waiting calls fail, and the program gets back the socket
    /// that it opened.
    fn refuse_connecting(&mut self, inode: u64, error: Errno) {
        let listener = Rc::clone(&self.listener);
        let waiting = self.take_waiting(inode).into_iter();
        let calls: Vec<Call> = waiting
            .map(|it| it.call)
            .filter(|call| listener.is_waiting(call.id))
            .collect();
        let kernel = self.sockets.get(&inode).map(|it| Rc::clone(&it.kernel));
        let (Some(first), Some(kernel)) = (calls.first(), kernel) else {
            return self.fail_connecting(inode, error);
        };
        let caller = Caller::new(*first, &listener);
        let flags = caller.flags(caller.int(0));
        // If replacing fails, the program keeps an end of a pair that reports the same error.
        crate::socket::set_nonblocking(&kernel, flags.is_nonblocking).ok();
        if self.replace(&caller, caller.int(0), &kernel, flags).is_ok() {
            self.forget(inode);
        } else {
            self.fail_connecting(inode, error);
        }
        for call in calls {
            listener.answer(call.id, Answer::Fail(error));
        }
    }

    /// Parks a call until the stack has answered the request for its socket.
    pub(super) fn park_asking(&mut self, inode: u64, caller: &Caller<'_>) -> Reply {
        self.park(inode, caller, None)
    }
}
