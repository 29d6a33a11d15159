//! The metrics against the status, and against a strict reader.

use super::*;
use sidecore_status::metrics::strict;
use std::collections::HashSet;

fn status() -> Value {
    let report = crate::engine::report::for_tests();
    serde_json::from_str(&report).expect("the engine's own status")
}

/// All paths of the status with a number.
fn numbers(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Number(_) => out.push(at.to_owned()),
        Value::Object(items) => {
            for (name, value) in items {
                numbers(value, &format!("{at}/{name}"), out);
            }
        }
        _ => {}
    }
}

#[test]
fn every_number_of_the_status_is_a_metric() {
    let mut all = Vec::new();
    numbers(&status(), "", &mut all);
    assert!(all.len() > 30, "{all:?}");
    let samples = FAMILIES.iter().flat_map(|family| family.samples);
    let known: HashSet<&str> = samples.map(|(_, at)| *at).collect();
    for at in &all {
        let names = ["/version", "/engine_index", "/engine_count"];
        assert!(
            names.contains(&at.as_str()) || known.contains(at.as_str()),
            "{at}"
        );
    }
    for at in known {
        assert!(
            all.iter().any(|one| one == at),
            "{at} is no number of the status"
        );
    }
    let mut application = Vec::new();
    numbers(&status()["applications"][0], "", &mut application);
    for at in application {
        let of = |family: &Family| family.samples.iter().any(|(_, sample)| *sample == at);
        let label = at == "/pid" || at == "/uid";
        assert!(label || APPLICATION_FAMILIES.iter().any(of), "{at}");
    }
}

#[test]
fn links_and_peers_have_samples() {
    let mut status = status();
    status["nic"] = serde_json::json!({
        "links": [{"name": "eth0", "frames_sent": 7}, {"name": "a\"b", "frames_sent": 8}],
        "peers": [{"public_key": "abc=", "rx_bytes": 10, "handshake_age_s": null}],
    });
    let said = text(&status);
    read(&said).expect("good text");
    assert!(said.contains("sidecore_net_link_frames_sent_total{link=\"eth0\"} 7\n"));
    assert!(said.contains("sidecore_net_peer_received_bytes_total{peer=\"abc=\"} 10\n"));
    assert!(
        !said.contains("a\"b") && !said.contains("handshake"),
        "{said}"
    );
}

#[test]
fn a_strict_reader_takes_it() {
    let text = text(&status());
    let families = read(&text).expect("good text");
    assert_eq!(
        families["sidecore_net_segments_retransmitted_total"],
        [("".into(), 0.0)]
    );
    assert_eq!(families["sidecore_net_stage_cycles_total"].len(), 3);
    let sent = &families["sidecore_net_application_sent_bytes_total"];
    assert_eq!(sent[0].0, "pid=\"41\",uid=\"1000\"");
    assert_eq!(families["sidecore_net_session_cache_hit_ratio"][0].1, 0.0);
    for broken in [
        "a 1\n",
        "# HELP a b\n# TYPE a gauge\na 1",
        "# HELP a b\n# TYPE a counter\na 1\n",
        "# HELP a b\n# TYPE a gauge\na{x=1} 1\n",
        "# HELP a b\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a b\n# TYPE a gauge\na one\n",
        "# TYPE a gauge\na 1\n",
    ] {
        assert!(read(broken).is_err(), "{broken}");
    }
}

#[test]
fn an_endpoint_offers_the_same_samples() {
    let status = status();
    let text_of_status = sidecore_status::metrics::text(metrics(&status));
    let samples = strict::parse(&text_of_status).expect("OpenMetrics");
    let families = read(&text(&status)).expect("good text");
    assert_eq!(
        samples.len(),
        families.values().map(Vec::len).sum::<usize>()
    );
    let sent = samples
        .iter()
        .find(|(name, ..)| name.ends_with("application_sent_bytes_total"));
    let labels = [
        ("pid".to_owned(), "41".to_owned()),
        ("uid".to_owned(), "1000".to_owned()),
    ];
    assert_eq!(sent.expect("a sample").1, labels);
}

#[test]
fn several_engines_are_told_apart() {
    let of = |index: u32| {
        let mut status = status();
        status["engine_index"] = index.into();
        status["sessions"] = (10 + index).into();
        status
    };
    let mut whole = of(0);
    whole["engines"] = vec![of(0), of(1)].into();
    whole["applications"][0]["engine_index"] = 1.into();
    let families = read(&text(&whole)).expect("good text");
    let sessions = [("engine=\"0\"".into(), 10.0), ("engine=\"1\"".into(), 11.0)];
    assert_eq!(families["sidecore_net_sessions"], sessions);
    assert_eq!(families["sidecore_net_stage_cycles_total"].len(), 6);
    let sent = &families["sidecore_net_application_sent_bytes_total"];
    assert_eq!(sent[0].0, "engine=\"1\",pid=\"41\",uid=\"1000\"");
    // A single engine has no such label.
    whole["engines"] = vec![of(0)].into();
    let families = read(&text(&whole)).expect("good text");
    assert_eq!(families["sidecore_net_sessions"], [(String::new(), 10.0)]);
}

type Families = std::collections::HashMap<String, Vec<(String, f64)>>;

fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(good)
}

/// Parses the text format as strictly as its specification: HELP, TYPE and all samples of a family
/// together, each sample once, counters named as such, a line feed at the end.
fn read(text: &str) -> Result<Families, String> {
    let body = text.strip_suffix('\n').ok_or("no line feed at the end")?;
    let mut families = Families::new();
    let (mut helped, mut family) = (String::new(), None);
    for line in body.split('\n') {
        let bad = |what: &str| format!("{what}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or(bad("no help"))?;
            if !is_name(name) || help.is_empty() || families.contains_key(name) {
                return Err(bad("name or help"));
            }
            helped = name.to_owned();
            family = None;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or(bad("no type"))?;
            let named = name.ends_with("_total") == (kind == "counter");
            if name != helped || !named || !["counter", "gauge"].contains(&kind) {
                return Err(bad("type"));
            }
            families.insert(name.to_owned(), Vec::new());
            family = Some(name.to_owned());
        } else {
            let (series, value) = line.rsplit_once(' ').ok_or(bad("no value"))?;
            let (name, labels) = match series.split_once('{') {
                Some((name, labels)) => (name, labels.strip_suffix('}').ok_or(bad("}"))?),
                None => (series, ""),
            };
            for label in labels.split(',').filter(|_| !labels.is_empty()) {
                let (key, value) = label.split_once('=').ok_or(bad("label"))?;
                let quoted = value.len() >= 2 && value.starts_with('"') && value.ends_with('"');
                if !is_name(key) || !quoted || value[1..value.len() - 1].contains(['"', '\\']) {
                    return Err(bad("label"));
                }
            }
            let value: f64 = value.parse().map_err(|_| bad("value"))?;
            let samples = families.get_mut(name).ok_or(bad("no family"))?;
            let again = samples.iter().any(|(known, _)| known == labels);
            if family.as_deref() != Some(name) || again || value.is_nan() || value < 0.0 {
                return Err(bad("sample"));
            }
            samples.push((labels.to_owned(), value));
        }
    }
    match families.values().all(|samples| !samples.is_empty()) {
        true => Ok(families),
        false => Err("a family without samples".to_owned()),
    }
}
