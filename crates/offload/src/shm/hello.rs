//! The messages over the socket: how a client and the daemon meet.
//!
//! One message a packet (SOCK_SEQPACKET), little-endian; docs/daemon.md has the byte map. Why so
//! plain: the C client reads and writes them too. Must stay true: decoding takes any bytes.

use super::layout::{MAGIC, VERSION};

/// Bytes of a question.
pub(crate) const QUESTION_BYTES: usize = 32;
/// Bytes that every answer starts with.
const HEAD_BYTES: usize = 16;
/// Bytes of an attachment, before its table of kernels.
const ATTACHED_BYTES: usize = 64;
/// Bytes of a kernel in that table.
const KERNEL_BYTES: usize = 48;
/// Bytes of a kernel's name at most.
pub const NAME_BYTES_MAX: usize = 40;
/// Bytes of the longest answer: a status.
pub(crate) const ANSWER_BYTES_MAX: usize = 192 << 10;

const KIND_ATTACH: u32 = 1;
const KIND_STATUS: u32 = 2;
const KIND_REFUSED: u32 = 255;

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// To be served, with an arena of so many bytes.
    Attach { arena_bytes: u64 },
    /// What the daemon is doing.
    Status,
}

impl Question {
    pub(crate) fn encode(self) -> [u8; QUESTION_BYTES] {
        let (kind, arena_bytes) = match self {
            Self::Attach { arena_bytes } => (KIND_ATTACH, arena_bytes),
            Self::Status => (KIND_STATUS, 0),
        };
        let mut bytes = [0; QUESTION_BYTES];
        bytes[..HEAD_BYTES].copy_from_slice(&head(kind));
        bytes[16..24].copy_from_slice(&arena_bytes.to_le_bytes());
        bytes
    }

    /// # Errors
    /// What is wrong with it, to be told to who sent it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() != QUESTION_BYTES || u64_at(bytes, 0) != Some(MAGIC) {
            return Err("this is no message of a sidecore client".to_owned());
        }
        match (u32_at(bytes, 12), u32_at(bytes, 8), u64_at(bytes, 16)) {
            (Some(VERSION), Some(KIND_ATTACH), Some(arena_bytes)) => {
                Ok(Self::Attach { arena_bytes })
            }
            (Some(VERSION), Some(KIND_STATUS), _) => Ok(Self::Status),
            (Some(VERSION), ..) => Err("an unknown question".to_owned()),
            (version, ..) => Err(format!(
                "the client speaks version {} of the protocol, this daemon version {VERSION}; \
                 use the same release for both",
                version.unwrap_or_default()
            )),
        }
    }
}

/// A kernel as the daemon knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelName {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) version: u32,
}

/// The terms of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) client: u32,
    pub(crate) engines: u32,
    pub(crate) segment_bytes: u64,
    pub(crate) arena_bytes: u64,
    pub(crate) board_bytes: u64,
    pub(crate) kernels: Vec<KernelName>,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Welcome; two descriptors come along: the segment and the board.
    Attached(Attached),
    /// JSON.
    Status(String),
    /// No, and why.
    Refused(String),
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Attached(attached) => {
                let mut bytes = head(KIND_ATTACH).to_vec();
                bytes.extend(attached.client.to_le_bytes());
                bytes.extend(attached.engines.to_le_bytes());
                bytes.extend(attached.segment_bytes.to_le_bytes());
                bytes.extend(attached.arena_bytes.to_le_bytes());
                bytes.extend(attached.board_bytes.to_le_bytes());
                bytes.extend((attached.kernels.len() as u32).to_le_bytes());
                bytes.resize(ATTACHED_BYTES, 0);
                for kernel in &attached.kernels {
                    let mut name = [0; NAME_BYTES_MAX];
                    let used = kernel.name.len().min(NAME_BYTES_MAX);
                    name[..used].copy_from_slice(&kernel.name.as_bytes()[..used]);
                    bytes.extend(name);
                    bytes.extend(kernel.number.to_le_bytes());
                    bytes.extend(kernel.version.to_le_bytes());
                }
                bytes
            }
            Self::Status(text) => [&head(KIND_STATUS), text.as_bytes()].concat(),
            Self::Refused(text) => [&head(KIND_REFUSED), text.as_bytes()].concat(),
        }
    }

    /// `None` where it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if u64_at(bytes, 0)? != MAGIC || u32_at(bytes, 12)? != VERSION {
            return None;
        }
        let text = || String::from_utf8_lossy(&bytes[HEAD_BYTES..]).into_owned();
        match u32_at(bytes, 8)? {
            KIND_STATUS => Some(Self::Status(text())),
            KIND_REFUSED => Some(Self::Refused(text())),
            KIND_ATTACH => {
                let count = u32_at(bytes, 48)? as usize;
                let table = bytes.get(ATTACHED_BYTES..)?.as_chunks::<KERNEL_BYTES>();
                if table.0.len() != count || !table.1.is_empty() {
                    return None;
                }
                Some(Self::Attached(Attached {
                    client: u32_at(bytes, 16)?,
                    engines: u32_at(bytes, 20)?,
                    segment_bytes: u64_at(bytes, 24)?,
                    arena_bytes: u64_at(bytes, 32)?,
                    board_bytes: u64_at(bytes, 40)?,
                    kernels: table.0.iter().filter_map(kernel).collect(),
                }))
            }
            _ => None,
        }
    }
}

fn kernel(entry: &[u8; KERNEL_BYTES]) -> Option<KernelName> {
    let name = &entry[..NAME_BYTES_MAX];
    let used = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    Some(KernelName {
        name: String::from_utf8_lossy(&name[..used]).into_owned(),
        number: u32_at(entry, NAME_BYTES_MAX)?,
        version: u32_at(entry, NAME_BYTES_MAX + 4)?,
    })
}

fn head(kind: u32) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8..12].copy_from_slice(&kind.to_le_bytes());
    bytes[12..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let part = bytes.get(offset..offset + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(part))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let part = bytes.get(offset..offset + 8)?.try_into().ok()?;
    Some(u64::from_le_bytes(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_come_back_as_they_were() {
        for question in [
            Question::Attach {
                arena_bytes: 123_456,
            },
            Question::Status,
        ] {
            assert_eq!(Question::decode(&question.encode()), Ok(question));
        }
        let attached = Answer::Attached(Attached {
            client: 3,
            engines: 5,
            segment_bytes: 1 << 40,
            arena_bytes: 77,
            board_bytes: 8192,
            kernels: vec![
                KernelName {
                    name: "empty".to_owned(),
                    number: 0,
                    version: 1,
                },
                KernelName {
                    name: "x".repeat(NAME_BYTES_MAX),
                    number: 9,
                    version: 2,
                },
            ],
        });
        let refused = Answer::Refused("no".to_owned());
        let status = Answer::Status("{}".to_owned());
        for answer in [attached, refused, status] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        let mut old = Question::Status.encode();
        old[12] = 9;
        assert!(Question::decode(&old).unwrap_err().contains("version 9"));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_something(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            kind in prop::sample::select(vec![1u32, 2, 3, 255]),
        ) {
            let _ = (Question::decode(&bytes), Answer::decode(&bytes));
            let mut bytes = bytes;
            if bytes.len() >= 16 {
                bytes[..16].copy_from_slice(&head(kind));
                let _ = (Question::decode(&bytes), Answer::decode(&bytes));
            }
        }
    }
}
