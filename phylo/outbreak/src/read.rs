//! Genomes from files: FASTA here, MAPLE's format and VCF in `formats`, plain or compressed.
//!
//! Files are read as streams, and each sequence becomes its list of differences as soon as it is
//! there. Sequences of FASTA are compared with the reference a batch at a time, on all engines.
//! Must stay true: any bytes are taken or refused with one line; lines, sequences and the memory of
//! all lists are bounded. A consensus needs two passes, so a pipe needs a reference.

use crate::OutbreakError;
use crate::formats;
use crate::genome::{Builder, Genome, Genomes, Reference};
use crate::stream::{
    Budget, Lines, SITE_BYTES, Start, Stream, check_taxa, codes, illegal, input, open,
};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_likelihood::msa::Alphabet;
use sidecore_offload::Pool;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

/// The genome that others are compared with.
#[derive(Debug, Clone, Default)]
pub enum ReferenceChoice {
    /// That of a file in MAPLE's format; of a FASTA file the consensus of its sequences.
    #[default]
    Own,
    /// The first sequence of a FASTA file, which stays a genome of the tree.
    First,
    /// The sequence in this FASTA file. VCF needs one.
    File(PathBuf),
}

impl ReferenceChoice {
    /// The one that a user names: a file, `first`, or nothing for [`Self::Own`].
    #[must_use]
    pub fn named(name: Option<&Path>) -> Self {
        match name {
            None => Self::Own,
            Some(name) if name == Path::new("first") => Self::First,
            Some(path) => Self::File(path.to_owned()),
        }
    }
}

/// Options of reading.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// The reference.
    pub reference: ReferenceChoice,
    /// The most bytes of memory that the lists of differences may take.
    pub memory: u64,
}

impl Genomes {
    /// Reads FASTA, MAPLE's format or VCF (of one sequence, haploid), plain or compressed (gzip,
    /// xz, bzip2, zstd); `-` is standard input. Blocks.
    ///
    /// # Errors
    /// [`OutbreakError`].
    pub fn read(path: &Path, options: &ReadOptions, pool: &Pool) -> Result<Self, OutbreakError> {
        let source = Source {
            path,
            open: &|| open(path),
            is_once: path == Path::new("-"),
            options,
            pool: Some(pool),
        };
        source.genomes()
    }

    /// As [`Genomes::read`], from the bytes of a file that is not compressed, with its own
    /// reference. The lists may take 64 times the bytes and 192 MiB.
    ///
    /// # Errors
    /// [`OutbreakError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, OutbreakError> {
        Self::parse_with(bytes, &ReferenceChoice::Own)
    }

    pub(crate) fn parse_with(
        bytes: &[u8],
        reference: &ReferenceChoice,
    ) -> Result<Self, OutbreakError> {
        let share = bytes.len().to_u64().saturating_mul(INPUT_FACTOR);
        let memory = share.saturating_add(INPUT_LEAST);
        let options = ReadOptions {
            reference: reference.clone(),
            memory,
        };
        let source = Source {
            path: Path::new("the bytes"),
            open: &|| Ok(Box::new(bytes)),
            is_once: false,
            options: &options,
            pool: None,
        };
        source.genomes()
    }

    /// Number of genomes.
    #[must_use]
    pub fn taxa(&self) -> usize {
        self.names.len()
    }

    /// Records of a VCF that are not of single bases, which were left out.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Approximate bytes of memory that an inference takes.
    #[must_use]
    pub fn work_bytes(&self) -> u64 {
        let lists: usize = self.lists.iter().map(Genome::bytes).sum();
        // Two nodes a genome, each with three lists and what else a node has.
        let all = lists.saturating_mul(6)
            + self.taxa() * NODE_BYTES
            + self.reference.sites() * SITE_BYTES;
        all.to_u64()
    }
}

/// A file that can be opened.
struct Source<'s> {
    path: &'s Path,
    open: &'s dyn Fn() -> io::Result<Stream<'s>>,
    /// True of a pipe.
    is_once: bool,
    options: &'s ReadOptions,
    pool: Option<&'s Pool>,
}

impl<'s> Source<'s> {
    fn lines(&self) -> Result<Lines<'s>, OutbreakError> {
        let stream = (self.open)().map_err(|source| OutbreakError::Io {
            path: self.path.to_owned(),
            source,
        })?;
        Ok(Lines {
            stream,
            path: self.path,
            number: 0,
        })
    }

    fn genomes(&self) -> Result<Genomes, OutbreakError> {
        let mut lines = self.lines()?;
        let mut line = Vec::new();
        lines.first(&mut line)?;
        let genomes = if formats::is_vcf(&line) {
            let reference = match &self.options.reference {
                ReferenceChoice::File(path) => reference_of(path)?,
                _ => {
                    return Err(input(
                        "VCF has no sequence: give the genome that it counts on, --reference FILE",
                    ));
                }
            };
            formats::vcf(&mut lines, line, reference, self.options.memory)?
        } else if line.starts_with(b">") {
            let start = Start::read(&mut lines, &line)?;
            match (start.is_maple, &self.options.reference) {
                (true, ReferenceChoice::Own) => {
                    formats::maple(&mut lines, start, self.options.memory)?
                }
                (true, _) => {
                    return Err(input(
                        "a file in MAPLE's format has its own reference: leave out --reference",
                    ));
                }
                (false, _) => self.fasta(lines, start)?,
            }
        } else {
            return Err(input(
                "not genomes: the file begins neither as FASTA or MAPLE's format (`>`) nor as VCF",
            ));
        };
        check_distinct(&genomes.names)?;
        Ok(genomes)
    }

    fn fasta(&self, mut lines: Lines<'s>, start: Start) -> Result<Genomes, OutbreakError> {
        let (reference, start) = match &self.options.reference {
            ReferenceChoice::File(path) => (reference_of(path)?, start),
            ReferenceChoice::First => (codes(&start.sequence, &start.name)?, start),
            ReferenceChoice::Own if self.is_once => {
                return Err(input(
                    "a pipe is read once, a consensus needs two passes: give --reference FILE or \
                     --reference first",
                ));
            }
            ReferenceChoice::Own => {
                let consensus = consensus(&mut lines, start)?;
                lines = self.lines()?;
                let mut line = Vec::new();
                lines.first(&mut line)?;
                (consensus, Start::read(&mut lines, &line)?)
            }
        };
        let mut encoder = Encoder::new(Reference::new(&reference), self.pool, self.options.memory);
        start.records(&mut lines, &mut |name, row| encoder.push(name, row))?;
        encoder.finish()
    }
}

/// The most frequent base of each site.
fn consensus(lines: &mut Lines<'_>, start: Start) -> Result<Vec<u8>, OutbreakError> {
    let sites = start.sequence.len();
    let mut counts = vec![[0_u32; 4]; sites];
    let mut add = |name: String, row: Vec<u8>| -> Result<(), OutbreakError> {
        check_sites(&name, row.len(), sites)?;
        for (count, &byte) in counts.iter_mut().zip(&row) {
            if let Some(set @ (1 | 2 | 4 | 8)) = Alphabet::Dna.code(byte) {
                count[set.trailing_zeros().to_usize()] += 1;
            }
        }
        Ok(())
    };
    start.records(lines, &mut add)?;
    let best = |count: [u32; 4]| {
        let best = (0..4_usize).rev().max_by_key(|&base| count[base]);
        best.map_or(0, |base| 1_u8 << base)
    };
    Ok(counts.into_iter().map(best).collect())
}

/// The sequence of a file that has one.
fn reference_of(path: &Path) -> Result<Vec<u8>, OutbreakError> {
    let source = Source {
        path,
        open: &|| open(path),
        is_once: true,
        options: &ReadOptions {
            reference: ReferenceChoice::First,
            memory: u64::MAX,
        },
        pool: None,
    };
    let mut lines = source.lines()?;
    let mut line = Vec::new();
    lines.first(&mut line)?;
    let shown = path.display();
    if !line.starts_with(b">") {
        return Err(input(&format!(
            "{shown} is no FASTA file: give the reference as one"
        )));
    }
    let start = Start::read(&mut lines, &line)?;
    if !start.heads.is_empty() {
        return Err(input(&format!(
            "{shown} has several sequences: give a file with the reference alone"
        )));
    }
    codes(&start.sequence, &start.name)
}

/// Rows of FASTA on their way to lists.
struct Encoder<'e> {
    reference: Reference,
    /// The reference's capital letters.
    letters: Vec<u8>,
    pool: Option<&'e Pool>,
    rows: Vec<(String, Vec<u8>)>,
    names: Vec<String>,
    lists: Vec<Genome>,
    budget: Budget,
}

impl<'e> Encoder<'e> {
    fn new(reference: Reference, pool: Option<&'e Pool>, memory: u64) -> Self {
        let sites = u32::try_from(reference.sites()).unwrap_or(0);
        Self {
            letters: (0..sites)
                .map(|site| b"ACGT"[reference.base(site)])
                .collect(),
            budget: Budget::new(memory, reference.sites()),
            reference,
            pool,
            rows: Vec::new(),
            names: Vec::new(),
            lists: Vec::new(),
        }
    }

    fn push(&mut self, name: String, row: Vec<u8>) -> Result<(), OutbreakError> {
        check_sites(&name, row.len(), self.reference.sites())?;
        self.rows.push((name, row));
        match self.rows.len() * self.reference.sites() >= ROWS_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), OutbreakError> {
        let (letters, reference) = (&self.letters, &self.reference);
        let of = |row: &[u8]| differences(row, letters, reference);
        let lists: Vec<Result<Genome, usize>> = match self.pool {
            Some(pool) => pool.par(&self.rows).map(|(_, row)| of(row)).collect()?,
            None => self.rows.iter().map(|(_, row)| of(row)).collect(),
        };
        for ((name, row), list) in self.rows.drain(..).zip(lists) {
            let list = list.map_err(|site| illegal(&name, site, row[site]))?;
            self.budget.take(list.bytes() + name.len())?;
            self.names.push(name);
            self.lists.push(list);
        }
        check_taxa(self.names.len())
    }

    fn finish(mut self) -> Result<Genomes, OutbreakError> {
        self.flush()?;
        Ok(Genomes {
            names: self.names,
            lists: self.lists,
            reference: self.reference,
            left_out: 0,
        })
    }
}

/// A row's list, or the place of a character that is none.
fn differences(row: &[u8], letters: &[u8], reference: &Reference) -> Result<Genome, usize> {
    let mut builder = Builder::default();
    let sites = (0_u32..).zip(row.iter().zip(letters));
    // Most characters are the reference's, in either case.
    for (site, (&byte, _)) in sites.filter(|(_, (byte, letter))| **byte & CAPITAL != **letter) {
        let set = Alphabet::Dna.code(byte).ok_or(site.to_usize())?;
        builder.character(site, set, reference);
    }
    Ok(builder.take())
}

fn check_sites(name: &str, found: usize, expected: usize) -> Result<(), OutbreakError> {
    match found == expected {
        true => Ok(()),
        false => Err(input(&format!(
            "`{name}` has {found} sites, {expected} are expected: align the genomes first"
        ))),
    }
}

fn check_distinct(names: &[String]) -> Result<(), OutbreakError> {
    let mut seen = HashSet::with_capacity(names.len());
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(OutbreakError::Duplicate { name: name.clone() }),
        None => Ok(()),
    }
}

/// Memory for each byte that is parsed; and the amount that any bytes may take.
const INPUT_FACTOR: u64 = 64;
const INPUT_LEAST: u64 = 192 << 20;
/// Bytes of rows that are compared at once.
const ROWS_BYTES: usize = 8 << 20;
/// Memory of the nodes of a genome, without their lists.
const NODE_BYTES: usize = 600;
/// Clears the bit that small letters have.
const CAPITAL: u8 = 0xDF;
