//! What the documents report, where a model can say something about it. Facts only.
//!
//! Source: the multigrain scheduling paper of 2007 (RAxML on 42_SC, Tables 1 and 2), the paper and
//! the slides of 2007 on block devices assisted by SPEs.

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
