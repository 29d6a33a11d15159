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
    let samples = parse(&text);
    assert_eq!(samples.len(), 3, "{text}");
    assert_eq!(samples[0].0, "sidecore_image_read_bytes_total");
    assert_eq!(samples[0].1, [("image".to_owned(), hostile.to_owned())]);
    assert!(text.contains("18446744073709551615"), "{text}");
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
#[should_panic(expected = "twice")]
fn the_parser_refuses_a_family_in_two_parts() {
    parse(
        "# TYPE sidecore_a gauge\nsidecore_a 1\n# TYPE sidecore_b gauge\nsidecore_b 1\n\
           # TYPE sidecore_a gauge\nsidecore_a 2\n# EOF\n",
    );
}

#[test]
#[should_panic(expected = "sidecore_a")]
fn the_parser_refuses_a_counter_without_its_ending() {
    parse("# TYPE sidecore_a counter\nsidecore_a 1\n# EOF\n");
}
