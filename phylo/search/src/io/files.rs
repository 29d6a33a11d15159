//! A run's files: `PREFIX.bestTree` and the others, each written to a temporary file and renamed.
//!
//! | file | what |
//! |---|---|
//! | `.bestPartitionTrees` | its tree with the lengths of each partition, if unlinked |
//! | `.bestTree`, `.bestModel` | the best search's tree, and its models with all values |
//! | `.mlTrees`, `.startTrees` | every search's tree, and what it began with, by index |
//! | `.bootstraps` | every replicate's tree, by index |
//! | `.support`, `.supportTBE` | the best tree with Felsenstein's or transfer support |
//! | `.supportSHaLRT` | the best tree with SH-aLRT support |
//! | `.supportABayes`, `.supportLBP` | the same with aBayes or local bootstraps |
//! | `.supportUFBoot` | the best tree with ultrafast bootstraps' support |
//! | `.bestTreeCollapsed` | the best tree without branches of no length, if asked for |
//! | `.supportAll` | the best tree with all supports, where there are several |
//! | `.geneTrees`, `.geneModels` | of each locus: tree, and model as a line of partitions |
//! | `.geneTable` | of each locus: taxa, sites, log-likelihood, seconds |
//! | `.log` | what happened when |
//! | `.ckp` | the checkpoint |
//!
//! These are the default [`Names`]; `Names::RaxmlNg` has `PREFIX.raxml.bestTree` and so on, as
//! RAxML-NG has them, with `.raxml.startTree` for `.startTrees`.
//!
//! Must stay true: files of another run are never written over unless asked for; two runs with the
//! same settings write the same bytes, the log and the checkpoint aside.

use super::checkpoint::{Checkpoint, NEW_FILE_MODE, Settings, sync_folder};
use super::{FilesError, io_error};
use crate::analysis::AnalysisError;
use crate::analysis::coordinator::{Change, Keeper, Member};
use crate::analysis::genes::GeneRow;
use crate::analysis::plan::{Goal, Kind, Ledger};
use crate::analysis::supports::{AlignmentKind, Support};
use crate::newick::Newick;
use crate::support::Kind as Replicates;
use rustix::fs::OFlags;
use sidecore_sys::folder::{Folder, open_named, remove_named, write_named};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Names of a run's files under its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Names {
    /// `PREFIX.bestTree`.
    #[default]
    Own,
    /// `PREFIX.raxml.bestTree`, as RAxML-NG's `--prefix` has it.
    RaxmlNg,
}

impl Names {
    /// Path of a file under a prefix; `suffix` is one of this module's, or `.log` or `.ckp`.
    #[must_use]
    pub fn path(self, prefix: &Path, suffix: &str) -> PathBuf {
        match (self, suffix) {
            (Self::Own, _) => with_suffix(prefix, suffix),
            (Self::RaxmlNg, START_TREES) => with_suffix(prefix, ".raxml.startTree"),
            (Self::RaxmlNg, _) => with_suffix(prefix, &format!(".raxml{suffix}")),
        }
    }
}

/// A run's files.
#[derive(Debug)]
pub struct Files {
    prefix: PathBuf,
    names: Names,
    checkpoint: Checkpoint,
    log: File,
    began: Instant,
}

impl Files {
    /// Opens the files of a new or a resumed run; the ledger holds the finished work. Every error
    /// that can be foreseen is found now: the folder is there and can be written to, and `bytes`
    /// have room.
    ///
    /// # Errors
    /// [`FilesError`]: existing files belong to another run and `redo` is false, among others.
    pub fn open(
        prefix: &Path,
        names: Names,
        settings: Settings,
        goal: Goal,
        redo: bool,
        bytes: u64,
    ) -> Result<(Self, Ledger), FilesError> {
        let path = |suffix| names.path(prefix, suffix);
        let supports = SUPPORTS.map(|(_, suffix)| suffix);
        let results = || RESULTS.iter().chain(&supports).map(|suffix| path(suffix));
        // Before anything is computed: a full disk or a wrong prefix must not end a run of days.
        probe(&path(CHECKPOINT), bytes).map_err(io_error("write under the prefix", prefix))?;
        let own = path(CHECKPOINT);
        let (checkpoint, ledger) = if own.exists() && !redo {
            Checkpoint::resume(&own, settings, goal)?
        } else {
            // Results without a checkpoint belong to another run, and are not overwritten.
            match results().find(|path| path.exists()) {
                Some(path) if !redo => return Err(FilesError::Exists { path }),
                _ => {}
            }
            let checkpoint = Checkpoint::create(&own, settings)?;
            // Old results go only after the new checkpoint is there.
            for path in results() {
                match remove_named(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(io_error("remove", &path)(error));
                    }
                    _ => {}
                }
            }
            (checkpoint, Ledger::new(goal))
        };
        // A pipe without a reader gives an error instead of blocking.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK;
        let log = open_named(&path(".log"), flags, NEW_FILE_MODE);
        let files = Self {
            prefix: prefix.to_owned(),
            names,
            checkpoint,
            log: log.map_err(io_error("open", &path(".log")))?,
            began: Instant::now(),
        };
        Ok((files, ledger))
    }

    /// Path of the checkpoint, from which the same command resumes.
    #[must_use]
    pub fn checkpoint(&self) -> PathBuf {
        self.names.path(&self.prefix, CHECKPOINT)
    }

    /// Writes a line to the log, with the seconds since this process opened it.
    ///
    /// # Errors
    /// [`FilesError::Io`].
    pub fn log(&mut self, line: &str) -> Result<(), FilesError> {
        let seconds = self.began.elapsed().as_secs_f64();
        let written = writeln!(self.log, "{seconds:10.2} s  {line}");
        written.map_err(io_error("write", &self.names.path(&self.prefix, ".log")))
    }

    /// Writes the best tree with supports of a kind, or of all kinds; returns the file's path.
    ///
    /// # Errors
    /// [`FilesError::Io`].
    pub fn write_support(
        &self,
        support: Option<Support>,
        tree: &Newick,
    ) -> Result<PathBuf, FilesError> {
        let mut all = SUPPORTS.iter();
        let own = all.find(|(kind, _)| Some(*kind) == support);
        self.write(
            own.map_or(SUPPORT_ALL, |&(_, suffix)| suffix),
            &format!("{tree}\n"),
        )
    }

    /// Writes the best tree without branches of no length; returns the file's path.
    ///
    /// # Errors
    /// [`FilesError::Io`].
    pub fn write_collapsed(&self, tree: &Newick) -> Result<PathBuf, FilesError> {
        self.write(COLLAPSED, &format!("{tree}\n"))
    }

    /// Writes gene trees, their models as a file of partitions, and their numbers as a table, in
    /// the order of `rows`; returns the paths.
    ///
    /// # Errors
    /// [`FilesError::Io`].
    pub fn write_genes(&self, rows: &[GeneRow]) -> Result<Vec<PathBuf>, FilesError> {
        let (mut trees, mut models) = (String::new(), String::new());
        let mut table = "locus\ttaxa\tsites\tlog-likelihood\tseconds\n".to_owned();
        let mut first = 1;
        for row in rows {
            let last = first + row.sites - 1;
            trees.push_str(&format!("{}\n", row.tree));
            models.push_str(&format!("{}, {} = {first}-{last}\n", row.model, row.name));
            table.push_str(&format!(
                "{}\t{}\t{}\t{:.6}\t{:.2}\n",
                row.name, row.taxa, row.sites, row.lnl, row.wall_s
            ));
            first = last + 1;
        }
        let all = [
            (GENE_TREES, trees),
            (GENE_MODELS, models),
            (GENE_TABLE, table),
        ];
        let written = all.iter().map(|(suffix, text)| self.write(suffix, text));
        written.collect()
    }

    /// Writes one of the results; returns its path.
    fn write(&self, suffix: &str, text: &str) -> Result<PathBuf, FilesError> {
        let path = self.names.path(&self.prefix, suffix);
        let write = |file: &mut File| file.write_all(text.as_bytes());
        let written = write_named(&path, NEW_FILE_MODE, write).and_then(|()| sync_folder(&path));
        written.map_err(io_error("write", &path))?;
        Ok(path)
    }

    /// Writes the trees of a ledger in which all is done; `models` are the best model's partitions,
    /// one a line. Returns the paths.
    ///
    /// # Errors
    /// [`FilesError::Io`].
    pub fn write_trees(
        &self,
        ledger: &Ledger,
        models: &[String],
    ) -> Result<Vec<PathBuf>, FilesError> {
        let mut paths = Vec::new();
        // An empty list writes no file.
        let mut write = |suffix, lines: Vec<&str>| -> Result<(), FilesError> {
            if !lines.is_empty() {
                let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
                paths.push(self.write(suffix, &text)?);
            }
            Ok(())
        };
        let best = ledger.best();
        write(
            BEST_TREE,
            best.iter().map(|best| best.tree.as_str()).collect(),
        )?;
        write(
            BEST_PARTITION_TREES,
            best.iter()
                .flat_map(|best| best.part_trees.iter().map(String::as_str))
                .collect(),
        )?;
        write(BEST_MODEL, models.iter().map(String::as_str).collect())?;
        let searches = || ledger.outcomes_of(Kind::Search);
        write(ML_TREES, searches().map(|one| one.tree.as_str()).collect())?;
        write(
            START_TREES,
            searches().map(|one| one.start.as_str()).collect(),
        )?;
        let bootstraps = ledger.outcomes_of(Kind::Bootstrap);
        write(
            BOOTSTRAPS,
            bootstraps.map(|one| one.tree.as_str()).collect(),
        )?;
        Ok(paths)
    }
}

/// Keeps changes in the checkpoint, logs them, and lets `watch` see the ledger.
pub(super) struct FilesKeeper<'f> {
    /// The files.
    pub(super) files: &'f mut Files,
    /// Called after every change and a few times a second; with true if something was finished.
    pub(super) watch: &'f mut (dyn FnMut(&Ledger, bool) + Send),
}

impl FilesKeeper<'_> {
    fn try_keep(&mut self, ledger: &Ledger, change: Change<'_>) -> Result<(), FilesError> {
        // The checkpoint first: a failure of the log then loses no result.
        self.files.checkpoint.append(ledger, change)?;
        match change {
            Change::Finished(_, outcomes) => outcomes.iter().try_for_each(|one| {
                self.files.log(&format!(
                    "{} {}: log-likelihood {:.6}, {:.2} s",
                    one.kind, one.index, one.lnl, one.wall_s
                ))
            }),
            Change::Tested(verdict) => self.files.log(&format!(
                "convergence: {} bootstraps, mean distance {:.3} %, {} cuts within: {}",
                verdict.replicates,
                100.0 * verdict.distance,
                verdict.within,
                if verdict.converged {
                    "enough"
                } else {
                    "not yet"
                }
            )),
            Change::Saved(..) => Ok(()),
        }
    }
}

impl Keeper for FilesKeeper<'_> {
    fn keep(&mut self, ledger: &Ledger, change: Change<'_>) -> Result<(), AnalysisError> {
        self.try_keep(ledger, change)?;
        (self.watch)(ledger, matches!(change, Change::Finished(..)));
        Ok(())
    }

    fn lost(&mut self, member: Member, pieces: usize) {
        // A failed log entry must not end a run.
        let _ = self.files.log(&format!(
            "rank {member} is gone; {pieces} of its tasks go to others"
        ));
    }

    fn tick(&mut self, ledger: &Ledger) {
        (self.watch)(ledger, false);
    }
}

/// Tries to write a file of this size in the folder of `path`, and removes it.
fn probe(path: &Path, bytes: u64) -> std::io::Result<()> {
    let (folder, _) = Folder::of_file(path)?;
    let (hidden, mut file) = folder.temporary(0o600)?;
    let mut write = || {
        let block = vec![0x5A; BLOCK];
        for at in (0..bytes).step_by(BLOCK) {
            file.write_all(&block[..BLOCK.min((bytes - at) as usize)])?;
        }
        file.sync_data()
    };
    let written = write();
    let _ = folder.remove_file(&hidden);
    written
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The best search's tree.
pub(crate) const BEST_TREE: &str = ".bestTree";
/// The best search's tree with each partition's lengths, where these are unlinked.
pub(crate) const BEST_PARTITION_TREES: &str = ".bestPartitionTrees";
/// The best search's models.
pub(crate) const BEST_MODEL: &str = ".bestModel";
/// Every search's tree.
pub(crate) const ML_TREES: &str = ".mlTrees";
/// Every search's starting tree.
pub(crate) const START_TREES: &str = ".startTrees";
/// Every replicate's tree.
pub(crate) const BOOTSTRAPS: &str = ".bootstraps";
/// The best tree with supports, by their kind.
const SUPPORTS: [(Support, &str); 6] = [
    (Support::Replicates(Replicates::Fbp), ".support"),
    (Support::Replicates(Replicates::Tbe), ".supportTBE"),
    (Support::Alignment(AlignmentKind::ShAlrt), ".supportSHaLRT"),
    (Support::Alignment(AlignmentKind::ABayes), ".supportABayes"),
    (
        Support::Alignment(AlignmentKind::LocalBootstrap),
        ".supportLBP",
    ),
    (Support::Alignment(AlignmentKind::Ufboot), ".supportUFBoot"),
];
/// The best tree without branches of no length.
const COLLAPSED: &str = ".bestTreeCollapsed";
/// The best tree with supports of several kinds.
const SUPPORT_ALL: &str = ".supportAll";
/// The tree of each locus.
const GENE_TREES: &str = ".geneTrees";
/// The model of each locus.
const GENE_MODELS: &str = ".geneModels";
/// The loci's numbers.
const GENE_TABLE: &str = ".geneTable";
const CHECKPOINT: &str = ".ckp";
/// Results that are no supports by their kind.
#[rustfmt::skip] // names, of which a line has several
const RESULTS: [&str; 11] = [
    BEST_TREE, BEST_PARTITION_TREES, BEST_MODEL, ML_TREES, START_TREES, BOOTSTRAPS, SUPPORT_ALL,
    COLLAPSED, GENE_TREES, GENE_MODELS, GENE_TABLE,
];
const BLOCK: usize = 64 << 10;
