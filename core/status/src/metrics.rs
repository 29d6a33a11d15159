//! Metrics as OpenMetrics text, by the library of Prometheus' authors, and as OTLP has them.
//!
//! Why here: the products have tables of what they count; one place writes the format. Must stay
//! true: a name has the prefix `sidecore_` and ends in its unit; a family without samples is left
//! out. Pure. Source: OpenMetrics 1.0 (prometheus.io/docs/specs/om/open_metrics_spec).

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
pub use prometheus_client::registry::Unit;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fmt;

/// The media type of [`text`].
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A family of samples under one name.
#[derive(Debug, Clone)]
pub struct Metric {
    name: Cow<'static, str>,
    help: &'static str,
    unit: Option<Unit>,
    is_counter: bool,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone)]
struct Sample {
    labels: Vec<(String, String)>,
    value: Number,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    Whole(u64),
    Real(f64),
}

impl Metric {
    /// A number that only grows; `name` without prefix, unit and `_total`.
    #[must_use]
    pub fn counter(name: impl Into<Cow<'static, str>>, help: &'static str) -> Self {
        Self {
            is_counter: true,
            ..Self::gauge(name, help)
        }
    }

    /// A number that goes up and down; `name` without prefix and unit.
    #[must_use]
    pub fn gauge(name: impl Into<Cow<'static, str>>, help: &'static str) -> Self {
        Self {
            name: name.into(),
            help,
            unit: None,
            is_counter: false,
            samples: Vec::new(),
        }
    }

    /// The same in this unit, which ends the name.
    #[must_use]
    pub fn in_unit(mut self, unit: Unit) -> Self {
        self.unit = Some(unit);
        self
    }

    /// The same with a sample more; nothing where `value` is no number, or one that a counter
    /// cannot have.
    #[must_use]
    pub fn sample(mut self, labels: &[(&str, &str)], value: &Value) -> Self {
        // As a whole number first: a double would round above 2^53.
        let value = match (value.as_u64(), value.as_f64()) {
            (Some(whole), _) => Number::Whole(whole),
            (None, Some(real)) if !self.is_counter || real >= 0.0 => Number::Real(real),
            _ => return self,
        };
        let label = |(name, value): &(&str, &str)| (String::from(*name), String::from(*value));
        let labels = labels.iter().map(label).collect();
        self.samples.push(Sample { labels, value });
        self
    }

    /// The family as OTLP has it in JSON, with the times of the server's start and of now in
    /// nanoseconds; none without samples.
    pub(crate) fn otlp(&self, (started_ns, now_ns): (u64, u64)) -> Option<Value> {
        let samples = self.samples.iter();
        let points: Vec<Value> = samples.map(|it| it.otlp(started_ns, now_ns)).collect();
        if points.is_empty() {
            return None;
        }
        let (name, unit) = match &self.unit {
            Some(unit) => (
                format!("sidecore_{}_{}", self.name, unit.as_str()),
                symbol(unit),
            ),
            // UCUM's sign for a plain number.
            None => (format!("sidecore_{}", self.name), "1"),
        };
        let (kind, data) = match self.is_counter {
            // 2: cumulative, so that a push that fails loses nothing.
            true => (
                "sum",
                json!({"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points}),
            ),
            false => ("gauge", json!({"dataPoints": points})),
        };
        Some(json!({"name": name, "description": self.help, "unit": unit, kind: data}))
    }
}

/// An attribute with a text, as OTLP has it in JSON.
pub(crate) fn attribute(key: &str, text: &str) -> Value {
    json!({"key": key, "value": {"stringValue": text}})
}

/// The unit's sign in UCUM.
fn symbol(unit: &Unit) -> &str {
    match unit {
        Unit::Bytes => "By",
        Unit::Seconds => "s",
        Unit::Ratios => "1",
        other => other.as_str(),
    }
}

impl Sample {
    fn otlp(&self, started_ns: u64, now_ns: u64) -> Value {
        let labels = self.labels.iter();
        let attributes: Vec<Value> = labels.map(|(key, text)| attribute(key, text)).collect();
        let (kind, value) = match self.value {
            // Whole numbers of 64 bits are texts in this encoding.
            Number::Whole(whole) => match i64::try_from(whole) {
                Ok(whole) => ("asInt", json!(whole.to_string())),
                Err(_) => ("asDouble", json!(whole as f64)),
            },
            Number::Real(real) => ("asDouble", json!(real)),
        };
        json!({
            "attributes": attributes,
            "startTimeUnixNano": started_ns.to_string(),
            "timeUnixNano": now_ns.to_string(),
            kind: value,
        })
    }

    fn encode(&self, is_counter: bool, encoder: MetricEncoder<'_>) -> fmt::Result {
        match (is_counter, self.value) {
            (true, Number::Whole(value)) => ConstCounter::new(value).encode(encoder),
            (true, Number::Real(value)) => ConstCounter::new(value).encode(encoder),
            (false, Number::Whole(value)) => ConstGauge::new(value).encode(encoder),
            (false, Number::Real(value)) => ConstGauge::new(value).encode(encoder),
        }
    }
}

/// The metrics as text, with the line that ends it.
#[must_use]
pub fn text(mut metrics: Vec<Metric>) -> String {
    metrics.retain(|metric| !metric.samples.is_empty());
    let mut registry = Registry::with_prefix("sidecore");
    registry.register_collector(Box::new(All(metrics)));
    let mut text = String::new();
    // Writing to a string cannot fail.
    encode(&mut text, &registry).ok();
    text
}

#[derive(Debug)]
struct All(Vec<Metric>);

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in &self.0 {
            let kind = match metric.is_counter {
                true => MetricType::Counter,
                false => MetricType::Gauge,
            };
            let unit = metric.unit.as_ref();
            let mut family = encoder.encode_descriptor(&metric.name, metric.help, unit, kind)?;
            if let [sample] = &*metric.samples
                && sample.labels.is_empty()
            {
                // Without the braces of no labels.
                sample.encode(metric.is_counter, family)?;
                continue;
            }
            for sample in &metric.samples {
                let one = family.encode_family(&sample.labels)?;
                sample.encode(metric.is_counter, one)?;
            }
        }
        Ok(())
    }
}

pub mod strict;

#[cfg(test)]
mod tests {
    //! The text, read by a strict parser.

    use super::strict::parse;
    use super::*;

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
}
