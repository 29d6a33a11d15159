//! The likelihood kernels for one shape: those of `sidecore-likelihood`, and in double precision
//! plain loops for more states or categories than they have.
//!
//! Layout: a span is one pattern's entries, category by category, each padded with states that
//! never occur to a multiple of four. A matrix is a block a category, in it a column for each state
//! of the child.
//! Must stay true: no kernel scales by itself here; scaling is the client's, pattern by pattern.

use sidecore_likelihood::kernel::single::SingleShape;
use sidecore_likelihood::kernel::{
    Buffer, Inner, Isa, Operand, Quad, RATES_MAX, STATES_MAX, Shape, SiteTerms, Tip, combine_sites,
    edge_sums, evaluate, newview, newview_pre_order, pre_order_sums,
};

/// Kernels for one shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    isa: Isa,
    shape: Shape,
    single: Option<SingleShape>,
}

impl Kernels {
    /// For `states` states, padded here, and `categories` categories.
    pub(crate) fn new(states: usize, categories: usize, is_single: bool) -> Self {
        let single = SingleShape {
            states,
            rates: categories,
        };
        let states = states.next_multiple_of(4);
        Self {
            isa: isa(std::env::var(VARIABLE).ok().as_deref()),
            shape: Shape {
                states,
                rates: categories,
            },
            single: is_single.then_some(single),
        }
    }

    /// The same for one category: matrices are made with it.
    pub(crate) fn of_one_category(self) -> Self {
        let shape = Shape {
            rates: 1,
            ..self.shape
        };
        Self { shape, ..self }
    }

    /// Padded states and categories, of matrices and of partials in double precision.
    pub(crate) fn shape(self) -> Shape {
        self.shape
    }

    /// The shape of partials in single precision; none if they are doubles.
    pub(crate) fn single(self) -> Option<SingleShape> {
        self.single
    }

    /// The instructions that this machine has.
    pub(crate) fn isa(self) -> Isa {
        self.isa
    }

    /// Numbers of one span of partials.
    pub(crate) fn span(self) -> usize {
        match self.single {
            Some(shape) => 8 * shape.span(),
            None => self.shape.span(),
        }
    }

    /// Bytes of one span of partials.
    pub(crate) fn span_bytes(self) -> usize {
        let bytes = match self.single {
            Some(_) => size_of::<f32>(),
            None => size_of::<f64>(),
        };
        self.span().saturating_mul(bytes)
    }

    /// Place in a span of a category's first state; the others follow it.
    pub(crate) fn place(self, category: usize) -> usize {
        match self.single {
            Some(shape) => shape.place(category),
            None => category * self.shape.states,
        }
    }

    fn is_fast(self) -> bool {
        self.shape.states <= STATES_MAX && self.shape.rates <= RATES_MAX
    }

    /// The product of both sides moved over their branches, class by class. `scratch` has a count
    /// for each class and category.
    pub(crate) fn newview(
        self,
        left: &Operand<'_>,
        right: &Operand<'_>,
        values: &mut [Quad],
        scratch: &mut [u16],
    ) {
        if self.is_fast() {
            // The last argument is off: the client scales, pattern by pattern.
            newview(self.isa, self.shape, left, right, values, scratch, false);
            return;
        }
        let states = self.shape.states;
        let (mut x, mut y) = (vec![0.0; states], vec![0.0; states]);
        let spans = values
            .as_flattened_mut()
            .chunks_exact_mut(self.shape.span());
        // There may be room for more spans than there are classes.
        for (class, span) in spans.enumerate().take(classes(left)) {
            for (rate, out) in span.chunks_exact_mut(states).enumerate() {
                self.arrive(left, class, rate, &mut x);
                self.arrive(right, class, rate, &mut y);
                for ((out, x), y) in out.iter_mut().zip(&x).zip(&y) {
                    *out = x * y;
                }
            }
        }
    }

    /// Pre-order partials: the parent's, which are its table, times what arrives from the sibling,
    /// moved down the node's own branch by its transposed matrix.
    pub(crate) fn newview_pre_order(
        self,
        parent: &Tip<'_>,
        sibling: &Operand<'_>,
        own: &[Quad],
        values: &mut [Quad],
    ) {
        if self.is_fast() {
            return newview_pre_order(self.isa, self.shape, parent, sibling, own, values);
        }
        let states = self.shape.states;
        let (mut x, mut y) = (vec![0.0; states], vec![0.0; states]);
        let spans = values
            .as_flattened_mut()
            .chunks_exact_mut(self.shape.span());
        for (class, span) in spans.enumerate().take(parent.index.len()) {
            for (rate, out) in span.chunks_exact_mut(states).enumerate() {
                self.arrive(&Operand::Tip(*parent), class, rate, &mut x);
                self.arrive(sibling, class, rate, &mut y);
                x.iter_mut().zip(&y).for_each(|(x, y)| *x *= y);
                self.product(own, rate, &x, out);
            }
        }
    }

    /// Of each pattern the sums over categories, by their weights, of `near` times `moved` and of
    /// `near` times `still`.
    pub(crate) fn pre_order_sums(
        self,
        near: &Tip<'_>,
        moved: &Operand<'_>,
        still: &Tip<'_>,
        weights: &[f64],
        to: [&mut [Quad]; 2],
    ) {
        if self.is_fast() {
            let (isa, shape) = (self.isa, self.shape);
            return pre_order_sums(isa, shape, near, moved, still, weights, to);
        }
        let mut spans = [(); 3].map(|()| vec![0.0; self.shape.states]);
        let sides = [Operand::Tip(*near), *moved, Operand::Tip(*still)];
        let [above, below] = to.map(<[Quad]>::as_flattened_mut);
        let sums = above.iter_mut();
        let sums = sums.zip(below).take(near.index.len());
        for (pattern, (above, below)) in sums.enumerate() {
            // The memory is used again and holds the sums of the last call.
            (*above, *below) = (0.0, 0.0);
            for (rate, weight) in weights.iter().enumerate() {
                for (span, side) in spans.iter_mut().zip(&sides) {
                    self.arrive(side, pattern, rate, span);
                }
                let [here, moved, still] = &spans;
                let sum = |other: &[f64]| here.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
                *above += weight * sum(moved);
                *below += weight * sum(still);
            }
        }
    }

    /// The likelihood of each pattern, summed over categories, in `sums`: `near` times what arrives
    /// from the right side, into whose matrix frequencies and weights are folded.
    pub(crate) fn sums(
        self,
        near: &Inner<'_>,
        right: &Operand<'_>,
        terms: &mut [Quad],
        scratch: &mut [u16],
        sums: &mut [Quad],
    ) {
        let rates = self.shape.rates;
        if let (4, 4) = (self.shape.states, rates) {
            let near = Tip {
                table: near.values,
                index: near.index,
            };
            return edge_sums(self.isa, &near, right, sums);
        }
        if self.is_fast() {
            let near = Operand::Inner(*near);
            evaluate(self.isa, self.shape, &near, right, terms, scratch);
            // The terms of four patterns come together, category after category.
            for (sum, terms) in sums.iter_mut().zip(terms.chunks_exact(rates)) {
                *sum = terms[0];
                for more in &terms[1..] {
                    for (sum, more) in sum.iter_mut().zip(more) {
                        *sum += more;
                    }
                }
            }
            return;
        }
        let states = self.shape.states;
        let mut arrived = vec![0.0; states];
        let span = self.shape.span();
        let to = sums.as_flattened_mut();
        to.fill(0.0);
        for (k, &class) in near.index.iter().enumerate() {
            let at = usize::from(class) * span;
            let spans = near.values.as_flattened()[at..at + span].chunks_exact(states);
            for (rate, here) in spans.enumerate() {
                self.arrive(right, k, rate, &mut arrived);
                let products = here
                    .iter()
                    .zip(&arrived)
                    .map(|(here, arrived)| here * arrived);
                to[k] += products.sum::<f64>();
            }
        }
    }

    /// The logarithm of each sum.
    pub(crate) fn logarithms(self, sums: &[Quad], zeros: &[f64], lnl: &mut [f64]) {
        // Categories are summed already, so this kernel sees one.
        let sites = SiteTerms {
            rates: 1,
            terms: sums,
            scalers: &[],
            fixed: zeros,
        };
        // Weights of 0: the weighted sum that it returns is not used.
        combine_sites(self.isa, &sites, &zeros[..lnl.len()], lnl);
    }

    /// One category of a class, moved over its branch.
    fn arrive(self, side: &Operand<'_>, class: usize, rate: usize, to: &mut [f64]) {
        let (states, span) = (self.shape.states, self.shape.span());
        match side {
            Operand::Tip(Tip { table, index }) => {
                let at = usize::from(index[class]) * span + rate * states;
                to.copy_from_slice(&table.as_flattened()[at..at + states]);
            }
            Operand::Inner(inner) => {
                let at = usize::from(inner.index[class]) * span + rate * states;
                let x = &inner.values.as_flattened()[at..at + states];
                self.product(inner.matrix, rate, x, to);
            }
        }
    }

    /// One category's matrix times a vector.
    fn product(self, matrix: &[Quad], rate: usize, x: &[f64], to: &mut [f64]) {
        let states = self.shape.states;
        let block = &matrix.as_flattened()[rate * states * states..];
        to.fill(0.0);
        // By columns, so that the inner loop runs over contiguous memory.
        for (x, column) in x.iter().zip(block.chunks_exact(states)) {
            for (to, entry) in to.iter_mut().zip(column) {
                *to += entry * x;
            }
        }
    }
}

/// Products of matrices by the kernels of nodes.
pub(crate) struct Multiplier {
    kernels: Kernels,
    identity: Vec<u16>,
    zeros: Vec<u16>,
    ones: Buffer,
    scratch: Vec<u16>,
}

impl Multiplier {
    /// For matrices whose right one has `columns` columns, at most 65,536.
    pub(crate) fn new(kernels: Kernels, columns: usize) -> Self {
        // A newview multiplies what arrives from two sides; ones leave the first as it is.
        let mut ones = Buffer::new(kernels.shape().quads());
        ones.doubles_mut().fill(1.0);
        Self {
            kernels,
            identity: (0..=u16::MAX).take(columns).collect(),
            zeros: vec![0; columns],
            ones,
            scratch: vec![0; columns],
        }
    }

    pub(crate) fn multiply(
        &mut self,
        matrix: &[[f64; 4]],
        values: &[[f64; 4]],
        to: &mut [[f64; 4]],
    ) {
        let left = Operand::Inner(Inner {
            matrix,
            values,
            scalers: &[],
            index: &self.identity,
        });
        let right = Operand::Tip(Tip {
            table: self.ones.as_slice(),
            index: &self.zeros,
        });
        self.kernels.newview(&left, &right, to, &mut self.scratch);
    }
}

/// The instruction set of a name, if this machine has it; else the best that it has.
fn isa(named: Option<&str>) -> Isa {
    let found = Isa::all().find(|isa| Some(isa.name()) == named);
    found.unwrap_or_else(Isa::detect)
}

/// Names an instruction set, for tests and measurements.
const VARIABLE: &str = "SIDECORE_BEAGLE_ISA";

fn classes(side: &Operand<'_>) -> usize {
    match side {
        Operand::Tip(tip) => tip.index.len(),
        Operand::Inner(inner) => inner.index.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_instruction_set_is_used_where_the_machine_has_it() {
        for one in Isa::all() {
            assert_eq!(isa(Some(one.name())), one);
        }
        assert_eq!(isa(Some("avx1024")), Isa::detect());
        assert_eq!(isa(None), Isa::detect());
    }
}
