//! Thin images: runs of frames of zeros are listed in the index and not stored.
//!
//! Why here: a frame of zeros takes some tens of bytes in the image and in its tables, which is 50
//! MiB for a TiB of zeros. A program that does not know our index and decompresses the stored
//! frames would put everything after a hole at a wrong place. So a thin image begins with a frame
//! that every decoder refuses: `zstd -d` and `lz4 -d` report it before they have written a byte.
//! Must stay true: versions of this program before thin images take the header for the image's
//! format, so that they read the index and refuse its version.
//! Map: `docs/formats/thin.md`.

use crate::codec::CodecId;

/// First bytes of a thin image whose frames are of `codec`.
pub(super) fn head(codec: CodecId) -> &'static [u8] {
    match codec {
        CodecId::Lz4Frame => LZ4_HEAD,
        _ => ZSTD_HEAD,
    }
}

/// True for the first bytes of a file that is a thin image.
pub(crate) fn is_thin(head: &[u8]) -> bool {
    head.starts_with(ZSTD_HEAD) || head.starts_with(LZ4_HEAD)
}

/// A zstd frame without contents (RFC 8878, section 3.1.1) that requires a dictionary that does not
/// exist: a single segment, a dictionary ID of 4 bytes, the size of the contents, and an empty last
/// block.
const ZSTD_HEAD: &[u8] = b"\x28\xB5\x2F\xFD\x23hole\0\x01\0\0";

/// The magic number of LZ4 frames, and a version that does not exist.
const LZ4_HEAD: &[u8] = b"\x04\x22\x4D\x18\xC0\x40\0sidethin\0";
