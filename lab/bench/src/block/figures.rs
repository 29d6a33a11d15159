//! The papers' figures of the user-mode SPE driver.
//!
//! Why here: the bench prints them next to this machine's figures.
//! Must stay true: each number is the papers' own; the words are ours.
//! Source: the block device paper and its slides (docs/papers.md). Machines: a laptop of 2006 (Core
//! Duo, 1.3 GHz), the PlayStation 3's PPE alone, and the PPE with one SPE.

/// A figure on the papers' three machines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Three {
    /// On their x86.
    pub x86: f64,
    /// On the PPE alone.
    pub ppe: f64,
    /// With one SPE.
    pub spe: f64,
}

/// Bytes in a block.
pub const BLOCK_BYTES: u64 = 65536;
/// The image's size in MB: as it is, with miniLZO, with gzip -9.
pub const IMAGE_MB: [f64; 3] = [28.35, 17.03, 13.04];
/// Sizes in KB of the two series below.
pub const SIZE_KB: [usize; 4] = [64, 128, 256, 512];
/// Mapping so much memory, in us, on the PPE.
pub const MMAP_PPE_US: [f64; 4] = [266.0, 391.0, 680.0, 1063.0];
/// The same on their x86.
pub const MMAP_X86_US: [f64; 4] = [102.0, 148.0, 289.0, 564.0];
/// A switch of processes with so much memory mapped, in us, on the PPE.
pub const SWITCH_PPE_US: [f64; 4] = [117.0, 134.0, 149.0, 155.0];
/// The same on their x86.
pub const SWITCH_X86_US: [f64; 4] = [54.0, 63.0, 60.0, 52.0];
/// Decompressing 64 KiB of a program with miniLZO, in us.
pub const MINILZO_BINARY_US: Three = Three {
    x86: 468.0,
    ppe: 507.0,
    spe: 560.0,
};
/// Decompressing 64 KiB of text with miniLZO, in us.
pub const MINILZO_TEXT_US: Three = Three {
    x86: 436.0,
    ppe: 529.0,
    spe: 570.0,
};
/// Reading the device from end to end, in MB/s.
pub const DD_MB_S: Three = Three {
    x86: 96.6,
    ppe: 73.9,
    spe: 54.7,
};
/// Comparing the mounted tree with the original, in ms.
pub const DIFF_MS: Three = Three {
    x86: 424.0,
    ppe: 536.0,
    spe: 655.0,
};
/// A block's path, in us: from the driver to the daemon.
pub const DRIVER_TO_DAEMON_US: f64 = 108.0;
/// Setting up in the daemon.
pub const DAEMON_SET_UP_US: f64 = 152.0;
/// From the daemon to the SPE.
pub const DAEMON_TO_SPE_US: f64 = 0.4;
/// Setting up in the SPE.
pub const SPE_SET_UP_US: f64 = 6.9;
/// Decompressing on the SPE.
pub const SPE_INFLATE_US: f64 = 636.0;
/// Additional time of the SPE's set-up where the memory had not been touched: from, to.
pub const UNTOUCHED_FACTOR: [f64; 2] = [100.0, 1000.0];
/// The slides: 512 KiB in us on the PPE, on four SPEs at best, at worst.
pub const SLIDES_512K_US: [f64; 3] = [5086.08, 1423.3, 3834.03];
