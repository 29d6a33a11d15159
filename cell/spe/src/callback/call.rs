//! The parameters of a callback, and the way back of its result.
//!
//! Must stay true: no address of a program's leads out of its store.

use crate::store::{STORE_BYTES, STORE_MASK};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The parameters of one call, in the store: slots of 16 bytes.
pub(super) struct Call {
    store: *mut u8,
    slots: usize,
    pub(super) operation: u32,
}

impl Call {
    /// # Safety
    /// `store` is a store's view, as `spe_ls_area_get` gives it.
    pub(super) unsafe fn new(store: *mut c_void, place: c_uint) -> Call {
        let mut call = Call {
            store: store.cast(),
            slots: 0,
            operation: 0,
        };
        let message = call.word_at(place as usize & !3);
        call.operation = message >> 24;
        call.slots = message as usize & 0xff_ffff & STORE_MASK as usize & !15;
        call
    }

    pub(super) fn word_at(&self, place: usize) -> u32 {
        let place = place & STORE_MASK as usize & !3;
        // SAFETY: aligned and inside the store.
        unsafe { self.store.add(place).cast::<u32>().read_volatile() }
    }

    pub(super) fn set_word_at(&self, place: usize, value: u32) {
        let place = place & STORE_MASK as usize & !3;
        // SAFETY: aligned and inside the store.
        unsafe { self.store.add(place).cast::<u32>().write_volatile(value) }
    }

    pub(super) fn word(&self, slot: usize) -> u32 {
        self.word_at(self.slots + 16 * slot)
    }

    pub(super) fn signed(&self, slot: usize) -> i32 {
        self.word(slot) as i32
    }

    pub(super) fn wide(&self, slot: usize) -> u64 {
        let place = self.slots + 16 * slot;
        u64::from(self.word_at(place)) | u64::from(self.word_at(place + 4)) << 32
    }

    pub(super) fn set_wide(&self, value: u64) {
        self.set_word_at(self.slots, value as u32);
        self.set_word_at(self.slots + 4, (value >> 32) as u32);
    }

    /// Writes words of the store from a place on.
    pub(super) fn set_words(&self, place: usize, values: &[u32]) {
        for (index, value) in values.iter().enumerate() {
            self.set_word_at(place.wrapping_add(4 * index), *value);
        }
    }

    /// Place of the first slot.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// The place of the store that a slot names, and how many of `bytes` are behind it.
    pub(super) fn buffer(&self, slot: usize, bytes: usize) -> (*mut c_void, usize) {
        self.part(self.word(slot), bytes)
    }

    /// A place of the store and how many of `bytes` are behind it.
    pub(super) fn part(&self, place: u32, bytes: usize) -> (*mut c_void, usize) {
        let place = place as usize & STORE_MASK as usize;
        // SAFETY: inside the store.
        let at = unsafe { self.store.add(place) };
        (at.cast(), bytes.min(STORE_BYTES - place))
    }

    /// A text of the store; `None` for a null pointer or one without an end.
    pub(super) fn text(&self, slot: usize) -> Option<*const c_char> {
        if self.word(slot) == 0 {
            return None;
        }
        let (at, bytes) = self.buffer(slot, STORE_BYTES);
        // SAFETY: inside the store.
        let end = unsafe { libc::memchr(at, 0, bytes) };
        (!end.is_null()).then_some(at.cast_const().cast())
    }

    /// Gives the result and the error number back.
    pub(super) fn finish(&self, result: i64, error: i32) {
        self.set_word_at(self.slots, result as u32);
        self.set_word_at(self.slots + 4, (result >> 32) as u32);
        self.set_word_at(self.slots + 12, error as u32);
    }
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
    match work() {
        Some(result) => call.finish(result, errno()),
        None => call.finish(failed, libc::ENOSYS),
    }
    0
}
