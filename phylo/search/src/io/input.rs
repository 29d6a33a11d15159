//! Input files (alignments, trees, models), and bounds of the memory that they may take.
//!
//! Must stay true: no more is read than the memory allows, whatever sizes a file claims. No memory
//! is allocated by a compressed file's claim before that much was unpacked. No message quotes a
//! model's file, since a model's name may name any file.
//!
//! ```
//! use sidecore_phylo::io::input::Memory;
//!
//! let memory = Memory::new(None);
//! // A small file may come to 256 MiB at most, unless something else is said.
//! assert!(memory.of_input(1 << 20) <= 256 << 20);
//! assert_eq!(Memory::new(Some(1 << 30)).of_input(1 << 20), 1 << 30);
//! ```

use crate::packed::{PackedError, unpack};
use rustix::process::{Resource, getrlimit};
use sidecore_bare::width::ToU64;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Errors of a file that is read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A device has no end.
    #[error("{} is a device: give a file, or a pipe", path.display())]
    Device {
        /// The file.
        path: PathBuf,
    },
    /// It is larger than the memory that it may come to.
    #[error(
        "{} has more than {} MiB, which is what may be read: give --memory if that is right",
        path.display(), max >> 20
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit, bytes.
        max: u64,
    },
    /// It cannot be unpacked.
    #[error("{}: {source}", path.display())]
    Packed {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: PackedError,
    },
    /// It is no text.
    #[error("{}: byte {at} is no UTF-8: is this a text file?", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Byte number, from 1.
        at: usize,
    },
    /// The computation needs more memory than the budget.
    #[error("{what} takes about {} MiB of memory, {} MiB are allowed: give --memory to allow more",
        need >> 20, max >> 20)]
    Memory {
        /// The work.
        what: String,
        /// Bytes needed.
        need: u64,
        /// Bytes allowed.
        max: u64,
    },
}

/// Memory that a command may use.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    given: Option<u64>,
    /// Memory of the machine, or this process's share of it.
    machine: u64,
}

impl Memory {
    /// The given amount; else a share of the memory of the machine, of the control group's limit
    /// where that is less, or of the process's limits.
    #[must_use]
    pub fn new(given: Option<u64>) -> Self {
        Self {
            given,
            machine: machine_bytes(),
        }
    }

    /// Bytes of memory that reading a file of this size may take: in proportion to it unless an
    /// amount was given, so that a small file cannot take a large machine's memory.
    #[must_use]
    pub fn of_input(self, bytes: u64) -> u64 {
        let fair = bytes
            .saturating_mul(INPUT_FACTOR)
            .saturating_add(INPUT_LEAST);
        self.given.unwrap_or(fair.min(self.machine / 2))
    }

    /// Bytes that the computation may take.
    #[must_use]
    pub fn of_work(self) -> u64 {
        self.given.unwrap_or(self.machine / 4 * 3)
    }

    /// The largest file that may be read.
    fn largest(self) -> u64 {
        self.given.unwrap_or(self.machine / 8)
    }

    /// Refuses work that needs more memory than the budget.
    ///
    /// # Errors
    /// [`InputError::Memory`].
    pub fn check_work(self, what: &str, need: u64) -> Result<(), InputError> {
        check(what, need, self.of_work())
    }
}

/// Refuses a need of more than `max` bytes.
///
/// # Errors
/// [`InputError::Memory`].
pub fn check(what: &str, need: u64, max: u64) -> Result<(), InputError> {
    match need > max {
        true => Err(InputError::Memory {
            what: what.to_owned(),
            need,
            max,
        }),
        false => Ok(()),
    }
}

/// A file's content, unpacked.
#[derive(Debug, Clone)]
pub struct Input {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Bytes of memory that parsing them may take.
    pub memory: u64,
}

impl Input {
    /// Reads a file, unpacked if it is compressed; `-` is the standard input.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn read(path: &Path, memory: Memory) -> Result<Self, InputError> {
        let owned = || path.to_owned();
        let failed = |source| InputError::Io {
            path: owned(),
            source,
        };
        let file = sidecore_sys::input::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        let kind = about.file_type();
        // A device could be endless, or block.
        if kind.is_char_device() || kind.is_block_device() {
            return Err(InputError::Device { path: owned() });
        }
        let max = memory.largest();
        let too_large = || InputError::TooLarge { path: owned(), max };
        if about.len() > max {
            return Err(too_large());
        }
        // Read up to one byte more than allowed: a pipe or a growing file has no reliable size.
        let mut bytes = Vec::new();
        let read = file.take(max.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(failed)?;
        let len = bytes.len().to_u64();
        if len > max {
            return Err(too_large());
        }
        let memory = memory.of_input(len);
        // Parsed data take several times the memory of the text.
        let unpacked_max = usize::try_from(memory / UNPACKED_FACTOR).unwrap_or(usize::MAX);
        let bytes = unpack(bytes, unpacked_max).map_err(|source| InputError::Packed {
            path: owned(),
            source,
        })?;
        Ok(Self { bytes, memory })
    }

    /// Its text.
    ///
    /// # Errors
    /// [`InputError::NotText`]; `path` is for the message.
    pub fn into_text(self, path: &Path) -> Result<String, InputError> {
        String::from_utf8(self.bytes).map_err(|error| InputError::NotText {
            path: path.to_owned(),
            at: error.utf8_error().valid_up_to() + 1,
        })
    }
}

/// Reads the file that a model's braces name: a regular file of numbers.
///
/// # Errors
/// Errors of the file system; `InvalidInput` if it is not such a file.
pub fn model_file(path: &str) -> std::io::Result<String> {
    let wrong = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
    // Opening a pipe without a writer must not block.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits();
    let flags = i32::try_from(nonblock).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(wrong("it is no regular file"));
    }
    let mut bytes = Vec::new();
    if about.len() <= MODEL_BYTES_MAX {
        file.take(MODEL_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    }
    if about.len() > MODEL_BYTES_MAX || bytes.len().to_u64() > MODEL_BYTES_MAX {
        return Err(wrong("it has more than 1 MiB, and is no model's"));
    }
    String::from_utf8(bytes).map_err(|_| wrong("it is no text"))
}

/// The memory of the machine, or of the control group or the process where these have less.
fn machine_bytes() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("MemTotal:"))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib << 10)
        });
    let limits = [Resource::As, Resource::Data].map(|limit| getrlimit(limit).current);
    let all = limits.into_iter().chain([total, group_bytes()]).flatten();
    all.min().unwrap_or(UNKNOWN_MACHINE)
}

/// The least limit of the control groups that this process is in.
fn group_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut place = Path::new("/sys/fs/cgroup").join(own);
    let mut least = None;
    while place.starts_with("/sys/fs/cgroup") {
        let limit = std::fs::read_to_string(place.join("memory.max")).ok();
        let limit: Option<u64> = limit.and_then(|text| text.trim().parse().ok());
        least = [least, limit].into_iter().flatten().min();
        place.pop();
    }
    least
}

/// Memory for each byte of a file; and the amount that any file may take.
const INPUT_FACTOR: u64 = 64;
const INPUT_LEAST: u64 = 192 << 20;
/// An unpacked file is copied several times on the way to an alignment's patterns.
const UNPACKED_FACTOR: u64 = 6;
/// The largest of PAML's matrices has 8 KiB.
const MODEL_BYTES_MAX: u64 = 1 << 20;
/// Assumed where the machine's memory is not known.
const UNKNOWN_MACHINE: u64 = 4 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_come_to_little_and_large_ones_to_their_share() {
        let memory = Memory {
            given: None,
            machine: 16 << 30,
        };
        assert_eq!(memory.of_input(1 << 20), 256 << 20);
        assert_eq!(memory.of_input(1 << 40), 8 << 30);
        assert!(Memory::new(None).of_work() > 0);
        assert!(group_bytes().is_none_or(|bytes| bytes > 0));
    }

    #[test]
    fn what_has_no_end_is_not_read_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::new(Some(1 << 20));
        let read = |path: &Path| Input::read(path, memory).map(|input| input.bytes.len());
        let said = |path: &Path| read(path).unwrap_err().to_string();
        assert!(said(Path::new("/dev/zero")).contains("is a device"));
        let sparse = folder.path().join("sparse");
        std::fs::File::create(&sparse)
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        assert!(
            said(&sparse).contains("more than 1 MiB"),
            "{}",
            said(&sparse)
        );
        std::fs::write(&sparse, [b'A'; 1000]).unwrap();
        assert_eq!(read(&sparse).unwrap(), 1000);
        assert!(said(folder.path()).contains("cannot read"));
    }

    #[test]
    fn models_come_from_small_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &str| model_file(path).unwrap_err().to_string();
        assert!(said("/dev/zero").contains("no regular file"));
        assert!(said("/").contains("no regular file"));
        let file = folder.path().join("rates");
        let name = file.to_str().unwrap();
        std::fs::File::create(&file)
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        assert!(said(name).contains("more than 1 MiB"));
        std::fs::write(&file, [0xFF; 10]).unwrap();
        assert!(said(name).contains("no text"));
        std::fs::write(&file, "1 2 3").unwrap();
        assert_eq!(model_file(name).unwrap(), "1 2 3");
    }
}
