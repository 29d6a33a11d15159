//! Answers that their callers have not heard.
//!
//! A signal calls a waiting caller away; where its handler lets it, the thread makes the call
//! again. A call that has put another file in a descriptor's place is done by then, and would be
//! judged as a second one (EINVAL, EISCONN). So its answer is kept for the same call of the same
//! thread, as long as the descriptor has that file. Must stay true: a bounded number is kept.

use crate::caller::Caller;
use crate::socket::Opened;
use sidecore_sys::seccomp::{Answer, Call};
use std::collections::HashMap;
use std::net::SocketAddr;

/// The answers, by thread.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    /// The file that the call of now has put in a descriptor's place.
    pub(super) placed: Option<u64>,
    kept: HashMap<i32, (Call, Answer, u64)>,
    /// Ports that the kernel has chosen for sockets whose call was not done.
    chosen: HashMap<u64, u16>,
}

impl Unheard {
    /// Keeps the answer to a call that has put the socket `placed` in its descriptor's place.
    pub(super) fn keep(&mut self, call: Call, answer: Answer, placed: u64) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        self.kept.insert(call.thread, (call, answer, placed));
    }

    /// A call is not done for which the kernel has bound a socket.
    pub(super) fn note_chosen(&mut self, inode: u64, port: u16) {
        if self.chosen.len() >= KEPT_MAX {
            self.chosen.clear();
        }
        self.chosen.insert(inode, port);
    }

    /// A socket as the program has opened it: without the port that was chosen for a call before.
    pub(super) fn as_opened(&mut self, inode: u64, mut opened: Opened) -> Opened {
        let port = opened.local.port();
        if self
            .chosen
            .remove(&inode)
            .is_some_and(|chosen| chosen == port)
        {
            opened.local = SocketAddr::new(opened.any(), 0);
            opened.chosen = Some(port);
        }
        opened
    }

    /// The answer to a call that is made again, and the file that it has placed.
    pub(super) fn take(&mut self, caller: &Caller<'_>) -> Option<(Answer, u64)> {
        if self.kept.is_empty() {
            return None;
        }
        let (call, answer, placed) = self.kept.get(&caller.call.thread)?;
        let is_same = call.number == caller.call.number && call.arguments == caller.call.arguments;
        let kept = (*answer, *placed);
        if !is_same || caller.inode(caller.int(0)) != Some(*placed) {
            return None;
        }
        self.kept.remove(&caller.call.thread);
        Some(kept)
    }
}

/// Answers that are kept.
const KEPT_MAX: usize = 256;
