//! Answers that their callers did not receive.
//!
//! A signal interrupts a waiting caller; with SA_RESTART the thread repeats the call. If the call
//! has replaced the descriptor's file, it is complete by then, and the repetition would fail as a
//! second one (EINVAL, EISCONN). Its answer is therefore kept for the same call of the same thread,
//! as long as the descriptor has that file. Must stay true: the number of kept answers is bounded.

use crate::caller::Caller;
use crate::socket::Opened;
use sidecore_sys::seccomp::{Answer, Call};
use std::collections::HashMap;
use std::net::SocketAddr;

/// The answers, by thread.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    /// The file by which the current call has replaced the one of its descriptor.
    pub(super) placed: Option<u64>,
    kept: HashMap<i32, (Call, Answer, u64)>,
    /// Ports that the kernel chose for sockets whose call did not complete.
    chosen: HashMap<u64, u16>,
}

impl Unheard {
    /// Keeps the answer to a call that has replaced its descriptor's file by the socket `placed`.
    pub(super) fn keep(&mut self, call: Call, answer: Answer, placed: u64) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        self.kept.insert(call.thread, (call, answer, placed));
    }

    /// Records the port that the kernel bound for a call that did not complete.
    pub(super) fn note_chosen(&mut self, inode: u64, port: u16) {
        if self.chosen.len() >= KEPT_MAX {
            self.chosen.clear();
        }
        self.chosen.insert(inode, port);
    }

    /// The socket from the program's view: without the port of a call that did not complete.
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

    /// The answer to a repeated call, and the file that it has placed.
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

/// Answers, and ports, that are kept.
const KEPT_MAX: usize = 256;
