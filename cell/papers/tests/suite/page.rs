//! The page and the report of canned results: complete, honest about missing answers, and safe.
//!
//! Kept results: used again when they should be, never half.

use crate::{canned, kept, machine, made, reports};
use serde_json::{Value, json};
use sidecore_papers::answer::{Cell, Row};
use sidecore_papers::catalogue::Paper;
use sidecore_papers::results::Now;
use sidecore_papers::{Catalogue, Found, Report, Results, Store};

fn row<'a>(report: &'a Report, key: &str) -> &'a Row {
    let rows = report.figures.iter().flat_map(|figure| &figure.rows);
    rows.into_iter()
        .find(|row| row.key == key)
        .unwrap_or_else(|| panic!("no row {key}"))
}

fn number(cell: &Cell) -> f64 {
    cell.number()
        .unwrap_or_else(|| panic!("no number: {cell:?}"))
}

#[test]
fn every_figure_has_an_answer_and_every_answer_a_figure() {
    // The catalogue itself refuses both; this checks its contents.
    let catalogue = Catalogue::built_in().unwrap();
    let names: Vec<String> = catalogue
        .figures
        .iter()
        .flat_map(|figure| figure.names())
        .collect();
    assert_eq!(catalogue.documents.len(), 4);
    assert!(names.len() >= 45, "{}", names.len());
    for part in &catalogue.parts {
        let used = catalogue.answers.values().any(|answer| {
            let report = format!("{answer:?}");
            report.contains(&format!("{:?}", part.id))
        });
        assert!(used, "nothing needs part {}", part.id);
    }
}

#[test]
fn no_row_is_left_without_an_answer_or_a_reason() {
    let catalogue = Catalogue::built_in().unwrap();
    for results in [canned(&catalogue), Results::new()] {
        let report = Report::new(&catalogue, &results);
        for row in report.figures.iter().flat_map(|figure| &figure.rows) {
            for cell in [&row.model, &row.here] {
                match cell {
                    Cell::Number { value, .. } => assert!(value.is_finite(), "{row:?}"),
                    Cell::Words { text } => assert!(!text.is_empty(), "{row:?}"),
                    Cell::Claims { claims } => assert!(!claims.is_empty(), "{row:?}"),
                    Cell::None { why } | Cell::Missing { why } => {
                        assert!(!why.is_empty(), "{row:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_page_begins_with_ten_headlines_and_names_its_commit() {
    let catalogue = Catalogue::built_in().unwrap();
    let results = canned(&catalogue);
    let report = Report::new(&catalogue, &results);
    // A headline whose key no row has is left out.
    assert_eq!(report.headlines.len(), 10);
    for headline in &report.headlines {
        let original = row(&report, &headline.row.key);
        assert_eq!(headline.row.here, original.here);
        assert!(headline.row.here.answers(), "{}", headline.row.key);
    }
    let page = made(&catalogue, &results);
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place("id=\"summary\"") < place("<nav"));
    assert!(place(", commit ") < place("id=\"summary\""));
}

#[test]
fn numbers_stand_where_they_belong() {
    let catalogue = Catalogue::built_in().unwrap();
    let report = Report::new(&catalogue, &canned(&catalogue));
    let mapping = row(&report, "spe_uio.mmap_us.ppe.128");
    assert_eq!(mapping.paper, Some(Paper::Number(391.0)));
    assert_eq!(number(&mapping.here), 59.349);
    // Table 1: fitted rows are marked, others not; seconds are scaled to the papers' bootstrap.
    let table1 = row(&report, "mgps.table1_edtlp_s.8");
    assert!(
        matches!(table1.model, Cell::Number { fitted: true, .. }),
        "{table1:?}"
    );
    assert!((number(&table1.here) - 368.85 * 0.266).abs() < 1e-9);
    let predicted = row(&report, "mgps.table1_edtlp_s.4");
    assert!(matches!(
        predicted.model,
        Cell::Number { fitted: false, .. }
    ));
    // A row at one place has its own rule, its neighbours a reason.
    assert!(row(&report, "mgps.table2_llp_s.2").here.answers());
    assert!(matches!(
        row(&report, "mgps.table2_llp_s.3").here,
        Cell::None { .. }
    ));
    // Products, quotients, one over it.
    let four = number(&row(&report, "spe_uio.estimate_us.x86_four_blocks").here);
    let one = number(&row(&report, "spe_uio.estimate_us.four_spes.decompress").here);
    assert!((four - 4.0 * one).abs() < 1e-9);
    let speedup = number(&row(&report, "mgps.max_speedup_over_linux").model);
    assert!((2.4..2.9).contains(&speedup), "{speedup}");
    let off_load = number(&row(&report, "mgps.spe_task_us").here);
    assert!((1.0..10.0).contains(&off_load), "{off_load}");
    // The model's own word for its input.
    let input = row(&report, "spe_uio.slides_512k_us.ppe");
    assert!(matches!(input.model, Cell::Number { fitted: true, .. }));
    let share = number(&row(&report, "mgps.spe_share_of_time").model);
    assert!((share - 0.897).abs() < 0.01, "{share}");
}

#[test]
fn curves_are_drawn_with_the_documents_points_and_stand_in_tables() {
    let catalogue = Catalogue::built_in().unwrap();
    let results = canned(&catalogue);
    let report = Report::new(&catalogue, &results);
    let figure = |id: &str| report.figures.iter().find(|each| each.id == id).unwrap();
    let tcp = &figure("net.tcp_gbps").curves;
    assert_eq!(tcp.len(), 3);
    let over_segment = &tcp[0];
    assert_eq!(over_segment.across, "segment bytes");
    assert_eq!(over_segment.unit, "Gb/s");
    assert_eq!(
        over_segment.papers,
        [Some((5000.0, 8.5)), Some((1460.0, 5.9))]
    );
    let at_1460 = over_segment.points.iter().find(|point| point.0 == 1460.0);
    assert_eq!(at_1460.unwrap().1, [Some(13.0), Some(8.55)]);
    let at_5000 = over_segment.points.iter().find(|point| point.0 == 5000.0);
    assert_eq!(at_5000.unwrap().1, [Some(14.1), None]);
    assert!(over_segment.points.is_sorted_by_key(|point| point.0));
    // Only the requested one.
    assert_eq!(figure("net.udp_loopback_gbps").curves[0].lines, ["UDP"]);
    assert_eq!(figure("net.sessions").curves[0].papers, [None, None]);
    let page = made(&catalogue, &results);
    for words in [
        "paper: 8.5",
        "paper, 5000",
        "TCP over the window",
        "100,000",
    ] {
        assert!(page.contains(words), "{words}");
    }
    // A command without a result, or with an invalid one, is named.
    for report in [
        json!({}),
        json!({ "curves": [{ "chart": "looped back", "name": "UDP", "points": [3, {}] }] }),
    ] {
        let mut results = canned(&catalogue);
        results.insert("net".into(), Found::Kept(Box::new(kept("net", report))));
        let page = made(&catalogue, &results);
        assert!(page.contains("UDP, looped back (figure 6): not drawn"));
    }
}

#[test]
fn the_page_names_every_figure_once_and_every_paper_number() {
    let catalogue = Catalogue::built_in().unwrap();
    let results = canned(&catalogue);
    let page = made(&catalogue, &results);
    for name in catalogue.figures.iter().flat_map(|figure| figure.names()) {
        assert_eq!(page.matches(&format!("id=\"{name}\"")).count(), 1, "{name}");
    }
    for row in Report::new(&catalogue, &results)
        .figures
        .iter()
        .flat_map(|figure| &figure.rows)
    {
        if let Some(Paper::Number(value)) = row.paper {
            assert!(page.contains(&format!("data-value=\"{value}\"")), "{row:?}");
        }
        if row.paper.is_some() {
            assert_eq!(
                page.matches(&format!("data-key=\"{}\"", row.key)).count(),
                1,
                "{}",
                row.key
            );
        }
    }
    let drawn = catalogue.figures.iter();
    let drawn = drawn.filter(|figure| figure.plot != Default::default());
    assert!(
        page.matches("<svg").count() >= drawn.count(),
        "every plot is drawn"
    );
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let catalogue = Catalogue::built_in().unwrap();
    let page = made(&catalogue, &canned(&catalogue));
    // The name of SVG is an address that is never fetched.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "<script", "@import", "src=", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn missing_and_failed_parts_say_so_and_the_rest_stands() {
    let catalogue = Catalogue::built_in().unwrap();
    let mut results = canned(&catalogue);
    results.remove("tlb");
    let why = "it ended with status 2: the <inputs> need 6 GB";
    results.insert("block-stages".into(), Found::Missing { why: why.into() });
    // A result that has nothing in it, and one that is of another shape.
    results.insert(
        "cell-fig9".into(),
        Found::Kept(Box::new(kept("cell-fig9", json!({})))),
    );
    let odd = json!({ "rows": { "name": 3 }, "peers": [1, null], "failures": "no" });
    results.insert(
        "block-mount".into(),
        Found::Kept(Box::new(kept("block-mount", odd))),
    );
    let report = Report::new(&catalogue, &results);
    let missing = |key: &str| match &row(&report, key).here {
        Cell::Missing { why } => why.clone(),
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(missing("tlb.entries.ppe"), "not run");
    assert_eq!(missing("spe_uio.minilzo_64k_us.binary.spe"), why);
    assert!(missing("spe_uio.diff_ms.one_spe").contains("gave no row"));
    assert!(row(&report, "spe_uio.mmap_us.x86.64").here.answers());
    assert!(matches!(
        row(&report, "mgps.figure9").model,
        Cell::Missing { .. }
    ));
    assert!(report.counts.missing > 10);
    let page = made(&catalogue, &results);
    assert!(
        page.contains("the &lt;inputs&gt; need 6 GB"),
        "escaped, and said"
    );
    assert!(!page.contains("<inputs>"));
}

#[test]
fn a_command_s_own_reason_is_handed_on() {
    let catalogue = Catalogue::built_in().unwrap();
    let mut results = canned(&catalogue);
    let name = "dd of the device, cloop with LZO1X";
    let report = json!({
        "rows": [
            { "name": "map, lock, touch and unmap 64 KiB", "here": null, "note": "needs root" }
        ],
        "peers": [{ "name": "ours", "metric": name, "here": null, "note": "no loop devices here" }],
        "failures": ["cat died"],
    });
    results.insert(
        "block-paper".into(),
        Found::Kept(Box::new(kept("block-paper", report))),
    );
    let report = Report::new(&catalogue, &results);
    let why = |key: &str| match &row(&report, key).here {
        Cell::Missing { why } => why.clone(),
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(why("spe_uio.mmap_us.x86.64"), "needs root");
    assert_eq!(why("spe_uio.dd_mb_s.one_spe"), "no loop devices here");
    assert!(why("spe_uio.image_mb.raw").contains("cat died"));
}

#[test]
fn hostile_strings_stay_text() {
    let catalogue = Catalogue::built_in().unwrap();
    let hostile =
        "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\u{0}\u{202e}";
    let mut reports = reports();
    let mut results = Results::new();
    for part in &catalogue.parts {
        let mut report = reports.remove(&part.id).unwrap_or(json!({}));
        poison(&mut report, hostile);
        let mut kept = kept(&part.id, report);
        kept.command = hostile.into();
        kept.problem = Some(hostile.into());
        kept.machine.kernel = hostile.into();
        kept.machine.load_start = hostile.into();
        results.insert(part.id.clone(), Found::Kept(Box::new(kept)));
    }
    let page = made(&catalogue, &results);
    for bad in ["<script", "<img", "onerror=alert(2)>"] {
        assert!(!page.contains(bad), "{bad}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)"));
}

/// Puts `hostile` behind every text of claims and notes.
fn poison(value: &mut Value, hostile: &str) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| poison(value, hostile)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), &value) {
                    ("text" | "note" | "reason", Value::String(text)) => {
                        *value = format!("{text}{hostile}").into();
                    }
                    _ => poison(value, hostile),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn numbers_that_are_none_are_no_answers() {
    let catalogue = Catalogue::built_in().unwrap();
    let mut results = canned(&catalogue);
    let zero = json!({ "rows": [
        {
            "kernel": "newview inner-inner", "model": "DNA", "patterns": 512,
            "site_nodes_per_s": 0.0
        },
    ] });
    results.insert(
        "phylo-kernels".into(),
        Found::Kept(Box::new(kept("phylo-kernels", zero))),
    );
    let report = Report::new(&catalogue, &results);
    let cell = &row(&report, "mgps.spe_task_us").here;
    assert!(
        matches!(cell, Cell::Missing { why } if why.contains("finite")),
        "{cell:?}"
    );
}

fn now() -> Now {
    Now {
        program: "a test".into(),
        machine: machine(),
        unix_s: 1_790_000_100,
        age_s_max: 3600,
    }
}

#[test]
fn the_same_program_on_the_same_machine_uses_a_result_again() {
    let kept = kept("tlb", json!({}));
    assert_eq!(kept.usable(&now()), Ok(()));
    let other = |change: &dyn Fn(&mut Now)| {
        let mut now = now();
        change(&mut now);
        kept.usable(&now).unwrap_err()
    };
    assert!(other(&|now| now.program.push('2')).contains("version"));
    assert!(other(&|now| now.machine.cores = 4).contains("machine"));
    assert!(other(&|now| now.machine.kernel.push('x')).contains("machine"));
    assert!(other(&|now| now.unix_s += 3600).contains("old"));
    assert!(other(&|now| now.unix_s = 5).contains("future"));
    // Load and commit are of the moment: they are said, not compared.
    let mut later = now();
    later.machine.load_start = "9 9 9".into();
    assert_eq!(kept.usable(&later), Ok(()));
}

#[test]
fn what_is_kept_comes_back_and_what_is_damaged_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("a/b")).unwrap();
    assert_eq!(store.load("tlb", false), None);
    let result = kept("tlb", json!({ "rows": [1.5, "x"] }));
    store.save(&result).unwrap();
    assert_eq!(store.load("tlb", false), Some(result));
    assert_eq!(store.load("tlb", true), None, "a quick run is kept apart");
    let path = store.directory().join("tlb.full.json");
    let whole = std::fs::read(&path).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", b"[]", b"\xff\xfe"] {
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(store.load("tlb", false), None);
    }
    // Under another part's name the file is not a result.
    std::fs::write(store.directory().join("net.full.json"), &whole).unwrap();
    assert_eq!(store.load("net", false), None);
}

#[test]
fn one_run_measures_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let first = Store::open(directory.path()).unwrap();
    let second = Store::open(directory.path()).unwrap();
    let lock = first.lock().unwrap().unwrap();
    assert!(second.lock().unwrap().is_none());
    drop(lock);
    assert!(second.lock().unwrap().is_some());
}

#[test]
fn writers_at_once_leave_one_whole_result() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..50 {
                    let rows = vec![writer; 1000];
                    store.save(&kept("tlb", json!({ "rows": rows }))).unwrap();
                    let seen = store.load("tlb", false).expect("always whole");
                    let rows = seen.report["rows"].as_array().unwrap();
                    assert!(rows.len() == 1000 && rows.iter().all(|row| *row == rows[0]));
                }
            });
        }
    });
    let names = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names, 1, "nothing is left beside it");
}

#[test]
fn a_place_that_cannot_be_written_is_said() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Store::open(file.path()).unwrap_err().to_string();
    assert!(error.contains("--state"), "{error}");
}
