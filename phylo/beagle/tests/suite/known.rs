//! Values that are known without another BEAGLE.

use crate::api::{Api, Gradients};
use hmsbeagle::abi::{NONE, Operation};
use sidecore_likelihood::likelihood::{Likelihood, Options};
use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::msa::{Alignment, Patterns};
use sidecore_likelihood::newick::Newick;
use sidecore_likelihood::runner::Serial;
use sidecore_likelihood::tree::Tree;
use std::ffi::c_int;
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
