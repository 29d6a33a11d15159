//! Identical sequences: one of each is kept for the inference, the others return to the tree as its
//! siblings at no distance.
//!
//! Must stay true: at least three taxa are kept, as the smallest tree has them.

use sidecore_likelihood::likelihood::PartOptions;
use sidecore_likelihood::newick::Newick;
use sidecore_likelihood::tree::{HalfId, Tree};
use std::collections::HashMap;

/// Taxa grouped by their sequences.
#[derive(Debug)]
pub(crate) struct Twins {
    /// For each kept taxon all taxa of its sequence, in ascending order.
    groups: Vec<Vec<usize>>,
}

impl Twins {
    /// Of the taxa of some partitions, of which there is one at least.
    pub(crate) fn of(parts: &[PartOptions]) -> Self {
        let taxa = parts[0].patterns.taxa();
        let mut place: HashMap<Vec<&[u8]>, usize> = HashMap::new();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for taxon in 0..taxa {
            let codes = parts.iter().map(|part| part.patterns.codes(taxon));
            let group = *place.entry(codes.collect()).or_insert(groups.len());
            match groups.get_mut(group) {
                Some(own) => own.push(taxon),
                None => groups.push(vec![taxon]),
            }
        }
        // A tree has an inner node: of very few different sequences some stay single.
        while groups.len() < taxa.min(LEAST) {
            let single = groups.iter_mut().find(|own| own.len() > 1);
            let Some(taxon) = single.and_then(Vec::pop) else {
                break;
            };
            groups.push(vec![taxon]);
        }
        Self { groups }
    }

    /// The number of taxa that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.groups.len()
    }

    /// The partitions of the kept taxa alone, under the same models.
    pub(crate) fn reduce(&self, parts: &[PartOptions]) -> Vec<PartOptions> {
        let kept: Vec<usize> = self.groups.iter().map(|own| own[0]).collect();
        let reduced = parts.iter().map(|part| PartOptions {
            patterns: part.patterns.of_taxa(&kept),
            model: part.model.clone(),
            scale: part.scale,
        });
        reduced.collect()
    }

    /// The text of a tree of the kept taxa with all taxa in their places.
    pub(crate) fn restore(&self, tree: &Tree, names: &[String]) -> Newick {
        let mut text = Newick::root(String::new());
        let top = tree.back(HalfId(0));
        let [a, b] = tree.others(top);
        // Half-edges across from what is to be written, each with the node above it.
        let mut path = vec![(b, 0), (a, 0), (top, 0)];
        while let Some((half, parent)) = path.pop() {
            let below = tree.back(half);
            let length = tree.length(tree.edge(half));
            if tree.is_tip(below) {
                self.push(&mut text, parent, below.index(), length, names);
                continue;
            }
            let node = text.push(parent, String::new(), Some(length));
            path.extend(tree.others(below).into_iter().rev().map(|own| (own, node)));
        }
        text
    }

    /// Adds the taxa of a kept one: alone, or all below one node at no distance.
    fn push(&self, text: &mut Newick, parent: usize, kept: usize, length: f64, names: &[String]) {
        match &self.groups[kept][..] {
            &[taxon] => {
                text.push(parent, names[taxon].clone(), Some(length));
            }
            group => {
                let node = text.push(parent, String::new(), Some(length));
                for &taxon in group {
                    text.push(node, names[taxon].clone(), Some(0.0));
                }
            }
        }
    }
}

/// Taxa of the smallest tree.
const LEAST: usize = 3;
