//! Layouts of the header, and their conversion.

use sidecore_rdma::{
    Atomic, End, Event, Kind, Options, Piece, Pieces, Post, PostError, Queued, RdmaError, Remote,
    Stag, Status, Work,
};
use std::ffi::c_void;

/// An error's number, positive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Errno(pub(crate) i32);

/// Longest private data, in bytes.
pub(crate) const PRIVATE: usize = 512;
const PIECES: usize = 4;

/// `struct sidecore_rdma_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawRegion {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) key: u32,
    pub(crate) reserved: u32,
}

/// `struct sidecore_rdma_piece`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawPiece {
    address: u64,
    bytes: u32,
    key: u32,
}

/// `struct sidecore_rdma_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawOptions {
    size: u32,
    send_depth: u32,
    receive_depth: u32,
    reads: u32,
    without_crc: u8,
    waits: u8,
    peer_to_peer: u8,
    immediate_alone: u8,
    reserved: [u8; 4],
}

/// `struct sidecore_rdma_work`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawWork {
    id: u64,
    kind: u32,
    fence: u32,
    piece_count: u32,
    key: u32,
    remote: u64,
    operand: u64,
    compare: u64,
    operand_mask: u64,
    compare_mask: u64,
    solicited: u32,
    reserved: u32,
    pieces: [RawPiece; PIECES],
}

/// `struct sidecore_rdma_completion`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawCompletion {
    id: u64,
    connection: i64,
    kind: u32,
    status: u32,
    bytes: u32,
    invalidated: u32,
    has_immediate: u32,
    solicited: u32,
    value: u64,
}

/// `struct sidecore_rdma_event`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawEvent {
    kind: u32,
    end: u32,
    connection: i64,
    listener: i64,
    private_bytes: u32,
    private_data: [u8; PRIVATE],
}

/// The error number for C.
pub(crate) fn errno(error: RdmaError) -> Errno {
    Errno(match error {
        RdmaError::Io(error) => error.raw_os_error().unwrap_or(libc::ESHUTDOWN),
        RdmaError::Memory(_) | RdmaError::TooMany(..) => libc::ENOSPC,
        RdmaError::Post(PostError::Full(_)) => libc::EAGAIN,
        RdmaError::Post(PostError::Fault(_)) => libc::EACCES,
        RdmaError::Post(PostError::TooLong) | RdmaError::Start(_) => libc::EMSGSIZE,
        RdmaError::Post(PostError::NoReads) => libc::EOPNOTSUPP,
        RdmaError::Post(PostError::Ended) | RdmaError::Ended(_) => libc::ENOTCONN,
        RdmaError::Unknown(_) => libc::ENOENT,
        RdmaError::Engine(_) => libc::ECONNREFUSED,
        RdmaError::Late(_) => libc::ETIMEDOUT,
        _ => libc::EINVAL,
    })
}

/// Bytes of the caller.
///
/// # Safety
/// `count` bytes are at `at`, which may be NULL if there are none.
pub(crate) unsafe fn bytes_of<'a>(at: *const c_void, count: usize) -> Result<&'a [u8], Errno> {
    if count > PRIVATE {
        return Err(Errno(libc::EMSGSIZE));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(Errno(libc::EINVAL));
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
    if raw.size as usize != size_of::<RawOptions>() || raw.reserved != [0; 4] {
        return Err(Errno(libc::EINVAL));
    }
    let or = |value: u32, usual: usize| if value == 0 { usual } else { value as usize };
    let reads = match raw.reads {
        0 => usual.ird,
        reads => u16::try_from(reads).map_err(|_| Errno(libc::EINVAL))?,
    };
    Ok(Options {
        crc: raw.without_crc == 0,
        waits_for_receives: raw.waits != 0,
        peer_to_peer: raw.peer_to_peer != 0,
        immediate_without_receive: raw.immediate_alone != 0,
        send_depth: or(raw.send_depth, usual.send_depth),
        receive_depth: or(raw.receive_depth, usual.receive_depth),
        ird: reads,
        ord: reads,
        ..usual
    })
}

pub(crate) fn pieces_of(pieces: &[RawPiece]) -> Result<Pieces, Errno> {
    if pieces.len() > PIECES {
        return Err(Errno(libc::EINVAL));
    }
    Ok(pieces.iter().map(piece_of).collect())
}

fn piece_of(piece: &RawPiece) -> Piece {
    Piece {
        stag: Stag(piece.key),
        offset: piece.address,
        bytes: piece.bytes,
    }
}

pub(crate) fn post_of(raw: &RawWork) -> Result<Post, Errno> {
    let count = raw.piece_count as usize;
    let pieces = raw.pieces.get(..count).ok_or(Errno(libc::EINVAL))?;
    let remote = Remote {
        stag: Stag(raw.key),
        offset: raw.remote,
    };
    let solicited = raw.solicited != 0;
    let send = |invalidate| -> Result<Work, Errno> {
        Ok(Work::Send {
            pieces: pieces_of(pieces)?,
            invalidate,
            solicited,
        })
    };
    let all_of = |mask: u64| if mask == 0 { u64::MAX } else { mask };
    let atomic = |atomic| Work::Atomic { atomic, remote };
    let work = match raw.kind {
        0 => send(None)?,
        1 => send(Some(Stag(raw.key)))?,
        2 => Work::Immediate {
            value: raw.operand,
            solicited,
        },
        3 => Work::Write {
            pieces: pieces_of(pieces)?,
            remote,
        },
        4 => match pieces {
            [into] => Work::Read {
                into: piece_of(into),
                remote,
            },
            _ => return Err(Errno(libc::EINVAL)),
        },
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
        _ => return Err(Errno(libc::EINVAL)),
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
        let mut raw = Self {
            kind,
            end,
            connection: connection.number().cast_signed(),
            listener,
            private_bytes: data.len().min(PRIVATE) as u32,
            private_data: [0; PRIVATE],
        };
        let count = data.len().min(PRIVATE);
        raw.private_data[..count].copy_from_slice(&data[..count]);
        raw
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
