//! A recording: from its beginning to the file, which is written at the end and on SIGUSR2.
//!
//! Why here: servers record for days and are asked for what happened last. The file is written by a
//! thread of its own or by the caller, never by a thread that serves.
//!
//! Must stay true: one recording at a time in a process. The file appears whole or not at all; one
//! that cannot be written costs one report and nothing of what the process serves. The file's
//! folder is opened at the beginning, so a server may leave its directory.

use crate::json::{self, HEAD, Meaning};
use crate::recorder;
use crate::registry::registry;
use crate::timeline;
use rustix::fs::OFlags;
use sidecore_sys::folder::Folder;
use sidecore_sys::signals::{Handle, Signals};
use signal_hook::consts::{SIGUSR2, SIGXFSZ};
use std::ffi::OsString;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Reasons why there is no recording, or no file of it, or none that can be summed up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// `-` was given.
    #[error(
        "--trace-events writes a file, and standard output is the command's own: name a file \
         (`./-` for one of that name)"
    )]
    StandardOutput,
    /// There is a file, and it is no recording.
    #[error("{path} is there and is no recording of trace events; name another file, or remove it")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The system refused to write it.
    #[error("cannot write the trace events to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused a thread or a signal.
    #[error("cannot watch for SIGUSR2 to write trace events: {0}")]
    Watch(io::Error),
    /// Something else is recorded.
    #[error("this process records trace events already")]
    Twice,
    /// A file of them cannot be summed up.
    #[error("cannot sum up {name}")]
    Summary {
        /// The file's name.
        name: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file of them cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is longer than any recording.
    #[error("it has more than {bytes_max} bytes, as no recording of Sidecore has")]
    TooLong {
        /// The limit.
        bytes_max: u64,
    },
    /// It is not JSON, or has other contents.
    #[error(
        "it is not what --trace-events writes: {0}; a file that is being copied may not be whole"
    )]
    Json(#[from] serde_json::Error),
    /// An event cannot stand where it does.
    #[error("event {event} on track {track}: {reason}")]
    Event {
        /// Its place in the file, from 0.
        event: u64,
        /// The number of its track.
        track: u64,
        /// The flaw.
        reason: &'static str,
    },
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Tracks: threads that recorded something, and lanes.
    pub tracks: u64,
    /// Records that were overwritten before.
    pub lost: u64,
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (events, tracks, path) = (self.events, self.tracks, self.path.display());
        write!(f, "{events} trace events on {tracks} tracks are in {path}")?;
        match self.lost {
            0 => Ok(()),
            lost => write!(f, "; {lost} older records were overwritten"),
        }
    }
}

/// Hears how each writing of the file ended.
pub type Report = Box<dyn Fn(Result<Written, TraceError>) + Send>;

/// A recording under way, which writes its file when it is dropped.
#[derive(Debug)]
pub struct Recording {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Recording {
    /// Begins to record into `path`, of a process that is to be called `process`. From here on
    /// SIGUSR2 writes the file; `report` hears how that ended, on any thread. Begin before the
    /// threads that are to be recorded, since names are given while something is recorded.
    ///
    /// # Errors
    /// [`TraceError`]: the file could not be written later, or belongs to something else.
    pub fn begin(path: &Path, process: &str, report: Report) -> Result<Self, TraceError> {
        let target = Target::open(path)?;
        let mut current = current();
        if current.is_some() {
            return Err(TraceError::Twice);
        }
        // SIGXFSZ: a file that grows over the limit is an error to report, not an end.
        let signals: Signals = Signals::new([SIGUSR2, SIGXFSZ]).map_err(TraceError::Watch)?;
        let handle = signals.handle();
        let watch = move || {
            let writes = signals.filter(|signal| *signal == SIGUSR2);
            writes.for_each(|_| write_now());
        };
        let builder = std::thread::Builder::new().name("trace".to_owned());
        let thread = builder.spawn(watch).map_err(TraceError::Watch)?;
        *current = Some(Current {
            target,
            process: process.to_owned(),
            report,
        });
        // Before it is switched on: records count from here.
        registry().begin();
        recorder::turn(true);
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Off first, so that the last file has all that was recorded.
        recorder::turn(false);
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed.
            thread.join().ok();
        }
        write_now();
        *current() = None;
    }
}

/// Writes the file of the recording under way, if there is one, and reports how that ended.
/// Blocks until it is on the disk.
pub fn write_now() {
    // Held while the file is written: one writer at a time.
    if let Some(current) = &*current() {
        (current.report)(current.write());
    }
}

/// The recording of this process.
struct Current {
    target: Target,
    process: String,
    report: Report,
}

fn current() -> MutexGuard<'static, Option<Current>> {
    static CURRENT: Mutex<Option<Current>> = Mutex::new(None);
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Current {
    fn write(&self) -> Result<Written, TraceError> {
        // Locked for the copy alone: new threads wait for this lock.
        let (threads, meaning) = {
            let registry = registry();
            let threads = registry.copy();
            (threads, Meaning::of(&registry, self.process.clone()))
        };
        let tracks = timeline::tracks(&threads, meaning.ended.cycles);
        self.target.replace(|out| {
            let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
            json::write(&mut out, &meaning, &threads, &tracks)?;
            out.flush()
        })?;
        Ok(Written {
            path: self.target.path.clone(),
            events: tracks.len(),
            tracks: tracks.count(),
            lost: threads.iter().map(|thread| thread.lost).sum(),
        })
    }
}

/// The file, by its folder, which stays open.
struct Target {
    folder: Folder,
    name: OsString,
    /// As it was named, for messages.
    path: PathBuf,
}

impl Target {
    fn open(path: &Path) -> Result<Self, TraceError> {
        if path.as_os_str() == "-" {
            return Err(TraceError::StandardOutput);
        }
        let failed = |source| TraceError::Write {
            path: path.to_owned(),
            source,
        };
        let (folder, name) = Folder::of_file(path).map_err(failed)?;
        match folder.open_file(Path::new(&name), OFlags::RDONLY, 0) {
            Ok(file) => {
                let is_file = file.metadata().map_err(failed)?.is_file();
                let mut head = Vec::new();
                if is_file {
                    let mut start = file.take(u64::try_from(HEAD.len()).unwrap_or(0));
                    start.read_to_end(&mut head).map_err(failed)?;
                }
                // A recording may be replaced by the next one; an empty file is anybody's.
                if !is_file || !(head.is_empty() || head == HEAD.as_bytes()) {
                    let path = path.to_owned();
                    return Err(TraceError::Foreign { path });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        // Known now, not after days of recording.
        let (hidden, _) = folder.temporary(MODE).map_err(failed)?;
        folder.remove_file(&hidden).map_err(failed)?;
        Ok(Self {
            folder,
            name,
            path: path.to_owned(),
        })
    }

    fn replace(
        &self,
        write: impl FnOnce(&mut std::fs::File) -> io::Result<()>,
    ) -> Result<(), TraceError> {
        let replaced = self.folder.replace(&self.name, MODE, write);
        replaced.map_err(|source| TraceError::Write {
            path: self.path.clone(),
            source,
        })
    }
}

/// Mode of the file, less the umask.
const MODE: u32 = 0o644;
const BUFFER_BYTES: usize = 256 << 10;
