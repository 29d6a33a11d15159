//! Meeting the engine: a question over a local socket, and the segment that comes back.

use crate::sock::control::{PROTOCOL, SockError};
use crate::sock::layout::segment_bytes;
use sidecore_attach::protocol::{KIND_ATTACH, KIND_STATUS};
use sidecore_attach::{Answer, Introduction, Trust};
use sidecore_sys::{SharedMap, Sharing};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// The parts of an attachment.
pub(super) struct Attached {
    pub(super) socket: OwnedFd,
    pub(super) map: SharedMap,
    pub(super) bell: OwnedFd,
    pub(super) chunks: u32,
}

pub(super) fn attach(path: &Path, trust: &Trust, chunks: u32) -> Result<Attached, SockError> {
    let (asked, answer) = ask(path, trust, KIND_ATTACH, chunks)?;
    let word = |at: usize| {
        let bytes = answer.body.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let bytes = segment_bytes(chunks);
    let fits = word(0) == Some(chunks.into()) && word(8) == Some(bytes as u64);
    let [map, bell] = match <[OwnedFd; 2]>::try_from(answer.descriptors) {
        Ok(files) if fits => files,
        _ => return Err(asked.nonsense().into()),
    };
    Ok(Attached {
        socket: asked.into_socket(),
        map: SharedMap::open(map, bytes, Sharing::ReadWrite)?,
        bell,
        chunks,
    })
}

/// The status of the engine at `path`, as JSON. Waits for the answer, some seconds at most.
///
/// # Errors
/// [`SockError`].
pub fn status(path: &Path) -> Result<String, SockError> {
    status_of(path, &Trust::default())
}

/// The same, of an engine that may be of another user.
///
/// # Errors
/// [`SockError`].
pub fn status_of(path: &Path, trust: &Trust) -> Result<String, SockError> {
    let (_, answer) = ask(path, trust, KIND_STATUS, 0)?;
    Ok(String::from_utf8_lossy(&answer.body).into_owned())
}

fn ask(
    path: &Path,
    trust: &Trust,
    kind: u32,
    chunks: u32,
) -> Result<(Introduction, Answer), SockError> {
    let question = PROTOCOL.question(kind, &chunks.to_le_bytes());
    let asked =
        Introduction::begin_within(PROTOCOL, path, trust, &question, ANSWER_BYTES_MAX, PATIENCE)?;
    let answer = asked.wait(PATIENCE)?;
    if answer.kind != kind {
        return Err(asked.nonsense().into());
    }
    Ok((asked, answer))
}

const PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: usize = 128 << 10;
