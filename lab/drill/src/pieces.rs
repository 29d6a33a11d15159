//! Packets in fragments: a packet of the peer's cut, and the stack's fragments put together.
//!
//! A script gives the whole packet and the length of each fragment; the rest (offsets, the
//! identification, that no fragment is missing) must be right.

use super::bytes::Broken;
use sidecore_net_stack::wire::fragment::{self, Piece};
use sidecore_net_stack::wire::ip;

/// Fragmentation of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Payload bytes of every fragment but the last; a multiple of eight.
    pub(crate) each: usize,
    /// The fragment that is lost, counted from 1.
    pub(crate) without: Option<usize>,
}

/// The fragments of a packet that has no options or extension headers.
pub(crate) fn split(packet: &[u8], cut: &Cut, identification: u32) -> Vec<Vec<u8>> {
    let start = if packet.first().is_some_and(|first| first >> 4 == 4) {
        ip::V4_BYTES
    } else {
        ip::V6_BYTES
    };
    let Some((source, destination, hops)) = packet.get(..start).and_then(ip::ends) else {
        return Vec::new();
    };
    let protocol = packet[if source.is_v4() { 9 } else { 6 }];
    let body = &packet[start..];
    let count = body.len().div_ceil(cut.each);
    let pieces = body.chunks(cut.each).enumerate();
    let pieces = pieces.filter(|(number, _)| cut.without != Some(number + 1));
    let write = |(number, bytes): (usize, &[u8])| {
        let piece = Piece {
            identification,
            offset: number * cut.each,
            more: number + 1 < count,
            len: bytes.len(),
        };
        let mut out = vec![0; fragment::head_bytes(&source)];
        fragment::write(&mut out, (&source, &destination), protocol, hops, &piece);
        out.extend_from_slice(bytes);
        out
    };
    pieces.map(write).collect()
}

/// A packet that is put together.
#[derive(Debug)]
pub(crate) struct Join {
    each: usize,
    identification: Option<u32>,
    whole: Vec<u8>,
    offset: usize,
}

impl Join {
    pub(crate) fn new(cut: &Cut) -> Self {
        Self {
            each: cut.each,
            identification: None,
            whole: Vec::new(),
            offset: 0,
        }
    }

    /// The next fragment; the packet where it was the last.
    pub(crate) fn take(&mut self, packet: &[u8]) -> Result<Option<Vec<u8>>, Broken> {
        let v4 = packet.first().is_some_and(|first| first >> 4 == 4);
        let (parsed, fragment) = if v4 {
            (ip::parse_v4(packet), fragment::parse_v4(packet))
        } else {
            (ip::parse_v6(packet), fragment::parse_v6(packet))
        };
        let (Err(ip::Bad::Fragment), Ok(fragment)) = (parsed, fragment) else {
            return Err("it is no fragment");
        };
        let number = fragment.key.identification;
        if *self.identification.get_or_insert(number) != number {
            return Err("its identification is not that of the fragment before");
        }
        if fragment.offset != self.offset {
            return Err("its offset is not where the fragment before ends");
        }
        if fragment.more && fragment.len() != self.each || fragment.len() > self.each {
            return Err("its length is not what fragments are cut to");
        }
        if self.whole.is_empty() {
            let (source, destination) = (&fragment.key.source, &fragment.key.destination);
            self.whole.resize(ip::header_bytes(source), 0);
            let protocol = fragment.protocol;
            ip::write(
                &mut self.whole,
                source,
                destination,
                protocol,
                fragment.hops,
                0,
            );
        }
        self.whole
            .extend_from_slice(&packet[fragment.head..fragment.end]);
        self.offset += fragment.len();
        if fragment.more {
            return Ok(None);
        }
        let mut whole = std::mem::take(&mut self.whole);
        let (source, destination) = (&fragment.key.source, &fragment.key.destination);
        let (protocol, hops) = (fragment.protocol, fragment.hops);
        ip::write(&mut whole, source, destination, protocol, hops, self.offset);
        Ok(Some(whole))
    }
}
