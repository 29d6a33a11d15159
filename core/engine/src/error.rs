//! Errors of an engine, with the violated rule and the remedy.

use crate::limits::{LIST_ELEMENTS_MAX, TRANSFER_BYTES_MAX};
use std::borrow::Cow;

/// Errors of the local store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No room for another buffer.
    #[error(
        "the local store is full: {wanted} bytes wanted, {free} of {size} are free; \
         use smaller buffers or configure a larger store"
    )]
    Full {
        /// Bytes wanted, rounded up to whole lines.
        wanted: usize,
        /// Bytes free.
        free: usize,
        /// Bytes of the whole store.
        size: usize,
    },
    /// The kernel needs a larger store than this engine has.
    #[error(
        "the kernel needs a local store of {needs} bytes, this engine has {has}; \
         configure a larger one"
    )]
    TooSmall {
        /// Bytes that the kernel declares.
        needs: usize,
        /// Bytes of the store.
        has: usize,
    },
}

/// A DMA command broke a rule of the MFC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DmaError {
    /// A size that no single command may have.
    #[error(
        "a DMA of {bytes} bytes is not allowed: 1, 2, 4, 8, or a multiple of 16 up to \
         {TRANSFER_BYTES_MAX}; use get_large or put_large for other sizes"
    )]
    Size {
        /// The size.
        bytes: usize,
    },
    /// Addresses that do not suit the size.
    #[error(
        "a DMA of {bytes} bytes between local address {local:#x} and main address {main:#x} is not \
         allowed: below 16 bytes both must be aligned to the size and equal in their low four \
         bits, else both to 16; use get_large or put_large for memory that is not aligned"
    )]
    Alignment {
        /// The size.
        bytes: usize,
        /// The address in the local store.
        local: usize,
        /// The address in main memory.
        main: usize,
    },
    /// The buffer is shorter than the transfer.
    #[error(
        "the buffer holds {buffer_bytes} bytes, the transfer has {bytes}; make the buffer larger"
    )]
    BufferTooShort {
        /// Bytes that the transfer has.
        bytes: usize,
        /// Bytes that the buffer holds.
        buffer_bytes: usize,
    },
    /// A large transfer of too many elements.
    #[error("a DMA list of {elements} elements is not allowed: 1 to {LIST_ELEMENTS_MAX}; split it")]
    ListLength {
        /// Elements that it takes.
        elements: usize,
    },
    /// A window, or memory fetched whole, does not fit the local store.
    #[error("no room for the transfer's buffer: {0}")]
    Store(#[from] StoreError),
}

/// Errors of a kernel's run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// Its local store was too small or full.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It issued a DMA command that the MFC does not take.
    #[error(transparent)]
    Dma(#[from] DmaError),
    /// It panicked; its state on this engine has been made anew.
    #[error("the kernel panicked: {message}")]
    Panicked {
        /// Its message.
        message: String,
    },
    /// It failed for a reason of its own.
    #[error("the kernel failed: {reason}")]
    Failed {
        /// Its message.
        reason: Cow<'static, str>,
    },
    /// More kinds of kernels than an engine keeps state for.
    #[error(
        "this engine keeps state for {limit} kinds of kernels, the most it can; \
         run this one on another engine"
    )]
    TooManyKernels {
        /// The limit.
        limit: usize,
    },
}

impl KernelError {
    /// A failure of the kernel's own.
    pub fn failed(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Failed {
            reason: reason.into(),
        }
    }
}
