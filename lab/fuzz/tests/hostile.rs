//! Targets driven from a seed, with damage of their own kind.

use sidecore_fuzz::{daemon, overlay, remote, sockets};
use sidecore_random::choices::Choices;
use sidecore_random::{Random, split_mix};

/// Clients of the daemon that write anywhere.
#[test]
fn a_scribbler_hurts_itself_alone() {
    let inputs = std::env::var("SIDECORE_SCRIBBLER_INPUTS");
    let inputs = inputs.map_or(500, |text| text.parse().unwrap());
    let mut random = Choices::seeded(1);
    let mut steps = 0;
    for _ in 0..inputs {
        let bytes = random.take(2000);
        steps += daemon::fuzz_daemon(&bytes);
    }
    eprintln!("{inputs} inputs, {steps} operations");
}

/// Overlays to begin with, and their mutants.
#[test]
fn overlays_and_their_mutants_are_taken_by_the_fuzz_target() {
    let mut random = 11;
    let seeds = overlay::seeds();
    assert!(seeds.len() >= 8, "{}", seeds.len());
    for seed in &seeds {
        overlay::fuzz_overlay(seed);
        for _ in 0..12 {
            let mut mutant = seed.clone();
            for _ in 0..=split_mix(&mut random) % 4 {
                // Superblock and log, mostly.
                let reach = match split_mix(&mut random) % 3 {
                    0 => mutant.len(),
                    _ => mutant.len().min(1500),
                };
                let at = split_mix(&mut random) as usize % reach;
                mutant[at] = split_mix(&mut random) as u8;
            }
            overlay::fuzz_overlay(&mutant);
        }
    }
}

/// Servers' answers.
#[test]
fn damaged_answers_do_no_harm() {
    let seeds = remote::seeds();
    seeds.iter().for_each(|seed| remote::fuzz_answer(seed));
    let mut random = Random::new(35);
    for _ in 0..20_000 {
        let mut answer = seeds[random.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=random.below(4) {
            let at = random.below(answer.len() as u64) as usize;
            match random.below(4) {
                0 => answer[at] = random.bits() as u8,
                1 => answer.truncate(at.max(1)),
                2 => answer.insert(at, b":/\"\n{}[]@.?#-09"[random.below(15) as usize]),
                _ => {
                    let other = &seeds[random.below(seeds.len() as u64) as usize];
                    answer.extend_from_slice(&other[at.min(other.len())..]);
                }
            }
        }
        remote::fuzz_answer(&answer);
    }
}

/// Hostile applications.
#[test]
fn a_hostile_application_hurts_itself_alone() {
    let mut target = sockets::Target::new(1);
    for _ in 0..40_000 {
        target.input();
    }
    let (cut_off, done) = target.progress();
    assert!(cut_off > 50, "{cut_off} times cut off");
    assert!(done > 1_000, "{done} requests done");
    let across = target.across_bytes();
    assert!(
        across > 100_000,
        "{across} bytes went from one to the other"
    );
}

mod nbd {
    //! Dialogues with the NBD server's core, made by property, from seeds, and around damage.

    use proptest::prelude::*;
    use sidecore_export::nbd::reply::reply;
    use sidecore_export::nbd::session::Command;
    use sidecore_export::nbd::wire::{Headers, Request, command, option};
    use sidecore_fuzz::nbd::{self, Device, Memory, SIZE_BYTES, Script, info_data, meta};

    #[test]
    fn a_simple_read_is_header_and_bytes() {
        let device = Device::new();
        let mut memory = Memory::default();
        let command = Command::Read {
            cookie: 0x0102_0304_0506_0708,
            offset: 10,
            len: 3,
            whole: false,
        };
        reply(&device, Headers::Simple, &command, &mut memory).unwrap();
        let mut expected = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        expected.extend_from_slice(&device.bytes()[10..13]);
        assert_eq!(memory.bytes, expected);
    }

    #[test]
    fn damage_costs_exactly_the_frames_it_is_in() {
        // The oracle checks every chunk; what is left to see is that good bytes around the damage
        // do come.
        let device = Device::new();
        let request = Request {
            flags: 0,
            command: command::READ,
            cookie: 1,
            offset: 0,
            len: SIZE_BYTES as u64,
        };
        let mut script = Script::new(3);
        script.option(option::STRUCTURED_REPLY, &[]);
        script.option(option::EXPORT_NAME, &[]);
        script.request(&request);
        let sent = nbd::dialogue(&device, script.dialogue(), usize::MAX);
        assert!(sent.len() > SIZE_BYTES - 2 * nbd::FRAME_BYTES);
        assert!(sent.len() < SIZE_BYTES - nbd::FRAME_BYTES);
        assert!(
            sent.windows(7).any(|window| window == b"damaged"),
            "the reason is not in the reply"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Any requests, however they arrive, are answered by the device's bytes; the oracle is in
        /// `sidecore_fuzz::nbd`.
        #[test]
        fn dialogues_are_answered_alike_however_they_arrive(
            headers in 0..3,
            arrival in 1_usize..200,
            requests in prop::collection::vec(
                (0_u16..16, 0_u16..9, any::<u64>(), 0..SIZE_BYTES as u64 + 9, 0..SIZE_BYTES as u64),
                1..12,
            ),
        ) {
            let mut script = Script::new(3);
            if headers > 0 {
                let forms = [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS];
                let form = forms[headers as usize - 1];
                script.option(form, &[]);
                script.option(option::SET_META_CONTEXT, &meta("", &["base:allocation"]));
            }
            script.option(option::GO, &info_data("", &[]));
            for (flags, command, cookie, offset, len) in requests {
                let request = Request { flags, command, cookie, offset, len };
                match headers {
                    2 => script.bytes(&request.encode_extended()),
                    _ => script.request(&request),
                }
            }
            let device = Device::new();
            let at_once = nbd::dialogue(&device, script.dialogue(), usize::MAX);
            prop_assert_eq!(at_once, nbd::dialogue(&device, script.dialogue(), arrival));
        }

        /// A few of the dialogues that the long run (`lab/fuzz/src/bin/seeded`) makes.
        #[test]
        fn mutated_dialogues_do_no_harm(seed: u64) {
            let mut random = seed;
            let data = nbd::mutate(&nbd::seeds(), &mut random);
            nbd::fuzz_dialogue(&data);
        }
    }
}

mod phylo {
    //! Inputs of every kind, and damage to them.

    use sidecore_fuzz::phylo::{
        KINDS, Kind, alignment, checkpoint, model, mutate, newick, nexus, partitions, read,
        search_state, seeds,
    };
    use sidecore_phylo::random::Random;

    #[test]
    fn seeds_are_taken_and_damage_is_survived() {
        let mut taken = 0;
        let all = KINDS.map(|kind| seeds(kind).iter().map(move |seed| (kind, seed)));
        for (number, (kind, seed)) in all.into_iter().flatten().enumerate() {
            assert!(read(kind, seed), "{}", String::from_utf8_lossy(seed));
            let mut random = Random::new(number as u64);
            for _ in 0..300 {
                taken += u32::from(read(kind, &mutate(kind, seed, &mut random)));
            }
        }
        assert!(taken > 100, "{taken}");
    }

    #[test]
    fn every_entry_point_takes_its_kind() {
        let rest = |text: &[u8]| text.strip_prefix(b"#NEXUS").map(<[u8]>::to_vec);
        let of_nexus = seeds(Kind::Alignment).iter().filter_map(|seed| rest(seed));
        assert!(of_nexus.map(|rest| u32::from(nexus(&rest))).sum::<u32>() >= 3);
        type Entry = fn(&[u8]) -> bool;
        let entries: [(Kind, Entry); 6] = [
            (Kind::Alignment, alignment),
            (Kind::Tree, newick),
            (Kind::Partitions, partitions),
            (Kind::Model, model),
            (Kind::Checkpoint, checkpoint),
            (Kind::State, search_state),
        ];
        for (kind, entry) in entries {
            assert!(seeds(kind).iter().all(|seed| entry(seed)), "{kind:?}");
            assert!(!entry(b"\xFF\xFE nothing of the kind"), "{kind:?}");
        }
    }
}

mod rdma {
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
}
