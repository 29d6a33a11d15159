//! One partition: its patterns, its model, and the tables that all its chunks read.
//!
//! Must stay true: tables are written between loops, by the thread that owns the likelihood, and
//! only read while one runs. A table is made again only when its length or its model changed.

mod insertion;

use super::step::Child;
use crate::kernel::{Buffer, Isa, QUAD, Quad, powers, transitions};
use crate::model::{Model, ModelName, Parameter, Process, ScalerName};
use crate::msa::Patterns;
use crate::tree::{EdgeId, Tree};

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
    process: Process,
    scale: f64,
    isa: Isa,
    /// Branch by branch, the transition matrices of all rates.
    matrices: Buffer,
    /// Taxon by taxon, the table of its branch.
    tip_tables: Buffer,
    /// For each branch: true if its matrix or table is right.
    made: Vec<bool>,
    /// The evaluated branch's matrix, with frequencies and weights, and a table of it for a tip.
    folded: Buffer,
    folded_table: Buffer,
    /// The sum table's two matrices; a table of the second for tips.
    near: Buffer,
    far: Buffer,
    far_table: Buffer,
    powers: Buffer,
    scratch: Buffer,
    insertion: insertion::InsertionTables,
}

impl Part {
    pub(super) fn new(number: usize, options: PartOptions, tree: &Tree, isa: Isa) -> Self {
        let PartOptions {
            patterns,
            model,
            scale,
        } = options;
        let process = model.process();
        let matrix = process.shape.matrix() / QUAD;
        let table = patterns.alphabet().masks().len() * process.shape.quads();
        let edges = tree.edges().count();
        let mut part = Self {
            number,
            matrices: Buffer::new(matrix * edges),
            tip_tables: Buffer::new(table * tree.taxa()),
            made: vec![false; edges],
            folded: Buffer::new(matrix),
            folded_table: Buffer::new(table),
            near: Buffer::new(matrix),
            far: Buffer::new(matrix),
            far_table: Buffer::new(table),
            powers: Buffer::new(3 * process.shape.quads()),
            scratch: Buffer::new(matrix),
            isa,
            insertion: insertion::InsertionTables::default(),
            patterns,
            model,
            process,
            scale,
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
        &self.process
    }

    /// Its model with all values, including its scale (`+B{…}`) if it has one: the text can be
    /// passed as a model again.
    #[must_use]
    pub fn model_text(&self) -> String {
        match self.scale == 1.0 && self.model.name().scaler == ScalerName::None {
            true => self.model.to_string(),
            false => format!("{}+B{{{:.6}}}", self.model, self.scale),
        }
    }

    /// Its rate relative to the tree's branch lengths.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    pub(super) fn set_parameter(&mut self, parameter: Parameter, value: f64) {
        self.model.set(parameter, value);
        self.after_model();
    }

    pub(super) fn set_model(&mut self, model: Model) {
        self.model = model;
        self.after_model();
    }

    fn after_model(&mut self) {
        let shape = self.process.shape;
        self.process = self.model.process();
        assert_eq!(shape, self.process.shape, "a model of another shape");
        self.made.fill(false);
        self.insertion.forget_all();
        self.make_eigen_tables();
    }

    fn make_eigen_tables(&mut self) {
        self.process
            .sum_table_matrices(self.near.doubles_mut(), self.far.doubles_mut());
        let masks = self.patterns.alphabet().masks();
        self.process
            .tip_table(self.far.doubles(), masks, self.far_table.doubles_mut());
    }

    pub(super) fn set_scale(&mut self, scale: f64) {
        self.scale = scale;
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
        let length = length * self.scale;
        if child.tip {
            let eigen = self.process.eigen();
            transitions(self.isa, &eigen, length, self.scratch.as_mut_slice());
            let masks = self.patterns.alphabet().masks();
            let span = masks.len() * self.process.shape.span();
            let table = &mut self.tip_tables.doubles_mut()[child.at * span..][..span];
            self.process.tip_table(self.scratch.doubles(), masks, table);
        } else {
            let quads = self.process.shape.matrix() / QUAD;
            let at = child.edge.index() * quads;
            let matrix = &mut self.matrices.as_mut_slice()[at..][..quads];
            transitions(self.isa, &self.process.eigen(), length, matrix);
        }
    }

    /// Prepares the tables that evaluate needs for its branch.
    pub(super) fn prepare_evaluate(&mut self, tree: &Tree, edge: EdgeId) {
        let tip = tree.ends(edge).into_iter().any(|end| tree.is_tip(end));
        self.prepare_folded(tip, self.length(tree, edge));
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
        let eigen = self.process.eigen();
        let length = length * self.scale;
        powers(self.isa, &eigen, length, self.powers.as_mut_slice());
    }

    pub(super) fn matrix(&self, edge: EdgeId) -> &[Quad] {
        let quads = self.process.shape.matrix() / QUAD;
        &self.matrices.as_slice()[edge.index() * quads..][..quads]
    }

    pub(super) fn tip_table(&self, taxon: usize) -> &[Quad] {
        let quads = self.patterns.alphabet().masks().len() * self.process.shape.quads();
        &self.tip_tables.as_slice()[taxon * quads..][..quads]
    }

    pub(super) fn folded(&self) -> [&[Quad]; 2] {
        [self.folded.as_slice(), self.folded_table.as_slice()]
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
}
