//! Events of the stack: answers to requests, news of sessions, and the loss of its engine.

use super::calls::Goal;
use super::engine::Request;
use super::{Supervisor, errno_of};
use crate::caller::Caller;
use crate::socket::files::set_nonblocking;
use crate::socket::{AtStack, Connecting, Datagram, Origin, Purpose, State};
use rustix::io::Errno;
use sidecore_net::sock::SocketError;
use sidecore_net::sock::client::{Client, Opening, Socket as Session};
use sidecore_sys::seccomp::{Answer, Call};
use std::rc::Rc;

impl Supervisor {
    /// Processes the stack's answers.
    pub(super) fn take_answers(&mut self) {
        while let Some((inode, opening, answer)) = self.table.engine.next_answer() {
            let state = self.table.sockets.get(&inode).map(|socket| &socket.state);
            if matches!(state, Some(State::Connecting(_))) {
                self.go_on_connecting(inode, answer);
            } else {
                self.note_answer(inode, opening, answer);
            }
        }
    }

    fn note_answer(&mut self, inode: u64, opening: Opening, answer: Result<Session, SocketError>) {
        let table = &mut self.table;
        let socket = table.sockets.get_mut(&inode);
        let Some(asked) = socket.and_then(|it| it.asked.as_mut()) else {
            return;
        };
        asked.openings.retain(|it| *it != opening);
        match answer {
            Ok(engine) => asked.engines.push(engine),
            Err(error) => asked.refused = Some(errno_of(&error.into())),
        }
        // A dual-stack socket has several requests.
        if !asked.openings.is_empty() {
            return;
        }
        match asked.purpose {
            Purpose::Listen => table.calls.wake(inode),
            Purpose::Datagrams(_) => self.datagrams.finish_adopting(table, inode),
            Purpose::Again => {
                if let Err(error) = self.serve_again(inode) {
                    crate::aside::say(format!("a socket does not come back: {error}"));
                }
            }
        }
    }

    /// Serves a socket again after the engine has come back.
    fn serve_again(&mut self, inode: u64) -> Result<(), Errno> {
        let table = &mut self.table;
        let engines = table.take_asked(inode)?;
        table.give_engines(inode, engines);
        // The new engine knows none.
        table.tell_options(inode);
        // The stack may have accepted sessions before it answered.
        self.listeners
            .take_accepted(table, &mut self.streams, inode);
        Ok(())
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
        let table = &mut self.table;
        let client = table.engine.client.as_ref();
        let local = client.and_then(|client| client.local(session));
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return;
        };
        if let State::Connecting(Connecting { at_stack, .. }) = &mut socket.state {
            *at_stack = AtStack::Begun(session);
        }
        // The stack may have chosen the source address and the port.
        if let Some(local) = local {
            (socket.local, socket.bound) = (local, local.ip());
        }
        table.engine.join(session, inode);
        table.tell_options(inode);
        // A nonblocking connect(2) is answered now; the others wait until the session is open.
        let (begun, waiting) = table
            .calls
            .take(inode)
            .into_iter()
            .partition(|it| it.goal == Goal::Beginning);
        table.calls.put_back(inode, waiting);
        for it in begun {
            let answer = Answer::Fail(Errno::INPROGRESS);
            table.calls.answer(&it.call, answer);
        }
        self.finish_connecting(inode);
    }

    /// The stack refuses the session: the waiting calls fail, and the program gets back the socket
    /// that it opened.
    fn refuse_connecting(&mut self, inode: u64, error: Errno) {
        let table = &mut self.table;
        let listener = table.calls.listener();
        let waiting = table.calls.take(inode).into_iter();
        let calls: Vec<Call> = waiting
            .map(|it| it.call)
            .filter(|call| listener.is_waiting(call.id))
            .collect();
        let kernel = table.sockets.get(&inode).map(|it| Rc::clone(&it.kernel));
        // Only a call that waits lets the supervisor change the caller's descriptor.
        let (Some(first), Some(kernel)) = (calls.first(), kernel) else {
            return self.fail_connecting(inode, error);
        };
        let caller = Caller::new(*first, &listener);
        let at = caller.descriptor(caller.int(0));
        // If replacing fails, the program keeps an end of a pair that reports the same error.
        set_nonblocking(&kernel, at.flags.is_nonblocking).ok();
        if table.replace(&caller, at, &kernel).is_ok() {
            table.forget(inode);
        } else {
            self.fail_connecting(inode, error);
        }
        for call in calls {
            listener.answer(call.id, Answer::Fail(error));
        }
    }

    /// Processes the stack's events.
    pub(super) fn take_session_events(&mut self) {
        // Calls and pairs have to be served in between.
        for _ in 0..EVENTS_MAX {
            let table = &mut self.table;
            let client = table.engine.client.as_mut();
            let Some(session) = client.and_then(Client::next_ready) else {
                return;
            };
            let Some(inode) = table.engine.served(session) else {
                continue;
            };
            let Some(socket) = table.sockets.get(&inode) else {
                continue;
            };
            match socket.state {
                State::Open(_) => self.streams.look_at_session(table, inode),
                State::Listening(_) => {
                    let streams = &mut self.streams;
                    self.listeners.take_accepted(table, streams, inode);
                }
                State::Connecting(_) => {
                    self.finish_connecting(inode);
                    self.streams.give_to_program(&mut self.table, inode);
                }
                State::Datagram(_) => self.datagrams.give(table, session),
                State::Bound | State::Joined(_) | State::Failed(_) => {}
                State::Doomed | State::Shut | State::Over => {}
            }
        }
    }

    /// The engine is gone, and all its sessions with it.
    pub(super) fn lose_stack(&mut self) {
        for inode in self.table.engine.lose() {
            let table = &mut self.table;
            let Some(socket) = table.sockets.get_mut(&inode) else {
                continue;
            };
            let asked = socket.asked.take();
            match &mut socket.state {
                State::Bound => table.calls.fail(inode, Errno::NETDOWN),
                State::Datagram(_) if asked.is_some_and(|it| it.is_adopting()) => {
                    table.calls.fail(inode, Errno::NETDOWN);
                    table.forget(inode);
                }
                State::Listening(listening) => {
                    listening.engines.clear();
                    // Sessions of the loopback do not depend on the engine.
                    listening
                        .pending
                        .retain(|pending| !matches!(pending.origin, Origin::Stack(_)));
                    table.calls.fail(inode, Errno::CONNRESET);
                }
                // It goes on for the loopback, and gets its sockets back with the engine.
                State::Datagram(Datagram { engines, .. }) => engines.clear(),
                State::Connecting(_) | State::Open(_) => {
                    self.streams.reset(table, inode, Errno::CONNRESET);
                }
                State::Joined(_) | State::Failed(_) => {}
                State::Doomed | State::Shut | State::Over => {}
            }
        }
    }

    /// The engine is back: listeners and datagram sockets are reopened there.
    pub(super) fn restore(&mut self) {
        let sockets = self.table.sockets.iter();
        let wanting: Vec<(u64, Option<u32>)> = sockets
            .filter_map(|(inode, socket)| match &socket.state {
                State::Listening(listening) => Some((*inode, Some(listening.backlog))),
                State::Datagram(_) => Some((*inode, None)),
                _ => None,
            })
            .collect();
        for (inode, backlog) in wanting {
            let served = match self.table.ask_stack(inode, backlog, Purpose::Again) {
                Ok(Request::Pending) => Ok(()),
                Ok(Request::Complete) => self.serve_again(inode),
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                crate::aside::say(format!("a socket does not come back: {error}"));
            }
        }
    }
}

/// Events that one round takes.
const EVENTS_MAX: usize = 1024;
