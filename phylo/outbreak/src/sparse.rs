//! The sparse likelihood: lists of two branches merged at a node, the likelihood of a branch as a
//! function of its length, and the score of a genome at a point of the tree.
//!
//! Sites at which two lists have no entry are counted, base by base, and never visited. Must stay
//! true: all factors are returned as logarithms, so that the sum over a tree is its log-likelihood.
//! The error is bounded: a site at which both sides have the same base becomes that base
//! alone, though another would be possible with two substitutions more (a share of the product of
//! both lengths); so do four numbers of which all but one are below [`SMALL`]. Source: De Maio and
//! others, "Maximum likelihood pandemic-scale phylogenetics", Nature Genetics 55 (2023), 746-752;
//! lengths by the derivative over the modes of `model`, which is ours.

use crate::genome::{Builder, Genome, Pair, Pairs, Reference, Side};
use crate::model::{LENGTH_TINY, Rates, sum};

/// The reference and the rates that lists are computed under.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) reference: Reference,
    pub(crate) rates: Rates,
    /// Number of each base in the reference.
    pub(crate) totals: [f64; 4],
}

impl Space {
    pub(crate) fn new(reference: Reference, rates: Rates) -> Self {
        let totals = reference.totals();
        Self {
            reference,
            rates,
            totals,
        }
    }

    /// The length of a branch with one substitution.
    pub(crate) fn one(&self) -> f64 {
        1.0 / self.totals.iter().sum::<f64>().max(1.0)
    }

    /// The log-likelihood of a sequence alone.
    pub(crate) fn lnl_alone(&self, genome: &Genome) -> f64 {
        // As if all sites were the reference's, then corrected where they are not: the time is in
        // proportion to the differences.
        let logs = self.rates.frequencies.map(libm::log);
        let mut lnl = sum(|x| self.totals[x] * logs[x]);
        for pair in Pairs::new(genome, &Genome::default()) {
            let counts = self.reference.counts(pair.start, pair.end);
            lnl -= sum(|x| counts[x] * logs[x]);
            lnl += self.lnl_known(pair.a, counts);
        }
        lnl
    }

    /// Of sites at which nothing else is known.
    fn lnl_known(&self, side: Side<'_>, counts: [f64; 4]) -> f64 {
        let frequencies = &self.rates.frequencies;
        match side {
            Side::Unknown => 0.0,
            // The distance does not matter: frequencies are stationary, so they hold at any depth.
            Side::Same(_) => sum(|x| counts[x] * libm::log(frequencies[x])),
            Side::Base(base, _) => libm::log(frequencies[base]),
            Side::Mixed(vector) => libm::log(sum(|x| frequencies[x] * f64::from(vector[x]))),
        }
    }
}

/// Transition probabilities over a length, and over it and a further distance.
#[derive(Debug)]
pub(crate) struct Far<'s> {
    space: &'s Space,
    length: f64,
    matrix: [[f64; 4]; 4],
    /// Logarithms of the probabilities of no change.
    stays: [f64; 4],
    /// The last distance, and the matrix over the length and that.
    further: (f64, [[f64; 4]; 4]),
}

impl<'s> Far<'s> {
    pub(crate) fn new(space: &'s Space, length: f64) -> Self {
        let matrix = space.rates.transitions(length);
        Self {
            space,
            length,
            matrix,
            stays: std::array::from_fn(|x| libm::log(matrix[x][x])),
            further: (0.0, matrix),
        }
    }

    fn matrix(&mut self, distance: f64) -> &[[f64; 4]; 4] {
        if distance == 0.0 {
            return &self.matrix;
        }
        // Neighbouring entries come from the same merge and mostly share their distance; a matrix
        // costs four exponentials.
        if self.further.0 != distance {
            let matrix = self.space.rates.transitions(self.length + distance);
            self.further = (distance, matrix);
        }
        &self.further.1
    }

    /// For each base at this end the probability of what is at the far end; `own` is the
    /// reference's base.
    fn vector(&mut self, side: Side<'_>, own: usize) -> [f64; 4] {
        let (base, distance) = match side {
            Side::Unknown => return [1.0; 4],
            Side::Mixed(vector) => {
                // Four numbers hold at the point itself: a merge has moved them there, so no
                // distance is left.
                let matrix = &self.matrix;
                return std::array::from_fn(|x| sum(|y| matrix[x][y] * f64::from(vector[y])));
            }
            Side::Same(distance) => (own, distance),
            Side::Base(base, distance) => (base, distance),
        };
        let matrix = self.matrix(distance);
        std::array::from_fn(|x| matrix[x][base])
    }

    /// Logarithm of the probability that some sites stay as they are.
    fn stays(&mut self, distance: f64, counts: [f64; 4]) -> f64 {
        if distance == 0.0 {
            return sum(|x| counts[x] * self.stays[x]);
        }
        let matrix = self.matrix(distance);
        sum(|x| match counts[x] > 0.0 {
            // A base that is not there may have the probability 0: 0 times its logarithm is no
            // number.
            true => counts[x] * libm::log(matrix[x][x]),
            false => 0.0,
        })
    }
}

/// A product of many factors, as a logarithm.
#[derive(Debug, Clone, Copy)]
struct Product {
    factor: f64,
    log: f64,
}

impl Product {
    fn new(log: f64) -> Self {
        Self { factor: 1.0, log }
    }

    #[inline]
    fn times(&mut self, factor: f64) {
        self.factor *= factor;
        // One logarithm for many factors.
        if self.factor < FACTOR_LEAST {
            // A factor of 0 would be minus infinity for ever: no other factor could tell two places
            // apart.
            self.log += libm::log(self.factor.max(f64::MIN_POSITIVE));
            self.factor = 1.0;
        }
    }

    fn log(self) -> f64 {
        self.log + libm::log(self.factor.max(f64::MIN_POSITIVE))
    }
}

/// The number that a vector's values are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Norm {
    /// The largest of them.
    Largest,
    /// Their mean by the bases' frequencies.
    Mean,
}

/// Writes the list of the point at which two branches meet to `out`; returns the logarithm of what
/// its vectors were divided by.
pub(crate) fn merge(
    space: &Space,
    (a, a_length): (&Genome, f64),
    (b, b_length): (&Genome, f64),
    out: &mut Builder,
) -> f64 {
    let (a_far, b_far) = (Far::new(space, a_length), Far::new(space, b_length));
    join(space, (a, a_far), (b, b_far), Norm::Largest, out)
}

/// The list of a branch's midpoint: its vectors have the mean 1.
pub(crate) fn middle(
    space: &Space,
    upper: &Genome,
    lower: &Genome,
    length: f64,
    out: &mut Builder,
) -> Genome {
    let far = || Far::new(space, 0.5 * length);
    join(space, (upper, far()), (lower, far()), Norm::Mean, out);
    out.take()
}

fn join(
    space: &Space,
    (a, mut a_far): (&Genome, Far<'_>),
    (b, mut b_far): (&Genome, Far<'_>),
    norm: Norm,
    out: &mut Builder,
) -> f64 {
    // A list that a caller left without taking it would otherwise stand in front of this one.
    out.clear();
    let all = |far: &Far<'_>| sum(|x| space.totals[x] * far.stays[x]);
    // All sites as if none changed on either branch; each pair below takes its own sites out again.
    let mut product = Product::new(all(&a_far) + all(&b_far));
    for pair in Pairs::new(a, b) {
        let counts = space.reference.counts(pair.start, pair.end);
        product.log -= sum(|x| counts[x] * (a_far.stays[x] + b_far.stays[x]));
        match (pair.a, pair.b) {
            // Where one side says nothing, nothing can be decided at this node: the branch is added
            // to the distance, and its factor is paid where the other side is known.
            (Side::Unknown, Side::Unknown) => out.unknown(pair.start, pair.end),
            (Side::Unknown, Side::Same(distance)) => {
                out.same(pair.start, pair.end, distance + b_far.length);
            }
            (Side::Same(distance), Side::Unknown) => {
                out.same(pair.start, pair.end, distance + a_far.length);
            }
            (Side::Same(near), Side::Same(far)) => {
                product.log += a_far.stays(near, counts) + b_far.stays(far, counts);
            }
            (Side::Unknown, Side::Base(base, distance)) => {
                out.base(pair.start, base, distance + b_far.length);
            }
            (Side::Base(base, distance), Side::Unknown) => {
                out.base(pair.start, base, distance + a_far.length);
            }
            _ => site(
                space,
                pair,
                (&mut a_far, &mut b_far),
                norm,
                out,
                &mut product,
            ),
        }
    }
    product.log()
}

/// A single site at which both sides say something, or one of them has four numbers.
fn site(
    space: &Space,
    pair: Pair<'_>,
    (a_far, b_far): (&mut Far<'_>, &mut Far<'_>),
    norm: Norm,
    out: &mut Builder,
    product: &mut Product,
) {
    let own = space.reference.base(pair.start);
    let a = a_far.vector(pair.a, own);
    let b = b_far.vector(pair.b, own);
    let vector: [f64; 4] = std::array::from_fn(|x| a[x] * b[x]);
    let (best, largest) = (0..4).fold((0, 0.0), |best, x| match vector[x] > best.1 {
        true => (x, vector[x]),
        false => best,
    });
    let same = match (pair.a, pair.b) {
        (Side::Base(x, _), Side::Base(y, _)) => x == y,
        _ => false,
    };
    // Two equal bases are decided even on long branches: the module's documentation bounds that
    // error.
    let total = sum(|x| vector[x]);
    // Both have one base, or all others are as good as impossible.
    if same || largest <= 0.0 || total - largest < SMALL * total {
        product.times(largest);
        // The reference's own base is the absence of an entry, which keeps lists short.
        if best != own {
            out.base(pair.start, best, 0.0);
        }
        return;
    }
    let by = match norm {
        Norm::Largest => largest,
        Norm::Mean => sum(|x| space.rates.frequencies[x] * vector[x]),
    };
    // Without this the numbers of a deep tree would leave the range of f32.
    product.times(by);
    out.mixed(pair.start, vector.map(|value| value / by));
}

/// The logarithm of how probable `query` is on a branch from a point, relative to the point without
/// it. `middle` is the point's list, of mean 1. Ends early, with some lower number, once the result
/// is below `floor`.
pub(crate) fn score(middle: &Genome, query: &Genome, pendant: &mut Far<'_>, floor: f64) -> f64 {
    let space = pendant.space;
    let frequencies = &space.rates.frequencies;
    // Sites that do not stay are taken out below, so the logarithm may rise, but to no more than 0
    // of this part.
    let stays = sum(|x| space.totals[x] * pendant.stays[x]);
    let mut product = Product::new(stays);
    let mut pending = 0_u8;
    for pair in Pairs::new(middle, query) {
        let counts = space.reference.counts(pair.start, pair.end);
        product.log -= sum(|x| counts[x] * pendant.stays[x]);
        match (pair.a, pair.b) {
            // Nothing is said: no factor.
            (_, Side::Unknown) => continue,
            (Side::Unknown, side) => product.log += space.lnl_known(side, counts),
            (Side::Same(near), Side::Same(far)) => {
                product.log += pendant.stays(near + far, counts);
            }
            (Side::Mixed(vector), side) => {
                let far = pendant.vector(side, space.reference.base(pair.start));
                // By the mean of 1 these are posteriors, so the sum is the query's probability
                // given the tree.
                let both = |x: usize| frequencies[x] * f64::from(vector[x]) * far[x];
                product.times(sum(both));
            }
            (side, Side::Mixed(vector)) => {
                let (base, distance) = single(side, space.reference.base(pair.start));
                let row = pendant.matrix(distance)[base];
                product.times(sum(|y| row[y] * f64::from(vector[y])));
            }
            (a, b) => {
                let own = space.reference.base(pair.start);
                let ((x, near), (y, far)) = (single(a, own), single(b, own));
                product.times(pendant.matrix(near + far)[x][y]);
                pending += 1;
                // A difference costs about ten: a look after a few of them.
                if pending == LOOK_EVERY {
                    pending = 0;
                    let sofar = product.log();
                    // Taking sites out adds no more than `-stays` in all, so the end would be below
                    // the floor for certain.
                    if sofar < floor + stays {
                        return sofar;
                    }
                }
            }
        }
    }
    product.log()
}

/// Base and distance of a side that has one base.
fn single(side: Side<'_>, own: usize) -> (usize, f64) {
    match side {
        Side::Base(base, distance) => (base, distance),
        Side::Same(distance) => (own, distance),
        // The callers have dealt with these.
        Side::Unknown | Side::Mixed(_) => (own, 0.0),
    }
}

/// The log-likelihood of a branch between two lists, as a function of its length.
#[derive(Debug)]
pub(crate) struct Edge<'s> {
    rates: &'s Rates,
    /// Number of sites at which both ends have a base, base by base.
    stays: [f64; 4],
    /// Other sites: weights of the modes, the likelihood without a length, and how many they are.
    terms: Vec<([f64; 4], f64, f64)>,
    /// The part that does not depend on the length.
    constant: f64,
}

impl<'s> Edge<'s> {
    pub(crate) fn new(space: &'s Space, a: &Genome, b: &Genome) -> Self {
        let mut edge = Self {
            rates: &space.rates,
            stays: space.totals,
            terms: Vec::new(),
            constant: 0.0,
        };
        for pair in Pairs::new(a, b) {
            let counts = space.reference.counts(pair.start, pair.end);
            edge.leave(counts);
            match (pair.a, pair.b) {
                (Side::Unknown, side) | (side, Side::Unknown) => {
                    edge.constant += space.lnl_known(side, counts);
                }
                (Side::Same(near), Side::Same(far)) => {
                    // One term a base, not a site: runs may be thousands of sites long.
                    for (base, count) in (0..).zip(counts).filter(|&(_, count)| count > 0.0) {
                        edge.pair([base; 2], near + far, count);
                    }
                }
                (Side::Base(x, near), Side::Base(y, far)) if x == y && near + far == 0.0 => {
                    edge.stays[x] += 1.0;
                }
                (Side::Mixed(_), _) | (_, Side::Mixed(_)) => {
                    let own = space.reference.base(pair.start);
                    let a = end(space, pair.a, own);
                    let b = end(space, pair.b, own);
                    edge.site(a, b);
                }
                (a, b) => {
                    let own = space.reference.base(pair.start);
                    let ((x, near), (y, far)) = (single(a, own), single(b, own));
                    edge.pair([x, y], near + far, 1.0);
                }
            }
        }
        let stays = edge.stays;
        edge.constant += sum(|x| stays[x] * libm::log(space.rates.frequencies[x]));
        edge
    }

    fn leave(&mut self, counts: [f64; 4]) {
        self.stays
            .iter_mut()
            .zip(counts)
            .for_each(|(stays, count)| *stays -= count);
    }

    /// Sites of these bases at the two ends, `distance` apart without the branch.
    fn pair(&mut self, [x, y]: [usize; 2], distance: f64, count: f64) {
        let rates = self.rates;
        let plain: [f64; 4] = std::array::from_fn(|k| rates.modes[k][x] * rates.modes[k][y]);
        let own = if x == y { rates.frequencies[x] } else { 0.0 };
        if distance == 0.0 {
            self.terms.push((plain, own, count));
            return;
        }
        // The distance goes into the weights once: the exponentials of length and distance
        // multiply, and each evaluation pays for the length alone.
        let grown = rates.values.map(|value| libm::expm1(value * distance));
        let at = own + sum(|k| plain[k] * grown[k]);
        let weights = std::array::from_fn(|k| plain[k] * (1.0 + grown[k]));
        self.terms.push((weights, at.max(0.0), count));
    }

    /// A site of any two vectors at the ends.
    fn site(&mut self, a: [f64; 4], b: [f64; 4]) {
        let rates = self.rates;
        // Projected on the modes, any two ends are four weights: a length costs four terms a site.
        let along = |side: [f64; 4], k: usize| sum(|x| rates.modes[k][x] * side[x]);
        let weights = std::array::from_fn(|k| along(a, k) * along(b, k));
        let at = sum(|x| rates.frequencies[x] * a[x] * b[x]);
        self.terms.push((weights, at, 1.0));
    }

    /// The log-likelihood at a length.
    pub(crate) fn lnl(&self, length: f64) -> f64 {
        let length = length.max(LENGTH_TINY);
        let growth = self.rates.values.map(|value| libm::expm1(value * length));
        let mut lnl = self.constant;
        for (x, count) in (0..4).zip(self.stays).filter(|&(_, count)| count > 0.0) {
            let own = sum(|k| self.rates.modes[k][x] * self.rates.modes[k][x] * growth[k]);
            // Close to 1 for short branches, and multiplied by tens of thousands of sites: `log` of
            // a rounded value would lose all digits that matter.
            lnl += count * libm::log1p(own / self.rates.frequencies[x]);
        }
        let mut product = Product::new(lnl);
        for (weights, at, count) in &self.terms {
            let value = (at + sum(|k| weights[k] * growth[k])).max(f64::MIN_POSITIVE);
            match *count == 1.0 {
                true => product.times(value),
                false => product.log += count * libm::log(value),
            }
        }
        product.log()
    }

    /// First and second derivative of the log-likelihood at a length.
    fn slopes(&self, length: f64) -> [f64; 2] {
        let values = self.rates.values;
        let growth = values.map(|value| libm::expm1(value * length));
        let speed: [f64; 4] = std::array::from_fn(|k| values[k] * (1.0 + growth[k]));
        let (mut first, mut second) = (0.0, 0.0);
        let mut add = |weights: &[f64; 4], at: f64, count: f64| {
            let value = (at + sum(|k| weights[k] * growth[k])).max(f64::MIN_POSITIVE);
            let slope = sum(|k| weights[k] * speed[k]) / value;
            let curve = sum(|k| weights[k] * values[k] * speed[k]) / value;
            first += count * slope;
            // The second derivative of a logarithm: f''/f less the square of f'/f.
            second += count * (curve - slope * slope);
        };
        for (x, count) in (0..4).zip(self.stays).filter(|&(_, count)| count > 0.0) {
            let weights = std::array::from_fn(|k| {
                self.rates.modes[k][x] * self.rates.modes[k][x] / self.rates.frequencies[x]
            });
            add(&weights, 1.0, count);
        }
        for (weights, at, count) in &self.terms {
            add(weights, *at, *count);
        }
        [first, second]
    }

    /// The length of the highest likelihood: Newton's steps within an interval that halves where
    /// they leave it. 0 where any length lowers the likelihood.
    pub(crate) fn best_length(&self, start: f64) -> f64 {
        let (mut low, mut high) = (LENGTH_TINY, LENGTH_MAX);
        // The maximum is at the edge: without this Newton's steps would creep towards 0 for all
        // rounds.
        if self.slopes(low)[0] <= 0.0 {
            return 0.0;
        }
        let mut at = start.clamp(low, high);
        for _ in 0..STEPS_MAX {
            let [slope, curve] = self.slopes(at);
            match slope > 0.0 {
                true => low = at,
                false => high = at,
            }
            let newton = at - slope / curve;
            // Also where the curve is no cap, or the step is no number.
            let next = match curve < 0.0 && newton > low && newton < high {
                true => newton,
                false if high == LENGTH_MAX => (8.0 * at).min(0.5 * (low + high)),
                false => 0.5 * (low + high),
            };
            let step = (next - at).abs();
            at = next;
            if step <= LENGTH_SHARE * at {
                break;
            }
        }
        at
    }

    /// Expected number of substitutions on a branch of this length, for each ordered pair of bases,
    /// added to `counts`. Hidden ones, two at a site, are left out.
    pub(crate) fn count_substitutions(
        space: &Space,
        (a, b): (&Genome, &Genome),
        length: f64,
        counts: &mut [[f64; 4]; 4],
    ) {
        // Sites without an entry and runs of the reference have no substitution, up to two at a
        // site.
        let matrix = space.rates.transitions(length);
        for pair in Pairs::new(a, b) {
            match (pair.a, pair.b) {
                (Side::Unknown, _) | (_, Side::Unknown) | (Side::Same(_), Side::Same(_)) => {}
                (Side::Mixed(_), _) | (_, Side::Mixed(_)) => {
                    let own = space.reference.base(pair.start);
                    let a = end(space, pair.a, own);
                    let b = end(space, pair.b, own);
                    let joint = |x: usize, y: usize| {
                        space.rates.frequencies[x] * a[x] * matrix[x][y] * b[y]
                    };
                    // Bayes' rule: the share of each pair of bases among all that explain the site.
                    let all = sum(|x| sum(|y| joint(x, y))).max(f64::MIN_POSITIVE);
                    for [x, y] in ORDERED {
                        counts[x][y] += joint(x, y) / all;
                    }
                }
                (a, b) => {
                    let own = space.reference.base(pair.start);
                    let ((x, near), (y, far)) = (single(a, own), single(b, own));
                    if x != y {
                        // The rest of it happened on the branches in front and behind.
                        counts[x][y] += length / (length + near + far).max(LENGTH_TINY);
                    }
                }
            }
        }
    }
}

/// For each base at a branch's end the probability of what is seen there and beyond.
fn end(space: &Space, side: Side<'_>, own: usize) -> [f64; 4] {
    if let Side::Mixed(vector) = side {
        return vector.map(f64::from);
    }
    let (base, distance) = single(side, own);
    match distance > 0.0 {
        true => {
            let matrix = space.rates.transitions(distance);
            std::array::from_fn(|x| matrix[x][base])
        }
        false => std::array::from_fn(|x| if x == base { 1.0 } else { 0.0 }),
    }
}

/// Four numbers are one base once all others are below this share of their sum.
const SMALL: f64 = 1e-8;
/// Below this a product is written as a logarithm.
const FACTOR_LEAST: f64 = 1e-200;
/// Differences between two looks at a score.
const LOOK_EVERY: u8 = 4;
/// The longest branch that is fitted, in substitutions a site.
const LENGTH_MAX: f64 = 1.0;
/// A fit of a length ends with steps below this share.
const LENGTH_SHARE: f64 = 1e-4;
const STEPS_MAX: usize = 60;
/// Ordered pairs of different bases.
const ORDERED: [[usize; 2]; 12] = [
    [0, 1],
    [0, 2],
    [0, 3],
    [1, 0],
    [1, 2],
    [1, 3],
    [2, 0],
    [2, 1],
    [2, 3],
    [3, 0],
    [3, 1],
    [3, 2],
];
