//! The messages over the socket: a client's requests to the daemon, and the terms of an attachment.
//!
//! Their frame is `sidecore_attach::protocol`'s; docs/daemon.md has the byte map. Little-endian,
//! and as plain as that because the C client reads and writes them too. Must stay true: decoding
//! takes any bytes.

use super::layout::{MAGIC, VERSION};
use crate::served::KernelHash;
use sidecore_attach::Protocol;
use sidecore_attach::protocol::{
    HEAD_BYTES, KIND_ATTACH, KIND_STATUS, QUESTION_BODY_BYTES, QUESTION_BYTES,
};
use sidecore_bare::width::ToUsize;

/// The frame of the messages.
pub const PROTOCOL: Protocol = Protocol {
    magic: MAGIC,
    version: VERSION,
    server: "daemon",
};
/// Bytes of an attachment's terms before the table of kernels, without the head.
const TERMS_BYTES: usize = 64 - HEAD_BYTES;
/// Bytes of a kernel in that table, and of its hash in the table behind.
const KERNEL_BYTES: usize = 48;
const HASH_BYTES: usize = KernelHash::BYTES;
/// Bytes of a kernel's name at most.
pub const NAME_BYTES_MAX: usize = 40;
/// Bytes of the longest answer: a status of 128 engines and of all clients. The system takes a
/// message of some 200 KiB.
pub(crate) const ANSWER_BYTES_MAX: usize = 192 << 10;

/// A client's question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Request to attach, with an arena of `arena_bytes` bytes.
    Attach {
        /// Bytes that it wants.
        arena_bytes: u64,
    },
    /// Request for the daemon's status.
    Status {
        /// The first engine that the answer describes; the rest of the status comes with engine 0.
        engines_from: u64,
    },
}

impl Question {
    /// The message.
    #[must_use]
    pub fn encode(self) -> [u8; QUESTION_BYTES] {
        match self {
            Self::Attach { arena_bytes } => {
                PROTOCOL.question(KIND_ATTACH, &arena_bytes.to_le_bytes())
            }
            Self::Status { engines_from } => {
                PROTOCOL.question(KIND_STATUS, &engines_from.to_le_bytes())
            }
        }
    }

    /// The question of this kind. `None` where there is none.
    #[must_use]
    pub fn decode(kind: u32, body: &[u8; QUESTION_BODY_BYTES]) -> Option<Self> {
        match kind {
            KIND_ATTACH => Some(Self::Attach {
                arena_bytes: u64_at(body, 0)?,
            }),
            KIND_STATUS => Some(Self::Status {
                engines_from: u64_at(body, 0)?,
            }),
            // A question of a later version, or nonsense; the caller refuses both.
            _ => None,
        }
    }
}

/// A kernel as the daemon knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelName {
    /// Its name.
    pub name: String,
    /// Its number in requests.
    pub number: u32,
    /// Of its meaning.
    pub version: u32,
    /// Of its code.
    pub hash: KernelHash,
}

/// The terms of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The client's number.
    pub client: u32,
    /// The daemon's engines.
    pub engines: u32,
    /// Bytes of the shared memory.
    pub segment_bytes: u64,
    /// Bytes of its arena.
    pub arena_bytes: u64,
    /// Bytes of the activity page.
    pub activity_bytes: u64,
    /// All kernels.
    pub kernels: Vec<KernelName>,
}

impl Attached {
    /// The terms, without the head.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.client.to_le_bytes().to_vec();
        bytes.extend(self.engines.to_le_bytes());
        bytes.extend(self.segment_bytes.to_le_bytes());
        bytes.extend(self.arena_bytes.to_le_bytes());
        bytes.extend(self.activity_bytes.to_le_bytes());
        bytes.extend((self.kernels.len() as u32).to_le_bytes());
        bytes.resize(TERMS_BYTES, 0);
        for kernel in &self.kernels {
            let mut name = [0; NAME_BYTES_MAX];
            let used = kernel.name.len().min(NAME_BYTES_MAX);
            // Cut, not refused: a registry takes no name that long.
            name[..used].copy_from_slice(&kernel.name.as_bytes()[..used]);
            bytes.extend(name);
            bytes.extend(kernel.number.to_le_bytes());
            bytes.extend(kernel.version.to_le_bytes());
        }
        // In a table of their own: a client that compares no hash need not read on.
        for kernel in &self.kernels {
            bytes.extend(kernel.hash.bytes());
        }
        bytes
    }

    /// `None` if the bytes are malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let count = u32_at(bytes, 32)?.to_usize();
        let tables = bytes.get(TERMS_BYTES..)?;
        // The whole length, exactly: the count comes from the peer and sizes nothing by itself.
        if tables.len() != count.checked_mul(KERNEL_BYTES + HASH_BYTES)? {
            return None;
        }
        let (table, hashes) = tables.split_at(count * KERNEL_BYTES);
        let (table, _) = table.as_chunks::<KERNEL_BYTES>();
        let (hashes, _) = hashes.as_chunks::<HASH_BYTES>();
        Some(Self {
            client: u32_at(bytes, 0)?,
            engines: u32_at(bytes, 4)?,
            segment_bytes: u64_at(bytes, 8)?,
            arena_bytes: u64_at(bytes, 16)?,
            activity_bytes: u64_at(bytes, 24)?,
            kernels: table.iter().zip(hashes).filter_map(kernel).collect(),
        })
    }
}

fn kernel((entry, hash): (&[u8; KERNEL_BYTES], &[u8; HASH_BYTES])) -> Option<KernelName> {
    let name = &entry[..NAME_BYTES_MAX];
    let used = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    Some(KernelName {
        name: String::from_utf8_lossy(&name[..used]).into_owned(),
        number: u32_at(entry, NAME_BYTES_MAX)?,
        version: u32_at(entry, NAME_BYTES_MAX + 4)?,
        hash: KernelHash::from_bytes(*hash),
    })
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
            Question::Status { engines_from: 128 },
        ] {
            let (kind, body) = PROTOCOL.parse_question(&question.encode()).unwrap();
            assert_eq!(Question::decode(kind, &body), Some(question));
        }
        assert_eq!(Question::decode(3, &[0; 16]), None);
        let attached = Attached {
            client: 3,
            engines: 5,
            segment_bytes: 1 << 40,
            arena_bytes: 77,
            activity_bytes: 8192,
            kernels: vec![
                KernelName {
                    name: "empty".to_owned(),
                    number: 0,
                    version: 1,
                    hash: KernelHash::of(b"empty"),
                },
                KernelName {
                    name: "x".repeat(NAME_BYTES_MAX),
                    number: 9,
                    version: 2,
                    hash: KernelHash::of(b"x"),
                },
            ],
        };
        assert_eq!(Attached::decode(&attached.encode()), Some(attached));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_something(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Attached::decode(&bytes);
        }
    }
}
