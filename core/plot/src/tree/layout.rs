//! Depth and row of each node.
//!
//! Must stay true: tips have the rows 0, 1, 2, …; an inner node stands in the middle of its
//! outermost children. No recursion: a tree may be as deep as it has tips.

use super::{TreeNode, TreeOptions};

#[derive(Debug)]
pub(super) struct Layout {
    pub(super) parents: Vec<Option<usize>>,
    /// In the order in which they are drawn.
    pub(super) children: Vec<Vec<usize>>,
    pub(super) tips: usize,
    /// Distance from the root, of the farthest tip's: 0 to 1.
    pub(super) depth: Vec<f64>,
    pub(super) row: Vec<f64>,
    /// The farthest tip's distance, if lengths are shown.
    pub(super) length: Option<f64>,
}

impl Layout {
    pub(super) fn new(nodes: &[TreeNode], options: &TreeOptions) -> Self {
        assert!(!nodes.is_empty(), "a tree without a node");
        let parents: Vec<Option<usize>> = nodes.iter().map(|node| node.parent).collect();
        let mut children = vec![Vec::new(); nodes.len()];
        for (node, parent) in parents.iter().enumerate().skip(1) {
            // The passes below rely on this order.
            let parent = parent.filter(|&parent| parent < node);
            let parent = parent.expect("parents stand before their children");
            children[parent].push(node);
        }
        // Tips below each node: children stand behind their parents.
        let mut below = vec![0_usize; nodes.len()];
        for node in (0..nodes.len()).rev() {
            below[node] = below[node].max(1);
            if let Some(parent) = parents[node] {
                below[parent] += below[node];
            }
        }
        if !options.keep_order {
            for own in &mut children {
                // Smaller subtrees first: a ladder shows the shape better than the file's order.
                own.sort_by_key(|&child| below[child]);
            }
        }
        let mut row = vec![0.0; nodes.len()];
        let mut tips = 0;
        let mut path = vec![0];
        while let Some(node) = path.pop() {
            if children[node].is_empty() {
                row[node] = tips as f64;
                tips += 1;
            }
            path.extend(children[node].iter().rev());
        }
        for node in (0..nodes.len()).rev() {
            if let [first, .., last] = children[node][..] {
                // Between its outermost children, which come after it in the list.
                row[node] = 0.5 * (row[first] + row[last]);
            } else if let [only] = children[node][..] {
                row[node] = row[only];
            }
        }
        // All or none: a missing length would look like one of zero.
        let has_lengths = nodes.iter().skip(1).all(|node| node.length.is_some());
        let mut depth = vec![0.0; nodes.len()];
        if has_lengths && !options.cladogram {
            for (node, own) in nodes.iter().enumerate().skip(1) {
                let above = own.parent.map_or(0.0, |parent| depth[parent]);
                depth[node] = above + own.length.unwrap_or(0.0).max(0.0);
            }
        }
        let most = depth.iter().copied().fold(0.0, f64::max);
        let length = (most > 0.0).then_some(most);
        match length {
            Some(most) => depth.iter_mut().for_each(|depth| *depth /= most),
            None => depth = levels(&parents),
        }
        Self {
            parents,
            children,
            tips,
            depth,
            row,
            length,
        }
    }
}

/// Depths where lengths are not shown: all tips at 1, each inner node a step before the first of
/// its children.
fn levels(parents: &[Option<usize>]) -> Vec<f64> {
    let mut height = vec![0_usize; parents.len()];
    for node in (0..parents.len()).rev() {
        if let Some(parent) = parents[node] {
            height[parent] = height[parent].max(height[node] + 1);
        }
    }
    let most = height[0].max(1) as f64;
    height
        .iter()
        .map(|&height| 1.0 - height as f64 / most)
        .collect()
}
