//! Errors of packing, unpacking and verifying an image.

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
        /// The operating system's error.
        source: io::Error,
    },
    /// The target cannot be made or written.
    #[error("cannot write {}: {source}", path.display())]
    Target {
        /// Which.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The source and the target are one file.
    #[error("{} is the source as well as the target; name another file", path.display())]
    SameFile {
        /// Which.
        path: PathBuf,
    },
    /// The source has no bytes.
    #[error("{} holds no bytes: there is nothing to pack; name another source", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// Rules for a tree, and the source is none.
    #[error(
        "--exclude, --first, --owner and --mtime are for trees, and {} is no directory; --untar \
         makes a tree of a tar",
        path.display()
    )]
    NoTree {
        /// Which.
        path: PathBuf,
    },
    /// A file that needs no index, or cannot have one.
    #[error(
        "{} {}",
        path.display(),
        if *is_zstd { "has an index of its own: it is read as it is" }
        else { "is no zstd file, and only those are given an index" }
    )]
    Indexed {
        /// Which.
        path: PathBuf,
        /// True for a zstd file, which has an index already.
        is_zstd: bool,
    },
    /// The codec has no such level.
    #[error("{format}: there is no level {level}; levels are {min} to {max}")]
    Level {
        /// The format.
        format: &'static str,
        /// The requested value.
        level: i32,
        /// The lowest.
        min: i32,
        /// The highest.
        max: i32,
    },
    /// The image cannot be opened, or the format does not support the contents.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The source is in a form that another program reads.
    #[error(
        "{} is {} {kind}{}, which is not read as it is; run {next}, or give --raw for its bytes",
        path.display(),
        if kind.starts_with(['A', 'E', 'e', 'o']) { "an" } else { "a" },
        if *is_inside { " inside a compressed file" } else { "" }
    )]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Its form.
        kind: &'static str,
        /// True for contents of that form in a compressed file.
        is_inside: bool,
        /// The commands that make an image of it.
        next: &'static str,
    },
    /// The source is only a part of a disk.
    #[error(
        "{} is an {kind}, which is only a part of a disk; run {next}, or give --raw for its bytes",
        path.display()
    )]
    Part {
        /// Which.
        path: PathBuf,
        /// Its form.
        kind: &'static str,
        /// The commands that make an image of it.
        next: &'static str,
    },
    /// The memory bound is below the index and one frame.
    #[error(
        "this needs at least {needed_bytes} bytes of memory (index {index_bytes}, a frame on its \
         way {job_bytes}), --memory allows {memory_bytes}; allow more"
    )]
    Memory {
        /// The least that suffices.
        needed_bytes: u64,
        /// The part of it for the index.
        index_bytes: u64,
        /// The part of it for one frame and its compressed bytes.
        job_bytes: u64,
        /// The bound given.
        memory_bytes: u64,
    },
    /// The time limit was exceeded.
    #[error("it was given up after the {seconds} s that --time allows; allow more")]
    Time {
        /// The bound given.
        seconds: f64,
    },
    /// The engines cannot be started.
    #[error(transparent)]
    Engines(#[from] sidecore_offload::OffloadError),
    /// A frame cannot be compressed.
    #[error("frame {frame}: {source}")]
    Deflate {
        /// Which.
        frame: u64,
        /// The codec's error.
        source: CodecError,
    },
    /// A frame cannot be encrypted.
    #[error("frame {frame}: the cipher takes no frame of that size")]
    Encrypt {
        /// Which.
        frame: u64,
    },
    /// A frame is damaged.
    #[error(
        "frame {frame} (bytes {offset} to {end} of the contents) is damaged: {source}; \
         `sidecore block verify` lists all that are"
    )]
    Frame {
        /// Which.
        frame: u64,
        /// Offset of its contents.
        offset: u64,
        /// End of its contents.
        end: u64,
        /// The fault that was found.
        source: FrameError,
    },
    /// No file system could be made of a directory.
    #[error(transparent)]
    Inner(#[from] InnerError),
}
