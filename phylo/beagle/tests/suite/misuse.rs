//! Wrong calls get the documented numbers, and none ends the program.

use crate::{Api, Gradients};
use hmsbeagle::abi::{Operation, flag};
use hmsbeagle::c as beagle;
use std::ffi::{c_int, c_long};
use std::process::Command;
use std::ptr::{null, null_mut};

const OUT_OF_RANGE: c_int = -5;

const PRECISIONS: [c_long; 2] = [flag::PRECISION_DOUBLE, flag::PRECISION_SINGLE];

fn instance(api: &Api, flags: c_long) -> c_int {
    let none = null_mut();
    // SAFETY: null pointers are for what is not wanted.
    let id = unsafe { (api.create)(3, 5, 0, 4, 10, 1, 5, 1, 3, null(), 0, flags, 0, none) };
    assert!(id >= 0);
    id
}

#[test]
fn numbers_of_no_instance_are_refused() {
    let api = Api::ours();
    let id = instance(&api, flag::PRECISION_DOUBLE);
    // SAFETY: plain numbers, and null where nothing is read.
    unsafe {
        for number in [-1, i32::MIN, i32::MAX] {
            assert_eq!((api.finalize)(number), -4);
            assert_eq!((api.reset)(number, 0), -4);
            assert_eq!((api.tip_states)(number, 0, null()), -4);
        }
        assert_eq!((api.finalize)(id), 0);
        assert_eq!((api.finalize)(id), -4, "ended twice");
        assert_eq!((api.reset)(id, 0), -4);
    }
}

#[test]
fn shapes_that_make_no_instance_are_refused() {
    let api = Api::ours();
    let create = |numbers: [c_int; 9], required| {
        let [
            tips,
            partials,
            compact,
            states,
            patterns,
            models,
            matrices,
            rates,
            scales,
        ] = numbers;
        // SAFETY: null pointers are for what is not wanted.
        unsafe {
            (api.create)(
                tips,
                partials,
                compact,
                states,
                patterns,
                models,
                matrices,
                rates,
                scales,
                null(),
                0,
                0,
                required,
                null_mut(),
            )
        }
    };
    let good = [3, 5, 0, 4, 10, 1, 5, 1, 3];
    for at in 0..9 {
        let mut numbers = good;
        numbers[at] = -1;
        assert_eq!(create(numbers, 0), OUT_OF_RANGE, "number {at}");
    }
    for at in [3, 4, 7] {
        let mut numbers = good;
        numbers[at] = 0;
        assert_eq!(create(numbers, 0), OUT_OF_RANGE, "number {at}");
    }
    assert_eq!(
        create([3, 2, 0, 4, 10, 1, 5, 1, 3], 0),
        OUT_OF_RANGE,
        "fewer buffers than tips"
    );
    assert_eq!(
        create([3, 1 << 30, 0, 4, 1 << 30, 1, 5, 1, 3], 0),
        -2,
        "more than all memory"
    );
    assert_eq!(
        create([3, 5, 0, 4, 10, 1, 1 << 30, 1 << 10, 3], 0),
        -2,
        "matrices, too"
    );
    assert_eq!(create(good, 1 << 16), -6, "no graphics processor");
    let id = create(good, flag::PRECISION_DOUBLE | flag::VECTOR_SSE);
    assert!(id >= 0);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { (api.finalize)(id) }, 0);
    let (four, none) = ([4], null_mut());
    // SAFETY: one number.
    let id = unsafe { (api.create)(3, 5, 0, 4, 9, 1, 5, 1, 3, four.as_ptr(), 1, 0, 0, none) };
    assert_eq!(id, -6, "there is one resource");
}

#[test]
fn wrong_indices_counts_and_pointers_are_refused() {
    PRECISIONS.into_iter().for_each(wrong_indices_are_refused);
}

fn wrong_indices_are_refused(flags: c_long) {
    let api = Api::ours();
    let id = instance(&api, flags);
    let (doubles, ints) = ([0.1; 400], [0; 400]);
    let mut out = [0.0; 400];
    // SAFETY: every array is longer than any call needs.
    unsafe {
        for index in [-1, -7, 5, i32::MAX, i32::MIN] {
            assert_eq!((api.tip_states)(id, index, ints.as_ptr()), OUT_OF_RANGE);
            assert_eq!(
                (api.tip_partials)(id, index, doubles.as_ptr()),
                OUT_OF_RANGE
            );
            assert_eq!(
                (api.set_partials)(id, index, doubles.as_ptr()),
                OUT_OF_RANGE
            );
            assert_eq!(
                (api.partials)(id, index, -1, out.as_mut_ptr()),
                OUT_OF_RANGE
            );
            assert_eq!(
                (api.set_matrix)(id, index, doubles.as_ptr(), 1.0),
                OUT_OF_RANGE
            );
            assert_eq!((api.matrix)(id, index, out.as_mut_ptr()), OUT_OF_RANGE);
            assert_eq!((api.frequencies)(id, index, doubles.as_ptr()), OUT_OF_RANGE);
            assert_eq!((api.weights)(id, index, doubles.as_ptr()), OUT_OF_RANGE);
            assert_eq!((api.reset)(id, index), OUT_OF_RANGE);
            assert_eq!((api.copy)(id, 0, index), OUT_OF_RANGE);
            assert_eq!((api.accumulate)(id, &raw const index, 1, 0), OUT_OF_RANGE);
            assert_eq!((api.accumulate)(id, ints.as_ptr(), 1, index), OUT_OF_RANGE);
            assert_eq!(
                (api.accumulate)(id, ints.as_ptr(), index.min(-1), 0),
                OUT_OF_RANGE
            );
        }
        assert_eq!(
            (api.tip_states)(id, 3, ints.as_ptr()),
            OUT_OF_RANGE,
            "no tip"
        );
        assert_eq!((api.tip_states)(id, 0, null()), OUT_OF_RANGE);
        assert_eq!((api.pattern_weights)(id, null()), OUT_OF_RANGE);
        assert_eq!((api.rates)(id, null()), OUT_OF_RANGE);
        assert_eq!((api.eigen)(id, 0, null(), null(), null()), OUT_OF_RANGE);
        assert_eq!((api.update)(id, null(), 1, -1), OUT_OF_RANGE);
        assert_eq!((api.update)(id, null(), 0, -1), 0, "nothing to do");
        let odd = doubles.as_ptr().cast::<u8>().wrapping_add(1).cast();
        assert_eq!((api.set_partials)(id, 3, odd), OUT_OF_RANGE, "not aligned");
        let zero = ints.as_ptr();
        let root = |count, out| (api.root)(id, zero, zero, zero, zero, count, out);
        assert_eq!(root(0, out.as_mut_ptr()), OUT_OF_RANGE);
        assert_eq!(root(-3, out.as_mut_ptr()), OUT_OF_RANGE);
        assert_eq!(root(1, null_mut()), OUT_OF_RANGE);
        assert_eq!(root(1, out.as_mut_ptr()), OUT_OF_RANGE, "nothing was set");
        assert_eq!(
            (api.convolve)(id, zero, zero, zero, 1),
            OUT_OF_RANGE,
            "in place"
        );
        assert_eq!((api.partitions)(id, 2, [2; 10].as_ptr()), OUT_OF_RANGE);
        assert_eq!((api.finalize)(id), 0);
    }
}

#[test]
fn each_field_of_an_operation_is_checked() {
    PRECISIONS.into_iter().for_each(fields_are_checked);
}

fn fields_are_checked(flags: c_long) {
    let api = Api::ours();
    let id = instance(&api, flags);
    let states = [0, 1, 2, 3, -1, 4, 99, 0, 1, 2];
    let matrix = [0.25; 16];
    // SAFETY: arrays are as long as the instance says.
    unsafe {
        for tip in 0..3 {
            assert_eq!((api.tip_states)(id, tip, states.as_ptr()), 0);
        }
        assert_eq!((api.set_matrix)(id, 0, matrix.as_ptr(), 1.0), 0);
    }
    let good = Operation {
        destination: 3,
        scale_write: 0,
        scale_read: -1,
        child1: 0,
        matrix1: 0,
        child2: 1,
        matrix2: 0,
    };
    // SAFETY: one operation.
    let update = |operation: Operation| unsafe { (api.update)(id, &raw const operation, 1, -1) };
    assert_eq!(update(good), 0);
    let changes: [fn(&mut Operation, c_int); 6] = [
        |operation, to| operation.destination = to,
        |operation, to| operation.scale_write = to.abs(),
        |operation, to| operation.child1 = to,
        |operation, to| operation.matrix1 = to,
        |operation, to| operation.child2 = to,
        |operation, to| operation.matrix2 = to,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        for value in [5, 1000, -1000, c_int::MAX] {
            let mut operation = good;
            change(&mut operation, value);
            assert_eq!(update(operation), OUT_OF_RANGE, "field {at}: {value}");
        }
    }
    let to_a_tip = Operation {
        destination: 1,
        ..good
    };
    assert_eq!(update(to_a_tip), OUT_OF_RANGE);
    let no_matrix = Operation { matrix2: 4, ..good };
    assert_eq!(
        update(no_matrix),
        OUT_OF_RANGE,
        "a matrix that was never set"
    );
    // SAFETY: plain numbers.
    assert_eq!(unsafe { (api.finalize)(id) }, 0);
}

#[test]
fn instances_come_and_go_and_leave_no_memory_behind() {
    const VARIABLE: &str = "BEAGLE_TEST_INSTANCES";
    if std::env::var_os(VARIABLE).is_none() {
        // In a process of its own: here other tests take and give memory meanwhile.
        let name = "misuse::instances_come_and_go_and_leave_no_memory_behind";
        let run = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name])
            .env(VARIABLE, "1")
            .output()
            .expect("it runs again");
        return assert!(run.status.success(), "{run:?}");
    }
    let api = Api::ours();
    let come_and_go = |times: usize| {
        for number in 0..times {
            let id = instance(&api, PRECISIONS[number % 2]);
            // SAFETY: plain numbers.
            assert_eq!(unsafe { (api.finalize)(id) }, 0);
        }
    };
    come_and_go(1_000);
    let before = resident_pages();
    come_and_go(100_000);
    // 40 bytes an instance would be more.
    let more = resident_pages().saturating_sub(before);
    assert!(more < 1_000, "{more} pages more than {before}");
}

/// Pages of this process that are in memory.
fn resident_pages() -> usize {
    let sizes = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let resident = sizes.split(' ').nth(1).expect("the second number");
    resident.parse().expect("a number")
}

#[test]
fn sixty_four_instances_run_side_by_side() {
    let api = Api::ours();
    let config = crate::session::Config {
        states: 4,
        categories: 4,
        patterns: 700,
        flags: 0,
        partitions: 1,
    };
    let open = (0..64).map(|number| instance(&api, PRECISIONS[number % 2]));
    let open: Vec<c_int> = open.collect();
    for flags in PRECISIONS {
        let config = crate::session::Config { flags, ..config };
        let play = || crate::session::play(&Api::ours(), Some(&Gradients::ours()), config, 5);
        let alone = play();
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| assert_eq!(play(), alone));
            }
        });
    }
    for id in open {
        // SAFETY: plain numbers.
        assert_eq!(unsafe { (api.finalize)(id) }, 0);
    }
}

#[test]
fn the_resource_is_there() {
    let list = beagle::beagleGetResourceList();
    // SAFETY: the list is never null or freed.
    unsafe {
        assert_eq!((*list).length, 1);
        assert_ne!((*(*list).list).support_flags & flag::PROCESSOR_CPU, 0);
        let measured =
            beagle::beagleGetBenchmarkedResourceList(4, 4, 4, 100, 4, null(), 0, 0, 0, 1, 1, 0, 0);
        assert!((*(*measured).list).benchmark_result > 0.0);
        let none = beagle::beagleGetBenchmarkedResourceList(
            4,
            4,
            4,
            100,
            4,
            null(),
            0,
            0,
            1 << 16,
            1,
            1,
            0,
            0,
        );
        assert!(none.is_null());
    }
}

#[test]
fn a_branch_that_is_refused_leaves_all_matrices_as_they_were() {
    let api = Api::ours();
    for flags in PRECISIONS {
        let id = instance(&api, flags);
        let identity: [f64; 16] = std::array::from_fn(|k| if k % 5 == 0 { 1.0 } else { 0.0 });
        let (values, lengths) = ([-0.5; 4], [0.3; 3]);
        let matrices = |indices: [c_int; 3]| {
            let (none, lengths) = (null(), lengths.as_ptr());
            // SAFETY: three of each.
            unsafe { (api.matrices)(id, 0, indices.as_ptr(), none, none, lengths, 3) }
        };
        let mut rows = [7.0; 16];
        // SAFETY: arrays are as long as the instance says.
        unsafe {
            assert_eq!(matrices([0, 1, 2]), OUT_OF_RANGE, "no eigen-decomposition");
            let vectors = identity.as_ptr();
            assert_eq!((api.eigen)(id, 0, vectors, vectors, values.as_ptr()), 0);
            assert_eq!(matrices([0, 1, 5]), OUT_OF_RANGE);
            assert_eq!((api.matrix)(id, 0, rows.as_mut_ptr()), 0);
            assert_eq!(rows, [0.0; 16], "not made");
            // The same one twice is made twice.
            assert_eq!(matrices([0, 3, 0]), 0);
            assert_eq!((api.matrix)(id, 0, rows.as_mut_ptr()), 0);
            for (k, entry) in rows.iter().enumerate() {
                let expected = if k % 5 == 0 { (-0.15_f64).exp() } else { 0.0 };
                assert!((entry - expected).abs() < 1e-12, "{k}: {entry}");
            }
            assert_eq!((api.finalize)(id), 0);
        }
    }
}

#[test]
fn a_list_with_a_wrong_item_changes_nothing() {
    PRECISIONS.into_iter().for_each(wrong_items_change_nothing);
}

fn wrong_items_change_nothing(flags: c_long) {
    let (api, gradients) = (Api::ours(), Gradients::ours());
    let id = instance(&api, flags);
    let quarters = [0.25; 48];
    // SAFETY: three of each, and arrays as long as the instance says.
    unsafe {
        let rows = |index: c_int| {
            let mut rows = [7.0; 16];
            assert_eq!((api.matrix)(id, index, rows.as_mut_ptr()), 0);
            rows
        };
        let set = |indices: [c_int; 3]| {
            let (matrices, unknown) = (quarters.as_ptr(), [1.0; 3]);
            let unknown = unknown.as_ptr();
            beagle::beagleSetTransitionMatrices(id, indices.as_ptr(), matrices, unknown, 3)
        };
        assert_eq!(set([0, 1, 5]), OUT_OF_RANGE);
        assert_eq!([rows(0), rows(1)], [[0.0; 16]; 2]);
        assert_eq!(set([0, 0, 1]), 0);
        assert_eq!([rows(0), rows(1)], [[0.25; 16]; 2]);
        let product = |first: [c_int; 3], results: [c_int; 3]| {
            let second = [0; 3];
            (api.convolve)(id, first.as_ptr(), second.as_ptr(), results.as_ptr(), 3)
        };
        assert_eq!(product([0, 1, 4], [2, 3, 1]), OUT_OF_RANGE, "never set");
        assert_eq!(product([0, 1, 1], [2, 3, 1]), OUT_OF_RANGE, "in place");
        assert_eq!([rows(2), rows(3)], [[0.0; 16]; 2]);
        // One that an earlier product of the call sets may be a factor.
        assert_eq!(product([0, 2, 3], [2, 3, 4]), 0);
        assert_eq!(rows(4), [0.25; 16]);
        let buffer = || {
            let mut partials = [7.0; 40];
            assert_eq!((api.partials)(id, 3, -1, partials.as_mut_ptr()), 0);
            partials
        };
        assert_eq!((api.frequencies)(id, 0, quarters.as_ptr()), 0);
        let root =
            |buffers: [c_int; 2]| (gradients.root_pre)(id, buffers.as_ptr(), [0; 2].as_ptr(), 2);
        assert_eq!(root([3, 5]), OUT_OF_RANGE);
        assert_eq!(buffer(), [0.0; 40]);
        assert_eq!(root([3, 4]), 0);
        assert_eq!(buffer(), [0.25; 40]);
        assert_eq!((api.finalize)(id), 0);
    }
}

#[test]
fn imaginary_parts_come_in_pairs() {
    let api = Api::ours();
    let identity: [f64; 16] = std::array::from_fn(|k| if k % 5 == 0 { 1.0 } else { 0.0 });
    let id = instance(&api, flag::PRECISION_DOUBLE | flag::EIGEN_COMPLEX);
    let set = |imaginary: [f64; 4]| {
        let values = [[-0.5; 4], imaginary].concat();
        let (unit, values) = (identity.as_ptr(), values.as_ptr());
        // SAFETY: matrices as the instance says, and two parts of each value.
        unsafe { (api.eigen)(id, 0, unit, unit, values) }
    };
    assert_eq!(set([0.1, -0.1, 0.0, 0.2]), OUT_OF_RANGE);
    assert_eq!(set([0.0, 0.1, -0.1, 0.2]), OUT_OF_RANGE);
    assert_eq!(set([0.0, 0.1, -0.1, 0.0]), 0);
    assert_eq!(set([0.1, -0.1, 0.2, -0.2]), 0);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { (api.finalize)(id) }, 0);
}

#[test]
fn wrong_indices_of_gradients_are_refused() {
    PRECISIONS.into_iter().for_each(gradients_are_checked);
}

fn gradients_are_checked(flags: c_long) {
    let (api, gradients) = (Api::ours(), Gradients::ours());
    let id = instance(&api, flags);
    let (zeros, matrix, states) = ([0; 10], [0.25; 16], [0; 10]);
    let mut out = [0.0; 40];
    let slopes = |post: c_int, pre: c_int, matrix: c_int, weights: c_int| {
        let (mut each, mut sum) = ([0.0; 10], 0.0);
        // SAFETY: one of each; a null pointer is for what is not wanted.
        unsafe {
            (gradients.slopes)(
                id,
                &raw const post,
                &raw const pre,
                &raw const matrix,
                &raw const weights,
                1,
                each.as_mut_ptr(),
                &raw mut sum,
                null_mut(),
            )
        }
    };
    // SAFETY: every array is as long as any call needs.
    unsafe {
        let root = |buffer: c_int, frequencies: c_int| {
            (gradients.root_pre)(id, &raw const buffer, &raw const frequencies, 1)
        };
        assert_eq!(root(3, 0), OUT_OF_RANGE, "no frequencies");
        assert_eq!((api.frequencies)(id, 0, matrix.as_ptr()), 0);
        assert_eq!(root(3, 0), 0);
        for index in [-1, 5, c_int::MAX] {
            assert_eq!(root(index, 0), OUT_OF_RANGE);
            assert_eq!(root(3, index), OUT_OF_RANGE);
            let one = &raw const index;
            let zero = zeros.as_ptr();
            assert_eq!((gradients.transpose)(id, one, zero, 1), OUT_OF_RANGE);
            assert_eq!((gradients.transpose)(id, zero, one, 1), OUT_OF_RANGE);
            assert_eq!(
                (gradients.differential)(id, index, matrix.as_ptr()),
                OUT_OF_RANGE
            );
        }
        assert_eq!(
            (gradients.transpose)(id, zeros.as_ptr(), zeros.as_ptr(), 1),
            OUT_OF_RANGE,
            "in place"
        );
        assert_eq!((gradients.root_pre)(id, null(), null(), 1), OUT_OF_RANGE);
        assert_eq!((api.tip_states)(id, 0, states.as_ptr()), 0);
        assert_eq!((api.set_matrix)(id, 0, matrix.as_ptr(), 1.0), 0);
        let update = |parent: c_int, sibling: c_int, destination: c_int| {
            let operation = Operation {
                destination,
                scale_write: -1,
                scale_read: -1,
                child1: parent,
                matrix1: 0,
                child2: sibling,
                matrix2: 0,
            };
            (gradients.update_pre)(id, &raw const operation, 1, -1)
        };
        let mut partials = [7.0; 40];
        assert_eq!((api.partials)(id, 0, -1, partials.as_mut_ptr()), 0);
        assert_eq!(&partials[..5], [1.0, 0.0, 0.0, 0.0, 1.0], "a tip's states");
        assert_eq!(update(3, 0, 4), 0);
        assert_eq!(update(0, 0, 4), OUT_OF_RANGE, "a tip's states from above");
        assert_eq!(update(3, 1, 4), OUT_OF_RANGE, "a tip that was never set");
        assert_eq!(update(3, 0, 2), OUT_OF_RANGE, "into a tip");
        assert_eq!(slopes(0, 4, 0, 0), OUT_OF_RANGE, "no weights");
        assert_eq!((api.weights)(id, 0, [1.0].as_ptr()), 0);
        assert_eq!(slopes(0, 4, 0, 0), 0);
        for index in [-1, 5, c_int::MAX] {
            assert_eq!(slopes(index, 4, 0, 0), OUT_OF_RANGE);
            assert_eq!(slopes(0, index, 0, 0), OUT_OF_RANGE);
            assert_eq!(slopes(0, 4, index, 0), OUT_OF_RANGE);
            assert_eq!(slopes(0, 4, 0, index), OUT_OF_RANGE);
        }
        assert_eq!(slopes(0, 0, 0, 0), OUT_OF_RANGE, "a tip's states above");
        assert_eq!(slopes(1, 4, 0, 0), OUT_OF_RANGE, "nothing below");
        assert_eq!(slopes(0, 4, 1, 0), OUT_OF_RANGE, "no matrix");
        let (post, pre, length) = (0, 4, 0.1);
        let cross = |rates: c_int, to| {
            let (zero, length) = (zeros.as_ptr(), &raw const length);
            let (rates, post, pre) = (&raw const rates, &raw const post, &raw const pre);
            (gradients.cross)(id, post, pre, rates, zero, length, 1, to, null_mut())
        };
        assert_eq!(cross(0, out.as_mut_ptr()), 0);
        assert_eq!(cross(1, out.as_mut_ptr()), OUT_OF_RANGE);
        assert_eq!(cross(0, null_mut()), OUT_OF_RANGE);
        let none = null_mut();
        let zero = zeros.as_ptr();
        let old = beagle::beagleCalculateEdgeDerivative(
            id, zero, zero, 0, zero, zero, 0, 0, 0, zero, 1, none, none,
        );
        assert_eq!(old, -7, "the other library has none either");
        assert_eq!((api.finalize)(id), 0);
        assert_eq!((gradients.update_pre)(id, null(), 0, -1), -4);
    }
}
