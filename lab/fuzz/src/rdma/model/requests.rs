//! Effects of the peer's messages and requests on the model.

use super::super::READS;
use super::{Asked, Model, NOT_POSTED, blank};
use sidecore_rdma_wire::wire::ddp::{AtomicRequest, Opcode, ReadRequest};
use sidecore_rdma_wire::wire::terminate::Cause;
use sidecore_rdma_wire::{Access, Completion, Kind, Pieces, Receive, Stag, Status};

impl Model {
    pub(super) fn message(
        &mut self,
        opcode: Opcode,
        last: bool,
        offset: u32,
        payload: &[u8],
        invalidate: Stag,
    ) -> Result<(), Cause> {
        if self.incoming.is_none() {
            let receive = if self.immediate_without_receive && opcode == Opcode::Immediate {
                Receive {
                    id: NOT_POSTED,
                    pieces: Pieces::new(),
                }
            } else {
                self.receives.pop_front().ok_or(Cause::NoBuffer)?
            };
            self.incoming = Some((receive, opcode, 0));
        }
        let (receive, begun, at) = self.incoming.clone().expect("one is there");
        if begun != opcode {
            return Err(Cause::UnexpectedOpcode);
        }
        if offset != at {
            return Err(Cause::InvalidOffset);
        }
        let is_immediate = matches!(opcode, Opcode::Immediate | Opcode::ImmediateSolicited);
        let now = at as usize + payload.len();
        if is_immediate {
            Self::exactly(last, offset, payload, 8)?;
        } else {
            // The location of each byte, one by one.
            let places: Vec<(Stag, u64)> = receive
                .pieces
                .iter()
                .flat_map(|piece| {
                    (0..u64::from(piece.bytes)).map(|byte| (piece.stag, piece.offset + byte))
                })
                .collect();
            if now > places.len() {
                return Err(Cause::TooLong);
            }
            let mut found = Vec::new();
            for &(stag, offset) in &places[at as usize..now] {
                let place = self.find(stag, offset, 1, Access::LOCAL_WRITE);
                found.push(place.map_err(|_| Cause::LocalCatastrophic)?);
            }
            for (place, &byte) in found.into_iter().zip(payload) {
                self.put(place, &[byte]);
            }
        }
        if let Some(incoming) = &mut self.incoming {
            incoming.2 = now as u32;
        }
        if !last {
            return Ok(());
        }
        let invalidated = opcode.invalidates().then_some(invalidate);
        if let Some(stag) = invalidated {
            let (index, _) = match self.find(stag, 0, 0, Access::REMOTE_INVALIDATE) {
                // The pointer's target does not matter here.
                Err(3 | 4) => {
                    let index = self.tags.iter().position(|&own| own == Some(stag));
                    Ok((index.expect("it was found"), 0))
                }
                Err(2) => Err(Cause::CannotInvalidate),
                other => other.map_err(Self::requested),
            }?;
            self.tags[index] = None;
        }
        self.incoming = None;
        self.msn[0] += 1;
        let id = match receive.id {
            NOT_POSTED => 0,
            id => id,
        };
        let immediate =
            is_immediate.then(|| u64::from_be_bytes(payload.try_into().expect("eight bytes")));
        self.completed.push(Completion {
            bytes: now as u32,
            immediate,
            invalidated,
            solicited: opcode.is_solicited(),
            ..blank(id, Kind::Receive, Status::Done)
        });
        Ok(())
    }

    pub(super) fn request(
        &mut self,
        opcode: Opcode,
        last: bool,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), Cause> {
        if self.asked.len() == READS {
            return Err(Cause::NoBuffer);
        }
        let asked = if opcode == Opcode::ReadRequest {
            Self::exactly(last, offset, payload, 28)?;
            let request = ReadRequest::read(payload).expect("its length is right");
            if request.count > 0 {
                self.source(&request, 0, request.count)?;
            }
            Asked::Read { request, at: 0 }
        } else {
            Self::exactly(last, offset, payload, 52)?;
            let request = AtomicRequest::read(payload).expect("its length is right");
            self.word(&request)?;
            let reads = self
                .asked
                .iter()
                .any(|asked| matches!(asked, Asked::Read { .. }));
            let original = if reads {
                None
            } else {
                Some(self.change(&request)?)
            };
            Asked::Atomic { request, original }
        };
        self.msn[1] += 1;
        self.asked.push_back(asked);
        Ok(())
    }

    pub(super) fn source(
        &self,
        request: &ReadRequest,
        at: u32,
        count: u32,
    ) -> Result<(usize, usize), Cause> {
        let offset = request.source_offset + u64::from(at);
        let found = self.find(request.source, offset, count.into(), Access::REMOTE_READ);
        found.map_err(Self::requested)
    }

    pub(super) fn word(&self, request: &AtomicRequest) -> Result<(usize, usize), Cause> {
        if request.operation > 2 {
            return Err(Cause::UnexpectedOpcode);
        }
        let found = self.find(request.stag, request.offset, 8, Access::REMOTE_ATOMIC);
        let (index, at) = found.map_err(Self::requested)?;
        if !request.offset.is_multiple_of(8) || !at.is_multiple_of(8) {
            return Err(Cause::StreamCatastrophic);
        }
        Ok((index, at))
    }

    pub(super) fn change(&mut self, request: &AtomicRequest) -> Result<u64, Cause> {
        let (index, at) = self.word(request)?;
        let word: [u8; 8] = self.memory[index][at..at + 8]
            .try_into()
            .expect("eight bytes");
        let old = u64::from_ne_bytes(word);
        let new = match request.operation {
            0 => {
                // Bit by bit, with a carry that ends where the mask says.
                let (mut sum, mut carry) = (0, 0);
                for bit in 0..64 {
                    let of = |word: u64| word >> bit & 1;
                    let digits = of(old) + of(request.operand) + carry;
                    sum |= (digits & 1) << bit;
                    carry = if of(request.operand_mask) == 1 {
                        0
                    } else {
                        digits >> 1
                    };
                }
                sum
            }
            2 if old & request.compare_mask != request.compare & request.compare_mask => old,
            _ => (0..64).fold(0, |word, bit| {
                let from = if request.operand_mask >> bit & 1 == 1 {
                    request.operand
                } else {
                    old
                };
                word | (from >> bit & 1) << bit
            }),
        };
        self.put((index, at), &new.to_ne_bytes());
        Ok(old)
    }
}
