//! Pictures of trees.

use crate::parts::{PhyloError, TreeText, choose, refuse, refuse_with};
use pyo3::prelude::*;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::rooting::{Method, root as rooted};
use sidecore_plot::{TreeForm, TreeNode, TreeOptions, TreeTheme, tree_picture};
use sidecore_sys::folder::Folder;
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A picture of a tree, which notebooks show.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct Picture {
    /// The picture as SVG.
    #[pyo3(get)]
    svg: String,
}

#[pymethods]
impl Picture {
    /// From SVG, as pickle makes it again.
    #[new]
    fn new(svg: String) -> Self {
        Self { svg }
    }

    fn __getnewargs__(&self) -> (&str,) {
        (&self.svg,)
    }

    /// Writes it to a file: all of it, or, where that fails, none.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        // A bare name has an empty parent, which cannot be opened.
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let name = path.file_name();
        let name = name.ok_or_else(|| Error::from(ErrorKind::InvalidFilename))?;
        let folder = Folder::open(folder.unwrap_or(Path::new(".")))?;
        Ok(folder.replace(name, 0o666, |file| file.write_all(self.svg.as_bytes()))?)
    }

    fn _repr_svg_(&self) -> &str {
        &self.svg
    }

    fn __repr__(&self) -> String {
        format!("Picture({} bytes of SVG)", self.svg.len())
    }
}

/// Draws a tree in Newick; labels of inner nodes are supports. `root` is "midpoint", "mad" or the
/// tips of an outgroup.
#[pyfunction]
#[pyo3(signature = (
    tree, *, form="rectangular", theme="auto", root=None, cladogram=false, keep_order=false
))]
pub(crate) fn draw(
    tree: TreeText,
    form: &str,
    theme: &str,
    root: Option<Root>,
    cladogram: bool,
    keep_order: bool,
) -> PyResult<Picture> {
    let forms = [
        ("rectangular", TreeForm::Rectangular),
        ("circular", TreeForm::Circular),
    ];
    let themes = [
        ("auto", TreeTheme::Auto),
        ("light", TreeTheme::Light),
        ("dark", TreeTheme::Dark),
    ];
    let (form, theme) = (
        choose("form", form, &forms)?,
        choose("theme", theme, &themes)?,
    );
    let method = root.map(Root::method).transpose()?;
    let mut newick = Newick::parse(&tree).map_err(refuse_with("tree"))?;
    if let Some(method) = method {
        newick = rooted(&newick, &method).map_err(refuse)?.tree;
    }
    let tips = newick.tips().count();
    if tips > TIPS_MAX {
        return Err(PhyloError::new_err(format!(
            "the tree has {tips} tips: a picture takes {TIPS_MAX} at most"
        )));
    }
    let node = |node: &sidecore_phylo::newick::Node| TreeNode {
        parent: node.parent,
        label: node.label.clone(),
        length: node.length,
    };
    let nodes: Vec<TreeNode> = newick.nodes().iter().map(node).collect();
    let options = TreeOptions {
        form,
        theme,
        cladogram,
        keep_order,
        title: format!("Phylogenetic tree of {tips} taxa"),
    };
    Ok(Picture {
        svg: tree_picture(&nodes, &options),
    })
}

/// A way to root a tree.
#[derive(FromPyObject)]
pub(crate) enum Root {
    By(String),
    Outgroup(Vec<String>),
}

impl Root {
    /// The same for the functions of trees.
    pub(crate) fn method(self) -> PyResult<Method> {
        match self {
            Self::Outgroup(tips) => Ok(Method::Outgroup(tips)),
            Self::By(name) => match name.as_str() {
                "midpoint" => Ok(Method::Midpoint),
                "mad" => Ok(Method::Mad),
                _ => Err(PhyloError::new_err(format!(
                    "root={name:?}: \"midpoint\", \"mad\" or a list of tips"
                ))),
            },
        }
    }
}

/// As `sidecore phylo draw` has it.
const TIPS_MAX: usize = 50_000;
