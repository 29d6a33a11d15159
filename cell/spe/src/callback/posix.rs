//! Files, folders, processes, maps and time of POSIX (0x2101).
//!
//! Numbers of operations and layouts of structures are those of libspe2's handler: words of 32 bits
//! for sizes, offsets and times; addresses of the host have two. Its shared memory of System V and
//! its `adjtimex` are not served (ENOSYS), as on machines where it was built without them.
//!
//! Must stay true: a folder's number is checked before it is used; a program's pointer into the
//! host's memory is the program's own risk, as a transfer is.

use super::call::{Call, answer, count, length, low, number, set_errno};
use crate::store;
use parking_lot::Mutex;
use sidecore_bare::width::ToUsize;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};

/// The handler of 0x2101.
pub(super) unsafe extern "C" fn serve(store: *mut c_void, place: c_uint) -> c_int {
    // SAFETY: called with a store's view.
    let call = unsafe { Call::new(store, place) };
    answer(&call, -1, || {
        // Each group answers `None` for numbers of the others; the order does not matter.
        open_files(&call)
            .or_else(|| names(&call))
            .or_else(|| folders(&call))
            .or_else(|| times(&call))
            .or_else(|| processes_and_maps(&call))
    })
}

/// A text, or the null pointer, which the C library refuses with EFAULT.
fn text(call: &Call, slot: u32) -> *const c_char {
    call.text(slot).unwrap_or(std::ptr::null())
}

/// Calls on numbers of open files, and those that give such numbers.
fn open_files(call: &Call) -> Option<i64> {
    let file = call.signed(0);
    // Not looked at before the operation is known: the slots of others mean something else.
    let buffer = || call.buffer(1, call.size(2));
    // SAFETY: texts end in the store, buffers are cut at its end.
    Some(unsafe {
        match call.operation {
            2 => libc::close(file).into(),
            // The umask is the host process's, as if it had called.
            3 => libc::creat(text(call, 0), call.word(1)).into(),
            4 => status(call, |found| libc::fstat(file, found)),
            // Offsets of a program have 32 bits and a sign.
            9 => libc::lseek(file, call.signed(1).into(), call.signed(2)),
            15 => libc::open(text(call, 0), call.signed(1), call.word(2)).into(),
            16 => count(libc::read(file, buffer().0, buffer().1)),
            21 => libc::shm_open(text(call, 0), call.signed(1), call.word(2)).into(),
            27 => count(libc::write(file, buffer().0, buffer().1)),
            28 => libc::ftruncate(file, call.signed(1).into()).into(),
            30 => libc::dup(file).into(),
            34 => libc::fchdir(file).into(),
            39 => libc::fchmod(file, call.word(1)).into(),
            41 => libc::fchown(file, call.word(1), call.word(2)).into(),
            48 => libc::fsync(file).into(),
            49 => libc::fdatasync(file).into(),
            50 => libc::dup2(file, call.signed(1)).into(),
            51 => libc::lockf(file, call.signed(1), call.signed(2).into()).into(),
            // The pattern is replaced in the store: the program reads the name there.
            53 => libc::mkstemp(text(call, 0).cast_mut()).into(),
            65 => {
                let (at, bytes) = buffer();
                count(libc::pread(file, at, bytes, call.signed(3).into()))
            }
            66 => {
                let (at, bytes) = buffer();
                count(libc::pwrite(file, at, bytes, call.signed(3).into()))
            }
            67 | 68 => return Some(vectors(call, file)),
            _ => return None,
        }
    })
}

/// Calls on names of files.
fn names(call: &Call) -> Option<i64> {
    let name = text(call, 0);
    // SAFETY: texts end in the store, buffers are cut at its end.
    Some(unsafe {
        match call.operation {
            10 => status(call, |found| libc::lstat(name, found)),
            22 => libc::shm_unlink(name).into(),
            23 => status(call, |found| libc::stat(name, found)),
            24 => libc::unlink(name).into(),
            29 => libc::access(name, call.signed(1)).into(),
            36 => libc::mknod(name, call.word(1), call.word(2).into()).into(),
            38 => libc::chmod(name, call.word(1)).into(),
            40 => libc::chown(name, call.word(1), call.word(2)).into(),
            42 => libc::lchown(name, call.word(1), call.word(2)).into(),
            44 => libc::link(name, text(call, 1)).into(),
            45 => libc::symlink(name, text(call, 1)).into(),
            // readlink ends its text with no zero, and neither does this.
            46 => {
                let (at, bytes) = call.buffer(1, call.size(2));
                count(libc::readlink(name, at.cast(), bytes))
            }
            52 => libc::truncate(name, call.signed(1).into()).into(),
            54 => free_name(call),
            _ => return None,
        }
    })
}

/// Calls on folders.
fn folders(call: &Call) -> Option<i64> {
    let name = text(call, 0);
    // SAFETY: texts end in the store, buffers are cut at its end; streams of folders are open ones.
    Some(unsafe {
        match call.operation {
            33 => libc::chdir(name).into(),
            35 => libc::mkdir(name, call.word(1)).into(),
            37 => libc::rmdir(name).into(),
            // getcwd answers the buffer's own pointer, which has to be the program's.
            43 => {
                let (at, bytes) = call.buffer(0, call.size(1));
                let found = libc::getcwd(at.cast(), bytes);
                if found.is_null() {
                    0
                } else {
                    call.word(0).into()
                }
            }
            55 => keep(libc::opendir(name)),
            56 => match take(call) {
                Some(folder) => libc::closedir(folder.stream).into(),
                None => -1,
            },
            57 => on_folder(call, 0, |folder| next_entry(call, folder.stream)),
            58 => on_folder(call, -1, |folder| {
                libc::rewinddir(folder.stream);
                0
            }),
            59 => on_folder(call, -1, |folder| {
                // Numbers begin with 1; 0 wraps to a place that no table has.
                let index = call.size(1).wrapping_sub(1);
                // A number that was never given out is ignored: seekdir has no error.
                if let Some(place) = folder.places.get(index) {
                    libc::seekdir(folder.stream, *place);
                }
                0
            }),
            60 => on_folder(call, -1, |folder| {
                let place = libc::telldir(folder.stream);
                folder.number_of(place)
            }),
            _ => return None,
        }
    })
}

/// Time, and that of files.
fn times(call: &Call) -> Option<i64> {
    let place = |slot: u32| Some(call.word(slot)).filter(|place| *place != 0);
    // SAFETY: texts end in the store; the structures are our own.
    Some(unsafe {
        match call.operation {
            7 => {
                // The microseconds of gettimeofday are a part of one clock, so both are read at
                // once.
                let now = clock(libc::CLOCK_REALTIME);
                if let Some(to) = place(0) {
                    call.set_words(to, &[word(now.tv_sec), word(now.tv_nsec / 1000)]);
                }
                // The time zone is obsolete; Linux answers zeros, too.
                if let Some(zone) = place(1) {
                    call.set_words(zone, &[0, 0]);
                }
                0
            }
            31 => {
                let now = clock(libc::CLOCK_REALTIME).tv_sec;
                if let Some(to) = place(0) {
                    call.set_words(to, &[word(now)]);
                }
                now
            }
            32 => {
                let from = call.word(0);
                let wanted = libc::timespec {
                    tv_sec: signed_at(call, from),
                    tv_nsec: signed_at(call, from.wrapping_add(4)),
                };
                // The rest is written only after an interruption, as nanosleep(2) has it.
                let mut left = wanted;
                let result = libc::nanosleep(&wanted, &mut left);
                if let Some(to) = place(1).filter(|_| result != 0) {
                    call.set_words(to, &[word(left.tv_sec), word(left.tv_nsec)]);
                }
                result.into()
            }
            // Two times of whole seconds; and two with microseconds.
            63 | 64 => {
                // utime has a word for each time, utimes has two.
                let bytes = if call.operation == 63 { 4 } else { 8 };
                let at = |from: u32| libc::timeval {
                    tv_sec: signed_at(call, from),
                    tv_usec: match bytes {
                        4 => 0,
                        _ => signed_at(call, from.wrapping_add(4)),
                    },
                };
                let times = place(1).map(|from| [at(from), at(from.wrapping_add(bytes))]);
                // Without a place both times are now, which a null pointer says to the C library.
                let times = times
                    .as_ref()
                    .map_or(std::ptr::null(), |pair| pair.as_ptr());
                libc::utimes(text(call, 0), times).into()
            }
            _ => return None,
        }
    })
}

fn processes_and_maps(call: &Call) -> Option<i64> {
    // Unlike the store's places, these are the host's own addresses, of two words.
    let address = |slot: u32| call.wide(slot) as *mut c_void;
    let bytes = call.size(1);
    // SAFETY: maps and their addresses are the program's, as in C.
    Some(unsafe {
        match call.operation {
            // Only the key: the segments of System V that it would name are not served.
            5 => libc::ftok(text(call, 0), call.signed(1)).into(),
            6 => libc::sysconf(libc::_SC_PAGESIZE),
            8 => libc::kill(call.signed(0), call.signed(1)).into(),
            11 => map(call),
            // The result may lie above 4 GiB where the program allows a move; MREMAP_MAYMOVE is its
            // choice.
            12 => {
                let (wanted, flags) = (call.size(2), call.signed(3));
                place(libc::mremap(address(0), bytes, wanted, flags))
            }
            13 => libc::msync(address(0), bytes, call.signed(2)).into(),
            14 => libc::munmap(address(0), bytes).into(),
            25 => wait(call, -1, call.word(0), 0),
            26 => wait(call, call.signed(0), call.word(1), call.signed(2)),
            47 => {
                libc::sync();
                0
            }
            61 => libc::sched_yield().into(),
            62 => libc::umask(call.word(0)).into(),
            _ => return None,
        }
    })
}

/// Gives a file's status to the place that slot 1 names: thirteen words.
fn status(call: &Call, look: impl FnOnce(*mut libc::stat) -> c_int) -> i64 {
    // SAFETY: all zeroes is such a structure.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // On failure the program's structure stays as it is.
    let result = look(&mut found);
    if result == 0 {
        let words = [
            low(found.st_dev),
            low(found.st_ino),
            found.st_mode,
            low(found.st_nlink),
            found.st_uid,
            found.st_gid,
            low(found.st_rdev),
            word(found.st_size),
            word(found.st_blksize),
            word(found.st_blocks),
            word(found.st_atime),
            word(found.st_mtime),
            word(found.st_ctime),
        ];
        call.set_words(call.word(1), &words);
    }
    result.into()
}

/// readv and writev: buffers of the store by pairs of words.
fn vectors(call: &Call, file: c_int) -> i64 {
    let (list, vectors) = (call.word(1), call.word(2));
    // Before the list is read: a number of the program's must not decide on our memory.
    if vectors > VECTORS_MAX {
        set_errno(libc::EINVAL);
        return -1;
    }
    let vectors: Vec<libc::iovec> = (0..vectors)
        .map(|index| {
            // Pointer and length have a word each there, and eight bytes each in the host's iovec.
            let pair = list.wrapping_add(8 * index);
            let bytes = call.word_at(pair.wrapping_add(4)).to_usize();
            let (iov_base, iov_len) = call.part(call.word_at(pair), bytes);
            libc::iovec { iov_base, iov_len }
        })
        .collect();
    let (at, buffers) = (vectors.as_ptr(), length(vectors.len()));
    // SAFETY: the buffers are cut at the store's end.
    unsafe {
        match call.operation {
            67 => count(libc::readv(file, at, buffers)),
            _ => count(libc::writev(file, at, buffers)),
        }
    }
}

/// mktemp: a name that no file has, in the place of the pattern; an empty one where there is none.
fn free_name(call: &Call) -> i64 {
    let Some(name) = call.text(0) else {
        set_errno(libc::EINVAL);
        return 0;
    };
    // The C library's own is refused by linkers of today.
    // SAFETY: a text of the store, which is written in its place.
    unsafe {
        let file = libc::mkstemp(name.cast_mut());
        // mktemp's failure is an empty name.
        if file < 0 {
            *name.cast_mut() = 0;
        } else {
            libc::close(file);
            libc::unlink(name);
        }
    }
    call.word(0).into()
}

/// mmap: where the program names no place, below 4 GiB while there is room, since its pointers have
/// 32 bits.
fn map(call: &Call) -> i64 {
    let (wanted, bytes) = (call.wide(0), call.size(1));
    let (access, flags) = (call.signed(2), call.signed(3));
    let (file, offset) = (call.signed(4), i64::from(call.signed(5)));
    if wanted != 0 || flags & libc::MAP_FIXED != 0 {
        // SAFETY: a map where the program wants it; a mapping already there is the program's own
        // risk.
        return place(unsafe {
            libc::mmap(wanted as *mut c_void, bytes, access, flags, file, offset)
        });
    }
    match store::map_low_of(bytes, access, flags, file, offset) {
        Ok(address) => number(address),
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::ENOMEM));
            -1
        }
    }
}

/// waitpid; the status goes to a place of the store, unless that is 0.
fn wait(call: &Call, process: c_int, to: u32, options: c_int) -> i64 {
    let mut found = 0;
    // SAFETY: our own place.
    let result = unsafe { libc::waitpid(process, &mut found, options) };
    if result > 0 && to != 0 {
        call.set_words(to, &[found.cast_unsigned()]);
    }
    result.into()
}

/// A folder that a program reads.
struct Folder {
    stream: *mut libc::DIR,
    /// Places reported to the program, by the numbers that stand for them, from 1 on: file systems
    /// name places by more bits than a program's `long` has.
    places: Vec<c_long>,
}

impl Folder {
    /// The number that stands for a place; -1 where there are too many.
    fn number_of(&mut self, place: c_long) -> i64 {
        // The same place has the same number, so that programs may compare them.
        let known = self.places.iter().position(|known| *known == place);
        if let Some(known) = known {
            return number(known + 1);
        }
        // A program that asks in a loop must not grow the table without a bound.
        if self.places.len() >= PLACES_MAX {
            set_errno(libc::ENOMEM);
            return -1;
        }
        self.places.push(place);
        number(self.places.len())
    }
}

// SAFETY: the C library's streams of folders may be used by any thread, by one at a time: the lock
// of the table is held meanwhile.
unsafe impl Send for Folder {}

/// Folders that programs read, by their number less one.
static FOLDERS: Mutex<Vec<Option<Folder>>> = Mutex::new(Vec::new());
/// Folders open at a time.
const FOLDERS_MAX: usize = 1024;
/// Places that are kept of one folder.
const PLACES_MAX: usize = 4096;
/// Buffers of one readv or writev, as the system's IOV_MAX.
const VECTORS_MAX: u32 = 1024;
/// Bytes of a name in an entry.
const NAME_BYTES: usize = 256;

/// Gives an opened folder a number; 0 where it could not be opened.
fn keep(folder: *mut libc::DIR) -> i64 {
    if folder.is_null() {
        return 0;
    }
    let mut folders = FOLDERS.lock();
    // The lowest free number, as descriptors are given.
    let free = folders.iter().position(Option::is_none);
    let index = free.unwrap_or(folders.len());
    if index >= FOLDERS_MAX {
        // SAFETY: just opened.
        unsafe { libc::closedir(folder) };
        set_errno(libc::EMFILE);
        return 0;
    }
    if index == folders.len() {
        folders.push(None);
    }
    folders[index] = Some(Folder {
        stream: folder,
        places: Vec::new(),
    });
    number(index + 1)
}

/// Takes the folder of a number out of the table.
fn take(call: &Call) -> Option<Folder> {
    let index = call.wide(0).wrapping_sub(1);
    let folder = FOLDERS.lock().get_mut(index).and_then(Option::take);
    if folder.is_none() {
        set_errno(libc::EBADF);
    }
    folder
}

fn on_folder(call: &Call, failed: i64, work: impl FnOnce(&mut Folder) -> i64) -> i64 {
    let index = call.wide(0).wrapping_sub(1);
    let mut folders = FOLDERS.lock();
    match folders.get_mut(index).and_then(Option::as_mut) {
        Some(folder) => work(folder),
        None => {
            set_errno(libc::EBADF);
            failed
        }
    }
}

/// readdir: a word for the file's number and 256 bytes for its name, at the place of slot 1.
fn next_entry(call: &Call, folder: *mut libc::DIR) -> i64 {
    // SAFETY: an open folder; the entry stays as it is while the table is locked.
    let entry = unsafe { libc::readdir(folder) };
    if entry.is_null() {
        return 0;
    }
    // SAFETY: the C library's entry, whose name ends with a zero.
    let (inode, name) = unsafe { ((*entry).d_ino, CStr::from_ptr((*entry).d_name.as_ptr())) };
    // The program copies all bytes: none of the host's memory is among them.
    let mut padded = [0; NAME_BYTES];
    let name = &name.to_bytes()[..name.count_bytes().min(NAME_BYTES - 1)];
    padded[..name.len()].copy_from_slice(name);
    let place = call.word(1);
    call.set_words(place, &[low(inode)]);
    let (to, bytes) = call.part(place.wrapping_add(4), NAME_BYTES);
    // SAFETY: inside the store.
    unsafe { std::ptr::copy_nonoverlapping(padded.as_ptr(), to.cast(), bytes) };
    place.into()
}

/// A time or a size of the host's as a program's word.
fn word(value: i64) -> u32 {
    low(value.cast_unsigned())
}

/// A number at a place of the store.
fn signed_at(call: &Call, place: u32) -> i64 {
    call.word_at(place).cast_signed().into()
}

/// An address of the host's as a call's result: -1 where there is none.
fn place(address: *mut c_void) -> i64 {
    number(address.expose_provenance())
}

fn clock(which: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: our own place.
    unsafe { libc::clock_gettime(which, &mut now) };
    now
}
