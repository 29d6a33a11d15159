//! Sending packets in fragments if they are longer than the MTU of the link or path.
//!
//! Why here: off the fast path, below all senders.
//! Source: RFC 791 section 3.2, RFC 8200 section 4.5, RFC 6864, RFC 7739.

use super::Common;
use super::frames::Address;
use crate::wire::fragment::{self, PACKET_BYTES_MAX, Piece};
use crate::wire::{ethernet, ip};
use sidecore_bare::width::{ToU64, ToUsize};
use zerocopy::IntoBytes;

impl Common {
    /// As [`Common::push_packet`], for a packet longer than `mtu`: in fragments, all of them or
    /// none.
    #[cold]
    pub(crate) fn push_fragments(
        &mut self,
        address: &Address,
        len: usize,
        mtu: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let head = fragment::head_bytes(&address.source);
        // IPv6's fragment header is not part of the reassembled packet.
        let own = if address.source.is_v4() { head } else { 0 };
        // Offsets count units of eight bytes.
        let each = (mtu - head) / 8 * 8;
        let count = len.div_ceil(each);
        let all = len + count * (ethernet::HEADER_BYTES + head);
        if own + len > PACKET_BYTES_MAX || !self.control.has_room(count, all) {
            return false;
        }
        let mut whole = std::mem::take(&mut self.long);
        whole.clear();
        whole.resize(len, 0);
        // The checksum covers the whole packet, so it is built before it is cut.
        fill(&mut whole);
        let identification = self.identify(address);
        for (number, bytes) in whole.chunks(each).enumerate() {
            let piece = Piece {
                identification,
                offset: number * each,
                more: number + 1 < count,
                len: bytes.len(),
            };
            self.push_piece(address, &piece, bytes);
        }
        self.long = whole;
        self.counters.packets_fragmented += 1;
        self.counters.fragments_sent += count.to_u64();
        true
    }

    fn push_piece(&mut self, address: &Address, piece: &Piece, bytes: &[u8]) {
        let head = fragment::head_bytes(&address.source);
        let link = address.ethernet(self.interface.mac);
        // It cannot fail: room for all of them was checked.
        let Some(frame) = self
            .control
            .push(ethernet::HEADER_BYTES + head + bytes.len())
        else {
            return;
        };
        let (before, packet) = frame.split_at_mut(ethernet::HEADER_BYTES);
        before.copy_from_slice(link.as_bytes());
        let (before, payload) = packet.split_at_mut(head);
        let ends = (&address.source, &address.destination);
        fragment::write(before, ends, address.protocol, address.hops, piece);
        if address.class != 0 {
            ip::set_traffic_class(before, address.class);
        }
        payload.copy_from_slice(bytes);
    }

    /// RFC 6864 section 4.3: not reused while fragments may be in transit. RFC 7739 section 5.3: a
    /// counter shared by few destinations, with an unpredictable start.
    fn identify(&mut self, address: &Address) -> u32 {
        let (source, destination) = (&address.source, &address.destination);
        let (begin, place) = self
            .secrets
            .identification(source, destination, address.protocol);
        let at = place.to_usize() % self.identifications.len();
        let counter = &mut self.identifications[at];
        *counter = counter.wrapping_add(1);
        begin.wrapping_add(*counter)
    }
}
