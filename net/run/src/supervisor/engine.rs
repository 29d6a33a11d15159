//! The connection to the stack's engine: sockets there, and requests for them.
//!
//! An engine may answer late, or not at all while it is stopped. A call that needs the answer is
//! therefore parked in its socket's wait queue, and all others are served meanwhile. Must stay
//! true: nothing here waits; if no call waits for an answer any more, it is kept for the repeated
//! call, or the socket at the stack is closed with the program's.

use super::attaching::{Attach, Attaching};
use super::errno_of;
use crate::socket::{Asked, Purpose, Socket, State};
use rustix::io::Errno;
use sidecore_net::sock::SocketError;
use sidecore_net::sock::client::{Client, Opening, Sharing, Socket as Session, is_acknowledged};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// The connection, and the programs' sockets that are served by it.
pub(super) struct Engine {
    /// None without a stack, and while its engine is gone.
    pub(super) client: Option<Client>,
    attaching: Option<Attaching>,
    /// Time of the last attempt to attach again.
    attach_at: Instant,
    health: Health,
    /// Programs' sockets by their sockets at the stack.
    sessions: HashMap<Session, u64>,
    /// Programs' sockets with a pending request to the stack.
    openings: HashMap<Opening, u64>,
    /// Programs' sockets by the datagram socket at the stack: several share a port if all allow it.
    sharers: HashMap<Session, Vec<u64>>,
    /// Sessions that programs have closed and whose close waits (SO_LINGER), by the inodes that
    /// they had; and until when.
    lingering: HashMap<u64, (Session, Instant)>,
}

/// The engine, as the last request has shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    /// It took the request.
    Well,
    /// It is gone, which the loop has not handled yet.
    Lost,
}

/// The way in which a session at the stack ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    /// After all bytes.
    Orderly,
    /// At once: the peer reads a reset.
    Reset,
}

impl Close {
    /// A reset if `resets`.
    pub(super) fn by_reset_if(resets: bool) -> Self {
        if resets { Self::Reset } else { Self::Orderly }
    }
}

/// Outcome of a request for sockets at the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// No answer is missing, or none is needed.
    Complete,
    /// The stack has to answer first.
    Pending,
}

impl Engine {
    pub(super) fn new(client: Option<Client>, attach: Option<Box<dyn Attach>>) -> Self {
        Self {
            client,
            attaching: attach.map(Attaching::new),
            attach_at: Instant::now(),
            health: Health::Well,
            sessions: HashMap::new(),
            openings: HashMap::new(),
            sharers: HashMap::new(),
            lingering: HashMap::new(),
        }
    }

    /// Requests the sockets that a listener or a datagram socket needs at the stack, unless they
    /// were requested; `backlog` is a listener's.
    ///
    /// # Errors
    /// `ENETDOWN`: the engine is gone.
    pub(super) fn request(
        &mut self,
        inode: u64,
        socket: &mut Socket,
        backlog: Option<u32>,
        purpose: Purpose,
    ) -> Result<Request, Errno> {
        if let Some(asked) = &socket.asked {
            return Ok(if asked.openings.is_empty() {
                Request::Complete
            } else {
                Request::Pending
            });
        }
        let local = socket.local;
        let sharing = match socket.shares_port() {
            true => Sharing::WithUser,
            false => Sharing::Alone,
        };
        let mut addresses = vec![local];
        // A stack's listener has one family; a dual-stack socket needs one of each.
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
                (Some(backlog), _) => client.begin_listen(address, backlog, sharing),
                (None, None) => client.begin_bind_udp(address, sharing),
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
        let request = if asked.openings.is_empty() {
            Request::Complete
        } else {
            Request::Pending
        };
        socket.asked = Some(asked);
        Ok(request)
    }

    /// Requests a session for the program's socket with this inode, which the caller makes known by
    /// [`Self::await_answer`]. `window` is the largest that the peer is to know, if it is limited.
    ///
    /// # Errors
    /// `ENETDOWN`: the engine is gone. The stack's.
    pub(super) fn begin_connect(
        &mut self,
        port: u16,
        peer: SocketAddr,
        window: Option<u32>,
    ) -> Result<Opening, Errno> {
        let client = self.client.as_mut().ok_or(Errno::NETDOWN)?;
        let begun = client.begin_connect(port, peer, window);
        begun.map_err(|error| errno_of(&error))
    }

    pub(super) fn await_answer(&mut self, opening: Opening, inode: u64) {
        self.openings.insert(opening, inode);
    }

    /// Cancels a request: a session that the stack has opened for it is reset.
    pub(super) fn cancel(&mut self, opening: Opening) {
        self.openings.remove(&opening);
        if let Some(client) = &mut self.client {
            // The loop notices when the engine is gone.
            client.give_up(opening).ok();
        }
    }

    /// Cancels all requests of a socket that is being removed.
    pub(super) fn cancel_all(&mut self, socket: &mut Socket) {
        let openings = socket.openings();
        if let Some(asked) = socket.asked.take() {
            self.close_unshared(asked.engines);
        }
        for opening in openings {
            self.cancel(opening);
        }
    }

    /// The stack's next answer, with the program's socket that it is for.
    pub(super) fn next_answer(&mut self) -> Option<(u64, Opening, Result<Session, SocketError>)> {
        while let Some((opening, answer)) = self.client.as_mut().and_then(Client::next_opened) {
            if let Some(inode) = self.openings.remove(&opening) {
                return Some((inode, opening, answer));
            }
            // The socket was removed meanwhile.
            if let Ok(session) = answer {
                self.close(session, Close::Reset);
            }
        }
        None
    }

    /// The requested sockets at the stack, once all answers have arrived.
    ///
    /// # Errors
    /// The stack's refusal.
    pub(super) fn take_asked(&mut self, socket: &mut Socket) -> Result<Vec<Session>, Errno> {
        let Some(asked) = socket.asked.take() else {
            return Ok(Vec::new());
        };
        // A stack may have only one family, so one refusal is fine; an address in use is an error.
        let is_taken = asked.refused == Some(Errno::ADDRINUSE);
        let refused = asked.refused;
        match refused.filter(|_| asked.engines.is_empty() || is_taken) {
            Some(error) => {
                self.close_unshared(asked.engines);
                Err(error)
            }
            None => Ok(asked.engines),
        }
    }

    /// Closes sockets at the stack, except those that other sockets share.
    pub(super) fn close_unshared(&mut self, engines: Vec<Session>) {
        for engine in engines {
            if !self.sharers.contains_key(&engine) {
                self.close(engine, Close::Orderly);
            }
        }
    }

    /// Makes a socket at the stack serve a program's one.
    pub(super) fn join(&mut self, session: Session, inode: u64) {
        self.sessions.insert(session, inode);
    }

    /// Makes a datagram socket at the stack serve one more of the programs'.
    pub(super) fn share(&mut self, session: Session, inode: u64) {
        self.join(session, inode);
        self.sharers.entry(session).or_default().push(inode);
    }

    pub(super) fn part(&mut self, session: Session) {
        self.sessions.remove(&session);
    }

    /// Parts and closes a session.
    pub(super) fn end(&mut self, session: Session, how: Close) {
        self.part(session);
        self.close(session, how);
    }

    /// Returns the chunk of a stream that ends before its program has got all bytes of it. The
    /// engine counts it as lent until then, whatever becomes of the session.
    pub(super) fn return_chunk(&mut self, state: &mut State) {
        if let State::Open(stream) = state
            && let Some((piece, _)) = stream.carried.take()
            && let Some(client) = &mut self.client
        {
            client.release(piece);
        }
    }

    /// The program's socket that a session serves.
    pub(super) fn served(&self, session: Session) -> Option<u64> {
        self.sessions.get(&session).copied()
    }

    /// The programs' sockets that share a datagram socket at the stack.
    pub(super) fn sharers(&self, session: Session) -> &[u64] {
        self.sharers.get(&session).map_or(&[], Vec::as_slice)
    }

    /// Removes a socket from the sharers of one at the stack; true if it was the last.
    pub(super) fn is_last_sharer(&mut self, session: Session, inode: u64) -> bool {
        let Some(sharers) = self.sharers.get_mut(&session) else {
            return true;
        };
        // Events of the shared socket go to one of those that are left.
        sharers.retain(|sharer| *sharer != inode);
        if let Some(other) = sharers.last() {
            self.sessions.insert(session, *other);
            return false;
        }
        self.sharers.remove(&session);
        true
    }

    pub(super) fn close(&mut self, session: Session, how: Close) {
        let Some(client) = &mut self.client else {
            return;
        };
        let closed = match how {
            Close::Reset => client.abort(session),
            Close::Orderly => client.close(session),
        };
        if closed.is_err() {
            // Its sessions are failed by the loop: a socket is being changed here.
            self.health = Health::Lost;
        }
    }

    /// Ends the sending of a session; [`Self::end_lingering`] closes it once all is acknowledged,
    /// or the time is over.
    pub(super) fn linger(&mut self, inode: u64, session: Session, time: Duration) {
        let Some(client) = &mut self.client else {
            return;
        };
        if client.shutdown(session).is_err() {
            self.health = Health::Lost;
            return;
        }
        let earlier = self
            .lingering
            .insert(inode, (session, Instant::now() + time));
        if let Some((earlier, _)) = earlier {
            // The inode was reused.
            self.close(earlier, Close::Orderly);
        }
    }

    pub(super) fn is_lingering(&self, inode: u64) -> bool {
        self.lingering.contains_key(&inode)
    }

    /// True while sessions linger, for which the engine is asked again and again.
    pub(super) fn has_lingering(&self) -> bool {
        !self.lingering.is_empty()
    }

    /// Closes the lingering sessions that are acknowledged, or whose time is over; their inodes.
    pub(super) fn end_lingering(&mut self, now: Instant) -> Vec<u64> {
        let Some(client) = &mut self.client else {
            return self.lingering.drain().map(|(inode, _)| inode).collect();
        };
        let ended = self.lingering.extract_if(|_, (session, until)| {
            // The loop notices when the engine is gone.
            *until <= now || is_acknowledged(client, *session).unwrap_or(true)
        });
        let ended: Vec<_> = ended.collect();
        let close = |(inode, (session, _)): (u64, (Session, Instant))| {
            self.close(session, Close::Orderly);
            inode
        };
        ended.into_iter().map(close).collect()
    }

    /// True if a request has shown that the engine is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.health == Health::Lost
    }

    /// The engine is gone; the programs' sockets that it served, or was asked to serve.
    pub(super) fn lose(&mut self) -> Vec<u64> {
        self.client = None;
        self.health = Health::Well;
        self.sharers.clear();
        self.attach_at = Instant::now();
        let asking = self.openings.drain().map(|(_, inode)| inode);
        let sessions = self.sessions.drain().map(|(_, inode)| inode);
        sessions.chain(asking).collect()
    }

    /// True while the engine is gone and may come back.
    pub(super) fn is_awaited(&self) -> bool {
        self.client.is_none() && self.attaching.is_some()
    }

    /// Tries to attach again, from time to time; true once it has succeeded. The attempt runs on a
    /// thread of its own: the engine's answer may take long.
    pub(super) fn attach_again(&mut self) -> bool {
        if !self.is_awaited() || self.attach_at.elapsed() <= super::ATTACH_EVERY {
            return false;
        }
        self.attach_at = Instant::now();
        match self.attaching.as_mut().and_then(Attaching::poll) {
            Some(Ok(client)) => {
                self.client = Some(client);
                true
            }
            // The engine may take its time, so a refusal is not reported.
            Some(Err(_)) | None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::tests::socket;

    struct Never;

    impl Attach for Never {
        fn attach(&mut self) -> Result<Client, String> {
            Err("there is none".into())
        }
    }

    #[test]
    fn an_engine_that_is_gone_takes_no_requests() {
        let mut engine = Engine::new(None, None);
        let mut of = socket(State::Bound);
        let asked = engine.request(1, &mut of, Some(5), Purpose::Listen);
        assert_eq!(asked, Err(Errno::NETDOWN));
        assert!(of.asked.is_none());
        let peer = "10.0.0.1:80".parse().unwrap();
        let begun = engine.begin_connect(0, peer, None);
        assert_eq!(begun.err(), Some(Errno::NETDOWN));
        assert!(engine.next_answer().is_none() && engine.lose().is_empty());
        assert!(!engine.is_lost());
        assert_eq!(engine.take_asked(&mut of), Ok(Vec::new()));
    }

    #[test]
    fn only_an_engine_that_may_come_back_is_awaited() {
        let mut never = Engine::new(None, None);
        assert!(!never.is_awaited() && !never.attach_again());
        let mut engine = Engine::new(None, Some(Box::new(Never)));
        assert!(engine.is_awaited());
        // The last attempt was just now; one that is due fails, and is tried again later.
        assert!(!engine.attach_again());
        if let Some(before) = Instant::now().checked_sub(super::super::ATTACH_EVERY * 2) {
            engine.attach_at = before;
            assert!(!engine.attach_again());
            assert!(engine.attach_at > before);
        }
    }

    #[test]
    fn answers_decide_about_what_was_asked() {
        let mut engine = Engine::new(None, None);
        let asked = |refused| Asked {
            purpose: Purpose::Listen,
            openings: Vec::new(),
            engines: Vec::new(),
            refused,
        };
        let mut of = socket(State::Bound);
        of.asked = Some(asked(None));
        let again = engine.request(1, &mut of, Some(5), Purpose::Listen);
        assert_eq!(again, Ok(Request::Complete), "it was requested");
        assert_eq!(engine.take_asked(&mut of), Ok(Vec::new()));
        assert!(of.asked.is_none());
        for refused in [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL] {
            of.asked = Some(asked(Some(refused)));
            assert_eq!(engine.take_asked(&mut of), Err(refused));
        }
        of.asked = Some(asked(None));
        engine.cancel_all(&mut of);
        assert!(of.asked.is_none());
    }

    #[test]
    fn a_session_ends_by_a_reset_only_if_asked_for() {
        assert_eq!(Close::by_reset_if(true), Close::Reset);
        assert_eq!(Close::by_reset_if(false), Close::Orderly);
    }
}
