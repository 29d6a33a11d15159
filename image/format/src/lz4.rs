//! LZ4: one standard LZ4 frame per frame of the image, and our index frame at the end.
//!
//! Why here: the fastest codec to decompress. Any `lz4 -d` unpacks such a file: frames follow one
//! another, and it skips the index. Without the index (a plain `.lz4` file) the beginnings of
//! frames are not known, and the file is refused.
//! Source: LZ4 Frame Format Description 1.6.4.
//! Map: `docs/formats/lz4.md`.

use super::indexed::Form;
use super::read_at::Bytes;
use super::sidx::{self, Found};
use super::{Format, FormatError, Index};
use crate::codec::{CodecId, lz4};

const NAME: &str = "lz4";

/// True when the file begins like one of this format.
pub(super) fn probe(bytes: &Bytes<'_>) -> Result<bool, FormatError> {
    Ok((bytes.array::<4>(0)?).is_some_and(|head| head == lz4::FRAME_MAGIC.to_le_bytes()))
}

/// Reads the index.
pub(super) fn parse(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    let reason = match sidx::read(bytes, bytes.size, Format::Lz4, NAME)? {
        Found::Index(index) => return Ok(*index),
        Found::Nothing => "the image is cut short, or was not written by this program",
        Found::Damaged(reason) => reason,
    };
    Err(FormatError::NoIndex {
        format: NAME,
        at: "the end of the file",
        reason,
        next: "fetch it again, or unpack it with `lz4 -d` and pack the result",
    })
}

/// The form for writing: the index is last.
pub(super) const FORM: Form = Form {
    name: NAME,
    codec: CodecId::Lz4Frame,
    limit: "the index is a skippable frame, whose length has 32 bits",
    close: |_, _| Ok(true),
};
