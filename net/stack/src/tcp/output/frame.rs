//! Building a segment's headers, and passing the frame on.
//!
//! Source: RFC 9293 sections 3.1 and 3.8.6, RFC 7323 sections 2.2 and 3.2.

use super::{Load, Outcome, Output};
use crate::checksum::{Sum, pseudo};
use crate::frame::{Outgoing, TransmitChecksum};
use crate::shared::neighbors::Hop;
use crate::state::flags::Flags;
use crate::tcp::ecn::accurate::is_bare;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Codepoint};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{self, ACK, OPTIONS_BYTES_MAX, Options, SYN, Tcp};
use crate::wire::{Ip, Mac};
use std::num::NonZeroU16;
use zerocopy::IntoBytes;
use zerocopy::network_endian::U16;

/// Ethernet, IPv6, TCP and its options.
const HEADER_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + ip::V6_BYTES + tcp::HEADER_BYTES + OPTIONS_BYTES_MAX;

impl Output<'_, '_> {
    /// Builds the header and passes the frame on.
    #[inline]
    pub(super) fn emit(&mut self, load: Load, options: &mut Options) -> Outcome {
        let mac = match self.next_hop() {
            Ok(mac) => mac,
            Err(outcome) => return outcome,
        };
        let syn = load.flags & SYN != 0;
        if !syn {
            if self.session.hot.has(Flags::TIMESTAMPS) {
                options.timestamps = Some(self.stamps());
            }
            // A full segment has no room for blocks; a pure acknowledgment was sent before it.
            if load.len == 0 {
                self.report(options);
            }
        }
        let bare = is_bare(load.flags, load.len, options.block_count);
        let (ace, codepoint) = self.ecn_fields(&load, bare);
        let window = self.window_field(syn);
        let mut option_bytes = [0; OPTIONS_BYTES_MAX];
        let option_len = tcp::write_options(options, &mut option_bytes);
        let tcp_len = tcp::HEADER_BYTES + option_len;
        let (hot, path) = (&*self.session.hot, &*self.session.path);
        let interface = &self.session.common.interface;
        let mut header = [0; HEADER_BYTES_MAX];
        let kind = ethernet::kind_of(&path.local);
        header[..ethernet::HEADER_BYTES]
            .copy_from_slice(Ethernet::new(mac, interface.mac, kind).as_bytes());
        let at = ethernet::HEADER_BYTES
            + ip::write(
                &mut header[ethernet::HEADER_BYTES..],
                &path.local,
                &path.remote,
                ip::TCP,
                self.session.common.config.hops,
                tcp_len + load.len,
            );
        if path.traffic_class != 0 {
            ip::set_traffic_class(&mut header[ethernet::HEADER_BYTES..at], path.traffic_class);
        }
        if codepoint != Codepoint::NotEct {
            ip::set_codepoint(&mut header[ethernet::HEADER_BYTES..at], codepoint);
        }
        let acknowledgment = if load.flags & ACK != 0 {
            hot.receive.nxt
        } else {
            Sequence::default()
        };
        let mut fields = Tcp {
            source: U16::new(path.local_port),
            destination: U16::new(path.remote_port),
            sequence: load.sequence.into(),
            acknowledgment: acknowledgment.into(),
            offset: tcp::offset_of(tcp_len),
            flags: load.flags,
            window: U16::new(window),
            checksum: [0; 2],
            urgent: U16::new(0),
        };
        fields.set_ace(ace);
        header[at..at + tcp::HEADER_BYTES].copy_from_slice(fields.as_bytes());
        header[at + tcp::HEADER_BYTES..at + tcp_len].copy_from_slice(&option_bytes[..option_len]);
        let pool = &self.session.common.pool;
        let payload = hot.tx.pieces(pool, load.offset, load.len);
        // The sum begins with the pseudo-header; a NIC that completes checksums adds the rest.
        let sum = pseudo(&path.local, &path.remote, ip::TCP).plus_len(tcp_len + load.len);
        let checksum_at = at + usize::from(tcp::CHECKSUM_OFFSET);
        let (field, checksum) = if interface.completes_checksums {
            let checksum = TransmitChecksum::Partial {
                start: tcp_start(&path.local),
                offset: tcp::CHECKSUM_OFFSET,
            };
            (sum.partial(), checksum)
        } else {
            let sum = sum
                .plus(Sum::of(&header[at..at + tcp_len]))
                .plus(Sum::of(payload[0]));
            // After an odd number of bytes, the second piece begins in the middle of a word of the
            // sum.
            let sum = if payload[0].len().is_multiple_of(2) {
                sum.plus(Sum::of(payload[1]))
            } else {
                sum.plus_odd(Sum::of(payload[1]))
            };
            (sum.field(), TransmitChecksum::Complete)
        };
        header[checksum_at..checksum_at + 2].copy_from_slice(&field);
        let mss = hot.mss;
        let frame = Outgoing {
            header: &header[..at + tcp_len],
            payload,
            checksum,
            // The NIC cuts a super-segment into segments of this size.
            segment_bytes: (load.len > usize::from(mss))
                .then(|| NonZeroU16::new(mss))
                .flatten(),
        };
        if !(self.send)(&frame) {
            return Outcome::Full;
        }
        self.emitted(load.flags, fields.flags, bare);
        Outcome::Done
    }

    /// The next hop's hardware address; without one, the reason why nothing is sent now.
    #[inline]
    fn next_hop(&mut self) -> Result<Mac, Outcome> {
        let session = &mut self.session;
        let common = &mut *session.common;
        let (number, generation) = session.path.hop();
        let now_ns = common.now_ns;
        match common
            .neighbors
            .hop(number, generation, session.number, now_ns)
        {
            Hop::Known(mac) => Ok(mac),
            Hop::Waiting => {
                session.hot.set(Flags::UNRESOLVED);
                Err(Outcome::Unresolved)
            }
            Hop::Gone => {
                // The entry was reused for another neighbour: the table was full.
                let hop = common.find_hop(&session.path.remote);
                let (number, generation) = hop.ok_or(Outcome::Unresolved)?;
                session.path.neighbor = number;
                session.path.neighbor_generation = generation;
                session.hot.set(Flags::UNRESOLVED);
                Err(Outcome::More)
            }
        }
    }

    /// Flags AE, CWR and ECE, and the packet's ECN field.
    #[inline]
    fn ecn_fields(&mut self, load: &Load, bare: bool) -> (u8, Codepoint) {
        if load.flags & SYN != 0 {
            let side = self.session.side();
            return (self.session.ecn().setup(side), Codepoint::NotEct);
        }
        // A retransmission begins before SND.NXT.
        let fresh = load.len > 0 && load.sequence == self.session.hot.send.nxt;
        self.session.ecn().to_send(fresh, bare)
    }

    /// The window field; advances the advertised edge.
    #[inline]
    fn window_field(&mut self, syn: bool) -> u16 {
        if syn {
            return self.session.hot.receive.first_field();
        }
        self.session.window_field()
    }

    /// The NIC has taken a segment with these flags.
    #[inline]
    fn emitted(&mut self, flags: u8, with_ecn: u8, bare: bool) {
        self.session.common.counters.segments_sent += 1;
        self.session.ecn().sent(with_ecn, bare);
        if flags & ACK == 0 {
            return;
        }
        if self.session.hot.has(Flags::REFUSED) {
            self.not_refused();
        }
        // Any segment with ACK acknowledges everything received so far.
        let hot = &mut *self.session.hot;
        hot.clear(Flags::ACK_NOW | Flags::ACK_LATER | Flags::HALF_ACK_OWED);
        hot.clear_dup_acks();
        hot.ack_at = 0;
        hot.unacked_bytes = 0;
        hot.receive.acked = hot.receive.nxt;
    }
}

/// Offset of the TCP header in a frame between addresses of this one's family.
#[inline]
fn tcp_start(local: &Ip) -> u16 {
    const V4: u16 = (ethernet::HEADER_BYTES + ip::V4_BYTES) as u16;
    const V6: u16 = (ethernet::HEADER_BYTES + ip::V6_BYTES) as u16;
    if local.is_v4() { V4 } else { V6 }
}
