//! The three requests to the loop driver that [`super`] makes.
//!
//! Why here: no crate offers them safely, and `unsafe` must stay in a file that holds nothing else.
//! Must stay true: the structs have the kernel's layout (`include/uapi/linux/loop.h`), which the sizes below check.
#![allow(unsafe_code)] // the kernel's C surface: ioctl(2) takes a request number and an untyped argument

use rustix::io::Result;
use rustix::ioctl::{IntegerSetter, NoArg, Setter, ioctl};
use std::os::fd::AsFd;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LoopInfo {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) rdevice: u64,
    pub(super) offset: u64,
    pub(super) size_limit: u64,
    pub(super) number: u32,
    pub(super) encrypt_type: u32,
    pub(super) encrypt_key_size: u32,
    pub(super) flags: u32,
    pub(super) file_name: [u8; 64],
    pub(super) crypt_name: [u8; 64],
    pub(super) encrypt_key: [u8; 32],
    pub(super) init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LoopConfig {
    pub(super) fd: u32,
    pub(super) block_size: u32,
    pub(super) info: LoopInfo,
    pub(super) reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

impl LoopConfig {
    pub(super) fn new(fd: u32, block_size: u32, flags: u32) -> Self {
        Self {
            fd,
            block_size,
            info: LoopInfo {
                device: 0,
                inode: 0,
                rdevice: 0,
                offset: 0,
                size_limit: 0,
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                flags,
                file_name: [0; 64],
                crypt_name: [0; 64],
                encrypt_key: [0; 32],
                init: [0; 2],
            },
            reserved: [0; 8],
        }
    }
}

/// Asks `/dev/loop-control` for the number of a device that was unused a moment ago.
pub(super) fn get_free(control: impl AsFd) -> Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number that is not negative.
    unsafe { ioctl(control, GetFree) }
}

/// Connects a loop device to a file, settings included, in one step.
pub(super) fn configure(device: impl AsFd, config: LoopConfig) -> Result<()> {
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which `LoopConfig` is, byte for byte.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

/// Disconnects a loop device; one that is in use goes when its last user closes it.
pub(super) fn clear(device: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

/// Switches direct I/O on or off.
pub(super) fn set_direct_io(device: impl AsFd, on: bool) -> Result<()> {
    // SAFETY: LOOP_SET_DIRECT_IO takes an integer in the place of a pointer.
    unsafe {
        ioctl(
            device,
            IntegerSetter::<LOOP_SET_DIRECT_IO>::new_usize(on.into()),
        )
    }
}

/// `LOOP_CTL_GET_FREE`: its answer is the return value, which none of the crate's patterns gives.
struct GetFree;

// SAFETY: the request number is a constant of the kernel's interface, it reads and writes no memory of ours, and its
// return value is taken only where the call succeeded.
unsafe impl rustix::ioctl::Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> rustix::ioctl::Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        out: rustix::ioctl::IoctlOutput,
        _pointer: *mut std::ffi::c_void,
    ) -> Result<u32> {
        u32::try_from(out).map_err(|_| rustix::io::Errno::RANGE)
    }
}

const LOOP_CLR_FD: rustix::ioctl::Opcode = 0x4C01;
const LOOP_SET_DIRECT_IO: rustix::ioctl::Opcode = 0x4C08;
const LOOP_CONFIGURE: rustix::ioctl::Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: rustix::ioctl::Opcode = 0x4C82;
