//! The checkpoint: everything that a run must not lose.
//!
//! A file of lines, each with its own checksum: first the run's identity, then its results in order
//! (`docs/formats/phylo-checkpoint.md`). A change is one appended line; so a killed run loses at
//! most the line that it was writing, which the next run cuts off. When half of the file is states
//! that later ones replaced, a new file is written next to it and renamed over it.
//!
//! Must stay true: the process that has the file open has its lock; a line is on the disk before
//! [`Checkpoint::append`] returns.

use super::{FilesError, io_error};
use crate::analysis::coordinator::Change;
use crate::analysis::plan::{Goal, Ledger, Outcome, Piece};
use crate::bootstrap::Verdict;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sidecore_bare::width::ToU64;
use sidecore_sys::folder::{Folder, open_named, remove_named};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Identity of a run: names and values of its settings, in order. The numbers of searches,
/// bootstraps and processes are not among them: a later run may ask for more, on another machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Settings(Vec<(String, String)>);

impl Settings {
    /// Adds one. Long values are kept as their hash.
    pub fn add(&mut self, name: &str, value: &str) {
        let value = match value.len() {
            0..=VALUE_MAX => value.to_owned(),
            _ => format!("hash {:016x}", xxh3_64(value.as_bytes())),
        };
        self.0.push((name.to_owned(), value));
    }

    /// A hash over all settings.
    #[must_use]
    pub fn identity(&self) -> String {
        let pairs = self
            .0
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"));
        format!("{:016x}", xxh3_64(pairs.collect::<String>().as_bytes()))
    }

    /// The first setting that another run had with another value: its name, and its value there and
    /// here.
    fn difference(&self, was: &Self) -> Option<(String, String, String)> {
        let of = |settings: &Self, name: &str| {
            let found = settings.0.iter().find(|(own, _)| own == name);
            found.map_or_else(|| "none".to_owned(), |(_, value)| value.clone())
        };
        let names = self.0.iter().chain(&was.0).map(|(name, _)| name);
        let mut all = names.map(|name| (name.clone(), of(was, name), of(self, name)));
        all.find(|(_, was, is)| was != is)
    }
}

/// A line.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    Begin {
        format: String,
        version: u32,
        settings: Settings,
    },
    Finished {
        piece: Piece,
        outcomes: Vec<Outcome>,
    },
    Saved {
        piece: Piece,
        state: String,
    },
    Tested(Verdict),
}

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    file: File,
    settings: Settings,
    /// Bytes of the file, and of its states, present ones included.
    bytes: u64,
    state_bytes: u64,
}

impl Checkpoint {
    /// Begins a checkpoint, in place of any that is there.
    ///
    /// # Errors
    /// [`FilesError::Locked`], [`FilesError::Io`].
    pub fn create(path: &Path, settings: Settings) -> Result<Self, FilesError> {
        // Held until the new file, which is locked too, has replaced it.
        let _old = claim(path)?;
        let mut made = Self {
            path: path.to_owned(),
            file: replacement(path)?,
            settings,
            bytes: 0,
            state_bytes: 0,
        };
        made.begin()?;
        made.put_in_place()?;
        Ok(made)
    }

    /// Resumes from a checkpoint.
    ///
    /// # Errors
    /// [`FilesError`].
    pub fn resume(
        path: &Path,
        settings: Settings,
        goal: Goal,
    ) -> Result<(Self, Ledger), FilesError> {
        let mut file = claim(path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)
            .map_err(io_error("read", path))?;
        if text.is_empty() {
            // Its run was killed before it had written its settings.
            drop(file);
            return Ok((Self::create(path, settings)?, Ledger::new(goal)));
        }
        let Replayed {
            ledger,
            whole,
            state_bytes,
        } = replay(path, &text, &settings, goal)?;
        // A line that was being written is cut off, so that the next one begins on its own.
        file.set_len(whole).map_err(io_error("write", path))?;
        file.seek(SeekFrom::End(0))
            .map_err(io_error("write", path))?;
        let made = Self {
            path: path.to_owned(),
            file,
            settings,
            bytes: whole,
            state_bytes,
        };
        Ok((made, ledger))
    }

    /// Adds a change; `ledger` has it already. Blocks until it is on the disk.
    ///
    /// # Errors
    /// [`FilesError::Io`].
    pub fn append(&mut self, ledger: &Ledger, change: Change<'_>) -> Result<(), FilesError> {
        let record = match change {
            Change::Finished(piece, outcomes) => Record::Finished {
                piece: *piece,
                outcomes: outcomes.to_vec(),
            },
            Change::Saved(piece, state) => Record::Saved {
                piece: *piece,
                state: state.to_owned(),
            },
            Change::Tested(verdict) => Record::Tested(*verdict),
        };
        self.write(&record)?;
        self.sync()?;
        // Replaced states are most of a long run's file; results are small and all needed.
        let present: usize = ledger.all_saved().map(|(_, state)| state.len()).sum();
        // A state's quotes are escaped in its line: twice its length is a fair guess.
        let replaced = self.state_bytes.saturating_sub(2 * present.to_u64());
        match replaced > REPLACED_MAX.max(self.bytes / 2) {
            true => self.compact(ledger),
            false => Ok(()),
        }
    }

    /// Writes the present state to a new file, which replaces the old one.
    fn compact(&mut self, ledger: &Ledger) -> Result<(), FilesError> {
        // The old file keeps its lock until the new one has replaced it.
        let _old = std::mem::replace(&mut self.file, replacement(&self.path)?);
        self.begin()?;
        for outcome in ledger.all_done() {
            let piece = Piece {
                kind: outcome.kind,
                first: outcome.index,
                count: 1,
            };
            let outcomes = vec![outcome.clone()];
            self.write(&Record::Finished { piece, outcomes })?;
        }
        for (piece, state) in ledger.all_saved() {
            let state = state.to_owned();
            self.write(&Record::Saved {
                piece: *piece,
                state,
            })?;
        }
        for verdict in ledger.verdicts() {
            self.write(&Record::Tested(*verdict))?;
        }
        self.put_in_place()
    }

    fn begin(&mut self) -> Result<(), FilesError> {
        (self.bytes, self.state_bytes) = (0, 0);
        self.write(&Record::Begin {
            format: FORMAT.to_owned(),
            version: VERSION,
            settings: self.settings.clone(),
        })
    }

    fn write(&mut self, record: &Record) -> Result<(), FilesError> {
        let text = serde_json::to_string(record).map_err(std::io::Error::from);
        let text = text.map_err(io_error("write", &self.path))?;
        // One call of write, so that a killed process leaves at most one torn line.
        let line = line_of(&text);
        let written = self.file.write_all(line.as_bytes());
        written.map_err(io_error("write", &self.path))?;
        self.bytes += line.len().to_u64();
        if matches!(record, Record::Saved { .. }) {
            self.state_bytes += line.len().to_u64();
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), FilesError> {
        self.file.sync_data().map_err(io_error("write", &self.path))
    }

    fn put_in_place(&self) -> Result<(), FilesError> {
        self.sync()?;
        let replace = || {
            // By the open folder: another user could exchange a part of the path meanwhile.
            let (folder, name) = Folder::of_file(&self.path)?;
            folder.rename(new_name(Path::new(&name)).as_os_str(), &name)?;
            folder.sync()
        };
        replace().map_err(io_error("replace", &self.path))
    }
}

/// Opens a checkpoint, or makes an empty one, and locks it. If another run renamed a new file over
/// it between the two steps, it tries again: a lock on a file without a name excludes no other run.
fn claim(path: &Path) -> Result<File, FilesError> {
    let flags = OFlags::RDWR | OFlags::CREATE;
    loop {
        let file = open_named(path, flags, NEW_FILE_MODE).map_err(io_error("open", path))?;
        let opened = file.metadata().map_err(io_error("open", path))?;
        if !opened.is_file() {
            let error = std::io::Error::other("it is no regular file");
            return Err(io_error("open", path)(error));
        }
        lock(&file, path)?;
        let is_named = std::fs::metadata(path)
            .is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino()));
        if is_named {
            return Ok(file);
        }
    }
}

/// Makes a folder's entries durable.
pub(super) fn sync_folder(path: &Path) -> std::io::Result<()> {
    Folder::of_file(path)?.0.sync()
}

/// A new, empty, locked file next to a checkpoint.
fn replacement(path: &Path) -> Result<File, FilesError> {
    let new = new_name(path);
    // A file left by an earlier run, or put there by another user, is not written to.
    match remove_named(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(io_error("remove", &new)(error));
        }
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open_named(&new, flags, NEW_FILE_MODE).map_err(io_error("create", &new))?;
    lock(&file, path)?;
    Ok(file)
}

fn new_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// The lock is held until the file is closed, at the latest by the end of the process.
fn lock(file: &File, path: &Path) -> Result<(), FilesError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(FilesError::Locked {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(io_error("lock", path)(source)),
    }
}

/// Mode for open(2), before the umask.
pub(super) const NEW_FILE_MODE: u32 = 0o666;

/// The content of a checkpoint.
#[derive(Debug)]
#[doc(hidden)] // public for the target `checkpoint` of `lab/fuzz`, as the two functions below
pub struct Replayed {
    /// The ledger when the bytes were written.
    pub ledger: Ledger,
    /// Bytes of whole lines; the rest was being written.
    whole: u64,
    /// Bytes of states among them.
    state_bytes: u64,
}

/// The error of a line, counted from 0.
fn damaged(path: &Path, number: usize, why: &str) -> FilesError {
    FilesError::Damaged {
        path: path.to_owned(),
        line: number + 1,
        why: why.to_owned(),
    }
}

/// Replays a checkpoint's lines; `path` is for messages. Pure.
///
/// # Errors
/// [`FilesError::Damaged`], [`FilesError::OtherRun`].
#[doc(hidden)]
pub fn replay(
    path: &Path,
    text: &[u8],
    settings: &Settings,
    goal: Goal,
) -> Result<Replayed, FilesError> {
    let (mut ledger, mut whole, mut state_bytes) = (Ledger::new(goal), 0, 0);
    let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    for (number, line) in lines.iter().enumerate() {
        let damaged = |why: &str| Err(damaged(path, number, why));
        let record = match parse(line) {
            Ok(record) => record,
            // Being written when the run was killed.
            Err(_) if number + 1 == lines.len() && number > 0 => break,
            Err(why) => return damaged(&why),
        };
        match record {
            Record::Begin {
                format,
                version,
                settings: was,
            } => {
                // Any other first line, or a second beginning, is no checkpoint of this program.
                if format != FORMAT || number > 0 {
                    return damaged("not a checkpoint of sidecore phylo");
                }
                if version != VERSION {
                    return damaged(&format!("version {version}, {VERSION} is supported"));
                }
                if let Some((what, was, is)) = settings.difference(&was) {
                    return Err(FilesError::OtherRun {
                        path: path.to_owned(),
                        what,
                        was,
                        is,
                    });
                }
            }
            _ if number == 0 => return damaged("the first line does not say which run it is"),
            Record::Finished { piece, .. } | Record::Saved { piece, .. } if !piece.is_sound() => {
                return damaged("a piece of work that no run has");
            }
            Record::Finished { piece, outcomes } => ledger.finish(&piece, outcomes),
            Record::Saved { piece, state } => {
                // Saved states are replaced by later ones; their size tells when rewriting the file
                // pays.
                state_bytes += line.len().to_u64();
                ledger.save(piece, state);
            }
            Record::Tested(verdict) if verdict.replicates > REPLICATES_MAX => {
                return damaged("a test of more bootstraps than a run can have");
            }
            Record::Tested(verdict) => ledger.add_verdict(verdict),
        }
        whole += line.len().to_u64();
    }
    Ok(Replayed {
        ledger,
        whole,
        state_bytes,
    })
}

/// A line's bytes: its text with the checksum before it.
#[doc(hidden)]
#[must_use]
pub fn line_of(text: &str) -> String {
    format!("{:016x} {text}\n", xxh3_64(text.as_bytes()))
}

/// One whole line.
fn parse(line: &[u8]) -> Result<Record, String> {
    let text = line.strip_suffix(b"\n").ok_or("the line is cut off")?;
    let text = std::str::from_utf8(text).map_err(|_| "not text")?;
    let (sum, text) = text.split_once(' ').ok_or("no check sum")?;
    if u64::from_str_radix(sum, 16) != Ok(xxh3_64(text.as_bytes())) {
        return Err("the check sum is wrong".to_owned());
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

const FORMAT: &str = "sidecore phylo checkpoint";
/// To be raised whenever the same settings would give other results, or a line's meaning changes.
const VERSION: u32 = 5;
/// Most bootstraps of a run.
const REPLICATES_MAX: u32 = 1 << 20;
/// Longer values of settings are hashed.
const VALUE_MAX: usize = 80;
/// Bytes of replaced states that are not worth a new file.
const REPLACED_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests;
