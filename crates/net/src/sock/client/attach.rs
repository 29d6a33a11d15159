//! Meeting the engine: a question over a local socket, and the segment that comes back.

use crate::sock::control::{KIND_ATTACH, KIND_REFUSED, KIND_STATUS, SockError, head, question};
use crate::sock::layout::{VERSION, segment_bytes};
use sidecore_sys::local_socket::{self, Received};
use sidecore_sys::{SharedMap, Sharing};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// What an attachment consists of.
pub(super) struct Attached {
    pub(super) socket: OwnedFd,
    pub(super) map: SharedMap,
    pub(super) bell: OwnedFd,
    pub(super) chunks: u32,
}

pub(super) fn attach(path: &Path, chunks: u32) -> Result<Attached, SockError> {
    let nonsense = || SockError::Nonsense {
        socket: path.to_owned(),
    };
    let (socket, answer, files) = ask(path, KIND_ATTACH, chunks)?;
    let word = |at: usize| {
        let bytes = answer.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let [map, bell] = <[OwnedFd; 2]>::try_from(files).map_err(|_| nonsense())?;
    let bytes = segment_bytes(chunks);
    if word(16) != Some(chunks.into()) || word(24) != Some(bytes as u64) {
        return Err(nonsense());
    }
    Ok(Attached {
        socket,
        map: SharedMap::open(map, bytes, Sharing::ReadWrite)?,
        bell,
        chunks,
    })
}

/// What the engine at `path` does, as JSON. Waits for the answer, some seconds at most.
///
/// # Errors
/// [`SockError`].
pub fn status(path: &Path) -> Result<String, SockError> {
    let (_, answer, _) = ask(path, KIND_STATUS, 0)?;
    Ok(String::from_utf8_lossy(&answer[16..]).into_owned())
}

type Asked = (OwnedFd, Vec<u8>, Vec<OwnedFd>);

fn ask(path: &Path, kind: u32, chunks: u32) -> Result<Asked, SockError> {
    let socket = local_socket::connect(path).map_err(|source| SockError::NoEngine {
        socket: path.to_owned(),
        source,
    })?;
    // Who refuses us may have hung up by now, and left its reason for us to read.
    local_socket::send(socket.as_fd(), &question(kind, chunks), &[]).ok();
    let mut answer = vec![0; ANSWER_BYTES_MAX];
    let begun = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(SockError::Silent {
                socket: path.to_owned(),
                waited_ms: PATIENCE.as_millis() as u64,
            });
        }
        local_socket::poll(&[socket.as_fd()], &mut Vec::new(), left)?;
        match local_socket::receive(socket.as_fd(), &mut answer)? {
            Received::Nothing => {}
            Received::End => {
                return Err(SockError::Refused {
                    reason: "it hung up".to_owned(),
                });
            }
            Received::Message(length, files) => {
                answer.truncate(length);
                return match head(&answer) {
                    Some((KIND_REFUSED, _)) => Err(SockError::Refused {
                        reason: String::from_utf8_lossy(&answer[16..]).into_owned(),
                    }),
                    Some((answered, VERSION)) if answered == kind => Ok((socket, answer, files)),
                    _ => Err(SockError::Nonsense {
                        socket: path.to_owned(),
                    }),
                };
            }
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: usize = 128 << 10;
