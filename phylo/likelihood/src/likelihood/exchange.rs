//! Blocks of chunks, and the terms that processes exchange for them.

use std::ops::Range;

/// Terms in exchange: this process's, and all processes'.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pub(super) own: Vec<f64>,
    pub(super) all: Vec<f64>,
}

/// Chunks of a block, which one process has whole and adds by itself: a power of two, so that the
/// block is a branch of the tree of sums, and few enough that every process has [`BLOCKS_MIN`].
/// One where there are several partitions, whose sums begin elsewhere in the tree.
pub(super) fn block(parts: usize, chunks: usize, processes: usize) -> usize {
    let most = chunks / (BLOCKS_MIN * processes);
    match parts {
        1 if most > 0 => 1 << most.ilog2(),
        _ => 1,
    }
}

/// Fewer blocks would be uneven: neighbours are alike, and site repeats save more in some places.
const BLOCKS_MIN: usize = 8;

/// The patterns of the `k`th of `count` chunks. They are even: the last one must not be a crumb
/// that an engine waits for.
pub(super) fn chunk_range(patterns: usize, count: usize, k: usize) -> Range<usize> {
    patterns * k / count..patterns * (k + 1) / count
}
