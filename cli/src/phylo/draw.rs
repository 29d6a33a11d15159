//! `sidecore phylo draw`.

use super::common::reader;
use super::root::check_time;
use crate::{Outcome, output};
use anyhow::{Context, Result, bail, ensure};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::rooting::{Method, root};
use sidecore_plot::{TreeForm, TreeNode, TreeOptions, TreeTheme, tree_picture};
use sidecore_terminal::values::named;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Tree, in Newick or NEXUS
    #[arg(value_name = "TREE")]
    tree: PathBuf,
    /// Picture to write: .svg, .html, or by rsvg-convert .png and .pdf
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Shape
    #[arg(long, default_value = "rectangular", value_parser = named([
        ("rectangular", "From left to right, a row for each tip", TreeForm::Rectangular),
        ("circular", "Around a circle", TreeForm::Circular),
    ]))]
    form: TreeForm,
    /// Colours
    #[arg(long, default_value = "auto", value_parser = named([
        ("auto", "Light, or dark where the reader's programs are", TreeTheme::Auto),
        ("light", "Dark lines on white", TreeTheme::Light),
        ("dark", "Light lines on black", TreeTheme::Dark),
    ]))]
    theme: TreeTheme,
    /// Which of the file's trees, from 1
    #[arg(long, value_name = "N", default_value = "1")]
    number: usize,
    /// Root to draw it with: midpoint, mad, or tips of an outgroup with `,` between
    #[arg(long, value_name = "midpoint|mad|NAMES")]
    root: Option<String>,
    /// Draw all tips to the same end, without lengths
    #[arg(long)]
    cladogram: bool,
    /// Keep the file's order of branches, not the smaller ones first
    #[arg(long)]
    keep_order: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        output::check_picture(&self.output)?;
        let shown = self.tree.display();
        let trees = reader().trees(&self.tree)?.newicks;
        let tree = match self.number.checked_sub(1).and_then(|at| trees.get(at)) {
            Some(tree) => tree,
            None => bail!(
                "--number {}: {shown} has {} trees",
                self.number,
                trees.len()
            ),
        };
        let tips = tree.tips().count();
        ensure!(
            tips <= TIPS_MAX,
            "{shown} has {tips} tips: a picture takes {TIPS_MAX} at most"
        );
        let rooted = match self.root.as_deref() {
            None => None,
            Some(by) => {
                let names = || by.split(',').map(|name| name.trim().to_owned()).collect();
                let method = match by {
                    "midpoint" => Method::Midpoint,
                    "mad" => Method::Mad,
                    _ => Method::Outgroup(names()),
                };
                if method == Method::Mad {
                    check_time(&self.tree, std::slice::from_ref(tree))?;
                }
                let rooted = root(tree, &method);
                Some(rooted.with_context(|| shown.to_string())?.tree)
            }
        };
        let options = TreeOptions {
            form: self.form,
            theme: self.theme,
            cladogram: self.cladogram,
            keep_order: self.keep_order,
            title: format!("Phylogenetic tree of {tips} taxa"),
        };
        let svg = tree_picture(&nodes(rooted.as_ref().unwrap_or(tree)), &options);
        output::picture(&self.output, &svg)?;
        if self.json {
            output::json(&Json {
                taxa: tips,
                file: self.output,
                file_bytes: svg.len(),
            })?;
        }
        Ok(Outcome::Done)
    }
}

/// A tree as the picture wants it.
fn nodes(tree: &Newick) -> Vec<TreeNode> {
    let nodes = tree.nodes().iter();
    let drawn = nodes.map(|node| TreeNode {
        parent: node.parent,
        label: node.label.clone(),
        length: node.length,
    });
    drawn.collect()
}

#[derive(serde::Serialize)]
struct Json {
    taxa: usize,
    file: PathBuf,
    file_bytes: usize,
}

/// The most tips that are drawn: ten metres of paper.
const TIPS_MAX: usize = 50_000;
