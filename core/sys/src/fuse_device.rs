//! Requests to the FUSE device: a second descriptor of a session, and files that the kernel reads
//! by itself.
//!
//! Why here: no crate offers them safely, and the kernel's C surface is untyped.
//! Must stay true: the struct has the kernel's layout (`include/uapi/linux/fuse.h`), which the size
//! below checks.
#![allow(unsafe_code)] // the kernel's C surface: ioctl(2) takes an untyped argument

use rustix::io::Result;
use rustix::ioctl::{Setter, ioctl};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Connects `device`, an open `/dev/fuse` that belongs to no session yet, to the session of
/// `session`. Requests are then spread over both.
///
/// # Errors
/// The driver's error.
pub fn join(device: impl AsFd, session: BorrowedFd<'_>) -> Result<()> {
    let fd = session.as_raw_fd() as u32;
    // SAFETY: FUSE_DEV_IOC_CLONE reads one 32-bit descriptor number, which a borrow keeps open.
    unsafe { ioctl(device, Setter::<FUSE_DEV_IOC_CLONE, u32>::new(fd)) }
}

/// Registers a file that the kernel may read in place of the session; gives its number, for the
/// answers to opens. Needs `CAP_SYS_ADMIN`.
///
/// # Errors
/// The driver's error.
pub fn register_backing(device: impl AsFd, file: BorrowedFd<'_>) -> Result<u32> {
    let map = BackingMap {
        fd: file.as_raw_fd(),
        flags: 0,
        padding: 0,
    };
    // SAFETY: FUSE_DEV_IOC_BACKING_OPEN reads one `struct fuse_backing_map`, which `BackingMap` is,
    // byte for byte, and returns a number that is not negative.
    unsafe { ioctl(device, Register(map)) }
}

/// Takes a registered file back. Opens that use it go on.
///
/// # Errors
/// The driver's error.
pub fn release_backing(device: impl AsFd, number: u32) -> Result<()> {
    // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads one 32-bit number.
    unsafe {
        ioctl(
            device,
            Setter::<FUSE_DEV_IOC_BACKING_CLOSE, u32>::new(number),
        )
    }
}

/// `struct fuse_backing_map`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

const _: () = assert!(size_of::<BackingMap>() == 16);

/// `FUSE_DEV_IOC_BACKING_OPEN`: reads a struct and answers by its return value, which none of the
/// crate's patterns does.
struct Register(BackingMap);

// SAFETY: the request number is a constant of the kernel's interface, it reads the one struct that
// the pointer leads to, which lives as long as `self`, and its return value is taken only where the
// call succeeded.
unsafe impl rustix::ioctl::Ioctl for Register {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> rustix::ioctl::Opcode {
        FUSE_DEV_IOC_BACKING_OPEN
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        out: rustix::ioctl::IoctlOutput,
        _pointer: *mut std::ffi::c_void,
    ) -> Result<u32> {
        u32::try_from(out).map_err(|_| rustix::io::Errno::RANGE)
    }
}

const FUSE_DEV_IOC_CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
const FUSE_DEV_IOC_BACKING_OPEN: rustix::ioctl::Opcode =
    rustix::ioctl::opcode::write::<BackingMap>(229, 1);
const FUSE_DEV_IOC_BACKING_CLOSE: rustix::ioctl::Opcode =
    rustix::ioctl::opcode::write::<u32>(229, 2);
