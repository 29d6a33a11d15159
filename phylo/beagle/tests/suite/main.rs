//! The interface as programs call it: known values, misuse, and BEAGLE's own library as the oracle,
//! call by call, where Debian's is installed.
#![allow(unsafe_code, reason = "calls of a C surface")]

mod misuse;
mod session;

mod known {
    //! Values that are known without another BEAGLE.

    use crate::api::Api;
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
        let name =
            ModelName::parse("JC", &mut |path| std::fs::read_to_string(path)).expect("a model");
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
                1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0, -1.0,
                1.0,
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
}

mod oracle {
    //! Random sessions, compared call by call with the BEAGLE that is installed.

    use crate::api::Api;
    use crate::session::{Config, Log, play};
    use hmsbeagle::abi::flag;
    use std::ffi::c_long;

    /// Plays the sessions of some seeds in all shapes, with ours and with the installed library.
    fn compare(flags: c_long, partitions: usize, tolerance: f64) {
        let Some(theirs) = Api::installed() else {
            eprintln!("libhmsbeagle.so.1 is not installed: nothing is compared");
            return;
        };
        let ours = Api::ours();
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
                    &play(&ours, config, seed),
                    &play(&theirs, config, seed),
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
}

mod api {
    //! The interface's functions, ours or those of an installed BEAGLE.

    use hmsbeagle::abi::{InstanceDetails, Operation, PartitionOperation};
    use libloading::Library;
    use std::ffi::{c_double, c_int, c_long};

    macro_rules! api {
    ($($field:ident: $name:ident($($argument:ty),*)),* $(,)?) => {
        /// See the module.
        pub(crate) struct Api {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            _library: Option<Library>,
        }

        impl Api {
            /// This crate's.
            pub(crate) fn ours() -> Self {
                Self { $($field: hmsbeagle::c::$name,)* _library: None }
            }

            /// Those of the library that is installed; none if there is none.
            pub(crate) fn installed() -> Option<Self> {
                // SAFETY: it is the system's own library.
                let library = unsafe { Library::new("libhmsbeagle.so.1") }.ok()?;
                $(
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: the interface gives the function's type.
                    let $field = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($argument),*) -> c_int>(name.as_bytes())
                            .ok()?
                    };
                )*
                Some(Self { $($field,)* _library: Some(library) })
            }
        }
    };
}

    type Ints = *const c_int;
    type Doubles = *const c_double;
    type Out = *mut c_double;

    api! {
        create: beagleCreateInstance(
            c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int,
            Ints, c_int, c_long, c_long, *mut InstanceDetails
        ),
        finalize: beagleFinalizeInstance(c_int),
        tip_states: beagleSetTipStates(c_int, c_int, Ints),
        tip_partials: beagleSetTipPartials(c_int, c_int, Doubles),
        set_partials: beagleSetPartials(c_int, c_int, Doubles),
        partials: beagleGetPartials(c_int, c_int, c_int, Out),
        eigen: beagleSetEigenDecomposition(c_int, c_int, Doubles, Doubles, Doubles),
        frequencies: beagleSetStateFrequencies(c_int, c_int, Doubles),
        weights: beagleSetCategoryWeights(c_int, c_int, Doubles),
        rates: beagleSetCategoryRates(c_int, Doubles),
        pattern_weights: beagleSetPatternWeights(c_int, Doubles),
        partitions: beagleSetPatternPartitions(c_int, c_int, Ints),
        set_matrix: beagleSetTransitionMatrix(c_int, c_int, Doubles, c_double),
        matrix: beagleGetTransitionMatrix(c_int, c_int, Out),
        convolve: beagleConvolveTransitionMatrices(c_int, Ints, Ints, Ints, c_int),
        matrices: beagleUpdateTransitionMatrices(c_int, c_int, Ints, Ints, Ints, Doubles, c_int),
        update: beagleUpdatePartials(c_int, *const Operation, c_int, c_int),
        update_by_partition: beagleUpdatePartialsByPartition(
            c_int, *const PartitionOperation, c_int),
        accumulate: beagleAccumulateScaleFactors(c_int, Ints, c_int, c_int),
        remove: beagleRemoveScaleFactors(c_int, Ints, c_int, c_int),
        reset: beagleResetScaleFactors(c_int, c_int),
        copy: beagleCopyScaleFactors(c_int, c_int, c_int),
        root: beagleCalculateRootLogLikelihoods(c_int, Ints, Ints, Ints, Ints, c_int, Out),
        root_by_partition: beagleCalculateRootLogLikelihoodsByPartition(
            c_int, Ints, Ints, Ints, Ints, Ints, c_int, c_int, Out, Out
        ),
        edge: beagleCalculateEdgeLogLikelihoods(
            c_int, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, c_int, Out, Out, Out
        ),
        site_lnl: beagleGetSiteLogLikelihoods(c_int, Out),
        site_derivatives: beagleGetSiteDerivatives(c_int, Out, Out),
        lnl: beagleGetLogLikelihood(c_int, Out),
    }
}
