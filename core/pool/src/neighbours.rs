//! Engines near a core: those that share its last-level cache, and those of its NUMA node.
//!
//! Why here: a loop's items lie in the cache of the core that asks for helpers. A helper behind the
//! same cache finds them there, one of another node fetches each line over the link between them.
//! Must stay true: made once, only read afterwards; a machine whose cores are all alike has no
//! sets, and its claims cost nothing more. Source: own.

use crate::bits::WORD_BITS;
use sidecore_bare::width::ToUsize;
use sidecore_sys::machine::Place;

/// Sets of engines by place.
#[derive(Debug)]
pub(crate) struct Neighbours {
    /// For each core, the numbers of its sets, the nearest first; none for one without engines.
    of_cpu: Box<[Option<[u32; LEVELS]>]>,
    words_each: usize,
    /// The sets, one after the other.
    words: Box<[u64]>,
}

/// Cache and node.
const LEVELS: usize = 2;

impl Neighbours {
    /// Of engines on these cores, by their numbers; `place` tells the place of a core, and is asked
    /// once for each.
    pub(crate) fn new(cpu_of_engine: &[usize], place: impl Fn(usize) -> Place) -> Self {
        let mut cpus = cpu_of_engine.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        // With two cores there is no choice between helpers.
        let places: Vec<(usize, Place)> = match cpus.len() {
            0..=2 => Vec::new(),
            _ => cpus.into_iter().map(|cpu| (cpu, place(cpu))).collect(),
        };
        let are_alike = places.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let words_each = cpu_of_engine.len().div_ceil(WORD_BITS);
        if are_alike {
            return Self {
                of_cpu: Box::default(),
                words_each,
                words: Box::default(),
            };
        }
        // A cache belongs to one node, so that node and cache name it.
        let keys_of = |place: Place| [(place.node, Some(place.cache)), (place.node, None)];
        let mut keys = Vec::new();
        let last = places.last().map_or(0, |&(cpu, _)| cpu);
        let mut of_cpu = vec![None; last + 1];
        for &(cpu, place) in &places {
            of_cpu[cpu] = Some(keys_of(place).map(|key| {
                let known = keys.iter().position(|it| *it == key);
                let number = known.unwrap_or_else(|| {
                    keys.push(key);
                    keys.len() - 1
                });
                // There are fewer sets than cores.
                number as u32
            }));
        }
        let mut words = vec![0; keys.len() * words_each];
        for (engine, &cpu) in cpu_of_engine.iter().enumerate() {
            for set in of_cpu[cpu].into_iter().flatten() {
                let start = set.to_usize() * words_each;
                words[start + engine / WORD_BITS] |= 1 << (engine % WORD_BITS);
            }
        }
        Self {
            of_cpu: of_cpu.into(),
            words_each,
            words: words.into(),
        }
    }

    /// The engines of a core's last-level cache, then those of its node. Nothing where all cores
    /// are alike.
    #[inline]
    pub(crate) fn sets(&self, cpu: usize) -> impl Iterator<Item = &[u64]> {
        let numbers = self.of_cpu.get(cpu).copied().flatten();
        numbers.into_iter().flatten().map(move |number| {
            let start = number.to_usize() * self.words_each;
            &self.words[start..start + self.words_each]
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bits::bits_of;

    fn engines(set: &[u64]) -> Vec<usize> {
        let words = set.iter().enumerate();
        words
            .flat_map(|(index, &word)| bits_of(word).map(move |bit| index * WORD_BITS + bit))
            .collect()
    }

    #[test]
    fn engines_of_a_cache_come_before_those_of_its_node() {
        // Two nodes of two caches of two cores each; engines on every core but the last, twice.
        let place = |cpu: usize| Place {
            node: cpu / 4,
            cache: Some(cpu / 2 * 2),
        };
        let cpus: Vec<usize> = (0..7).chain(0..7).collect();
        let neighbours = Neighbours::new(&cpus, place);
        let sets = |cpu| neighbours.sets(cpu).map(engines).collect::<Vec<_>>();
        let first_node = vec![0, 1, 2, 3, 7, 8, 9, 10];
        assert_eq!(sets(0), [vec![0, 1, 7, 8], first_node.clone()]);
        assert_eq!(sets(3), [vec![2, 3, 9, 10], first_node]);
        assert_eq!(sets(6), [vec![6, 13], vec![4, 5, 6, 11, 12, 13]]);
        assert!(sets(7).is_empty() && sets(100).is_empty());
        // More engines than a word has bits.
        let cpus: Vec<usize> = (0..200).map(|engine| engine % 8).collect();
        let neighbours = Neighbours::new(&cpus, place);
        let own: Vec<usize> = (0..200).filter(|engine| engine % 8 / 2 == 1).collect();
        assert_eq!(neighbours.sets(2).map(engines).next(), Some(own));
    }

    #[test]
    fn a_machine_of_cores_that_are_alike_has_no_sets() {
        let alike = |_| Place::default();
        assert_eq!(Neighbours::new(&[0, 1, 2, 3], alike).sets(1).count(), 0);
        let unlike = |cpu| Place {
            node: cpu,
            cache: None,
        };
        assert_eq!(Neighbours::new(&[0, 1, 0, 1], unlike).sets(1).count(), 0);
        assert_eq!(Neighbours::new(&[], unlike).sets(0).count(), 0);
        assert_eq!(Neighbours::new(&[0, 1, 2], unlike).sets(2).count(), 2);
    }
}
