//! VCF: the genotypes of single-base variants, a column for each record, a row for each sample.
//!
//! A haploid call is its base; a diploid one of two bases is the letter that stands for both, as
//! models of genotypes and of DNA read it. A missing call is `?`, a deleted base (`*`) `-`.
//! Must stay true: records of other variants are left out and counted for a warning. The memory is
//! proportional to the bytes: each cell has a field of its own.
//! Source: "The Variant Call Format Specification", VCFv4.5, sections 1.2 to 1.6.

use super::{Alphabet, MsaError, Rows, name, shown};

/// True of a file that begins as VCF's do.
pub(super) fn is(start: &[u8]) -> bool {
    start.starts_with(b"##fileformat=VCF") || start.starts_with(b"#CHROM\t")
}

/// The rows, and the number of records that were left out.
pub(super) fn parse(bytes: &[u8]) -> Result<(Rows, usize), MsaError> {
    let mut names: Vec<String> = Vec::new();
    let mut rows: Vec<Vec<u8>> = Vec::new();
    let mut left_out = 0;
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let error = |what: String| MsaError::Format {
            format: "VCF",
            line: number + 1,
            what,
        };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || line.starts_with(b"##") {
            continue;
        }
        let mut fields = line.split(|&byte| byte == b'\t');
        if line.starts_with(b"#CHROM") {
            if !names.is_empty() {
                return Err(error("a second header".to_owned()));
            }
            names = fields.skip(FIXED).map(name).collect();
            rows = vec![Vec::new(); names.len()];
            continue;
        }
        if names.is_empty() {
            return Err(error(
                "no header `#CHROM …` with samples before it".to_owned(),
            ));
        }
        let fixed: Vec<&[u8]> = fields.by_ref().take(FIXED).collect();
        let &[_, _, _, reference, alternatives, _, _, _, format] = fixed.as_slice() else {
            return Err(error(format!(
                "fewer than {FIXED} fields before the samples"
            )));
        };
        let Some(alleles) = alleles(reference, alternatives) else {
            left_out += 1;
            continue;
        };
        let place = format
            .split(|&byte| byte == b':')
            .position(|key| key == b"GT");
        let place = place.ok_or_else(|| error("FORMAT without GT".to_owned()))?;
        let wrong_count = || error(format!("not {} samples, as the header has", names.len()));
        for row in &mut rows {
            let sample = fields.next().ok_or_else(wrong_count)?;
            // Trailing fields may be left out, GT among them.
            let call = sample.split(|&byte| byte == b':').nth(place);
            let call = call.unwrap_or(b".");
            let cell = cell(call, &alleles)
                .ok_or_else(|| error(format!("`{}` is no genotype", shown(&name(call)))))?;
            row.push(cell);
        }
        if fields.next().is_some() {
            return Err(wrong_count());
        }
    }
    match names.is_empty() {
        true => Err(MsaError::Format {
            format: "VCF",
            line: 1,
            what: "no header `#CHROM …` with samples".to_owned(),
        }),
        false => Ok(((names, rows), left_out)),
    }
}

/// The letters of a record's alleles; `None` where one is not a single base.
fn alleles(reference: &[u8], alternatives: &[u8]) -> Option<Vec<u8>> {
    let others = alternatives.split(|&byte| byte == b',');
    // A record without a variant has `.` in the place of the alternatives (section 1.6.1).
    let others = others.filter(|allele| *allele != b".");
    let letter = |allele: &[u8]| match allele {
        [b'*'] => Some(b'-'),
        [base] if base.is_ascii_alphabetic() => {
            Alphabet::Dna.code(*base).map(|_| base.to_ascii_uppercase())
        }
        _ => None,
    };
    std::iter::once(reference)
        .chain(others)
        .map(letter)
        .collect()
}

/// The character of a call such as `0`, `0/1` or `1|.`.
fn cell(call: &[u8], alleles: &[u8]) -> Option<u8> {
    let mut set = 0_u8;
    for number in call.split(|byte| matches!(byte, b'/' | b'|')) {
        if number == b"." {
            return Some(b'?');
        }
        let number: usize = std::str::from_utf8(number).ok()?.parse().ok()?;
        // A deleted base adds nothing to the set.
        set |= match alleles.get(number)? {
            b'-' => 0,
            &base => Alphabet::Dna.code(base)?,
        };
    }
    // A code of DNA is the set of its bases.
    match set {
        0 => Some(b'-'),
        _ => (b'A'..=b'Z').find(|&letter| Alphabet::Dna.code(letter) == Some(set)),
    }
}

/// Fields before those of the samples.
const FIXED: usize = 9;

#[cfg(test)]
mod tests {
    use crate::Alignment;

    const HEAD: &str =
        "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT";

    fn read(records: &str) -> Result<Alignment, String> {
        let text = format!("{HEAD}\ta\tb\tc\n{records}");
        Alignment::parse(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn calls_become_bases_and_ambiguities() {
        let records = "1\t5\t.\tA\tG,T\t.\tPASS\t.\tGT:DP\t0/1:3\t2|2:1\t./.\r\n\
                       1\t6\t.\tA\tAC\t.\t.\t.\tGT\t0\t1\t0\n\
                       1\t7\t.\tc\t*\t.\t.\t.\tDP:GT\t9:0\t4:1\t2\n\
                       1\t8\t.\tG\t.\t.\t.\t.\tGT\t0\t0/0\t0|0\n";
        let found = read(records).unwrap();
        assert_eq!(found.names(), ["a", "b", "c"]);
        let rows = [0, 1, 2].map(|taxon| String::from_utf8_lossy(found.row(taxon)));
        assert_eq!(rows, ["RCG", "T-G", "??G"]);
        let said = found.warnings()[0].to_string();
        assert_eq!(
            said,
            "records of other variants than single bases: 1, left out"
        );
    }

    #[test]
    fn damaged_files_are_refused_with_the_line() {
        for (records, said) in [
            (
                "1\t5\t.\tA\tG\t.\t.\t.\tGT\t0\t1\n",
                "line 3: not 3 samples",
            ),
            ("1\t5\t.\tA\tG\t.\t.\t.\tGT\t0\t1\t1\t1\n", "not 3 samples"),
            ("1\t5\t.\tA\tG\t.\t.\t.\tDP\t0\t1\t1\n", "FORMAT without GT"),
            (
                "1\t5\t.\tA\tG\t.\t.\t.\tGT\t0\t1\t2\n",
                "`2` is no genotype",
            ),
            (
                "1\t5\t.\tA\tG\t.\t.\t.\tGT\t0\t1\t99999999999999999999\n",
                "no genotype",
            ),
            ("1\t5\t.\tA\n", "fewer than 9 fields"),
            ("#CHROM\tPOS\n", "a second header"),
            ("", "no sites"),
        ] {
            let error = read(records).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
        let error = Alignment::parse(b"##fileformat=VCFv4.2\n1\t2\n").unwrap_err();
        assert!(error.to_string().contains("no header"), "{error}");
    }
}
