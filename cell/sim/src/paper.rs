//! Figures of the documents that a model can be compared with. Facts only.
//!
//! Source: the multigrain scheduling paper of 2007 (RAxML on 42_SC, Tables 1 and 2), the paper and
//! the slides of 2007 on block devices assisted by SPEs.
//!
//! ```
//! use sidecore_cell_sim::paper::{TABLE1_EDTLP_S, TABLE1_LINUX_S};
//!
//! // Eight workers: the paper's own speed-up of EDTLP over Linux.
//! let speed_up = TABLE1_LINUX_S[7] / TABLE1_EDTLP_S[7];
//! assert!((speed_up - 2.67).abs() < 0.01);
//! ```

/// Table 1, seconds for 1 to 8 workers with a bootstrap each, under EDTLP.
pub const TABLE1_EDTLP_S: [f64; 8] = [28.46, 29.36, 32.54, 33.12, 37.27, 38.66, 41.87, 43.32];

/// Table 1 under Linux 2.6.17.
pub const TABLE1_LINUX_S: [f64; 8] = [28.42, 29.23, 56.95, 57.38, 85.88, 86.43, 114.92, 115.51];

/// Table 2, seconds for one bootstrap whose loops are split over 1 to 8 SPEs.
pub const TABLE2_S: [f64; 8] = [28.71, 20.83, 19.37, 18.28, 18.10, 20.52, 18.27, 24.4];

/// One bootstrap on the PPE alone, in seconds (section 5.1).
pub const PPE_ONLY_S: f64 = 38.23;

/// Host work between two off-loads, in microseconds (section 5.2).
pub const HOST_US: f64 = 11.0;

/// An off-load on one SPE, in microseconds (section 5.2).
pub const ENGINE_US: f64 = 96.0;

/// A compressed block, in bytes.
pub const BLOCK_BYTES: f64 = 65_536.0;

/// The image, in bytes.
pub(crate) const IMAGE_BYTES: f64 = 28.35e6;

/// Inflating a block on the PPE in the driver, in microseconds.
pub(crate) const UIO_PPE_US: f64 = 504.0;

/// The same on one SPE through the daemon: driver to daemon, set-up in the daemon, daemon to SPE,
/// set-up in the SPE, inflating; a block's share, in microseconds.
pub const UIO_PARTS_US: [f64; 5] = [108.0, 152.0, 0.4, 6.9, 636.0];

/// `dd` in MB/s with the PPE, with one SPE.
pub(crate) const UIO_DD_MB_S: [f64; 2] = [73.9, 54.7];

/// `diff` of the tree in milliseconds with the PPE, with one SPE.
pub(crate) const UIO_DIFF_MS: [f64; 2] = [536.0, 655.0];

/// Mapping 128 KiB, a switch of processes, inflating a block on one SPE, in microseconds: the
/// estimate for four blocks on four SPEs is their sum.
pub(crate) const UIO_ESTIMATE_US: [f64; 3] = [391.0, 134.0, 565.0];

/// Inflating a block on the x86 machine, in microseconds.
pub(crate) const UIO_X86_US: f64 = 452.0;

/// A switch of processes with 64 KiB mapped, on the PPE, in microseconds.
pub(crate) const UIO_SWITCH_US: f64 = 117.0;

/// Factor by which the SPE's set-up took longer when pages had not been touched before: least,
/// greatest.
pub const UIO_UNTOUCHED: [f64; 2] = [100.0, 1000.0];

/// The slides: a block on the PPE; on an SPE: inflating, set-up, daemon to SPE; in microseconds.
pub(crate) const SLIDES_PPE_US: f64 = 635.76;
/// See [`SLIDES_PPE_US`].
pub(crate) const SLIDES_SPE_US: [f64; 3] = [535.2, 7.6, 1.0];

/// The slides: 512 KiB on the PPE, on four SPEs at best, at worst, in microseconds.
pub const SLIDES_512K_US: [f64; 3] = [5086.08, 1423.3, 3834.03];
