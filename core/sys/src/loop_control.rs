//! Requests to the loop driver: finding a free device, setting one up, taking it apart.
//!
//! Why here: no crate offers them safely, and the kernel's C surface is untyped.
//! Must stay true: the structs have the kernel's layout (`include/uapi/linux/loop.h`), which the
//! sizes below check.
#![allow(unsafe_code)] // the kernel's C surface: ioctl(2) takes an untyped argument

use rustix::io::Result;
use rustix::ioctl::{Getter, IntegerSetter, NoArg, Setter, ioctl};
use std::os::fd::AsFd;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct LoopInfo {
    /// Device of the backing file.
    device: u64,
    /// Inode of the backing file.
    inode: u64,
    /// Device number of the backing file, if it is one.
    rdevice: u64,
    /// First byte of the file that is the device.
    offset: u64,
    /// Bytes of the file that are the device; 0 for all.
    size_limit: u64,
    /// The loop device's number.
    number: u32,
    /// No longer used by kernels.
    encrypt_type: u32,
    /// No longer used by kernels.
    encrypt_key_size: u32,
    /// `LO_FLAGS_*`.
    flags: u32,
    /// Name shown by losetup(8).
    file_name: [u8; 64],
    /// No longer used by kernels.
    crypt_name: [u8; 64],
    /// No longer used by kernels.
    encrypt_key: [u8; 32],
    /// No longer used by kernels.
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LoopConfig {
    /// The backing file's descriptor.
    pub fd: u32,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// The other settings.
    info: LoopInfo,
    /// Zeros.
    pub reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

impl LoopConfig {
    /// A configuration with the whole file as the device, read as `flags` say.
    #[must_use]
    pub fn new(fd: u32, block_size: u32, flags: u32) -> Self {
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
///
/// # Errors
/// The driver's error.
pub fn get_free(control: impl AsFd) -> Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number that is not negative.
    unsafe { ioctl(control, GetFree) }
}

/// Connects a loop device to a file, settings included, in one step.
///
/// # Errors
/// The driver's error.
pub fn configure(device: impl AsFd, config: LoopConfig) -> Result<()> {
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which `LoopConfig` is, byte for byte.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

/// Disconnects a loop device; one that is in use goes when its last user closes it.
///
/// # Errors
/// The driver's error.
pub fn clear(device: impl AsFd) -> Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

/// Has a loop device take its file's size as it is now.
///
/// # Errors
/// The driver's error; `ENXIO` where it is connected to no file.
pub fn set_capacity(device: impl AsFd) -> Result<()> {
    // The driver asks for the file's attributes here. Those of a network or FUSE file are fresh
    // then, also on kernels that look only at what they know of the size, below.
    // SAFETY: LOOP_GET_STATUS64 writes one `struct loop_info64`, which `LoopInfo` is.
    unsafe { ioctl(&device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }?;
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }
}

/// Switches direct I/O on or off.
///
/// # Errors
/// The driver's error.
pub fn set_direct_io(device: impl AsFd, on: bool) -> Result<()> {
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

// SAFETY: the request number is a constant of the kernel's interface, it reads and writes no memory
// of ours, and its return value is taken only where the call succeeded.
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
const LOOP_GET_STATUS64: rustix::ioctl::Opcode = 0x4C05;
const LOOP_SET_CAPACITY: rustix::ioctl::Opcode = 0x4C07;
const LOOP_SET_DIRECT_IO: rustix::ioctl::Opcode = 0x4C08;
const LOOP_CONFIGURE: rustix::ioctl::Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: rustix::ioctl::Opcode = 0x4C82;
