//! Alignments, trees, models and partitions of an analysis: read, and checked against one another.
//!
//! Must stay true: what the command line refuses, Python refuses; a file is bounded before it is
//! parsed ([`super::input`]). What is odd but usable is passed to `warn`, a line for each kind.

mod loci;
mod trees;

pub use loci::GeneLoci;
pub use trees::{TreeFile, check_lengths};

use super::input::{Input, InputError, Memory, model_file};
use super::partitions;
use crate::analysis::setup::SetupError;
use crate::likelihood::{Lengths, PartOptions};
use crate::model::{AscertainmentName, ModelError, ModelName, ScalerName, with_states};
use crate::msa::{Alignment, Alphabet, Findings, MsaError, Patterns};
use crate::profiles;
use crate::selection::likely_alphabet;
use crate::selection::partitions::Part;
use sidecore_bare::width::ToU64;
use std::borrow::Cow;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Errors of files that cannot be read or do not go together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file, or the memory that it takes.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A part of the input, and its fault.
    #[error("{place}")]
    At {
        /// The file, partition or option.
        place: String,
        /// The fault.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file of another number of trees than one.
    #[error("{} has {count} trees, and one is wanted", path.display())]
    OneTree {
        /// The file.
        path: PathBuf,
        /// The number.
        count: usize,
    },
    /// A file without a tree.
    #[error("{} has no tree", path.display())]
    NoTree {
        /// The file.
        path: PathBuf,
    },
    /// A tip of a gene tree that the other tree lacks.
    #[error("{}: the tip `{label}` is not in the tree", path.display())]
    ForeignTip {
        /// The gene trees.
        path: PathBuf,
        /// The tip.
        label: String,
    },
    /// Negative branch lengths, where lengths are used as they are.
    #[error("{count} branches have a length below 0")]
    NegativeLengths {
        /// The number.
        count: usize,
    },
    /// Constant sites under an ascertainment correction, which assumes that there are none.
    #[error(
        "+ASC is for sites that all vary, and at {constant} of {sites} all taxa may have the same \
         character: leave those out of the alignment, or +ASC out of the model"
    )]
    Ascertainment {
        /// Sites that may be constant.
        constant: usize,
        /// All sites.
        sites: usize,
    },
    /// A folder without a file.
    #[error("the folder has no files: put an alignment of each locus there")]
    NoLoci,
    /// A charset without a file, next to others that name files, where there is no alignment.
    #[error("it names no file, and --msa is no alignment")]
    NoFile,
    /// No locus with enough taxa.
    #[error("no locus has 3 taxa with a character: a tree needs as many")]
    SmallLoci,
    /// One alignment without parts, where each part gets a tree.
    #[error("one alignment without loci: give a folder of alignments, or partitions as --model")]
    OneLocus,
    /// A folder of too many files.
    #[error("the folder has more than {} files, one a locus", loci::FILES_MAX)]
    ManyLoci,
    /// A partition without a model, where models are not chosen.
    #[error(
        "no model is given: `phylo models -o FILE` chooses one for each part, and FILE is then the \
         model"
    )]
    NoModel,
    /// A scaler of a partition that has no others next to it.
    #[error(
        "+B scales a partition's lengths against those of the others, and there are none: leave \
         it out"
    )]
    LoneScaler,
    /// A scaler of a model of all sites.
    #[error(
        "+B scales a partition's lengths against those of the others; leave it out, or name a file \
         of partitions"
    )]
    WholeScaler,
    /// Fitted and given scalers in one file.
    #[error(
        "some partitions have a scaler to be fitted (+B), others a given one (+B{{…}}): write one \
         kind"
    )]
    MixedScalers,
    /// A linkage of lengths that the models' scalers do not allow.
    #[error("{0}: leave out one of them")]
    Linkage(&'static str),
    /// No such starting trees.
    #[error("--start-trees {text}: neither mixed, parsimony or random, nor a file that is there")]
    StartTrees {
        /// The kind or file.
        text: String,
    },
    /// A run that cannot be begun.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// The place of an error.
pub trait At<T> {
    /// The result, whose error names the place first.
    ///
    /// # Errors
    /// [`DataError::At`].
    fn at(self, place: impl Display) -> Result<T, DataError>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> At<T> for Result<T, E> {
    fn at(self, place: impl Display) -> Result<T, DataError> {
        self.map_err(|cause| DataError::At {
            place: place.to_string(),
            cause: cause.into(),
        })
    }
}

/// The partitions of an alignment.
#[derive(Debug, Clone)]
pub struct Partitions {
    /// Patterns and model of each.
    pub parts: Vec<PartOptions>,
    /// Their names.
    pub names: Vec<String>,
}

impl Partitions {
    /// All sites in one, with patterns and model as given.
    #[must_use]
    pub fn one(part: PartOptions) -> Self {
        Self {
            parts: vec![part],
            names: vec!["all".to_owned()],
        }
    }

    /// The same with site frequencies in place of the model's own, from the text of a file
    /// ([`profiles`]).
    ///
    /// # Errors
    /// [`DataError`].
    pub fn with_site_frequencies(mut self, text: &str) -> Result<Self, DataError> {
        let [part] = &mut self.parts[..] else {
            return Err(profiles::ProfileError::Data).at("--pmsf");
        };
        *part = profiles::apply(part, text).at("--pmsf")?;
        Ok(self)
    }

    /// All sites under one model. `msa` names the alignment in an error.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn whole(
        alignment: &Alignment,
        msa: impl Display,
        name: ModelName,
    ) -> Result<Self, DataError> {
        // One partition has no others to be scaled against.
        if name.scaler != ScalerName::None {
            return Err(DataError::WholeScaler);
        }
        let patterns = Patterns::new(alignment, name.alphabet()).at(&msa)?;
        let part = PartOptions::new(name, patterns);
        check_ascertainment(&part).at(msa)?;
        Ok(Self::one(part))
    }

    /// The partitions that the lines of a text name. `msa` and `file` name the alignment and the
    /// text in an error.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn of_lines(
        alignment: &Alignment,
        msa: impl Display,
        text: &str,
        file: impl Display,
    ) -> Result<Self, DataError> {
        let lines = partitions::parse(text, alignment.sites()).at(&file)?;
        let (mut parts, mut names) = (Vec::new(), Vec::new());
        for line in lines {
            let place = format_args!("{file}: {}", line.name);
            if is_auto(&line.model) {
                return Err(DataError::NoModel).at(place);
            }
            let name = model_name(&own_states(&line.model, alignment, &line.sites)).at(place)?;
            // What is wrong with characters is the alignment's fault, not the line's.
            let place = format!("{msa}, partition {}", line.name);
            let patterns = Patterns::of_sites(alignment, name.alphabet(), line.sites);
            let part = PartOptions::new(name, patterns.at(&place)?);
            check_ascertainment(&part).at(place)?;
            parts.push(part);
            names.push(line.name);
        }
        let (fitted, given) = scalers(&parts);
        if parts.len() == 1 && (fitted || given) {
            return Err(DataError::LoneScaler).at(file);
        }
        if fitted && given {
            return Err(DataError::MixedScalers).at(file);
        }
        // Partitions may lack characters, but not all of them: no tree is better than another then.
        if parts.iter().all(|part| part.patterns.is_undetermined()) {
            return Err(MsaError::Undetermined).at(msa);
        }
        Ok(Self { parts, names })
    }
}

/// True if sequences are read as amino acids, and look like DNA: every letter of DNA is also one of
/// an amino acid.
#[must_use]
pub fn is_doubtful(alignment: &Alignment, parts: &[PartOptions]) -> bool {
    let mut alphabets = parts.iter().map(|part| part.patterns.alphabet());
    alphabets.any(|one| one == Alphabet::Protein) && alignment.likely_alphabet() == Alphabet::Dna
}

/// The parts that the lines of a text name, for a choice of their models: of the models in the text
/// only the kind of data counts, and `auto` is that of the alignment. `file` names the text in an
/// error.
///
/// # Errors
/// [`DataError`].
pub fn parts_to_model(
    alignment: &Alignment,
    text: &str,
    file: impl Display,
) -> Result<(Vec<Part>, Vec<Patterns>), DataError> {
    let lines = partitions::parse(text, alignment.sites()).at(&file)?;
    let (mut parts, mut patterns) = (Vec::new(), Vec::new());
    for line in lines {
        let place = format!("{file}: {}", line.name);
        let alphabet = match is_auto(&line.model) {
            true => likely_alphabet(alignment),
            false => {
                let text = own_states(&line.model, alignment, &line.sites);
                model_name(&text).at(&place)?.alphabet()
            }
        };
        patterns.push(Patterns::of_sites(alignment, alphabet, line.sites.clone()).at(place)?);
        parts.push(Part {
            name: line.name,
            alphabet,
            sites: line.sites,
        });
    }
    Ok((parts, patterns))
}

/// A partition's model with the number of states of its own columns, where it is written without
/// one: letters of other partitions' DNA would be states far up.
fn own_states<'m>(model: &'m str, alignment: &Alignment, columns: &[u32]) -> Cow<'m, str> {
    with_states(model, || match alignment.of_columns(columns) {
        Ok(own) => own.multistates(),
        // Fewer than three taxa have a character there.
        Err(_) => alignment.multistates(),
    })
}

/// The linkage of branch lengths that a user has asked for and the models' `+B` select; scaled by
/// default.
///
/// # Errors
/// [`DataError::Linkage`].
pub fn linkage(asked: Option<Lengths>, parts: &[PartOptions]) -> Result<Lengths, DataError> {
    let (fitted, given) = scalers(parts);
    match asked {
        Some(Lengths::Linked) if fitted => Err(DataError::Linkage(
            "+B scales lengths, --brlen linked does not",
        )),
        Some(Lengths::Scaled) if given => Err(DataError::Linkage(
            "--brlen scaled would fit the scalers that +B{…} gives",
        )),
        Some(Lengths::Unlinked) if given || fitted => Err(DataError::Linkage(
            "+B scales lengths that partitions share, --brlen unlinked gives each its own",
        )),
        Some(asked) => Ok(asked),
        // Given scalers are not to be fitted; a single partition has none to fit.
        None if parts.len() == 1 || given => Ok(Lengths::Linked),
        None => Ok(Lengths::Scaled),
    }
}

/// True if a model has `+B` without a value; and if one has `+B{…}`.
fn scalers(parts: &[PartOptions]) -> (bool, bool) {
    let has = |wanted: fn(&ScalerName) -> bool| {
        parts.iter().any(|part| wanted(&part.model.name().scaler))
    };
    (
        has(|scaler| *scaler == ScalerName::Fitted),
        has(|scaler| matches!(scaler, ScalerName::Given(_))),
    )
}

fn check_ascertainment(part: &PartOptions) -> Result<(), DataError> {
    if part.model.name().ascertainment == AscertainmentName::None {
        return Ok(());
    }
    // The correction divides by the chance of a variable site: constant ones make it wrong.
    match part.patterns.constant_sites() {
        0 => Ok(()),
        constant => Err(DataError::Ascertainment {
            constant,
            sites: part.patterns.sites(),
        }),
    }
}

/// Bytes of memory that the likelihood of some partitions takes. Repeats in the alignment are
/// stored once, so that far less than one value for each cell may do.
fn likelihood_bytes(parts: &[PartOptions]) -> u64 {
    let values = parts.iter().map(|part| {
        let shape = part.model.process().shape;
        // The tips' CLVs are tables of codes, small next to these.
        let inner = part.patterns.taxa().saturating_sub(2);
        (inner * part.patterns.len() * shape.span() * size_of::<f64>()).to_u64()
    });
    let matrices = parts.iter().map(|part| {
        // Rounded up from two a taxon less three.
        let branches = 2 * part.patterns.taxa();
        (branches * part.model.process().shape.matrix() * size_of::<f64>()).to_u64()
    });
    values.sum::<u64>() / REPEATS + matrices.sum::<u64>()
}

/// Parses a model's name; files in its braces are read.
///
/// # Errors
/// Of the name or of the file.
pub fn model_name(text: &str) -> Result<ModelName, ModelError> {
    ModelName::parse(text, &mut model_file)
}

/// An alignment with the partitions that it is cut into.
#[derive(Debug)]
pub struct Data {
    /// The sequences as they were read.
    pub alignment: Alignment,
    /// The partitions.
    pub partitions: Partitions,
    /// Columns and sequences without a character, repeated sequences.
    pub findings: Findings,
}

/// Reads the files of an analysis.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    /// Memory that they may take.
    pub memory: Memory,
    /// Gets a line about what is odd.
    pub warn: fn(&str),
}

impl Reader {
    /// Reads an alignment and cuts it into one partition of `model`, or those of the file that this
    /// names. `choose` gives the partition of the model `auto`.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn data<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        self,
        msa: &Path,
        model: &str,
        choose: impl FnOnce(&Alignment) -> Result<PartOptions, E>,
    ) -> Result<Data, DataError> {
        let shown = msa.display();
        let mut alignment = self.alignment(msa)?;
        // A file wins over a model of the same name: the user has put it there.
        let partitions = if Path::new(model).is_file() {
            let text = self.parts_text(Path::new(model), &mut alignment)?;
            Partitions::of_lines(&alignment, &shown, &text, model)?
        } else if !alignment.loci().is_empty() {
            let text = alignment.lines_of_loci(model);
            Partitions::of_lines(&alignment, &shown, &text, format_args!("--model {model}"))?
        } else if is_auto(model) {
            Partitions::one(choose(&alignment).at(&shown)?)
        } else {
            self.whole(&alignment, msa, model)?
        };
        let patterns = partitions.parts.iter().map(|part| &part.patterns);
        let findings = self.findings(msa, &alignment, patterns);
        let need = likelihood_bytes(&partitions.parts);
        self.memory.check_work("the likelihood", need).at(shown)?;
        Ok(Data {
            alignment,
            partitions,
            findings,
        })
    }

    /// All sites under a model that the option `--model` names.
    fn whole(
        self,
        alignment: &Alignment,
        msa: &Path,
        model: &str,
    ) -> Result<Partitions, DataError> {
        let counted = with_states(model, || alignment.multistates());
        let name = model_name(&counted);
        // Outside braces a point or a slash is a path's, or a known model's such as NQ.pfam.
        let is_known = matches!(name, Err(ModelError::Contradiction { .. }));
        let name = match !is_known && model.contains(['.', '/']) && !model.contains('{') {
            true => name.at(format_args!(
                "--model {model} is no file that is there, and no model"
            ))?,
            false => name.at(format_args!("--model {model}"))?,
        };
        let found = match Partitions::whole(alignment, msa.display(), name) {
            Err(error @ DataError::WholeScaler) => {
                Err(error).at(format_args!("--model {model}"))?
            }
            found => found?,
        };
        if is_doubtful(alignment, &found.parts) {
            (self.warn)(&format!(
                "{}: read as amino acids, which --model {model} is for, but it looks like DNA",
                msa.display()
            ));
        }
        Ok(found)
    }

    /// The partitions of an alignment, which was read from `msa`: under a model, or as the lines of
    /// a file name them.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn parts(
        self,
        alignment: &Alignment,
        msa: &Path,
        model: &str,
    ) -> Result<Vec<PartOptions>, DataError> {
        let found = match Path::new(model).is_file() {
            true => {
                let text = self.text(model.as_ref())?;
                Partitions::of_lines(alignment, msa.display(), &text, model)?
            }
            false => self.whole(alignment, msa, model)?,
        };
        let patterns = found.parts.iter().map(|part| &part.patterns);
        self.findings(msa, alignment, patterns);
        Ok(found.parts)
    }

    /// Oddities of an alignment, after a warning of each kind.
    pub fn findings<'p>(
        self,
        msa: &Path,
        alignment: &Alignment,
        patterns: impl IntoIterator<Item = &'p Patterns> + Clone,
    ) -> Findings {
        let findings = Findings::of(alignment, patterns);
        for warning in findings.warnings(alignment) {
            (self.warn)(&format!("{}: {warning}", msa.display()));
        }
        findings
    }

    /// Reads an alignment as one part: with its patterns of sites in an alphabet, and what is odd
    /// about it.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn patterns(
        self,
        msa: &Path,
        alphabet: Alphabet,
    ) -> Result<(Alignment, Patterns, Findings), DataError> {
        let alignment = self.alignment(msa)?;
        let patterns = Patterns::new(&alignment, alphabet).at(msa.display())?;
        let findings = self.findings(msa, &alignment, [&patterns]);
        Ok((alignment, patterns, findings))
    }

    /// Reads an alignment; of a folder the alignments of its files, side by side, and likewise of
    /// the files that a NEXUS file of charsets names.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn alignment(self, path: &Path) -> Result<Alignment, DataError> {
        if path.is_dir() {
            return self.loci(path);
        }
        match self.one_alignment(path) {
            // Only a file without data may be one of charsets.
            Err(error) if path.is_file() => {
                let text = self.text(path).ok();
                let joined = text
                    .map(|text| self.of_files(&text, path, None))
                    .transpose()?;
                joined.flatten().map(|(joined, _)| joined).ok_or(error)
            }
            read => read,
        }
    }

    /// The text of a file of partitions, for an alignment. Where its charsets name files the
    /// alignment becomes that of these files, side by side.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn parts_text(self, path: &Path, alignment: &mut Alignment) -> Result<String, DataError> {
        let text = self.text(path)?;
        match self.of_files(&text, path, Some(alignment))? {
            None => Ok(text),
            Some((joined, lines)) => {
                *alignment = joined;
                Ok(lines)
            }
        }
    }

    fn one_alignment(self, path: &Path) -> Result<Alignment, DataError> {
        let input = Input::read(path, self.memory)?;
        // The rows are copied once more for patterns.
        let rows = input.memory / 2;
        Alignment::parse_within(&input.bytes, rows).at(path.display())
    }

    /// Reads a file of text, unpacked where it is compressed.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn text(self, path: &Path) -> Result<String, InputError> {
        Input::read(path, self.memory)?.into_text(path)
    }
}

/// True for the name that stands for a choice of the model.
fn is_auto(model: &str) -> bool {
    model.eq_ignore_ascii_case("auto")
}

/// Divisor: at least one value in this many is kept, even where much repeats.
const REPEATS: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_those_of_a_partitions_own_columns() {
        let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let rows: [&[u8]; 4] = [b"ACGT012", b"ACGA010", b"ACCT100", b"ACCT101"];
        let alignment = Alignment::new(names, rows.map(<[u8]>::to_vec).to_vec()).unwrap();
        // Two of the columns have the states 0 and 1, the last one 2 as well; T would be the 30th.
        let lines = "JC, one = 1-4\nMK, two = 5-6\nMULTIx_MK+G, three = 7\n";
        let expected = [
            Alphabet::Dna,
            Alphabet::Multistate(2),
            Alphabet::Multistate(3),
        ];
        let found = Partitions::of_lines(&alignment, "a", lines, "lines").unwrap();
        let patterns = found.parts.iter().map(|part| &part.patterns);
        assert_eq!(
            patterns.map(Patterns::alphabet).collect::<Vec<_>>(),
            expected
        );
        let (parts, _) = parts_to_model(&alignment, lines, "lines").unwrap();
        let alphabets = parts.iter().map(|part| part.alphabet);
        assert_eq!(alphabets.collect::<Vec<_>>(), expected);
    }
}
