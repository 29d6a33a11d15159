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
