//! Memory of a stream, by the functions that its program gave (`zalloc`, `zfree`), or malloc. Rows
//! of bytes in it, and the window of an inflated stream.
//!
//! Why here: programs that give such functions may free all memory at once, and never end the
//! stream; so nothing else allocates for a stream. Must stay true: running out is a value, not an
//! abort.

use crate::foreign;
use libc::{c_uint, c_void};
use libz_rs_sys::z_stream;
use sidecore_bare::width::ToUsize;
use std::ptr::{self, NonNull};

/// The two functions of a stream and their first argument.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    allocate: unsafe extern "C" fn(*mut c_void, c_uint, c_uint) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void),
    opaque: *mut c_void,
}

impl Memory {
    /// Those of a stream; malloc's where it has none.
    pub(crate) fn of(stream: &z_stream) -> Self {
        match (stream.zalloc, stream.zfree) {
            (Some(allocate), Some(free)) => Self {
                allocate,
                free,
                opaque: stream.opaque,
            },
            _ => Self::MALLOC,
        }
    }

    /// Sets the functions of a program's stream to these, as zlib does where it gave none.
    pub(crate) fn show_in(self, stream: &mut z_stream) {
        stream.zalloc = Some(self.allocate);
        stream.zfree = Some(self.free);
        stream.opaque = self.opaque;
    }

    /// Sets the functions of a stream inside ours to these; an exception of the program's does not
    /// reach the base library.
    ///
    /// # Safety
    /// `self` stays where it is for as long as the stream has a state.
    pub(crate) unsafe fn lend_to(&self, stream: &mut z_stream) {
        stream.zalloc = Some(lent_allocate);
        stream.zfree = Some(lent_free);
        stream.opaque = ptr::from_ref(self).cast_mut().cast();
    }

    /// True if a stream inside ours has these functions by [`Self::lend_to`].
    pub(crate) fn lends_to(&self, stream: &z_stream) -> bool {
        ptr::eq(self, stream.opaque.cast())
    }

    /// malloc and free.
    pub(crate) const MALLOC: Self = Self {
        allocate: malloc,
        free,
        opaque: ptr::null_mut(),
    };

    /// Bytes, aligned as malloc aligns; their contents are unspecified.
    fn bytes(self, bytes: usize) -> Option<NonNull<u8>> {
        let count = c_uint::try_from(bytes).ok()?;
        NonNull::new(self.allocate(1, count).cast())
    }

    fn allocate(self, items: c_uint, size: c_uint) -> *mut c_void {
        let function = self.allocate as *const c_void;
        let words = [self.opaque as usize, items.to_usize(), size.to_usize()];
        // SAFETY: the program's promise for `zalloc`; malloc keeps it too.
        unsafe { foreign::call(function, words) as *mut c_void }
    }

    /// A value in this memory, to be given back with [`Self::take`]. `None` where there is no room,
    /// or the memory is not aligned for it.
    pub(crate) fn put<T>(self, value: T) -> Option<NonNull<T>> {
        self.put_with(|| value)
    }

    /// The same for a long value, which is made in its place.
    #[inline]
    pub(crate) fn put_with<T>(self, make: impl FnOnce() -> T) -> Option<NonNull<T>> {
        let place = self.bytes(size_of::<T>())?.cast::<T>();
        if !place.is_aligned() {
            // SAFETY: it came from these functions just now.
            unsafe { (self.free)(self.opaque, place.as_ptr().cast()) };
            return None;
        }
        // SAFETY: the place is aligned, long enough, and has no other owner.
        unsafe { place.write(make()) };
        Some(place)
    }

    /// Takes a value out of its memory and gives the memory back.
    ///
    /// # Safety
    /// The place came from [`Self::put`] with the same functions, and is not used again.
    pub(crate) unsafe fn take<T>(self, place: NonNull<T>) -> T {
        // SAFETY: the caller's promise.
        let value = unsafe { place.read() };
        // SAFETY: the caller's promise.
        unsafe { (self.free)(self.opaque, place.as_ptr().cast()) };
        value
    }

    /// Drops a value where it is, and gives its memory back.
    ///
    /// # Safety
    /// As [`Self::take`].
    pub(crate) unsafe fn discard<T>(self, place: NonNull<T>) {
        // SAFETY: the caller's promise.
        unsafe {
            place.drop_in_place();
            (self.free)(self.opaque, place.as_ptr().cast());
        }
    }
}

unsafe extern "C" fn malloc(_opaque: *mut c_void, items: c_uint, size: c_uint) -> *mut c_void {
    let bytes = items.to_usize().saturating_mul(size.to_usize());
    // SAFETY: malloc takes any size.
    unsafe { libc::malloc(bytes) }
}

/// Streams of the base library may borrow it for as long as they like.
pub(crate) static MALLOC: Shared = Shared(Memory::MALLOC);

/// Memory functions that hold nothing of one thread.
pub(crate) struct Shared(pub(crate) Memory);

// SAFETY: malloc and free, which any thread may call, and no address.
unsafe impl Sync for Shared {}

unsafe extern "C" fn lent_allocate(
    lender: *mut c_void,
    items: c_uint,
    size: c_uint,
) -> *mut c_void {
    // SAFETY: `lend_to` set it, whose caller promised that it is still there.
    unsafe { (*lender.cast::<Memory>()).allocate(items, size) }
}

unsafe extern "C" fn lent_free(lender: *mut c_void, address: *mut c_void) {
    // SAFETY: as above; the address came from `lent_allocate`.
    unsafe {
        let memory = *lender.cast::<Memory>();
        (memory.free)(memory.opaque, address);
    }
}

unsafe extern "C" fn free(_opaque: *mut c_void, address: *mut c_void) {
    // SAFETY: only addresses from `malloc` above come here.
    unsafe { libc::free(address) }
}

/// A row of bytes that grows, in a stream's memory.
pub(crate) struct Bytes {
    memory: Memory,
    /// Those that it came from, where the stream's had no more.
    lender: Memory,
    is_never_short: bool,
    start: NonNull<u8>,
    len: usize,
    room: usize,
}

/// No memory left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoMemory;

impl Bytes {
    pub(crate) fn new(memory: Memory) -> Self {
        Self {
            memory,
            lender: memory,
            is_never_short: false,
            start: NonNull::dangling(),
            len: 0,
            room: 0,
        }
    }

    /// For allocations that zlib would have made when the stream began: malloc's where the stream's
    /// memory has no more, because its size was computed for zlib.
    pub(crate) fn never_short(memory: Memory) -> Self {
        Self {
            is_never_short: true,
            ..Self::new(memory)
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the first `len` bytes were written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the first `len` bytes were written, and are borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Sets the length; new bytes are zeros.
    pub(crate) fn set_len(&mut self, len: usize) -> Result<(), NoMemory> {
        let more = len.saturating_sub(self.len);
        self.reserve(more)?;
        // SAFETY: there is room.
        unsafe { ptr::write_bytes(self.start.as_ptr().add(self.len), 0, more) };
        self.len = len;
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the contents, not the memory.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Forgets all from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Drops all but the last `keep` bytes.
    pub(crate) fn keep_last(&mut self, keep: usize) {
        let cut = self.len.saturating_sub(keep);
        // SAFETY: both ranges are within the bytes written; `copy` allows them to overlap.
        unsafe {
            ptr::copy(
                self.start.as_ptr().add(cut),
                self.start.as_ptr(),
                self.len - cut,
            )
        };
        self.len -= cut;
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) -> Result<(), NoMemory> {
        self.reserve(bytes.len())?;
        // SAFETY: there is room; the source is not this memory, which is borrowed for writing.
        unsafe {
            let end = self.start.as_ptr().add(self.len);
            ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
        }
        self.len += bytes.len();
        Ok(())
    }

    /// Makes room for `more` bytes, and for some more after them. In few steps: there are programs
    /// whose memory is not given back before the stream ends, and whose room was reckoned for zlib.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), NoMemory> {
        let wanted = self.len.checked_add(more).ok_or(NoMemory)?;
        if wanted <= self.room {
            return Ok(());
        }
        // By factors while it is small, by 96 KiB later: few steps, and little in vain.
        let grown = (self.room * 8).min(self.room + GROWTH_BYTES_MAX);
        self.move_to(wanted.max(grown).max(ROOM_MIN))
    }

    /// Moves the contents to new memory, which has room for them.
    fn move_to(&mut self, room: usize) -> Result<(), NoMemory> {
        let mut lender = self.memory;
        let mut start = lender.bytes(room);
        // An exception is an answer: the call ends with it, and not with another's memory.
        if start.is_none() && self.is_never_short && !foreign::is_held() {
            lender = Memory::MALLOC;
            start = lender.bytes(room);
        }
        let start = start.ok_or(NoMemory)?;
        // SAFETY: the new memory has room for the contents of the old one.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr(), start.as_ptr(), self.len) };
        // Only now: the program's `free` may overwrite it.
        self.release();
        (self.start, self.room, self.lender) = (start, room, lender);
        Ok(())
    }

    fn like_this(&self) -> Self {
        Self {
            is_never_short: self.is_never_short,
            ..Self::new(self.memory)
        }
    }

    /// Makes room for exactly `bytes` in all, where there is less.
    pub(crate) fn reserve_to(&mut self, bytes: usize) -> Result<(), NoMemory> {
        match bytes > self.room {
            true => self.move_to(bytes),
            false => Ok(()),
        }
    }

    /// Bytes that there is room for in all.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// All from `at` on, which is cut off here.
    pub(crate) fn split_off(&mut self, at: usize) -> Result<Self, NoMemory> {
        let mut rest = self.like_this();
        // Copied before it is cut off: without memory nothing has changed.
        rest.extend(&self.as_slice()[at..])?;
        self.truncate(at);
        Ok(rest)
    }

    /// A copy in the same kind of memory.
    pub(crate) fn duplicate(&self) -> Result<Self, NoMemory> {
        let mut copy = self.like_this();
        copy.extend(self.as_slice())?;
        Ok(copy)
    }

    /// Forgets the contents, and gives the memory back.
    pub(crate) fn give_back(&mut self) {
        self.len = 0;
        self.release();
    }

    fn release(&mut self) {
        // To its lender: memory of malloc must not go to the program's `free`.
        if self.room > 0 {
            // SAFETY: it came from these functions and is not used again.
            unsafe { (self.lender.free)(self.lender.opaque, self.start.as_ptr().cast()) };
            self.room = 0;
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.release();
    }
}

/// The last bytes put out by calls before this one: a ring.
pub(crate) struct Window {
    pub(crate) bytes: Bytes,
    /// 0 until it is used.
    pub(crate) size: usize,
    pub(crate) have: usize,
    pub(crate) next: usize,
    /// Distances that may lead into it.
    pub(crate) distance_max: usize,
}

impl Window {
    /// Appends output; false without memory for it.
    pub(crate) fn put(&mut self, out: &[u8], bits: u32) -> bool {
        // At the first output that a later call may refer to: most streams are inflated in one.
        if self.size == 0 {
            let size = 1 << bits;
            if self.bytes.set_len(size).is_err() {
                return false;
            }
            (self.size, self.have, self.next) = (size, 0, 0);
        }
        let ring = self.bytes.as_mut_slice();
        // All of the old contents are out of reach.
        if out.len() >= self.size {
            ring[..self.size].copy_from_slice(&out[out.len() - self.size..]);
            (self.next, self.have) = (0, self.size);
            return true;
        }
        let first = out.len().min(self.size - self.next);
        ring[self.next..self.next + first].copy_from_slice(&out[..first]);
        let rest = &out[first..];
        if rest.is_empty() {
            self.next += first;
            if self.next == self.size {
                self.next = 0;
            }
            self.have = self.size.min(self.have + first);
        } else {
            ring[..rest.len()].copy_from_slice(rest);
            (self.next, self.have) = (rest.len(), self.size);
        }
        true
    }

    /// True where a match at this distance, with `made` bytes put out since, begins inside it.
    pub(crate) fn reaches(&self, distance: usize, made: usize) -> bool {
        // What was put out since lies between the window's end and the match.
        distance - made <= self.have && distance <= self.distance_max
    }

    /// Its contents, oldest first, in two parts.
    pub(crate) fn contents(&self) -> (&[u8], &[u8]) {
        if self.have == 0 {
            return (&[], &[]);
        }
        let ring = self.bytes.as_slice();
        (&ring[self.next..self.have], &ring[..self.next])
    }
}

const ROOM_MIN: usize = 512;
const GROWTH_BYTES_MAX: usize = 96 << 10;
