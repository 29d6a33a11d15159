//! Faults of a frame.
//!
//! Must stay true: each message is complete in itself; callers show it next to the frame's number.

/// Why a frame was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason())]
#[non_exhaustive]
pub enum Error {
    /// The frame continues after the end of the compressed bytes.
    Truncated,
    /// Neither a frame nor a skippable frame begins here.
    Magic,
    /// A bit that RFC 8878 reserves is set, or a block has the reserved type.
    Reserved,
    /// The frame needs a dictionary; dictionaries are not supported.
    Dictionary,
    /// The window is larger than 2 GiB.
    Window,
    /// A block is longer than its frame allows.
    Block,
    /// A literals section contradicts itself.
    Literals,
    /// A Huffman tree that is not valid, or a repeat without an earlier tree.
    Tree,
    /// An FSE table that is not valid, or a repeat without an earlier table.
    Table,
    /// The sequences do not end where their section ends, or take more literals than there are.
    Sequences,
    /// A match begins before the frame.
    Offset,
    /// The contents are longer than the output.
    Full,
    /// The contents do not have the length in the frame's header.
    ContentSize,
    /// The contents do not match the frame's checksum.
    Checksum,
}

impl Error {
    /// The message, for errors that carry a constant.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Truncated => "the compressed bytes end too early",
            Self::Magic => "no zstd frame begins here",
            Self::Reserved => "a reserved bit is set",
            Self::Dictionary => "the frame needs a dictionary",
            Self::Window => "the window is too large",
            Self::Block => "a block is longer than its frame allows",
            Self::Literals => "damaged literals",
            Self::Tree => "damaged Huffman tree",
            Self::Table => "damaged FSE table",
            Self::Sequences => "damaged sequences",
            Self::Offset => "a match begins before the frame",
            Self::Full => "the contents are longer than the room for them",
            Self::ContentSize => "the contents are not as long as the frame says",
            Self::Checksum => "the contents have another checksum",
        }
    }
}
