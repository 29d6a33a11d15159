//! The kernels compared with sums by the definition, and with one another.

use super::repeats::{Classes, Pairs};
use super::*;
use crate::random::Random;
use proptest::prelude::*;

/// Operands with everything random.
struct Side {
    tip: bool,
    matrix: Buffer,
    values: Buffer,
    scalers: Vec<u16>,
    table: Buffer,
    index: Vec<u16>,
}

impl Side {
    fn new(shape: Shape, patterns: usize, tip: bool, least: f64, random: &mut Random) -> Self {
        let classes = 1 + random.below(patterns as u64) as usize;
        let fill = |buffer: &mut Buffer, random: &mut Random, factor: f64| {
            let values = buffer.doubles_mut();
            values
                .iter_mut()
                .for_each(|value| *value = factor * (0.01 + random.unit()));
        };
        let mut matrix = Buffer::new(shape.matrix() / QUAD);
        fill(&mut matrix, random, 1.0);
        let mut values = Buffer::new(classes * shape.quads());
        fill(&mut values, random, 1.0);
        // Some rates of some classes are tiny.
        for rate in values.doubles_mut().chunks_mut(shape.states) {
            if random.below(3) == 0 {
                rate.iter_mut().for_each(|value| *value *= least);
            }
        }
        let mut table = Buffer::new(classes * shape.quads());
        fill(&mut table, random, 1.0);
        let scalers = if random.below(2) == 0 {
            (0..classes * shape.rates)
                .map(|_| random.below(4) as u16)
                .collect()
        } else {
            Vec::new()
        };
        let index = (0..patterns)
            .map(|_| random.below(classes as u64) as u16)
            .collect();
        Self {
            tip,
            matrix,
            values,
            scalers,
            table,
            index,
        }
    }

    fn operand(&self) -> Operand<'_> {
        if self.tip {
            Operand::Tip(Tip {
                table: self.table.as_slice(),
                index: &self.index,
            })
        } else {
            Operand::Inner(Inner {
                matrix: self.matrix.as_slice(),
                values: self.values.as_slice(),
                scalers: &self.scalers,
                index: &self.index,
            })
        }
    }

    fn count(&self, shape: Shape, pattern: usize, rate: usize) -> i32 {
        let at = usize::from(self.index[pattern]) * shape.rates + rate;
        if self.tip {
            0
        } else {
            self.scalers.get(at).copied().unwrap_or(0).into()
        }
    }

    /// The value at the node after the branch's transition, by the definition.
    fn arrived(&self, shape: Shape, pattern: usize, rate: usize, state: usize) -> f64 {
        let n = shape.states;
        let at = usize::from(self.index[pattern]) * shape.span() + rate * n;
        if self.tip {
            return self.table.doubles()[at + state];
        }
        let block = &self.matrix.doubles()[rate * n * n..][..n * n];
        (0..n)
            .map(|j| block[j * n + state] * self.values.doubles()[at + j])
            .sum()
    }
}

fn near_to(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

fn shapes() -> impl Strategy<Value = Shape> {
    let states =
        prop_oneof![3 => Just(4), 3 => Just(20), 1 => Just(8), 1 => Just(24), 1 => Just(64)];
    let any = (states, 1_usize..=6).prop_map(|(states, rates)| Shape { states, rates });
    // Without scaling this one has a loop of its own.
    let usual = Just(Shape {
        states: 4,
        rates: 4,
    });
    prop_oneof![1 => usual, 2 => any]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn newview_is_its_definition(
        shape in shapes(), patterns in 1_usize..70, left in any::<bool>(), right in any::<bool>(),
        tiny in any::<bool>(), scale in any::<bool>(), seed in any::<u64>()
    ) {
        let mut random = Random::new(seed);
        let least = if tiny { 1e-70 } else { 1.0 };
        let a = Side::new(shape, patterns, left, least, &mut random);
        let b = Side::new(shape, patterns, right, least, &mut random);
        for isa in Isa::all() {
            let mut out = Buffer::new(patterns * shape.quads());
            let mut counts = vec![77; patterns * shape.rates];
            let values = out.as_mut_slice();
            let scaled =
                newview(isa, shape, &a.operand(), &b.operand(), values, &mut counts, scale);
            for pattern in 0..patterns {
                for rate in 0..shape.rates {
                    let at = pattern * shape.span() + rate * shape.states;
                    let own = &out.doubles()[at..at + shape.states];
                    let exact: Vec<f64> = (0..shape.states)
                        .map(|i| {
                            a.arrived(shape, pattern, rate, i) * b.arrived(shape, pattern, rate, i)
                        })
                        .collect();
                    let below = scale && exact.iter().all(|value| *value < THRESHOLD);
                    let children = a.count(shape, pattern, rate) + b.count(shape, pattern, rate);
                    let count = children + i32::from(below);
                    let found = if scaled { counts[pattern * shape.rates + rate] } else { 0 };
                    prop_assert_eq!(i32::from(found), count);
                    for (own, exact) in own.iter().zip(&exact) {
                        let exact = if below { exact * SCALE } else { *exact };
                        prop_assert!(near_to(*own, exact), "{} {}", own, exact);
                    }
                }
            }
        }
    }

    #[test]
    fn pre_order_is_its_definition(
        shape in shapes(), patterns in 1_usize..70, tip in any::<bool>(), seed in any::<u64>()
    ) {
        let mut random = Random::new(seed);
        let parent = Side::new(shape, patterns, true, 1.0, &mut random);
        let sibling = Side::new(shape, patterns, tip, 1.0, &mut random);
        let still = Side::new(shape, patterns, true, 1.0, &mut random);
        let own = Side::new(shape, patterns, false, 1.0, &mut random);
        let Operand::Tip(parent_tip) = parent.operand() else { unreachable!() };
        let Operand::Tip(still_tip) = still.operand() else { unreachable!() };
        let weights: Vec<f64> = (0..shape.rates).map(|rate| 0.1 + rate as f64).collect();
        for isa in Isa::all() {
            let mut out = Buffer::new(patterns * shape.quads());
            let (values, matrix) = (out.as_mut_slice(), own.matrix.as_slice());
            newview_pre_order(isa, shape, &parent_tip, &sibling.operand(), matrix, values);
            let [mut above, mut below] = [0, 1].map(|_| Buffer::new(patterns.div_ceil(QUAD)));
            let to = [above.as_mut_slice(), below.as_mut_slice()];
            let moved = sibling.operand();
            pre_order_sums(isa, shape, &parent_tip, &moved, &still_tip, &weights, to);
            for pattern in 0..patterns {
                let mut sums = [0.0; 2];
                for (rate, weight) in weights.iter().enumerate() {
                    let at_parent = |i| parent.arrived(shape, pattern, rate, i);
                    let arrived = |i| sibling.arrived(shape, pattern, rate, i);
                    for i in 0..shape.states {
                        sums[0] += weight * at_parent(i) * arrived(i);
                        sums[1] += weight * at_parent(i) * still.arrived(shape, pattern, rate, i);
                        let terms = (0..shape.states).map(|j| {
                            let at = (rate * shape.states + j) * shape.states + i;
                            own.matrix.doubles()[at] * at_parent(j) * arrived(j)
                        });
                        let exact: f64 = terms.sum();
                        let at = pattern * shape.span() + rate * shape.states + i;
                        let found = out.doubles()[at];
                        prop_assert!(near_to(found, exact), "{} {}", found, exact);
                    }
                }
                let found = [above.doubles()[pattern], below.doubles()[pattern]];
                for (found, exact) in found.into_iter().zip(sums) {
                    prop_assert!(near_to(found, exact), "{} {}", found, exact);
                }
            }
        }
    }

    #[test]
    fn evaluate_is_its_definition(
        shape in shapes(), patterns in 1_usize..70, tip in any::<bool>(), seed in any::<u64>()
    ) {
        let mut random = Random::new(seed);
        let a = Side::new(shape, patterns, false, 1e-60, &mut random);
        let b = Side::new(shape, patterns, tip, 1e-60, &mut random);
        let fixed: Vec<f64> = (0..patterns).map(|k| if k % 3 == 0 { 0.02 } else { 0.0 }).collect();
        let weights: Vec<f64> = (0..patterns).map(|k| 1.0 + (k % 4) as f64).collect();
        for isa in Isa::all() {
            let mut terms = Buffer::new(patterns.div_ceil(QUAD) * shape.rates);
            let mut counts = vec![0; patterns * shape.rates];
            let to = terms.as_mut_slice();
            let scaled = evaluate(isa, shape, &a.operand(), &b.operand(), to, &mut counts);
            let mut site_lnl = vec![0.0; patterns];
            let sites = SiteTerms {
                rates: shape.rates,
                terms: terms.as_slice(),
                scalers: if scaled { &counts } else { &[] },
                fixed: &fixed,
            };
            let sum = combine_sites(isa, &sites, &weights, &mut site_lnl);
            let mut exact_sum = 0.0;
            for pattern in 0..patterns {
                let mut likelihood = fixed[pattern];
                for rate in 0..shape.rates {
                    let at = usize::from(a.index[pattern]) * shape.span() + rate * shape.states;
                    let term: f64 = (0..shape.states)
                        .map(|i| {
                            a.values.doubles()[at + i] * b.arrived(shape, pattern, rate, i)
                        })
                        .sum();
                    let count = a.count(shape, pattern, rate) + b.count(shape, pattern, rate);
                    likelihood += term * THRESHOLD.powi(count);
                }
                // A strongly scaled likelihood underflows a double: it is checked by the sums only.
                if likelihood > 1e-290 {
                    let (found, exact) = (site_lnl[pattern], likelihood.ln());
                    // A likelihood near 1 has a logarithm near 0, which keeps its absolute error.
                    let near = near_to(found, exact) || (found - exact).abs() <= 1e-15;
                    prop_assert!(near, "{} {}", found, exact);
                    exact_sum += weights[pattern] * likelihood.ln();
                } else {
                    prop_assert!(site_lnl[pattern] < -600.0 && site_lnl[pattern].is_finite());
                    exact_sum += weights[pattern] * site_lnl[pattern];
                }
            }
            prop_assert!(near_to(sum, exact_sum), "{} {}", sum, exact_sum);
        }
    }

    #[test]
    fn insertions_are_their_definition(
        shape in shapes(), patterns in 1_usize..70, tip in any::<bool>(), seed in any::<u64>()
    ) {
        let mut random = Random::new(seed);
        let sides = [false, tip, false]
            .map(|tip| Side::new(shape, patterns, tip, 1e-60, &mut random));
        let [near, far, below] = &sides;
        let mut bits = Vec::new();
        for isa in Isa::all() {
            let mut terms = Buffer::new(patterns.div_ceil(QUAD) * shape.rates);
            let mut counts = vec![0; patterns * shape.rates];
            let to = terms.as_mut_slice();
            let [x, y, z] = [near, far, below].map(Side::operand);
            let scaled = super::simd::insert(isa, shape, &x, &y, &z, to, &mut counts);
            for pattern in 0..patterns {
                for rate in 0..shape.rates {
                    let at = usize::from(below.index[pattern]) * shape.span() + rate * shape.states;
                    let exact: f64 = (0..shape.states)
                        .map(|i| {
                            near.arrived(shape, pattern, rate, i)
                                * far.arrived(shape, pattern, rate, i)
                                * below.values.doubles()[at + i]
                        })
                        .sum();
                    let four = pattern / QUAD * shape.rates + rate;
                    let found = terms.as_slice()[four][pattern % QUAD];
                    prop_assert!(near_to(found, exact), "{} {}", found, exact);
                    let counts_of = sides.iter().map(|side| side.count(shape, pattern, rate));
                    let count: i32 = counts_of.sum();
                    let own = if scaled { counts[pattern * shape.rates + rate] } else { 0 };
                    prop_assert_eq!(i32::from(own), count);
                }
            }
            bits.push(terms.doubles().iter().map(|term| term.to_bits()).collect::<Vec<_>>());
        }
        // All but plain arithmetic fuse alike.
        prop_assert!(bits[1..].windows(2).all(|two| two[0] == two[1]));
    }

    #[test]
    fn a_branchs_matrices_are_their_definition(
        shape in shapes(), length in 1e-8_f64..20.0, seed in any::<u64>()
    ) {
        let n = shape.states;
        let mut random = Random::new(seed);
        let mut fill = |count: usize, low: f64, high: f64| -> Vec<f64> {
            (0..count).map(|_| low + (high - low) * random.unit()).collect()
        };
        let mut values = fill(n, -3.0, 0.0);
        values[n / 2] = 0.0;
        let (right, left) = (fill(n * n, -1.0, 1.0), fill(n * n, -1.0, 1.0));
        let rates = fill(shape.rates, 0.01, 3.0);
        let eigen = Eigen { shape, values: &values, right: &right, left: &left, rates: &rates };
        let mut bits = Vec::new();
        for isa in Isa::all() {
            let mut matrix = Buffer::new(shape.matrix() / QUAD);
            let mut spans = Buffer::new(3 * shape.quads());
            transitions(isa, &eigen, length, matrix.as_mut_slice());
            powers(isa, &eigen, length, spans.as_mut_slice());
            for (r, rate) in rates.iter().enumerate() {
                for j in 0..n {
                    for i in 0..n {
                        let grown = |k: usize| libm::expm1(values[k] * rate * length);
                        let sum: f64 =
                            (0..n).map(|k| right[k * n + i] * grown(k) * left[j * n + k]).sum();
                        let exact = (sum + f64::from(u8::from(i == j))).max(0.0);
                        let found = matrix.doubles()[(r * n + j) * n + i];
                        prop_assert!((found - exact).abs() < 1e-13, "{} {}", found, exact);
                    }
                    let (slope, at) = (values[j] * rate, r * n + j);
                    for order in 0..3 {
                        let exact = slope.powi(order) * libm::exp(slope * length);
                        let found = spans.doubles()[order as usize * shape.span() + at];
                        prop_assert!(near_to(found, exact), "{} {}", found, exact);
                    }
                }
            }
            let both = matrix.doubles().iter().chain(spans.doubles());
            bits.push(both.map(|value| value.to_bits()).collect::<Vec<_>>());
        }
        // All but plain arithmetic fuse alike.
        prop_assert!(bits[1..].windows(2).all(|two| two[0] == two[1]));
    }

    /// Two classes at a time give the same bits as one at a time; with odd numbers of classes, and
    /// where only some of a group are scaled.
    #[test]
    fn wide_registers_change_no_bit(
        shape in shapes(), patterns in 1_usize..70, left in any::<bool>(), right in any::<bool>(),
        least in prop_oneof![Just(1.0), Just(1e-70), Just(1e-40)], scale in any::<bool>(),
        seed in any::<u64>()
    ) {
        let mut random = Random::new(seed);
        let a = Side::new(shape, patterns, left, least, &mut random);
        let b = Side::new(shape, patterns, right, least, &mut random);
        let near = Side::new(shape, patterns, false, least, &mut random);
        let found = Isa::all().skip(1).map(|isa| {
            let mut out = Buffer::new(patterns * shape.quads());
            let mut counts = vec![0; patterns * shape.rates];
            let values = out.as_mut_slice();
            newview(isa, shape, &a.operand(), &b.operand(), values, &mut counts, scale);
            let mut terms = Buffer::new(patterns.div_ceil(QUAD) * shape.rates);
            let mut scalers = vec![0; patterns * shape.rates];
            let to = terms.as_mut_slice();
            evaluate(isa, shape, &near.operand(), &b.operand(), to, &mut scalers);
            let bits = |buffer: &Buffer| -> Vec<u64> {
                buffer.doubles().iter().map(|value| value.to_bits()).collect()
            };
            (bits(&out), counts, bits(&terms), scalers)
        });
        let found: Vec<_> = found.collect();
        prop_assert!(found.windows(2).all(|two| two[0] == two[1]));
    }

    #[test]
    fn sums_at_an_edge_are_their_definition(
        patterns in 1_usize..70, right in any::<bool>(), seed in any::<u64>()
    ) {
        let shape = Shape { states: 4, rates: 4 };
        let mut random = Random::new(seed);
        let near = Side::new(shape, patterns, true, 1.0, &mut random);
        let far = Side::new(shape, patterns, right, 1.0, &mut random);
        let tip = Tip { table: near.table.as_slice(), index: &near.index };
        let mut bits = Vec::new();
        for isa in Isa::all() {
            let mut sums = Buffer::new(patterns.div_ceil(QUAD));
            edge_sums(isa, &tip, &far.operand(), sums.as_mut_slice());
            for (pattern, sum) in sums.doubles().iter().enumerate() {
                let entries = (0..if pattern < patterns { 16 } else { 0 }).map(|at| {
                    let [rate, state] = [at / 4, at % 4];
                    let here = near.arrived(shape, pattern, rate, state);
                    here * far.arrived(shape, pattern, rate, state)
                });
                prop_assert!(near_to(*sum, entries.sum()));
            }
            bits.push(sums.doubles().iter().map(|sum| sum.to_bits()).collect::<Vec<_>>());
        }
        prop_assert!(bits[1..].windows(2).all(|two| two[0] == two[1]));
    }

    #[test]
    fn products_of_eigenvectors_are_their_definition(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let mut quads = || -> [Quad; 4] { [[0.0; 4]; 4].map(|quad| quad.map(|_| random.unit())) };
        let (vectors, inverse, factors) = (quads(), quads(), quads());
        for isa in Isa::all() {
            let mut out = [[0.0; 4]; 16];
            spectral_products(isa, &vectors, &inverse, &factors, &mut out);
            for (at, found) in out.as_flattened().iter().enumerate() {
                let [rate, column, row] = [at / 16, at / 4 % 4, at % 4];
                let terms = (0..4).map(|k| vectors[k][row] * factors[rate][k] * inverse[k][column]);
                prop_assert!(near_to(*found, terms.sum()));
            }
        }
    }

    #[test]
    fn numbers_of_any_size_become_their_exponentials(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let odd = [f64::NEG_INFINITY, 0.0, -0.0, f64::NAN];
        let below = [0.0; 4].map(|_| -100.0 * random.unit());
        let above = [0.0; 4].map(|_| 10.0 * random.unit() - 5.0);
        for isa in Isa::all() {
            let mut found = [odd, below, above];
            exponentiate(isa, &mut found);
            prop_assert!(found[0][..3] == [0.0, 1.0, 1.0] && found[0][3].is_nan());
            for (found, x) in found[1..].as_flattened().iter().zip([below, above].as_flattened()) {
                prop_assert!((found / x.exp() - 1.0).abs() < 1e-15);
            }
        }
    }

    #[test]
    fn derivatives_are_their_definition(
        shape in shapes(), patterns in 1_usize..50, seed in any::<u64>()
    ) {
        let mut random = Random::new(seed);
        let mut fill = |quads: usize| {
            let mut buffer = Buffer::new(quads);
            buffer.doubles_mut().iter_mut().for_each(|value| *value = random.unit());
            buffer
        };
        let (table, powers) = (fill(patterns * shape.quads()), fill(3 * shape.quads()));
        let fixed: Vec<f64> = (0..patterns).map(|k| 0.1 * (k % 3) as f64).collect();
        let weights: Vec<f64> = (0..patterns).map(|k| 1.0 + (k % 4) as f64).collect();
        let (mut first, mut second) = (0.0, 0.0);
        for pattern in 0..patterns {
            let row = &table.doubles()[pattern * shape.span()..][..shape.span()];
            let dot = |k: usize| -> f64 {
                let powers = &powers.doubles()[k * shape.span()..][..shape.span()];
                row.iter().zip(powers).map(|(a, b)| a * b).sum()
            };
            let likelihood = dot(0) + fixed[pattern];
            let slope = dot(1) / likelihood;
            first += weights[pattern] * slope;
            second += weights[pattern] * (dot(2) / likelihood - slope * slope);
        }
        for isa in Isa::all() {
            let (table, powers) = (table.as_slice(), powers.as_slice());
            let found = derivatives(isa, shape, table, powers, &fixed, &weights);
            prop_assert!((found.first - first).abs() < 1e-10 * first.abs().max(1.0));
            prop_assert!((found.second - second).abs() < 1e-10 * second.abs().max(100.0));
        }
    }

    #[test]
    fn classes_are_the_pairs(
        pairs in proptest::collection::vec((0_u16..9, 0_u16..9), 1..200), again in any::<bool>()
    ) {
        let (left, right): (Vec<u16>, Vec<u16>) = pairs.iter().copied().unzip();
        // Many classes are hashed, few are looked up.
        for counts in [[9, 9], [4_000, 4_000]] {
            let mut patterns = (left.clone(), right.clone());
            while patterns.0.len() < 5_000 {
                patterns.0.extend(&left);
                patterns.1.extend(&right);
            }
            let (left, right) = patterns;
            let (mut classes, mut table) = (Classes::default(), Pairs::default());
            if again {
                classes.join(&right, &left, counts, &mut table);
            }
            classes.join(&left, &right, counts, &mut table);
            let of_pattern = classes.of_pattern().unwrap();
            let [of_left, of_right] = classes.children().unwrap();
            for (pattern, class) in of_pattern.iter().enumerate() {
                let class = usize::from(*class);
                let pair = (left[pattern], right[pattern]);
                prop_assert_eq!((of_left[class], of_right[class]), pair);
            }
            let distinct: std::collections::HashSet<_> = pairs.iter().collect();
            prop_assert_eq!(classes.count(), distinct.len());
        }
    }
}

#[test]
fn a_child_that_tells_patterns_apart_leaves_them_apart() {
    let codes: Vec<u16> = (0..100).collect();
    let (mut classes, mut table) = (Classes::default(), Pairs::default());
    classes.join(&codes, &codes, [100, 100], &mut table);
    assert!(classes.of_pattern().is_none() && classes.children().is_none());
    assert_eq!(classes.count(), 100);
}

#[test]
fn an_index_beyond_its_operand_is_refused() {
    let shape = Shape {
        states: 4,
        rates: 4,
    };
    let mut random = Random::new(3);
    let good = Side::new(shape, 20, false, 1.0, &mut random);
    let mut bad = Side::new(shape, 20, false, 1.0, &mut random);
    bad.index[17] = 500;
    for isa in Isa::all() {
        let result = std::panic::catch_unwind(|| {
            let mut out = Buffer::new(20 * shape.quads());
            let mut counts = vec![0; 80];
            let out = out.as_mut_slice();
            newview(
                isa,
                shape,
                &good.operand(),
                &bad.operand(),
                out,
                &mut counts,
                true,
            )
        });
        assert!(result.is_err(), "{isa:?}");
    }
}
