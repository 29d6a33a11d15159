//! Gene trees: a piece of work a locus, each with a model, searches and supports of its own.
//!
//! Why here: loci are pieces of the same coordinator as the searches of one alignment, so that
//! engines, ranks, interruptions and checkpoints work alike. A piece is a fiber, and each loop over
//! its sites is an off-load point: as long as there are loci, every engine has its own; at the end
//! the free engines join the loops of those that are left. The loci with the most cells come first,
//! since a long one at the end would keep one engine busy and the others idle.
//!
//! Must stay true: a locus' result depends on its alignment, the model, the options, the seed and
//! its place among the loci alone.

use super::AnalysisError;
use super::job::{Growing, Searches, Starts, no_files};
use super::plan::{Bootstraps, Goal, Kind, Ledger, Outcome, Piece, Stream, seed_of};
use super::supports::{AlignmentKind, AlignmentSupport, joined};
use super::workers::{Job, Watch};
use crate::bootstrap;
use crate::likelihood::PartOptions;
use crate::model::ModelName;
use crate::msa::{Alignment, Patterns};
use crate::newick::Newick;
use crate::runner::{Runner, Serial};
use crate::search;
use crate::selection::{Fit, SelectionError, select_for};
use crate::support::{Kind as Replicates, Reference};
use serde::{Deserialize, Serialize};
use sidecore_bare::width::ToUsize;
use sidecore_offload::task;
use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A locus.
#[derive(Debug, Clone)]
pub(crate) struct Locus {
    /// Its name.
    pub(crate) name: String,
    /// Its sequences: of taxa that have a character.
    pub(crate) alignment: Alignment,
    /// Its columns and model; `None` where the model is to be chosen.
    pub(crate) part: Option<PartOptions>,
}

/// Options of gene trees.
#[derive(Debug, Clone)]
pub struct Options {
    /// Searches a locus; the best one counts.
    pub starts: u32,
    /// Bootstraps a locus.
    pub bootstraps: u32,
    /// Supports by the locus' alignment.
    pub supports: Vec<AlignmentKind>,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The job that makes gene trees.
#[derive(Debug)]
pub struct GeneTrees<'l, R> {
    loci: &'l [Locus],
    order: Vec<usize>,
    options: Options,
    runner: R,
    growing: Arc<Growing>,
}

impl<'l, R> GeneTrees<'l, R> {
    /// For loci of any size.
    pub(crate) fn new(loci: &'l [Locus], options: Options, runner: R) -> Self {
        Self {
            order: order(loci),
            loci,
            options,
            runner,
            growing: Arc::default(),
        }
    }

    /// The goal of the run: a piece a locus.
    #[must_use]
    pub fn goal(&self) -> Goal {
        Goal {
            // A folder has at most 100,000 files, and a text of more parts does not fit.
            starts: u32::try_from(self.loci.len()).unwrap_or(u32::MAX),
            bootstraps: Bootstraps::Exactly(0),
            chain: 1,
            convergence: bootstrap::Options::default(),
        }
    }
}

/// Result of a locus.
#[derive(Debug, Clone, Serialize)]
pub struct GeneRow {
    pub(crate) name: String,
    pub(crate) taxa: usize,
    pub(crate) sites: usize,
    pub(crate) model: String,
    /// Its log-likelihood.
    pub lnl: f64,
    pub(crate) wall_s: f64,
    pub(crate) tree: String,
}

impl GeneRow {
    /// The results in a ledger of `job`, in the order of its loci.
    #[must_use]
    pub fn all<R>(job: &GeneTrees<'_, R>, ledger: &Ledger) -> Vec<Self> {
        let outcomes = ledger.outcomes_of(Kind::Search).zip(&job.order);
        let mut rows: Vec<(usize, Self)> = outcomes
            .map(|(outcome, &number)| {
                let locus = &job.loci[number];
                let row = Self {
                    name: locus.name.clone(),
                    taxa: locus.alignment.names().len(),
                    sites: locus.alignment.sites(),
                    model: outcome.models.join(" "),
                    lnl: outcome.lnl,
                    wall_s: outcome.wall_s,
                    tree: outcome.tree.clone(),
                };
                (number, row)
            })
            .collect();
        rows.sort_by_key(|(number, _)| *number);
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

/// The numbers of the loci, those with the most cells first.
fn order(loci: &[Locus]) -> Vec<usize> {
    let cells = |&number: &usize| {
        let alignment = &loci[number].alignment;
        alignment.names().len() * alignment.sites()
    };
    let mut order: Vec<usize> = (0..loci.len()).collect();
    order.sort_by_key(|number| Reverse(cells(number)));
    order
}

/// A locus in progress.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Saved {
    /// Its model's name, where it was chosen.
    model: Option<String>,
    /// The best search, once all are done.
    best: Option<Outcome>,
    /// The searches or bootstraps in progress.
    inner: Option<String>,
}

/// Passes the states of a locus' searches on, with what is done already.
struct Within<'w> {
    outer: &'w mut dyn Watch,
    done: Saved,
}

impl Watch for Within<'_> {
    fn step(&mut self, state: &mut dyn FnMut() -> String) -> ControlFlow<()> {
        let done = &self.done;
        // Made only if the outer watch asks for it: most steps are not saved.
        self.outer.step(&mut || {
            let saved = Saved {
                inner: Some(state()),
                ..done.clone()
            };
            // Only maps with odd keys cannot be written as JSON.
            serde_json::to_string(&saved).unwrap_or_default()
        })
    }
}

impl<R: Runner + Clone> Job for GeneTrees<'_, R> {
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        let began_ns = task::now_ns();
        let index = piece.first;
        let locus = &self.loci[self.order[index.to_usize()]];
        let failed = |why: String| AnalysisError::Piece {
            kind: Kind::Search,
            index,
            why: format!("{}: {why}", locus.name),
        };
        let saved = saved.map(serde_json::from_str::<Saved>).transpose();
        let saved = saved.map_err(|error| AnalysisError::State {
            kind: Kind::Search,
            index,
            why: error.to_string(),
        })?;
        let (chosen, part) = self
            .part(locus, saved.as_ref())
            .map_err(|error| match error {
                SelectionError::Likelihood(error) => error.into(),
                other => failed(other.to_string()),
            })?;
        // It belongs to the first stage that is not done, which takes it.
        let mut inner = saved.as_ref().and_then(|saved| saved.inner.clone());
        let mut within = Within {
            outer: watch,
            done: Saved {
                model: chosen,
                best: saved.and_then(|saved| saved.best),
                inner: None,
            },
        };
        let searches = self.searches(locus, part, index);
        let all = |kind, count| Piece {
            kind,
            first: 0,
            count,
        };
        if within.done.best.is_none() {
            // Supports need a tree, so one search is made in any case.
            let piece = all(Kind::Search, self.options.starts.max(1));
            let found = searches.run(&piece, inner.take().as_deref(), &mut within)?;
            let Some(found) = found else {
                // Stopped: the watch has the state.
                return Ok(None);
            };
            // The first of equals.
            let best = found.into_iter().reduce(
                |best, other| {
                    if other.lnl > best.lnl { other } else { best }
                },
            );
            within.done.best = best;
        }
        let mut replicates = Vec::new();
        if self.options.bootstraps > 0 {
            let piece = all(Kind::Bootstrap, self.options.bootstraps);
            let found = searches.run(&piece, inner.take().as_deref(), &mut within)?;
            let Some(found) = found else {
                return Ok(None);
            };
            replicates.extend(found.into_iter().map(|outcome| outcome.tree));
        }
        let Some(best) = within.done.best.take() else {
            return Err(failed("no search was made".to_owned()));
        };
        let tree = self.supported(locus, &best, &replicates, searches.seed)?;
        Ok(Some(vec![Outcome {
            index,
            tree,
            part_trees: replicates,
            wall_s: task::now_ns().saturating_sub(began_ns) as f64 * 1e-9,
            ..best
        }]))
    }
}

impl<R: Runner + Clone> GeneTrees<'_, R> {
    /// A locus' patterns and model, and its name where it is chosen. That starts from its default
    /// parameters, as after an interruption, where the name alone is known.
    fn part(
        &self,
        locus: &Locus,
        saved: Option<&Saved>,
    ) -> Result<(Option<String>, PartOptions), SelectionError> {
        if let Some(part) = &locus.part {
            return Ok((None, part.clone()));
        }
        // A resumed run takes the saved choice, which the tree so far was searched with.
        let chosen = match saved.and_then(|saved| saved.model.clone()) {
            Some(chosen) => chosen,
            None => {
                let fitted = |_: &Fit| {};
                let (_, best) = select_for(&locus.alignment, self.runner.clone(), fitted)?;
                best.name
            }
        };
        let alphabet = locus.alignment.likely_alphabet();
        let patterns = Patterns::new(&locus.alignment, alphabet)?;
        let name = named(&chosen).ok_or_else(|| SelectionError::NoCandidates {
            alphabet: alphabet.to_string(),
        })?;
        Ok((Some(chosen), PartOptions::new(name, patterns)))
    }

    fn searches(&self, locus: &Locus, part: PartOptions, index: u32) -> Searches<R> {
        Searches {
            names: locus.alignment.names().to_vec(),
            parts: vec![part],
            search: search::Options::default(),
            starts: Starts::Mixed,
            rapid: false,
            jackknife: None,
            seed: seed_of(self.options.seed, Kind::Search, index, Stream::Start),
            runner: self.runner.clone(),
            growing: Arc::clone(&self.growing),
        }
    }

    /// The best tree with all supports as labels, with `/` between them.
    fn supported(
        &self,
        locus: &Locus,
        best: &Outcome,
        replicates: &[String],
        seed: u64,
    ) -> Result<String, AnalysisError> {
        let parsed =
            |text: &String| Newick::parse(text).map_err(|error| AnalysisError::Keep(error.into()));
        let tree = parsed(&best.tree)?;
        let names = locus.alignment.names();
        // Three taxa have no inner branch.
        if names.len() < 4 {
            return Ok(best.tree.clone());
        }
        let mut labelled = Vec::new();
        let model = best.models.first().and_then(|model| named(model));
        if let (Some(name), false) = (model, self.options.supports.is_empty()) {
            let patterns = Patterns::new(&locus.alignment, name.alphabet())
                .map_err(|error| AnalysisError::Keep(error.into()))?;
            let part = PartOptions::new(name, patterns);
            for &kind in &self.options.supports {
                let support = AlignmentSupport::new(kind, seed);
                let (parts, runner) = (vec![part.clone()], self.runner.clone());
                labelled.push(support.on(&tree, names, parts, runner, |_| {})?);
            }
        }
        if !replicates.is_empty() {
            let trees: Vec<Newick> = replicates.iter().map(parsed).collect::<Result<_, _>>()?;
            let reference = Reference::new(&tree)?;
            let tally = reference.tally_all(&trees, Replicates::Fbp, &Serial);
            let tally = tally.map_err(|error| AnalysisError::Keep(error.into()))?;
            labelled.push(reference.labelled(&tally));
        }
        Ok(joined(tree, &labelled).to_string())
    }
}

/// A model that names no files.
fn named(text: &str) -> Option<ModelName> {
    ModelName::parse(text, &mut no_files).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::plan::{Ledger, Next};

    /// Breaks a locus off after a number of steps, and keeps its state.
    struct Stopping {
        left: u32,
        state: Option<String>,
    }

    impl Watch for Stopping {
        fn step(&mut self, state: &mut dyn FnMut() -> String) -> ControlFlow<()> {
            self.left = self.left.saturating_sub(1);
            match self.left {
                0 => {
                    self.state = Some(state());
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }

    fn locus(name: &str, taxa: usize, sites: usize, seed: u64) -> Locus {
        let mut random = crate::random::Random::new(seed);
        let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
        // Clades of neighbours: each site has two groups.
        let mut rows = vec![Vec::new(); taxa];
        for _ in 0..sites {
            let from = random.index(taxa);
            let group = from..from + 1 + random.index(taxa / 2);
            for (taxon, row) in rows.iter_mut().enumerate() {
                row.push(if group.contains(&taxon) { b'C' } else { b'A' });
            }
        }
        Locus {
            name: name.to_owned(),
            alignment: Alignment::new(names, rows).unwrap(),
            part: None,
        }
    }

    #[test]
    fn an_interrupted_locus_ends_as_if_it_were_not() {
        let loci = [locus("small", 5, 30, 1), locus("large", 7, 60, 2)];
        let options = Options {
            starts: 2,
            bootstraps: 2,
            supports: vec![AlignmentKind::ShAlrt, AlignmentKind::ABayes],
            seed: 5,
        };
        let job = GeneTrees::new(&loci, options, Serial);
        // The large one first.
        assert_eq!(job.order, [1, 0]);
        let mut ledger = Ledger::new(job.goal());
        let Next::Piece(piece) = ledger.take_next() else {
            panic!("a piece");
        };
        let mut never = Stopping {
            left: u32::MAX,
            state: None,
        };
        let whole = job.run(&piece, None, &mut never).unwrap().unwrap();
        let steps = u32::MAX - never.left;
        assert_eq!(whole[0].part_trees.len(), 2);
        let tree = Newick::parse(&whole[0].tree).unwrap();
        let labels = tree.nodes().iter().filter(|node| node.label.contains('/'));
        assert_eq!(labels.count(), 4);
        for at in [1, steps / 2, steps - 1] {
            let mut watch = Stopping {
                left: at.max(1),
                state: None,
            };
            assert_eq!(job.run(&piece, None, &mut watch).unwrap(), None);
            let state = watch.state.unwrap();
            let again = job.run(&piece, Some(&state), &mut never).unwrap().unwrap();
            assert_eq!(
                (&again[0].tree, again[0].lnl),
                (&whole[0].tree, whole[0].lnl)
            );
            assert_eq!(again[0].part_trees, whole[0].part_trees);
        }
    }
}
