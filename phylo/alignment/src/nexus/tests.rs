//! NEXUS as its authors describe it: accepted input, refusals, and warnings.

use crate::{Alignment, Alphabet, Findings, Patterns};

fn read(text: &str) -> Alignment {
    Alignment::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refused(text: &str) -> String {
    let said = match Alignment::parse(text.as_bytes()) {
        Ok(read) => panic!("read as {:?}\n{text}", rows(&read)),
        Err(error) => error.to_string(),
    };
    assert!(!said.contains('\n'), "{said}");
    said
}

fn rows(alignment: &Alignment) -> Vec<(&str, &str)> {
    let names = alignment.names().iter().enumerate();
    names
        .map(|(at, name)| {
            (
                name.as_str(),
                std::str::from_utf8(alignment.row(at)).unwrap(),
            )
        })
        .collect()
}

fn warnings(alignment: &Alignment) -> Vec<String> {
    alignment
        .warnings()
        .iter()
        .map(ToString::to_string)
        .collect()
}

const ROWS: [(&str, &str); 4] = [("a", "ACGT"), ("b", "AC-T"), ("c", "AA?T"), ("d", "ACGG")];

/// A data block with this FORMAT and matrix.
fn block(format: &str, matrix: &str) -> String {
    format!(
        "#NEXUS\nbegin taxa;\ndimensions ntax=4;\ntaxlabels a b c d;\nend;\nbegin characters;\n\
         dimensions nchar=4;\nformat {format};\nmatrix\n{matrix};\nend;\n"
    )
}

#[test]
fn every_way_to_write_the_same_matrix() {
    for (format, matrix) in [
        ("datatype=dna", "a ACGT\nb AC-T\nc AA?T\nd ACGG\n"),
        ("datatype=dna nolabels", "ACGT\nAC-T\nAA?T\nACGG\n"),
        ("datatype=dna labels=no", "AC\nGT\nAC-T\nAA?T\nACGG\n"),
        ("nolabels interleave", "AC\nAC\nAA\nAC\n\nGT\n-T\n?T\nGG\n"),
        ("labels=left datatype=DNA", "a ACGT b AC-T c AA?T d ACGG"),
        (
            "datatype=dna interleave=yes",
            "a AC\nb AC\nc AA\nd AC\na GT\nb -T\nc ?T\nd GG\n",
        ),
        // Rows by the numbers of their taxa.
        ("datatype=dna", "1 ACGT\n2 AC-T\n3 AA?T\n4 ACGG\n"),
        (
            "datatype=dna missing=x gap=~",
            "a ACGT\nb AC~T\nc AAXT\nd ACGG\n",
        ),
        (
            "datatype=dna missing='?' gap=\"-\"",
            "a ACGT\nb AC-T\nc AA?T\nd ACGG\n",
        ),
        (
            "datatype=dna missing=?gap=-",
            "a ACGT\nb AC-T\nc AA?T\nd ACGG\n",
        ),
        (
            "datatype=dna matchchar=.",
            "a ACGT\nb ..-.\nc .A?.\nd ...G\n",
        ),
        (
            "datatype=dna equate=\"R=A z = { C } .=(G)\"",
            "a Rz.T\nb Rz-T\nc RR?T\nd Rz.G\n",
        ),
        (
            "datatype=dna equate=\"n=? q=-\"",
            "a ACGT\nb ACqT\nc AAnT\nd ACGG\n",
        ),
        (
            "datatype=dna items=states statesformat=statespresent",
            "a ACGT b AC-T c AA?T d ACGG",
        ),
        (
            "datatype=nucleotide respectcase symbols=\"ACGT\"",
            "a ACGT b AC-T c AA?T d ACGG",
        ),
    ] {
        let text = block(format, matrix);
        let found = read(&text);
        assert_eq!(rows(&found), ROWS, "{text}");
        // A set in parentheses is read as one in braces, with a warning.
        assert_eq!(warnings(&found), [""; 0], "{text}");
    }
}

#[test]
fn sets_of_states_are_the_letters_that_stand_for_them() {
    let matrix = "a {AG}CGT\nb {A C}(AC)-T\nc A{ACGT}?{T}\nd {GA,C}C{A-}G\n";
    let found = read(&block("datatype=dna", matrix));
    let expected = [("a", "RCGT"), ("b", "MM-T"), ("c", "AN?T"), ("d", "VC?G")];
    assert_eq!(rows(&found), expected);
    let said = warnings(&found);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("several states at once, `(…)`: 1"),
        "{said:?}"
    );
    let matrix = "a {ND}CGT\nb {EQ}C-T\nc AA?T\nd {IL}CGG\n";
    let found = read(&block("datatype=protein", matrix));
    assert_eq!(found.row(0)[0], b'B');
    assert_eq!([found.row(1)[0], found.row(3)[0]], *b"ZJ");
    // Sets without a letter are codes of their own, equal sets one.
    let matrix = "a 00{01}1\nb 01(12)1\nc 01{1,0}1\nd 101{1?}\n";
    let found = read(&block("datatype=standard symbols=\"012\"", matrix));
    assert_eq!(found.multistates(), Some(3));
    let phylip = String::from_utf8(found.to_phylip()).unwrap();
    assert!(
        phylip.contains("{01}1\n") && phylip.contains("b 01{12}1\n"),
        "{phylip}"
    );
    let states = |alphabet, taxon: usize, site: usize| {
        let patterns = Patterns::new(&found, alphabet).unwrap();
        let (_, pattern) = patterns
            .site_patterns()
            .find(|(at, _)| *at == site)
            .unwrap();
        patterns.masks()[usize::from(patterns.codes(taxon)[pattern])]
    };
    let three = Alphabet::Multistate(3);
    assert_eq!(
        [0, 1, 2].map(|taxon| states(three, taxon, 2)),
        [0b011, 0b110, 0b011]
    );
    assert_eq!([states(three, 3, 2), states(three, 3, 3)], [0b010, 0b111]);
    let error = Patterns::new(&found, Alphabet::Binary).unwrap_err();
    assert!(
        error.to_string().contains("`12` is no binary character"),
        "{error}"
    );
    let matrix = "a {AR}CGT\nb ACGT\nc {RA}CGT\nd ACGT\n";
    let found = read(&block("datatype=protein", matrix));
    let patterns = Patterns::new(&found, Alphabet::Protein).unwrap();
    assert!(patterns.masks().ends_with(&[0b11]));
    // Symbols that EQUATE makes sets may be in sets themselves.
    let format = "datatype=standard symbols=\"0123\" equate=\"x={01}\"";
    let found = read(&block(format, "a 0x1{x2}\nb 0111\nc 0110\nd 3111\n"));
    assert_eq!(
        (found.set_of(found.row(0)[1]), found.set_of(found.row(0)[3])),
        (&b"01"[..], &b"012"[..])
    );
    // No file has more sets than there are bytes for them.
    let mut matrix = String::from("a ");
    for set in 1..200_u32 {
        let members = (0..10).filter(|state| (set << 1 | 1) >> state & 1 == 1);
        let members: String = members.map(|state| state.to_string()).collect();
        matrix.push_str(&format!("{{{members}}}"));
    }
    let many = block("datatype=standard", &matrix).replace("nchar=4", "nchar=199");
    assert!(refused(&many).contains("more than 128 different sets"));
    let said = refused(&block("datatype=dna", "a {AGCGT\nb ACGT\nc ACGT\nd ACGT\n"));
    assert!(said.contains("is not closed"), "{said}");
}

#[test]
fn what_is_not_followed_is_refused_by_name() {
    let matrix = "a ACGT\nb AC-T\nc AA?T\nd ACGG\n";
    for (format, what) in [
        ("transpose", "FORMAT TRANSPOSE is not read"),
        ("datatype=standard tokens", "FORMAT TOKENS is not read"),
        ("datatype=continuous", "DATATYPE=CONTINUOUS is not read"),
        (
            "datatype=mixed(DNA:1-2,Standard:3-4)",
            "DATATYPE=MIXED(DNA:1-2,STANDARD:3-4) is not",
        ),
        ("statesformat=count", "STATESFORMAT=COUNT is not read"),
        ("items=(min max)", "ITEMS=(MIN is not read"),
        ("labels=right", "LABELS: only names left"),
        (
            "datatype=dna symbols=\"ACGTQ\"",
            "SYMBOLS adds the state `Q`",
        ),
        (
            "datatype=standard respectcase symbols=\"AaCGT\"",
            "RESPECTCASE makes two states",
        ),
        (
            "datatype=standard symbols=\"AC\"",
            "`G` is none of the SYMBOLS",
        ),
        ("datatype=dna equate=\"R=\"", "EQUATE wants pairs"),
        ("datatype=dna equate=R", "EQUATE wants pairs"),
        ("datatype=dna newoption=1", "FORMAT NEWOPTION is not known"),
        ("datatype=dna missing=xx", "several characters where one"),
        ("datatype=dna missing=", "names no character"),
    ] {
        let said = refused(&block(format, matrix));
        assert!(said.contains(what), "{format}: {said}");
    }
    let whole = block("datatype=dna", matrix);
    let more =
        format!("{whole}begin characters;\nformat datatype=dna;\nmatrix a A b A c A d A;\nend;");
    assert!(refused(&more).contains("a second DATA or CHARACTERS block"));
    let more = whole.replace("matrix\n", "eliminate 2-3;\nmatrix\n");
    assert!(refused(&more).contains("ELIMINATE leaves characters out"));
}

#[test]
fn sizes_and_names_must_go_together() {
    let matrix = "a ACGT\nb AC-T\nc AA?T\nd ACGG\n";
    let whole = block("datatype=dna", matrix);
    for (text, what) in [
        (
            whole.replace("ntax=4", "ntax=5"),
            "4 taxa are there, the header says 5",
        ),
        (whole.replace("nchar=4", "nchar=x"), "NCHAR=x is no number"),
        (
            whole.replace("nchar=4", "nchar=5"),
            "`AC-T` is none of the TAXLABELS; is NCHAR right?",
        ),
        (
            whole.replace("nchar=4", "nchar=2"),
            "is none of the TAXLABELS",
        ),
        (
            whole.replace("c AA?T", "x AA?T"),
            "`x` is none of the TAXLABELS",
        ),
        (
            whole.replace("c AA?T", "a AA?T"),
            "names of several sequences",
        ),
        (
            block("nolabels", "ACGT\nAC-T\nAA?T\n"),
            "3 taxa are there, the header says 4",
        ),
        (
            block("nolabels", "ACGT\nAC-T\nAA?T\nACGG\nACGG\n"),
            "more rows than the 4",
        ),
        (
            block("nolabels", matrix).replace("taxlabels a b c d;", ""),
            "no TAXLABELS before the matrix",
        ),
        (
            "#NEXUS\nbegin data;\ndimensions nchar=2;\nformat datatype=dna;\nmatrix\na ACGT\n\
             b ACGT\nc ACGT\nd ACGT\n;\nend;"
                .to_owned(),
            "",
        ),
    ] {
        let said = refused(&text);
        assert!(said.contains(what), "{what}: {said}");
    }
    let listed = whole
        .replace("ntax=4", "ntax=6")
        .replace("a b c d;", "a b e 'c' d f;");
    let found = read(&listed);
    assert_eq!(rows(&found), ROWS);
    let said = warnings(&found);
    assert!(said[0].contains("2 of 6, left out: `e`, `f`"), "{said:?}");
}

#[test]
fn commands_of_other_blocks_that_would_change_the_data_are_warned_of() {
    let matrix = "a ACGT\nb AC-T\nc AA?T\nd ACGG\n";
    let whole = block("datatype=dna", matrix);
    for (more, expected) in [
        // In effect where marked.
        (
            "begin assumptions; exset * mine = 2; wtset * w = 2:1-3; end;",
            Some("2, not followed"),
        ),
        (
            "begin paup; exclude 1-2; delete b; end;",
            Some("DELETE, EXCLUDE"),
        ),
        ("begin mrbayes; exclude 2; end;", Some(": EXCLUDE")),
        ("begin assumptions; exset mine = 2; end;", None),
        (
            "begin assumptions; exset * UNTITLED = ; typeset * u = unord: 1-4; end;",
            None,
        ),
        ("begin sets; charset x = 1-2; taxset y = a b; end;", None),
        ("begin notes; text t='exclude; delete 2;'; end;", None),
    ] {
        let found = read(&format!("{whole}{more}"));
        assert_eq!(rows(&found), ROWS);
        let said = warnings(&found);
        assert_eq!(
            said.len(),
            usize::from(expected.is_some()),
            "{more}: {said:?}"
        );
        if let Some(expected) = expected {
            assert!(said[0].contains(expected), "{more}: {said:?}");
        }
        // Findings have them, so that every command and the Python module print them.
        let patterns = Patterns::new(&found, Alphabet::Dna).unwrap();
        let all = Findings::of(&found, [&patterns]).warnings(&found);
        assert_eq!(
            all.iter().filter(|w| said.contains(&w.to_string())).count(),
            said.len()
        );
    }
}

#[test]
fn quotes_comments_and_labels_of_characters() {
    let text = "#NEXUS\n[ID: 'x]\nbegin taxa;\ndimensions ntax=4;\n\
                taxlabels 'a[1]' 'b''s' c_3 'd e';\n\
        end;\nbegin characters;\ntitle 'one; two';\ndimensions nchar=4;\nformat datatype=dna;\n\
        charstatelabels 1 'length; of wing' / 'a;b' c, 2 eye;\noptions gapmode=missing;\n\
        matrix\n'a[1]' ACGT\n'b''s' AC-T\nc_3 A[two]A?T\n'd e' ACGG\n;\nend;\n";
    let found = read(text);
    let expected = [
        ("a[1]", "ACGT"),
        ("b's", "AC-T"),
        ("c_3", "AA?T"),
        ("d_e", "ACGG"),
    ];
    assert_eq!(rows(&found), expected);
    assert_eq!(warnings(&found), [""; 0]);
    let newstate = text.replace("gapmode=missing", "gapmode=newstate");
    assert!(warnings(&read(&newstate))[0].contains("OPTIONS"));
}
