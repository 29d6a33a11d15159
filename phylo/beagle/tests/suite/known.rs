//! Values that are known without another BEAGLE.
//!
//! Random sessions, compared call by call with the BEAGLE that is installed.

use crate::session::{Config, Log, play};
use crate::{Api, Gradients};
use hmsbeagle::abi::{InstanceDetails, NONE, Operation, flag};
use sidecore_likelihood::kernel::Isa;
use sidecore_likelihood::likelihood::{Likelihood, Options};
use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::msa::{Alignment, Patterns};
use sidecore_likelihood::newick::Newick;
use sidecore_likelihood::runner::Serial;
use sidecore_likelihood::tree::Tree;
use sidecore_random::SplitMix;
use std::ffi::{c_int, c_long};
use std::process::Command;
use std::ptr::{null, null_mut};

const ROWS: [&str; 4] = [
    "ACGTACGTTNGA",
    "ACGTTCGATGGA",
    "AGGTACGTTGCA",
    "AGGTTACTT-CA",
];

/// The likelihood of a tree of four tips by the crate of trees.
fn reference() -> f64 {
    let names = ["a", "b", "c", "d"];
    let fasta: String = names
        .iter()
        .zip(ROWS)
        .map(|(name, row)| format!(">{name}\n{row}\n"))
        .collect();
    let alignment = Alignment::parse(fasta.as_bytes()).expect("an alignment");
    let name = ModelName::parse("JC", &mut |path| std::fs::read_to_string(path)).expect("a model");
    let patterns = Patterns::new(&alignment, name.alphabet()).expect("patterns");
    let newick = Newick::parse("((a:0.1,b:0.2):0.15,c:0.3,d:0.25);").expect("a tree");
    let tree = Tree::from_newick(&newick, alignment.names()).expect("the same names");
    let model = Model::new(name, &patterns);
    let options = Options::default();
    let mut likelihood =
        Likelihood::new(tree, patterns, model, Serial, options).expect("a likelihood");
    likelihood.evaluate().expect("a number")
}

#[test]
fn a_tree_has_the_likelihood_that_the_crate_of_trees_gives_it() {
    let api = Api::ours();
    let sites = c_int::try_from(ROWS[0].len()).expect("few");
    // SAFETY: arrays are as long as the instance says; null is for what is not wanted.
    unsafe {
        let id = (api.create)(4, 6, 4, 4, sites, 1, 5, 1, 1, null(), 0, 0, 0, null_mut());
        assert!(id >= 0);
        for (tip, row) in (0..).zip(ROWS) {
            let codes = row.chars().map(|letter| match "ACGT".find(letter) {
                Some(at) => c_int::try_from(at).expect("few"),
                None => 4,
            });
            let codes: Vec<c_int> = codes.collect();
            assert_eq!((api.tip_states)(id, tip, codes.as_ptr()), 0);
        }
        assert_eq!((api.pattern_weights)(id, [1.0; 12].as_ptr()), 0);
        assert_eq!((api.frequencies)(id, 0, [0.25; 4].as_ptr()), 0);
        assert_eq!((api.weights)(id, 0, [1.0].as_ptr()), 0);
        assert_eq!((api.rates)(id, [1.0].as_ptr()), 0);
        // Jukes and Cantor: Hadamard's matrix is its own inverse but for a factor of 4.
        let hadamard = [
            1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0, -1.0, 1.0,
        ];
        let inverse = hadamard.map(|entry| entry / 4.0);
        let values = [0.0, -4.0 / 3.0, -4.0 / 3.0, -4.0 / 3.0];
        let eigen = (api.eigen)(id, 0, hadamard.as_ptr(), inverse.as_ptr(), values.as_ptr());
        assert_eq!(eigen, 0);
        let (indices, lengths) = ([0, 1, 2, 3, 4], [0.1, 0.2, 0.15, 0.3, 0.25]);
        let lengths = lengths.as_ptr();
        let code = (api.matrices)(id, 0, indices.as_ptr(), null(), null(), lengths, 5);
        assert_eq!(code, 0);
        let operation = |destination, child1, matrix1, child2, matrix2| Operation {
            destination,
            scale_write: NONE,
            scale_read: NONE,
            child1,
            matrix1,
            child2,
            matrix2,
        };
        let operations = [operation(4, 0, 0, 1, 1), operation(5, 4, 2, 2, 3)];
        assert_eq!((api.update)(id, operations.as_ptr(), 2, NONE), 0);
        let (parent, child, matrix, zero, none) = (5, 3, 4, 0, NONE);
        let mut sum = 0.0;
        let code = (api.edge)(
            id,
            &raw const parent,
            &raw const child,
            &raw const matrix,
            null(),
            null(),
            &raw const zero,
            &raw const zero,
            &raw const none,
            1,
            &raw mut sum,
            null_mut(),
            null_mut(),
        );
        assert_eq!(code, 0);
        let expected = reference();
        assert!((sum - expected).abs() < 1e-9, "{sum} instead of {expected}");
        let mut again = 0.0;
        assert_eq!((api.lnl)(id, &raw mut again), 0);
        assert_eq!(sum, again);
        assert_eq!((api.finalize)(id), 0);
    }
}

#[test]
fn second_derivatives_come_without_first_ones() {
    let (api, gradients) = (Api::ours(), Gradients::ours());
    let (length, indices) = (0.3_f64, [0, 1, 2, 3]);
    for states in [4_usize, 5] {
        let count = c_int::try_from(states).expect("few");
        let entries = states * states;
        let diagonal = (0..entries).map(|k| if k % (states + 1) == 0 { 1.0 } else { 0.0 });
        let identity: Vec<f64> = diagonal.collect();
        let (unit, values) = (identity.as_ptr(), vec![-0.5; states]);
        // SAFETY: arrays are as long as the instance says; null is for what is not wanted.
        unsafe {
            let id = (api.create)(3, 5, 0, count, 1, 1, 5, 1, 1, null(), 0, 0, 0, null_mut());
            assert_eq!((api.eigen)(id, 0, unit, unit, values.as_ptr()), 0);
            let (none, time) = (null(), &raw const length);
            let [zero, one, two, three] = indices.each_ref().map(std::ptr::from_ref);
            assert_eq!((api.matrices)(id, 0, zero, none, one, time, 1), 0);
            // The first model, for the one category.
            let code = (gradients.of_categories)(id, zero, two, none, three, time, 1);
            assert_eq!(code, 0);
            for (index, factor) in indices.into_iter().zip([1.0, 0.25, 1.0, 0.25]) {
                let mut rows = vec![7.0; entries];
                assert_eq!((api.matrix)(id, index, rows.as_mut_ptr()), 0);
                let grown = factor * (-0.5 * length).exp();
                for (row, unit) in rows.iter().zip(&identity) {
                    let expected = unit * grown;
                    assert!((row - expected).abs() < 1e-12, "{index}: {row}, {expected}");
                }
            }
            assert_eq!((api.finalize)(id), 0);
        }
    }
}

#[test]
fn rows_of_a_product_sum_to_the_product_of_the_sums() {
    let api = Api::ours();
    let rates = [-3.0, 1.0, 1.0, 1.0, 1.0, -3.0, 1.0, 1.0];
    let rates = [rates, [1.0, 1.0, -3.0, 1.0, 1.0, 1.0, 1.0, -3.0]].concat();
    // SAFETY: arrays are as long as the instance says; null is for what is not wanted.
    unsafe {
        let id = (api.create)(2, 3, 0, 4, 1, 1, 5, 1, 1, null(), 0, 0, 0, null_mut());
        for tip in 0..2 {
            assert_eq!((api.tip_states)(id, tip, [-1].as_ptr()), 0);
        }
        assert_eq!((api.set_matrix)(id, 0, [0.25; 16].as_ptr(), 1.0), 0);
        assert_eq!((api.set_matrix)(id, 1, rates.as_ptr(), 0.0), 0);
        // Of two matrices whose rows sum to 1, and of one with rows of 0 from both sides.
        let (first, second) = ([0, 0, 1], [0, 1, 0]);
        let products = [2, 3, 4];
        let code = (api.convolve)(id, first.as_ptr(), second.as_ptr(), products.as_ptr(), 3);
        assert_eq!(code, 0);
        for (product, sum) in products.into_iter().zip([1.0, 0.0, 0.0]) {
            let operation = Operation {
                destination: 2,
                scale_write: NONE,
                scale_read: NONE,
                child1: 0,
                matrix1: product,
                child2: 1,
                matrix2: 0,
            };
            assert_eq!((api.update)(id, &raw const operation, 1, NONE), 0);
            let mut partials = [7.0; 4];
            assert_eq!((api.partials)(id, 2, NONE, partials.as_mut_ptr()), 0);
            assert_eq!(partials, [sum; 4], "{product}");
        }
        assert_eq!((api.finalize)(id), 0);
    }
}

/// Plays the sessions of some seeds in all shapes, with ours and with the installed library.
fn compare(flags: c_long, partitions: usize, tolerance: f64) {
    let Some(theirs) = Api::installed() else {
        eprintln!("libhmsbeagle.so.1 is not installed: nothing is compared");
        return;
    };
    let ours = Api::ours();
    // Those of version 4 are compared where that is installed. It clears partitions that an
    // operation does not name; of what this session gives as a transposed inverse, it makes
    // likelihoods that are 0.
    let is_same = partitions == 1 && flags & flag::INVEVEC_TRANSPOSED == 0;
    let gradients = Gradients::installed().filter(|_| is_same);
    let gradients = gradients.map(|theirs| (Gradients::ours(), theirs));
    let gradients = gradients.as_ref();
    let mut calls = 0;
    for (seed, states) in (0..).zip([2, 3, 4, 4, 5, 20, 20, 61, 64, 70]) {
        for (categories, patterns) in [(1, 7), (4, 1), (4, 52), (3, 333), (4, 1200), (20, 12)] {
            // Many states are slow in the other library.
            if patterns < partitions || states * states * patterns > 2_000_000 {
                continue;
            }
            let config = Config {
                states,
                categories,
                patterns,
                flags,
                partitions,
            };
            let seed = seed * 1000 + u64::try_from(patterns).expect("small");
            calls += agree(
                config,
                &play(&ours, gradients.map(|both| &both.0), config, seed),
                &play(&theirs, gradients.map(|both| &both.1), config, seed),
                tolerance,
            );
        }
    }
    assert!(calls > 500, "only {calls} calls");
}

fn agree(config: Config, ours: &Log, theirs: &Log, tolerance: f64) -> usize {
    assert_eq!(ours.len(), theirs.len());
    for ((name, ours), (_, theirs)) in ours.iter().zip(theirs) {
        assert_eq!(ours.len(), theirs.len());
        for (at, (a, b)) in ours.iter().zip(theirs).enumerate() {
            let far = (a - b).abs() > tolerance * (1.0 + a.abs().max(b.abs()));
            let same = a == b || (a.is_nan() && b.is_nan());
            assert!(
                same || !far,
                "{config:?}: {name}, value {at}: {a} instead of {b}"
            );
            assert!(
                same || !(a.is_nan() || b.is_nan()),
                "{config:?}: {name}, value {at}: {a}, {b}"
            );
        }
    }
    ours.len()
}

const DOUBLE: c_long = flag::PRECISION_DOUBLE;

#[test]
fn manual_scaling_agrees() {
    compare(DOUBLE, 1, 1e-10);
}

#[test]
fn logarithmic_factors_agree_where_they_are_written() {
    // Factors read again are compared in the raw form alone: the other library divides by
    // logarithms.
    compare(DOUBLE | flag::SCALING_ALWAYS | flag::SCALERS_LOG, 1, 1e-10);
}

#[test]
fn automatic_scaling_agrees() {
    compare(DOUBLE | flag::SCALING_AUTO, 1, 1e-10);
}

/// Log-likelihoods of patterns: of a mixture of two models, and of each model alone.
struct Mixed {
    whole: Vec<f64>,
    alone: [Vec<f64>; 2],
    sum: f64,
}

/// Two models with different lengths on a path of `tips` tips, under automatic scaling.
fn mixed(api: &Api, tips: c_int, is_edge: bool) -> Mixed {
    const PATTERNS: usize = 37;
    let (inner, zero, one) = (tips - 1, 0, 1);
    let root = |model: c_int| tips + (model + 1) * inner - 1;
    let all = c_int::try_from(PATTERNS).expect("few");
    let flags = flag::PRECISION_DOUBLE | flag::SCALING_AUTO;
    let (none, buffers, scales) = (null(), tips + 2 * inner, 2 * inner);
    let mut details = InstanceDetails {
        resource_number: 0,
        resource_name: null(),
        impl_name: null(),
        impl_description: null(),
        flags: 0,
    };
    // SAFETY: arrays are as long as the instance says; null is for what is not wanted.
    unsafe {
        let buffers = buffers - tips;
        let flags = (0, flags);
        let id = (api.create)(
            tips,
            buffers,
            tips,
            4,
            all,
            2,
            2,
            1,
            scales,
            none,
            0,
            flags.0,
            flags.1,
            &raw mut details,
        );
        assert!(id >= 0);
        let mut random = SplitMix::new(3);
        for tip in 0..tips {
            let codes = (0..PATTERNS).map(|_| c_int::try_from(random.below(4)).expect("few"));
            let codes: Vec<c_int> = codes.collect();
            assert_eq!((api.tip_states)(id, tip, codes.as_ptr()), 0);
        }
        assert_eq!((api.pattern_weights)(id, [2.0; PATTERNS].as_ptr()), 0);
        assert_eq!((api.frequencies)(id, 0, [0.25; 4].as_ptr()), 0);
        assert_eq!((api.rates)(id, [1.0].as_ptr()), 0);
        let mut operations = Vec::new();
        for (model, (same, weight)) in (0..).zip([(0.4, 0.7), (0.91, 0.3)]) {
            assert_eq!((api.weights)(id, model, [weight].as_ptr()), 0);
            let rows: [f64; 16] =
                std::array::from_fn(|k| if k % 5 == 0 { same } else { (1.0 - same) / 3.0 });
            assert_eq!((api.set_matrix)(id, model, rows.as_ptr(), 1.0), 0);
            for node in 0..inner {
                operations.push(Operation {
                    destination: tips + model * inner + node,
                    scale_write: NONE,
                    scale_read: NONE,
                    child1: if node == 0 {
                        0
                    } else {
                        tips + model * inner + node - 1
                    },
                    matrix1: model,
                    child2: node + 1,
                    matrix2: model,
                });
            }
        }
        let count = c_int::try_from(operations.len()).expect("few");
        assert_eq!((api.update)(id, operations.as_ptr(), count, NONE), 0);
        // At the root, or over the edge from it to a node on the way.
        let (nears, children) = ([root(0), root(1)], [root(0) - 1, root(1) - 1]);
        let likelihood = |first: usize, models: usize| {
            let (indices, zeros) = ([zero, one], [zero; 2]);
            let (mut sum, mut sites) = (0.0, vec![0.0; PATTERNS]);
            let near = nears[first..].as_ptr();
            let weights = indices[first..].as_ptr();
            let count = c_int::try_from(models).expect("few");
            let (zeros, none) = (zeros.as_ptr(), [NONE; 2]);
            let code = if is_edge {
                let child = children[first..].as_ptr();
                let (matrix, null) = (indices[first..].as_ptr(), null());
                let (scales, no) = (none.as_ptr(), null_mut());
                (api.edge)(
                    id,
                    near,
                    child,
                    matrix,
                    null,
                    null,
                    weights,
                    zeros,
                    scales,
                    count,
                    &raw mut sum,
                    no,
                    no,
                )
            } else {
                (api.root)(id, near, weights, zeros, none.as_ptr(), count, &raw mut sum)
            };
            assert_eq!(code, 0);
            assert_eq!((api.site_lnl)(id, sites.as_mut_ptr()), 0);
            (sum, sites)
        };
        let alone = [0, 1].map(|model: c_int| {
            let first = tips + model * inner;
            let nodes: Vec<c_int> = if is_edge {
                // The factors of the node on the way are in the root, too.
                (first..root(model)).chain(first..=root(model)).collect()
            } else {
                (first..=root(model)).collect()
            };
            let count = c_int::try_from(nodes.len()).expect("few");
            assert_eq!((api.accumulate)(id, nodes.as_ptr(), count, NONE), 0);
            likelihood(usize::try_from(model).expect("few"), 1).1
        });
        let (sum, whole) = likelihood(0, 2);
        assert_eq!((api.finalize)(id), 0);
        Mixed { whole, alone, sum }
    }
}

#[test]
fn models_are_mixed_under_automatic_scaling() {
    // Of 900 tips each model's likelihoods are below the smallest double.
    for (tips, is_edge) in [(5, false), (900, false), (5, true), (900, true)] {
        let ours = mixed(&Api::ours(), tips, is_edge);
        let [first, second] = &ours.alone;
        for ((whole, first), second) in ours.whole.iter().zip(first).zip(second) {
            let most = first.max(*second);
            let expected = most + ((first - most).exp() + (second - most).exp()).ln();
            let far = (whole - expected).abs();
            assert!(
                far < 1e-10 * expected.abs(),
                "{tips} tips: {whole} instead of {expected}"
            );
        }
        let sum = 2.0 * ours.whole.iter().sum::<f64>();
        assert!((ours.sum - sum).abs() < 1e-10 * sum.abs());
        assert!(tips == 5 || ours.whole.iter().all(|lnl| *lnl < -745.0));
        // The other library adds no factors to a mixture, so that it agrees where there are none.
        if let Some(theirs) = Api::installed().filter(|_| tips == 5 && !is_edge) {
            let theirs = mixed(&theirs, tips, is_edge);
            assert!((ours.sum - theirs.sum).abs() < 1e-10 * sum.abs());
        }
    }
}

#[test]
fn complex_eigenvalues_agree() {
    compare(DOUBLE | flag::EIGEN_COMPLEX, 1, 1e-10);
}

#[test]
fn transposed_inverses_agree() {
    compare(DOUBLE | flag::INVEVEC_TRANSPOSED, 1, 1e-10);
}

#[test]
fn partitions_agree() {
    compare(DOUBLE, 3, 1e-10);
}

#[test]
fn single_precision_agrees() {
    compare(flag::PRECISION_SINGLE, 1, 1e-4);
}

#[test]
fn single_precision_agrees_in_every_way_to_scale() {
    let single = flag::PRECISION_SINGLE;
    compare(single | flag::SCALING_ALWAYS | flag::SCALERS_LOG, 1, 1e-4);
    compare(single | flag::SCALING_AUTO, 1, 1e-4);
    compare(single, 3, 1e-4);
}

#[test]
fn single_precision_agrees_with_complex_eigenvalues() {
    compare(flag::PRECISION_SINGLE | flag::EIGEN_COMPLEX, 1, 1e-4);
}

/// The values of some sessions, with the instruction set of this process.
fn sessions() -> Vec<(Config, Log)> {
    let ways = [
        DOUBLE,
        DOUBLE | flag::SCALING_ALWAYS | flag::SCALERS_LOG,
        flag::PRECISION_SINGLE,
    ];
    let shapes = [(4, 4, 1), (4, 4, 130), (3, 4, 67), (4, 3, 40), (20, 4, 40)];
    let play = |flags, (states, categories, patterns)| {
        let config = Config {
            states,
            categories,
            patterns,
            flags,
            partitions: 1,
        };
        let log = play(&Api::ours(), Some(&Gradients::ours()), config, 5);
        (config, log)
    };
    ways.into_iter()
        .flat_map(|flags| shapes.map(|shape| play(flags, shape)))
        .collect()
}

#[test]
fn instruction_sets_agree() {
    const VARIABLE: &str = "BEAGLE_TEST_VALUES";
    let own = sessions();
    // The set is a process's, so that each has one of its own, which writes its values.
    if let Ok(file) = std::env::var(VARIABLE) {
        let logs = own.iter().flat_map(|(_, log)| log);
        let lines = logs.map(|(_, values)| format!("{values:?}\n"));
        return std::fs::write(file, lines.collect::<String>()).expect("a file");
    }
    let program = std::env::current_exe().expect("this program");
    for isa in Isa::all() {
        let name = format!("beagle-{}-{}", std::process::id(), isa.name());
        let file = std::env::temp_dir().join(name);
        let run = Command::new(&program)
            .args(["--exact", "known::instruction_sets_agree"])
            .env("SIDECORE_BEAGLE_ISA", isa.name())
            .env(VARIABLE, &file)
            .output()
            .expect("it runs again");
        assert!(run.status.success(), "{}: {run:?}", isa.name());
        let text = std::fs::read_to_string(&file).expect("the values");
        std::fs::remove_file(&file).expect("a file");
        let mut lines = text.lines();
        for (config, log) in &own {
            let other = log.iter().map(|(name, _)| {
                let line = lines.next().expect("as many calls");
                let line = line.trim_matches(['[', ']']);
                let values = line
                    .split(", ")
                    .map(|value| value.parse().expect("a number"));
                (name.clone(), values.collect())
            });
            let other: Log = other.collect();
            let is_single = config.flags & flag::PRECISION_SINGLE != 0;
            let tolerance = if is_single { 1e-4 } else { 1e-10 };
            agree(*config, log, &other, tolerance);
        }
        assert!(lines.next().is_none());
    }
}

#[test]
fn slopes_are_what_likelihoods_change_by() {
    let (api, gradients) = (Api::ours(), Gradients::ours());
    for (seed, states) in (0..).zip([2, 4, 5, 20, 61]) {
        for flags in [DOUBLE, DOUBLE | flag::SCALING_ALWAYS | flag::SCALERS_LOG] {
            for (categories, patterns) in [(1, 7), (4, 52), (3, 333)] {
                let slopes = |partitions| {
                    let config = Config {
                        states,
                        categories,
                        patterns,
                        flags,
                        partitions,
                    };
                    let mut log = play(&api, Some(&gradients), config, seed);
                    log.retain(|(name, _)| name == "slopes" || name == "cross products");
                    (config, log)
                };
                let ((config, whole), (_, parts)) = (slopes(1), slopes(3));
                assert_eq!(whole.len(), 2);
                agree(config, &parts, &whole, 1e-10);
            }
        }
    }
}

#[test]
fn single_precision_agrees_with_double_and_is_not_it() {
    let (api, gradients) = (Api::ours(), Gradients::ours());
    let shapes = [(2, 1), (4, 3), (4, 4), (5, 2), (20, 20), (61, 1), (70, 17)];
    // Transposed inverses are here alone: of what this session gives as one, the other library
    // makes matrices whose entries are small differences of large floats.
    let ways = [
        flag::SCALING_MANUAL,
        flag::SCALING_ALWAYS | flag::SCALERS_LOG,
        flag::INVEVEC_TRANSPOSED,
    ];
    for ((states, categories), way) in shapes.into_iter().zip(ways.into_iter().cycle()) {
        let config = |flags| Config {
            states,
            categories,
            patterns: 90,
            flags: flags | way,
            partitions: 1,
        };
        let play = |flags| play(&api, Some(&gradients), config(flags), 77);
        let (single, double) = (play(flag::PRECISION_SINGLE), play(DOUBLE));
        agree(config(flag::PRECISION_SINGLE), &single, &double, 1e-4);
        let sites = |log: &Log| log.iter().find(|(name, _)| name == "sites").cloned();
        assert_ne!(sites(&single), sites(&double), "rounded");
    }
}
