//! Formats that hold differences: MAPLE's, and VCF.
//!
//! ```text
//! >reference
//! ACGTACGT
//! >first
//! T    4
//! -    7    2
//! ```
//! A line of MAPLE's format has a character, the site (from 1) and perhaps a number of sites. Of a
//! VCF the records of single bases are read, of one chromosome, in ascending order; calls of two
//! bases are ambiguous, missing ones and deletions are unknown.
//!
//! Must stay true: memory is in proportion to the differences. Sources: De Maio and others, Nature
//! Genetics 55 (2023), 746-752; "The Variant Call Format Specification", VCFv4.5, sections 1.2 to
//! 1.6.

use crate::OutbreakError;
use crate::genome::{Builder, Genome, Genomes, Reference};
use crate::stream::{Budget, Lines, Run, Start, check_taxa, codes, difference, input, number};
use sidecore_bare::width::ToUsize;
use sidecore_likelihood::msa::Alphabet;

/// A file in MAPLE's format, behind its start.
pub(crate) fn maple(
    lines: &mut Lines<'_>,
    start: Start,
    memory: u64,
) -> Result<Genomes, OutbreakError> {
    let reference = Reference::new(&codes(&start.sequence, "the reference")?);
    let sites = reference.sites();
    let mut budget = Budget::new(memory, sites);
    let mut names = start.heads;
    let mut lists = Vec::new();
    // All before the first line of a difference are the reference itself.
    lists.resize(names.len() - 1, Genome::default());
    let mut runs: Vec<Run> = Vec::new();
    let (mut builder, mut line) = (Builder::default(), start.line);
    let mut has_line = true;
    while has_line {
        if line.starts_with(b">") {
            let list = list(&mut runs, &mut builder, &reference);
            let list = list.map_err(|what| lines.wrong(MAPLE, what))?;
            budget.take(list.bytes() + names.last().map_or(0, String::len))?;
            lists.push(list);
            names.push(lines.name(&line)?);
            check_taxa(names.len())?;
        } else if !line.is_empty() {
            let run = difference(&line).ok_or_else(|| {
                let what = "a line must be a character, a site and perhaps a number";
                lines.wrong(MAPLE, what.to_owned())
            })?;
            let end = run.first.checked_add(run.count);
            if run.first == 0 || end.is_none_or(|end| end.to_usize() > sites + 1) {
                let what = format!("site {}, {} sites: there are {sites}", run.first, run.count);
                return Err(lines.wrong(MAPLE, what));
            }
            // More lines than sites overlap in any case.
            if runs.len() > sites {
                return Err(lines.wrong(MAPLE, OVERLAP.to_owned()));
            }
            // Each site of these is looked at, whatever the reference has there.
            if !matches!(run.set, 0 | 15) {
                budget.take(run.count.to_usize())?;
            }
            runs.push(run);
        }
        has_line = lines.read(&mut line)?;
    }
    let list = list(&mut runs, &mut builder, &reference);
    let list = list.map_err(|what| lines.wrong(MAPLE, what))?;
    budget.take(list.bytes() + names.last().map_or(0, String::len))?;
    lists.push(list);
    Ok(Genomes {
        names,
        lists,
        reference,
        left_out: 0,
    })
}

/// The list of a genome's lines; empties them.
fn list(
    runs: &mut Vec<Run>,
    builder: &mut Builder,
    reference: &Reference,
) -> Result<Genome, String> {
    runs.sort_by_key(|run| run.first);
    builder.clear();
    let mut at = 0;
    for run in runs.drain(..) {
        let (start, end) = (run.first - 1, run.first - 1 + run.count);
        if start < at {
            return Err(OVERLAP.to_owned());
        }
        at = end;
        match run.set {
            0 | 15 if start < end => builder.unknown(start, end),
            set => (start..end).for_each(|site| builder.character(site, set, reference)),
        }
    }
    Ok(builder.take())
}

/// True of a line that a VCF begins with.
pub(crate) fn is_vcf(line: &[u8]) -> bool {
    line.starts_with(b"##fileformat=VCF") || line.starts_with(b"#CHROM\t")
}

/// A VCF of which the first line was read.
pub(crate) fn vcf(
    lines: &mut Lines<'_>,
    first: Vec<u8>,
    reference: Vec<u8>,
    memory: u64,
) -> Result<Genomes, OutbreakError> {
    let reference = Reference::new(&reference);
    let mut samples = Samples {
        budget: Budget::new(memory, reference.sites()),
        reference,
        builders: Vec::new(),
        chromosome: Vec::new(),
        last: 0,
        left_out: 0,
    };
    let mut names: Vec<String> = Vec::new();
    let (mut line, mut has_line) = (first, true);
    while has_line {
        if line.starts_with(b"#CHROM") {
            if !names.is_empty() {
                return Err(lines.wrong(VCF, "a second header".to_owned()));
            }
            let fields = line.split(|&byte| byte == b'\t').skip(FIXED);
            names = fields
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect();
            check_taxa(names.len())?;
            samples.budget.take(names.len() * size_of::<Builder>())?;
            samples.builders.resize_with(names.len(), Builder::default);
        } else if !line.is_empty() && !line.starts_with(b"#") {
            let read = samples.record(&line);
            read.map_err(|refusal| match refusal {
                Refusal::Format(what) => lines.wrong(VCF, what),
                Refusal::Other(error) => error,
            })?;
        }
        has_line = lines.read(&mut line)?;
    }
    if names.is_empty() {
        return Err(input("the VCF has no header `#CHROM …` with samples"));
    }
    Ok(Genomes {
        names,
        lists: samples.builders.iter_mut().map(Builder::take).collect(),
        reference: samples.reference,
        left_out: samples.left_out,
    })
}

/// The samples of a VCF, whose lists grow record by record.
struct Samples {
    reference: Reference,
    builders: Vec<Builder>,
    chromosome: Vec<u8>,
    /// The last record's position, from 1.
    last: u32,
    left_out: u64,
    budget: Budget,
}

enum Refusal {
    Format(String),
    Other(OutbreakError),
}

impl From<String> for Refusal {
    fn from(what: String) -> Self {
        Self::Format(what)
    }
}

impl From<&str> for Refusal {
    fn from(what: &str) -> Self {
        Self::Format(what.to_owned())
    }
}

impl Samples {
    fn record(&mut self, line: &[u8]) -> Result<(), Refusal> {
        let mut fields = line.split(|&byte| byte == b'\t');
        let fixed: Vec<&[u8]> = fields.by_ref().take(FIXED).collect();
        let &[
            chromosome,
            place,
            _,
            reference,
            alternatives,
            _,
            _,
            _,
            format,
        ] = &fixed[..]
        else {
            return Err("fewer than 9 fields before the samples".into());
        };
        let Some(alleles) = alleles(reference, alternatives) else {
            self.left_out += 1;
            return Ok(());
        };
        let site = self.site(chromosome, place, &alleles)?;
        let own = alleles[0];
        let mut keys = format.split(|&byte| byte == b':');
        let key = keys.position(|key| key == b"GT");
        let key = key.ok_or("FORMAT without GT")?;
        for builder in &mut self.builders {
            let sample = fields.next().ok_or("fewer samples than the header has")?;
            // Trailing fields may be left out, GT among them.
            let call = sample.split(|&byte| byte == b':').nth(key).unwrap_or(b".");
            let set = call_set(call, &alleles).ok_or_else(|| {
                let shown: String = String::from_utf8_lossy(call)
                    .escape_debug()
                    .take(20)
                    .collect();
                format!("`{shown}` is no genotype")
            })?;
            if set != own {
                let before = builder.bytes();
                builder.character(site, set, &self.reference);
                let grown = builder.bytes().saturating_sub(before);
                self.budget.take(grown).map_err(Refusal::Other)?;
            }
        }
        match fields.next() {
            Some(_) => Err("more samples than the header has".into()),
            None => Ok(()),
        }
    }

    /// The site of a record, which stands behind the last one's and has the reference's base.
    fn site(&mut self, chromosome: &[u8], place: &[u8], alleles: &[u8]) -> Result<u32, Refusal> {
        if self.chromosome.is_empty() {
            self.chromosome = chromosome.to_vec();
        }
        if self.chromosome != chromosome {
            return Err("a second chromosome: give one sequence".into());
        }
        let sites = self.reference.sites();
        let place = number(place).filter(|&place| place > 0 && place.to_usize() <= sites);
        let place = place.ok_or_else(|| format!("a position must be from 1 to {sites}"))?;
        if place <= self.last {
            return Err("positions must ascend, one record each (bcftools norm -m +)".into());
        }
        self.last = place;
        if alleles[0] != 1_u8 << self.reference.base(place - 1) {
            return Err(format!("REF at {place} is another base than the reference's").into());
        }
        Ok(place - 1)
    }
}

/// The sets of a record's alleles, 15 for a deletion; `None` where one is not a single base.
fn alleles(reference: &[u8], alternatives: &[u8]) -> Option<Vec<u8>> {
    let others = alternatives.split(|&byte| byte == b',');
    let others = others.filter(|allele| *allele != b".");
    let set = |allele: &[u8]| match allele {
        [b'*'] => Some(15),
        [base] if base.is_ascii_alphabetic() => Alphabet::Dna.code(*base),
        _ => None,
    };
    std::iter::once(reference).chain(others).map(set).collect()
}

/// The bases of a call such as `0`, `0/1` or `1|.`.
fn call_set(call: &[u8], alleles: &[u8]) -> Option<u8> {
    let mut set = 0;
    for number in call.split(|byte| matches!(byte, b'/' | b'|')) {
        if number == b"." {
            return Some(15);
        }
        let number: usize = std::str::from_utf8(number).ok()?.parse().ok()?;
        set |= alleles.get(number)?;
    }
    Some(set)
}

const MAPLE: &str = "MAPLE";
const VCF: &str = "VCF";
const OVERLAP: &str = "two lines of a genome have a site in common";
/// Fields before those of the samples.
const FIXED: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::ReferenceChoice;

    const GENOMES: &str =
        ">reference\nacgt\nacgt\n>same\n>one x\nt\t1\n-\t7\t2\n>two\nN 1 3\nR 5\n";

    #[test]
    fn maple_and_fasta_are_the_same_genomes() {
        let maple = Genomes::parse(GENOMES.as_bytes()).unwrap();
        assert_eq!(maple.names, ["same", "one", "two"]);
        let text = b">same\nACGTACGT\n>one\nTCGT\nac--\n\n>two\nNNNTRCGT\n";
        let fasta = Genomes::parse(text).unwrap();
        assert_eq!(fasta.names, maple.names);
        assert_eq!(fasta.lists, maple.lists);
        let first = Genomes::parse_with(text, &ReferenceChoice::First).unwrap();
        assert_eq!(first.lists, maple.lists);
    }

    #[test]
    fn vcf_is_the_same_genomes() {
        let folder = tempfile::tempdir().unwrap();
        let reference = folder.path().join("reference.fa");
        std::fs::write(&reference, ">r\nACGTACGT\n").unwrap();
        let choice = ReferenceChoice::File(reference);
        let head = "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\
                    \tsame\tone\ttwo\n";
        let mut text = head.to_owned();
        for (place, alleles, calls) in [
            (1, "A\tT", "0\t1\t."),
            (2, "C\tG", "0\t0\t."),
            (3, "G\tGA", "0\t1\t0"),
            (3, "G\tA", "0\t0:9\t."),
            (5, "A\tG", "0\t0\t0/1"),
            (7, "G\t*", "0\t1\t0"),
            (8, "T\tC", "0\t.\t0"),
        ] {
            text.push_str(&format!(
                "1\t{place}\t.\t{alleles}\t.\t.\t.\tGT:DP\t{calls}\n"
            ));
        }
        let vcf = Genomes::parse_with(text.as_bytes(), &choice).unwrap();
        let maple = Genomes::parse(GENOMES.as_bytes()).unwrap();
        assert_eq!((vcf.names, vcf.left_out), (maple.names, 1));
        assert_eq!(vcf.lists, maple.lists);
        for (record, said) in [
            (
                "1\t8\t.\tT\tC\t.\t.\t.\tGT\t0\t1\n",
                "line 10: fewer samples",
            ),
            ("1\t9\t.\tT\tC\t.\t.\t.\tGT\t0\t1\t1\n", "ascend"),
            ("1\t9\t.\tT\tC\t.\t.\t.\tGT\t0\t1\t1\n", "from 1 to 8"),
            ("2\t8\t.\tT\tC\t.\t.\t.\tGT\t0\t1\t1\n", "chromosome"),
            ("1\t8\t.\tA\tC\t.\t.\t.\tGT\t0\t1\t1\n", "another base"),
            ("1\t8\t.\tT\tC\t.\t.\t.\tDP\t0\t1\t1\n", "without GT"),
            (
                "1\t8\t.\tT\tC\t.\t.\t.\tGT\t0\t1\t7\n",
                "`7` is no genotype",
            ),
            ("1\t8\n", "fewer than 9"),
        ] {
            let text = match said {
                // Behind the last record of all.
                "ascend" | "chromosome" => format!("{text}{}", record.replace("1\t9", "1\t8")),
                "line 10: fewer samples" => {
                    format!("{}{record}", text.replace("1\t8\t.\tT", "1\t8\t.\tTT"))
                }
                _ => format!("{head}{record}"),
            };
            let error = Genomes::parse_with(text.as_bytes(), &choice).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains(said) && !error.contains('\n'),
                "{said}: {error}"
            );
        }
        let error = Genomes::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("--reference"), "{error}");
    }

    #[test]
    fn damaged_files_are_refused_with_a_line() {
        for (text, said) in [
            ("", "not genomes"),
            ("hello\n", "not genomes"),
            (">", "no sequence"),
            (">a\nACGT\n>b\n>c\nACGT\n", "no sequence"),
            (">a\nACGT\n>b\nACG\n", "`b` has 3 sites, 4 are expected"),
            (">a\nACGT\n>b\nACG!\n", "`b`, site 4: `!` is no base"),
            (">a\nACGT\n>a\nACGT\n", "`a` is the name of several"),
            (">a\nACGT\n>\nACGT\n", "without a name"),
            (">r\nACGT\n>a\nt 5\n", "site 5, 1 sites: there are 4"),
            (">r\nACGT\n>a\nt 0\n", "site 0"),
            (">r\nACGT\n>a\nt 1 4294967295\n", "there are 4"),
            (">r\nACGT\n>a\nt 1\nhello\n", "a line must be"),
            (">r\nACGT\n>a\nt 1 3\na 2\n", "in common"),
        ] {
            let error = Genomes::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(
                error.contains(said) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
        let mut bytes: Vec<u8> = (0..=255).collect();
        for _ in 0..bytes.len() {
            bytes.rotate_left(1);
            // Taken or refused, never a panic.
            let _ = Genomes::parse(&bytes);
            let _ = Genomes::parse(&[b">r\nACGT\n>a\n", &bytes[..]].concat());
        }
    }
}
