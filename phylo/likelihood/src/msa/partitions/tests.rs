//! Partition files of both styles, and their faults.

use super::*;

#[test]
fn partition_files_as_raxml_has_them() {
    let text = "# genes\nGTR+G, one = 1-4, 9\n\n\
        HKY{1/2}+FU{0.1/0.2/0.3/0.4}, two=5-8\\2\nDNA,three=6-8/2,10\n";
    let found = parse(text, 10).unwrap();
    let view: Vec<_> = found
        .iter()
        .map(|p| (p.model.as_str(), p.name.as_str(), p.sites.clone()))
        .collect();
    assert_eq!(
        view,
        [
            ("GTR+G", "one", vec![0, 1, 2, 3, 8]),
            ("HKY{1/2}+FU{0.1/0.2/0.3/0.4}", "two", vec![4, 6]),
            ("DNA", "three", vec![5, 7, 9]),
        ]
    );
    let error = |text: &str| parse(text, 10).unwrap_err();
    assert!(matches!(
        error("GTR, a = 1-10\nGTR, b = 3"),
        PartitionError::Twice { site: 3, .. }
    ));
    assert!(matches!(
        error("GTR, a = 1-8"),
        PartitionError::Missing { site: 9, count: 2 }
    ));
    assert!(matches!(
        error("GTR, a = 1-11"),
        PartitionError::Line { line: 1, .. }
    ));
    assert!(matches!(
        error("GTR, a = 1-4, 4-10"),
        PartitionError::Twice { site: 4, .. }
    ));
    for text in [
        "",
        "GTR a = 1-10",
        "GTR, a",
        "GTR, a = 10-1",
        "GTR, a = 0-3",
        "GTR, = 1-10",
        "x",
    ] {
        assert!(parse(text, 10).is_err(), "{text}");
    }
}

#[test]
fn nexus_sets_are_partitions() {
    let text = "#nexus\n[made by hand]\nBegin sets;\n  CharSet one = 1 - 4, 9;\n\
        charset odd = 5-8\\2;\n charset rest = 6 - 8 \\ 2 10-.;\ncharset both = odd rest;\n\
        charset unused = 1-99;\n charpartition other = JC:unused;\n\
        charpartition * mine = GTR{1/1/1/1/1/1}+G:one, HKY:both;\nEnd;\n";
    let found = parse(text, 10).unwrap();
    let lines = "GTR{1/1/1/1/1/1}+G, one = 1-4, 9\nHKY, both = 5-8\\2, 6-8\\2, 10-.\n";
    assert_eq!(found, parse(lines, 10).unwrap());
    assert_eq!(found[1].sites, [4, 6, 5, 7, 9]);
    let all = "#NEXUS begin sets; charpartition p = JC : all; end;";
    assert_eq!(parse(all, 3).unwrap()[0].sites, [0, 1, 2]);
    // Without a charpartition each charset counts, its model to be chosen.
    let alone = "#NEXUS\nbegin sets;\ncharset one=1-4 6;\ncharset 'the other' = 5;\nend;";
    let alone = parse(alone, 6).unwrap();
    assert_eq!(alone[0].sites, [0, 1, 2, 3, 5]);
    assert_eq!(
        (alone[1].model.as_str(), alone[1].name.as_str()),
        ("auto", "the_other")
    );
    let error = |sets: &str| {
        let said = parse(&format!("#NEXUS\nbegin sets;\n{sets}"), 10);
        let said = said.unwrap_err().to_string();
        assert!(!said.contains('\n'), "{said}");
        said
    };
    for (sets, line, what) in [
        ("taxset a = 1-10;", 3, "no charpartition"),
        ("charset a = 1-5;\ncharset b = 6-11;", 4, "beyond"),
        ("charset a 1-10;\n", 3, "charset without `=`"),
        ("charset a = , ;\n", 3, "without a name or a value"),
        (
            "charset a = 1-4;\ncharset A = 5-10;",
            4,
            "charset `A` twice",
        ),
        (
            "charset a = 1-10;\n\ncharpartition p = JC:b;",
            5,
            "`b` is neither",
        ),
        (
            "charset a = 1-10;\ncharpartition p = a;",
            4,
            "`a` is no MODEL:CHARSET",
        ),
        (
            "charset a = a;\ncharpartition p = JC:a;",
            3,
            "`a` is neither",
        ),
        (
            "charset a = x.phy:1-10;\ncharpartition p = JC:a;",
            3,
            "`x.phy:1-10` is",
        ),
        (
            "charset a = 1-11;\ncharpartition p = JC:a;",
            3,
            "beyond the alignment's 10",
        ),
        (
            "charpartition p = JC:1;\ncharpartition q = JC:2;",
            4,
            "a second",
        ),
        (
            "charset a = 1-10;\nexset * out = 3;",
            4,
            "EXSET leaves sites out",
        ),
        ("[", 3, "comment is not closed"),
    ] {
        let said = error(sets);
        let place = format!("line {line}: ");
        assert!(
            said.contains(what) && said.contains(&place),
            "{sets}: {said}"
        );
    }
    assert!(error("charpartition p = JC:1-9;").contains("site 10 is in no partition"));
    assert!(error("charpartition p = JC:1-9 3;").contains("site 3 is in `1-9_3`"));
    // Charsets that double each other end at the first site that comes twice.
    let doubled: String = (1..200)
        .map(|i| format!("charset s{i} = s{} s{0};\n", i - 1))
        .collect();
    let text = format!("charset s0 = 1;\n{doubled}charpartition p = JC:s199;");
    assert!(error(&text).contains("site 1 is in `s199` and in `s199`"));
}
