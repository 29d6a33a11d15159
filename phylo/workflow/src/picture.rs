//! Pictures of trees.

use crate::trees::Roots;
use crate::{WorkflowError, refuse};
use sidecore_phylo::io::data::At;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::rooting::{Method, root};
use sidecore_plot::{TreeNode, TreeOptions, tree_picture};

/// Draws a tree as SVG, with another root if one is named; the picture's title is made here. Labels
/// of inner nodes are supports.
///
/// # Errors
/// [`WorkflowError`]: of the root, or more than 50,000 tips.
pub fn draw(
    tree: &Newick,
    method: Option<&Method>,
    options: TreeOptions,
) -> Result<String, WorkflowError> {
    let tips = tree.tips().count();
    if tips > TIPS_MAX {
        return refuse(format!(
            "the tree has {tips} tips: a picture takes {TIPS_MAX} at most"
        ));
    }
    let rooted = method.map(|method| root(tree, method)).transpose()?;
    let nodes = rooted.as_ref().map_or(tree, |rooted| &rooted.tree).nodes();
    let nodes = nodes.iter().map(|node| TreeNode {
        parent: node.parent,
        label: node.label.clone(),
        length: node.length,
    });
    let title = format!("Phylogenetic tree of {tips} taxa");
    let options = TreeOptions { title, ..options };
    Ok(tree_picture(&nodes.collect::<Vec<_>>(), &options))
}

/// A file of trees from which one is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Drawn<'d> {
    /// Its trees, and the bound of the time.
    pub trees: Roots<'d>,
    /// Which of them, from 1.
    pub number: usize,
    /// The root: `midpoint`, `mad`, or tips of an outgroup with `,` between.
    pub root: Option<&'d str>,
}

impl Drawn<'_> {
    /// The picture as SVG, and the number of the tree's tips.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn svg(&self, options: TreeOptions) -> Result<(String, usize), WorkflowError> {
        let shown = self.trees.trees.display();
        let all = self.trees.reader.trees(self.trees.trees)?.newicks;
        let chosen = self.number.checked_sub(1).and_then(|at| all.get(at));
        let Some(tree) = chosen else {
            let (number, count) = (self.number, all.len());
            return refuse(format!("--number {number}: {shown} has {count} trees"));
        };
        let method = self.root.map(|by| match by {
            "midpoint" => Method::Midpoint,
            "mad" => Method::Mad,
            tips => Method::Outgroup(tips.split(',').map(|tip| tip.trim().to_owned()).collect()),
        });
        let one = std::slice::from_ref(tree);
        self.trees.check_time(method.as_ref(), one)?;
        let svg = draw(tree, method.as_ref(), options).at(shown)?;
        Ok((svg, tree.tips().count()))
    }
}

/// The most tips that are drawn: ten metres of paper.
const TIPS_MAX: usize = 50_000;
