//! Models for the partitions of a file, merged or not.

use super::super::common;
use super::{Args, Bar};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_offload::Pool;
use sidecore_phylo::io::data::parts_to_model;
use sidecore_phylo::msa::{Alignment, Patterns};
use sidecore_phylo::selection;
use sidecore_phylo::selection::partitions::{Step, select_partitions};
use std::path::Path;

impl Args {
    pub(super) fn parts(
        &self,
        text: &str,
        path: &Path,
        alignment: &Alignment,
        options: &selection::Options,
        pool: &Pool,
    ) -> Result<Outcome> {
        let (parts, patterns) = parts_to_model(alignment, text, path.display())?;
        common::reader().findings(&self.msa, alignment, &patterns);
        let patterns: Vec<&Patterns> = patterns.iter().collect();
        let tree = self.tree(alignment, &patterns)?;
        let bar = Bar::new();
        let progress = |step: Step<'_>| match step {
            Step::Fit(fit) => bar.fit(fit),
            Step::Pairs(done, all) => bar.pairs(done, all),
        };
        let scheme = select_partitions(
            &tree, alignment, &parts, self.merge, options, pool, progress,
        );
        bar.0.finish_and_clear();
        let scheme = scheme?;
        if let Some(path) = &self.output {
            output::file(path, &scheme.to_lines(&parts))?;
        }
        let summary = scheme.summary(&parts, options.criterion);
        if self.json {
            output::json(&summary)?;
            return Ok(Outcome::Done);
        }
        output::show(&summary.text(parts.len()))?;
        Ok(Outcome::Done)
    }
}
