//! A chunk's conditional likelihood vectors (CLVs, or partials), their site repeats and memory.
//!
//! Memory: buffers of eight lengths (eighths of the chunk's patterns), which are reused. A node's
//! classes depend on the direction, and most nodes are seen from a side where few patterns differ.
//! Buffers as long as each node's longest direction would take three times the memory that is in
//! use at once.
//! Must stay true: a buffer belongs to one owner, or is free here; its history does not affect
//! results. Site repeats are kept for all three directions of a node, CLVs for one direction only.

use crate::kernel::repeats::{Classes, Pairs};
use crate::kernel::{Buffer, Inner, Operand, Quad, Shape, SharedArena, Tip};
use crate::likelihood::part::Part;
use crate::likelihood::validity::{Child, SCRATCH_PLACES, Step};
use sidecore_bare::width::ToU64;

/// The CLVs and site repeats of all inner nodes.
#[derive(Debug)]
pub(super) struct Clvs {
    /// Site repeats of each inner half-edge.
    repeats: Vec<Classes>,
    /// The CLV of each inner node in one direction, then [`SCRATCH_PLACES`] for CLVs that are used
    /// once.
    clvs: Vec<Clv>,
    pub(super) memory: ClvMemory,
    pairs: Pairs,
}

impl Clvs {
    pub(super) fn new(arena: &SharedArena, shape: Shape, patterns: usize, nodes: usize) -> Self {
        let many = std::iter::repeat_with(Classes::default);
        Self {
            repeats: many.take(3 * nodes).collect(),
            clvs: std::iter::repeat_with(Clv::default)
                .take(nodes + SCRATCH_PLACES)
                .collect(),
            memory: ClvMemory::new(arena, shape, patterns),
            pairs: Pairs::default(),
        }
    }

    /// Finds the site repeats of a step's direction; without `join` every pattern is a class of its
    /// own.
    pub(super) fn find_repeats(&mut self, tips: &TipStates, step: &Step, join: bool) {
        // The children are other directions, of other nodes: borrowed apart from the target.
        let (own, repeats) = Others::split(&mut self.repeats, step.target);
        if !join {
            return own.separate(tips.identity.len());
        }
        let [(left, a), (right, b)] =
            [step.left, step.right].map(|child| tips.classes_by_pattern(repeats, child));
        own.join(left, right, [a, b], &mut self.pairs);
    }

    /// The CLV that a step computes, with room for its classes, and what it is computed from: the
    /// site repeats of the direction, and all other CLVs.
    pub(super) fn target<'a>(
        &'a mut self,
        tips: &'a TipStates,
        step: &Step,
    ) -> (&'a mut Clv, &'a Classes, Sides<'a>) {
        let classes = &self.repeats[step.target];
        let (target, clvs) = Others::split(&mut self.clvs, step.place);
        // Only now is the number of classes known, and with it the room.
        self.memory.fit(target, classes.count());
        let repeats = Others::all(&self.repeats);
        let sides = Sides {
            tips,
            repeats,
            clvs,
        };
        (target, classes, sides)
    }

    /// Read access to all CLVs.
    pub(super) fn sides<'a>(&'a self, tips: &'a TipStates) -> Sides<'a> {
        Sides {
            tips,
            repeats: Others::all(&self.repeats),
            clvs: Others::all(&self.clvs),
        }
    }
}

/// The tips of a chunk's patterns.
#[derive(Debug)]
pub(super) struct TipStates {
    /// For each taxon the code of each pattern.
    pub(super) codes: Vec<Vec<u16>>,
    /// Number of codes of the alphabet.
    pub(super) code_count: usize,
    /// Each pattern's own number: the classes of a node without site repeats.
    pub(super) identity: Vec<u16>,
}

impl TipStates {
    /// A child's classes, pattern by pattern, and how many it has; a tip's are its codes.
    fn classes_by_pattern<'a>(
        &'a self,
        repeats: Others<'a, Classes>,
        child: Child,
    ) -> (&'a [u16], usize) {
        if child.tip {
            (&self.codes[child.at], self.code_count)
        } else {
            let classes = repeats.get(child.at);
            // Separate classes have no list of their own, which would be the identity in each.
            let index = classes.of_pattern().unwrap_or(&self.identity);
            (index, classes.count())
        }
    }
}

/// The operands of a kernel: tips, and CLVs other than the one that is written.
#[derive(Clone, Copy)]
pub(super) struct Sides<'a> {
    tips: &'a TipStates,
    repeats: Others<'a, Classes>,
    clvs: Others<'a, Clv>,
}

impl<'a> Sides<'a> {
    /// A child of a step, read class by class of the parent; without site repeats the classes are
    /// the patterns.
    pub(super) fn child(
        self,
        part: &'a Part,
        child: Child,
        index: Option<&'a [u16]>,
    ) -> Operand<'a> {
        let index = index.unwrap_or_else(|| self.tips.classes_by_pattern(self.repeats, child).0);
        match child.tip {
            true => Operand::Tip(Tip {
                table: part.tip_table(child.at),
                index,
            }),
            false => {
                let clv = self.clvs.get(child.place);
                clv.operand(part.matrix(child.edge), index)
            }
        }
    }

    /// An end of a branch, read pattern by pattern; `table` is that of `matrix` for a tip.
    pub(super) fn end(self, child: Child, [matrix, table]: [&'a [Quad]; 2]) -> Operand<'a> {
        let index = self.tips.classes_by_pattern(self.repeats, child).0;
        match child.tip {
            true => Operand::Tip(Tip { table, index }),
            false => self.clvs.get(child.place).operand(matrix, index),
        }
    }
}

/// A list without the item that is being written.
#[derive(Debug)]
pub(super) struct Others<'a, T> {
    before: &'a [T],
    after: &'a [T],
}

impl<T> Clone for Others<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Others<'_, T> {}

impl<'a, T> Others<'a, T> {
    /// One item, and the others.
    pub(super) fn split(list: &'a mut [T], at: usize) -> (&'a mut T, Self) {
        let (before, rest) = list.split_at_mut(at);
        // By bounds, not by unsafe code: one comparison a child is nothing next to a newview.
        let (own, after) = rest.split_at_mut(1);
        (&mut own[0], Self { before, after })
    }

    fn all(list: &'a [T]) -> Self {
        Self {
            before: list,
            after: &[],
        }
    }

    /// # Panics
    /// When it is the item that is being written.
    pub(super) fn get(self, at: usize) -> &'a T {
        match at.checked_sub(self.before.len()) {
            None => &self.before[at],
            Some(behind) => &self.after[behind - 1],
        }
    }
}

/// The CLV of one direction of one node.
#[derive(Debug, Default)]
pub(super) struct Clv {
    pub(super) quads: Buffer,
    /// For each class one scaler a rate; empty where no entry was scaled.
    scalers: Vec<u16>,
    /// Capacity in eighths of the chunk's patterns.
    eighths: usize,
}

impl Clv {
    /// Keeps the scaler of each class and rate, if any was scaled.
    pub(super) fn keep_scalers(&mut self, scaled: bool, scalers: &[u16]) {
        self.scalers.clear();
        if scaled {
            self.scalers.extend_from_slice(scalers);
        }
    }

    /// Its classes in the order of `index`, over a branch of this matrix.
    pub(super) fn operand<'a>(&'a self, matrix: &'a [Quad], index: &'a [u16]) -> Operand<'a> {
        Operand::Inner(Inner {
            matrix,
            values: self.quads.as_slice(),
            scalers: &self.scalers,
            index,
        })
    }
}

/// A chunk's memory for CLVs.
#[derive(Debug)]
pub(super) struct ClvMemory {
    arena: SharedArena,
    /// Quads of one class.
    span: usize,
    patterns: usize,
    /// Free buffers, by their length.
    spare: [Vec<Buffer>; EIGHTHS + 1],
}

impl ClvMemory {
    fn new(arena: &SharedArena, shape: Shape, patterns: usize) -> Self {
        Self {
            arena: arena.clone(),
            span: shape.quads(),
            patterns,
            spare: Default::default(),
        }
    }

    /// Gives a CLV the room that `classes` need; its contents are lost.
    pub(super) fn fit(&mut self, clv: &mut Clv, classes: usize) {
        // Sizes are rounded up to eighths of the patterns, so that buffers can be reused.
        let eighths = (classes * EIGHTHS).div_ceil(self.patterns.max(1));
        if eighths != clv.eighths {
            let before = std::mem::take(&mut clv.quads);
            if clv.eighths > 0 {
                self.spare[clv.eighths].push(before);
            }
            clv.quads = match self.spare[eighths].pop() {
                Some(buffer) => buffer,
                None => {
                    let room = (eighths * self.patterns).div_ceil(EIGHTHS);
                    let mut buffer = Buffer::default();
                    buffer.resize_in(room * self.span, &self.arena);
                    buffer
                }
            };
            clv.eighths = eighths;
        }
        clv.quads.resize(classes * self.span);
    }
}

/// Bytes that the classes of a node take in a chunk of some patterns, with their scalers.
pub(in crate::likelihood) fn room_bytes(classes: usize, patterns: usize, shape: Shape) -> u64 {
    let eighths = (classes * EIGHTHS).div_ceil(patterns.max(1));
    let room = (eighths * patterns).div_ceil(EIGHTHS);
    let values = room * shape.span() * size_of::<f64>();
    let scalers = classes * shape.rates * size_of::<u16>();
    (values + scalers).to_u64()
}

const EIGHTHS: usize = 8;
