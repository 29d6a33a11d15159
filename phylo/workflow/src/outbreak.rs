//! The tree of an outbreak's genomes, and its dates.
//!
//! Must stay true: until [`Epidemic::infer`] a signal may end the process; nothing is kept then.

use crate::WorkflowError;
use sidecore_offload::Pool;
use sidecore_outbreak::{
    Genomes, Options, Outbreak, OutbreakError, Progress, ReadOptions, ReferenceChoice, infer,
};
use sidecore_phylo::dating::{ClockOptions, Dated, Dates};
use sidecore_phylo::io::data::{At, Reader};
use sidecore_phylo::newick::Newick;
use sidecore_terminal::progress::{Shape, bar};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Genomes of a file, and how their tree is sought.
#[derive(Debug, Clone)]
pub struct Epidemic<'e> {
    /// Reads files of dates; its memory and its warnings are the run's.
    pub reader: Reader,
    /// The genomes.
    pub msa: &'e Path,
    /// The genome that others are compared with: a file, or `first`.
    pub reference: Option<&'e Path>,
    /// Options of the inference.
    pub options: Options,
}

impl Epidemic<'_> {
    /// Reads the genomes.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn genomes(&self, pool: &Pool) -> Result<Genomes, WorkflowError> {
        let memory = self.reader.memory;
        let options = ReadOptions {
            reference: ReferenceChoice::named(self.reference),
            memory: memory.of_work(),
        };
        let genomes = Genomes::read(self.msa, &options, pool).at(self.msa.display())?;
        if genomes.left_out() > 0 {
            let count = genomes.left_out();
            (self.reader.warn)(&format!(
                "records of other variants than single bases: {count}, left out"
            ));
        }
        memory.check_work("the tree", genomes.work_bytes())?;
        Ok(genomes)
    }

    /// Infers the tree; `None` where `stop` was raised before all genomes were placed. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn infer(
        &self,
        genomes: Genomes,
        pool: &Pool,
        stop: &AtomicBool,
    ) -> Result<Option<Outbreak>, WorkflowError> {
        let bar = bar(Shape::Count, 0);
        let mut show = |progress: Progress| {
            bar.set_length(progress.all);
            bar.set_position(progress.done);
            bar.set_message(progress.stage.to_string());
        };
        let found = infer(genomes, &self.options, pool, &mut show, stop);
        bar.finish_and_clear();
        match found {
            Err(OutbreakError::Stopped) => Ok(None),
            found => Ok(Some(found.at(self.msa.display())?)),
        }
    }

    /// The tree of genomes of `sites` sites with dates: those that are known, else those at the
    /// ends of its names. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn date(
        &self,
        tree: &Newick,
        sites: usize,
        known: Option<Dates>,
        pool: &Pool,
    ) -> Result<Dated, WorkflowError> {
        let known = match known {
            Some(known) => known,
            None => Dates::of_names(tree).at(self.msa.display())?,
        };
        let options = ClockOptions::new(sites);
        let dated = self.reader.dated((tree, self.msa), &known, &options, pool);
        Ok(dated?)
    }
}
