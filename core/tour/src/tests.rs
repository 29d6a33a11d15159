use super::*;
use crate::shell::{COLUMNS, command_lines, wrapped};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A screen that keeps its lines, and raises a flag once it has shown a word.
#[derive(Default)]
struct Screen {
    lines: Vec<String>,
    stop_at: Option<(&'static str, Arc<AtomicBool>)>,
    /// Lines after which it cannot be written to.
    room: Option<usize>,
}

impl Show for Screen {
    fn line(&mut self, line: &str) -> io::Result<()> {
        assert!(line.chars().count() <= COLUMNS, "{line}");
        if self.room.is_some_and(|room| self.lines.len() >= room) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.lines.push(line.to_owned());
        if let Some((word, stop)) = &self.stop_at
            && line.contains(word)
        {
            stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn wait(&mut self) {}
}

fn options(folder: &std::path::Path) -> Options {
    Options {
        program: (PathBuf::from("/bin/echo"), "say"),
        subject: None,
        is_quick: false,
        has_benches: false,
        folder: Some(folder.to_owned()),
        candidates: &[],
        sample_bytes: 1 << 20,
        values: vec![("word", "it's")],
        environment: vec![("GREETING", "hello")],
        files: vec![("given.txt", "given\n")],
        stop: Arc::default(),
    }
}

fn tour(script: &str, screen: &mut Screen) -> Result<Report, TourError> {
    let folder = tempfile::tempdir().unwrap();
    run(
        &Script::parse(script).unwrap(),
        &options(folder.path()),
        screen,
    )
}

fn ends(report: &Report) -> Vec<String> {
    let word = |taken: &Taken| match &taken.end {
        End::Done => "done".to_owned(),
        End::Skipped { need, remedy } => format!("needs {need}; {remedy}"),
        End::Problem(what) => what.clone(),
    };
    report.steps.iter().map(word).collect()
}

#[test]
fn what_is_missing_costs_its_step_alone() {
    let script = r#"
        [need.gone]
        program = "no-such-program-is-here"
        remedy = "nothing helps"
        [need.absent]
        program = "no-such-program-is-here-either"
        [need.never]
        check = "test -e given.txt && false"
        [need.shell]
        program = "sh"
        [[step]]
        id = "a"
        subject = "one"
        title = "It is there"
        proves = "it works"
        [[step.way]]
        needs = ["gone"]
        run = ["false"]
        [[step.way]]
        needs = ["shell"]
        proves = "the second way works"
        run = [{ run = "say {word} $GREETING; cat given.txt", figure = true }]
        [[step]]
        id = "b"
        subject = "one"
        title = "It is not"
        proves = "never"
        [[step.way]]
        needs = ["gone", "absent"]
        run = ["true"]
        [[step.way]]
        needs = ["never"]
        run = ["true"]
        [[step]]
        id = "c"
        subject = "one"
        title = "It hangs on that"
        proves = "never"
        after = ["b"]
        [[step.way]]
        run = ["true"]
    "#;
    let mut screen = Screen::default();
    let report = tour(script, &mut screen).unwrap();
    let found = ends(&report);
    assert_eq!(found[0], "done");
    assert!(found[1].starts_with("needs never; "), "{found:?}");
    assert_eq!(found[2], "needs step 2; see there");
    assert_eq!(report.steps[0].proves, "the second way works");
    assert_eq!(report.steps[0].figure.as_deref(), Some("it's hello"));
    assert!(screen.lines.iter().any(|line| line.trim() == "given"));
    let verdict = report.verdict();
    assert!(
        verdict[0].contains("1 of 3 steps done, 2 skipped, 0 with"),
        "{verdict:?}"
    );
}

#[test]
fn a_program_that_a_line_does_not_find_is_a_need() {
    let script = r#"
        [need.a]
        program = "no-such-program-a"
        debian = "package-a"
        [need.b]
        program = "no-such-program-b"
        debian = "package-b"
        [[step]]
        id = "a"
        subject = "one"
        title = "Pipes into nothing"
        proves = "never"
        [[step.way]]
        run = ["echo x | no-such-program-is-here"]
        [[step]]
        id = "b"
        subject = "one"
        title = "Needs two packages"
        proves = "never"
        [[step.way]]
        needs = ["a", "b"]
        run = ["true"]
        [[step]]
        id = "c"
        subject = "one"
        title = "Says something else"
        proves = "never"
        [[step.way]]
        run = [{ run = "echo one; echo two", from = "two", says = "{word}" }]
    "#;
    let report = tour(script, &mut Screen::default()).unwrap();
    let found = ends(&report);
    assert!(
        found[0].starts_with("needs no-such-program-is-here; "),
        "{found:?}"
    );
    assert!(found[1].contains("package-a package-b"), "{found:?}");
    assert_eq!(found[2], "`echo one; echo two` did not say 'it'\\''s'");
}

#[test]
fn a_problem_is_undone_and_the_rest_goes_on() {
    let script = r#"
        [[step]]
        id = "a"
        subject = "one"
        title = "Fails"
        proves = "never"
        [[step.way]]
        run = ["echo x > made", "echo why >&2; false", "touch never"]
        undo = ["mv made undone"]
        [[step]]
        id = "b"
        subject = "one"
        title = "Looks"
        proves = "the first was undone"
        [[step.way]]
        run = ["test -e undone && test ! -e never",
               { run = "echo sorry; exit 3", refused = "sorry" },
               { flip = "undone", at = 0 }, "test \"$(cat undone)\" != x",
               { run = "echo '{\"n\": 2}'", expect = { at = "/n", is = 2 } }]
        [[step]]
        id = "c"
        subject = "one"
        title = "Is refused for another reason"
        proves = "never"
        [[step.way]]
        run = [{ run = "echo no; exit 3", refused = "sorry" }]
        [[step]]
        id = "d"
        subject = "one"
        title = "Has a wrong number"
        proves = "never"
        [[step.way]]
        run = [{ run = "echo '{\"n\": 2}'", expect = { at = "/n", is = 1 } }]
    "#;
    let report = tour(script, &mut Screen::default()).unwrap();
    let found = ends(&report);
    assert!(found[0].ends_with("failed: why"), "{found:?}");
    assert_eq!(found[1], "done");
    assert!(found[2].contains("not for its sorry"), "{found:?}");
    assert_eq!(found[3], "/n is 2, not 1");
    assert_eq!((report.done(), report.problems()), (1, 3));
}

/// Servers that end with their step, for interruptions.
const SERVES: &str = r#"
    [[step]]
    id = "a"
    subject = "one"
    title = "Serve"
    proves = "a server ends with its step"
    [[step.way]]
    run = [{ run = "sh -c 'echo ready; echo $$ > {out}/pid; exec sleep 500'", server = "" },
           "pwd > {out}/where; echo now", "sleep 300"]
    undo = ["touch {out}/undone"]
"#;

#[test]
fn an_interruption_undoes_the_step_and_removes_the_folder() {
    let out = tempfile::tempdir().unwrap();
    let script = SERVES.replace("{out}", out.path().to_str().unwrap());
    let options = options(out.path());
    let mut screen = Screen {
        stop_at: Some(("now", Arc::clone(&options.stop))),
        ..Screen::default()
    };
    let began = Instant::now();
    let result = run(&Script::parse(&script).unwrap(), &options, &mut screen);
    assert!(matches!(result, Err(TourError::Interrupted)), "{result:?}");
    assert!(began.elapsed().as_secs() < 100, "it waited for the sleep");
    nothing_is_left(out.path());
}

#[test]
fn a_screen_that_is_gone_undoes_the_step_as_well() {
    let out = tempfile::tempdir().unwrap();
    let script = SERVES.replace("{out}", out.path().to_str().unwrap());
    let script = script.replace("sleep 300", "true");
    let mut screen = Screen {
        // The blank line, the title, and the server's command in two lines at most.
        room: Some(4),
        ..Screen::default()
    };
    let result = run(
        &Script::parse(&script).unwrap(),
        &options(out.path()),
        &mut screen,
    );
    assert!(matches!(result, Err(TourError::Show(_))), "{result:?}");
    assert!(out.path().join("undone").exists());
}

fn nothing_is_left(out: &std::path::Path) {
    assert!(out.join("undone").exists());
    let read = |name| std::fs::read_to_string(out.join(name)).unwrap();
    let folder = PathBuf::from(read("where").trim());
    assert!(!folder.exists(), "{}", folder.display());
    let process = format!("/proc/{}", read("pid").trim());
    assert!(
        !std::path::Path::new(&process).exists(),
        "{process} still runs"
    );
}

#[test]
fn a_script_that_names_the_unknown_is_refused() {
    let step = |rest: &str| {
        format!(
            "[[step]]\nid='a'\nsubject='s'\ntitle='t'\nproves='p'\n{rest}\n[[step.way]]\nrun=[]\n"
        )
    };
    assert!(Script::parse(&step("")).is_ok());
    for wrong in [
        "after = ['b']",
        "colour = 'red'",
        "[[step.way]]\nneeds=['x']\nrun=[]",
    ] {
        assert!(Script::parse(&step(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn the_readmes_example_is_a_script() {
    let example = README.split("```toml\n").nth(1).unwrap();
    let script = Script::parse(example.split("```").next().unwrap()).unwrap();
    assert_eq!(script.subjects(), ["files"]);
    assert_eq!(script.lines().len(), 3);
}

#[test]
fn folders_that_cannot_be_taken_are_refused_before_the_first_step() {
    let script = Script::parse(SERVES).unwrap();
    for folder in ["/no/such folder", "/proc/self/status"] {
        let result = run(
            &script,
            &options(std::path::Path::new(folder)),
            &mut Screen::default(),
        );
        let said = result.unwrap_err().to_string();
        assert!(said.contains(folder) && said.contains("--dir"), "{said}");
    }
}

#[test]
fn lines_fit_the_screen_and_commands_stay_commands() {
    let long = format!("echo one {} {}", "two ".repeat(30), "x".repeat(200));
    for line in wrapped(&long, 40) {
        assert!(line.chars().count() <= 40, "{line}");
    }
    let lines = command_lines(
        "echo one two three four five six seven eight nine ten eleven twelve 13 14",
        4,
    );
    assert!(lines.len() == 2 && lines[0].ends_with(" \\"), "{lines:?}");
    assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS));
}

#[test]
fn values_with_names_in_braces_stay_as_they_are() {
    let mut shell = crate::shell::Shell::new(std::path::Path::new("/"), &[]);
    for (name, value) in [("dir", "/a {port}"), ("port", "80"), ("word", "{dir}")] {
        shell.set(name, value);
    }
    let filled = shell.filled("cd {dir} && {other} {port}{word} {");
    assert_eq!(filled, "cd '/a {port}' && {other} 80'{dir}' {");
}

#[test]
fn the_page_is_whole_short_and_escaped() {
    let report = Report {
        steps: vec![Taken {
            id: "a".into(),
            subject: "s".into(),
            title: "<b>".into(),
            proves: "it works".into(),
            figure: Some("<script>".into()),
            seconds: 1.0,
            end: End::Done,
        }],
        rates: vec![("unpack".into(), 381.0), ("mount".into(), 200.0)],
        ..Report::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let page = report.write(Some(folder.path()), "head").unwrap();
    let html = std::fs::read_to_string(page).unwrap();
    assert!(!html.contains("<script>") && html.contains("&lt;script&gt;"));
    assert!(html.contains("unpack: 381 MB/s") && html.contains("<svg"));
    for outside in ["http://", "https://", "src="] {
        let html = html.replace("http://www.w3.org", "");
        assert!(!html.contains(outside), "{outside}");
    }
    for file in ["log.txt", "rates.svg"] {
        assert!(folder.path().join(file).exists());
    }
}
