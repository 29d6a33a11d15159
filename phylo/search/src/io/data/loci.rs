//! A folder of loci: an alignment a file, read as one alignment of several parts. Each of these may
//! be taken as an alignment of its own again, for its gene tree.
//!
//! Must stay true: the files' order is that of their names, so that one folder gives one result.
//! The loci's memory together is bounded before they are joined: a taxon that a locus lacks costs
//! as much as one that it has.

use super::{At, DataError, Reader, check_ascertainment, is_auto, model_name};
use crate::analysis::genes::{GeneTrees, Locus, Options};
use crate::io::checkpoint::Settings;
use crate::io::partitions;
use crate::likelihood::PartOptions;
use crate::model::with_states;
use crate::msa::{Alignment, Patterns};
use sidecore_bare::width::ToU64;
use std::collections::{HashMap, HashSet};
use std::path::Path;

impl Reader {
    /// The alignment of charsets that name files, side by side, and the lines that say which
    /// columns have which model; none where the text names no files. Files are looked for next to
    /// the file `of`, then in the working folder. Charsets without a file are of `whole`.
    pub(super) fn of_files(
        self,
        text: &str,
        of: &Path,
        whole: Option<&Alignment>,
    ) -> Result<Option<(Alignment, String)>, DataError> {
        let shown = of.display();
        let Some(sets) = partitions::file_sets(text).at(&shown)? else {
            return Ok(None);
        };
        let mut files: HashMap<&str, Alignment> = HashMap::new();
        let mut blocks = Vec::new();
        for charset in &sets.charsets {
            let place = format!("{shown}, charset {}", charset.name);
            let own = match &charset.file {
                None => whole.ok_or(DataError::NoFile).at(&place)?,
                Some(file) => {
                    // Several charsets may be of one file, which is read once.
                    if !files.contains_key(file.as_str()) {
                        let near = of.parent().map(|folder| folder.join(file));
                        let near = near.filter(|path| path.is_file());
                        let path = near.unwrap_or_else(|| file.into());
                        files.insert(file, self.one_alignment(&path)?);
                    }
                    &files[file.as_str()]
                }
            };
            let columns = partitions::columns(&charset.ranges, own.sites(), charset.line);
            let block = own.of_columns(&columns.at(&shown)?).at(&place)?;
            blocks.push((charset.name.clone(), block));
        }
        let joined = Alignment::concatenated(blocks).at(&shown)?;
        let mut first = 1;
        let bounds: Vec<String> = (joined.loci().iter())
            .map(|(_, columns)| {
                let last = first + columns - 1;
                format!("{}-{last}", std::mem::replace(&mut first, last + 1))
            })
            .collect();
        let mut lines = String::new();
        for (model, name, places) in &sets.partitions {
            let own: Vec<&str> = places.iter().map(|&at| bounds[at].as_str()).collect();
            lines += &format!("{model}, {name} = {}\n", own.join(", "));
        }
        Ok(Some((joined, lines)))
    }

    /// Reads a folder of loci: a file each, in the order of their names.
    pub(super) fn loci(self, folder: &Path) -> Result<Alignment, DataError> {
        let shown = folder.display();
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).at(&shown)? {
            let entry = entry.at(&shown)?;
            // Editors and file systems leave hidden files in folders.
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if !hidden && !entry.path().is_dir() {
                files.push(entry.path());
            }
            // Checked within the loop: a folder may list millions of files.
            if files.len() > FILES_MAX {
                return Err(DataError::ManyLoci).at(&shown);
            }
        }
        // The order in which a folder lists files is any.
        files.sort_unstable();
        let mut loci = Vec::with_capacity(files.len());
        let (mut names, mut sites) = (HashSet::new(), 0);
        for file in files {
            let alignment = self.one_alignment(&file)?;
            names.extend(alignment.names().iter().cloned());
            sites += alignment.sites();
            let need = names.len().saturating_mul(sites).to_u64();
            self.memory
                .check_work("the loci as one alignment", need)
                .at(&shown)?;
            let stem = file.file_stem().unwrap_or_default();
            loci.push((stem.to_string_lossy().into_owned(), alignment));
        }
        if loci.is_empty() {
            return Err(DataError::NoLoci).at(&shown);
        }
        Alignment::concatenated(loci).at(shown)
    }
}

/// Loci of a run of gene trees.
#[derive(Debug)]
pub struct GeneLoci {
    /// The loci, in the order of the files or lines.
    pub(crate) loci: Vec<Locus>,
    /// Names of those that are left out: fewer than three taxa have a character.
    pub skipped: Vec<String>,
    /// The alignment of all of them, and the lines that say which columns are whose.
    identity: [String; 2],
}

impl GeneLoci {
    /// The job that makes gene trees of them.
    pub fn job<R>(&self, options: Options, runner: R) -> GeneTrees<'_, R> {
        GeneTrees::new(&self.loci, options, runner)
    }

    /// The identity of a run that makes gene trees of them.
    #[must_use]
    pub fn settings(&self, options: &Options) -> Settings {
        let mut settings = Settings::default();
        settings.add("version of sidecore", env!("CARGO_PKG_VERSION"));
        let [alignment, lines] = &self.identity;
        settings.add("loci", alignment);
        settings.add("--model", lines);
        // The values include the files that a model's braces name.
        let parts = self.loci.iter().filter_map(|locus| locus.part.as_ref());
        let values: Vec<String> = parts.map(|part| part.model.to_string()).collect();
        settings.add("models' values at the start", &values.join(" "));
        settings.add("--starts", &options.starts.to_string());
        settings.add("--bootstraps", &options.bootstraps.to_string());
        settings.add("--support", &format!("{:?}", options.supports));
        settings.add("--seed", &options.seed.to_string());
        settings
    }

    /// Bytes that the files of such a run take, about.
    #[must_use]
    pub fn bytes_about(&self, options: &Options) -> u64 {
        let names = self.loci.iter().map(|locus| locus.alignment.names());
        // A tree has two lengths a taxon; each is in the checkpoint and in a file.
        let labels: usize = names.flatten().map(|name| name.len() + 32).sum();
        let trees = 2 * u64::from(options.bootstraps) + 4;
        labels.to_u64().saturating_mul(trees) + (64 << 10)
    }
}

impl Reader {
    /// Reads loci apart: a folder's files, or the parts of one alignment that a file of partitions
    /// names. `model` is such a file, a model of every locus, or `auto`.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn gene_loci(self, msa: &Path, model: &str) -> Result<GeneLoci, DataError> {
        let shown = msa.display();
        let mut alignment = self.alignment(msa)?;
        let (text, file) = match Path::new(model).is_file() {
            true => {
                let text = self.parts_text(Path::new(model), &mut alignment)?;
                (text, model.to_owned())
            }
            false if alignment.loci().is_empty() => return Err(DataError::OneLocus).at(shown),
            false => (alignment.lines_of_loci(model), format!("--model {model}")),
        };
        self.loci_of(&alignment, text, [&shown.to_string(), &file])
    }

    /// The loci that the lines of a text name in an alignment. Errors name the alignment and the
    /// text so.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn loci_of(
        self,
        alignment: &Alignment,
        text: String,
        [shown, file]: [&str; 2],
    ) -> Result<GeneLoci, DataError> {
        let lines = partitions::parse(&text, alignment.sites()).at(file)?;
        let (mut loci, mut skipped) = (Vec::new(), Vec::new());
        for line in lines {
            let Ok(own) = alignment.of_columns(&line.sites) else {
                (self.warn)(&format!(
                    "{shown}: {} has fewer than 3 taxa: left out",
                    line.name
                ));
                skipped.push(line.name);
                continue;
            };
            let place = format!("{shown}, locus {}", line.name);
            let part = match is_auto(&line.model) {
                true => None,
                false => {
                    let model = with_states(&line.model, || own.multistates());
                    let name = model_name(&model).at(format_args!("{file}: {}", line.name))?;
                    let patterns = Patterns::new(&own, name.alphabet()).at(&place)?;
                    let part = PartOptions::new(name, patterns);
                    check_ascertainment(&part).at(&place)?;
                    Some(part)
                }
            };
            let cells = (own.names().len() * own.sites()).to_u64();
            self.memory
                .check_work("the likelihood", CELL_BYTES * cells)
                .at(place)?;
            loci.push(Locus {
                name: line.name,
                alignment: own,
                part,
            });
        }
        if loci.is_empty() {
            return Err(DataError::SmallLoci).at(shown);
        }
        let cells = alignment.to_phylip();
        Ok(GeneLoci {
            loci,
            skipped,
            identity: [String::from_utf8_lossy(&cells).into_owned(), text],
        })
    }
}

/// Of a cell of the alignment in the likelihood: four rates of DNA's states, a quarter of them
/// stored.
const CELL_BYTES: u64 = 32;
/// The most files of a folder.
pub(super) const FILES_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::io::input::Memory;

    fn reader(bytes: u64) -> Reader {
        Reader {
            memory: Memory::new(Some(bytes)),
            warn: |_| {},
        }
    }

    #[test]
    fn a_folder_is_one_alignment_with_a_part_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let no_choice = |_: &Alignment| Err::<PartOptions, _>("no choice");
        let data = |model: &str| reader(1 << 30).data(path, model, no_choice);
        let said = |model: &str| data(model).unwrap_err().to_string();
        assert!(said("JC").contains(path.to_str().unwrap()));
        std::fs::write(path.join("b.fa"), ">x\nACGT\n>y\nACGA\n>z\nACCA\n").unwrap();
        std::fs::write(path.join("a.phy"), "3 3\nw ACG\nx ACC\ny AGG\n").unwrap();
        std::fs::write(path.join(".hidden"), "no alignment").unwrap();
        std::fs::create_dir(path.join("folder")).unwrap();
        let found = data("JC").unwrap();
        assert_eq!(found.alignment.names(), ["w", "x", "y", "z"]);
        assert_eq!(found.partitions.names, ["a", "b"]);
        let sites = found
            .partitions
            .parts
            .iter()
            .map(|part| part.patterns.alignment_sites());
        assert_eq!(sites.collect::<Vec<_>>(), [vec![0, 1, 2], vec![3, 4, 5, 6]]);
        assert!(matches!(data("auto"), Err(DataError::At { .. })));
        // The joined alignment is bounded, too, not only each file.
        for locus in 0..4 {
            let many: String = (0..40)
                .map(|k| format!(">t{locus}_{k}\n{}\n", "A".repeat(1000)))
                .collect();
            std::fs::write(path.join(format!("c{locus}.fa")), many).unwrap();
        }
        assert!(reader(1 << 16).alignment(path).is_err());
        assert!(reader(1 << 30).alignment(path).is_ok());
        std::fs::write(path.join("d.txt"), "no alignment").unwrap();
        assert!(said("JC").contains("d.txt"));
    }
}
