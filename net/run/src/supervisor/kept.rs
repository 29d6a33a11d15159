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
pub(super) struct KeptAnswers {
    /// The file by which the current call has replaced the one of its descriptor.
    pub(super) placed: Option<u64>,
    kept: HashMap<i32, (Call, Answer, u64)>,
    /// Ports that the kernel chose for sockets whose call did not complete.
    chosen: HashMap<u64, u16>,
}

impl KeptAnswers {
    /// Keeps the answer to a call that has replaced its descriptor's file by the socket `placed`.
    pub(super) fn keep(&mut self, call: Call, answer: Answer, placed: u64) {
        // Most are never asked for: without SA_RESTART, or because the program gives up.
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
        // The thread may have made another call since, and its descriptor may have another file.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Transport;
    use std::os::fd::OwnedFd;
    use std::rc::Rc;

    fn call(thread: i32) -> Call {
        Call {
            id: 1,
            thread,
            number: libc::SYS_bind,
            arguments: [0; 6],
        }
    }

    fn opened(port: u16) -> Opened {
        let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        Opened {
            file: Rc::new(null),
            transport: Transport::Tcp,
            is_v6: false,
            is_v6_only: false,
            local: SocketAddr::from(([127, 0, 0, 1], port)),
            is_connected: false,
            chosen: None,
        }
    }

    #[test]
    fn a_port_of_an_interrupted_call_is_not_the_programs() {
        let mut kept = KeptAnswers::default();
        kept.note_chosen(7, 4000);
        // Another socket, and the same one that the program has bound itself meanwhile.
        assert_eq!(kept.as_opened(8, opened(4000)).chosen, None);
        assert_eq!(kept.as_opened(7, opened(4001)).chosen, None);
        kept.note_chosen(7, 4000);
        let again = kept.as_opened(7, opened(4000));
        assert_eq!((again.chosen, again.local.port()), (Some(4000), 0));
        assert!(again.local.ip().is_unspecified());
        // It is asked once: from then on the call is complete, or notes it anew.
        assert_eq!(kept.as_opened(7, opened(4000)).chosen, None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = KeptAnswers::default();
        let last = i32::try_from(KEPT_MAX).unwrap();
        for thread in 0..=last {
            kept.keep(call(thread), Answer::Value(0), 1);
            kept.note_chosen(u64::try_from(thread).unwrap(), 1);
        }
        assert_eq!((kept.kept.len(), kept.chosen.len()), (1, 1));
        // A thread has one call.
        kept.keep(call(last), Answer::Value(1), 2);
        assert_eq!(kept.kept.len(), 1);
    }
}
