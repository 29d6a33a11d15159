//! The layout that an image's writer is asked for.
//!
//! Why here: the index and the writers of all formats take it, and need nothing else of one
//! another.

/// Layout of an image to be written.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Bytes of the device per frame: a power of two, [`super::FRAME_BYTES_RANGE`].
    pub frame_bytes: u32,
    /// Size of the device, if it is known before the source has been read.
    pub raw_bytes: Option<u64>,
    /// True when the beginning of the output can still be written after all frames.
    pub seekable: bool,
    /// True if frames differ in size; `frame_bytes` is then their average.
    pub uneven: bool,
    /// True if runs of zeros are listed and not stored ([`super::write::ImageWriter::push_holes`]).
    pub thin: bool,
}
