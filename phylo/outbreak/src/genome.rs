//! Genomes and conditional likelihoods as lists of what differs from a reference.
//!
//! A [`Genome`] says for each site of the reference how probable the data on one side of a point
//! of the tree are, given each of the four bases at that point. A site without an entry is *same*:
//! the data have the reference's base there, seen at this very point. Entries are runs of unknown
//! sites, runs that have the reference's base at a distance, single other bases, and single sites
//! with four numbers. So a list is as long as its genome is different, not as its genome is long.
//!
//! A distance is kept where a branch's other side is unknown: a substitution may then have happened
//! on either of two branches in a row, and both lengths count. Models are reversible, so a list
//! means the same from either end of a branch, and one distance is enough.
//!
//! Must stay true: entries ascend and never overlap; those that are not runs have one site; there
//! is one vector for each mixed entry, in the same order. Source: De Maio and others, "Maximum
//! likelihood pandemic-scale phylogenetics", Nature Genetics 55 (2023), 746-752, "genome lists".

use sidecore_bare::width::ToUsize;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Kind of an entry's sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A base that is not the reference's.
    Base(u8),
    /// The reference's base, at a distance.
    Same,
    /// Nothing is known.
    Unknown,
    /// Four numbers, in the list's vectors.
    Mixed,
}

/// Sites that are not the reference's own.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    start: u32,
    /// Number of sites, and in the three upper bits the kind.
    shape: u32,
    /// Distance to the point where the base was seen, in substitutions a site.
    distance: f32,
}

impl Entry {
    fn new(start: u32, sites: u32, kind: Kind, distance: f64) -> Self {
        let number = match kind {
            Kind::Base(base) => u32::from(base),
            Kind::Same => 4,
            Kind::Unknown => 5,
            Kind::Mixed => 6,
        };
        Self {
            start,
            shape: number << KIND_SHIFT | sites,
            distance: narrow(distance),
        }
    }

    fn kind(self) -> Kind {
        match self.shape >> KIND_SHIFT {
            4 => Kind::Same,
            5 => Kind::Unknown,
            6 => Kind::Mixed,
            base => Kind::Base(u8::try_from(base).unwrap_or(0)),
        }
    }

    fn end(self) -> u32 {
        self.start + (self.shape & SITES_MASK)
    }
}

/// A list of differences: see the module.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Genome {
    entries: Box<[Entry]>,
    vectors: Box<[[f32; 4]]>,
}

impl Genome {
    /// Bytes of memory that the list takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.entries) + size_of_val(&*self.vectors)
    }

    /// Number of sites that are another base or ambiguous, and of unknown ones.
    pub(crate) fn differences(&self) -> [u32; 2] {
        let sites = |wanted: fn(Kind) -> bool| {
            let entries = self.entries.iter().filter(|entry| wanted(entry.kind()));
            entries.map(|entry| entry.end() - entry.start).sum()
        };
        [
            sites(|kind| matches!(kind, Kind::Base(_) | Kind::Mixed)),
            sites(|kind| kind == Kind::Unknown),
        ]
    }

    /// A number that equal lists share.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for entry in self.entries.iter() {
            (entry.start, entry.shape).hash(&mut hasher);
        }
        for vector in self.vectors.iter() {
            vector.map(f32::to_bits).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The sites with another base than the reference's, of a sequence or of a point of the tree.
    pub(crate) fn other_bases(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        self.entries.iter().filter_map(|entry| match entry.kind() {
            Kind::Base(base) => Some((entry.start, usize::from(base))),
            _ => None,
        })
    }

    /// True if it may have this base at a site.
    fn allows(&self, site: u32, base: usize, reference: &Reference) -> bool {
        let at = self.entries.partition_point(|entry| entry.end() <= site);
        let entry = self.entries.get(at).filter(|entry| entry.start <= site);
        match entry.map_or(Kind::Same, |entry| entry.kind()) {
            Kind::Base(own) => usize::from(own) == base,
            Kind::Same => reference.base(site) == base,
            Kind::Unknown | Kind::Mixed => true,
        }
    }

    /// The sites whose base is not certain: unknown ones, and those with four numbers.
    pub(crate) fn uncertain(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let entries = self.entries.iter();
        let uncertain = entries.filter(|entry| matches!(entry.kind(), Kind::Unknown | Kind::Mixed));
        uncertain.map(|entry| (entry.start, entry.end()))
    }

    /// The sites with four numbers, and these.
    pub(crate) fn mixed(&self) -> impl Iterator<Item = (u32, &[f32; 4])> + '_ {
        let entries = self.entries.iter();
        let mixed = entries.filter(|entry| entry.kind() == Kind::Mixed);
        mixed.map(|entry| entry.start).zip(&*self.vectors)
    }

    /// True if `other` says nothing that this one does not say: wherever it knows something, this
    /// one has one of the bases that it allows, and no other. Both are sequences.
    pub(crate) fn covers(&self, other: &Self, reference: &Reference) -> bool {
        Pairs::new(self, other).all(|pair| match (pair.a, pair.b) {
            (_, Side::Unknown) => true,
            (Side::Unknown, _) => false,
            (a, b) => {
                let own = reference.base(pair.start);
                let (a, b) = (a.set(own), b.set(own));
                a & !b == 0
            }
        })
    }

    /// True if the lists differ by so much that what was computed from one has to be computed
    /// again from the other.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let is_far = |a: f64, b: f64| {
            let gap = (a - b).abs();
            gap > CHANGE_LEAST && gap > CHANGE_SHARE * a.max(b)
        };
        !Pairs::new(self, other).all(|pair| match (pair.a, pair.b) {
            (Side::Same(a), Side::Same(b)) => !is_far(a, b),
            (Side::Base(x, a), Side::Base(y, b)) => x == y && !is_far(a, b),
            (Side::Unknown, Side::Unknown) => true,
            (Side::Mixed(a), Side::Mixed(b)) => {
                let mut both = a.iter().zip(b);
                both.all(|(&a, &b)| !is_far(f64::from(a), f64::from(b)))
            }
            _ => false,
        })
    }
}

/// The bases that a tip's sequence has and the upper end of its branch has not.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks {
    /// Sites and bases, of which the first ones count.
    all: [(u32, u8); MARKS_MAX],
    /// 0 where they are too many, or not certain.
    count: u8,
}

impl Marks {
    /// Between the lists of a branch's upper end and of the tip.
    pub(crate) fn new(upper: &Genome, tip: &Genome, reference: &Reference) -> Self {
        let mut marks = Self::default();
        for pair in Pairs::new(upper, tip) {
            let base = match (pair.a, pair.b) {
                (_, Side::Unknown) | (Side::Same(_), Side::Same(_)) => continue,
                (Side::Base(x, _), Side::Base(y, _)) if x == y => continue,
                (Side::Same(_) | Side::Base(..), Side::Base(base, _)) => base,
                (Side::Base(..), Side::Same(_)) => reference.base(pair.start),
                _ => return Self::default(),
            };
            let Some(mark) = marks.all.get_mut(usize::from(marks.count)) else {
                return Self::default();
            };
            *mark = (pair.start, u8::try_from(base).unwrap_or(0));
            marks.count += 1;
        }
        marks
    }

    /// True if a genome has none of the bases, so that no place on the branch suits it better than
    /// the branch's upper end.
    pub(crate) fn exclude(&self, genome: &Genome, reference: &Reference) -> bool {
        let marks = &self.all[..usize::from(self.count)];
        let allows = |&(site, base): &(u32, u8)| genome.allows(site, base.into(), reference);
        !marks.is_empty() && !marks.iter().any(allows)
    }
}

/// The part of one list at some sites.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side<'g> {
    /// The reference's base, at this distance.
    Same(f64),
    /// Another base, at this distance.
    Base(usize, f64),
    /// Nothing is known.
    Unknown,
    /// A number for each base.
    Mixed(&'g [f32; 4]),
}

impl Side<'_> {
    /// The bases that it allows, a bit each; `own` is the reference's.
    fn set(self, own: usize) -> u8 {
        match self {
            Self::Same(_) => 1 << own,
            Self::Base(base, _) => 1 << base,
            Self::Unknown => 15,
            Self::Mixed(vector) => {
                let bits = vector.iter().enumerate();
                bits.fold(0, |set, (base, &value)| set | u8::from(value > 0.0) << base)
            }
        }
    }
}

/// Neighbouring sites at which each of two lists has one thing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair<'g> {
    /// The first site.
    pub(crate) start: u32,
    /// The site behind the last one.
    pub(crate) end: u32,
    /// The first list's part.
    pub(crate) a: Side<'g>,
    /// The second list's part.
    pub(crate) b: Side<'g>,
}

/// All sites at which at least one of two lists has an entry, in order.
pub(crate) struct Pairs<'g> {
    a: Cursor<'g>,
    b: Cursor<'g>,
    at: u32,
}

impl<'g> Pairs<'g> {
    pub(crate) fn new(a: &'g Genome, b: &'g Genome) -> Self {
        Self {
            a: Cursor::new(a),
            b: Cursor::new(b),
            at: 0,
        }
    }
}

impl<'g> Iterator for Pairs<'g> {
    type Item = Pair<'g>;

    #[inline]
    fn next(&mut self) -> Option<Pair<'g>> {
        let start = self.a.start().min(self.b.start()).max(self.at);
        if start == END {
            return None;
        }
        let (a, a_end) = self.a.side(start);
        let (b, b_end) = self.b.side(start);
        let end = a_end.min(b_end);
        self.a.pass(end);
        self.b.pass(end);
        self.at = end;
        Some(Pair { start, end, a, b })
    }
}

/// A place in a list.
struct Cursor<'g> {
    entries: &'g [Entry],
    vectors: &'g [[f32; 4]],
}

impl<'g> Cursor<'g> {
    fn new(genome: &'g Genome) -> Self {
        Self {
            entries: &genome.entries,
            vectors: &genome.vectors,
        }
    }

    #[inline]
    fn start(&self) -> u32 {
        self.entries.first().map_or(END, |entry| entry.start)
    }

    /// The part at a site, and the site behind its end.
    #[inline]
    fn side(&self, site: u32) -> (Side<'g>, u32) {
        match self.entries.first() {
            Some(entry) if entry.start <= site => {
                let distance = f64::from(entry.distance);
                let side = match entry.kind() {
                    Kind::Base(base) => Side::Base(base.into(), distance),
                    Kind::Same => Side::Same(distance),
                    Kind::Unknown => Side::Unknown,
                    Kind::Mixed => Side::Mixed(self.vectors.first().unwrap_or(&EVEN)),
                };
                (side, entry.end())
            }
            Some(entry) => (Side::Same(0.0), entry.start),
            None => (Side::Same(0.0), END),
        }
    }

    /// Goes on to a site.
    #[inline]
    fn pass(&mut self, site: u32) {
        if let [entry, rest @ ..] = self.entries
            && entry.end() <= site
        {
            if entry.kind() == Kind::Mixed {
                self.vectors = self.vectors.get(1..).unwrap_or(&[]);
            }
            self.entries = rest;
        }
    }
}

/// A list in the making: entries come in order.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    entries: Vec<Entry>,
    vectors: Vec<[f32; 4]>,
}

impl Builder {
    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Entry>() * self.entries.capacity() + size_of::<[f32; 4]>() * self.vectors.len()
    }

    /// The list, from buffers that are used again.
    pub(crate) fn take(&mut self) -> Genome {
        let genome = Genome {
            entries: self.entries.as_slice().into(),
            vectors: self.vectors.as_slice().into(),
        };
        self.clear();
        genome
    }

    /// Empties the buffers.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.vectors.clear();
    }

    /// Nothing is known from `start` up to `end`.
    pub(crate) fn unknown(&mut self, start: u32, end: u32) {
        self.run(start, end, Kind::Unknown, 0.0);
    }

    /// The reference's bases from `start` up to `end`, at a distance.
    pub(crate) fn same(&mut self, start: u32, end: u32, distance: f64) {
        if distance > 0.0 {
            self.run(start, end, Kind::Same, distance);
        }
    }

    /// A base other than the reference's at a distance.
    pub(crate) fn base(&mut self, site: u32, base: usize, distance: f64) {
        let kind = Kind::Base(u8::try_from(base).unwrap_or(0));
        self.entries.push(Entry::new(site, 1, kind, distance));
    }

    /// Four numbers, one for each base.
    pub(crate) fn mixed(&mut self, site: u32, vector: [f64; 4]) {
        self.entries.push(Entry::new(site, 1, Kind::Mixed, 0.0));
        self.vectors.push(vector.map(narrow));
    }

    /// The character of a sequence, as the set of its bases; 15 and 0 are unknown.
    pub(crate) fn character(&mut self, site: u32, set: u8, reference: &Reference) {
        match set {
            0 | 15 => self.unknown(site, site + 1),
            1 | 2 | 4 | 8 => {
                let base = set.trailing_zeros().to_usize();
                if base != reference.base(site) {
                    self.base(site, base, 0.0);
                }
            }
            _ => self.mixed(site, std::array::from_fn(|base| f64::from(set >> base & 1))),
        }
    }

    fn run(&mut self, start: u32, end: u32, kind: Kind, distance: f64) {
        if let Some(last) = self.entries.last_mut()
            && last.end() == start
            && last.kind() == kind
            && last.distance == narrow(distance)
        {
            last.shape += end - start;
            return;
        }
        self.entries
            .push(Entry::new(start, end - start, kind, distance));
    }
}

/// The genome that all others are compared with.
#[derive(Debug, Clone)]
pub(crate) struct Reference {
    bases: Vec<u8>,
    /// For each site the number of each base in front of it; one more than sites.
    counts: Vec<[u32; 4]>,
}

impl Reference {
    /// From characters. An ambiguous one counts as the first of its bases: the reference is only
    /// what sequences are written against, and no sequence itself.
    pub(crate) fn new(sets: &[u8]) -> Self {
        let base = |&set: &u8| match set {
            0 => 0,
            set => u8::try_from(set.trailing_zeros() & 3).unwrap_or(0),
        };
        let bases: Vec<u8> = sets.iter().map(base).collect();
        let mut counts = Vec::with_capacity(bases.len() + 1);
        let mut sums = [0_u32; 4];
        counts.push(sums);
        for &base in &bases {
            sums[usize::from(base)] += 1;
            counts.push(sums);
        }
        Self { bases, counts }
    }

    /// Number of sites.
    pub(crate) fn sites(&self) -> usize {
        self.bases.len()
    }

    /// Number of the base at a site.
    #[inline]
    pub(crate) fn base(&self, site: u32) -> usize {
        usize::from(self.bases[site.to_usize()])
    }

    /// Number of each base from one site up to another.
    #[inline]
    pub(crate) fn counts(&self, start: u32, end: u32) -> [f64; 4] {
        if end == start + 1 {
            let own = self.base(start);
            return std::array::from_fn(|base| if base == own { 1.0 } else { 0.0 });
        }
        let (low, high) = (self.counts[start.to_usize()], self.counts[end.to_usize()]);
        std::array::from_fn(|base| f64::from(high[base] - low[base]))
    }

    /// Number of each base.
    pub(crate) fn totals(&self) -> [f64; 4] {
        self.counts
            .last()
            .map_or([0.0; 4], |all| all.map(f64::from))
    }

    /// Share of each base; none is less than a little.
    pub(crate) fn shares(&self) -> [f64; 4] {
        let totals = self.totals().map(|count| count + SHARE_COUNT);
        let sum: f64 = totals.iter().sum();
        totals.map(|count| count / sum)
    }
}

/// Genomes as their differences from a reference.
#[derive(Debug)]
pub struct Genomes {
    pub(crate) names: Vec<String>,
    pub(crate) lists: Vec<Genome>,
    pub(crate) reference: Reference,
    pub(crate) left_out: u64,
}

/// To half of the memory: lists are most of it.
fn narrow(value: f64) -> f32 {
    // The nearest is meant.
    value as f32
}

/// The most sites of a genome: an entry's length has 29 bits, and counts take 16 bytes a site.
pub(crate) const SITES_MAX: usize = 1 << 24;
const KIND_SHIFT: u32 = 29;
const SITES_MASK: u32 = (1 << KIND_SHIFT) - 1;
/// The most bases that [`Marks`] hold.
const MARKS_MAX: usize = 3;
/// Behind every site.
const END: u32 = u32::MAX;
/// Changes of a number below which nothing is computed again: by difference, and as a share.
const CHANGE_LEAST: f64 = 1e-6;
const CHANGE_SHARE: f64 = 0.005;
/// Added to the number of each base, so that none has the frequency 0.
const SHARE_COUNT: f64 = 0.25;
const EVEN: [f32; 4] = [1.0; 4];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sets(text: &[u8]) -> Vec<u8> {
        let code = |&c: &u8| sidecore_likelihood::msa::Alphabet::Dna.code(c).unwrap();
        text.iter().map(code).collect()
    }

    fn of(text: &[u8], reference: &Reference) -> Genome {
        let mut builder = Builder::default();
        for (site, set) in (0..).zip(sets(text)) {
            builder.character(site, set, reference);
        }
        builder.take()
    }

    #[test]
    fn lists_hold_differences_alone() {
        let reference = Reference::new(&sets(b"ACGTACGT"));
        assert_eq!(of(b"ACGTACGT", &reference), Genome::default());
        let genome = of(b"NNGTRCG-", &reference);
        assert_eq!(genome.differences(), [1, 3]);
        assert_eq!(genome.entries.len(), 3);
        assert_eq!(
            of(b"TCGTACGT", &reference).other_bases().next(),
            Some((0, 3))
        );
        assert_eq!(reference.counts(1, 7), [1.0, 2.0, 2.0, 1.0]);
    }

    proptest! {
        /// Pairs against a comparison site by site.
        #[test]
        fn pairs_are_what_two_texts_have(
            texts in (1_usize..20).prop_flat_map(|n| {
                let text = || proptest::collection::vec(
                    proptest::sample::select(&b"ACGTNRYN"[..]), n);
                (text(), text(), proptest::collection::vec(
                    proptest::sample::select(&b"ACGT"[..]), n))
            })
        ) {
            let (a, b, own) = texts;
            let reference = Reference::new(&sets(&own));
            let (first, second) = (of(&a, &reference), of(&b, &reference));
            let (a, b, own) = (sets(&a), sets(&b), sets(&own));
            let mut seen = vec![false; own.len()];
            for pair in Pairs::new(&first, &second) {
                prop_assert!(pair.start < pair.end);
                for site in pair.start..pair.end {
                    let at = site.to_usize();
                    prop_assert!(!seen[at]);
                    seen[at] = true;
                    let base = reference.base(site);
                    prop_assert_eq!([pair.a.set(base), pair.b.set(base)], [a[at], b[at]]);
                }
            }
            for at in (0..own.len()).filter(|&at| !seen[at]) {
                prop_assert_eq!([a[at], b[at]], [own[at]; 2]);
            }
            let covers = a.iter().zip(&b).all(|(a, b)| a & !b == 0);
            prop_assert_eq!(first.covers(&second, &reference), covers);
            for (site, set) in (0..).zip(&a) {
                for base in 0..4_usize {
                    let known = !set.is_power_of_two() || set >> base & 1 == 1;
                    prop_assert_eq!(first.allows(site, base, &reference), known);
                }
            }
            let marks = Marks::new(&first, &second, &reference);
            prop_assert!(!marks.exclude(&second, &reference));
            if marks.count > 0 {
                // The upper end has none of the bases, and each difference is one.
                prop_assert!(marks.exclude(&first, &reference));
                let others = a.iter().zip(&b).filter(|(a, b)| **a & **b == 0);
                prop_assert_eq!(others.count(), usize::from(marks.count));
            }
            prop_assert!(!first.differs(&first));
            prop_assert_eq!(first.differs(&second), a != b);
        }
    }
}
