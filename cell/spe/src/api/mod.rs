//! libspe2's functions.
//!
//! - this file: contexts, programs, gangs, memory, information.
//! - `run`: running, stop information, callbacks.
//! - `mailbox`: mailboxes and signals.
//! - `dma`: proxy commands and multisource synchronisation.
//! - `event`: event handlers.
//!
//! Must stay true: a null context fails with ESRCH; errno is set where a call fails and only there.

mod dma;
mod event;
mod mailbox;
mod run;

pub use dma::*;
pub use event::*;
pub use mailbox::*;
pub use run::*;

use crate::area::Kind;
use crate::context::Context;
use crate::engine;
use crate::image::Image;
use crate::store::STORE_BYTES;
use sidecore_bare::text::printable;
use sidecore_bare::width::ToUsize;
use sidecore_spu::Executable;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// `spe_program_handle_t`.
#[repr(C)]
#[derive(Debug)]
pub struct ProgramHandle {
    handle_size: c_uint,
    elf_image: *mut c_void,
    toe_shadow: *mut c_void,
}

/// `struct spe_context`: libspe2's fields, of which programs use the pointer alone.
#[repr(C)]
#[derive(Debug)]
pub struct SpeContext {
    handle: ProgramHandle,
    base_private: *const c_void,
    event_private: *const c_void,
    own: Arc<Context>,
    gang: *mut SpeGang,
    /// True where it was created with an affinity.
    placed: bool,
    /// Set once another context was placed next to this one.
    has_neighbour: AtomicBool,
}

/// `struct spe_gang_context`.
#[repr(C)]
#[derive(Debug)]
pub struct SpeGang {
    base_private: *const c_void,
    event_private: *const c_void,
    members: AtomicUsize,
    /// Set once a member ran: its places are fixed then.
    ran: AtomicBool,
    /// Members with an affinity: each needs an engine next to the others.
    placed: AtomicUsize,
    /// Set by the one member that wants to be near memory.
    near_memory: AtomicBool,
}

/// A program read from a file: the handle comes first, so that its address is this one's.
#[repr(C)]
struct OpenImage {
    handle: ProgramHandle,
    bytes: Vec<u8>,
}

const FLAG_MAP_PS: c_uint = 0x40;
const FLAG_ISOLATE: c_uint = 0x80;
const FLAG_ISOLATE_EMULATE: c_uint = 0x100;
const FLAG_EVENTS: c_uint = 0x1000;
const FLAG_NEAR_MEMORY: c_uint = 0x2000;
const FLAGS: c_uint =
    0x10 | 0x20 | FLAG_MAP_PS | FLAG_ISOLATE_EMULATE | FLAG_EVENTS | FLAG_NEAR_MEMORY | 0x4000;
/// Bytes of a program's file at most: a store and as much for sections that are not loaded,
/// generously.
const IMAGE_MAX: u64 = 64 << 20;
/// Bytes of a handle.
const HANDLE_BYTES: c_uint = 24;
const _: () = assert!(size_of::<ProgramHandle>() == 24);

/// Runs a call: its value, or `failed` with errno set. A panic, which would be a bug, is EFAULT.
fn call<R>(failed: R, body: impl FnOnce() -> Result<R, c_int>) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(number)) => {
            set_errno(number);
            failed
        }
        Err(_) => {
            // Unwinding into C is undefined behaviour.
            set_errno(libc::EFAULT);
            failed
        }
    }
}

fn set_errno(number: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = number };
}

/// A count as C's callers get it; none of ours comes near the limit.
fn number(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

fn number_of(error: &std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The context that a pointer names.
///
/// # Safety
/// NULL, or a context that was not destroyed.
unsafe fn context<'a>(spe: *const SpeContext) -> Result<&'a Arc<Context>, c_int> {
    // SAFETY: the caller's promise.
    unsafe { spe.as_ref() }
        .map(|spe| &spe.own)
        .ok_or(libc::ESRCH)
}

/// `spe_context_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_context_create(flags: c_uint, gang: *mut SpeGang) -> *mut SpeContext {
    call(std::ptr::null_mut(), || create(flags, gang, false))
}

/// `spe_context_create_affinity`: any engine is as near as another, but a request that the hardware
/// could not place is refused as there (EEXIST: the place is taken; ESRCH: another gang's
/// neighbour).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_context_create_affinity(
    flags: c_uint,
    neighbour: *mut SpeContext,
    gang: *mut SpeGang,
) -> *mut SpeContext {
    call(std::ptr::null_mut(), || {
        if gang.is_null() {
            return Err(libc::ESRCH);
        }
        // SAFETY: NULL or a context, as the header asks for.
        let neighbour = unsafe { neighbour.as_ref() };
        if neighbour.is_some_and(|neighbour| neighbour.gang != gang) {
            return Err(libc::ESRCH);
        }
        // SAFETY: a gang, as the header asks for.
        let SpeGang {
            near_memory,
            placed,
            ran,
            ..
        } = unsafe { &*gang };
        let wants_memory = flags & FLAG_NEAR_MEMORY != 0;
        // Relaxed: flags alone; nothing else is read by them.
        if ran.load(Ordering::Relaxed) {
            return Err(libc::EBUSY);
        }
        let taken = neighbour.is_some_and(|beside| beside.has_neighbour.load(Ordering::Relaxed));
        let affine = neighbour.is_some() || wants_memory;
        // Each affine member has an engine of its own; one more could not be placed.
        let full = affine && placed.load(Ordering::Relaxed) >= engine::count();
        if taken || full || wants_memory && near_memory.load(Ordering::Relaxed) {
            return Err(libc::EEXIST);
        }
        let spe = create(flags, gang, affine)?;
        // Behind the creation, so that a failed one takes no place.
        placed.fetch_add(usize::from(affine), Ordering::Relaxed);
        if wants_memory {
            near_memory.store(true, Ordering::Relaxed);
        }
        if let Some(neighbour) = neighbour {
            neighbour.has_neighbour.store(true, Ordering::Relaxed);
        }
        Ok(spe)
    })
}

fn create(flags: c_uint, gang: *mut SpeGang, placed: bool) -> Result<*mut SpeContext, c_int> {
    // Emulated isolation isolates nothing there either: an ordinary context.
    if flags & FLAG_ISOLATE != 0 {
        return Err(libc::ENODEV);
    }
    if flags & !FLAGS != 0 {
        return Err(libc::EINVAL);
    }
    // Each time: the program may have installed handlers since the last context.
    crate::fault::install();
    let own = Context::new(flags).map_err(|error| number_of(&error))?;
    // SAFETY: NULL or a gang, as the header asks for.
    if let Some(gang) = unsafe { gang.as_ref() } {
        // Relaxed: a count that only the gang's destruction compares with 0.
        gang.members.fetch_add(1, Ordering::Relaxed);
    }
    Ok(Box::into_raw(Box::new(SpeContext {
        handle: ProgramHandle {
            handle_size: 0,
            elf_image: std::ptr::null_mut(),
            toe_shadow: std::ptr::null_mut(),
        },
        base_private: std::ptr::null(),
        event_private: std::ptr::null(),
        own,
        gang,
        placed,
        has_neighbour: AtomicBool::new(false),
    })))
}

/// `spe_context_destroy`: EAGAIN while the context runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_context_destroy(spe: *mut SpeContext) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        // Its engine still has the store; freeing it would pull the stack away.
        if unsafe { context(spe) }?.is_running() {
            return Err(libc::EAGAIN);
        }
        // SAFETY: made by `create`; the caller gives it up.
        let spe = unsafe { Box::from_raw(spe) };
        // SAFETY: NULL or a gang that has this member.
        if let Some(gang) = unsafe { spe.gang.as_ref() } {
            gang.members.fetch_sub(1, Ordering::Relaxed);
            if spe.placed {
                gang.placed.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(0)
    })
}

/// `spe_gang_context_create`.
#[unsafe(no_mangle)]
pub extern "C" fn spe_gang_context_create(flags: c_uint) -> *mut SpeGang {
    call(std::ptr::null_mut(), || {
        if flags != 0 {
            return Err(libc::EINVAL);
        }
        Ok(Box::into_raw(Box::new(SpeGang {
            base_private: std::ptr::null(),
            event_private: std::ptr::null(),
            members: AtomicUsize::new(0),
            ran: AtomicBool::new(false),
            placed: AtomicUsize::new(0),
            near_memory: AtomicBool::new(false),
        })))
    })
}

/// `spe_gang_context_destroy`: EBUSY while contexts of it are alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_gang_context_destroy(gang: *mut SpeGang) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a gang, as the header asks for.
        let members = unsafe { gang.as_ref() }.ok_or(libc::ESRCH)?;
        // Members have a pointer to it.
        if members.members.load(Ordering::Relaxed) > 0 {
            return Err(libc::EBUSY);
        }
        // SAFETY: made by the call above; the caller gives it up.
        drop(unsafe { Box::from_raw(gang) });
        Ok(0)
    })
}

/// `spe_image_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_image_open(name: *const c_char) -> *mut ProgramHandle {
    call(std::ptr::null_mut(), || {
        if name.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: a C string, as the header asks for.
        let name = unsafe { CStr::from_ptr(name) };
        let path = OsStr::from_bytes(name.to_bytes());
        let io = |error: std::io::Error| number_of(&error);
        let file = File::open(path).map_err(io)?;
        let about = file.metadata().map_err(io)?;
        // libspe2 asks for the right to execute, as exec(2) would; a folder has that bit, too.
        if about.mode() & 0o111 == 0 || !about.is_file() {
            return Err(libc::EACCES);
        }
        let mut bytes = Vec::new();
        // A device or a growing file must not fill the memory; a program that long is refused by
        // `parse`.
        file.take(IMAGE_MAX).read_to_end(&mut bytes).map_err(io)?;
        let name = path.to_string_lossy();
        if Executable::is_spus(&bytes) {
            Executable::parse(&bytes).map_err(|error| refuse(&name, &error))?;
        } else {
            Image::parse(&bytes).map_err(|error| refuse(&name, &error))?;
        }
        let handle = ProgramHandle {
            handle_size: HANDLE_BYTES,
            elf_image: bytes.as_mut_ptr().cast(),
            toe_shadow: std::ptr::null_mut(),
        };
        Ok(Box::into_raw(Box::new(OpenImage { handle, bytes })).cast())
    })
}

/// Says on the standard error why a program does not run here; the error number.
fn refuse(name: &str, error: &impl std::fmt::Display) -> c_int {
    let text = format!("libspe2: {name}: {error}");
    eprintln!("{}", printable(&text));
    libc::EINVAL
}

/// `spe_image_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_image_close(program: *mut ProgramHandle) -> c_int {
    call(-1, || {
        if program.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: made by `spe_image_open`, as the header asks for.
        drop(unsafe { Box::from_raw(program.cast::<OpenImage>()) });
        Ok(0)
    })
}

/// `spe_program_load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_program_load(
    spe: *mut SpeContext,
    program: *mut ProgramHandle,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        // SAFETY: NULL or a handle, as the header asks for.
        let handle = unsafe { program.as_ref() }.ok_or(libc::EINVAL)?;
        if handle.elf_image.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: an ELF file of that extent, embedded or opened.
        // Handles of embedded programs have a pointer and no length.
        let bytes = unsafe {
            let bytes = elf_bytes(handle.elf_image.cast());
            std::slice::from_raw_parts(handle.elf_image.cast_const().cast::<u8>(), bytes)
        };
        let refuse = |error: &dyn std::fmt::Display| refuse("an embedded program", &error);
        // Each load copies: the file's bytes may be shared by contexts, and stay as they are.
        let loaded = if Executable::is_spus(bytes) {
            let read = Executable::parse(bytes).map_err(|error| refuse(&error))?;
            own.load_spus(&read)
        } else {
            let read = Image::parse(bytes).and_then(|image| own.load(&image));
            read.map_err(|error| refuse(&error))?
        };
        if !loaded {
            return Err(libc::EBUSY);
        }
        // SAFETY: the context of above.
        unsafe { (*spe).handle = copy_of(handle) };
        Ok(0)
    })
}

fn copy_of(handle: &ProgramHandle) -> ProgramHandle {
    ProgramHandle {
        handle_size: handle.handle_size,
        elf_image: handle.elf_image,
        toe_shadow: handle.toe_shadow,
    }
}

/// Extent of an ELF file in memory, by its headers: handles do not carry it.
///
/// # Safety
/// At least a 32-bit ELF header is there, and its fields are true.
unsafe fn elf_bytes(image: *const u8) -> usize {
    const HEADER: usize = 52;
    // SAFETY: the caller's promise.
    let header = unsafe { std::slice::from_raw_parts(image, HEADER) };
    let big = Executable::is_spus(header);
    let number = |bytes: &[u8]| {
        let add = |value: usize, byte: &u8| value << 8 | usize::from(*byte);
        if big {
            bytes.iter().fold(0, add)
        } else {
            bytes.iter().rev().fold(0, add)
        }
    };
    // Of other files only the identification and the machine are looked at.
    if !big && (header[4] != 1 || number(&header[18..20]) != 62) {
        return HEADER;
    }
    let table = number(&header[28..32]);
    let (each, count) = (number(&header[42..44]), number(&header[44..46]));
    // Sections are not loaded: what a program needs lies within its segments.
    let mut end = (table + each * count).max(HEADER);
    for index in 0..count {
        // SAFETY: the caller's promise covers the table that the header names.
        let entry = unsafe { std::slice::from_raw_parts(image.add(table + index * each), 20) };
        end = end.max(number(&entry[4..8]) + number(&entry[16..20]));
    }
    end
}

/// `spe_ls_area_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_ls_area_get(spe: *mut SpeContext) -> *mut c_void {
    call(std::ptr::null_mut(), || {
        // SAFETY: NULL or a context, as the header asks for.
        let view = unsafe { context(spe) }?.store.view();
        view.map(|view| view as *mut c_void)
            .map_err(|error| number_of(&error))
    })
}

/// `spe_ls_size_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_ls_size_get(spe: *mut SpeContext) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        unsafe { context(spe) }.map(|_| number(STORE_BYTES))
    })
}

/// `spe_ps_area_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_ps_area_get(spe: *mut SpeContext, area: c_uint) -> *mut c_void {
    call(std::ptr::null_mut(), || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        let kind = *Kind::ALL.get(area.to_usize()).ok_or(libc::EINVAL)?;
        if own.flags & FLAG_MAP_PS == 0 {
            return Err(libc::EACCES);
        }
        let address = own.area(kind).map_err(|error| number_of(&error))?;
        Ok(address as *mut c_void)
    })
}

/// `spe_cpu_info_get`.
#[unsafe(no_mangle)]
pub extern "C" fn spe_cpu_info_get(asked: c_int, node: c_int) -> c_int {
    call(-1, || match (asked, node) {
        // One node: no engine is nearer than another.
        (1, -1) => Ok(1),
        (2 | 3, -1 | 0) => Ok(number(engine::count())),
        // Double precision is fast here, as on the later Cell processor.
        (4, -1 | 0) => Ok(2),
        _ => Err(libc::EINVAL),
    })
}

#[cfg(test)]
mod tests;
