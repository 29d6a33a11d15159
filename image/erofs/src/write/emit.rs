//! Bytes of the metadata: inodes with the data after them, blocks of directories, and finally the
//! superblock.
//!
//! Source: `fs/erofs/erofs_fs.h` of Linux, `struct erofs_super_block`, `erofs_inode_compact`,
//! `erofs_inode_extended` and `erofs_inode_chunk_info`.

use super::layout::{
    BLOCKS_MAX, CHUNK_BLOCKS, Compact, Layout, Name, Place, Run, blocks, encode, in_order,
    room_of_chunks,
};
use super::tree::{Body, Id, Inode};
use super::{BLOCK_BYTES, CHUNK_BYTES, Fault, Unfit, attributes};
use crate::inode::{CHUNK_BASED, FLAT_INLINE, FLAT_PLAIN, SLOT_BYTES};
use crate::superblock::{FEATURE_CHUNKED_FILE, MAGIC, SUPERBLOCK_AT, SUPERBLOCK_BYTES};
use sidecore_bare::width::{ToU64, ToUsize};

/// A tree whose metadata can be written: everything has a place.
#[derive(Debug)]
pub struct Sealed {
    layout: Layout,
    blocks: u32,
    uuid: [u8; 16],
}

/// Form of a file's contents in its inode.
enum Form {
    /// In one run from this block on.
    Run(u32),
    /// In chunks of 2^bits bytes.
    Chunks { bits: u32 },
}

/// The metadata on their way to the caller. The first block is held back: the superblock's checksum
/// covers all of it, and it also holds the first inodes.
struct Pieces<F> {
    first: Vec<u8>,
    sink: F,
}

impl<E, F: FnMut(u64, &[u8]) -> Result<(), E>> Pieces<F> {
    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), E> {
        if at >= BLOCK_BYTES {
            return (self.sink)(at, bytes);
        }
        let (start, room) = (at.to_usize(), (BLOCK_BYTES - at).to_usize());
        // An inode may begin in the first block and continue in the second.
        let (own, others) = bytes.split_at(bytes.len().min(room));
        self.first[start..][..own.len()].copy_from_slice(own);
        match others.is_empty() {
            true => Ok(()),
            false => (self.sink)(BLOCK_BYTES, others),
        }
    }
}

impl Layout {
    /// Checks that all contents have places, and takes the remaining fields of the superblock:
    /// length of the image with its contents in bytes, and a UUID.
    ///
    /// # Errors
    /// [`Unfit`]: a file whose chunks have no places, or too many.
    pub fn seal(self, image_bytes: u64, uuid: [u8; 16]) -> Result<Sealed, Unfit> {
        for &id in &self.order {
            let Body::File {
                size_bytes,
                may_be_hole,
            } = self.tree.inodes[id.to_usize()].body
            else {
                continue;
            };
            let runs = &self.contents[id.to_usize()];
            let chunks: u64 = runs.iter().map(|run| run.chunks).sum();
            // Without an array, a file can only be one run.
            let has_room = room_of_chunks(size_bytes, may_be_hole) > 0
                || runs.iter().all(|run| run.block.is_some());
            if chunks != size_bytes.div_ceil(CHUNK_BYTES) || !has_room {
                let what = Fault::Places;
                return Err(Unfit { id, what });
            }
        }
        let blocks = image_bytes
            .div_ceil(BLOCK_BYTES)
            .max(self.data_block.into());
        match u32::try_from(blocks) {
            Ok(blocks) if u64::from(blocks) <= BLOCKS_MAX => Ok(Sealed {
                layout: self,
                blocks,
                uuid,
            }),
            _ => Err(Unfit {
                id: 0,
                what: Fault::Full,
            }),
        }
    }
}

impl Sealed {
    /// Length of the image in bytes, contents included: whole blocks.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }

    /// Passes the metadata to `sink`, each piece with its byte offset in the image, nearly in
    /// order. Bytes that are not passed are zeros. The superblock comes last.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn write<E>(&self, sink: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut pieces = Pieces {
            first: vec![0; BLOCK_BYTES.to_usize()],
            sink,
        };
        let mut out = Vec::new();
        let mut uses_chunks = false;
        for &id in &self.layout.order {
            let inode = &self.layout.tree.inodes[id.to_usize()];
            let place = &self.layout.places[id.to_usize()];
            let form = self.form(id);
            out.clear();
            head(inode, place, form.as_ref(), &mut out);
            match &inode.body {
                Body::Nothing | Body::Device(_) => pieces.put(place.at, &out)?,
                Body::File { .. } => {
                    let mut at = place.at;
                    if let Some(Form::Chunks { bits }) = form {
                        uses_chunks = true;
                        for entry in entries(&self.layout.contents[id.to_usize()], bits) {
                            out.extend(entry.to_le_bytes());
                            // The array of a huge file does not have to fit in memory.
                            if out.len() >= PIECE_BYTES {
                                pieces.put(at, &out)?;
                                at += out.len().to_u64();
                                out.clear();
                            }
                        }
                    }
                    pieces.put(at, &out)?;
                }
                Body::Link(target) => {
                    if place.is_inline {
                        out.extend(target);
                    } else {
                        pieces.put(place.block_at(), target)?;
                    }
                    pieces.put(place.at, &out)?;
                }
                Body::Directory { parent, entries } => {
                    // `Layout::new` has checked that no name occurs twice.
                    let names = in_order(id, parent.unwrap_or(id), entries);
                    self.directory(place, &names.unwrap_or_default(), &mut out, &mut pieces)?;
                }
            }
        }
        let Pieces {
            mut first,
            mut sink,
        } = pieces;
        self.superblock(&mut first, uses_chunks);
        sink(0, &first)
    }

    /// Writes a directory's own blocks, and its inode in `out` with the last names behind it.
    fn directory<E, F: FnMut(u64, &[u8]) -> Result<(), E>>(
        &self,
        place: &Place,
        names: &[Name<'_>],
        out: &mut Vec<u8>,
        pieces: &mut Pieces<F>,
    ) -> Result<(), E> {
        let mut inode_of = |id: Id| {
            let nid = self.layout.places[id.to_usize()].at / SLOT_BYTES;
            (nid, self.layout.tree.inodes[id.to_usize()].kind)
        };
        let mut block_bytes = Vec::new();
        let mut blocks = blocks(names).peekable();
        let mut at = place.block_at();
        while let Some(block) = blocks.next() {
            // Only the last block may be partial, so only that one may follow the inode.
            if place.is_inline && blocks.peek().is_none() {
                encode(block, &mut inode_of, out);
                break;
            }
            block_bytes.clear();
            encode(block, &mut inode_of, &mut block_bytes);
            pieces.put(at, &block_bytes)?;
            at += BLOCK_BYTES;
        }
        pieces.put(place.at, out)
    }

    fn form(&self, id: Id) -> Option<Form> {
        let Body::File { size_bytes, .. } = self.layout.tree.inodes[id.to_usize()].body else {
            return None;
        };
        Some(match self.layout.contents[id.to_usize()][..] {
            [] => Form::Run(0),
            [
                Run {
                    block: Some(block), ..
                },
            ] => Form::Run(block),
            // One hole: as few chunks as there can be.
            [Run { block: None, .. }] => {
                let bits = u64::BITS - (size_bytes - 1).leading_zeros();
                let bits = bits.clamp(CHUNK_BYTES.ilog2(), BLOCK_BITS + CHUNK_BITS_MAX);
                Form::Chunks { bits }
            }
            _ => Form::Chunks {
                bits: CHUNK_BYTES.ilog2(),
            },
        })
    }

    fn superblock(&self, first: &mut [u8], uses_chunks: bool) {
        let layout = &self.layout;
        let features = if uses_chunks { FEATURE_CHUNKED_FILE } else { 0 };
        let (time_s, time_ns) = layout.time;
        // The root lies next to the superblock, so its number fits in 16 bits.
        let root = (layout.places[0].at / SLOT_BYTES) as u16;
        let raw = &mut first[SUPERBLOCK_AT.to_usize()..];
        // The checksum's own field counts as zeros.
        raw[..SUPERBLOCK_BYTES].fill(0);
        let mut put = |at: usize, bytes: &[u8]| raw[at..][..bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(8, &(COMPAT_CHECKSUM | COMPAT_MTIME).to_le_bytes());
        put(12, &[BLOCK_BITS as u8]);
        put(14, &root.to_le_bytes());
        put(16, &(layout.order.len().to_u64()).to_le_bytes());
        put(24, &time_s.to_le_bytes());
        put(32, &time_ns.to_le_bytes());
        put(36, &self.blocks.to_le_bytes());
        // Inodes count from the image's first byte. There are no shared attributes; their start is
        // set to the end of all metadata, which tells a reader where the metadata end.
        put(44, &layout.data_block.to_le_bytes());
        put(48, &self.uuid);
        put(80, &features.to_le_bytes());
        let sum = crc32c(raw);
        raw[4..8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Appends an inode with its attributes.
fn head(inode: &Inode, place: &Place, form: Option<&Form>, out: &mut Vec<u8>) {
    let (layout, union) = match (form, &inode.body) {
        (_, Body::Device(device)) => (FLAT_PLAIN, *device),
        (Some(Form::Run(block)), _) => (FLAT_PLAIN, *block),
        (Some(Form::Chunks { bits }), _) => (CHUNK_BASED, bits - BLOCK_BITS),
        _ if place.is_inline => (FLAT_INLINE, place.block),
        _ => (FLAT_PLAIN, place.block),
    };
    let meta = &inode.meta;
    let format = layout << 1 | u16::from(place.compact.is_none());
    let mode = inode.kind.mode_bits() | meta.permissions;
    // A 32-bit number that no reader uses, Linux included: an inode's number is its place. A
    // counter here would make up a tenth of the metadata's compressed size.
    let number = [0; 4];
    out.extend(format.to_le_bytes());
    out.extend(attributes::count(&inode.attributes).to_le_bytes());
    out.extend(mode.to_le_bytes());
    match place.compact {
        None => {
            out.extend([0; 2]);
            out.extend(place.size_bytes.to_le_bytes());
            out.extend(union.to_le_bytes());
            out.extend(number);
            out.extend(meta.uid.to_le_bytes());
            out.extend(meta.gid.to_le_bytes());
            out.extend(meta.mtime_s.to_le_bytes());
            out.extend(meta.mtime_ns.to_le_bytes());
            out.extend(inode.links.to_le_bytes());
            out.extend([0; 16]);
        }
        Some(Compact {
            links,
            size_bytes,
            uid,
            gid,
        }) => {
            out.extend(links.to_le_bytes());
            out.extend(size_bytes.to_le_bytes());
            out.extend([0; 4]);
            out.extend(union.to_le_bytes());
            out.extend(number);
            out.extend(uid.to_le_bytes());
            out.extend(gid.to_le_bytes());
            out.extend([0; 4]);
        }
    }
    out.extend(&inode.attributes);
}

/// Block numbers of chunks of 2^bits bytes.
fn entries(runs: &[Run], bits: u32) -> impl Iterator<Item = u32> {
    let step = 1 << (bits - CHUNK_BYTES.ilog2());
    runs.iter().flat_map(move |run| {
        let chunks = (0..run.chunks).step_by(step);
        chunks.map(move |chunk| match run.block {
            None => HOLE,
            Some(block) => {
                // `Layout::place` has checked that they all lie below the number of a hole.
                let block = u64::from(block) + chunk * CHUNK_BLOCKS;
                u32::try_from(block).unwrap_or(HOLE)
            }
        })
    })
}

/// The checksum that the kernel compares: CRC-32C (Castagnoli) from all ones, not inverted at the
/// end, with its own field zero.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    !::crc32c::crc32c(bytes)
}

const BLOCK_BITS: u32 = BLOCK_BYTES.ilog2();
/// The largest exponent of a chunk's size in blocks.
const CHUNK_BITS_MAX: u32 = 31;
const COMPAT_CHECKSUM: u32 = 1;
/// Feature bit: times in inodes are those of the last change of contents.
const COMPAT_MTIME: u32 = 2;
const HOLE: u32 = u32::MAX;
/// Length of the pieces in which an array of places is passed to `sink`.
const PIECE_BYTES: usize = 64 << 10;
