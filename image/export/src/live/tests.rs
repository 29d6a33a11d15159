//! Exports from what servers say.

use super::*;
use sidecore_status::metrics::strict;

fn export(fields: Value) -> Export {
    let Value::Object(fields) = fields else {
        panic!("an object")
    };
    Export::of(Server {
        kind: Kind::Image,
        pid: 1_234_567,
        uid: 1000,
        name: String::new(),
        started_unix_s: 1,
        is_answering: true,
        fields,
    })
}

#[test]
fn a_row_takes_whatever_a_server_says() {
    let made = export(json!({"image": "/a.img", "way": "mount", "where": "/mnt",
        "read_bytes": 1_u64 << 40, "cache_hits": 3, "cache_misses": 1}));
    let row = cells(&made);
    assert_eq!((&*row[0], &*row[3], &*row[4]), ("mount", "1 TiB", "75 %"));
    assert_eq!((&*row[6], &*row[7]), ("/a.img", "/mnt"));
    let odd = export(
        json!({"image": 7, "way": "a\x1b[2Jlong way", "read_bytes": "x",
        "cache_hits": u64::MAX, "cache_misses": u64::MAX}),
    );
    let row = cells(&odd);
    assert_eq!((&*row[0], &*row[4], &*row[6]), ("a\\x1b[2J", "100 %", ""));
    let silent = Export {
        is_answering: false,
        ..made
    };
    let row = cells(&silent);
    assert_eq!((&*row[1], &*row[6]), ("1234567", "not answering"));
    // Figures that are no numbers are nothing.
    let odd = export(json!({"read_bytes": "x", "cache_hits": -3, "damaged_frames": null}));
    assert_eq!(odd.figures, Figures::default());
    assert_eq!(cells(&odd)[4], "-");
}

/// What clients wrote is less than its grains where they wrote parts of these.
#[test]
fn an_overlay_is_described_by_what_was_written_and_its_room() {
    let made = export(json!({"written_bytes": 1024, "overlay_bytes": 4096}));
    let said = description(&made);
    let last = said.last().map(String::as_str);
    let expected = "overlay   1 KiB written, 4 KiB used, 0 B not durable yet";
    assert_eq!(last, Some(expected));
}

#[test]
fn every_figure_is_a_metric() {
    let figures = || {
        let mut all = serde_json::to_value(Figures::default()).unwrap_or_default();
        for key in ["read_bytes", "cache_hits", "cache_misses"] {
            all[key] = json!(5);
        }
        all
    };
    let status = status("/a\n\"b", "serve", &["tcp:127.0.0.1:1".into()], figures);
    let samples = strict::parse(&status.metrics()).expect("OpenMetrics");
    assert_eq!(samples.len(), 1 + COUNTERS.len() + GAUGES.len());
    let read = samples
        .iter()
        .find(|(name, ..)| name == "sidecore_image_read_bytes_total");
    let (_, labels, value) = read.expect("a sample");
    assert_eq!((labels[0].1.as_str(), *value), ("/a\n\"b", 5.0));
}

#[test]
fn an_export_is_known_by_its_image_and_its_places() {
    let one = export(json!({"image": "/images/a.img", "way": "serve",
        "where": "unix:/run/a.sock tcp:127.0.0.1:10809"}));
    for name in ["/images/a.img", "unix:/run/a.sock", "tcp:127.0.0.1:10809"] {
        assert!(one.is(name), "{name}");
    }
    // The first one is empty.
    for name in " a.img tcp:127.0.0.1:1 serve unix:a.sock unix: memory:/run/a.sock".split(' ') {
        assert!(!one.is(name), "{name}");
    }
    let file = export(json!({"image": "/a", "way": "file", "where": "/mnt/image"}));
    assert!(file.is("/mnt") && file.is("/mnt/image") && !file.is("/"));
    let places = ["unix:a b.sock".into(), "tcp:[::1]:1".into()];
    let status = super::status("disk.img", "serve", &places, || json!({}));
    let here = std::env::current_dir()
        .expect("a folder")
        .display()
        .to_string();
    let value = status.value();
    assert_eq!(value["where"], format!("unix:{here}/a b.sock tcp:[::1]:1"));
    assert_eq!(value["image"], format!("{here}/disk.img"));
}
