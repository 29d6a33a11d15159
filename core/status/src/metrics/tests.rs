//! The text, read by a strict parser.

use super::strict::parse;
use super::*;
use serde_json::json;

#[test]
fn names_units_and_labels_are_as_the_format_wants_them() {
    let hostile = "a\"b\\c\nd\u{202e}";
    let text = text(vec![
        Metric::counter("image_read", "Bytes of reads.")
            .in_unit(Unit::Bytes)
            .sample(&[("image", hostile)], &json!(u64::MAX))
            .sample(&[("image", "b")], &json!(2.5)),
        Metric::gauge("engines", "Engines.").sample(&[], &json!(-3)),
        Metric::counter("nothing", "Left out.")
            .sample(&[], &json!("x"))
            .sample(&[], &json!(-1)),
    ]);
    let samples = parse(&text).unwrap();
    assert_eq!(samples.len(), 3, "{text}");
    assert_eq!(samples[0].0, "sidecore_image_read_bytes_total");
    assert_eq!(samples[0].1, [("image".to_owned(), hostile.to_owned())]);
    assert!(text.contains("18446744073709551615"), "{text}");
    assert!(text.contains("\nsidecore_engines -3.0\n"), "{text}");
    assert_eq!(
        samples[2],
        ("sidecore_engines".to_owned(), Vec::new(), -3.0)
    );
    assert!(
        text.contains("# UNIT sidecore_image_read_bytes bytes\n"),
        "{text}"
    );
}

#[test]
fn the_parser_names_the_rule_that_is_broken() {
    let head = "# HELP sidecore_a A.\n# TYPE sidecore_a counter\n";
    let good = format!("{head}sidecore_a_total{{b=\"c\\n\"}} 1\n# EOF\n");
    let labels = vec![("b".to_owned(), "c\n".to_owned())];
    let sample = ("sidecore_a_total".to_owned(), labels, 1.0);
    assert_eq!(parse(&good), Ok(vec![sample]));
    for (lines, rule) in [
        ("sidecore_a_total 1", "the last line"),
        ("sidecore_a 1\n# EOF\n", "follows its family"),
        ("sidecore_a_total -1\n# EOF\n", "negative"),
        ("sidecore_a_total one\n# EOF\n", "NAME{LABELS} VALUE"),
        ("sidecore_a_total{b=\"c} 1\n# EOF\n", "quote"),
        ("sidecore_a_total{b=\"\\x\"} 1\n# EOF\n", "escapes"),
        ("sidecore_a_total{b=\"1\",b=\"2\"} 1\n# EOF\n", "once"),
        ("sidecore_a_total{B=\"1\"} 1\n# EOF\n", "names of labels"),
        ("# UNIT sidecore_a seconds\n# EOF\n", "unit"),
        ("# TYPE sidecore_b summary\n# EOF\n", "types"),
        ("# INFO sidecore_a x\n# EOF\n", "words"),
        ("# HELP\n# EOF\n", "describes"),
        (
            "# HELP sidecore_b B.\n# HELP sidecore_a A.\n# EOF\n",
            "one place",
        ),
    ] {
        let refused = parse(&format!("{head}{lines}")).unwrap_err().to_string();
        assert!(refused.contains(rule), "{lines}: {refused}");
    }
}
