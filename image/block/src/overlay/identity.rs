//! Identity of a base image, by which an overlay recognises it.
//!
//! Why here: an overlay on the wrong base reads as a mixture of two disks. The whole contents
//! cannot be hashed whenever an image is opened; the index can, and it holds a checksum of every
//! frame in the formats that Sidecore writes.
//! Must stay true: the same image has the same identity, independent of its path and of signatures.

use crate::format::lock::{Cipher, FrameKey};
use crate::format::{FrameCheck, Index, ReadAt};
use sidecore_bare::width::{ToU64, ToUsize};
use std::io;
use std::sync::Arc;

/// The base's data as an overlay records them.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// BLAKE3 of the image's index and, where frames have no checksums there, of the image's first
    /// and last bytes.
    pub hash: [u8; 32],
    /// Key of an encrypted image: overlays on it are encrypted, too.
    pub key: Option<Arc<FrameKey>>,
}

impl Identity {
    /// The identity of the image whose index was read from `source`, with its key if it is
    /// encrypted and unlocked. Blocks on the source where its frames have no checksums.
    ///
    /// # Errors
    /// The source's.
    pub fn of(index: &Index, source: &dyn ReadAt) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        let mut words = Vec::with_capacity(8 * WORDS_AT_ONCE);
        let mut add = |hasher: &mut blake3::Hasher, word: u64, last: bool| {
            words.extend_from_slice(&word.to_le_bytes());
            if last || words.len() >= 8 * WORDS_AT_ONCE {
                hasher.update(&words);
                words.clear();
            }
        };
        add(&mut hasher, index.raw_bytes(), false);
        add(&mut hasher, index.stored_bytes(), true);
        if index.is_checked() {
            let frames = index.frames();
            let mut number = 0;
            while number < frames {
                let holes = index.hole_run(number);
                // A run of holes: no bytes, and the number of its frames.
                let (lens, check, step) = match holes {
                    0 => {
                        let frame = index.frame(number);
                        let check = match frame.check {
                            FrameCheck::None => 0,
                            FrameCheck::Stored(check) | FrameCheck::Sealed(check, _) => check,
                            FrameCheck::Raw(check) => u64::from(check),
                        };
                        let stored = u64::from(frame.stored_bytes);
                        (stored << 32 | u64::from(frame.raw_bytes), check, 1)
                    }
                    holes => (0, holes, holes),
                };
                number += step;
                add(&mut hasher, lens, false);
                add(&mut hasher, check, number == frames);
            }
        } else if let Some(digest) = source.digest() {
            // Versions of one disk have the same first and last bytes.
            hasher.update(&digest);
        } else {
            // Without checksums in the index, samples of the contents stand in: the first and the
            // last bytes.
            let size = source.size_bytes()?;
            let mut bytes = vec![0; SAMPLE_BYTES.min(size).to_usize()];
            for at in [0, size - bytes.len().to_u64()] {
                source.read_exact_at(&mut bytes, at)?;
                hasher.update(&bytes);
            }
        }
        Ok(Self {
            size_bytes: index.raw_bytes(),
            hash: *hasher.finalize().as_bytes(),
            key: index.key().cloned().or_else(|| {
                let secret = source.secret()?;
                Some(FrameKey::of_secret(Cipher::Aes256Gcm, &secret))
            }),
        })
    }
}

const CONTEXT: &str = "sidecore overlay: identity of a base image (v1)";
const WORDS_AT_ONCE: usize = 4096;
/// Bytes hashed at either end of an image without checksums.
const SAMPLE_BYTES: u64 = 64 << 10;
