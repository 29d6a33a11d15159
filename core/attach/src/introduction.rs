//! The client's side of the handshake: connect, verify the server's user, send the request.
//!
//! Why here: the process that listens behind a path gets the client's data and writes its results.
//! So the client first asks the kernel for that process's user, and sends nothing to an untrusted
//! one ([`Trust`]). Must stay true: [`Introduction::begin`] and [`Introduction::poll`] do not
//! block; descriptors that come with an answer are owned from the first moment. Any thread.

use crate::protocol::{KIND_REFUSED, Protocol};
use crate::server_socket::{default_socket, system_socket};
use crate::{AttachError, Trust};
use sidecore_sys::SysError;
use sidecore_sys::local_socket::{self, Received};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An answer that is no refusal.
#[derive(Debug)]
pub struct Answer {
    /// Its kind.
    pub kind: u32,
    /// The message after its head.
    pub body: Vec<u8>,
    /// The descriptors that came along.
    pub descriptors: Vec<OwnedFd>,
}

/// A question under way.
#[derive(Debug)]
pub struct Introduction {
    protocol: Protocol,
    path: PathBuf,
    socket: OwnedFd,
    /// The most bytes of an answer.
    answer_bytes_max: usize,
}

impl Introduction {
    /// Connects to the server at `path`, verifies its user and sends the request. Does not block.
    ///
    /// # Errors
    /// [`AttachError::Nobody`], [`AttachError::Untrusted`].
    pub fn begin(
        protocol: Protocol,
        path: &Path,
        trust: &Trust,
        question: &[u8],
        answer_bytes_max: usize,
    ) -> Result<Self, AttachError> {
        let socket = local_socket::connect(path).map_err(|source| AttachError::Nobody {
            socket: path.to_owned(),
            source,
        })?;
        trust.check(socket.as_fd(), path)?;
        // A server that refuses may have hung up already, with its reason left to be read.
        local_socket::send(socket.as_fd(), question, &[]).ok();
        Ok(Self {
            protocol,
            path: path.to_owned(),
            socket,
            answer_bytes_max,
        })
    }

    /// The same, but waits for a server whose queue of connections is full, for `timeout` at most.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn begin_within(
        protocol: Protocol,
        path: &Path,
        trust: &Trust,
        question: &[u8],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Result<Self, AttachError> {
        let begun = Instant::now();
        loop {
            match Self::begin(protocol, path, trust, question, answer_bytes_max) {
                Err(AttachError::Nobody { source, .. })
                    if is_full(&source) && begun.elapsed() < timeout =>
                {
                    std::thread::sleep(QUEUE_PAUSE);
                }
                other => return other,
            }
        }
    }

    /// The answer, if it is there.
    ///
    /// # Errors
    /// [`AttachError::Refused`], [`AttachError::Nonsense`], [`AttachError::System`].
    pub fn poll(&self) -> Result<Option<Answer>, AttachError> {
        let mut bytes = vec![0; self.answer_bytes_max];
        match local_socket::receive(self.socket.as_fd(), &mut bytes)? {
            Received::Nothing => Ok(None),
            Received::End => Err(AttachError::Refused {
                reason: "it hung up".to_owned(),
            }),
            Received::Message(length, descriptors) => {
                // Of a refusal by a server of another version the reason is worth reading, too.
                let head = bytes[..length].split_at_checked(16);
                if let Some((head, reason)) = head
                    && head[..8] == self.protocol.magic.to_le_bytes()
                    && head[8..12] == KIND_REFUSED.to_le_bytes()
                {
                    let reason = String::from_utf8_lossy(reason).into_owned();
                    return Err(AttachError::Refused { reason });
                }
                let (kind, body) = self
                    .protocol
                    .parse(&bytes[..length])
                    .map_err(|_| self.nonsense())?;
                Ok(Some(Answer {
                    kind,
                    body: body.to_vec(),
                    descriptors,
                }))
            }
        }
    }

    /// The answer, within `timeout`.
    ///
    /// # Errors
    /// As [`Self::poll`], and [`AttachError::Silent`].
    pub fn wait(&self, timeout: Duration) -> Result<Answer, AttachError> {
        let begun = Instant::now();
        loop {
            if let Some(answer) = self.poll()? {
                return Ok(answer);
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(AttachError::Silent {
                    socket: self.path.clone(),
                    waited_ms: timeout.as_millis() as u64,
                });
            }
            local_socket::poll(&[self.socket.as_fd()], &mut Vec::new(), left)?;
        }
    }

    /// The error for an answer that makes no sense.
    #[must_use]
    pub fn nonsense(&self) -> AttachError {
        AttachError::Nonsense {
            socket: self.path.clone(),
        }
    }

    /// The connection: the sign of life of both sides from now on.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// The default socket of the server `name` for a client. It is the own user's where a trusted
/// server listens there, else root's in `/run/sidecore` where one does, else the first, for its
/// error. Connects to look, and hangs up at once; does not block.
#[must_use]
pub fn find_socket(name: &str, trust: &Trust) -> PathBuf {
    let own = default_socket(name);
    let system = system_socket(name);
    let serves = |path: &Path| match local_socket::connect(path) {
        Ok(socket) => trust.check(socket.as_fd(), path).is_ok(),
        Err(error) => is_full(&error),
    };
    if own != system && !serves(&own) && serves(&system) {
        return system;
    }
    own
}

/// True if a server listens, but its queue of connections is full.
fn is_full(error: &SysError) -> bool {
    matches!(
        error,
        SysError::Call { source, .. } if source.kind() == std::io::ErrorKind::WouldBlock
    )
}

const QUEUE_PAUSE: Duration = Duration::from_millis(1);
