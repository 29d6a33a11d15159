//! Slots of an encrypted image: its key, wrapped for each reader.
//!
//! Source: docs/formats/encrypted.md.

use super::TAG_BYTES;
use crate::skippable::le32;

/// A slot: one wrapped copy of an image's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// For the owner of an X25519 key.
    X25519 {
        /// The public key of a pair that was drawn for this slot.
        share: [u8; 32],
        /// The image's key, encrypted.
        wrapped: [u8; WRAPPED_BYTES],
    },
    /// For readers with the passphrase, by Argon2id.
    Passphrase {
        /// Drawn for this slot.
        salt: [u8; 16],
        /// Memory in KiB.
        memory_kib: u32,
        /// Passes over it.
        passes: u32,
        /// Lanes.
        lanes: u32,
        /// The image's key, encrypted.
        wrapped: [u8; WRAPPED_BYTES],
    },
    /// A kind that this program does not know.
    Unknown(u8),
}

/// An encrypted key, with its authentication code.
pub const WRAPPED_BYTES: usize = 32 + TAG_BYTES;

impl Slot {
    /// The kind as a number, and the bytes behind it.
    pub(super) fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            Self::X25519 { share, wrapped } => (X25519, [&share[..], wrapped].concat()),
            Self::Passphrase {
                salt,
                memory_kib,
                passes,
                lanes,
                wrapped,
            } => {
                let mut body = salt.to_vec();
                for number in [memory_kib, passes, lanes] {
                    body.extend(number.to_le_bytes());
                }
                body.extend(wrapped);
                (PASSPHRASE, body)
            }
            Self::Unknown(kind) => (*kind, Vec::new()),
        }
    }

    /// `None` if the body is not valid for its kind.
    pub(super) fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        // Each kind ends with the wrapped key, exactly: bytes behind it would be unchecked.
        let wrapped = || body.last_chunk::<WRAPPED_BYTES>().copied();
        match kind {
            X25519 => Some(Self::X25519 {
                share: *body.first_chunk()?,
                wrapped: wrapped().filter(|_| body.len() == 32 + WRAPPED_BYTES)?,
            }),
            PASSPHRASE => {
                let wrapped = wrapped().filter(|_| body.len() == 28 + WRAPPED_BYTES)?;
                Some(Self::Passphrase {
                    salt: *body.first_chunk()?,
                    memory_kib: le32(&body[16..]),
                    passes: le32(&body[20..]),
                    lanes: le32(&body[24..]),
                    wrapped,
                })
            }
            // A newer program's kind: its keys cannot be used, those of other slots can.
            other => Some(Self::Unknown(other)),
        }
    }
}

const X25519: u8 = 1;
const PASSPHRASE: u8 = 2;
