//! Metrics as OpenMetrics text, by the library of Prometheus' authors.
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
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// The media type of [`text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
}

impl Sample {
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
mod tests;
