//! Pictures of trees.

use crate::{WorkflowError, refuse};
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

/// The most tips that are drawn: ten metres of paper.
const TIPS_MAX: usize = 50_000;
