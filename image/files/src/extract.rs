//! Files of an image into a folder, in parallel.
//!
//! One thread walks over the tree and makes the directories; others make and fill the files, a
//! batch of one directory at a time, large files in parts. Then come further names of files, and at
//! last the directories' own attributes, since files made in them would change their times.
//!
//! Must stay true: nothing outside of the folder changes (`place`). A file that is there already
//! stays, unless it may be replaced, and until its successor is whole. A file that cannot be made
//! whole is removed again, reported, and the others go on; a full disk ends the work. At most
//! [`BATCHES_MAX`] batches wait, each with a descriptor of its folder.

mod place;
mod report;

pub use report::Report;

use crate::walk::{Wanted, walk};
use crate::{FilesError, Kind, Node, Tree};
use parking_lot::Mutex;
use place::{Budget, Further, Making, Unmade};
use report::Outcome;
use rustix::io::Errno;
use sidecore_sys::folder::Folder;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Settings of an extraction.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Replace files that are there already.
    pub overwrite: bool,
    /// Owner and group of all files; the image's own, unless given, where this process is root.
    pub owner: Option<(u32, u32)>,
    /// Threads that write files, at least 1.
    pub threads: usize,
    /// The most bytes that are written, holes not counted.
    pub bytes_max: u64,
    is_root: bool,
    umask: u16,
}

impl Options {
    /// Nothing replaced, up to 1 TiB, on that number of threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            overwrite: false,
            owner: None,
            threads: threads.max(1),
            bytes_max: 1 << 40,
            is_root: rustix::process::geteuid().is_root(),
            umask: place::umask().unwrap_or(0o777),
        }
    }

    fn owner_of(&self, node: &Node) -> Option<(u32, u32)> {
        let own = self.is_root.then_some((node.uid, node.gid));
        self.owner.or(own)
    }

    /// The permissions that a file gets: without set-id bits where its owner is not the image's.
    fn permissions_of(&self, node: &Node, outcome: &mut Outcome) -> u16 {
        let is_own = self.owner_of(node) == Some((node.uid, node.gid));
        // Of a directory, the set-group-id bit gives no one a right.
        let set_id = match node.kind {
            Kind::Directory => 0o4000,
            _ => 0o6000,
        };
        if is_own || node.permissions & set_id == 0 {
            return node.permissions;
        }
        outcome.report.set_id_left_out += 1;
        node.permissions & !set_id
    }
}

/// A file to be made.
struct Item {
    name: OsString,
    node: Node,
}

/// Work for a thread.
enum Work {
    /// Files of one directory.
    Batch(Arc<Folder>, Vec<Item>),
    /// A part of a large file.
    Part(Arc<Large>, Range<u64>),
}

/// A file that is filled in parts.
struct Large {
    folder: Arc<Folder>,
    making: Making,
    node: Node,
    file: File,
    /// Parts that are not filled yet.
    left: AtomicUsize,
    is_bad: AtomicBool,
}

impl Large {
    /// Removes the file, which is not filled any more; false if it was removed before.
    fn give_up(&self) -> bool {
        let is_first = !self.is_bad.swap(true, Ordering::Relaxed);
        if is_first {
            self.making.give_up(&self.folder);
        }
        is_first
    }
}

/// The part that all threads share.
struct Job<'j> {
    tree: &'j dyn Tree,
    options: Options,
    budget: Budget<'j>,
    stop: AtomicBool,
    ended: Mutex<Option<FilesError>>,
    unmade: Unmade,
}

impl Job<'_> {
    /// Ends the work of all.
    fn end(&self, error: FilesError) {
        self.ended.lock().get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// True where the work is to end.
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reports a file that could not be made, or ends the work where no other could be either.
    fn judge(&self, path: &Path, error: FilesError, outcome: &mut Outcome) {
        let is_full = |error: &io::Error| {
            let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS];
            full.iter()
                .any(|full| error.raw_os_error() == Some(full.raw_os_error()))
        };
        let is_limit = |error: &io::Error| {
            error.kind() == io::ErrorKind::QuotaExceeded && error.raw_os_error().is_none()
        };
        match error {
            FilesError::Output(ref source) if is_full(source) => self.end(error),
            FilesError::Output(ref source) if is_limit(source) => {
                self.end(FilesError::Limit(self.options.bytes_max));
            }
            _ => outcome.failed(path, &error),
        }
    }

    fn run(&self, work: &Mutex<Receiver<Work>>) -> Outcome {
        let mut outcome = Outcome::default();
        // One thread waits for work, and the others for the lock that it holds meanwhile.
        let next = || work.lock().recv();
        while let Ok(work) = next() {
            if self.is_over() {
                // With a part left out, it would look whole: a later run would pass it over.
                if let Work::Part(large, _) = work {
                    large.give_up();
                }
                continue;
            }
            match work {
                Work::Batch(folder, items) => {
                    for item in &items {
                        self.item(&folder, item, &mut outcome);
                    }
                }
                Work::Part(large, range) => self.part(&large, range, &mut outcome),
            }
        }
        outcome
    }

    /// Makes a file; true if it was made.
    fn item(&self, folder: &Folder, item: &Item, outcome: &mut Outcome) -> bool {
        let Item { name, node } = item;
        let is_file = node.kind == Kind::File;
        let made = match is_file {
            true => self.file(folder, name, node, outcome),
            false => self.other(folder, name, node, outcome),
        };
        match made {
            Ok(()) if is_file => {
                outcome.report.files += 1;
                outcome.report.bytes += node.size_bytes;
            }
            Ok(()) => outcome.report.others += 1,
            Err(error) => {
                // Further names of it cannot be links to what is not there.
                self.unmade.note(node, &error);
                self.judge(&folder.path().join(name), error, outcome);
                return false;
            }
        }
        true
    }

    fn file(
        &self,
        folder: &Folder,
        name: &OsStr,
        node: &Node,
        outcome: &mut Outcome,
    ) -> Result<(), FilesError> {
        let created = place::create(folder, name, node, &self.options);
        let (making, file) = created.map_err(FilesError::Output)?;
        let range = 0..node.size_bytes;
        place::fill(self.tree, node, range, &file, &self.budget)
            .and_then(|()| place::finish(self.tree, node, &file, &self.options, outcome))
            .and_then(|()| making.settle(folder))
            .inspect_err(|_| making.give_up(folder))
    }

    fn other(
        &self,
        folder: &Folder,
        name: &OsStr,
        node: &Node,
        outcome: &mut Outcome,
    ) -> Result<(), FilesError> {
        let making = place::make(self.tree, folder, name, node, &self.options)?;
        let name = making.current();
        place::finish_named(self.tree, folder, name, node, &self.options, outcome)
            .and_then(|()| making.settle(folder))
            .inspect_err(|_| making.give_up(folder))
    }

    fn part(&self, large: &Large, range: Range<u64>, outcome: &mut Outcome) {
        let path = || large.folder.path().join(&large.making.name);
        let bad = |error, outcome: &mut Outcome| {
            // One report for all parts.
            if large.give_up() {
                self.unmade.note(&large.node, &error);
                self.judge(&path(), error, outcome);
            }
        };
        if !large.is_bad.load(Ordering::Relaxed)
            && let Err(error) =
                place::fill(self.tree, &large.node, range, &large.file, &self.budget)
        {
            bad(error, outcome);
        }
        // AcqRel: whoever takes the last part sees the others' `is_bad`.
        if large.left.fetch_sub(1, Ordering::AcqRel) > 1 || large.is_bad.load(Ordering::Relaxed) {
            return;
        }
        let finished = place::finish(self.tree, &large.node, &large.file, &self.options, outcome);
        match finished.and_then(|()| large.making.settle(&large.folder)) {
            Ok(()) => {
                outcome.report.files += 1;
                outcome.report.bytes += large.node.size_bytes;
            }
            Err(error) => bad(error, outcome),
        }
    }

    /// Makes a further name of a file. Where the first one was taken, what has it is another file:
    /// the file is made under this name instead, and `firsts` keeps it for those that follow.
    fn further(
        &self,
        into: &Folder,
        link: &Further,
        firsts: &mut HashMap<u64, PathBuf>,
        outcome: &mut Outcome,
    ) -> Result<(), FilesError> {
        let id = link.node.id;
        let first = match (self.unmade.is_taken(id), firsts.get(&id)) {
            (None, _) => &link.first,
            (Some(_), Some(first)) => first,
            (Some(true), None) => {
                let folder = into.beneath(&link.directory).map_err(FilesError::Output)?;
                let (name, node) = (link.name.clone(), link.node);
                if self.item(&folder, &Item { name, node }, outcome) {
                    firsts.insert(id, link.path());
                }
                return Ok(());
            }
            (Some(false), None) => {
                let text = format!("it is one file with {}, which failed", link.first.display());
                return Err(FilesError::Output(io::Error::other(text)));
            }
        };
        place::further(into, first, link, &self.options).map_err(FilesError::Output)?;
        outcome.report.links += 1;
        Ok(())
    }
}

/// As [`extract()`], on a thread of its own; `on_bytes` is called on this one with the number of
/// bytes that are written, ten times a second.
///
/// # Errors
/// As [`extract()`].
pub fn extract_watched(
    tree: &dyn Tree,
    wanted: &mut Wanted,
    into: &Folder,
    options: Options,
    on_bytes: &mut dyn FnMut(u64),
) -> Result<Report, FilesError> {
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("extracting".to_owned());
        let work = || extract(tree, wanted, into, options, &written);
        let work = thread
            .spawn_scoped(scope, work)
            .map_err(FilesError::Thread)?;
        while !work.is_finished() {
            // Relaxed: a number to show, which orders nothing.
            on_bytes(written.load(Ordering::Relaxed));
            std::thread::park_timeout(SHOWN_EVERY);
        }
        // A panic goes on in the caller's thread.
        work.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Extracts the files that are `wanted` into a folder. `written` counts bytes while it goes on.
/// Blocks until all threads are done.
///
/// # Errors
/// [`FilesError`] where the tree cannot be walked, the disk is full, or more would be written than
/// is allowed. Files that fail by themselves are in the report.
pub fn extract(
    tree: &dyn Tree,
    wanted: &mut Wanted,
    into: &Folder,
    options: Options,
    written: &AtomicU64,
) -> Result<Report, FilesError> {
    let job = Job {
        tree,
        options,
        budget: Budget {
            written,
            bytes_max: options.bytes_max,
        },
        stop: AtomicBool::new(false),
        ended: Mutex::new(None),
        unmade: Unmade::default(),
    };
    // Bounded: the walk waits where the disk is slower, and holds few descriptors of folders.
    let (sender, receiver) = sync_channel(BATCHES_MAX);
    let receiver = Mutex::new(receiver);
    let mut outcome = Outcome::default();
    let planned = std::thread::scope(|scope| {
        let (job, receiver) = (&job, &receiver);
        let mut threads = Vec::new();
        for _ in 0..options.threads {
            let thread = std::thread::Builder::new().name("extract".to_owned());
            match thread.spawn_scoped(scope, move || job.run(receiver)) {
                Ok(thread) => threads.push(thread),
                // Fewer will do; none would leave the walk waiting for ever.
                Err(error) if threads.is_empty() => return Err(FilesError::Output(error)),
                Err(_) => break,
            }
        }
        let mut planner = Planner::new(job, into, sender);
        let walked = walk(tree, wanted, &mut |visit| {
            if job.is_over() {
                return Err(FilesError::Output(io::Error::other("ended")));
            }
            let path = Path::new(OsStr::from_bytes(visit.path));
            planner.visit(path, visit.node, visit.wanted)
        });
        // Drops the sender, which ends the threads once all batches are done.
        let planned = planner.end();
        for thread in threads {
            match thread.join() {
                Ok(done) => outcome.add(done.report),
                // A panic goes on in the caller's thread.
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        walked.map(|()| planned)
    });
    // The reason for which the threads ended comes before the walk's, which they have stopped.
    if let Some(error) = job.ended.lock().take() {
        return Err(error);
    }
    let Planned {
        links,
        directories,
        outcome: first,
    } = planned?;
    outcome.add(first.report);
    let mut firsts = HashMap::new();
    for link in links {
        if let Err(error) = job.further(into, &link, &mut firsts, &mut outcome) {
            job.judge(&link.path(), error, &mut outcome);
        }
    }
    // The innermost first: what is made or changed in a directory changes its time.
    for (path, node) in directories.iter().rev() {
        let done = into
            .beneath(path)
            .map_err(FilesError::Output)
            .and_then(|folder| place::finish(tree, node, &folder, &options, &mut outcome));
        match done {
            Ok(()) => outcome.report.directories += 1,
            Err(error) => job.judge(path, error, &mut outcome),
        }
    }
    match job.ended.lock().take() {
        Some(error) => Err(error),
        None => Ok(outcome.report),
    }
}

/// The rest that the walk leaves for later.
struct Planned {
    links: Vec<Further>,
    directories: Vec<(PathBuf, Node)>,
    outcome: Outcome,
}

/// The walk's side: makes directories, and batches of the files in them.
struct Planner<'p, 'j> {
    job: &'p Job<'j>,
    into: &'p Folder,
    sender: SyncSender<Work>,
    /// The directory of the files that are visited now.
    directory: PathBuf,
    folder: Option<Arc<Folder>>,
    batch: Vec<Item>,
    batch_bytes: u64,
    /// The first names of files that have several.
    first: HashMap<u64, PathBuf>,
    planned: Planned,
}

impl<'p, 'j> Planner<'p, 'j> {
    fn new(job: &'p Job<'j>, into: &'p Folder, sender: SyncSender<Work>) -> Self {
        Self {
            job,
            into,
            sender,
            directory: PathBuf::new(),
            folder: None,
            batch: Vec::new(),
            batch_bytes: 0,
            first: HashMap::new(),
            planned: Planned {
                links: Vec::new(),
                directories: Vec::new(),
                outcome: Outcome::default(),
            },
        }
    }

    fn visit(&mut self, path: &Path, node: &Node, wanted: bool) -> Result<(), FilesError> {
        if path.as_os_str().is_empty() {
            // The folder itself is the user's: it keeps its attributes, unless all is extracted.
            if wanted {
                self.planned.directories.push((PathBuf::new(), *node));
            }
            return Ok(());
        }
        let above = path.parent().unwrap_or(Path::new(""));
        // A batch has one folder, whose descriptor all of its files are made through.
        if above != self.directory || self.folder.is_none() {
            self.send();
            self.directory = above.to_owned();
            self.folder = None;
            match self.into.beneath(above) {
                Ok(folder) => self.folder = Some(Arc::new(folder)),
                Err(error) => {
                    let error = FilesError::Output(error);
                    self.job.judge(path, error, &mut self.planned.outcome);
                    return Ok(());
                }
            }
        }
        let Some(folder) = self.folder.clone() else {
            return Ok(());
        };
        let name = path.file_name().unwrap_or_default();
        if node.kind == Kind::Directory {
            match place::make_directory(&folder, name) {
                Ok(()) => self.planned.directories.push((path.to_owned(), *node)),
                Err(error) => {
                    let error = FilesError::Output(error);
                    self.job.judge(path, error, &mut self.planned.outcome);
                }
            }
            return Ok(());
        }
        if node.links > 1 {
            match self.first.entry(node.id) {
                Entry::Occupied(first) => {
                    self.planned.links.push(Further {
                        first: first.get().clone(),
                        directory: above.to_owned(),
                        name: name.to_owned(),
                        node: *node,
                    });
                    return Ok(());
                }
                Entry::Vacant(first) => drop(first.insert(path.to_owned())),
            }
        }
        match node.kind == Kind::File && node.size_bytes > LARGE_BYTES {
            true => self.large(folder, path, node),
            false => self.add(name, node),
        }
        Ok(())
    }

    fn add(&mut self, name: &OsStr, node: &Node) {
        let name = OsString::from_vec(name.as_bytes().to_vec());
        self.batch.push(Item { name, node: *node });
        self.batch_bytes += node.size_bytes;
        if self.batch.len() >= BATCH_FILES || self.batch_bytes >= BATCH_BYTES {
            self.send();
        }
    }

    fn large(&mut self, folder: Arc<Folder>, path: &Path, node: &Node) {
        self.send();
        let name = path.file_name().unwrap_or_default();
        let (making, file) = match place::create(&folder, name, node, &self.job.options) {
            Ok(created) => created,
            Err(error) => {
                let error = FilesError::Output(error);
                self.job.unmade.note(node, &error);
                return self.job.judge(path, error, &mut self.planned.outcome);
            }
        };
        // Few enough that finding the beginning of each costs little.
        let part = LARGE_BYTES.max(
            node.size_bytes
                .div_ceil(PARTS_MAX)
                .next_multiple_of(1 << 20),
        );
        let parts = node.size_bytes.div_ceil(part);
        let large = Arc::new(Large {
            folder,
            making,
            node: *node,
            file,
            left: AtomicUsize::new(usize::try_from(parts).unwrap_or(0)),
            is_bad: AtomicBool::new(false),
        });
        for index in 0..parts {
            let range = index * part..((index + 1) * part).min(node.size_bytes);
            // It fails only where all threads have ended.
            let _ = self.sender.send(Work::Part(Arc::clone(&large), range));
        }
    }

    fn send(&mut self) {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if let Some(folder) = self.folder.clone().filter(|_| !batch.is_empty()) {
            // As above.
            let _ = self.sender.send(Work::Batch(folder, batch));
        }
    }

    fn end(mut self) -> Planned {
        self.send();
        self.planned
    }
}

/// Time between two pictures of the progress.
const SHOWN_EVERY: Duration = Duration::from_millis(100);
/// Batches that wait for a thread.
const BATCHES_MAX: usize = 64;
/// Files of a batch: enough that handing it over costs little.
const BATCH_FILES: usize = 32;
const BATCH_BYTES: u64 = 512 << 10;
/// Bytes from which on a file is filled in parts, and of a part.
const LARGE_BYTES: u64 = 8 << 20;
const PARTS_MAX: u64 = 64;
