use super::*;
use crate::measure::Figures;
use std::path::Path;

struct Plain {
    head: Head,
    figures: Figures,
}

impl Reported for Plain {
    fn parts(&mut self) -> (&mut Head, &mut Figures) {
        (&mut self.head, &mut self.figures)
    }
}

fn frame(progress: &mut dyn FnMut(&str)) -> Frame<'_, Plain> {
    let report = Plain {
        head: Head::new(Path::new("/nonexistent"), true, Some(3)),
        figures: Figures::default(),
    };
    Frame::new(report, Arc::default(), Duration::from_secs(60), progress)
}

#[test]
fn a_candidate_that_fails_is_out_and_the_report_says_why() {
    let mut progress = |_: &str| {};
    let mut frame = frame(&mut progress);
    frame.begin_group("g");
    let mut candidates = [
        interleave::Candidate::of_one("fine", |(): &()| Ok(2.0)),
        interleave::Candidate::of_one("absent", |(): &()| {
            Err(BenchError::Missing("not here".into()))
        }),
        interleave::Candidate::of_one("broken", |(): &()| Err(BenchError::Wrong("oh dear".into()))),
    ];
    let rounds = frame.rounds;
    let series = frame.interleave(&[("m", "s")], rounds, &(), &mut candidates, || Ok(()));
    let series = only(series.unwrap());
    assert_eq!(series[0].as_ref().unwrap().rounds(), 3);
    assert!(series[1].is_none() && series[2].is_none());
    let report = frame.end();
    assert_eq!(report.figures.peers[0].note, "not measured: not here");
    assert_eq!(report.figures.failures, ["g: oh dear"]);
    assert_eq!(report.figures.samples.len(), 3);
}

#[test]
fn interruption_and_lack_of_space_end_the_run_and_nothing_else_does() {
    let mut progress = |_: &str| {};
    let mut frame = frame(&mut progress);
    assert!(frame.end_group(Err(BenchError::Wrong("w".into()))).is_ok());
    assert!(
        frame
            .end_group(Err(BenchError::Missing("m".into())))
            .is_ok()
    );
    assert!(frame.end_group(Err(BenchError::Interrupted)).is_err());
    let space = BenchError::Space {
        directory: "/".into(),
        needed_bytes: 2,
        free_bytes: 1,
    };
    assert!(frame.end_group(Err(space)).is_err());
    // Relaxed: a flag alone.
    frame
        .cancel
        .store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(frame.end_group(Ok(())).is_err());
}

#[test]
fn samples_stand_under_machine_load_commit_placement_and_foreign_load() {
    let mut head = Head::new(Path::new("/nonexistent"), true, None);
    head.placement = "all on core 0".into();
    let text = head.tsv(&[]);
    for line in [
        "# machine: ",
        "# load average",
        "# commit: ",
        "# placement: all on core 0",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert!(
        text.contains("# foreign load: quiet; rounds repeated: 0"),
        "{text}"
    );
    let json = serde_json::to_value(&head).unwrap();
    assert_eq!(json["rounds_repeated"], 0);
    assert_eq!(json["noisy"], false);
}
