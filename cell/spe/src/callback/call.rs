//! The parameters of a callback, and the way back of its result.
//!
//! Must stay true: no address of a program's leads out of its store.

use crate::store::{STORE_BYTES, STORE_MASK};
use crate::switch;
use sidecore_bare::width::{ToU64, ToUsize};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The parameters of one call, in the store: slots of 16 bytes.
pub(super) struct Call {
    store: *mut u8,
    /// Place of the first slot.
    slots: u32,
    pub(super) operation: u32,
    /// True where the program's words have the most significant byte first.
    big: bool,
}

impl Call {
    /// # Safety
    /// `store` is a store's view, as `spe_ls_area_get` gives it.
    pub(super) unsafe fn new(store: *mut c_void, place: c_uint) -> Call {
        let mut call = Call {
            store: store.cast(),
            slots: 0,
            operation: 0,
            big: BIG.get(),
        };
        // One word: the operation above, the slots' place below (libspe2's documentation).
        let message = call.word_at(place);
        call.operation = message >> 24;
        call.slots = message & 0xff_ffff & !15;
        call
    }

    pub(super) fn word_at(&self, place: u32) -> u32 {
        let place = within(place & !3);
        // SAFETY: aligned and inside the store.
        let word = unsafe { self.store.add(place).cast::<u32>().read_volatile() };
        self.ordered(word)
    }

    /// A word in the program's order of bytes, or back.
    fn ordered(&self, word: u32) -> u32 {
        if self.big { word.swap_bytes() } else { word }
    }

    pub(super) fn set_word_at(&self, place: u32, value: u32) {
        let (place, value) = (within(place & !3), self.ordered(value));
        // SAFETY: aligned and inside the store.
        unsafe { self.store.add(place).cast::<u32>().write_volatile(value) }
    }

    pub(super) fn word(&self, slot: u32) -> u32 {
        self.word_at(self.slots + 16 * slot)
    }

    pub(super) fn signed(&self, slot: u32) -> i32 {
        self.word(slot).cast_signed()
    }

    /// A slot that counts bytes or things.
    pub(super) fn size(&self, slot: u32) -> usize {
        self.word(slot).to_usize()
    }

    /// A slot that holds an address or a number of the host's, of two words.
    pub(super) fn wide(&self, slot: u32) -> usize {
        self.wide_at(self.slots + 16 * slot).to_usize()
    }

    /// Two words of the store as one number.
    pub(super) fn wide_at(&self, place: u32) -> u64 {
        // Two words even on hosts of 32 bits: the layout is the program's.
        let (first, second) = (self.word_at(place), self.word_at(place.wrapping_add(4)));
        let (lower, upper) = if self.big {
            (second, first)
        } else {
            (first, second)
        };
        u64::from(lower) | u64::from(upper) << 32
    }

    pub(super) fn set_wide(&self, value: usize) {
        let mut words = halves(value.to_u64());
        if self.big {
            words.reverse();
        }
        self.set_words(self.slots, &words);
    }

    /// Writes a number of 1, 2, 4 or 8 bytes in the program's order.
    pub(super) fn set_number_at(&self, place: u32, value: u64, bytes: usize) {
        let mut all = value.to_le_bytes();
        let part = &mut all[..bytes];
        if self.big {
            part.reverse();
        }
        self.set_bytes(place, part);
    }

    /// Writes bytes at a place, cut at the store's end.
    pub(super) fn set_bytes(&self, place: u32, bytes: &[u8]) {
        let (at, room) = self.part(place, bytes.len());
        // SAFETY: inside the store, and of our own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast::<u8>(), room) };
    }

    /// Writes words of the store from a place on.
    pub(super) fn set_words(&self, place: u32, values: &[u32]) {
        let mut place = place;
        for value in values {
            self.set_word_at(place, *value);
            place = place.wrapping_add(4);
        }
    }

    /// The place of the store that a slot names, and how many of `bytes` are behind it.
    pub(super) fn buffer(&self, slot: u32, bytes: usize) -> (*mut c_void, usize) {
        self.part(self.word(slot), bytes)
    }

    /// A place of the store and how many of `bytes` are behind it.
    pub(super) fn part(&self, place: u32, bytes: usize) -> (*mut c_void, usize) {
        let place = within(place);
        // SAFETY: inside the store.
        let at = unsafe { self.store.add(place) };
        (at.cast(), bytes.min(STORE_BYTES - place))
    }

    /// A text of the store; `None` for a null pointer or one without an end.
    pub(super) fn text(&self, slot: u32) -> Option<*const c_char> {
        let place = self.word(slot);
        let text = (place != 0).then(|| self.text_at(place)).flatten();
        text.map(|text| text.cast())
    }

    /// The bytes of a text at a place of the store, without its end; `None` for one without an end.
    pub(super) fn text_at(&self, place: u32) -> Option<*const [u8]> {
        let (at, bytes) = self.part(place, STORE_BYTES);
        // SAFETY: inside the store.
        let end = unsafe { libc::memchr(at, 0, bytes) };
        let start = at.cast_const().cast::<u8>();
        let len = end.addr().checked_sub(start.addr())?;
        Some(std::ptr::slice_from_raw_parts(start, len))
    }

    /// Gives the result and the error number back.
    pub(super) fn finish(&self, result: i64, error: i32) {
        self.set_words(self.slots, &halves(result.cast_unsigned()));
        self.set_error(error);
    }

    /// The error number's place is the last word of the first slot.
    pub(super) fn set_error(&self, error: i32) {
        self.set_word_at(self.slots + 12, error.cast_unsigned());
    }
}

/// Runs a handler on words that have the most significant byte first, where `big`.
pub(crate) fn in_order<R>(big: bool, handler: impl FnOnce() -> R) -> R {
    BIG.set(big);
    let result = handler();
    BIG.set(false);
    result
}

thread_local! {
    /// The order of bytes in the words of the program whose handler runs on this thread. A handler
    /// is given an address alone.
    static BIG: Cell<bool> = const { Cell::new(false) };
}

/// Offset of a place in the store: addresses wrap, as the hardware's limit register has it.
fn within(place: u32) -> usize {
    (u64::from(place) & STORE_MASK).to_usize()
}

/// A number of the host's as a program's two words, the lower one first.
pub(super) fn halves(value: u64) -> [u32; 2] {
    [low(value), low(value >> 32)]
}

/// The lower half of a number of the host's, for a program's word: times and sizes lose their upper
/// half, as in libspe2's own handlers.
pub(super) fn low(value: u64) -> u32 {
    switch::low(value)
}

/// A count of the C library's, which is -1 where it failed.
pub(super) fn count(value: isize) -> i64 {
    value as i64
}

/// A number that stands for something open, as the result of a call.
pub(super) fn number(value: usize) -> i64 {
    value.to_u64().cast_signed()
}

/// A length that is cut at the store's end, as the C library's `int`.
pub(super) fn length(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}

pub(super) fn set_errno(number: i32) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = number };
}

pub(super) fn errno() -> i32 {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Runs a call's work and gives its outcome back; `None`: not one that is served.
pub(super) fn answer(call: &Call, failed: i64, work: impl FnOnce() -> Option<i64>) -> c_int {
    set_errno(0);
    // errno is read at once: nothing else of this thread may call the C library first.
    match work() {
        Some(result) => call.finish(result, errno()),
        None => call.finish(failed, libc::ENOSYS),
    }
    0
}
