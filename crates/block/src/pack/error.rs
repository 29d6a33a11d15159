//! What can go wrong while an image is made, unpacked or verified.

use crate::codec::CodecError;
use crate::format::{FormatError, FrameError};
use crate::inner::InnerError;
use std::io;
use std::path::PathBuf;

/// Why an image could not be made, unpacked or verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The source cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Source {
        /// Which.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The target cannot be made or written.
    #[error("cannot write {}: {source}", path.display())]
    Target {
        /// Which.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The source and the target are one file.
    #[error("{} is the source as well as the target; name another file", path.display())]
    SameFile {
        /// Which.
        path: PathBuf,
    },
    /// The codec has no such level.
    #[error("{format}: there is no level {level}; levels are {min} to {max}")]
    Level {
        /// The format.
        format: &'static str,
        /// What was asked for.
        level: i32,
        /// The lowest.
        min: i32,
        /// The highest.
        max: i32,
    },
    /// The image cannot be opened, or the format cannot hold what it is given.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The engines cannot be started.
    #[error(transparent)]
    Engines(#[from] sidecore_offload::OffloadError),
    /// A frame cannot be deflated.
    #[error("frame {frame}: {source}")]
    Deflate {
        /// Which.
        frame: u64,
        /// What the codec said.
        source: CodecError,
    },
    /// A frame is damaged.
    #[error(
        "frame {frame} (bytes {offset} to {end} of the contents) is damaged: {source}; \
         `sidecore block verify` lists all that are"
    )]
    Frame {
        /// Which.
        frame: u64,
        /// Where its contents begin.
        offset: u64,
        /// Where they end.
        end: u64,
        /// What was found.
        source: FrameError,
    },
    /// No file system could be made of a directory.
    #[error(transparent)]
    Inner(#[from] InnerError),
}
