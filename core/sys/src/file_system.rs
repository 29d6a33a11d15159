//! Requests to mounted file systems and block devices that are about to lose their backing.
//!
//! Why here: no crate offers them safely, and the kernel's C surface is untyped.
//! Must stay true: each request reads one 32-bit number, which every kernel since 4.15 takes.
//! Source: `fs/ext4/ioctl.c`, `fs/xfs/xfs_fsops.c` and `block/ioctl.c` of Linux.
#![allow(unsafe_code)] // the kernel's C surface: ioctl(2) takes an untyped argument

use rustix::io::Result;
use rustix::ioctl::{Setter, ioctl, opcode};
use std::os::fd::AsFd;

/// Writes all pending data of a file system to disk (`root` is any file in it), and has every later
/// request fail with EIO; no write comes between the two. ext4, XFS and f2fs can do this. Needs
/// `CAP_SYS_ADMIN`.
///
/// # Errors
/// ENOTTY and the like where the file system cannot do it, or why it could not write; it goes on
/// then.
pub fn shut_down(root: impl AsFd) -> Result<()> {
    // SAFETY: FS_IOC_SHUTDOWN (EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN) reads one 32-bit number.
    unsafe { ioctl(root, Setter::<FS_IOC_SHUTDOWN, u32>::new(FLUSH_FIRST)) }
}

/// Has a block device refuse writes from now on, or take them again: a loop device would refuse
/// those of its next user, too. Needs `CAP_SYS_ADMIN`.
///
/// # Errors
/// The driver's.
pub fn set_read_only(device: impl AsFd, on: bool) -> Result<()> {
    // SAFETY: BLKROSET reads one `int`.
    unsafe { ioctl(device, Setter::<BLKROSET, i32>::new(i32::from(on))) }
}

const FS_IOC_SHUTDOWN: rustix::ioctl::Opcode = opcode::read::<u32>(b'X', 125);
const BLKROSET: rustix::ioctl::Opcode = opcode::none(0x12, 93);
/// `EXT4_GOING_FLAGS_DEFAULT`, `XFS_FSOP_GOING_FLAGS_DEFAULT`.
const FLUSH_FIRST: u32 = 0;
