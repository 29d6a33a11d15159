//! Layouts of the header, and their conversion.
//!
//! Must stay true: what a program passes is checked before it is used; a value that this version of
//! the header does not have is refused, never taken for another.

use crate::call::Errno;
use sidecore_bare::width::ToUsize;
use sidecore_rdma::{
    Atomic, End, Event, Kind, Options, Piece, Pieces, Post, Queued, ReadyBy, Remote, Setup, Stag,
    Status, Work,
};
use std::ffi::{c_uint, c_void};

/// Longest private data, in bytes.
const PRIVATE: usize = 512;
const PIECES: usize = 4;

/// `struct sidecore_rdma_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRegion {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) key: u32,
    pub(crate) reserved: u32,
}

/// `struct sidecore_rdma_piece`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawPiece {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) key: u32,
}

/// `struct sidecore_rdma_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawOptions {
    pub(crate) size: u32,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u32,
    pub(crate) reads: u32,
    pub(crate) without_crc: u8,
    pub(crate) waits: u8,
    pub(crate) peer_to_peer: u8,
    pub(crate) immediate_alone: u8,
    pub(crate) reserved: [u8; 4],
}

/// `struct sidecore_rdma_work`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawWork {
    pub(crate) id: u64,
    pub(crate) kind: u32,
    pub(crate) fence: u32,
    pub(crate) piece_count: u32,
    pub(crate) key: u32,
    pub(crate) remote: u64,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
    pub(crate) operand_mask: u64,
    pub(crate) compare_mask: u64,
    pub(crate) solicited: u32,
    pub(crate) reserved: u32,
    pub(crate) pieces: [RawPiece; PIECES],
}

/// `struct sidecore_rdma_completion`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawCompletion {
    pub(crate) id: u64,
    pub(crate) connection: i64,
    pub(crate) kind: u32,
    pub(crate) status: u32,
    pub(crate) bytes: u32,
    pub(crate) invalidated: u32,
    pub(crate) has_immediate: u32,
    pub(crate) solicited: u32,
    pub(crate) value: u64,
}

/// `struct sidecore_rdma_event`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawEvent {
    pub(crate) kind: u32,
    pub(crate) end: u32,
    pub(crate) connection: i64,
    pub(crate) listener: i64,
    pub(crate) private_bytes: u32,
    pub(crate) private_data: [u8; PRIVATE],
}

/// Bytes of the caller.
///
/// # Safety
/// `count` bytes are at `at`, which may be NULL if there are none.
pub(crate) unsafe fn bytes_of<'a>(at: *const c_void, count: usize) -> Result<&'a [u8], Errno> {
    // First: a wild length must not become a slice.
    if count > PRIVATE {
        return Err(Errno(libc::EMSGSIZE));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), count) })
}

/// Options of the caller; the defaults for NULL.
///
/// # Safety
/// `options` is NULL or valid.
pub(crate) unsafe fn options_of(options: *const RawOptions) -> Result<Options, Errno> {
    let usual = Options::default();
    // SAFETY: the caller's promise.
    let Some(raw) = (unsafe { options.as_ref() }) else {
        return Ok(usual);
    };
    // Another size is another version of the header, whose fields may mean something else.
    if raw.size.to_usize() != size_of::<RawOptions>() || raw.reserved != [0; 4] {
        return Err(Errno::INVALID);
    }
    // Zeroed options are the usual ones.
    let or = |value: u32, usual| if value == 0 { usual } else { value.to_usize() };
    let reads = match raw.reads {
        0 => usual.ird,
        reads => u16::try_from(reads).map_err(|_| Errno::INVALID)?,
    };
    Ok(Options {
        crc: raw.without_crc == 0,
        waits_for_receives: raw.waits != 0,
        setup: match raw.peer_to_peer {
            0 => usual.setup,
            _ => Setup::PeerToPeer(ReadyBy::Message),
        },
        immediate_without_receive: raw.immediate_alone != 0,
        send_depth: or(raw.send_depth, usual.send_depth),
        receive_depth: or(raw.receive_depth, usual.receive_depth),
        ird: reads,
        ord: reads,
        ..usual
    })
}

/// Pieces of the caller.
///
/// # Safety
/// `count` pieces are at `pieces`, which may be NULL if there are none.
pub(crate) unsafe fn pieces_at(pieces: *const RawPiece, count: c_uint) -> Result<Pieces, Errno> {
    let count = count.to_usize();
    // As in `bytes_of`.
    if count > PIECES || (pieces.is_null() && count > 0) {
        return Err(Errno::INVALID);
    }
    if count == 0 {
        return Ok(Pieces::new());
    }
    // SAFETY: the caller's promise.
    Ok(pieces_of(unsafe {
        std::slice::from_raw_parts(pieces, count)
    }))
}

/// At most [`PIECES`] of them.
fn pieces_of(pieces: &[RawPiece]) -> Pieces {
    pieces.iter().map(piece_of).collect()
}

fn piece_of(piece: &RawPiece) -> Piece {
    Piece {
        stag: Stag(piece.key),
        offset: piece.address,
        bytes: piece.bytes,
    }
}

pub(crate) fn post_of(raw: &RawWork) -> Result<Post, Errno> {
    // A count beyond the array would read the program's other memory.
    let pieces = raw.pieces.get(..raw.piece_count.to_usize());
    let pieces = pieces.ok_or(Errno::INVALID)?;
    let remote = Remote {
        stag: Stag(raw.key),
        offset: raw.remote,
    };
    let solicited = raw.solicited != 0;
    let send = |invalidate| Work::Send {
        pieces: pieces_of(pieces),
        invalidate,
        solicited,
    };
    // A program that sets no mask means the whole word; a mask of no bits would change nothing.
    let all_of = |mask: u64| if mask == 0 { u64::MAX } else { mask };
    let atomic = |atomic| Work::Atomic { atomic, remote };
    let work = match raw.kind {
        0 => send(None),
        1 => send(Some(Stag(raw.key))),
        2 => Work::Immediate {
            value: raw.operand,
            solicited,
        },
        3 => Work::Write {
            pieces: pieces_of(pieces),
            remote,
        },
        4 => match pieces {
            [into] => Work::Read {
                into: piece_of(into),
                remote,
            },
            _ => return Err(Errno::INVALID),
        },
        // Here no mask is one field: the whole word.
        5 => atomic(Atomic::AddFields {
            value: raw.operand,
            mask: raw.operand_mask,
        }),
        6 => atomic(Atomic::Swap {
            new: raw.operand,
            mask: all_of(raw.operand_mask),
        }),
        7 => atomic(Atomic::CompareSwapBits {
            expected: raw.compare,
            compared: all_of(raw.compare_mask),
            new: raw.operand,
            swapped: all_of(raw.operand_mask),
        }),
        // SIDECORE_RDMA_RECEIVE among them: it is no work.
        _ => return Err(Errno::INVALID),
    };
    Ok(Post {
        id: raw.id,
        work,
        fence: raw.fence != 0,
    })
}

impl From<&Queued> for RawCompletion {
    fn from(queued: &Queued) -> Self {
        let completion = &queued.completion;
        Self {
            id: completion.id,
            connection: queued.connection.number().cast_signed(),
            kind: match completion.kind {
                Kind::Send => 0,
                Kind::Immediate => 2,
                Kind::Write => 3,
                Kind::Read => 4,
                Kind::Atomic => 5,
                Kind::Receive => 8,
            },
            status: match completion.status {
                Status::Done => 0,
                Status::Flushed => 1,
                Status::Local(_) => 2,
            },
            bytes: completion.bytes,
            invalidated: completion.invalidated.map_or(0, |stag| stag.0),
            has_immediate: completion.immediate.is_some().into(),
            solicited: completion.solicited.into(),
            // Only receives have the one, only atomics the other.
            value: completion
                .immediate
                .or(completion.original)
                .unwrap_or_default(),
        }
    }
}

impl From<&Event> for RawEvent {
    fn from(event: &Event) -> Self {
        let (kind, end, connection, listener, data) = match event {
            Event::Requested {
                listener,
                connection,
                private_data,
            } => (1, 0, connection, i64::from(listener.number()), private_data),
            Event::Established {
                connection,
                private_data,
            } => (2, 0, connection, -1, private_data),
            Event::Ended {
                connection,
                end,
                private_data,
            } => (3, end_number(end), connection, -1, private_data),
            other => unreachable!("{other:?}: all events have a number"),
        };
        // A frame holds no more, so nothing is cut off.
        let data = &data[..data.len().min(PRIVATE)];
        let mut private_data = [0; PRIVATE];
        private_data[..data.len()].copy_from_slice(data);
        Self {
            kind,
            end,
            connection: connection.number().cast_signed(),
            listener,
            private_bytes: data.len().try_into().unwrap_or(0),
            private_data,
        }
    }
}

fn end_number(end: &End) -> u32 {
    match end {
        End::Orderly => 0,
        End::Rejected => 1,
        End::Start(_) => 3,
        End::Sent(_) => 4,
        End::Received(_) => 5,
        _ => 2,
    }
}
