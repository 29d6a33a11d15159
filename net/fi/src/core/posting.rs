//! Operations of endpoints, from the call to their work requests.

use super::{Asked, Core, DEPTH_MAX, Op, Report, negative};
use crate::abi::*;
use sidecore_bare::width::ToU64;
use sidecore_rdma::{Piece, Pieces, Post, Receive, Remote, Stag, Work};

impl Core {
    /// Pieces of this process's memory for some buffers.
    pub(crate) fn pieces(&self, buffers: &[iovec]) -> Result<Pieces, i32> {
        let mut pieces = Pieces::new();
        for buffer in buffers {
            let bytes = u32::try_from(buffer.iov_len).map_err(|_| -libc::EMSGSIZE)?;
            let piece = Piece {
                stag: self.local,
                // The provider turns it into a pointer again, in `net/rdma`.
                offset: buffer.iov_base.expose_provenance().to_u64(),
                bytes,
            };
            pieces.try_push(piece).map_err(|_| -libc::EINVAL)?;
        }
        Ok(pieces)
    }

    pub(crate) fn post_receive(
        &mut self,
        index: usize,
        buffers: &[iovec],
        asked: &Asked,
    ) -> Result<(), i32> {
        let pieces = self.pieces(buffers)?;
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        // Completions that were not read count, too: the queue is as long as its endpoints allow.
        if ep.receives.len() + ep.unread_receives >= DEPTH_MAX {
            return Err(-libc::EAGAIN);
        }
        if ep.is_over {
            return Err(-libc::ENOTCONN);
        }
        let number = ep.next_receive;
        ep.next_receive += 1;
        let receive = Receive { id: number, pieces };
        match ep.connection {
            Some(connection) => {
                let posted = self.device.post_receive(connection, receive);
                posted.map_err(|error| negative(&error))?;
            }
            // A program may post before it connects, so that no message finds none.
            None => ep.early.push_back(receive),
        }
        let flags = match asked.has_endpoint_flags {
            true => asked.flags | ep.receive_flags,
            false => asked.flags,
        };
        let completes = ep.completes_receives() || flags & FI_COMPLETION != 0;
        ep.receives
            .push_back(Op::receive(asked, buffers, number, completes));
        Ok(())
    }

    /// Posts work of an endpoint; `results` are addresses for the results of atomics.
    pub(crate) fn post(
        &mut self,
        index: usize,
        work: Vec<Work>,
        results: &[usize],
        len: usize,
        asked: &Asked,
        report: Report,
    ) -> Result<(), i32> {
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        let connection = ep.connection.ok_or(-libc::ENOTCONN)?;
        if !ep.is_connected || ep.is_over {
            return Err(-libc::ENOTCONN);
        }
        let completes =
            asked.completes && (ep.completes_sends() || asked.flags & FI_COMPLETION != 0);
        let is_proved = asked.flags & FI_DELIVERY_COMPLETE != 0;
        let count = work.len() + usize::from(is_proved) + usize::from(asked.data.is_some());
        // All or nothing: a part of an operation could not be taken back.
        self.make_room(index, count)?;
        let mut fence = asked.flags & FI_FENCE != 0;
        let mut results = results.iter();
        let mut all = with_companions(work, asked, report, self.local).peekable();
        while let Some(work) = all.next() {
            let result = match work {
                Work::Atomic { .. } => results.next().copied().unwrap_or(0),
                _ => 0,
            };
            let post = Post {
                id: 0,
                work,
                // The others follow the first in order anyway.
                fence: std::mem::take(&mut fence),
            };
            let op = Op {
                context: asked.context,
                report,
                len,
                buf: 0,
                completes,
                is_silent: all.peek().is_some(),
                number: 0,
                result,
            };
            let posted = self.device.post(connection, post);
            posted.map_err(|error| negative(&error))?;
            // Reset at once: the next poll records operations that completed immediately.
            if let Some(ep) = self.eps.get(index) {
                ep.sends.push_back(op);
            }
        }
        Ok(())
    }

    /// Adds the endpoint's flags to those of a call that has none.
    pub(crate) fn with_endpoint_flags(&mut self, index: usize, asked: Asked) -> Result<Asked, i32> {
        if !asked.has_endpoint_flags {
            return Ok(asked);
        }
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        let flags = asked.flags | ep.op_flags;
        Ok(Asked { flags, ..asked })
    }

    /// Makes sure that `count` more work requests of an endpoint can be posted.
    fn make_room(&mut self, index: usize, count: usize) -> Result<(), i32> {
        if !self.has_room(index, count)? {
            // Completions of silent work requests are removed only by progress.
            self.progress();
            if !self.has_room(index, count)? {
                return Err(-libc::EAGAIN);
            }
        }
        Ok(())
    }

    fn has_room(&mut self, index: usize, count: usize) -> Result<bool, i32> {
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        Ok(ep.has_room(count))
    }

    /// A copy of injected data, as a buffer that stays until its operation is complete.
    pub(crate) fn copy(&mut self, index: usize, buffers: &[iovec]) -> Result<iovec, i32> {
        // An operation may be three work requests: its own, data, and a proof of delivery.
        self.make_room(index, 3)?;
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        ep.copy(buffers).ok_or(-libc::EMSGSIZE)
    }

    /// Cancels the oldest receive with that context that no message has begun to fill; false if
    /// there is none. The completion queue reports it.
    pub(crate) fn cancel(&mut self, index: usize, context: usize) -> bool {
        let Some(ep) = self.eps.get(index) else {
            return false;
        };
        let connection = ep.connection;
        // Several receives may have one context, and the first ones may be half full.
        let of_context = ep.receives.iter().filter(|op| op.context == context);
        let numbers: Vec<u64> = of_context.map(|op| op.number).collect();
        for number in numbers {
            let was_there = match connection {
                Some(connection) => self.device.cancel_receive(connection, number),
                None => self.eps.get(index).is_some_and(|ep| {
                    let before = ep.early.len();
                    ep.early.retain(|receive| receive.id != number);
                    ep.early.len() < before
                }),
            };
            if was_there {
                let op = self.eps.get(index).and_then(|ep| {
                    let at = ep.receives.iter().position(|op| op.number == number)?;
                    ep.receives.remove(at)
                });
                if let Some(op) = op {
                    self.finish(index, op, true, &super::FLUSHED);
                }
                return true;
            }
        }
        false
    }
}

/// The work requests of an operation, in their order: its own, its immediate data, and the proof
/// of its delivery.
fn with_companions(
    work: Vec<Work>,
    asked: &Asked,
    report: Report,
    local: Stag,
) -> impl Iterator<Item = Work> + use<> {
    // A message's data is sent before it, and takes no receive there; a write's data follows it.
    let is_message = report.flags & FI_MSG != 0;
    let data = asked.data.map(|value| Work::Immediate {
        value,
        solicited: !is_message,
    });
    let (ahead, behind) = if is_message {
        (data, None)
    } else {
        (None, data)
    };
    // The read's response arrives after everything before it was placed.
    let proof = (asked.flags & FI_DELIVERY_COMPLETE != 0).then(|| Work::Read {
        into: Piece {
            stag: local,
            offset: 0,
            bytes: 0,
        },
        remote: Remote {
            stag: Stag(0),
            offset: 0,
        },
    });
    ahead.into_iter().chain(work).chain(behind).chain(proof)
}
