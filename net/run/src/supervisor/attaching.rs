//! Losing the engine, and attaching to it again.
//!
//! Must stay true: nothing here blocks: a separate thread tries to attach.

use super::Supervisor;
use crate::socket::{From, Purpose, State};
use rustix::io::Errno;
use sidecore_net::sock::client::Client;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Instant;

/// Attaches to the stack, for sessions outside of the loopback.
pub(crate) trait Attach: Send {
    /// Attaches to the stack, or again after it was gone.
    ///
    /// # Errors
    /// The reason, as text for the log.
    fn attach(&mut self) -> Result<Client, String>;
}

/// Attaches on a separate thread.
pub(super) struct Attaching {
    attach: Arc<Mutex<Box<dyn Attach>>>,
    answer: Option<mpsc::Receiver<Result<Client, String>>>,
}

impl Attaching {
    pub(super) fn new(attach: Box<dyn Attach>) -> Self {
        let attach = Arc::new(Mutex::new(attach));
        Self {
            attach,
            answer: None,
        }
    }

    /// The result of an attempt, once there is one; starts an attempt if none is running.
    fn poll(&mut self) -> Option<Result<Client, String>> {
        if let Some(answer) = &self.answer {
            return match answer.try_recv() {
                Err(mpsc::TryRecvError::Empty) => None,
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.answer = None;
                    None
                }
                Ok(attached) => {
                    self.answer = None;
                    Some(attached)
                }
            };
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let attach = Arc::clone(&self.attach);
        let thread = std::thread::Builder::new().name("sidecore-attach".to_owned());
        let attaching = move || {
            let mut attach = attach.lock().unwrap_or_else(PoisonError::into_inner);
            // The receiver is gone if the supervisor has ended.
            sender.send(attach.attach()).ok();
        };
        // Without a thread, the next call tries again.
        thread.spawn(attaching).ok()?;
        self.answer = Some(receiver);
        None
    }
}

impl Supervisor {
    /// The engine is gone, and all its sessions with it.
    pub(super) fn lose_stack(&mut self) {
        self.client = None;
        self.sharers.clear();
        self.attach_at = Instant::now();
        let asking = self.openings.drain().map(|(_, inode)| inode);
        let sessions = self.sessions.drain().map(|(_, inode)| inode);
        let lost: Vec<u64> = sessions.chain(asking).collect();
        for inode in lost {
            let Some(socket) = self.sockets.get_mut(&inode) else {
                continue;
            };
            let asked = socket.asked.take();
            match &mut socket.state {
                State::Bound => self.fail_waiting(inode, Errno::NETDOWN),
                State::Datagram(_) if matches!(&asked, Some(it) if it.is_adopting()) => {
                    self.fail_waiting(inode, Errno::NETDOWN);
                    self.forget(inode);
                }
                State::Listening(listening) => {
                    listening.engines.clear();
                    listening
                        .pending
                        .retain(|pending| !matches!(pending.from, From::Stack(_)));
                    self.fail_waiting(inode, Errno::CONNRESET);
                }
                State::Datagram(engines) => engines.clear(),
                _ => self.reset(inode, Errno::CONNRESET),
            }
        }
    }

    /// Tries to attach again; then listeners and datagram sockets are reopened. The attempt runs on
    /// its own thread: the engine's answer may take long.
    pub(super) fn attach_again(&mut self) {
        self.attach_at = Instant::now();
        let Some(attached) = self.attach.as_mut().and_then(Attaching::poll) else {
            return;
        };
        let Ok(client) = attached else {
            return;
        };
        self.client = Some(client);
        let sockets = self.sockets.iter();
        let wanting: Vec<u64> = sockets
            .filter(|(_, socket)| matches!(socket.state, State::Listening(_) | State::Datagram(_)))
            .map(|(inode, _)| *inode)
            .collect();
        for inode in wanting {
            let socket = self.sockets.get(&inode).map(|socket| &socket.state);
            let backlog = match socket {
                Some(State::Listening(listening)) => Some(listening.backlog),
                _ => None,
            };
            let served = match self.ask_stack(inode, backlog, Purpose::Again) {
                Ok(true) => Ok(()),
                Ok(false) => self.serve_again(inode),
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                crate::aside::say(format!("a socket does not come back: {error}"));
            }
        }
    }
}
