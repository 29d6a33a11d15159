//! Site patterns: equal columns are kept once, with their number as weight.
//!
//! Columns in which no taxon has a character (gaps, `?`, `N`, `X` only) are left out, as RAxML-NG
//! does: their likelihood is 1 on every tree. Where a partition has no others they are kept, so
//! that every partition has a pattern.
//!
//! Must stay true: patterns are sorted, so that their order (and with it every sum over them) does
//! not depend on the columns' order, and so that similar columns are neighbours and share work.

use super::{Alignment, Alphabet, MsaError, limit, shown};
use sidecore_bare::width::ToUsize;
use sidecore_random::Random;
use std::sync::Arc;

/// The distinct columns of some sites of an alignment, in one alphabet.
#[derive(Debug, Clone)]
pub struct Patterns {
    alphabet: Alphabet,
    /// For each code its set of states: the alphabet's, then those of sets in the alignment.
    masks: Vec<u64>,
    /// Taxon by taxon, each pattern's code.
    codes: Vec<Vec<u8>>,
    weights: Vec<u32>,
    /// For each of the sites its pattern.
    of_site: Vec<u32>,
    /// For each of the sites its place in the alignment; of a codon its three.
    sites: Vec<u32>,
    /// Places in the alignment of the columns without a character.
    undetermined: Vec<u32>,
    /// True if no site has a character.
    is_undetermined: bool,
    /// Meaningful characters that were read as unknown, each with its count.
    unread: Vec<(u8, usize)>,
    /// Codons that were read as unknown though one of their bases is known.
    unread_codons: usize,
    /// Frequencies of patterns that have their own, and for each pattern the place of its own.
    profiles: Option<(Arc<SiteProfiles>, Vec<u32>)>,
}

/// The distinct profiles of patterns that have stationary frequencies of their own, one after the
/// other: twenty states each, and the spectrum of each one's rate matrix.
#[derive(Debug, Default)]
pub struct SiteProfiles {
    /// Stationary frequencies.
    pub frequencies: Vec<f64>,
    /// Eigenvalues of the rate matrix.
    pub values: Vec<f64>,
    /// Its right eigenvectors.
    pub right: Vec<f64>,
    /// Its left eigenvectors, state by state.
    pub left_by_state: Vec<f64>,
}

impl SiteProfiles {
    /// The frequencies of a profile.
    ///
    /// # Panics
    /// When there is no such profile.
    #[must_use]
    pub fn frequencies(&self, at: u32) -> &[f64] {
        &self.frequencies[20 * at.to_usize()..][..20]
    }
}

impl Patterns {
    /// All of an alignment's sites.
    ///
    /// # Errors
    /// As [`Patterns::of_sites`]; [`MsaError::Undetermined`] where no site has a character.
    pub fn new(alignment: &Alignment, alphabet: Alphabet) -> Result<Self, MsaError> {
        let all = (0..alignment.sites() as u32).collect();
        let patterns = Self::of_sites(alignment, alphabet, all)?;
        match patterns.is_undetermined() {
            true => Err(MsaError::Undetermined),
            false => Ok(patterns),
        }
    }

    /// Some of an alignment's columns, counted from 0; of codons each three in a row are a site.
    ///
    /// # Errors
    /// [`MsaError::IllegalCharacter`], [`MsaError::Empty`], [`MsaError::Codons`].
    ///
    /// # Panics
    /// When a site is beyond the alignment.
    pub fn of_sites(
        alignment: &Alignment,
        alphabet: Alphabet,
        columns: Vec<u32>,
    ) -> Result<Self, MsaError> {
        let width = alphabet.width();
        if columns.is_empty() {
            return Err(MsaError::Empty);
        }
        if !columns.len().is_multiple_of(width) {
            let columns = columns.len();
            return Err(MsaError::Codons { columns });
        }
        let sites: Vec<&[u32]> = columns.chunks(width).collect();
        let taxa = alignment.names().len();
        // Stored column by column, because the sort compares columns.
        limit(
            "characters",
            taxa.saturating_mul(sites.len()),
            CHARACTERS_MAX,
        )?;
        let mut codes = vec![0_u8; taxa * sites.len()];
        let mut characters = Vec::with_capacity(width);
        let (mut unread, mut unread_codons) = ([0_usize; 256], 0);
        let mut masks = alphabet.masks().to_vec();
        for taxon in 0..taxa {
            let row = alignment.row(taxon);
            for (k, site) in sites.iter().enumerate() {
                // A site is one column, or three of a codon.
                characters.clear();
                characters.extend(site.iter().map(|&column| row[column.to_usize()]));
                let set = alignment.set_of(characters[0]);
                let code = match set.is_empty() {
                    true => alphabet.code_of(&characters),
                    false => code_of_set(alphabet, set, &mut masks),
                };
                let code = code.ok_or_else(|| {
                    let shown_characters = if set.is_empty() { &characters } else { set };
                    MsaError::IllegalCharacter {
                        taxon: shown(&alignment.names()[taxon]),
                        site: site[0].to_usize() + 1,
                        character: shown(&String::from_utf8_lossy(shown_characters)),
                        alphabet,
                    }
                })?;
                codes[k * taxa + taxon] = code;
                // Unknown by an unusual character: a mistake that the user should hear of.
                if code == alphabet.unknown() && !characters.iter().all(|&c| says_nothing(c)) {
                    match characters.as_slice() {
                        &[character] => unread[usize::from(character)] += 1,
                        _ => unread_codons += 1,
                    }
                }
            }
        }
        let column = |k: u32| &codes[k.to_usize() * taxa..][..taxa];
        let has_character = |k: &u32| column(*k).iter().any(|&code| code != alphabet.unknown());
        let all = 0..sites.len() as u32;
        let (mut kept, left_out): (Vec<u32>, Vec<u32>) = all.clone().partition(has_character);
        let is_undetermined = kept.is_empty();
        // An alignment without any character still needs one pattern for a tree to be evaluated.
        if is_undetermined {
            kept = all.collect();
        }
        // From here on `k` counts the kept columns.
        let column = |k: u32| column(kept[k.to_usize()]);
        let mut order: Vec<u32> = (0..kept.len() as u32).collect();
        // Sorted, so that equal columns are neighbours; ties by place make the order unique.
        order.sort_unstable_by(|&a, &b| column(a).cmp(column(b)).then(a.cmp(&b)));
        let places = |list: &[u32]| {
            list.iter()
                .flat_map(|&k| sites[k.to_usize()])
                .copied()
                .collect()
        };
        let mut patterns = Self {
            alphabet,
            masks,
            codes: vec![Vec::new(); taxa],
            weights: Vec::new(),
            of_site: vec![0; kept.len()],
            sites: places(&kept),
            undetermined: places(&left_out),
            is_undetermined,
            unread: (0..=u8::MAX)
                .zip(unread)
                .filter(|(_, count)| *count > 0)
                .collect(),
            unread_codons,
            profiles: None,
        };
        let mut last: Option<u32> = None;
        for &k in &order {
            if last.is_none_or(|last| column(last) != column(k)) {
                for (codes, &code) in patterns.codes.iter_mut().zip(column(k)) {
                    codes.push(code);
                }
                patterns.weights.push(0);
                last = Some(k);
            }
            let pattern = patterns.weights.len() - 1;
            patterns.weights[pattern] += 1;
            patterns.of_site[k.to_usize()] = pattern as u32;
        }
        Ok(patterns)
    }

    /// A bootstrap's alignment: this one's number of sites, each drawn from its sites with equal
    /// chances. Patterns that were not drawn are left out; the others keep their order. The k-th
    /// draw has the place of this set's k-th site.
    ///
    /// Source: Felsenstein, "Confidence limits on phylogenies: an approach using the bootstrap",
    /// Evolution 39 (1985), 783-791.
    #[must_use]
    pub fn resampled(&self, random: &mut Random) -> Self {
        let sites = self.of_site.len();
        // Columns are drawn, not patterns, so that each column has the same chance.
        let drawn = (0..sites).map(|_| self.of_site[random.index(sites)]);
        self.with_sites(drawn.collect(), self.sites.clone())
    }

    /// A jackknife replicate: this share of the sites, rounded, and one at least; each once.
    ///
    /// Source: Farris and others, "Parsimony jackknifing outperforms neighbor-joining", Cladistics
    /// 12 (1996), 99-124.
    #[must_use]
    pub fn jackknifed(&self, share: f64, random: &mut Random) -> Self {
        let sites = self.of_site.len();
        let kept = (share.clamp(0.0, 1.0) * sites as f64).round() as usize;
        let mut order: Vec<usize> = (0..sites).collect();
        for at in 0..kept.max(1) {
            order.swap(at, at + random.index(sites - at));
        }
        order.truncate(kept.max(1));
        order.sort_unstable();
        let of_site = order.iter().map(|&site| self.of_site[site]).collect();
        let width = self.alphabet.width();
        let places = order
            .iter()
            .flat_map(|&site| &self.sites[width * site..][..width]);
        self.with_sites(of_site, places.copied().collect())
    }

    /// The same patterns for other sites: for each its pattern, and its place in the alignment.
    fn with_sites(&self, mut of_site: Vec<u32>, sites: Vec<u32>) -> Self {
        // Weights are counts of draws: a replicate needs no new columns.
        let mut drawn = vec![0_u32; self.len()];
        of_site
            .iter()
            .for_each(|&pattern| drawn[pattern.to_usize()] += 1);
        // Patterns that were not drawn would cost time in every kernel.
        let kept: Vec<usize> = (0..self.len()).filter(|&at| drawn[at] > 0).collect();
        let mut renumbered = vec![0_u32; self.len()];
        for (number, &pattern) in kept.iter().enumerate() {
            renumbered[pattern] = number as u32;
        }
        of_site
            .iter_mut()
            .for_each(|pattern| *pattern = renumbered[pattern.to_usize()]);
        Self {
            alphabet: self.alphabet,
            masks: self.masks.clone(),
            codes: self
                .codes
                .iter()
                .map(|codes| kept.iter().map(|&pattern| codes[pattern]).collect())
                .collect(),
            weights: kept.iter().map(|&pattern| drawn[pattern]).collect(),
            of_site,
            sites,
            undetermined: self.undetermined.clone(),
            is_undetermined: self.is_undetermined,
            unread: self.unread.clone(),
            unread_codons: self.unread_codons,
            profiles: self.profiles.as_ref().map(|(own, of_pattern)| {
                let of_kept = kept.iter().map(|&pattern| of_pattern[pattern]);
                (own.clone(), of_kept.collect())
            }),
        }
    }

    /// The same patterns, of some taxa in this order: equal columns are not joined, so that sites
    /// keep their patterns.
    ///
    /// # Panics
    /// When there is no such taxon.
    #[must_use]
    pub fn of_taxa(&self, taxa: &[usize]) -> Self {
        Self {
            alphabet: self.alphabet,
            masks: self.masks.clone(),
            codes: taxa
                .iter()
                .map(|&taxon| self.codes[taxon].clone())
                .collect(),
            weights: self.weights.clone(),
            of_site: self.of_site.clone(),
            sites: self.sites.clone(),
            undetermined: self.undetermined.clone(),
            is_undetermined: self.is_undetermined,
            unread: self.unread.clone(),
            unread_codons: self.unread_codons,
            profiles: self.profiles.clone(),
        }
    }

    /// Gives patterns frequencies of their own: for each pattern the place of its profile.
    pub fn set_profiles(&mut self, profiles: Arc<SiteProfiles>, of_pattern: Vec<u32>) {
        self.profiles = Some((profiles, of_pattern));
    }

    /// The frequencies of patterns that have their own, and for each pattern the place of its own.
    #[must_use]
    pub fn profiles(&self) -> Option<(&Arc<SiteProfiles>, &[u32])> {
        let own = self.profiles.as_ref();
        own.map(|(profiles, of_pattern)| (profiles, &of_pattern[..]))
    }

    /// DNA or protein.
    #[must_use]
    pub fn alphabet(&self) -> Alphabet {
        self.alphabet
    }

    /// For each code its set of states.
    #[must_use]
    pub fn masks(&self) -> &[u64] {
        &self.masks
    }

    /// Number of taxa.
    #[must_use]
    pub fn taxa(&self) -> usize {
        self.codes.len()
    }

    /// Number of patterns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Never: an alignment without sites is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// A taxon's codes, pattern by pattern.
    #[must_use]
    pub fn codes(&self, taxon: usize) -> &[u8] {
        &self.codes[taxon]
    }

    /// Number of sites that each pattern stands for.
    #[must_use]
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// Number of sites that the patterns stand for.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.weights().iter().map(|&weight| weight.to_usize()).sum()
    }

    /// Places in the alignment (from 0) of the columns in which no taxon has a character. They are
    /// in no pattern, unless there are no others ([`Patterns::is_undetermined`]).
    #[must_use]
    pub fn undetermined_sites(&self) -> &[u32] {
        &self.undetermined
    }

    /// Characters that were read as unknown although they are not the usual ones (`-`, `?`, `~`,
    /// `N`, `X`), each with its count: stops (`*`), pyrrolysine and selenocysteine in proteins, `O`
    /// in DNA.
    #[must_use]
    pub fn unread(&self) -> &[(u8, usize)] {
        &self.unread
    }

    /// Number of codons that were read as unknown though a base of theirs is known.
    #[must_use]
    pub(crate) fn unread_codons(&self) -> usize {
        self.unread_codons
    }

    /// True if no site has a character: one pattern that every tree gives the likelihood 1.
    #[must_use]
    pub fn is_undetermined(&self) -> bool {
        self.is_undetermined
    }

    /// Places in the alignment (from 0) of all columns that the set was made of, in ascending
    /// order.
    #[must_use]
    pub fn alignment_sites(&self) -> Vec<u32> {
        let mut all = [&self.sites[..], &self.undetermined].concat();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Number of sites at which all taxa may have the same state.
    #[must_use]
    pub fn constant_sites(&self) -> usize {
        let all = self.weights.iter().enumerate();
        let constant = all.filter(|(pattern, _)| self.common_states(*pattern) != 0);
        constant.map(|(_, &weight)| weight.to_usize()).sum()
    }

    /// For each site of this set its place in the alignment (from 0; of a codon that of its first
    /// base) and its pattern. Columns without a character are not among them, unless there are no
    /// others.
    pub fn site_patterns(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let places = self.site_columns().map(|own| own[0].to_usize());
        places.zip(self.of_site.iter().map(|at| at.to_usize()))
    }

    /// As [`Patterns::site_patterns`], for each site all its places: three of a codon.
    pub fn site_columns(&self) -> impl Iterator<Item = &[u32]> {
        self.sites.chunks(self.alphabet.width())
    }

    /// The states that every taxon may have at a pattern: 0 if it cannot be invariable.
    #[must_use]
    pub fn common_states(&self, pattern: usize) -> u64 {
        let masks = &self.masks;
        let all = masks[usize::from(self.alphabet.unknown())];
        self.codes.iter().fold(all, |common, codes| {
            common & masks[usize::from(codes[pattern])]
        })
    }
}

/// The code of a set of states, which may be one of the alphabet's own; `None` where the alphabet
/// lacks one of them.
fn code_of_set(alphabet: Alphabet, set: &[u8], masks: &mut Vec<u64>) -> Option<u8> {
    let mut mask = 0;
    for &character in set {
        mask |= alphabet.masks()[usize::from(alphabet.code(character)?)];
    }
    // An alphabet has few masks, and a set that was seen before keeps its code.
    let place = masks.iter().position(|&other| other == mask);
    let place = place.unwrap_or_else(|| {
        masks.push(mask);
        masks.len() - 1
    });
    u8::try_from(place).ok()
}

/// True of characters for missing data.
fn says_nothing(character: u8) -> bool {
    matches!(character, b'-' | b'?' | b'~' | b'N' | b'n' | b'X' | b'x')
}

/// The most characters (taxa times sites) of one set of patterns: 16 GiB.
const CHARACTERS_MAX: usize = 1 << 34;
