//! Numbers and structures of BEAGLE's C interface, version 4.0.
//!
//! Source: the interface as BEAGLE documents it (Ayres and others, "BEAGLE 3: improved performance,
//! scaling, and usability for a high-performance computing library for statistical phylogenetics",
//! 2019).

use std::ffi::{c_char, c_double, c_int, c_long};

/// Reasons why a call was refused; each has the documented number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An engine failed.
    #[error("an engine failed")]
    General,
    /// The buffers need more memory than there is.
    #[error("not enough memory")]
    OutOfMemory,
    /// A defect of this library: it was stopped at the boundary.
    #[error("an unexpected failure")]
    Unidentified,
    /// No instance has this number.
    #[error("no such instance")]
    Uninitialized,
    /// An index, a count or a pointer is not valid.
    #[error("an index, count or pointer is not valid")]
    OutOfRange,
    /// No resource can do what is required.
    #[error("no resource meets the requirements")]
    NoResource,
    /// The combination of options is not implemented.
    #[error("not implemented")]
    NoImplementation,
    /// A log-likelihood is not a number.
    #[error("the log-likelihood is not a number")]
    FloatingPoint,
}

impl Refusal {
    /// The number that C programs get.
    #[must_use]
    pub fn code(self) -> c_int {
        match self {
            Self::General => -1,
            Self::OutOfMemory => -2,
            Self::Unidentified => -3,
            Self::Uninitialized => -4,
            Self::OutOfRange => -5,
            Self::NoResource => -6,
            Self::NoImplementation => -7,
            Self::FloatingPoint => -8,
        }
    }
}

/// An index that says "none".
pub const NONE: c_int = -1;

/// Flags of resources and instances.
pub mod flag {
    use std::ffi::c_long;

    /// Single precision.
    pub const PRECISION_SINGLE: c_long = 1 << 0;
    /// Double precision.
    pub const PRECISION_DOUBLE: c_long = 1 << 1;
    /// Calls return when their work is done.
    pub const COMPUTATION_SYNCH: c_long = 1 << 2;
    /// Real eigenvalues.
    pub const EIGEN_REAL: c_long = 1 << 4;
    /// Complex eigenvalues.
    pub const EIGEN_COMPLEX: c_long = 1 << 5;
    /// The client says when to scale.
    pub const SCALING_MANUAL: c_long = 1 << 6;
    /// Scaling where exponents are large.
    pub const SCALING_AUTO: c_long = 1 << 7;
    /// Scaling at every operation.
    pub const SCALING_ALWAYS: c_long = 1 << 8;
    /// Scale factors are kept as they are.
    pub const SCALERS_RAW: c_long = 1 << 9;
    /// Scale factors are kept as logarithms.
    pub const SCALERS_LOG: c_long = 1 << 10;
    /// SSE.
    pub const VECTOR_SSE: c_long = 1 << 11;
    /// No vectors.
    pub const VECTOR_NONE: c_long = 1 << 12;
    /// No threads of its own.
    pub const THREADING_NONE: c_long = 1 << 14;
    /// A central processor.
    pub const PROCESSOR_CPU: c_long = 1 << 15;
    /// Inverse eigenvectors row by row.
    pub const INVEVEC_STANDARD: c_long = 1 << 20;
    /// Inverse eigenvectors transposed.
    pub const INVEVEC_TRANSPOSED: c_long = 1 << 21;
    /// AVX.
    pub const VECTOR_AVX: c_long = 1 << 24;
    /// Scaling of inner operations, with factors that replace old ones.
    pub const SCALING_DYNAMIC: c_long = 1 << 25;
    /// Plain processors' framework.
    pub const FRAMEWORK_CPU: c_long = 1 << 27;
    /// Threads of C++; of version 4 also: matrices of pre-order partials come transposed. Only
    /// graphics processors tell the two apart.
    pub const THREADING_CPP: c_long = 1 << 30;
    /// Matrices of pre-order partials come as they are.
    pub const PREORDER_TRANSPOSE_AUTO: c_long = 1 << 31;
}

/// An operation of `beagleUpdatePartials`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Operation {
    /// Buffer that is written.
    pub destination: c_int,
    /// Scale buffer that is written, or [`NONE`].
    pub scale_write: c_int,
    /// Scale buffer whose factors are applied, or [`NONE`].
    pub scale_read: c_int,
    /// First child's buffer.
    pub child1: c_int,
    /// First child's transition matrix.
    pub matrix1: c_int,
    /// Second child's buffer.
    pub child2: c_int,
    /// Second child's transition matrix.
    pub matrix2: c_int,
}

/// An operation of `beagleUpdatePartialsByPartition`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct PartitionOperation {
    /// As without partitions.
    pub operation: Operation,
    /// The partition.
    pub partition: c_int,
    /// Scale buffer that logarithms are added to, or [`NONE`].
    pub cumulative: c_int,
}

/// Answer of `beagleCreateInstance` about an instance.
#[derive(Debug)]
#[repr(C)]
pub struct InstanceDetails {
    /// Number of the resource.
    pub resource_number: c_int,
    /// The resource's name.
    pub resource_name: *const c_char,
    /// Name of the implementation.
    pub impl_name: *const c_char,
    /// Description of the implementation.
    pub impl_description: *const c_char,
    /// Flags of the instance.
    pub flags: c_long,
}

/// A resource.
#[derive(Debug)]
#[repr(C)]
pub struct Resource {
    /// Its name.
    pub name: *const c_char,
    /// Its description.
    pub description: *const c_char,
    /// Flags that it supports.
    pub support_flags: c_long,
    /// Flags that a client must ask for.
    pub required_flags: c_long,
}

/// All resources, or all with a measurement each.
#[derive(Debug)]
#[repr(C)]
pub struct List<T> {
    /// The first of them.
    pub list: *const T,
    /// Number of them.
    pub length: c_int,
}

/// A resource with a measurement.
#[derive(Debug)]
#[repr(C)]
pub struct BenchmarkedResource {
    /// Its number.
    pub number: c_int,
    /// Its name.
    pub name: *const c_char,
    /// Its description.
    pub description: *const c_char,
    /// Flags that it supports.
    pub support_flags: c_long,
    /// Flags that a client must ask for.
    pub required_flags: c_long,
    /// Outcome of the measurement.
    pub return_code: c_int,
    /// Name of the implementation.
    pub impl_name: *const c_char,
    /// Flags that were measured.
    pub benched_flags: c_long,
    /// Milliseconds.
    pub benchmark_result: c_double,
    /// Speed relative to the first resource.
    pub performance_ratio: c_double,
}
