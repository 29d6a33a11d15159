//! Atomics: which datatypes and operations are offered, what each does, and how words are counted.

use super::*;

/// Datatypes of libfabric 1.17 (FI_INT8 to FI_INT128 and FI_UINT128).
const DATATYPES: std::ops::Range<c_int> = 0..22;
/// Operations (FI_MIN to FI_MSWAP).
const OPERATIONS: std::ops::Range<c_int> = 0..20;

/// Forms of the calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Write,
    Fetch,
    Compare,
}

const FORMS: [(Form, u64); 3] = [
    (Form::Write, 0),
    (Form::Fetch, FI_FETCH_ATOMIC),
    (Form::Compare, FI_COMPARE_ATOMIC),
];

/// The README's table, written once more.
fn is_offered(form: Form, datatype: c_int, operation: c_int) -> bool {
    let operations: &[c_int] = match form {
        Form::Write => &[FI_SUM, FI_BOR, FI_BAND, FI_BXOR, FI_ATOMIC_WRITE],
        Form::Fetch => &[
            FI_SUM,
            FI_BOR,
            FI_BAND,
            FI_BXOR,
            FI_ATOMIC_READ,
            FI_ATOMIC_WRITE,
        ],
        Form::Compare => &[FI_CSWAP, FI_MSWAP],
    };
    [FI_INT64, FI_UINT64].contains(&datatype) && operations.contains(&operation)
}

#[test]
fn the_table_of_datatypes_and_operations_is_the_readme_s() {
    let two = Two::open();
    let mut offered = 0;
    for (form, flags) in FORMS {
        for datatype in DATATYPES {
            for operation in OPERATIONS {
                let expected = match is_offered(form, datatype, operation) {
                    true => 0,
                    false => -libc::EOPNOTSUPP,
                };
                let mut count = 0;
                let (ep, count) = (two.client, &raw mut count);
                let valid = match form {
                    Form::Write => op!(ep, atomic.writevalid(datatype, operation, count)),
                    Form::Fetch => op!(ep, atomic.readwritevalid(datatype, operation, count)),
                    Form::Compare => op!(ep, atomic.compwritevalid(datatype, operation, count)),
                };
                let case = (form, datatype, operation);
                assert_eq!(valid, expected, "{case:?}");
                let mut attr = zeroed::<fi_atomic_attr>();
                let domain = two.world.domain;
                let found = op!(
                    domain,
                    ops.query_atomic(datatype, operation, &mut attr, flags)
                );
                assert_eq!(found, expected, "{case:?}");
                if expected == 0 {
                    // SAFETY: the number above.
                    assert_eq!(unsafe { *count }, 16);
                    assert_eq!((attr.count, attr.size), (16, 8));
                    offered += 1;
                }
            }
        }
    }
    assert_eq!(offered, 2 * (5 + 6 + 2));
}

#[test]
fn a_query_needs_one_form_and_no_place() {
    let two = Two::open();
    let domain = two.world.domain;
    let both = FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC;
    let queried = op!(
        domain,
        ops.query_atomic(FI_UINT64, FI_SUM, null_mut(), both)
    );
    assert_eq!(queried, -libc::EINVAL);
    let queried = op!(domain, ops.query_atomic(FI_UINT64, FI_SUM, null_mut(), 0));
    assert_eq!(queried, 0);
    let valid = op!(two.client, atomic.writevalid(FI_UINT64, FI_SUM, null_mut()));
    assert_eq!(valid, 0);
}

/// Words of the peer, and how to name them.
struct There {
    words: Box<[u64]>,
    mr: *mut fid_mr,
    base: u64,
    key: u64,
}

impl There {
    fn new(two: &Two, words: &[u64]) -> Self {
        let mut words: Box<[u64]> = words.into();
        let mr = two
            .world
            .memory(&mut words, FI_REMOTE_READ | FI_REMOTE_WRITE);
        let base = words.as_ptr().addr().try_into().expect("64 bits");
        // SAFETY: a region that is not closed.
        let key = unsafe { (*mr).key };
        Self {
            words,
            mr,
            base,
            key,
        }
    }

    /// The words now: others write them.
    fn read(&self, index: usize) -> u64 {
        // SAFETY: a word of the slice.
        unsafe { ptr::from_ref(&self.words[index]).read_volatile() }
    }
}

impl Drop for There {
    fn drop(&mut self) {
        assert_eq!(close(self.mr), 0);
    }
}

#[test]
fn each_operation_changes_the_word_as_it_says() {
    let two = Two::open();
    let word = 0x0123_4567_89ab_cdef_u64;
    let operand = 0xfff0_0000_0000_00ff_u64;
    for (operation, expected) in [
        (FI_SUM, word.wrapping_add(operand)),
        (FI_BOR, word | operand),
        (FI_BAND, word & operand),
        (FI_BXOR, word ^ operand),
        (FI_ATOMIC_WRITE, operand),
    ] {
        for datatype in [FI_INT64, FI_UINT64] {
            let there = There::new(&two, &[word, 7]);
            let (base, key) = (there.base, there.key);
            let operands = ptr::from_ref(&operand).cast();
            let changed = op!(
                two.client,
                atomic.write(
                    operands,
                    1,
                    null_mut(),
                    0,
                    base,
                    key,
                    datatype,
                    operation,
                    context(3)
                )
            );
            assert_eq!(changed, 0);
            let done = completion(two.client_cq);
            assert_eq!((done.op_context, done.len), (context(3), 8));
            assert_eq!(done.flags, FI_WRITE | FI_ATOMIC);
            assert_eq!((there.read(0), there.read(1)), (expected, 7), "{operation}");
            // Fetching, it returns the word as it was.
            let mut result = 0_u64;
            let results = (&raw mut result).cast();
            let fetched = op!(
                two.client,
                atomic.readwrite(
                    operands,
                    1,
                    null_mut(),
                    results,
                    null_mut(),
                    0,
                    base,
                    key,
                    datatype,
                    operation,
                    context(4)
                )
            );
            assert_eq!(fetched, 0);
            let done = completion(two.client_cq);
            assert_eq!(
                (done.op_context, done.flags),
                (context(4), FI_READ | FI_ATOMIC)
            );
            assert_eq!(result, expected, "{operation}");
        }
    }
}

#[test]
fn a_read_takes_no_operand_and_changes_nothing() {
    let two = Two::open();
    let there = There::new(&two, &[41, 42]);
    let mut results = [0_u64; 2];
    let target = results.as_mut_ptr().cast();
    let (base, key) = (there.base, there.key);
    let read = op!(
        two.client,
        atomic.readwrite(
            ptr::null(),
            2,
            null_mut(),
            target,
            null_mut(),
            0,
            base,
            key,
            FI_UINT64,
            FI_ATOMIC_READ,
            context(1)
        )
    );
    assert_eq!(read, 0);
    assert_eq!(completion(two.client_cq).len, 16);
    assert_eq!((results, there.read(0), there.read(1)), ([41, 42], 41, 42));
}

#[test]
fn a_swap_compares_whole_words_or_takes_bits() {
    let two = Two::open();
    let there = There::new(&two, &[0x1234]);
    let (base, key) = (there.base, there.key);
    let swap = |operation, operand: u64, compare: u64| {
        let mut result = 0_u64;
        let swapped = op!(
            two.client,
            atomic.compwrite(
                ptr::from_ref(&operand).cast(),
                1,
                null_mut(),
                ptr::from_ref(&compare).cast(),
                null_mut(),
                (&raw mut result).cast(),
                null_mut(),
                0,
                base,
                key,
                FI_UINT64,
                operation,
                context(2)
            )
        );
        assert_eq!(swapped, 0);
        assert_eq!(completion(two.client_cq).op_context, context(2));
        (result, there.read(0))
    };
    assert_eq!(swap(FI_CSWAP, 9, 0x1235), (0x1234, 0x1234), "another word");
    assert_eq!(swap(FI_CSWAP, 9, 0x1234), (0x1234, 9));
    assert_eq!(
        swap(FI_MSWAP, 0xabcd, 0xff00),
        (9, 0xab09),
        "bits of the mask"
    );
    assert_eq!(swap(FI_MSWAP, 0, 0), (0xab09, 0xab09));
}

#[test]
fn vectors_are_counted_in_words_of_all_their_parts() {
    let two = Two::open();
    let there = There::new(&two, &[10, 20, 30]);
    let place = fi_rma_ioc {
        addr: there.base,
        count: 3,
        key: there.key,
    };
    let ioc = |words: &mut [u64]| fi_ioc {
        addr: words.as_mut_ptr().cast(),
        count: words.len(),
    };
    let (mut first, mut rest) = ([1_u64], [2_u64, 3]);
    let (mut old, mut older) = ([0_u64; 2], [0_u64]);
    let operands = [ioc(&mut first), ioc(&mut rest)];
    let mut results = [ioc(&mut old), ioc(&mut older)];
    let (ep, base, key) = (two.client, there.base, there.key);
    let added = op!(
        ep,
        atomic.writev(
            operands.as_ptr(),
            null_mut(),
            2,
            0,
            base,
            key,
            FI_INT64,
            FI_SUM,
            context(1)
        )
    );
    assert_eq!(added, 0);
    assert_eq!(completion(two.client_cq).len, 24);
    let added = op!(
        ep,
        atomic.readwritev(
            operands.as_ptr(),
            null_mut(),
            2,
            results.as_mut_ptr(),
            null_mut(),
            2,
            0,
            base,
            key,
            FI_INT64,
            FI_SUM,
            context(2)
        )
    );
    assert_eq!(added, 0);
    completion(two.client_cq);
    assert_eq!((old, older), ([11, 22], [33]));
    let message = fi_msg_atomic {
        msg_iov: operands.as_ptr(),
        iov_count: 2,
        rma_iov: &place,
        rma_iov_count: 1,
        datatype: FI_UINT64,
        op: FI_ATOMIC_WRITE,
        context: context(3),
        ..zeroed()
    };
    let fetched = op!(
        ep,
        atomic.readwritemsg(&message, results.as_mut_ptr(), null_mut(), 2, 0)
    );
    assert_eq!(fetched, 0);
    completion(two.client_cq);
    assert_eq!((old, older), ([12, 24], [36]));
    assert_eq!([there.read(0), there.read(1), there.read(2)], [1, 2, 3]);
    assert_eq!(op!(ep, atomic.writemsg(&message, 0)), 0);
    completion(two.client_cq);
    let mut masks = [0_u64, 1, u64::MAX];
    let compares = [ioc(&mut masks)];
    let message = fi_msg_atomic {
        op: FI_MSWAP,
        ..message
    };
    let swapped = op!(
        ep,
        atomic.compwritemsg(
            &message,
            compares.as_ptr(),
            null_mut(),
            1,
            results.as_mut_ptr(),
            null_mut(),
            2,
            0
        )
    );
    assert_eq!(swapped, 0);
    completion(two.client_cq);
    assert_eq!((old, older), ([1, 2], [3]));
    assert_eq!([there.read(0), there.read(1), there.read(2)], [1, 2, 3]);
    let swapped = op!(
        ep,
        atomic.compwritev(
            operands.as_ptr(),
            null_mut(),
            2,
            compares.as_ptr(),
            null_mut(),
            1,
            results.as_mut_ptr(),
            null_mut(),
            2,
            0,
            base,
            key,
            FI_UINT64,
            FI_CSWAP,
            context(5)
        )
    );
    assert_eq!(swapped, 0);
    assert_eq!(completion(two.client_cq).op_context, context(5));
}

#[test]
fn parts_that_disagree_on_their_words_are_refused() {
    let two = Two::open();
    let there = There::new(&two, &[0; 20]);
    let (ep, base, key) = (two.client, there.base, there.key);
    let (words, mut results) = ([0_u64; 20], [0_u64; 20]);
    let from = words.as_ptr().cast();
    for count in [0, 17, usize::MAX] {
        let changed = op!(
            ep,
            atomic.write(
                from,
                count,
                null_mut(),
                0,
                base,
                key,
                FI_UINT64,
                FI_SUM,
                null_mut()
            )
        );
        assert_eq!(changed, failed(libc::EINVAL), "{count}");
    }
    let part = |count| {
        [fi_ioc {
            addr: words.as_ptr().cast_mut().cast(),
            count,
        }]
    };
    let mut target = [fi_ioc {
        addr: results.as_mut_ptr().cast(),
        count: 2,
    }];
    for (operands, results) in [(1, 1), (3, 1), (2, 0), (usize::MAX, 1)] {
        let fetched = op!(
            ep,
            atomic.readwritev(
                part(operands).as_ptr(),
                null_mut(),
                1,
                target.as_mut_ptr(),
                null_mut(),
                results,
                0,
                base,
                key,
                FI_UINT64,
                FI_SUM,
                null_mut()
            )
        );
        assert_eq!(fetched, failed(libc::EINVAL), "{operands} {results}");
    }
    let compared = op!(
        ep,
        atomic.compwritev(
            part(2).as_ptr(),
            null_mut(),
            1,
            part(1).as_ptr(),
            null_mut(),
            1,
            target.as_mut_ptr(),
            null_mut(),
            1,
            0,
            base,
            key,
            FI_UINT64,
            FI_CSWAP,
            null_mut()
        )
    );
    assert_eq!(compared, failed(libc::EINVAL), "fewer comparands");
    let many = [part(1)[0]; 17];
    for (at, count) in [(many.as_ptr(), 17), (ptr::null(), 1)] {
        let changed = op!(
            ep,
            atomic.writev(
                at,
                null_mut(),
                count,
                0,
                base,
                key,
                FI_UINT64,
                FI_SUM,
                null_mut()
            )
        );
        assert_eq!(changed, failed(libc::EINVAL));
    }
    let unsupported = op!(
        ep,
        atomic.write(from, 1, null_mut(), 0, base, key, 4, FI_SUM, null_mut())
    );
    assert_eq!(unsupported, failed(libc::EOPNOTSUPP), "words of 32 bits");
    let operand = part(1);
    for places in [0, 2] {
        let message = fi_msg_atomic {
            msg_iov: operand.as_ptr(),
            iov_count: 1,
            rma_iov_count: places,
            datatype: FI_UINT64,
            op: FI_SUM,
            ..zeroed()
        };
        assert_eq!(op!(ep, atomic.writemsg(&message, 0)), failed(libc::EINVAL));
    }
    assert!(take(two.client_cq).is_err(), "nothing was posted");
}

#[test]
fn an_injected_atomic_reports_nothing_and_keeps_its_place() {
    let two = Two::open();
    let there = There::new(&two, &[1]);
    let (ep, base, key) = (two.client, there.base, there.key);
    for operand in 2..6_u64 {
        let operands = ptr::from_ref(&operand).cast();
        let injected = op!(
            ep,
            atomic.inject(operands, 1, 0, base, key, FI_UINT64, FI_SUM)
        );
        assert_eq!(injected, 0);
    }
    let mut result = 0_u64;
    let fetched = op!(
        ep,
        atomic.readwrite(
            ptr::null(),
            1,
            null_mut(),
            (&raw mut result).cast(),
            null_mut(),
            0,
            base,
            key,
            FI_INT64,
            FI_ATOMIC_READ,
            context(8)
        )
    );
    assert_eq!(fetched, 0);
    assert_eq!(completion(two.client_cq).op_context, context(8));
    assert_eq!(result, 1 + 2 + 3 + 4 + 5);
    assert!(take(two.client_cq).is_err());
}
