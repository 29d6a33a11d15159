//! A random session of one client: all of its calls follow from a seed, and what they return is
//! written down.

use crate::{Api, Gradients};
use hmsbeagle::abi::{InstanceDetails, NONE, Operation, PartitionOperation, flag};
use sidecore_random::SplitMix;
use std::ffi::{c_int, c_long};
use std::ptr::{null, null_mut};

/// Shape of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    pub(crate) states: usize,
    pub(crate) categories: usize,
    pub(crate) patterns: usize,
    pub(crate) flags: c_long,
    /// Partitions; 1 for calls without.
    pub(crate) partitions: usize,
}

/// Results of the calls, each with a name.
pub(crate) type Log = Vec<(String, Vec<f64>)>;

/// Numbers of one session.
struct Client<'a> {
    api: &'a Api,
    id: c_int,
    config: Config,
    random: SplitMix,
    log: Log,
    tips: usize,
    buffers: usize,
    /// The rate matrix, row by row.
    rate_matrix: Vec<f64>,
    /// True if probabilities may be cut off.
    is_cut: bool,
    rates: Vec<f64>,
    lengths: Vec<f64>,
    operations: Vec<Operation>,
}

/// Plays the session of a seed; with gradients, the calls of version 4, too.
pub(crate) fn play(api: &Api, gradients: Option<&Gradients>, config: Config, seed: u64) -> Log {
    let mut random = SplitMix::new(seed);
    let tips = 4 + random.below(5);
    let tips = usize::try_from(tips).expect("few");
    let buffers = 2 * tips - 1;
    let mut details = InstanceDetails {
        resource_number: 0,
        resource_name: null(),
        impl_name: null(),
        impl_description: null(),
        flags: 0,
    };
    let int = |number: usize| c_int::try_from(number).expect("small");
    // SAFETY: all pointers are null or lead to what the call asks for.
    let id = unsafe {
        (api.create)(
            int(tips),
            // The second half is of pre-order partials.
            int(2 * buffers),
            0,
            int(config.states),
            int(config.patterns),
            2,
            int(3 * buffers + 4),
            int(config.categories),
            int(tips + 1),
            null(),
            0,
            config.flags,
            0,
            &raw mut details,
        )
    };
    assert!(id >= 0, "no instance: {id}");
    let mut client = Client {
        api,
        id,
        config,
        random,
        log: Log::new(),
        tips,
        buffers,
        rate_matrix: Vec::new(),
        is_cut: false,
        rates: Vec::new(),
        lengths: Vec::new(),
        operations: Vec::new(),
    };
    client.set_data();
    client.set_model();
    client.matrices();
    client.partials();
    client.edge();
    if let Some(gradients) = gradients {
        client.gradient(gradients);
    }
    // SAFETY: the instance is there.
    assert_eq!(unsafe { (api.finalize)(id) }, 0);
    client.log
}

impl Client<'_> {
    fn uniform(&mut self) -> f64 {
        self.random.unit()
    }

    fn list(&mut self, length: usize, least: f64, most: f64) -> Vec<f64> {
        (0..length)
            .map(|_| least + (most - least) * self.uniform())
            .collect()
    }

    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("small");
        usize::try_from(self.random.below(limit)).expect("small")
    }

    fn note(&mut self, name: &str, code: c_int, values: &[f64]) {
        let all = std::iter::once(f64::from(code)).chain(values.iter().copied());
        self.log.push((name.to_owned(), all.collect()));
    }

    fn is(&self, wanted: c_long) -> bool {
        self.config.flags & wanted != 0
    }

    fn set_data(&mut self) {
        let Config {
            states, patterns, ..
        } = self.config;
        for tip in 0..self.tips {
            let at = int(tip);
            let code = match self.below(3) {
                0 => {
                    let partials = self.list(patterns * states, 0.0, 1.0);
                    // SAFETY: as many as asked for.
                    unsafe { (self.api.tip_partials)(self.id, at, partials.as_ptr()) }
                }
                _ => {
                    let codes = (0..patterns).map(|_| int(self.below(states + 1)));
                    let codes: Vec<c_int> = codes.collect();
                    // SAFETY: as many as asked for.
                    unsafe { (self.api.tip_states)(self.id, at, codes.as_ptr()) }
                }
            };
            self.note("tip", code, &[]);
        }
        let weights: Vec<f64> = (0..patterns)
            .map(|_| f64::from(1 + int(self.below(5))))
            .collect();
        // SAFETY: as many as asked for.
        let code = unsafe { (self.api.pattern_weights)(self.id, weights.as_ptr()) };
        self.note("pattern weights", code, &[]);
        if self.config.partitions > 1 {
            let partitions = self.config.partitions;
            let of: Vec<c_int> = (0..patterns)
                .map(|k| int(k * partitions / patterns))
                .collect();
            // SAFETY: as many as asked for.
            let code = unsafe { (self.api.partitions)(self.id, int(partitions), of.as_ptr()) };
            self.note("partitions", code, &[]);
        }
    }

    fn set_model(&mut self) {
        let Config {
            states, categories, ..
        } = self.config;
        let mut frequencies = self.list(states, 0.2, 1.0);
        let sum: f64 = frequencies.iter().sum();
        frequencies
            .iter_mut()
            .for_each(|frequency| *frequency /= sum);
        let mut weights = self.list(categories, 0.2, 1.0);
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        let rates = self.list(categories, 0.1, 2.0);
        // Right eigenvectors: all ones, and one a state that is orthogonal to the frequencies.
        let mut vectors = vec![0.0; states * states];
        for i in 0..states {
            vectors[i * states] = 1.0;
        }
        for k in 1..states {
            vectors[k * states + k] = 1.0;
            vectors[k] = -frequencies[k] / frequencies[0];
        }
        let inverse = inverse(&vectors, states);
        let mut values = vec![0.0; states];
        // With different values some rates are negative, and probabilities are cut off at 0.
        self.is_cut = self.below(2) == 0;
        let spread = if self.is_cut { 0.1 } else { 0.0 };
        for value in &mut values[1..] {
            *value = -1.0 - spread * self.uniform();
        }
        self.rate_matrix = vec![0.0; states * states];
        for (at, entry) in self.rate_matrix.iter_mut().enumerate() {
            let (i, j) = (at / states, at % states);
            let terms =
                (0..states).map(|k| vectors[i * states + k] * values[k] * inverse[k * states + j]);
            *entry = terms.sum();
        }
        self.rates.clone_from(&rates);
        if self.is(flag::EIGEN_COMPLEX) {
            let mut imaginary = vec![0.0; states];
            if states > 2 {
                imaginary[1] = 0.3;
                imaginary[2] = -0.3;
                values[2] = values[1];
            }
            values.extend(imaginary);
        }
        // SAFETY: as many as asked for.
        unsafe {
            let api = self.api;
            let id = self.id;
            let code = (api.eigen)(id, 1, vectors.as_ptr(), inverse.as_ptr(), values.as_ptr());
            self.note("eigen", code, &[]);
            let code = (api.frequencies)(id, 0, frequencies.as_ptr());
            self.note("frequencies", code, &[]);
            let code = (api.weights)(id, 0, weights.as_ptr());
            self.note("weights", code, &[]);
            let code = (api.rates)(id, rates.as_ptr());
            self.note("rates", code, &[]);
        }
    }

    /// The first matrices are probabilities, then as many first and second derivatives.
    fn matrices(&mut self) {
        let edges = self.buffers;
        let lengths = self.list(edges, 0.01, 0.8);
        self.lengths.clone_from(&lengths);
        let indices = |from: usize| {
            (0..edges)
                .map(move |k| int(from + k))
                .collect::<Vec<c_int>>()
        };
        let (zero, one, two) = (indices(0), indices(edges), indices(2 * edges));
        let derivatives = !self.is(flag::EIGEN_COMPLEX);
        let [one, two] = [&one, &two].map(|all| if derivatives { all.as_ptr() } else { null() });
        // SAFETY: as many as the count says.
        let code = unsafe {
            let lengths = lengths.as_ptr();
            (self.api.matrices)(self.id, 1, zero.as_ptr(), one, two, lengths, int(edges))
        };
        self.note("matrices", code, &[]);
        let orders = if derivatives { 3 } else { 1 };
        for index in 0..orders * edges {
            self.note_matrix(index);
        }
        let (first, second, result) = ([0], [1], [int(3 * edges)]);
        // SAFETY: one of each.
        let code = unsafe {
            let result = result.as_ptr();
            (self.api.convolve)(self.id, first.as_ptr(), second.as_ptr(), result, 1)
        };
        self.note("convolve", code, &[]);
        self.note_matrix(3 * edges);
        let entries = self.config.categories * self.config.states * self.config.states;
        let rows = self.list(entries, 0.0, 1.0);
        // SAFETY: as many as asked for.
        let code =
            unsafe { (self.api.set_matrix)(self.id, int(3 * edges + 1), rows.as_ptr(), 1.0) };
        self.note("set matrix", code, &[]);
        self.note_matrix(3 * edges + 1);
    }

    fn note_matrix(&mut self, index: usize) {
        let entries = self.config.categories * self.config.states * self.config.states;
        let mut rows = vec![0.0; entries];
        // SAFETY: as many as asked for.
        let code = unsafe { (self.api.matrix)(self.id, int(index), rows.as_mut_ptr()) };
        self.note(&format!("matrix {index}"), code, &rows);
    }

    /// A random tree from the tips to a root; some operations scale.
    fn partials(&mut self) {
        let manual = !self.is(flag::SCALING_AUTO | flag::SCALING_ALWAYS | flag::SCALING_DYNAMIC);
        // Automatic scaling has one buffer for sums; where all is scaled, clients have none.
        let cumulative = if self.is(flag::SCALING_AUTO) {
            0
        } else {
            int(self.tips)
        };
        if manual {
            // SAFETY: plain numbers.
            let code = unsafe { (self.api.reset)(self.id, cumulative) };
            self.note("reset", code, &[]);
        }
        let mut roots: Vec<usize> = (0..self.tips).collect();
        let mut operations = Vec::new();
        let mut written = Vec::new();
        for node in self.tips..self.buffers {
            let (a, b) = (self.below(roots.len()), self.below(roots.len() - 1));
            let child1 = roots.swap_remove(a);
            let child2 = roots.swap_remove(b);
            roots.push(node);
            let scales = manual && self.below(2) == 0;
            if scales {
                written.push(int(node - self.tips));
            }
            operations.push(Operation {
                destination: int(node),
                scale_write: if scales { int(node - self.tips) } else { NONE },
                scale_read: NONE,
                child1: int(child1),
                matrix1: int(child1),
                child2: int(child2),
                matrix2: int(child2),
            });
        }
        self.operations.clone_from(&operations);
        let code = self.update(&operations);
        self.note("update", code, &[]);
        for node in self.tips..self.buffers {
            // What automatic scaling does to partials is each library's own.
            // The other library gets partials wrong where it has padded patterns or states.
            if !self.is(flag::SCALING_AUTO)
                && self.config.patterns.is_multiple_of(4)
                && self.config.states.is_multiple_of(2)
            {
                self.note_partials(node);
            }
        }
        let indices = match self.is(flag::SCALING_AUTO) {
            true => (self.tips..self.buffers).map(int).collect(),
            false => written,
        };
        let mut scale = NONE;
        if !self.is(flag::SCALING_ALWAYS) && !indices.is_empty() {
            let (count, api) = (int(indices.len()), self.api);
            // SAFETY: as many as the count says.
            let code = unsafe { (api.accumulate)(self.id, indices.as_ptr(), count, cumulative) };
            self.note("accumulate", code, &[]);
            scale = cumulative;
            if manual && self.below(2) == 0 {
                // SAFETY: as above.
                let codes = unsafe {
                    [
                        (api.remove)(self.id, indices.as_ptr(), count, cumulative),
                        (api.accumulate)(self.id, indices.as_ptr(), count, cumulative),
                    ]
                };
                self.note("remove", codes[0], &[f64::from(codes[1])]);
            }
        }
        self.root(self.buffers - 1, scale);
        if manual && self.config.partitions == 1 {
            // Old factors again.
            for operation in &mut operations {
                std::mem::swap(&mut operation.scale_write, &mut operation.scale_read);
            }
            let code = self.update(&operations);
            self.note("update with old factors", code, &[]);
            self.root(self.buffers - 1, scale);
        }
    }

    fn update(&mut self, operations: &[Operation]) -> c_int {
        let count = int(operations.len());
        if self.config.partitions == 1 {
            // SAFETY: as many as the count says.
            return unsafe { (self.api.update)(self.id, operations.as_ptr(), count, NONE) };
        }
        let mut code = 0;
        for partition in 0..self.config.partitions {
            let operations = operations.iter().map(|operation| PartitionOperation {
                operation: *operation,
                partition: int(partition),
                cumulative: NONE,
            });
            let operations: Vec<PartitionOperation> = operations.collect();
            // SAFETY: as many as the count says.
            code += unsafe { (self.api.update_by_partition)(self.id, operations.as_ptr(), count) };
        }
        code
    }

    fn note_partials(&mut self, node: usize) {
        let Config {
            states,
            patterns,
            categories,
            ..
        } = self.config;
        let mut values = vec![0.0; states * patterns * categories];
        // SAFETY: as many as asked for.
        let code = unsafe { (self.api.partials)(self.id, int(node), NONE, values.as_mut_ptr()) };
        self.note(&format!("partials {node}"), code, &values);
    }

    fn root(&mut self, node: usize, scale: c_int) {
        let (node, zero, scale) = (int(node), 0, scale);
        let mut sum = 0.0;
        let (id, api) = (self.id, self.api);
        if self.config.partitions == 1 {
            // SAFETY: one of each.
            let code = unsafe {
                let zero = &raw const zero;
                (api.root)(
                    id,
                    &raw const node,
                    zero,
                    zero,
                    &raw const scale,
                    1,
                    &raw mut sum,
                )
            };
            self.note("root", code, &[sum]);
        } else {
            let count = self.config.partitions;
            let all = |value: c_int| vec![value; count];
            let (nodes, zeros, scales) = (all(node), all(0), all(scale));
            let partitions: Vec<c_int> = (0..count).map(int).collect();
            let mut each = vec![0.0; count];
            // SAFETY: one of each a partition.
            let code = unsafe {
                (api.root_by_partition)(
                    id,
                    nodes.as_ptr(),
                    zeros.as_ptr(),
                    zeros.as_ptr(),
                    scales.as_ptr(),
                    partitions.as_ptr(),
                    int(count),
                    1,
                    each.as_mut_ptr(),
                    &raw mut sum,
                )
            };
            each.push(sum);
            self.note("root by partition", code, &each);
        }
        let mut sites = vec![0.0; self.config.patterns];
        // SAFETY: as many as asked for.
        let code = unsafe { (api.site_lnl)(id, sites.as_mut_ptr()) };
        self.note("sites", code, &sites);
    }

    /// The edge from the root to a tip, with both derivatives.
    fn edge(&mut self) {
        let scaled = self.is(flag::SCALING_AUTO | flag::SCALING_DYNAMIC);
        if scaled || self.config.partitions > 1 {
            return;
        }
        let edges = int(self.buffers);
        let tip = int(self.below(self.tips));
        let (parent, zero, none) = (edges - 1, 0, NONE);
        let indices = [tip, edges + tip, 2 * edges + tip];
        let mut sums = [0.0; 3];
        let derivatives = !self.is(flag::EIGEN_COMPLEX);
        let [one, two] = [1, 2].map(|order| match derivatives {
            true => &raw const indices[order],
            false => null(),
        });
        let (id, api) = (self.id, self.api);
        let [lnl, first, second] = &mut sums;
        // SAFETY: one of each.
        let code = unsafe {
            (api.edge)(
                id,
                &raw const parent,
                &raw const tip,
                &raw const indices[0],
                one,
                two,
                &raw const zero,
                &raw const zero,
                &raw const none,
                1,
                lnl,
                first,
                second,
            )
        };
        self.note("edge", code, &sums);
        if derivatives {
            let patterns = self.config.patterns;
            let (mut first, mut second) = (vec![0.0; patterns], vec![0.0; patterns]);
            // SAFETY: as many as asked for.
            let code =
                unsafe { (api.site_derivatives)(id, first.as_mut_ptr(), second.as_mut_ptr()) };
            first.extend(second);
            self.note("derivatives", code, &first);
        }
    }
}

/// Calls of version 4.
impl Client<'_> {
    /// Pre-order partials of all nodes, and derivatives by all branches but the root's.
    fn gradient(&mut self, api: &Gradients) {
        let edges = self.buffers;
        self.matrices_of_version_4(api);
        let mut operations = std::mem::take(&mut self.operations);
        for operation in &mut operations {
            (operation.scale_write, operation.scale_read) = (NONE, NONE);
        }
        // Scale factors of old operations may be dynamic: these have none.
        if self.is(flag::SCALING_DYNAMIC) {
            return;
        }
        let code = self.update(&operations);
        self.note("update without scaling", code, &[]);
        let root = int(2 * edges - 1);
        let zero = 0;
        // SAFETY: one of each.
        let code = unsafe { (api.root_pre)(self.id, &raw const root, &raw const zero, 1) };
        self.note("root's pre-order partials", code, &[]);
        let mut below = Vec::new();
        for operation in operations.iter().rev() {
            let children = [operation.child1, operation.child2];
            for [child, sibling] in [children, [children[1], children[0]]] {
                below.push(Operation {
                    destination: int(edges) + child,
                    scale_write: NONE,
                    scale_read: NONE,
                    child1: int(edges) + operation.destination,
                    matrix1: child,
                    child2: sibling,
                    matrix2: sibling,
                });
            }
        }
        let code = self.update_pre(api, &below);
        self.note("pre-order", code, &[]);
        let nodes: Vec<c_int> = (0..int(edges) - 1).collect();
        let exact = self.config.patterns.is_multiple_of(4) && self.config.states.is_multiple_of(2);
        for &node in &nodes {
            // What automatic scaling does to partials is each library's own.
            if exact && !self.is(flag::SCALING_AUTO) {
                self.note_partials(edges + usize::try_from(node).expect("small"));
            }
        }
        let slopes = self.note_slopes(api, &nodes);
        self.note_cross_products(api, &nodes);
        self.compare_with_differences(&operations, &slopes);
    }

    fn update_pre(&self, api: &Gradients, operations: &[Operation]) -> c_int {
        let count = int(operations.len());
        if self.config.partitions == 1 {
            // SAFETY: as many as the count says.
            return unsafe { (api.update_pre)(self.id, operations.as_ptr(), count, NONE) };
        }
        let partitions = 0..self.config.partitions;
        partitions
            .map(|partition| {
                let operations = operations.iter().map(|operation| PartitionOperation {
                    operation: *operation,
                    partition: int(partition),
                    cumulative: NONE,
                });
                let operations: Vec<PartitionOperation> = operations.collect();
                // SAFETY: as many as the count says.
                unsafe { (api.update_pre_by_partition)(self.id, operations.as_ptr(), count) }
            })
            .sum()
    }

    fn note_slopes(&mut self, api: &Gradients, nodes: &[c_int]) -> Vec<f64> {
        let (count, edges) = (nodes.len(), self.buffers);
        let Config { states, .. } = self.config;
        let index = int(3 * edges + 2);
        let rows: Vec<f64> = self
            .rates
            .iter()
            .flat_map(|rate| self.rate_matrix.iter().map(move |entry| entry * rate))
            .collect();
        assert_eq!(rows.len(), self.rates.len() * states * states);
        // SAFETY: as many as asked for.
        let code = unsafe { (api.differential)(self.id, index, rows.as_ptr()) };
        self.note("differential", code, &[]);
        let pre: Vec<c_int> = nodes.iter().map(|node| node + int(edges)).collect();
        let (matrices, zeros) = (vec![index; count], vec![0; count]);
        let mut each = vec![0.0; count * self.config.patterns];
        let (mut sums, mut squares) = (vec![0.0; count], vec![0.0; count]);
        // SAFETY: as many as the count says.
        let code = unsafe {
            (api.slopes)(
                self.id,
                nodes.as_ptr(),
                pre.as_ptr(),
                matrices.as_ptr(),
                zeros.as_ptr(),
                int(count),
                each.as_mut_ptr(),
                sums.as_mut_ptr(),
                squares.as_mut_ptr(),
            )
        };
        self.note("slopes of patterns", code, &each);
        self.note("slopes", code, &sums);
        self.note("squares", code, &squares);
        sums
    }

    fn note_cross_products(&mut self, api: &Gradients, nodes: &[c_int]) {
        let pre: Vec<c_int> = nodes.iter().map(|node| node + int(self.buffers)).collect();
        let zeros = vec![0; nodes.len()];
        let mut products = vec![0.0; self.config.states * self.config.states];
        // SAFETY: as many as the count says; the last is not written.
        let code = unsafe {
            (api.cross)(
                self.id,
                nodes.as_ptr(),
                pre.as_ptr(),
                zeros.as_ptr(),
                zeros.as_ptr(),
                self.lengths.as_ptr(),
                int(nodes.len()),
                products.as_mut_ptr(),
                null_mut(),
            )
        };
        self.note("cross products", code, &products);
    }

    fn matrices_of_version_4(&mut self, api: &Gradients) {
        let (from, to) = ([0], [int(3 * self.buffers + 3)]);
        // SAFETY: one of each.
        let code = unsafe { (api.transpose)(self.id, from.as_ptr(), to.as_ptr(), 1) };
        self.note("transpose", code, &[]);
        self.note_matrix(3 * self.buffers + 3);
        let models = vec![1; self.config.categories];
        // SAFETY: one of each, and a model for each category.
        let code = unsafe {
            let (models, lengths) = (models.as_ptr(), self.lengths.as_ptr());
            (api.of_categories)(self.id, models, to.as_ptr(), null(), null(), lengths, 1)
        };
        self.note("models of categories", code, &[]);
        self.note_matrix(3 * self.buffers + 3);
    }

    /// A slope is what the likelihood changes by with the length of its branch.
    fn compare_with_differences(&mut self, operations: &[Operation], slopes: &[f64]) {
        let single = self.is(flag::PRECISION_SINGLE) && !self.is(flag::PRECISION_DOUBLE);
        let other = self.is(flag::SCALING_AUTO | flag::EIGEN_COMPLEX | flag::INVEVEC_TRANSPOSED);
        if single || other || self.is_cut || self.config.partitions > 1 {
            return;
        }
        let noted = self.log.len();
        for node in [0, self.tips, slopes.len() - 1] {
            let length = self.lengths[node];
            let [less, more] = [-STEP, STEP].map(|step| {
                let (index, length) = (int(node), length + step);
                // SAFETY: one of each.
                let code = unsafe {
                    let (index, length) = (&raw const index, &raw const length);
                    (self.api.matrices)(self.id, 1, index, null(), null(), length, 1)
                };
                assert_eq!(code, 0);
                assert_eq!(self.update(operations), 0);
                self.root(self.buffers - 1, NONE);
                let (_, root) = &self.log[self.log.len() - 2];
                root[1]
            });
            let difference = (more - less) / (2.0 * STEP);
            let far = (difference - slopes[node]).abs();
            assert!(
                far < 1e-4 * (1.0 + difference.abs()),
                "node {node}: slope {} instead of {difference}",
                slopes[node]
            );
        }
        self.log.truncate(noted);
    }
}

const STEP: f64 = 1e-5;

fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("small")
}

/// The inverse of a matrix, row by row, by elimination.
fn inverse(matrix: &[f64], size: usize) -> Vec<f64> {
    let mut rows: Vec<Vec<f64>> = matrix.chunks(size).map(<[f64]>::to_vec).collect();
    for (i, row) in rows.iter_mut().enumerate() {
        row.extend((0..size).map(|j| if i == j { 1.0 } else { 0.0 }));
    }
    for column in 0..size {
        let pivot =
            (column..size).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()));
        rows.swap(column, pivot.expect("a row"));
        let scale = rows[column][column];
        rows[column].iter_mut().for_each(|entry| *entry /= scale);
        let pivot_row = rows[column].clone();
        for (i, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if i != column && factor != 0.0 {
                for (entry, pivot) in row.iter_mut().zip(&pivot_row) {
                    *entry -= factor * pivot;
                }
            }
        }
    }
    rows.iter()
        .flat_map(|row| row[size..].iter().copied())
        .collect()
}
