//! Segments of the peer: mostly what the pair can accept now, with fields near the limits.

use super::model::Wait;
use super::{Attacked, LIKELY, OTHER, REGION_BYTES, REGION_COUNT, REGIONS, rights};
use sidecore_random::choices::Choices;
use sidecore_rdma_wire::wire::ddp::{
    AtomicRequest, AtomicResponse, Header, Opcode, ReadRequest, Target,
};
use sidecore_rdma_wire::wire::terminate::{Cause, Terminate};
use sidecore_rdma_wire::{Access, Stag};

impl Attacked {
    /// A segment with mostly plausible fields.
    pub(super) fn segment(&mut self, choices: &mut Choices) -> (Header, Vec<u8>) {
        let waits = self.model.waits.front().copied();
        let opcode = self.opcode(choices);
        let mut last = choices.below(4) != 0;
        let target = match opcode.queue() {
            None => {
                let (stag, offset) = match waits {
                    Some(Wait::Read { into, at, .. })
                        if opcode == Opcode::ReadResponse && choices.below(8) != 0 =>
                    {
                        (into.stag, into.offset.wrapping_add(at.into()))
                    }
                    _ => self.place(Access::REMOTE_WRITE, choices),
                };
                Target::Tagged { stag, offset }
            }
            Some(queue) => {
                let queue = match choices.below(64) {
                    63 => choices.below(6) as u32,
                    _ => queue,
                };
                let msn = self.model.msn(queue);
                let msn = match choices.below(64) {
                    62 => choices.bits() as u32,
                    63 => msn.wrapping_add(1),
                    _ => msn,
                };
                let at = if queue == 0 {
                    self.model.incoming_at()
                } else {
                    0
                };
                let offset = match choices.below(64) {
                    62 => choices.bits() as u32,
                    63 => at.wrapping_add(1),
                    _ => at,
                };
                Target::Untagged {
                    invalidate: self.place(Access::REMOTE_INVALIDATE, choices).0,
                    queue,
                    msn,
                    offset,
                }
            }
        };
        let mut payload = match opcode {
            Opcode::ReadRequest => {
                last = true;
                let (sink, sink_offset) = self.place(Access::NONE, choices);
                let (source, source_offset) = self.place(Access::REMOTE_READ, choices);
                let count = choices.below(100) as u32;
                let request = ReadRequest {
                    sink,
                    sink_offset,
                    count,
                    source,
                    source_offset,
                };
                request.bytes().to_vec()
            }
            Opcode::AtomicRequest => {
                last = true;
                let (stag, offset) = self.place(Access::REMOTE_ATOMIC, choices);
                let request = AtomicRequest {
                    operation: choices.below(4) as u8,
                    identifier: choices.bits() as u32,
                    stag,
                    offset: if choices.below(8) == 7 {
                        offset
                    } else {
                        offset & !7
                    },
                    operand: choices.bits(),
                    operand_mask: choices.bits(),
                    compare: 0,
                    compare_mask: choices.below(2),
                };
                request.bytes().to_vec()
            }
            Opcode::AtomicResponse => {
                last = true;
                let identifier = match waits {
                    Some(Wait::Atomic { identifier, .. }) => identifier,
                    _ => 1,
                };
                let original = choices.bits();
                let response = AtomicResponse {
                    identifier,
                    original,
                };
                response.bytes().to_vec()
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                last = true;
                choices.bits().to_be_bytes().to_vec()
            }
            Opcode::Terminate => {
                let cause = [Cause::Crc, Cause::NoBuffer, Cause::TaggedStag];
                let cause = cause[choices.below(3) as usize];
                Terminate::blaming(cause, &[0x81; 60], false).bytes()
            }
            Opcode::ReadResponse => match waits {
                Some(Wait::Read { into, at, .. }) => {
                    let rest = into.bytes.saturating_sub(at);
                    let bytes = match choices.below(8) {
                        0 => choices.below(80) as u32,
                        1 | 2 => rest / 2,
                        _ => rest,
                    };
                    last = if choices.below(16) == 0 {
                        last
                    } else {
                        bytes == rest
                    };
                    vec![choices.below(256) as u8; bytes as usize]
                }
                _ => vec![1; choices.below(80) as usize],
            },
            _ => {
                let bytes = choices.below(120) as usize;
                let first = choices.below(256) as u8;
                (0..bytes)
                    .map(|byte| first.wrapping_add(byte as u8))
                    .collect()
            }
        };
        if choices.below(64) == 63 {
            let bytes = choices.below(payload.len() as u64 + 4) as usize;
            payload.resize(bytes, 0xee);
        }
        let odd = choices.below(128);
        let header = Header {
            last,
            ddp_version: odd != 127,
            rdmap_version: odd != 126,
            opcode: if odd == 125 { 15 } else { opcode as u8 },
            target,
        };
        (header, payload)
    }

    /// A message, usually one that the pair can accept now.
    pub(super) fn opcode(&self, choices: &mut Choices) -> Opcode {
        if choices.below(32) == 31 {
            return Opcode::of(choices.below(12) as u8).unwrap_or(Opcode::Write);
        }
        match (self.model.waits.front(), choices.below(3)) {
            (Some(Wait::Read { .. }), 0) => return Opcode::ReadResponse,
            (Some(Wait::Atomic { .. }), 0) => return Opcode::AtomicResponse,
            _ => {}
        }
        if let Some(own) = self.model.incoming_opcode() {
            return if choices.below(3) == 0 {
                Opcode::Write
            } else {
                own
            };
        }
        let opcode = LIKELY[choices.below(LIKELY.len() as u64) as usize];
        if opcode.queue() == Some(0) && !self.model.has_receives() && choices.below(16) != 15 {
            return Opcode::Write;
        }
        opcode
    }

    /// A steering tag and an offset, usually of a region with the right and within it.
    pub(super) fn place(&self, right: Access, choices: &mut Choices) -> (Stag, u64) {
        let mut index = choices.below(REGION_COUNT as u64 + 1) as usize;
        if choices.below(16) != 15 {
            let own = |step: usize| (index + step) % REGION_COUNT;
            let allowed =
                |index: &usize| rights(*index).has(right) && REGIONS[*index].2 != Some(OTHER);
            let found = (0..REGION_COUNT).map(own).find(allowed);
            index = found.unwrap_or(index);
        }
        let Some(&stag) = self.tags.get(index) else {
            return (Stag(choices.bits() as u32), choices.bits());
        };
        let within = choices.below(REGION_BYTES as u64 - 120);
        let offset = REGIONS[index].0.wrapping_add(within);
        let offset = match choices.below(64) {
            63 => offset.wrapping_add(REGION_BYTES as u64 - 30),
            62 => REGIONS[index].0.wrapping_sub(1 + within / 8),
            61 => u64::MAX - within,
            _ => offset,
        };
        (stag, offset)
    }
}
