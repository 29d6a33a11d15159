//! Transition (P) matrices of branches, and tables of them for tips.
//!
//! Why here: an insertion needs tables of branches that the tree does not have: half branches, the
//! joined branch, and the star of three branches whose lengths are being found.
//! Must stay true: a half branch's tables are made again only when its length or the model changed;
//! the others belong to one insertion and are made for it.

use crate::kernel::{Buffer, Isa, QUAD, Quad, transitions};
use crate::model::Process;
use crate::tree::EdgeId;

/// One branch's matrices, and a tip's table of them.
#[derive(Debug, Default)]
pub(super) struct Tables {
    matrix: Buffer,
    table: Buffer,
}

impl Tables {
    pub(super) fn new(by: &Transitions) -> Self {
        Self {
            matrix: Buffer::new(by.matrix_quads()),
            table: Buffer::new(by.table_quads()),
        }
    }

    pub(super) fn get(&self) -> [&[Quad]; 2] {
        [self.matrix.as_slice(), self.table.as_slice()]
    }

    /// Fills in the matrices of a branch of this length, and with `tip` the table.
    pub(super) fn fill(&mut self, by: &Transitions, tip: bool, length: f64) {
        self.matrix.resize(by.matrix_quads());
        by.matrix(length, self.matrix.as_mut_slice());
        self.fill_table(by, tip);
    }

    /// The same, with frequencies and the rates' weights: for evaluating at the branch.
    pub(super) fn fill_folded(&mut self, by: &Transitions, tip: bool, length: f64) {
        by.matrix(length, self.matrix.as_mut_slice());
        // Before the table, which is made of the folded matrix.
        if by.process.profiles.is_none() {
            by.process.fold(self.matrix.doubles_mut());
        }
        self.fill_table(by, tip);
    }

    fn fill_table(&mut self, by: &Transitions, tip: bool) {
        if tip {
            self.table.resize(by.table_quads());
            by.table(self.matrix.doubles(), self.table.doubles_mut());
        }
    }
}

/// Source of P matrices and tables: one partition's model, and the scale of its lengths.
#[derive(Debug)]
pub(super) struct Transitions {
    pub(super) isa: Isa,
    pub(super) process: Process,
    /// For each code its set of states.
    pub(super) masks: Vec<u64>,
    /// The partition's rate relative to the tree's branch lengths.
    pub(super) scale: f64,
}

impl Transitions {
    /// The matrices of all rates over a branch of this length.
    pub(super) fn matrix(&self, length: f64, to: &mut [Quad]) {
        // With a matrix for each pattern the loops take the length.
        if self.process.profiles.is_some() {
            to[0] = [length * self.scale, 0.0, 0.0, 0.0];
            return;
        }
        transitions(self.isa, &self.process.eigen(), length * self.scale, to);
    }

    /// For each code the matrices applied to the code's states.
    pub(super) fn table(&self, matrix: &[f64], to: &mut [f64]) {
        if self.process.profiles.is_some() {
            to.copy_from_slice(matrix);
            return;
        }
        self.process.tip_table(matrix, &self.masks, to);
    }

    /// Quads of a tip's table: a span for each code.
    pub(super) fn table_quads(&self) -> usize {
        match self.process.profiles {
            Some(_) => 1,
            None => self.masks.len() * self.process.shape.quads(),
        }
    }

    /// Quads of the matrices of a branch.
    pub(super) fn matrix_quads(&self) -> usize {
        match self.process.profiles {
            Some(_) => 1,
            None => self.process.shape.matrix() / QUAD,
        }
    }
}

/// Tables of a partition for insertions.
#[derive(Debug, Default)]
pub(super) struct InsertionTables {
    /// Branch by branch; empty until the first insertion.
    pub(super) halves: Vec<Tables>,
    half_made: Vec<bool>,
    pub(super) joined: Tables,
    pub(super) star: [Tables; 3],
}

impl InsertionTables {
    /// Makes room for the tables, once.
    pub(super) fn begin(&mut self, by: &Transitions, edges: usize) {
        if self.halves.is_empty() {
            *self = Self {
                // A half branch gets its room when it is first visited: most never are.
                halves: (0..edges).map(|_| Tables::default()).collect(),
                half_made: vec![false; edges],
                joined: Tables::new(by),
                star: std::array::from_fn(|_| Tables::new(by)),
            };
        }
    }

    /// The tables of a half branch, if they have to be made again; then they count as made.
    pub(super) fn stale_half(&mut self, edge: EdgeId) -> Option<&mut Tables> {
        let made = std::mem::replace(&mut self.half_made[edge.index()], true);
        (!made).then(|| &mut self.halves[edge.index()])
    }

    pub(super) fn forget_edge(&mut self, edge: EdgeId) {
        if let Some(made) = self.half_made.get_mut(edge.index()) {
            *made = false;
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.half_made.fill(false);
    }
}
