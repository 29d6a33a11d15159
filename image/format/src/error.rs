//! Errors about an image as a whole.
//!
//! Why here: every message names the finding, the limit, and the next step; one list keeps them
//! alike.

use crate::codec::CodecError;
use std::io;

/// Reasons why an image could not be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file itself could not be read or written.
    #[error("cannot {doing} the image at byte {offset}: {source}")]
    Io {
        /// `read` or `write`.
        doing: &'static str,
        /// Offset in bytes.
        offset: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// The image that is being made could not be written.
    #[error("cannot write the image: {0}")]
    Write(io::Error),
    /// It is not a file.
    #[error(
        "it is a directory, not an image; `sidecore block pack DIRECTORY -o IMAGE` makes one of it"
    )]
    Directory,
    /// The file holds an image in a format that is not read here.
    #[error(
        "this is a {kind}, which is not read as it is; run {next}, or give mount, attach or serve \
         --raw for its bytes"
    )]
    Foreign {
        /// Its kind.
        kind: &'static str,
        /// The commands that make an image of it.
        next: &'static str,
    },
    /// It is an overlay, whose bytes are no disk.
    #[error(
        "it is an overlay, which holds only what was written over an image; name that image \
         (`sidecore block info` of the overlay says which) and --overlay FILE, or make one image \
         of both by `sidecore block commit`"
    )]
    Overlay,
    /// The file ends before a part that its header promises.
    #[error(
        "{format}: the image is cut short: {what} would end at byte {needs}, the file ends at byte \
         {has}; fetch or pack it again"
    )]
    CutShort {
        /// Name of the format, for messages.
        format: &'static str,
        /// The missing part.
        what: &'static str,
        /// The expected end of that part, in bytes.
        needs: u64,
        /// The file's size.
        has: u64,
    },
    /// The data are of a known kind, but there is no index of its frames.
    #[error("{format}: no index was found at {at}: {reason}; {next}")]
    NoIndex {
        /// Name of the format, for messages.
        format: &'static str,
        /// Place where an index was looked for.
        at: &'static str,
        /// The reason why there is none.
        reason: &'static str,
        /// The next step for the user.
        next: &'static str,
    },
    /// The sidecar index of a file does not belong to it.
    #[error(
        "the index beside it (.sidx) is not to be used: {reason}; `sidecore block index FILE` \
         makes it anew"
    )]
    Sidecar {
        /// The reason.
        reason: &'static str,
    },
    /// A zstd file that cannot be indexed.
    #[error("zstd: frame {frame}, at byte {offset} of the file, {reason}")]
    Scan {
        /// Number of the frame.
        frame: u64,
        /// Offset of it, or of the skippable frames in front of it.
        offset: u64,
        /// The fault, as the end of a sentence that begins with the frame.
        reason: &'static str,
    },
    /// A header or table field with a value that no writer would write.
    #[error("{format}: {field} is {value}, {limit}; the image is damaged or no image of this kind")]
    Field {
        /// Name of the format, for messages.
        format: &'static str,
        /// The field.
        field: &'static str,
        /// The value in the file.
        value: u64,
        /// The values allowed.
        limit: &'static str,
    },
    /// A table entry that contradicts its neighbours or the file.
    #[error(
        "{format}: frame {frame} of {frames}: {reason} ({value}); the image's table is damaged"
    )]
    Table {
        /// Name of the format, for messages.
        format: &'static str,
        /// Index of the frame.
        frame: u64,
        /// Number of frames.
        frames: u64,
        /// The contradiction found.
        reason: &'static str,
        /// The offending value.
        value: u64,
    },
    /// A frame that decompresses to more than this build supports.
    #[error(
        "{format}: frame {frame} inflates to {bytes} bytes, the limit is {limit}; pack the \
         contents again (`sidecore block pack --decompress FILE -o IMAGE` where it is zstd)"
    )]
    FrameTooLarge {
        /// Name of the format, for messages.
        format: &'static str,
        /// Index of the frame.
        frame: u64,
        /// Its decompressed size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A compressor that this build does not know.
    #[error(
        "{format}: frame {frame} names compressor {codec}, known are 0 to 4 \
         (zlib, none, xz, lz4, lzo1x); the image is damaged or newer than this program"
    )]
    UnknownCodec {
        /// Name of the format, for messages.
        format: &'static str,
        /// Index of the frame.
        frame: u64,
        /// Its number in the image.
        codec: u8,
    },
    /// An image without any frame.
    #[error(
        "{format}: the image holds no bytes at all; pack it again from a source that is not empty"
    )]
    Empty {
        /// Name of the format, for messages.
        format: &'static str,
    },
    /// More frames than fit in the file.
    #[error(
        "{format}: the head says {frames} frames, the file's {has} bytes have room for {room}; \
         the image is damaged or cut short"
    )]
    TooManyFrames {
        /// Name of the format, for messages.
        format: &'static str,
        /// The number in the header.
        frames: u64,
        /// The file's size.
        has: u64,
        /// The number that would fit.
        room: u64,
    },
    /// The image is not the required one.
    #[error("the image is not trusted: {reason}; {next}")]
    Untrusted {
        /// The reason.
        reason: String,
        /// The next step for the user.
        next: &'static str,
    },
    /// The image is encrypted.
    #[error("it is encrypted; name its key with --identity FILE or --passphrase-file FILE")]
    Locked,
    /// The writer cannot make such an image.
    #[error("{format}: cannot write {what}: {reason}; {next}")]
    CannotWrite {
        /// Name of the format, for messages.
        format: &'static str,
        /// The requested value.
        what: String,
        /// The reason.
        reason: &'static str,
        /// The next step for the user.
        next: &'static str,
    },
    /// A codec could not be set up.
    #[error(transparent)]
    Codec(#[from] CodecError),
}
