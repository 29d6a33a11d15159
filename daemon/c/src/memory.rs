//! Buffers: their memory, and the move of outputs out of an arena whose daemon has ended.
//!
//! Must stay true: a buffer in C may be copied, so the set of used stretches is kept here: a
//! stretch is in use from [`Arena::take`] to the first [`free`] of any copy. An arena lives until
//! its client and all of its buffers are freed.

use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_daemon::client::{Attachment, Stretch};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// `struct sidecore_buffer`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawBuffer {
    pub(crate) data: *mut c_void,
    pub(crate) bytes: usize,
    own: c_int,
    offset: u64,
    /// The arena, of which each stretch that is taken has a reference.
    home: *const Arena,
}

/// The stretches of an arena that are taken, by their offsets.
#[derive(Debug, Default)]
pub(crate) struct Arena(Mutex<HashMap<u64, Stretch>>);

impl Arena {
    /// A buffer in the arena. `None` where there is no room.
    pub(crate) fn take(
        arena: &Arc<Self>,
        attachment: &Attachment,
        bytes: usize,
    ) -> Option<RawBuffer> {
        let (start, arena_bytes) = attachment.arena();
        // Sizes near the greatest would come round in the arena's own sums.
        if bytes.to_u64() > arena_bytes {
            return None;
        }
        let stretch = attachment.stretch(bytes)?;
        let offset = stretch.offset();
        arena.stretches().insert(offset, stretch);
        Some(RawBuffer {
            data: start.wrapping_add(offset.to_usize()).cast(),
            bytes,
            own: 0,
            offset,
            home: Arc::into_raw(Arc::clone(arena)),
        })
    }

    fn stretches(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Stretch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RawBuffer {
    /// No buffer.
    pub(crate) const NONE: Self = Self {
        data: std::ptr::null_mut(),
        bytes: 0,
        own: 0,
        offset: 0,
        home: std::ptr::null(),
    };

    /// Offset of a part of it in the arena of that attachment. `None` where it is not in there.
    pub(crate) fn range(
        &self,
        attachment: &Attachment,
        offset: usize,
        bytes: usize,
    ) -> Option<(u64, u64)> {
        let (start, arena_bytes) = attachment.arena();
        let (offset, bytes) = (offset.to_u64(), bytes.to_u64());
        let data = self.data.addr().checked_sub(start.addr())?.to_u64();
        let at = data.checked_add(offset)?;
        let end = at.checked_add(bytes)?;
        (self.own == 0 && end <= arena_bytes).then_some((at, bytes))
    }
}

/// See `sidecore_free`.
///
/// # Safety
/// The buffer was made by [`Arena::take`], or is a copy of such a one, or zeros; of copies, one is
/// freed before the arena's last reference goes.
pub(crate) unsafe fn free(buffer: &mut RawBuffer) {
    let freed = std::mem::replace(buffer, RawBuffer::NONE);
    if freed.own != 0 {
        // SAFETY: from malloc, by `rescue`.
        unsafe { libc::free(freed.data) };
    }
    if freed.home.is_null() {
        return;
    }
    // SAFETY: a stretch that is taken has a reference, so the arena is alive for its first free;
    // for a copy's, the header asks for the client or another buffer to be there.
    let arena = unsafe { &*freed.home };
    let stretch = arena.stretches().remove(&freed.offset);
    // None for a copy of a buffer that is freed already: its reference is gone, too.
    if stretch.is_some() {
        drop(stretch);
        // SAFETY: the reference that `take` made for this stretch.
        drop(unsafe { Arc::from_raw(freed.home) });
    }
}

/// Moves outputs to memory of this process alone. False where there is none: nothing has moved.
///
/// # Safety
/// The pointers that are not NULL are of buffers as in [`free`].
pub(crate) unsafe fn rescue(outputs: &[*mut RawBuffer]) -> bool {
    let mut moved: Vec<(*mut RawBuffer, *mut c_void)> = Vec::new();
    for &output in outputs {
        // SAFETY: NULL or a buffer.
        let Some(buffer) = (unsafe { output.as_ref() }) else {
            continue;
        };
        let is_known = moved.iter().any(|&(other, _)| std::ptr::eq(other, output));
        if buffer.own != 0 || buffer.data.is_null() || is_known {
            continue;
        }
        // SAFETY: any size is allowed.
        // One byte at least: malloc may answer NULL to a request for none.
        let memory = unsafe { libc::malloc(buffer.bytes.max(1)) };
        if memory.is_null() {
            for (_, memory) in moved {
                // SAFETY: from malloc just now.
                unsafe { libc::free(memory) };
            }
            return false;
        }
        moved.push((output, memory));
    }
    for (output, memory) in moved {
        // SAFETY: a buffer, as above, which no other code uses now.
        let buffer = unsafe { &mut *output };
        // SAFETY: it has the requested length; malloc's bytes may be anything, so they are set
        // first.
        let target = unsafe {
            memory.cast::<u8>().write_bytes(0, buffer.bytes);
            std::slice::from_raw_parts_mut(memory.cast::<u8>(), buffer.bytes)
        };
        // SAFETY: alive, since this buffer is.
        if let Some(arena) = unsafe { buffer.home.as_ref() }
            && let Some(stretch) = arena.stretches().get(&buffer.offset)
        {
            stretch.copy_racing(target);
        }
        buffer.data = memory;
        buffer.own = 1;
    }
    true
}
