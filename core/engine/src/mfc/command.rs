//! One DMA command: its operands and its execution.

use super::Tag;
use super::rules::{ListElement, list_places};
use crate::memory::{Readable, Writable};
use crate::store::Buf;

/// Order of a command relative to others of its tag group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// At any time.
    Free,
    /// After the earlier ones.
    Fence,
    /// After the earlier ones and before the later ones.
    Barrier,
}

/// Main memory of a transfer.
#[derive(Debug)]
pub(crate) enum Kind<'c> {
    Get(Readable<'c, u8>),
    Put(Writable<'c, u8>),
}

impl Kind<'_> {
    pub(crate) fn main_address(&self) -> usize {
        match self {
            Self::Get(source) => source.address(),
            Self::Put(target) => target.address(),
        }
    }

    pub(crate) fn main_bytes(&self) -> usize {
        match self {
            Self::Get(source) => source.len(),
            Self::Put(target) => target.len(),
        }
    }
}

/// Ranges of main memory, each with its range of the buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plan<'c> {
    /// All of it, to the buffer's start.
    Whole,
    /// The ranges of a list.
    List(&'c [ListElement]),
}

impl Plan<'_> {
    /// Bytes of the buffer that are covered (gaps included), and bytes that move.
    pub(crate) fn bytes(self, main_address: usize, main_bytes: usize) -> (usize, usize) {
        match self {
            Self::Whole => (main_bytes, main_bytes),
            Self::List(list) => {
                list_places(list, main_address).fold((0, 0), |(_, moved), (element, local)| {
                    let bytes = element.bytes as usize;
                    (local + bytes, moved + bytes)
                })
            }
        }
    }
}

/// A command that has been checked: every range in it lies within its memory.
#[derive(Debug)]
pub(crate) struct Command<'c> {
    pub(crate) tag: Tag,
    pub(crate) order: Order,
    pub(crate) kind: Kind<'c>,
    pub(crate) plan: Plan<'c>,
    pub(crate) buffer: Buf<'c, u8>,
}

impl Command<'_> {
    /// Moves the bytes.
    pub(crate) fn perform(&mut self) {
        let address = self.kind.main_address();
        match (&mut self.kind, self.plan) {
            (Kind::Get(source), Plan::Whole) => {
                let bytes = source.len();
                source.copy_to(0, &mut self.buffer.whole_mut()[..bytes]);
            }
            (Kind::Get(source), Plan::List(list)) => {
                let local = self.buffer.whole_mut();
                for (element, start) in list_places(list, address) {
                    let end = start + element.bytes as usize;
                    source.copy_to(element.offset as usize, &mut local[start..end]);
                }
            }
            (Kind::Put(target), Plan::Whole) => {
                let bytes = target.len();
                target.copy_from(0, &self.buffer[..bytes]);
            }
            (Kind::Put(target), Plan::List(list)) => {
                for (element, start) in list_places(list, address) {
                    let end = start + element.bytes as usize;
                    target.copy_from(element.offset as usize, &self.buffer[start..end]);
                }
            }
        }
    }
}
