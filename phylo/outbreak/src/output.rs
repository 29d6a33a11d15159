//! The tree as text, the substitutions on its branches, and the report.
//!
//! The tree is rooted where the reference would be placed. Genomes that say nothing more than a tip
//! are that tip's neighbours, at no distance. Must stay true: nothing recurses, and memory is in
//! proportion to the lists. Substitutions are between the most probable bases of a branch's ends,
//! each by the posterior of its node; a genome's unknown or ambiguous sites show none.

use crate::genome::{Builder, Genome};
use crate::infer::Outbreak;
use crate::search::{Found, best_fit, find};
use crate::sparse::merge;
use crate::tree::{NONE, Place, ROOT};
use sidecore_bare::width::ToUsize;
use sidecore_likelihood::newick::Newick;
use sidecore_terminal::Text;
use std::fmt::Write as _;
use std::path::Path;

/// Form of a tree's text.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Inner branches of no length are left out, so that nodes have several children.
    pub polytomies: bool,
    /// Inner nodes are named `Node1` and so on, in the order of the text's nodes.
    pub node_names: bool,
}

/// Results of an inference.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    /// Genomes.
    pub taxa: usize,
    /// Tips: genomes that say something of their own.
    pub tips: usize,
    /// Sites of the reference.
    pub sites: usize,
    /// Log-likelihood of all sites.
    pub lnl: f64,
    /// The model with its values, as `sidecore phylo evaluate` takes it.
    pub model: String,
    /// Sum of all branch lengths, in substitutions a site.
    pub length: f64,
    /// Subtrees that were moved.
    pub moves: u64,
    /// Rounds of moves.
    pub rounds: u32,
    /// True if a signal ended the rounds early.
    pub stopped: bool,
    /// The most memory that the process had, bytes.
    pub peak_memory_bytes: u64,
    /// The tree, in Newick.
    pub tree: String,
    /// Substitutions a site and unit of time, where the tree was dated.
    pub rate: Option<f64>,
    /// The date of the root of that tree.
    pub root_date: Option<f64>,
}

impl Report {
    /// The same for people, without the tree.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.fact(
            "genomes",
            format!("{}, {} of them tips", self.taxa, self.tips),
        );
        text.fact("sites", self.sites.to_string());
        text.fact("log-likelihood", format!("{:.6}", self.lnl));
        text.fact("model", self.model.clone());
        text.fact("moves", format!("{} in {} rounds", self.moves, self.rounds));
        let mib = self.peak_memory_bytes >> 20;
        text.fact("memory", format!("{mib} MiB at most"));
        if let (Some(rate), Some(root)) = (self.rate, self.root_date) {
            let clock = format!("{rate:.4e} a site and unit, root {root:.4}");
            text.fact("clock", clock);
        }
        text
    }
}

/// The point of the tree that a node of the text is.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// The root: a point on the branch above a node, at this length from that.
    Branch(u32, f64),
    /// A node of the tree.
    Node(u32),
    /// A genome that says less than its tip.
    Copy,
}

/// Sites whose base is not the reference's, ascending.
type States = Vec<(u32, usize)>;

/// A change from one base to another, at a site from 0.
type Change = (u32, usize, usize);

impl Outbreak {
    /// The log-likelihood of all sites.
    #[must_use]
    pub fn lnl(&self) -> f64 {
        self.lnl
    }

    /// The rooted tree.
    #[must_use]
    pub fn newick(&self, style: Style) -> Newick {
        self.laid_out(style).0
    }

    /// The results, with the tree in this form.
    #[must_use]
    pub fn report(&self, style: Style) -> Report {
        let lengths = self.tree.nodes.iter().map(|node| node.length);
        Report {
            taxa: self.names.len(),
            tips: self.tree.tips(),
            sites: self.space.reference.sites(),
            lnl: self.lnl,
            model: self.space.rates.name(),
            length: lengths.sum(),
            moves: self.moves,
            rounds: self.rounds,
            stopped: self.was_stopped,
            peak_memory_bytes: peak_memory_bytes(),
            tree: self.newick(style).to_string(),
            rate: None,
            root_date: None,
        }
    }

    /// The substitutions on the branches of the tree in this form with node names, for a file of
    /// this name: where it ends in `.json`, node data that augur takes, else lines with tabs, the
    /// same that `sidecore phylo ancestors --mutations` writes.
    #[must_use]
    pub fn mutations_for(&self, path: &Path, style: Style) -> String {
        match path.extension().is_some_and(|ending| ending == "json") {
            true => self.node_data(style),
            false => self.mutations(style),
        }
    }

    /// The substitutions as lines with tabs. Sites count from 1.
    pub(crate) fn mutations(&self, style: Style) -> String {
        let mut text = "parent\tchild\tsite\tfrom\tto\n".to_owned();
        self.each_branch(style, &mut |newick, node, changes| {
            let Some(parent) = newick.nodes()[node].parent else {
                return;
            };
            let [above, below] = [parent, node].map(|node| &newick.nodes()[node].label);
            for &(site, from, to) in changes {
                let (site, from, to) = (site + 1, letter(from), letter(to));
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{above}\t{below}\t{site}\t{from}\t{to}");
            }
        });
        text
    }

    /// The same as node data in JSON, which augur takes; the root has its differences from the
    /// reference.
    pub(crate) fn node_data(&self, style: Style) -> String {
        let mut nodes = serde_json::Map::new();
        self.each_branch(style, &mut |newick, node, changes| {
            let each = changes.iter();
            let muts =
                each.map(|&(site, from, to)| format!("{}{}{}", letter(from), site + 1, letter(to)));
            let muts: Vec<String> = muts.collect();
            let label = newick.nodes()[node].label.clone();
            nodes.insert(label, serde_json::json!({ "muts": muts }));
        });
        let sites = self.space.reference.sites();
        let nuc = serde_json::json!({ "start": 1, "end": sites, "strand": "+", "type": "source" });
        serde_json::json!({ "annotations": { "nuc": nuc }, "nodes": nodes }).to_string()
    }

    /// Calls `each` with every node of the tree and the changes on the branch above it.
    fn each_branch(&self, style: Style, each: &mut dyn FnMut(&Newick, usize, &[Change])) {
        let style = Style {
            node_names: true,
            ..style
        };
        let (newick, origins) = self.laid_out(style);
        let mut states: Vec<States> = Vec::with_capacity(origins.len());
        let mut builder = Builder::default();
        for (node, &origin) in origins.iter().enumerate() {
            let none = States::new();
            let above = newick.nodes()[node]
                .parent
                .map_or(&none, |parent| &states[parent]);
            let own = self.states(origin, above, &mut builder);
            each(&newick, node, &self.changes(above, &own));
            // What no child will ask for is kept no longer.
            let parent = newick.nodes()[node].parent;
            let last = |parent: &usize| newick.nodes()[*parent].children.last() == Some(&node);
            if let Some(parent) = parent.filter(last) {
                states[parent] = States::new();
            }
            let is_tip = newick.nodes()[node].children.is_empty();
            states.push(if is_tip { States::new() } else { own });
        }
    }

    /// The most probable bases at a node; `above` are its parent's.
    fn states(&self, origin: Origin, above: &[(u32, usize)], builder: &mut Builder) -> States {
        match origin {
            Origin::Copy => above.to_vec(),
            Origin::Branch(edge, below) => self.likely_at(edge, below, builder),
            Origin::Node(node) if self.tree.is_tip(node) => {
                let list = &self.tree.node(node).lower;
                let mut states: States = list.other_bases().collect();
                // Where it says nothing for certain it is as its parent.
                let mut spans = list.uncertain().peekable();
                for &(site, base) in above {
                    while spans.next_if(|&(_, end)| end <= site).is_some() {}
                    if spans.peek().is_some_and(|&(start, _)| start <= site) {
                        states.push((site, base));
                    }
                }
                states.sort_unstable();
                states
            }
            Origin::Node(node) => self.likely_at(node, 0.0, builder),
        }
    }

    /// The most probable bases on the branch above a node, at a length from that.
    fn likely_at(&self, edge: u32, below: f64, builder: &mut Builder) -> States {
        let own = self.tree.node(edge);
        let (upper, lower) = ((&own.upper, own.length - below), (&own.lower, below));
        merge(&self.space, upper, lower, builder);
        self.likely(&builder.take())
    }

    /// The most probable bases of a list.
    fn likely(&self, list: &Genome) -> States {
        let frequencies = &self.space.rates.frequencies;
        let best = |(site, vector): (u32, &[f32; 4])| {
            let values = vector
                .iter()
                .zip(frequencies)
                .map(|(&v, f)| f64::from(v) * f);
            let best = values
                .enumerate()
                .fold((0, 0.0), |best, one| match one.1 > best.1 {
                    true => one,
                    false => best,
                });
            (site, best.0)
        };
        let reference = &self.space.reference;
        let mixed = list.mixed().map(best);
        let mixed = mixed.filter(|&(site, base)| base != reference.base(site));
        let mut states: States = list.other_bases().chain(mixed).collect();
        states.sort_unstable();
        states
    }

    /// The sites at which two ends differ.
    fn changes(&self, above: &[(u32, usize)], below: &[(u32, usize)]) -> Vec<Change> {
        let (mut above, mut below) = (above.iter().peekable(), below.iter().peekable());
        let mut changes = Vec::new();
        loop {
            let site = |states: Option<&&(u32, usize)>| states.map_or(NONE, |state| state.0);
            let at = site(above.peek()).min(site(below.peek()));
            if at == NONE {
                return changes;
            }
            let own = self.space.reference.base(at);
            let from = above
                .next_if(|state| state.0 == at)
                .map_or(own, |state| state.1);
            let to = below
                .next_if(|state| state.0 == at)
                .map_or(own, |state| state.1);
            if from != to {
                changes.push((at, from, to));
            }
        }
    }

    /// The place of the root: a branch, and the length below it.
    fn root_place(&self) -> (u32, f64) {
        let (tree, space) = (&self.tree, &self.space);
        let place = match find(tree, space, &Genome::default()) {
            Found::Covered(ROOT) => return (tree.top(), tree.node(tree.top()).length),
            Found::Covered(tip) => return (tip, 0.0),
            Found::Branches(found) => {
                best_fit(tree, space, &Genome::default(), space.one(), &found)
            }
        };
        let Some(Place { edge, lengths, .. }) = place.map(|fit| fit.place) else {
            return (tree.top(), 0.0);
        };
        let (upper, lower) = (lengths[0], lengths[1]);
        let length = tree.node(edge).length;
        match upper + lower > 0.0 {
            true => (edge, length * lower / (upper + lower)),
            false => (edge, 0.5 * length),
        }
    }

    /// The tree, and what its nodes stand for.
    fn laid_out(&self, style: Style) -> (Newick, Vec<Origin>) {
        let tree = &self.tree;
        let mut layout = Layout {
            names: &self.names,
            style,
            newick: Newick::root(String::new()),
            origins: vec![Origin::Node(ROOT)],
            inner: 1,
            void: VOID_SHARE * self.space.one(),
        };
        if tree.top() == NONE {
            let taxa = &tree.node(ROOT).taxa;
            match taxa[..] {
                [only] => layout
                    .newick
                    .set_label(0, self.names[only.to_usize()].clone()),
                _ => {
                    layout.name_root();
                    layout.taxa(0, ROOT, taxa, 0.0);
                }
            }
            return (layout.newick, layout.origins);
        }
        let (edge, below) = self.root_place();
        layout.origins[0] = Origin::Branch(edge, below);
        layout.name_root();
        let own = tree.node(edge);
        // Nodes with where they are seen from, and where they are put.
        let mut stack = vec![
            (own.parent, edge, 0, own.length - below),
            (edge, own.parent, 0, below),
        ];
        while let Some((node, from, parent, length)) = stack.pop() {
            let own = tree.node(node);
            if tree.is_tip(node) {
                layout.taxa(parent, node, &own.taxa, length);
                continue;
            }
            let to = layout.inner(parent, node, length);
            let [a, b] = own.children;
            for next in [own.parent, b, a].into_iter().filter(|&next| next != from) {
                let between = if next == own.parent { node } else { next };
                stack.push((next, node, to, tree.node(between).length));
            }
        }
        (layout.newick, layout.origins)
    }
}

/// A tree's text in the making.
struct Layout<'n> {
    names: &'n [String],
    style: Style,
    newick: Newick,
    origins: Vec<Origin>,
    /// Inner nodes so far.
    inner: usize,
    /// Branches up to this length are left out with polytomies.
    void: f64,
}

impl Layout<'_> {
    fn name_root(&mut self) {
        if self.style.node_names {
            self.newick.set_label(0, "Node1".to_owned());
        }
    }

    fn push(&mut self, parent: usize, label: String, length: f64, origin: Origin) -> usize {
        self.origins.push(origin);
        self.newick.push(parent, label, Some(length))
    }

    /// An inner node; returns the node of the text that its children belong to.
    fn inner(&mut self, parent: usize, node: u32, length: f64) -> usize {
        if self.style.polytomies && length <= self.void {
            return parent;
        }
        self.inner += 1;
        let label = match self.style.node_names {
            true => format!("Node{}", self.inner),
            false => String::new(),
        };
        self.push(parent, label, length, Origin::Node(node))
    }

    /// A tip, with the genomes that say less.
    fn taxa(&mut self, parent: usize, node: u32, taxa: &[u32], length: f64) {
        let name = |taxon: u32| self.names[taxon.to_usize()].clone();
        if let &[only] = taxa {
            let name = name(only);
            self.push(parent, name, length, Origin::Node(node));
            return;
        }
        let parent = match parent == 0 && node == ROOT && length == 0.0 {
            true => parent,
            false => self.inner(parent, node, length),
        };
        for (at, &taxon) in taxa.iter().enumerate() {
            let name = self.names[taxon.to_usize()].clone();
            let origin = if at == 0 {
                Origin::Node(node)
            } else {
                Origin::Copy
            };
            self.push(parent, name, 0.0, origin);
        }
    }
}

fn letter(base: usize) -> char {
    char::from(b"ACGT"[base & 3])
}

/// The most memory that this process has had, in bytes; 0 where the system does not say.
fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Share of a substitution's branch up to which a branch has no length.
const VOID_SHARE: f64 = 0.001;
