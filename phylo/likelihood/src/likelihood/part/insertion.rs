//! The tables that scoring an insertion reads: half branches, the joined branch, and the star of
//! three branches whose lengths are being found.
//!
//! Must stay true: a half branch's tables are made again only when its length or the model changed;
//! the others belong to one insertion and are made for it.

use super::Part;
use crate::kernel::{Buffer, QUAD, Quad, Shape, transitions};
use crate::tree::EdgeId;

/// One branch's matrices, and a tip's table of them.
#[derive(Debug, Default)]
struct Tables {
    matrix: Buffer,
    table: Buffer,
}

impl Tables {
    fn new(shape: Shape, codes: usize) -> Self {
        Self {
            matrix: Buffer::new(shape.matrix() / QUAD),
            table: Buffer::new(codes * shape.quads()),
        }
    }

    fn get(&self) -> [&[Quad]; 2] {
        [self.matrix.as_slice(), self.table.as_slice()]
    }
}

/// Tables of a partition for insertions.
#[derive(Debug, Default)]
pub(in crate::likelihood) struct InsertionTables {
    /// Branch by branch; empty until the first insertion.
    halves: Vec<Tables>,
    half_made: Vec<bool>,
    joined: Tables,
    star: [Tables; 3],
}

impl InsertionTables {
    pub(super) fn forget_edge(&mut self, edge: EdgeId) {
        if let Some(made) = self.half_made.get_mut(edge.index()) {
            *made = false;
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.half_made.fill(false);
    }
}

impl Part {
    /// Makes room for the tables, once.
    pub(in crate::likelihood) fn begin_insertions(&mut self) {
        if !self.insertion.halves.is_empty() {
            return;
        }
        let (shape, codes) = (self.process.shape, self.patterns.alphabet().masks().len());
        let edges = self.made.len();
        self.insertion = InsertionTables {
            halves: (0..edges).map(|_| Tables::default()).collect(),
            half_made: vec![false; edges],
            joined: Tables::new(shape, codes),
            star: std::array::from_fn(|_| Tables::new(shape, codes)),
        };
    }

    /// Prepares the tables for inserting into a branch's middle; `tip` if one of its ends is a tip.
    pub(in crate::likelihood) fn prepare_half(&mut self, edge: EdgeId, tip: bool, length: f64) {
        if std::mem::replace(&mut self.insertion.half_made[edge.index()], true) {
            return;
        }
        let mut tables = std::mem::take(&mut self.insertion.halves[edge.index()]);
        self.fill(&mut tables, tip, 0.5 * length);
        self.insertion.halves[edge.index()] = tables;
    }

    /// Prepares the tables of the branch that pruning leaves behind.
    pub(in crate::likelihood) fn prepare_joined(&mut self, tip: bool, length: f64) {
        let mut tables = std::mem::take(&mut self.insertion.joined);
        self.fill(&mut tables, tip, length);
        self.insertion.joined = tables;
    }

    /// Prepares the tables of one branch of the star.
    pub(in crate::likelihood) fn prepare_star(&mut self, branch: usize, tip: bool, length: f64) {
        let mut tables = std::mem::take(&mut self.insertion.star[branch]);
        self.fill(&mut tables, tip, length);
        self.insertion.star[branch] = tables;
    }

    /// Prepares the tables for evaluating at a branch of some length.
    pub(in crate::likelihood) fn prepare_folded(&mut self, tip: bool, length: f64) {
        let eigen = self.process.eigen();
        let length = length * self.scale;
        transitions(self.isa, &eigen, length, self.folded.as_mut_slice());
        self.process.fold(self.folded.doubles_mut());
        if tip {
            let masks = self.patterns.alphabet().masks();
            let table = self.folded_table.doubles_mut();
            self.process.tip_table(self.folded.doubles(), masks, table);
        }
    }

    fn fill(&self, tables: &mut Tables, tip: bool, length: f64) {
        let masks = self.patterns.alphabet().masks();
        tables.matrix.resize(self.process.shape.matrix() / QUAD);
        let (eigen, length) = (self.process.eigen(), length * self.scale);
        transitions(self.isa, &eigen, length, tables.matrix.as_mut_slice());
        if tip {
            tables
                .table
                .resize(masks.len() * self.process.shape.quads());
            let table = tables.table.doubles_mut();
            self.process
                .tip_table(tables.matrix.doubles(), masks, table);
        }
    }

    pub(in crate::likelihood) fn half(&self, edge: EdgeId) -> [&[Quad]; 2] {
        self.insertion.halves[edge.index()].get()
    }

    pub(in crate::likelihood) fn joined(&self) -> [&[Quad]; 2] {
        self.insertion.joined.get()
    }

    pub(in crate::likelihood) fn star(&self, branch: usize) -> [&[Quad]; 2] {
        self.insertion.star[branch].get()
    }
}
