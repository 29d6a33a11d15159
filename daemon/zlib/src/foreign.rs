//! Calls of functions that the program gave (`zalloc`, and the two of `inflateBack`), which may
//! throw.
//!
//! ```text
//!  program ──► deflate ──► zalloc throws      C++: an allocator in a class, say
//!                             │ held here; to its caller the function returned 0
//!  program ◄── thrown on ◄────┘ once all of the call is undone as without memory
//! ```
//!
//! Why here: an exception that passes the frames of this library, or of the base library, would
//! end the process: Rust can neither catch it nor let it pass a C function of its own. zlib's
//! frames let it pass. So a frame with a personality of its own catches it on x86-64, and [`go_on`]
//! throws it on at the border. On other processors it ends the process.
//!
//! Must stay true: while an exception is held, no function of the program is called. Exceptions
//! that cannot be caught (`pthread_cancel`) pass on. Source: Itanium C++ ABI, exception handling,
//! level I.

use libc::c_void;
use std::cell::Cell;
use std::ptr;

thread_local! {
    static HELD: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
}

/// True while an exception of the program waits for the border.
pub(crate) fn is_held() -> bool {
    HELD.try_with(|held| !held.get().is_null()).unwrap_or(false)
}

/// Calls a function of the program with up to three words; 0 where it threw, or an exception is
/// held.
///
/// # Safety
/// The address is of a function that takes such words and returns one; its contract holds.
pub(crate) unsafe fn call(function: *const c_void, words: [usize; 3]) -> usize {
    if is_held() {
        return 0;
    }
    let [first, second, third] = words;
    // SAFETY: the caller's promise.
    unsafe { caught(first, second, third, function) }
}

/// Throws the held exception on, if there is one. Returns only without.
pub(crate) fn go_on() {
    let held = HELD.try_with(|held| held.replace(ptr::null_mut()));
    let exception = held.unwrap_or(ptr::null_mut());
    if !exception.is_null() {
        throw(exception);
    }
}

#[cfg(target_arch = "x86_64")]
fn throw(exception: *mut c_void) {
    // SAFETY: it was thrown, and no handler has begun with it.
    unsafe { _Unwind_RaiseException(exception) };
    // No frame of the program catches it: C++ would end the process here too.
    std::process::abort();
}

#[cfg(not(target_arch = "x86_64"))]
fn throw(_exception: *mut c_void) {}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn caught(first: usize, second: usize, third: usize, function: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    let function: extern "C" fn(usize, usize, usize) -> usize =
        unsafe { std::mem::transmute(function) };
    function(first, second, third)
}

#[cfg(target_arch = "x86_64")]
use x86_64::{_Unwind_RaiseException, sidecore_z_caught as caught};

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::HELD;
    use libc::{c_int, c_void};
    use std::arch::global_asm;

    // Words and function as the C convention passes them; the fourth is the function. Behind the
    // call stands the place at which an exception arrives, itself in rax.
    global_asm!(
        ".pushsection .text.sidecore_z_caught,\"ax\",@progbits",
        ".hidden sidecore_z_caught",
        ".globl sidecore_z_caught",
        ".type sidecore_z_caught,@function",
        "sidecore_z_caught:",
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call rcx",
        "2:",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_adjust_cfa_offset 8",
        ".hidden sidecore_z_arrived",
        ".globl sidecore_z_arrived",
        "sidecore_z_arrived:",
        "mov rdi, rax",
        "call {hold}",
        "xor eax, eax",
        "jmp 2b",
        ".cfi_endproc",
        ".size sidecore_z_caught, . - sidecore_z_caught",
        ".popsection",
        personality = sym personality,
        hold = sym hold,
    );

    unsafe extern "C" {
        pub(super) fn sidecore_z_caught(
            first: usize,
            second: usize,
            third: usize,
            function: *const c_void,
        ) -> usize;
        static sidecore_z_arrived: u8;
        fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
        fn _Unwind_SetIP(context: *mut c_void, address: usize);
    }

    unsafe extern "C-unwind" {
        pub(super) fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
    }

    extern "C" fn hold(exception: *mut c_void) {
        // A thread that is ending has no room for it any more; what it frees then seldom throws.
        if HELD.try_with(|held| held.set(exception)).is_err() {
            std::process::abort();
        }
    }

    /// Asked by the unwinder for the frame of `sidecore_z_caught`: it catches everything.
    extern "C" fn personality(
        version: c_int,
        actions: c_int,
        _class: u64,
        exception: *mut c_void,
        context: *mut c_void,
    ) -> c_int {
        if version != 1 {
            return FATAL;
        }
        if actions & SEARCH != 0 {
            return FOUND;
        }
        if actions & FORCED != 0 {
            return CONTINUE;
        }
        // SAFETY: the context that the unwinder passes, its registers, and a place of this frame.
        unsafe {
            _Unwind_SetGR(context, RAX, exception as usize);
            _Unwind_SetIP(context, &raw const sidecore_z_arrived as usize);
        }
        INSTALL
    }

    const SEARCH: c_int = 1;
    const FORCED: c_int = 8;
    const FATAL: c_int = 3;
    const FOUND: c_int = 6;
    const INSTALL: c_int = 7;
    const CONTINUE: c_int = 8;
    /// The register's number in DWARF (System V ABI, AMD64, figure 3.36).
    const RAX: c_int = 0;
}
