//! The target of queue pairs, from seeds.

use sidecore_fuzz::rdma::{Seen, fuzz_stream, seeds};
use sidecore_random::choices::Choices;
use sidecore_rdma_wire::wire::terminate::Cause;
use std::collections::BTreeMap;

/// Faults that a peer can make a pair report.
const TOLD: [Cause; 22] = [
    Cause::RequestStag,
    Cause::RequestBounds,
    Cause::AccessRights,
    Cause::RequestNotAssociated,
    Cause::RequestWrap,
    Cause::CannotInvalidate,
    Cause::RdmapVersion,
    Cause::UnexpectedOpcode,
    Cause::StreamCatastrophic,
    Cause::OperationUnspecified,
    Cause::LocalCatastrophic,
    Cause::TaggedStag,
    Cause::TaggedBounds,
    Cause::TaggedNotAssociated,
    Cause::TaggedWrap,
    Cause::TaggedVersion,
    Cause::InvalidQueue,
    Cause::NoBuffer,
    Cause::InvalidMsn,
    Cause::InvalidOffset,
    Cause::TooLong,
    Cause::Crc,
];

#[test]
fn peers_of_all_kinds_do_what_the_model_says() {
    seeds().iter().for_each(|seed| {
        fuzz_stream(seed);
    });
    let count = if cfg!(miri) { 40 } else { 20_000 };
    let mut told = BTreeMap::<String, usize>::new();
    let mut sum = Seen::default();
    for seed in 0..count {
        let mut choices = Choices::seeded(seed);
        let bytes = 20 + choices.below(900) as usize;
        let input = choices.take(bytes);
        let outcome = std::panic::catch_unwind(|| fuzz_stream(&input));
        let Ok(seen) = outcome else {
            panic!("seed {seed} fails");
        };
        sum.segments += seen.segments;
        sum.sent += seen.sent;
        sum.completions += seen.completions;
        sum.ahead += seen.ahead;
        if let Some(cause) = seen.told {
            *told.entry(format!("{cause:?}")).or_default() += 1;
        }
    }
    // The seeds must reach every case, otherwise the fuzzer proves little.
    if !cfg!(miri) {
        for cause in TOLD {
            assert!(
                told.contains_key(&format!("{cause:?}")),
                "{cause:?} was never reached"
            );
        }
        let reached = [sum.segments, sum.sent, sum.completions, sum.ahead];
        assert!(reached.iter().all(|&count| count > 1000), "{sum:?}");
    }
}
