//! Alignments of every format, their faults, and their patterns.

use super::*;

const ROWS: [(&str, &str); 4] = [
    ("one", "ACGT-ACGTN"),
    ("two", "ACGTTACGTA"),
    ("three_3", "ACGTAACGRA"),
    ("4th", "ACTTTACG?A"),
];

fn same(text: &str) {
    let alignment =
        Alignment::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(alignment.names(), ROWS.map(|(name, _)| name));
    for (taxon, (_, row)) in ROWS.iter().enumerate() {
        assert_eq!(alignment.row(taxon), row.as_bytes(), "{text}");
    }
}

fn error(text: &str) -> String {
    let error = Alignment::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn all_formats_read_alike() {
    same("4 10\none ACGT-ACGTN\ntwo ACGTTACGTA\nthree_3 ACGTAACGRA\n4th ACTTTACG?A\n");
    same(
        " 4  10 \r\n\r\none  ACGT-ACGTN\r\ntwo\tACGTT ACGTA\r\n\
         three_3 ACGTAACGRA\r\n4th ACTTTACG?A",
    );
    // Sequential over several lines.
    same("4 10\none\nACGT-\nACGTN\ntwo ACGTT\nACGTA\nthree_3 ACGTAACG\nRA\n4th\nACTTTACG?A\n");
    // Interleaved, with and without names in later blocks.
    same("4 10\none ACGT-\ntwo ACGTT\nthree_3 ACGTA\n4th ACTTT\n\nACGTN\nACGTA\nACGRA\nACG?A\n");
    same(
        "4 10\none ACGT-\ntwo ACGTT\nthree_3 ACGTA\n4th ACTTT\n\none ACGTN\ntwo ACGTA\n\
         three_3 ACGRA\n4th ACG?A\n",
    );
    same(">one first\nACGT-\nACGTN\n>two\nACGTTACGTA\n\n>three_3\nACGTAACGRA\n> 4th\nACTTTACG?A");
    same(
        "#NEXUS\n[a [nested] comment]\nBEGIN taxa; dimensions ntax=4; END;\nBegin data;\n\
         Dimensions ntax=4 nchar=10;\nFormat datatype=dna gap=- missing=? interleave=no;\nMatrix\n\
         one ACGT-ACGTN\n'two' ACGTT\n ACGTA\nthree_3 ACGTAACGRA 4th ACTTTACG?A\n;\nEnd;",
    );
    same(
        "#nexus\nbegin CHARACTERS;\ndimensions nchar = 10;\nformat interleave matchchar=. gap=~;\n\
         matrix\none ACGT~\ntwo ....T\nthree_3 ....A\n4th ..T.T\n\none ACGTN\ntwo ....A\n\
         three_3 ...RA\n4th ...?A\n;end;",
    );
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    assert!(error("hello").contains("neither as PHYLIP"));
    assert!(error("4 10\n").contains("0 taxa are there, the header says 4"));
    assert!(error("4 x\n").contains("two numbers"));
    assert!(error("99999999999999999999 1\n").contains("two numbers"));
    let short = "4 10\none ACGT-ACGTN\ntwo ACGTTACGT\nthree ACGTAACGRA\n4th ACTTTACG?A\n";
    assert!(
        error(short).contains("`two` has 9 characters, 10 are expected"),
        "{}",
        error(short)
    );
    assert!(error(">a\nAC\n>b\nACG\n>c\nAC\n>d\nAC").contains("`b` has 3"));
    // Every name that there is twice, in NEXUS too.
    for text in [
        ">a\nAC\n>b\nAC\n>a\nAC\n>c\nAC\n>b\nAC\n>a\nAC",
        "#NEXUS begin data; dimensions nchar=2; matrix a AC b AC a AC c AC b AC a AC; end;",
    ] {
        let said = error(text);
        assert!(
            said.ends_with("rename all but one of each: 2: `a` (3), `b` (2)"),
            "{said}"
        );
    }
    assert!(error(">a\nAC\n>b\nAC").contains("2 taxa"));
    assert!(error(">a\n>b\n>c\n>d\n").contains("no sites"));
    assert!(error(">a\nA1C\n").contains("line 2"));
    assert!(error("#NEXUS begin data; matrix a AC b AC").contains("does not end"));
    assert!(error("#NEXUS begin trees; end;").contains("no MATRIX"));
    assert!(error("#NEXUS [").contains("comment is not closed"));
    assert!(error("").contains("neither"));
}

#[test]
fn characters_are_checked_with_their_place() {
    let parse = |text: &str| Alignment::parse(text.as_bytes()).unwrap();
    let bad = parse(">a\nACGT\n>b\nACET\n>c\nACGT\n>d\nACGT\n");
    let error = Patterns::new(&bad, Alphabet::Dna).unwrap_err().to_string();
    assert_eq!(
        error,
        "`b`, site 3: `E` is no DNA character, the model is for DNA"
    );
    assert!(Patterns::new(&bad, Alphabet::Protein).is_ok());
}

#[test]
fn columns_without_a_character_are_left_out() {
    let parse = |text: &str| Alignment::parse(text.as_bytes()).unwrap();
    let gaps = parse(">a\nA-GTX\n>b\nANGT-\n>c\nA?CTN\n>d\nA-GTo\n");
    let patterns = Patterns::new(&gaps, Alphabet::Dna).unwrap();
    assert_eq!(patterns.undetermined_sites(), [1, 4]);
    assert_eq!((patterns.sites(), patterns.len()), (3, 3));
    assert_eq!(patterns.alignment_sites(), [0, 1, 2, 3, 4]);
    let places: Vec<usize> = patterns.site_patterns().map(|(site, _)| site).collect();
    assert_eq!(places, [0, 2, 3]);
    // To a protein an N is asparagine.
    let proteins = Patterns::of_sites(&gaps, Alphabet::Protein, vec![1, 2]).unwrap();
    assert!(proteins.undetermined_sites().is_empty());
    // A partition of nothing else keeps a pattern; an alignment of nothing else is refused.
    let only = Patterns::of_sites(&gaps, Alphabet::Dna, vec![1, 4]).unwrap();
    assert!(only.is_undetermined() && only.len() == 1 && only.weights() == [2]);
    assert_eq!(only.undetermined_sites(), [1, 4]);
    let nothing = parse(">a\n-N\n>b\n--\n>c\n--\n>d\n??\n");
    let error = Patterns::new(&nothing, Alphabet::Dna).unwrap_err();
    assert!(
        error.to_string().contains("no site has a character"),
        "{error}"
    );
}

#[test]
fn each_kind_of_oddity_is_one_warning() {
    let text = ">a\nAC-GT-\n>b\nAC-GA-\n>c\nacNgu-\n>d\n---NN?\n>e\nAC-GA-\n>f\nACNGA-\n";
    let alignment = Alignment::parse(text.as_bytes()).unwrap();
    let part = |sites| Patterns::of_sites(&alignment, Alphabet::Dna, sites).unwrap();
    let expected = [
        "columns without a character in any taxon: 2 of 6, left out: 3, 6",
        "sequences without a character: 1, kept, may stand anywhere in a tree: `d`",
        "sequences that repeat an earlier one: 3, kept: `c` (as `a`), `e` (as `b`), `f` (as `b`)",
    ];
    for parts in [
        vec![part((0..6).collect())],
        vec![part(vec![0, 1]), part(vec![2, 3]), part(vec![4, 5])],
    ] {
        let found = Findings::of(&alignment, &parts);
        let warnings = found.warnings(&alignment);
        let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected);
    }
}

#[test]
fn patterns_keep_every_column_once() {
    let text = ">a\nAACCA\n>b\nAACCU\n>c\nAAGGA\n>d\naaTTA\n";
    let alignment = Alignment::parse(text.as_bytes()).unwrap();
    let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
    assert_eq!(patterns.len(), 3);
    assert_eq!(patterns.weights().iter().sum::<u32>(), 5);
    for (site, pattern) in patterns.site_patterns() {
        for taxon in 0..4 {
            let code = Alphabet::Dna.code(alignment.row(taxon)[site]).unwrap();
            assert_eq!(patterns.codes(taxon)[pattern], code);
        }
    }
    let constant = (0..3)
        .filter(|&pattern| patterns.common_states(pattern) != 0)
        .count();
    assert_eq!(constant, 1);
    // The order of columns does not matter.
    let turned = ">a\nACACA\n>b\nUCACA\n>c\nAGAGA\n>d\nATATA\n";
    let turned = Alignment::parse(turned.as_bytes()).unwrap();
    let turned = Patterns::new(&turned, Alphabet::Dna).unwrap();
    assert_eq!(turned.weights(), patterns.weights());
    assert!((0..4).all(|taxon| turned.codes(taxon) == patterns.codes(taxon)));
}

#[test]
fn every_code_means_its_states() {
    for (letter, states) in [
        (b'R', "AG"),
        (b'y', "CT"),
        (b'N', "ACGT"),
        (b'B', "CGT"),
        (b'U', "T"),
    ] {
        let mask = Alphabet::Dna.masks()[usize::from(Alphabet::Dna.code(letter).unwrap())];
        let found: String = (0..4)
            .filter(|s| mask >> s & 1 == 1)
            .map(|s| char::from(Alphabet::Dna.letter(s)))
            .collect();
        assert_eq!(found, states);
    }
    for (letter, states) in [(b'B', "ND"), (b'Z', "QE"), (b'J', "IL"), (b'w', "W")] {
        let mask = Alphabet::Protein.masks()[usize::from(Alphabet::Protein.code(letter).unwrap())];
        let letters = (0..20).filter(|s| mask >> s & 1 == 1);
        let found: String = letters
            .map(|s| char::from(Alphabet::Protein.letter(s)))
            .collect();
        assert_eq!(found, states);
    }
    assert_eq!(Alphabet::Dna.code(b'E'), None);
    assert_eq!(
        Alphabet::Protein.code(b'U'),
        Some(Alphabet::Protein.unknown())
    );
    for letter in *b"XxOo-?*~" {
        let unknown = Alphabet::Protein.unknown();
        assert_eq!(Alphabet::Protein.code(letter), Some(unknown), "{letter}");
    }
}

#[test]
fn a_resampled_set_has_the_sites_of_the_first_and_no_others() {
    use sidecore_random::Random;
    let rows = [
        "ACGTACGTACGTAA",
        "ACGTACGAACGTAA",
        "AAGTACGTACTTAC",
        "ACGTTCGTACGTAA",
    ];
    let names = (0..4).map(|taxon| format!("t{taxon}")).collect();
    let rows = rows.iter().map(|row| row.as_bytes().to_vec()).collect();
    let alignment = Alignment::new(names, rows).unwrap();
    let all = Patterns::new(&alignment, Alphabet::Dna).unwrap();
    let column = |set: &Patterns, at: usize| [0, 1, 2, 3].map(|taxon| set.codes(taxon)[at]);
    let mut random = Random::new(7);
    let mut hits = vec![0.0; all.len()];
    const TIMES: u32 = 2_000;
    for _ in 0..TIMES {
        let own = all.resampled(&mut random);
        assert_eq!(own.weights().iter().sum::<u32>(), 14);
        assert!(own.weights().iter().all(|&weight| weight > 0));
        let mut counted = vec![0; own.len()];
        own.site_patterns()
            .for_each(|(_, pattern)| counted[pattern] += 1);
        assert_eq!(counted, own.weights());
        let mut last = None;
        for pattern in 0..own.len() {
            let from = (0..all.len()).find(|&at| column(&all, at) == column(&own, pattern));
            assert!(from > last, "{from:?} after {last:?}: order is kept");
            last = from;
            hits[from.unwrap()] += f64::from(own.weights()[pattern]);
        }
    }
    for (hits, &weight) in hits.iter().zip(all.weights()) {
        let expected = f64::from(weight * TIMES);
        // Five standard deviations of a binomial count.
        assert!(
            (hits - expected).abs() < 5.0 * expected.sqrt(),
            "{hits} {expected}"
        );
    }
    // A jackknife keeps each site once at most, with its place.
    let mut there = [0_u32; 14];
    for seed in 0..200 {
        let own = all.jackknifed(0.5, &mut Random::new(seed));
        assert_eq!((own.sites(), own.weights().iter().sum::<u32>()), (7, 7));
        let sites: Vec<(usize, usize)> = own.site_patterns().collect();
        assert!(sites.is_sorted_by(|(one, _), (other, _)| one < other));
        for (site, pattern) in sites {
            there[site] += 1;
            let from = all.site_patterns().find(|(other, _)| *other == site);
            assert_eq!(column(&all, from.unwrap().1), column(&own, pattern));
        }
    }
    assert!(
        there.iter().all(|&times| times.abs_diff(100) < 40),
        "{there:?}"
    );
    let again = |seed| all.resampled(&mut Random::new(seed)).weights().to_vec();
    assert_eq!(again(3), again(3));
}

#[test]
fn files_of_all_ages_are_read() {
    // Lines that end with a carriage return alone; PHYLIP's options; blanks around.
    same("4 10\rone ACGT-ACGTN\rtwo ACGTTACGTA\rthree_3 ACGTAACGRA\r4th ACTTTACG?A\r");
    same(">one\rACGT-ACGTN\r>two\rACGTTACGTA\r>three_3\rACGTAACGRA\r>4th\rACTTTACG?A");
    same("4 10 I\none ACGT-\ntwo ACGTT\nthree_3 ACGTA\n4th ACTTT\n\nACGTN\nACGTA\nACGRA\nACG?A\n");
    same(
        "\n\t4\t10\t\n\n one\tACGT-\tACGTN \t\n two\tACGTTACGTA\n\n three_3 ACGTAACGRA\n\
         4th ACTTTACG?A\n\n",
    );
    // Strict: names of ten columns, with nothing between them and the sequence.
    same(
        "4 10\none       ACGT-ACGTN\ntwo       ACGTTACGTA\n\
         three 3   ACGTAACGRA\n4th       ACTTTACG?A\n",
    );
    let text = "4 6\nHomo sapieACGTAC\nPan trogloACGTAA\nGorilla   ACGTAG\nPongo pygmACG\nTAT\n";
    let strict = Alignment::parse(text.as_bytes()).unwrap();
    assert_eq!(
        strict.names(),
        ["Homo_sapie", "Pan_troglo", "Gorilla", "Pongo_pygm"]
    );
    assert_eq!(strict.row(3), b"ACGTAT");
    let long = "x".repeat(5_000);
    let text = format!(">{long}1 a comment\nAC\n>{long}2\nAC\n>c\nAC\n>d\nac");
    let names = Alignment::parse(text.as_bytes()).unwrap();
    assert_eq!(names.names()[1].len(), 5_001);
}

#[test]
fn clustal_and_stockholm_read_as_the_others() {
    let blocks = "\n\none      ACGT-A 6\ntwo      ACGTTA 6\nthree_3  ACGTAA 6\n4th      ACTTTA 6\n\
        \x20        **.*:*\n\none      CGTN 10\ntwo      CGTA 10\nthree_3  CGRA 10\n\
        4th      CG?A 10\n         **  \n";
    for head in [
        "CLUSTAL W (1.83) multiple sequence alignment",
        "CLUSTAL O(1.2.4) multiple sequence alignment\n",
        "MUSCLE (3.8) multiple sequence alignment",
        "Kalign (2.0) alignment in ClustalW format",
    ] {
        same(&format!("{head}{blocks}"));
    }
    same(
        "# STOCKHOLM 1.0\n#=GF ID test\n\none ACGT.A\n#=GR one SS ......\ntwo ACGTTA\n\
         three_3 ACGTAA\n4th ACTTTA\n#=GC RF xxxxxx\n\none CGTN\ntwo CGTA\nthree_3 CGRA\n\
         4th CG?A\n//\n# STOCKHOLM 1.0\nother A\n//\n",
    );
    let two = "# STOCKHOLM 1.0\na A\nb A\nc A\nd C\n//\n# STOCKHOLM 1.0\ne A\n//\n";
    let said = Alignment::parse(two.as_bytes()).unwrap().warnings()[0].to_string();
    assert_eq!(said, "alignments in the file after the first: 1, left out");
    let clustal = |text: &str| error(&format!("CLUSTAL\n\n{text}"));
    for (text, line, what) in [
        ("a AC\nb AC\nc AC\nd AC\n\na AC\nc AC\n", 9, "`c` where `b`"),
        (
            "a AC\nb AC\nc AC\nd AC\n\na AC\n\na AC\n",
            9,
            "ends before `b`",
        ),
        (
            "a AC\nb AC\nc AC\nd AC\n\na A\nb A\nc A\nd A\ne A\n",
            12,
            "`e` where a blank",
        ),
        ("a AC\nb\n", 4, "a name without characters"),
        ("a A#\n", 3, "`#` cannot stand"),
        ("a AC 2 AC\n", 3, "after the line's count"),
    ] {
        let said = clustal(text);
        assert!(
            said.starts_with(&format!("Clustal, line {line}: ")) && said.contains(what),
            "{text}: {said}"
        );
    }
    assert!(clustal("a AC\na AC\nb AC\nc AC\n").contains("1: `a` (2)"));
    assert!(
        clustal("a AC\nb AC\nc AC\nd AC\n\na A\n").contains("line 9: the block ends before `b`")
    );
    assert!(clustal("").contains("0 taxa"));
}

#[test]
fn dots_are_what_their_format_says() {
    // NEXUS that names another gap can only mean the first sequence's character.
    let nexus = |gap: &str| {
        format!(
            "#NEXUS begin data; dimensions nchar=10; format {gap}; matrix one ACGT-ACGTN \
             two ....T....A three_3 ....A...RA 4th ..T.T...?A; end;"
        )
    };
    same(&nexus("gap=-"));
    assert!(error(&nexus("missing=?")).starts_with("`two`, site 1: `.` is a gap to some"));
    // PHYLIP: the first sequence's character.
    same("4 10\none ACGT-ACGTN\ntwo ....T....A\nthree_3 ....A...RA\n4th ..T.T...?A\n");
    // In the first sequence it can only be a gap.
    same(">one\nACGT.ACGTN\n>two\nACGTTACGTA\n>three_3\nACGTAACGRA\n>4th\nACTTTACG?A");
    let text = ">a\nACGT\n>b\n.CGA\n>c\nACGT\n>d\nACGT";
    let said = error(text);
    assert!(
        said.starts_with("`b`, site 1: `.` is a gap to some"),
        "{said}"
    );
}

#[test]
fn digits_and_signs_are_read_where_they_must_be() {
    for text in [
        "4 5\na 01?-1\nb 01011\nc 11001\nd 00011\n",
        ">a\n01?-1\n>b\n01011\n>c\n11001\n>d\n00011\n",
        "4 5\na 01?\nb 010\nc 110\nd 000\n\n-1\n11\n01\n11\n",
        "#NEXUS\nbegin data; dimensions ntax=4 nchar=5; format symbols=\"01\" gap=-;\n\
         matrix a 01?-1 b 01011 c 11001 d 00011; end;",
    ] {
        let alignment = Alignment::parse(text.as_bytes()).unwrap();
        assert_eq!(alignment.row(0), b"01?-1", "{text}");
        assert_eq!(alignment.row(3), b"00011", "{text}");
        let binary = Patterns::new(&alignment, Alphabet::Binary).unwrap();
        assert_eq!((binary.sites(), binary.constant_sites()), (5, 2));
        let many = Patterns::new(&alignment, Alphabet::Multistate(64)).unwrap();
        assert_eq!(many.codes(1), binary.codes(1));
        let wrong = Patterns::new(&alignment, Alphabet::Dna)
            .unwrap_err()
            .to_string();
        assert!(wrong.contains("`0` is no DNA character"), "{wrong}");
    }
    // A file that fits neither format gives the same error as before.
    assert!(error("4 5\na AC1\nb ACG\nc ACG\nd ACG\n").contains("`1`"));
}

#[test]
fn alphabets_have_their_states_and_codes() {
    let all = [
        Alphabet::Dna,
        Alphabet::Protein,
        Alphabet::Binary,
        Alphabet::Multistate(5),
        Alphabet::Multistate(64),
        Alphabet::Genotype,
        Alphabet::PhasedGenotype,
        Alphabet::Codon(GeneticCode::STANDARD),
        Alphabet::Codon(GeneticCode::new(2).unwrap()),
        Alphabet::Codon(GeneticCode::new(6).unwrap()),
    ];
    for alphabet in all {
        let (states, masks) = (alphabet.states(), alphabet.masks());
        let every = masks.iter().fold(0, |all, mask| all | mask);
        assert_eq!(every.count_ones() as usize, states, "{alphabet}");
        assert_eq!(masks[usize::from(alphabet.unknown())], every, "{alphabet}");
        let mut site = vec![0; alphabet.width()];
        for state in 0..states {
            alphabet.write(state, &mut site);
            let code = alphabet.code_of(&site).unwrap();
            assert!(
                masks[usize::from(code)] >> state & 1 == 1,
                "{alphabet} {state}"
            );
            if let Some(own) = alphabet.code_of_state(state) {
                assert_eq!(own, code, "{alphabet} {state}");
            }
        }
        let missing = vec![b'-'; alphabet.width()];
        assert_eq!(
            alphabet.code_of(&missing),
            Some(alphabet.unknown()),
            "{alphabet}"
        );
        assert_eq!(alphabet.code_of(&vec![b'\x07'; alphabet.width()]), None);
    }
    assert_eq!(Alphabet::Multistate(12).code(b'b'), Some(11));
    assert_eq!(Alphabet::Multistate(11).code(b'b'), None);
}

#[test]
fn codons_are_three_columns_each() {
    let text = "4 9\na AAATTTCCC\nb AAATTYCCC\nc AAGTTT---\nd AAATTTCCC\n";
    let alignment = Alignment::parse(text.as_bytes()).unwrap();
    let patterns = Patterns::new(&alignment, Alphabet::Codon(GeneticCode::STANDARD)).unwrap();
    assert_eq!((patterns.sites(), patterns.len()), (3, 3));
    // An ambiguous base leaves the codon open.
    assert_eq!(patterns.constant_sites(), 2);
    assert_eq!(patterns.alignment_sites(), (0..9).collect::<Vec<u32>>());
    let first: Vec<usize> = patterns.site_patterns().map(|(column, _)| column).collect();
    assert_eq!(first, [0, 3, 6]);
    let odd = Patterns::of_sites(
        &alignment,
        Alphabet::Codon(GeneticCode::STANDARD),
        vec![0, 1, 2, 3],
    );
    assert!(odd.unwrap_err().to_string().contains("4 columns"));
    let stop = Alignment::parse(b">a\nTAA\n>b\nAAA\n>c\nAAA\n>d\nAAA\n").unwrap();
    let stop = Patterns::new(&stop, Alphabet::Codon(GeneticCode::STANDARD))
        .unwrap_err()
        .to_string();
    assert!(stop.contains("`TAA` is no codon character"), "{stop}");
}

#[test]
fn genetic_codes_have_stops_of_their_own() {
    let read = |code: u8, site: &str| {
        let alphabet = Alphabet::Codon(GeneticCode::new(code).unwrap());
        let code = alphabet.code_of(site.as_bytes());
        code.map(|code| (code, alphabet.unknown()))
    };
    // TGA, the standard code's stop, is tryptophan in vertebrates' mitochondria, and AGA is not R.
    assert_eq!(read(1, "TGA"), None);
    assert!(read(2, "TGA").is_some_and(|(code, unknown)| code < unknown));
    assert!(read(1, "AGA").is_some() && read(2, "AGA").is_none());
    assert_eq!(read(2, "TGN"), Some((60, 60)));
    assert_eq!(read(6, "TAG").unwrap().1, 63);
    assert_eq!(GeneticCode::numbers().count(), 19);
    assert!(
        [0, 7, 8, 17, 20, 26, 27]
            .iter()
            .all(|&code| GeneticCode::new(code).is_none())
    );
}

#[test]
fn two_readings_of_a_phylip_file_are_none() {
    // Names of ten letters, groups of ten characters: taxon by taxon or in blocks, both come out.
    let name = |letter: char| letter.to_string().repeat(10);
    let group = "ACGTACGTAC";
    let mut text = "4 50\n".to_owned();
    for letter in ['A', 'C', 'G', 'T'] {
        text += &format!("{} {group} {group}\n", name(letter));
    }
    for _ in 0..4 {
        text += &format!("{group} {group} {group}\n");
    }
    let said = error(&text);
    assert!(said.contains("taxon by taxon and in blocks"), "{said}");
    // One reading, or two that are the same.
    same("4 10\none ACGT-\nACGTN\ntwo ACGTT\nACGTA\nthree_3 ACGTAACG\nRA\n4th ACTTT\nACG?A\n");
}

#[test]
fn what_is_read_as_unknown_is_counted() {
    let text = ">a\nMKV*O-X~?\n>b\nMKV*-BZJ?\n>c\nMKVLL---?\n>d\nMKVLLoLL*\n";
    let proteins = Alignment::parse(text.as_bytes()).unwrap();
    let part = Patterns::new(&proteins, Alphabet::Protein).unwrap();
    assert_eq!(part.unread(), [(b'*', 3), (b'O', 1), (b'o', 1)]);
    let warnings = Findings::of(&proteins, [&part]).warnings(&proteins);
    assert_eq!(
        warnings[0].to_string(),
        "characters that the model does not have: 5, read as unknown: `*` (3), `O`, `o`"
    );
    let text = ">a\nACGANA---NNN\n>b\nACGAAA---AC-\n>c\nACGACA???ACG\n>d\nacrACA---ACG\n";
    let codons = Alignment::parse(text.as_bytes()).unwrap();
    let part = Patterns::new(&codons, Alphabet::Codon(GeneticCode::STANDARD)).unwrap();
    let warnings = Findings::of(&codons, [&part]).warnings(&codons);
    assert_eq!(
        warnings[0].to_string(),
        "codons that are not three known bases: 3, read as unknown"
    );
    let stop = text.replace("ACGACA???ACG", "ACGTAA???ACG");
    let stop = Alignment::parse(stop.as_bytes()).unwrap();
    let error = Patterns::new(&stop, Alphabet::Codon(GeneticCode::STANDARD)).unwrap_err();
    assert!(error.to_string().contains("`TAA` is no codon"), "{error}");
}

#[test]
fn names_that_are_no_text_are_counted() {
    let bytes = b">a\xFF\nAC\n>b\nAC\n>c\nAC\n>d\xE9\nAG\n";
    let found = Alignment::parse(bytes).unwrap();
    let said = found.warnings()[0].to_string();
    assert!(said.contains("no UTF-8: 2"), "{said}");
}
