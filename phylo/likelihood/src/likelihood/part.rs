//! One partition: its patterns, its model, and the tables that all its chunks read.
//!
//! Must stay true: tables are written between loops, by the thread that owns the likelihood, and
//! only read while one runs. A table is made again only when its length or its model changed.

mod tables;

use super::validity::Child;
use crate::kernel::{Buffer, Isa, Loops, Quad, Spectra, powers};
use crate::model::{Model, ModelName, Process, ScalerName};
use crate::msa::Patterns;
use crate::tree::{EdgeId, Tree};
use tables::{InsertionTables, Tables, Transitions};

/// Patterns, model and scale of a partition.
#[derive(Debug, Clone)]
pub struct PartOptions {
    /// Its patterns.
    pub patterns: Patterns,
    /// Its model.
    pub model: Model,
    /// Its rate relative to the tree's branch lengths: 1 where they are linked.
    pub scale: f64,
}

impl PartOptions {
    /// Values counted in the patterns where the name gives none; the scale of the name's `+B{…}`,
    /// otherwise 1.
    ///
    /// # Panics
    /// When `patterns` are of another alphabet.
    #[must_use]
    pub fn new(name: ModelName, patterns: Patterns) -> Self {
        let scale = match name.scaler {
            ScalerName::Given(scale) => scale,
            ScalerName::None | ScalerName::Fitted => 1.0,
        };
        Self {
            model: Model::new(name, &patterns),
            patterns,
            scale,
        }
    }
}

/// One partition.
#[derive(Debug)]
pub struct Part {
    /// Its place among the partitions.
    number: usize,
    patterns: Patterns,
    model: Model,
    transitions: Transitions,
    /// Branch by branch, the transition matrices of all rates.
    matrices: Buffer,
    /// Taxon by taxon, the table of its branch.
    tip_tables: Buffer,
    /// For each branch: true if its matrix or table is right.
    made: Vec<bool>,
    /// The evaluated branch's matrix, with frequencies and weights, and a table of it for a tip.
    folded: Tables,
    /// The sum table's two matrices; a table of the second for tips.
    near: Buffer,
    far: Buffer,
    far_table: Buffer,
    powers: Buffer,
    scratch: Buffer,
    insertion: InsertionTables,
}

impl Part {
    pub(super) fn new(number: usize, options: PartOptions, tree: &Tree, isa: Isa) -> Self {
        let PartOptions {
            patterns,
            model,
            scale,
        } = options;
        let transitions = Transitions {
            isa,
            process: process_of(&model, &patterns),
            masks: patterns.masks().to_vec(),
            scale,
        };
        let (matrix, table) = (transitions.matrix_quads(), transitions.table_quads());
        let edges = tree.edges().count();
        // All tables at once: a search makes matrices in its inner loop, which must not allocate.
        let mut part = Self {
            number,
            matrices: Buffer::new(matrix * edges),
            tip_tables: Buffer::new(table * tree.taxa()),
            made: vec![false; edges],
            folded: Tables::new(&transitions),
            near: Buffer::new(matrix),
            far: Buffer::new(matrix),
            far_table: Buffer::new(table),
            powers: Buffer::new(3 * transitions.process.shape.quads()),
            scratch: Buffer::new(matrix),
            insertion: InsertionTables::default(),
            patterns,
            model,
            transitions,
        };
        part.make_eigen_tables();
        part
    }

    /// Its patterns.
    #[must_use]
    pub fn patterns(&self) -> &Patterns {
        &self.patterns
    }

    /// Number of sites.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.patterns.sites()
    }

    /// Its model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its model's process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.transitions.process
    }

    /// Its model with all values, including its scale (`+B{…}`) if it has one: the text can be
    /// passed as a model again.
    #[must_use]
    pub fn model_text(&self) -> String {
        match self.transitions.scale == 1.0 && self.model.name().scaler == ScalerName::None {
            // A model of all sites must not have a scaler.
            true => self.model.to_string(),
            false => format!("{}+B{{{:.6}}}", self.model, self.transitions.scale),
        }
    }

    /// Its rate relative to the tree's branch lengths.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.transitions.scale
    }

    pub(super) fn set_model(&mut self, model: Model) {
        self.model = model;
        // All buffers are as long as the first model's shape asks for.
        let shape = self.transitions.process.shape;
        self.transitions.process = process_of(&self.model, &self.patterns);
        assert_eq!(
            shape, self.transitions.process.shape,
            "a model of another shape"
        );
        self.made.fill(false);
        self.insertion.forget_all();
        self.make_eigen_tables();
    }

    /// The loops for patterns with these profiles, which only a model of site frequencies has.
    pub(super) fn loops<'a>(&'a self, isa: Isa, profile_of: &'a [u32]) -> Loops<'a> {
        let process = &self.transitions.process;
        let spectra = process.profiles.as_ref().map(|profiles| Spectra {
            of_pattern: profile_of,
            values: &profiles.values,
            right: &profiles.right,
            left: &profiles.left_by_state,
            frequencies: &profiles.frequencies,
            rates: &process.rates,
            weights: &process.weights,
            masks: &self.transitions.masks,
        });
        Loops {
            isa,
            shape: process.shape,
            spectra,
        }
    }

    fn make_eigen_tables(&mut self) {
        // With profiles the loops have the eigenvectors themselves.
        if self.transitions.process.profiles.is_some() {
            return;
        }
        let (near, far) = (self.near.doubles_mut(), self.far.doubles_mut());
        // Of the model alone, not of a length: one table serves all lengths of a branch.
        self.transitions.process.sum_table_matrices(near, far);
        self.transitions
            .table(self.far.doubles(), self.far_table.doubles_mut());
    }

    pub(super) fn set_scale(&mut self, scale: f64) {
        self.transitions.scale = scale;
        self.made.fill(false);
        self.insertion.forget_all();
    }

    pub(super) fn forget_edge(&mut self, edge: EdgeId) {
        self.made[edge.index()] = false;
        self.insertion.forget_edge(edge);
    }

    /// Prepares the tables that newview needs for the branch above a child.
    pub(super) fn prepare_child(&mut self, child: &Child, length: f64) {
        // Tables stay valid until the length or the model changes.
        if std::mem::replace(&mut self.made[child.edge.index()], true) {
            return;
        }
        if child.tip {
            self.transitions.matrix(length, self.scratch.as_mut_slice());
            let quads = self.transitions.table_quads();
            let table = &mut self.tip_tables.as_mut_slice()[child.at * quads..][..quads];
            self.transitions
                .table(self.scratch.doubles(), table.as_flattened_mut());
        } else {
            let quads = self.transitions.matrix_quads();
            let at = child.edge.index() * quads;
            let matrix = &mut self.matrices.as_mut_slice()[at..][..quads];
            self.transitions.matrix(length, matrix);
        }
    }

    /// Prepares the tables that evaluate needs for its branch.
    pub(super) fn prepare_evaluate(&mut self, tree: &Tree, edge: EdgeId) {
        // Without a tip at the branch no kernel reads a table.
        let tip = tree.ends(edge).into_iter().any(|end| tree.is_tip(end));
        self.prepare_folded(tip, self.length(tree, edge));
    }

    /// Prepares the tables for evaluating at a branch of some length.
    pub(super) fn prepare_folded(&mut self, tip: bool, length: f64) {
        self.folded.fill_folded(&self.transitions, tip, length);
    }

    /// The length of a branch before scaling.
    pub(super) fn length(&self, tree: &Tree, edge: EdgeId) -> f64 {
        tree.length(edge) * self.factor(tree, edge)
    }

    /// A branch's length here relative to the tree's, without the scale.
    pub(super) fn factor(&self, tree: &Tree, edge: EdgeId) -> f64 {
        tree.factor(self.number, edge)
    }

    /// Prepares the powers that the derivatives need for a length.
    pub(super) fn prepare_powers(&mut self, length: f64) {
        let Transitions {
            isa,
            process,
            scale,
            ..
        } = &self.transitions;
        let to = self.powers.as_mut_slice();
        if process.profiles.is_some() {
            to[0] = [length * scale, 0.0, 0.0, 0.0];
            return;
        }
        powers(*isa, &process.eigen(), length * scale, to);
    }

    pub(super) fn matrix(&self, edge: EdgeId) -> &[Quad] {
        let quads = self.transitions.matrix_quads();
        &self.matrices.as_slice()[edge.index() * quads..][..quads]
    }

    pub(super) fn tip_table(&self, taxon: usize) -> &[Quad] {
        let quads = self.transitions.table_quads();
        &self.tip_tables.as_slice()[taxon * quads..][..quads]
    }

    pub(super) fn folded(&self) -> [&[Quad]; 2] {
        self.folded.get()
    }

    pub(super) fn eigen(&self) -> [&[Quad]; 3] {
        [
            self.near.as_slice(),
            self.far.as_slice(),
            self.far_table.as_slice(),
        ]
    }

    pub(super) fn powers(&self) -> &[Quad] {
        self.powers.as_slice()
    }

    /// Makes room for the tables of insertions, once.
    pub(super) fn begin_insertions(&mut self) {
        self.insertion.begin(&self.transitions, self.made.len());
    }

    /// Prepares the tables for inserting into a branch's middle; `tip` if one of its ends is a tip.
    pub(super) fn prepare_half(&mut self, edge: EdgeId, tip: bool, length: f64) {
        if let Some(tables) = self.insertion.stale_half(edge) {
            tables.fill(&self.transitions, tip, 0.5 * length);
        }
    }

    /// Prepares the tables of the branch that pruning leaves behind.
    pub(super) fn prepare_joined(&mut self, tip: bool, length: f64) {
        self.insertion.joined.fill(&self.transitions, tip, length);
    }

    /// Prepares the tables of one branch of the star.
    pub(super) fn prepare_star(&mut self, branch: usize, tip: bool, length: f64) {
        self.insertion.star[branch].fill(&self.transitions, tip, length);
    }

    pub(super) fn half(&self, edge: EdgeId) -> [&[Quad]; 2] {
        self.insertion.halves[edge.index()].get()
    }

    pub(super) fn joined(&self) -> [&[Quad]; 2] {
        self.insertion.joined.get()
    }

    pub(super) fn star(&self, branch: usize) -> [&[Quad]; 2] {
        self.insertion.star[branch].get()
    }
}

/// A model's process, with the profiles of patterns that have their own.
fn process_of(model: &Model, patterns: &Patterns) -> Process {
    let mut process = model.process();
    process.profiles = patterns.profiles().map(|(own, _)| own.clone());
    process
}
