//! Conditions of a curve: the path to memory, and the kind of pages on it.
//!
//! Why here: the measuring, the machine's settings and the report name both. Pure.
//!
//! ```
//! use sidecore_tlb::access::{Pages, Path};
//!
//! assert_eq!(Pages::Transparent.bytes(), 2 << 20);
//! assert_eq!(Path::DmaCopy.name(), "dma-copy");
//! ```

use serde::Serialize;

/// Access path to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// A core's loads.
    Load,
    /// An engine's DMA gets of 128 bytes, copied to its local store.
    DmaCopy,
    /// An engine's DMA gets of 128 bytes, lent.
    DmaBorrow,
}

impl Path {
    /// Name in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::DmaCopy => "dma-copy",
            Self::DmaBorrow => "dma-borrow",
        }
    }
}

/// Kind of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// 4 KiB: few frames, mapped at many pages.
    SmallAliased,
    /// 4 KiB: each with its own frame.
    SmallPlain,
    /// 64 KiB, transparent.
    Medium,
    /// 2 MiB, transparent.
    Transparent,
    /// 2 MiB, reserved.
    Reserved,
    /// 1 GiB, reserved.
    Giant,
}

impl Pages {
    /// Their size in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::SmallAliased | Self::SmallPlain => SMALL_BYTES,
            Self::Medium => 64 << 10,
            Self::Transparent | Self::Reserved => 2 << 20,
            Self::Giant => 1 << 30,
        }
    }

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SmallAliased => "4 KiB, aliased",
            Self::SmallPlain => "4 KiB",
            Self::Medium => "64 KiB, transparent",
            Self::Transparent => "2 MiB, transparent",
            Self::Reserved => "2 MiB, reserved",
            Self::Giant => "1 GiB, reserved",
        }
    }
}

/// Bytes of a page of the smallest size.
pub(crate) const SMALL_BYTES: usize = 4096;
