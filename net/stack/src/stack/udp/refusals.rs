//! Datagrams that their destination refused: ICMP "port unreachable" of both families.
//!
//! A socket asks for them by [`want_refusals`]. Must stay true: what a socket keeps is
//! bounded, whatever is forged; a refusal is about a datagram of a socket that exists.
//! Source: RFC 1122 section 4.1.3.3, RFC 4443 sections 2.4(d) and 3.1.

use super::{Datagrams, HEADER_BYTES};
use crate::error::NetError;
use crate::secrets::Ends;
use crate::shared::{Common, EventSource};
use crate::stack::Stack;
use crate::stack::names::UdpId;
use crate::wire::ip::{self, Packet};
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The refusals of one socket.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    is_wanted: bool,
    /// The destination, and what the report quotes of the payload.
    queue: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Refusals {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Datagrams {
    /// Processes "port unreachable" about a packet of ours: `about` is its header, `start` what
    /// follows, as far as it is quoted.
    pub(crate) fn arrive_refusal(&mut self, common: &mut Common, about: &Packet, start: &[u8]) {
        let (Some(header), true) = (
            start.first_chunk::<HEADER_BYTES>(),
            about.protocol == ip::UDP,
        ) else {
            return;
        };
        let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let ends = Ends {
            local: about.source,
            remote: about.destination,
            local_port: half(0),
            remote_port: half(2),
        };
        let Some(number) = self.find(common, &ends) else {
            return;
        };
        let socket = &mut self.sockets[number.to_usize()];
        let refusals = &mut socket.refusals;
        if !refusals.is_wanted || refusals.queue.len() == QUEUE_MAX {
            return;
        }
        // The quoted packet may be padded, or be cut off.
        let end = usize::from(half(4)).clamp(HEADER_BYTES, start.len());
        let payload = start[HEADER_BYTES..end].to_vec();
        let peer = SocketAddr::new(ends.remote.to_std(), ends.remote_port);
        refusals.queue.push_back((peer, payload));
        if !socket.listed {
            socket.listed = true;
            common.pending_events.push_back(EventSource::Udp(number));
        }
    }
}

/// Keeps refusals of this socket's datagrams, or no longer.
///
/// # Errors
/// [`NetError::Gone`].
pub fn want_refusals(stack: &mut Stack, id: UdpId, is_wanted: bool) -> Result<(), NetError> {
    let refusals = &mut stack.host.datagrams.socket(id)?.refusals;
    refusals.clear();
    refusals.is_wanted = is_wanted;
    Ok(())
}

/// True if [`next_refusal`] has one.
#[must_use]
pub fn has_refusal(stack: &Stack, id: UdpId) -> bool {
    let socket = stack.host.datagrams.sockets.get(id.number.to_usize());
    let socket = socket.filter(|it| it.open && it.generation == id.generation);
    socket.is_some_and(|it| !it.refusals.queue.is_empty())
}

/// The destination of a datagram that was refused there, and the first bytes of its payload.
pub fn next_refusal(stack: &mut Stack, id: UdpId) -> Option<(SocketAddr, Vec<u8>)> {
    let socket = stack.host.datagrams.socket(id).ok()?;
    socket.refusals.queue.pop_front()
}

/// Refusals that a socket keeps; later ones are dropped until these are taken.
const QUEUE_MAX: usize = 8;
