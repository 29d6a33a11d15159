//! Callbacks: a program's requests to the host's C library by stop-and-signal 0x2100 to 0x21ff.
//!
//! Served here: C99's streams (0x2100), files and time of POSIX (0x2101), memory of the host
//! (0x2102). A program may register its own for the other numbers. Streams are the process's, so
//! the order with its own output is kept.
//!
//! Must stay true: addresses of a program are masked and lengths cut at the store's end; runs on
//! the thread that called `spe_context_run`. Source: libspe2's documentation, newlib for numbers.

mod c99;
mod call;
mod format;
mod memory;
mod posix;
mod scan;

pub(crate) use call::in_order;

use parking_lot::RwLock;
use std::ffi::{c_int, c_uint, c_void};

/// A handler: the store's address, and the place in it of the message word.
pub(crate) type Handler = unsafe extern "C" fn(*mut c_void, c_uint) -> c_int;

/// Numbers of callbacks.
pub(crate) const NUMBERS: usize = 256;
/// Numbers that programs may replace but neither add nor remove.
pub(crate) const RESERVED: usize = 4;

static HANDLERS: RwLock<[Option<Handler>; NUMBERS]> = RwLock::new({
    let mut handlers = [None; NUMBERS];
    handlers[0] = Some(c99::serve as Handler);
    handlers[1] = Some(posix::serve as Handler);
    handlers[2] = Some(memory::serve as Handler);
    handlers
});

/// The handler of a number, if there is one.
pub(crate) fn handler(number: usize) -> Option<Handler> {
    HANDLERS.read().get(number).copied().flatten()
}

/// Sets or removes the handler of a number.
pub(crate) fn set_handler(number: usize, handler: Option<Handler>) {
    if let Some(place) = HANDLERS.write().get_mut(number) {
        *place = handler;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{STORE_BYTES, STORE_MASK, Store};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    pub(super) const C99: usize = 0;
    const POSIX: usize = 1;
    const MEMORY: usize = 2;

    /// Places in the store: the message, the slots, texts and buffers.
    const MESSAGE: u32 = 0x800;
    const SLOTS: u32 = 0x1000;
    pub(super) const TEXT: u32 = 0x2000;
    pub(super) const OTHER: u32 = 0x3000;
    pub(super) const BUFFER: u32 = 0x4000;

    /// A program's store.
    pub(super) struct Program(pub(super) Store);

    impl Program {
        pub(super) fn new() -> Program {
            Program(Store::new().unwrap())
        }

        /// Makes a call with the slots at a place: the result and the error number.
        fn call_at(&self, slots: u32, number: usize, operation: u32, words: &[u32]) -> (i64, i32) {
            for (place, word) in (slots..).step_by(16).zip(words) {
                self.0.set_word(place.into(), *word);
                self.0.set_word(u64::from(place) + 4, 0);
            }
            self.0.set_word(MESSAGE.into(), operation << 24 | slots);
            let view = self.0.view().unwrap() as *mut c_void;
            let handler = handler(number).expect("one of ours");
            // SAFETY: a store's view, and a handler of ours.
            assert_eq!(unsafe { handler(view, MESSAGE) }, 0);
            (self.wide(slots), self.word(slots + 12).cast_signed())
        }

        pub(super) fn call(&self, number: usize, operation: u32, words: &[u32]) -> (i64, i32) {
            self.call_at(SLOTS, number, operation, words)
        }

        pub(super) fn word(&self, place: u32) -> u32 {
            self.0.word(place.into())
        }

        pub(super) fn wide(&self, place: u32) -> i64 {
            (u64::from(self.word(place)) | u64::from(self.word(place + 4)) << 32).cast_signed()
        }

        /// Puts a text with its end.
        pub(super) fn put(&self, place: u32, text: &[u8]) {
            assert!(self.0.write(place as usize, &[text, b"\0"].concat()));
        }

        fn path(&self, place: u32, path: &Path) {
            self.put(place, path.as_os_str().as_bytes());
        }

        /// Puts words, one after another.
        pub(super) fn words(&self, place: u32, words: &[u32]) {
            for (at, word) in (place.into()..).step_by(4).zip(words) {
                self.0.set_word(at, *word);
            }
        }

        /// Makes a file and opens it to read and write; its number.
        fn create(&self, path: &Path) -> u32 {
            self.path(TEXT, path);
            let flags = (libc::O_CREAT | libc::O_RDWR).cast_unsigned();
            let (number, _) = self.call(POSIX, 15, &[TEXT, flags, 0o600]);
            u32::try_from(number).expect("it is open")
        }

        pub(super) fn bytes(&self, place: u32, count: u32) -> Vec<u8> {
            let pairs = (place..place + count).map(|at| self.0.byte_pair(at.into()));
            pairs.map(|pair| pair.to_le_bytes()[0]).collect()
        }

        /// A text up to its end.
        pub(super) fn text(&self, place: u32) -> Vec<u8> {
            let bytes = self.bytes(place, 256);
            bytes.split(|byte| *byte == 0).next().unwrap().to_vec()
        }
    }

    #[test]
    fn operations_that_are_none_fail_with_enosys() {
        let program = Program::new();
        for (number, operation) in [(C99, 0), (C99, 99), (POSIX, 0), (POSIX, 17), (POSIX, 200)] {
            assert_eq!(
                program.call(number, operation, &[1]),
                (-1, libc::ENOSYS),
                "{number} {operation}"
            );
        }
        assert_eq!(program.call(MEMORY, 9, &[1]), (0, libc::ENOSYS));
        assert!(handler(3).is_none() && handler(NUMBERS).is_none());
    }

    #[test]
    fn names_for_files_are_unused_and_differ() {
        let program = Program::new();
        let place = i64::from(OTHER);
        let mut names = Vec::new();
        for _ in 0..3 {
            assert_eq!(program.call(C99, 33, &[OTHER]), (place, 0));
            let name = program.text(OTHER);
            assert!(name.starts_with(b"/tmp/file") && name.len() < 20);
            assert!(!Path::new(std::ffi::OsStr::from_bytes(&name)).exists());
            names.push(name);
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3);
        // The program's library has a place for a null pointer.
        assert_eq!(program.call(C99, 33, &[0]), (0, libc::EINVAL));
    }

    #[test]
    fn formats_of_the_spus_own_library_are_written() {
        let program = Program::new();
        // Two arguments in registers, the others on the stack behind a frame of 32 bytes.
        program.put(TEXT, b"%ld|%-5s|%08.3f|%*x|%lld|%c%%|%.2s|%hhu|%p|%y");
        program.put(OTHER, b"text");
        let double = 2.5_f64.to_bits();
        let wide = (-5_i64).cast_unsigned();
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        let all: [[u32; 2]; 10] = [
            [(-7_i32).cast_unsigned(), 0],
            [OTHER, 0],
            halves(double),
            [6, 0],
            [0xbeef, 0],
            halves(wide),
            [b'z'.into(), 0],
            [OTHER, 0],
            [0x1ff, 0],
            [0x1234, 0],
        ];
        for (number, words) in (0..).zip(all) {
            let gap = if number < 2 { 0 } else { 32 };
            program.words(0x5000 + 16 * number + gap, &words);
        }
        let wanted = b"-7|text |0002.500|  beef|-5|z%|te|255|0x1234|%y";
        let list = [0x5000, 0x5020];
        let (length, _) = program.call(C99, 40, &[BUFFER, TEXT, list[0], list[1]]);
        assert_eq!(
            String::from_utf8_lossy(&program.text(BUFFER)),
            String::from_utf8_lossy(wanted)
        );
        assert_eq!(length, wanted.len() as i64);
        // Cut to the room that there is.
        let (length, _) = program.call(C99, 39, &[BUFFER, 6, TEXT, list[0], list[1]]);
        assert_eq!(
            (program.text(BUFFER), length),
            (b"-7|te".to_vec(), wanted.len() as i64)
        );
        let folder = tempfile::tempdir().unwrap();
        program.path(TEXT + 0x100, &folder.path().join("printed"));
        program.put(OTHER + 0x100, b"w");
        let (stream, _) = program.call(C99, 10, &[TEXT + 0x100, OTHER + 0x100]);
        let stream = u32::try_from(stream).unwrap();
        let printed = program.call(C99, 35, &[stream, TEXT, list[0], list[1]]);
        assert_eq!(printed, (wanted.len() as i64, 0));
        program.call(C99, 2, &[stream]);
        let file = std::fs::read(folder.path().join("printed")).unwrap();
        assert_eq!(file, wanted);
        // A format without an end.
        assert!(program.0.write(STORE_BYTES - 4, b"%d%d"));
        let end = u32::try_from(STORE_BYTES).unwrap() - 4;
        assert_eq!(program.call(C99, 37, &[end, 0, 0]), (-1, libc::EFAULT));
    }

    #[test]
    fn streams_are_written_and_read() {
        let program = Program::new();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("stream");
        program.path(TEXT, &file);
        program.put(OTHER, b"w+");
        let (stream, _) = program.call(C99, 10, &[TEXT, OTHER]);
        let stream = u32::try_from(stream).unwrap();
        assert!(stream >= 4, "{stream}");
        program.put(BUFFER, b"first\nsecond\n");
        assert!(program.call(C99, 12, &[BUFFER, stream]).0 >= 0);
        assert_eq!(
            program.call(C99, 11, &[b'x'.into(), stream]).0,
            i64::from(b'x')
        );
        assert_eq!(program.call(C99, 17, &[stream]), (14, 0));
        assert_eq!(program.call(C99, 5, &[stream]).0, 0);
        assert_eq!(std::fs::read(&file).unwrap(), b"first\nsecond\nx");
        // Back to the begin, a line, a character and one pushed back.
        program.call(C99, 28, &[stream]);
        assert_eq!(
            program.call(C99, 8, &[BUFFER, 100, stream]).0,
            BUFFER.into()
        );
        assert_eq!(program.text(BUFFER), b"first\n");
        assert_eq!(program.call(C99, 6, &[stream]).0, i64::from(b's'));
        assert_eq!(
            program.call(C99, 34, &[b'S'.into(), stream]).0,
            i64::from(b'S')
        );
        assert_eq!(program.call(C99, 13, &[BUFFER, 2, 3, stream]).0, 3);
        assert_eq!(program.bytes(BUFFER, 6), b"Second");
        // A place is kept in the store and gone back to.
        assert_eq!(program.call(C99, 7, &[stream, OTHER]).0, 0);
        assert_eq!(program.word(OTHER), 12);
        assert_eq!(program.call(C99, 15, &[stream, 0, 2]).0, 0);
        assert_eq!(program.call(C99, 6, &[stream]).0, -1);
        assert_ne!(program.call(C99, 3, &[stream]).0, 0);
        program.call(C99, 1, &[stream]);
        assert_eq!(
            (
                program.call(C99, 3, &[stream]).0,
                program.call(C99, 4, &[stream]).0
            ),
            (0, 0)
        );
        assert_eq!(program.call(C99, 16, &[stream, OTHER]).0, 0);
        assert_eq!(program.call(C99, 6, &[stream]).0, i64::from(b'\n'));
        assert!(program.call(C99, 9, &[stream]).0 > 2);
        assert_eq!(program.call(C99, 2, &[stream]), (0, 0));
        // It is closed once.
        assert_eq!(program.call(C99, 2, &[stream]), (-1, libc::EBADF));
    }

    #[test]
    fn handles_that_are_no_streams_are_refused() {
        let program = Program::new();
        for handle in [0, 1000, u32::MAX] {
            for (operation, words) in [
                (1, vec![handle]),
                (2, vec![handle]),
                (6, vec![handle]),
                (11, vec![1, handle]),
                (15, vec![handle, 0, 0]),
                (17, vec![handle]),
                (34, vec![1, handle]),
            ] {
                let answer = program.call(C99, operation, &words);
                assert_eq!(answer, (-1, libc::EBADF), "{operation} {handle}");
            }
            // Counts and texts are 0 where there is no stream.
            assert_eq!(program.call(C99, 8, &[BUFFER, 10, handle]).0, 0);
            assert_eq!(
                program.call(C99, 13, &[BUFFER, 1, 1, handle]),
                (0, libc::EBADF)
            );
            assert_eq!(
                program.call(C99, 14, &[TEXT, TEXT, handle]),
                (0, libc::EBADF)
            );
        }
        program.put(TEXT, b"/nowhere/at/all");
        program.put(OTHER, b"r");
        assert_eq!(program.call(C99, 10, &[TEXT, OTHER]), (0, libc::ENOENT));
    }

    #[test]
    fn names_are_renamed_and_removed() {
        let program = Program::new();
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::write(&one, "x").unwrap();
        program.path(TEXT, &one);
        program.path(OTHER, &two);
        assert_eq!(program.call(C99, 27, &[TEXT, OTHER]), (0, 0));
        assert_eq!(program.call(C99, 26, &[TEXT]), (-1, libc::ENOENT));
        assert_eq!(program.call(C99, 26, &[OTHER]), (0, 0));
        assert!(!two.exists());
        // A temporary file has no name and goes with its stream.
        let (stream, _) = program.call(C99, 32, &[]);
        assert!(stream >= 4);
        assert_eq!(program.call(C99, 2, &[stream as u32]).0, 0);
    }

    #[test]
    fn files_are_opened_read_and_written() {
        let program = Program::new();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let number = program.create(&file);
        program.put(BUFFER, b"0123456789");
        assert_eq!(program.call(POSIX, 27, &[number, BUFFER, 10]), (10, 0));
        assert_eq!(program.call(POSIX, 66, &[number, BUFFER, 3, 20]), (3, 0));
        assert_eq!(program.call(POSIX, 65, &[number, OTHER, 4, 2]), (4, 0));
        assert_eq!(program.bytes(OTHER, 4), b"2345");
        assert_eq!(program.call(POSIX, 9, &[number, 0, 0]), (0, 0));
        assert_eq!(program.call(POSIX, 16, &[number, OTHER, 5]), (5, 0));
        assert_eq!(program.bytes(OTHER, 5), b"01234");
        assert_eq!(program.call(POSIX, 28, &[number, 6]), (0, 0));
        assert_eq!(
            (
                program.call(POSIX, 48, &[number]).0,
                program.call(POSIX, 49, &[number]).0
            ),
            (0, 0)
        );
        // Thirteen words: the mode is the third, the size the eighth.
        assert_eq!(program.call(POSIX, 4, &[number, OTHER]), (0, 0));
        assert_eq!(program.word(OTHER + 8) & 0o777, 0o600);
        assert_eq!(program.word(OTHER + 28), 6);
        assert_eq!(program.call(POSIX, 23, &[TEXT, OTHER]), (0, 0));
        assert_eq!(program.word(OTHER + 28), 6);
        let (again, _) = program.call(POSIX, 30, &[number]);
        assert_eq!(program.call(POSIX, 2, &[again as u32]), (0, 0));
        assert_eq!(program.call(POSIX, 2, &[number]), (0, 0));
        assert_eq!(program.call(POSIX, 2, &[number]), (-1, libc::EBADF));
        assert_eq!(
            program.call(POSIX, 16, &[number, OTHER, 5]),
            (-1, libc::EBADF)
        );
        assert_eq!(program.call(POSIX, 24, &[TEXT]), (0, 0));
        assert_eq!(program.call(POSIX, 23, &[TEXT, OTHER]), (-1, libc::ENOENT));
    }

    #[test]
    fn buffers_are_gathered_by_pairs_of_words() {
        let program = Program::new();
        let folder = tempfile::tempdir().unwrap();
        let number = program.create(&folder.path().join("file"));
        program.put(BUFFER, b"onetwo");
        program.words(OTHER, &[BUFFER, 3, BUFFER + 3, 3]);
        assert_eq!(program.call(POSIX, 68, &[number, OTHER, 2]), (6, 0));
        program.call(POSIX, 9, &[number, 0, 0]);
        // The second buffer begins near the store's end and is cut there.
        let end = STORE_BYTES as u32;
        program.words(OTHER, &[BUFFER + 64, 2, end - 2, 100]);
        assert_eq!(program.call(POSIX, 67, &[number, OTHER, 2]), (4, 0));
        assert_eq!(program.bytes(BUFFER + 64, 2), b"on");
        assert_eq!(
            program.call(POSIX, 67, &[number, OTHER, 1025]),
            (-1, libc::EINVAL)
        );
        program.call(POSIX, 2, &[number]);
    }

    #[test]
    fn folders_are_read_by_their_numbers() {
        let program = Program::new();
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        program.path(TEXT, &inner);
        assert_eq!(program.call(POSIX, 35, &[TEXT, 0o700]), (0, 0));
        assert_eq!(program.call(POSIX, 35, &[TEXT, 0o700]), (-1, libc::EEXIST));
        std::fs::write(inner.join("a name"), "").unwrap();
        let (number, _) = program.call(POSIX, 55, &[TEXT]);
        let number = u32::try_from(number).unwrap();
        assert!(number > 0);
        let names = || {
            let mut names = Vec::new();
            while program.call(POSIX, 57, &[number, BUFFER]).0 != 0 {
                names.push(program.text(BUFFER + 4));
            }
            names.sort();
            names
        };
        let all = [b".".to_vec(), b"..".to_vec(), b"a name".to_vec()];
        assert_eq!(names(), all);
        assert!(names().is_empty());
        assert_eq!(program.call(POSIX, 58, &[number]).0, 0);
        let (place, _) = program.call(POSIX, 60, &[number]);
        assert_eq!(place, 1);
        assert_eq!(names(), all);
        assert_eq!(program.call(POSIX, 59, &[number, place as u32]).0, 0);
        assert_eq!(names(), all);
        // A place that telldir never returned changes nothing.
        assert_eq!(program.call(POSIX, 59, &[number, 77]).0, 0);
        assert!(names().is_empty());
        assert_eq!(program.call(POSIX, 56, &[number]), (0, 0));
        for (operation, failed) in [(56, -1), (57, 0), (58, -1), (59, -1), (60, -1)] {
            for handle in [number, 0, u32::MAX] {
                let answer = program.call(POSIX, operation, &[handle, BUFFER]);
                assert_eq!(answer, (failed, libc::EBADF), "{operation} {handle}");
            }
        }
        std::fs::remove_file(inner.join("a name")).unwrap();
        assert_eq!(program.call(POSIX, 37, &[TEXT]), (0, 0));
        assert_eq!(program.call(POSIX, 55, &[TEXT]), (0, libc::ENOENT));
    }

    #[test]
    fn links_and_names_that_are_free() {
        let program = Program::new();
        let folder = tempfile::tempdir().unwrap();
        program.path(TEXT, &folder.path().join("link"));
        program.put(OTHER, b"target");
        assert_eq!(program.call(POSIX, 45, &[OTHER, TEXT]), (0, 0));
        assert_eq!(program.call(POSIX, 46, &[TEXT, BUFFER, 3]), (3, 0));
        assert_eq!(program.bytes(BUFFER, 3), b"tar");
        assert_eq!(program.call(POSIX, 10, &[TEXT, BUFFER]), (0, 0));
        assert_eq!(program.call(POSIX, 23, &[TEXT, BUFFER]), (-1, libc::ENOENT));
        program.path(TEXT, &folder.path().join("nameXXXXXX"));
        assert_eq!(program.call(POSIX, 54, &[TEXT]).0, TEXT.into());
        let made = program.text(TEXT);
        assert!(
            !made.ends_with(b"XXXXXX") && !Path::new(std::ffi::OsStr::from_bytes(&made)).exists()
        );
        program.put(TEXT, b"/nowhere/nameXXXXXX");
        assert_eq!(program.call(POSIX, 54, &[TEXT]).0, TEXT.into());
        assert!(program.text(TEXT).is_empty());
        assert_eq!(program.call(POSIX, 54, &[0]), (0, libc::EINVAL));
    }

    #[test]
    fn times_are_words_of_seconds() {
        let program = Program::new();
        let (now, _) = program.call(POSIX, 31, &[BUFFER]);
        assert_eq!(i64::from(program.word(BUFFER)), now);
        assert_eq!(program.call(POSIX, 7, &[BUFFER, OTHER]), (0, 0));
        assert!(i64::from(program.word(BUFFER)) - now < 60 && program.word(BUFFER + 4) < 1_000_000);
        assert_eq!((program.word(OTHER), program.word(OTHER + 4)), (0, 0));
        program.0.set_word(BUFFER.into(), 0);
        program.0.set_word(u64::from(BUFFER) + 4, 1000);
        assert_eq!(program.call(POSIX, 32, &[BUFFER, 0]), (0, 0));
        program.0.set_word(u64::from(BUFFER) + 4, u32::MAX);
        assert_eq!(program.call(POSIX, 32, &[BUFFER, 0]), (-1, libc::EINVAL));
        let file = tempfile::NamedTempFile::new().unwrap();
        program.path(TEXT, file.path());
        program.words(BUFFER, &[100, 7, 200, 9]);
        let modified = || {
            let modified = file.path().metadata().unwrap().modified().unwrap();
            modified
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap()
                .as_micros()
        };
        assert_eq!(program.call(POSIX, 64, &[TEXT, BUFFER]), (0, 0));
        assert_eq!(modified(), 200_000_009);
        assert_eq!(program.call(POSIX, 63, &[TEXT, BUFFER]), (0, 0));
        assert_eq!(modified(), 7_000_000);
    }

    #[test]
    fn processes_and_maps_are_the_hosts() {
        let program = Program::new();
        assert_eq!(program.call(POSIX, 6, &[]), (4096, 0));
        assert_eq!(program.call(POSIX, 8, &[std::process::id(), 0]), (0, 0));
        assert_eq!(program.call(POSIX, 61, &[]), (0, 0));
        assert_eq!(
            program
                .call(POSIX, 26, &[u32::MAX, 0, libc::WNOHANG as u32])
                .0,
            -1
        );
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u32;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u32;
        let (at, _) = program.call(POSIX, 11, &[0, 8192, access, flags, u32::MAX, 0]);
        assert!(at > 0 && at < 1 << 32, "{at:#x}");
        // SAFETY: the map that was just made.
        unsafe { (at as *mut u32).write(5) };
        assert_eq!(
            program.call(POSIX, 13, &[at as u32, 4096, libc::MS_SYNC as u32]),
            (0, 0)
        );
        assert_eq!(program.call(POSIX, 14, &[at as u32, 8192]), (0, 0));
        assert_eq!(
            program
                .call(POSIX, 11, &[0, 8192, access, flags & !2, u32::MAX, 0])
                .0,
            -1
        );
    }

    #[test]
    fn places_wrap_and_lengths_are_cut_at_the_stores_end() {
        let program = Program::new();
        let folder = tempfile::tempdir().unwrap();
        let number = program.create(&folder.path().join("file"));
        let end = STORE_BYTES as u32;
        program.put(end - 5, b"last");
        assert_eq!(
            program.call(POSIX, 27, &[number, end - 5, u32::MAX]),
            (5, 0)
        );
        // A place above the store is one in it.
        assert_eq!(
            program.call(POSIX, 27, &[number, 0xfff0_0000 | (end - 5), 4]),
            (4, 0)
        );
        program.call(POSIX, 2, &[number]);
        // A text without an end is none: the C library gets a null pointer.
        program.0.write(STORE_BYTES - 4, b"text");
        assert_eq!(program.call(POSIX, 24, &[end - 4]), (-1, libc::EFAULT));
        assert_eq!(program.call(POSIX, 24, &[0]), (-1, libc::EFAULT));
        // Slots at the end: what lies behind it is the store's begin, the result's place included.
        let (now, _) = program.call_at(end - 16, POSIX, 31, &[0]);
        assert!(now > 1_600_000_000);
        assert_eq!(program.word(STORE_MASK as u32 - 3), 0);
    }

    #[test]
    fn memory_of_the_host_has_pointers_of_32_bits() {
        let program = Program::new();
        let blocks: Vec<i64> = [1, 100, 70_000]
            .map(|bytes| program.call(MEMORY, 3, &[bytes, 0]).0)
            .to_vec();
        assert!(
            blocks.iter().all(|block| *block > 0 && *block < 1 << 32),
            "{blocks:x?}"
        );
        let (zeroed, _) = program.call(MEMORY, 1, &[25, 4]);
        // SAFETY: live blocks of the sizes that were asked for.
        unsafe {
            assert!(
                std::slice::from_raw_parts(zeroed as *const u8, 100)
                    .iter()
                    .all(|it| *it == 0)
            );
            (blocks[1] as *mut u8).write_bytes(6, 100);
        }
        let (moved, _) = program.call(MEMORY, 4, &[blocks[1] as u32, 5000]);
        // SAFETY: as above.
        unsafe {
            assert!(
                std::slice::from_raw_parts(moved as *const u8, 100)
                    .iter()
                    .all(|it| *it == 6)
            );
        }
        // Of nothing it is a new block; to nothing it is given back.
        let (new, _) = program.call(MEMORY, 4, &[0, 10]);
        assert!(new > 0);
        assert_eq!(program.call(MEMORY, 4, &[new as u32, 0]).0, 0);
        for block in [blocks[0], blocks[2], zeroed, moved, 0] {
            assert_eq!(program.call(MEMORY, 2, &[block as u32]), (0, 0));
        }
        assert_eq!(program.call(MEMORY, 3, &[u32::MAX]), (0, libc::ENOMEM));
    }

    #[test]
    fn aligned_memory_goes_to_a_place_of_the_store() {
        let program = Program::new();
        for alignment in [4_u32, 64, 4096] {
            assert_eq!(program.call(MEMORY, 5, &[BUFFER, alignment, 100]).0, 0);
            let block = program.word(BUFFER);
            assert!(block.is_multiple_of(alignment) && program.word(BUFFER + 4) == 0);
            program.call(MEMORY, 2, &[block]);
        }
        for alignment in [0, 1, 3, 2] {
            let answer = program.call(MEMORY, 5, &[BUFFER, alignment, 100]).0;
            assert_eq!(answer, libc::EINVAL.into(), "{alignment}");
        }
        let answer = program.call(MEMORY, 5, &[BUFFER, 1 << 20, u32::MAX]).0;
        assert_eq!(answer, libc::ENOMEM.into());
    }
}
