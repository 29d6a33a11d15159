//! Small programs, run plainly and under a supervisor, and what they print.
//!
//! Must stay true: no comparison depends on time, except that a run which hangs is ended.

use crate::unpack::unpacked;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The program under test (`tests/program`).
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_net-run-under-test");

/// A case that takes longer hangs. On an idle machine none takes three seconds, unless
/// `LIFE_STEPS` asks for a long one.
pub(crate) fn patience() -> Duration {
    let steps = std::env::var("LIFE_STEPS").ok();
    let steps: u64 = steps.and_then(|text| text.parse().ok()).unwrap_or(0);
    Duration::from_secs(30 + steps / 20)
}

/// Cases that run at once.
const WORKERS_MAX: usize = 4;

/// One small program.
pub(crate) struct Case {
    pub(crate) name: String,
    /// Program and arguments that run it.
    pub(crate) command: Vec<PathBuf>,
}

/// The result of a case.
pub(crate) struct Run {
    /// Standard output, then how it ended.
    pub(crate) output: String,
    /// Standard error: shown with a difference, not compared.
    pub(crate) errors: String,
}

/// Judges all cases that are wanted, several at once; panics with the faults.
pub(crate) fn all_of(
    is_wanted: impl Fn(&str) -> bool,
    judge: impl Fn(&Case, &Path) -> Option<String> + Sync,
) {
    let folder = tempfile::tempdir().unwrap();
    let mut cases = cases(folder.path());
    cases.retain(|case| is_wanted(&case.name));
    let judge = &judge;
    let failures = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers.min(WORKERS_MAX) {
            let scratch = folder.path().join(format!("worker{worker}"));
            std::fs::create_dir(&scratch).unwrap();
            let (cases, failures, next) = (&cases, &failures, &next);
            scope.spawn(move || {
                // Relaxed: the number only shares out the cases; the list itself never changes.
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(failure) = judge(case, &scratch) {
                        let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                        failures.insert(case.name.clone(), failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let texts: Vec<_> = failures.values().map(String::as_str).collect();
    assert!(
        texts.is_empty(),
        "{} of {} cases:\n{}",
        texts.len(),
        cases.len(),
        texts.join("\n")
    );
}

/// Runs a case under a run of the loopback alone.
pub(crate) fn under_loopback(case: &Case, scratch: &Path, options: &str) -> Run {
    let mut command: Vec<_> = [PROGRAM, "net", "run", "--loopback"]
        .map(PathBuf::from)
        .into();
    command.extend(options.split_whitespace().map(PathBuf::from));
    command.push("--".into());
    command.extend(case.command.iter().cloned());
    run(&command, scratch, patience())
}

/// The text of a difference between two runs of a case.
pub(crate) fn difference(name: &str, one: &Run, other: &Run) -> String {
    format!(
        "{name}: the first difference is line {}\n{}{}",
        first_difference(&one.output, &other.output),
        side_by_side(&one.output, &other.output),
        other.errors
    )
}

/// Runs a case under a run whose stack has 10.91.9.2 and fd91::2, at which the case connects.
pub(crate) fn over_stack(case: &Case, scratch: &Path, options: &str) -> Run {
    let name = &case.name;
    // A process that a case leaves behind may go on serving at the socket of its run.
    let setup = scratch.join(format!("{name}{options}.toml"));
    let socket = setup.with_extension("sock");
    let text = format!(
        "socket = \"{}\"\n[nic]\nkind = \"tap\"\nname = \"case0\"\n\
         host = [\"10.91.9.1/24\", \"fd91::1/64\"]\n\
         [stack]\naddresses = [\"10.91.9.2/24\", \"fd91::2/64\"]\n",
        socket.display()
    );
    std::fs::write(&setup, text).unwrap();
    let run_it = format!(
        "export SIDECORE_CASES_V4=10.91.9.2 SIDECORE_CASES_V6=fd91::2; \
         ip link set lo up && exec \"$0\" net run {options} \"$@\""
    );
    let mut command: Vec<PathBuf> = ["unshare", "--net", "sh", "-c"].map(PathBuf::from).into();
    command.extend([run_it, PROGRAM.to_owned()].map(PathBuf::from));
    command.extend(["--config".into(), setup, "--".into()]);
    command.extend(case.command.iter().cloned());
    run(&command, scratch, patience())
}

/// Runs a command with a time limit, in a process group of its own that ends with it.
pub(crate) fn run(command: &[PathBuf], scratch: &Path, patience: Duration) -> Run {
    let (out, errors) = (scratch.join("out"), scratch.join("errors"));
    let begun = Instant::now();
    // The group's number is timeout's process id. Output goes to files, not pipes: processes left
    // behind by a case that hangs may hold a pipe open.
    let status = Command::new("timeout")
        .arg("--signal=KILL")
        .arg(format!("{}", patience.as_secs_f64()))
        .args(command)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SIDECORE_NET_LIBRARY", library())
        .env("SIDECORE_NET_RINGS_AFTER", "0")
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&errors).unwrap())
        .status()
        .unwrap();
    let end = match status.code() {
        // timeout's own exit status shows that it had to kill; a program that was only slow ends
        // otherwise.
        None if begun.elapsed() >= patience => {
            format!("hangs: it was ended after {} s", patience.as_secs_f64())
        }
        // As a shell reports it, and as `sidecore net run` does.
        None => format!("exit status: {}", 128 + status.signal().unwrap()),
        Some(code) => format!("exit status: {code}"),
    };
    let read = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    Run {
        output: format!("{}{end}\n", read(&out)),
        errors: read(&errors),
    }
}

/// The library that programs load: cargo puts it next to the tests, whose crate depends on it.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.with_file_name("libsidecore_net_preload.so");
    assert!(library.is_file(), "{}", library.display());
    library
}

/// Number of the first line that differs, from 1.
fn first_difference(kernel: &str, ours: &str) -> usize {
    let same = |(one, other): &(&str, &str)| one == other;
    kernel.lines().zip(ours.lines()).take_while(same).count() + 1
}

/// Lines of both where they begin to differ, and two after.
fn side_by_side(kernel: &str, ours: &str) -> String {
    let from = first_difference(kernel, ours).saturating_sub(1);
    let part = |whose: &str, text: &str| -> String {
        let lines = text.lines().skip(from).take(3);
        lines.map(|line| format!("    {whose}  {line}\n")).collect()
    };
    part("before", kernel) + &part("ours  ", ours)
}

/// All cases, those in C compiled into `folder`.
fn cases(folder: &Path) -> Vec<Case> {
    let wanted = std::env::var("SIDECORE_CASES").unwrap_or_default();
    let python = python();
    let mut cases = Vec::new();
    let mut compiling = Vec::new();
    for path in unpacked(folder) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.contains(&wanted) {
            continue;
        }
        let command = match path.extension().and_then(|ending| ending.to_str()) {
            Some("py") => vec![python.clone(), path],
            Some("c") => {
                let program = path.with_extension("");
                compiling.push((name.clone(), compile(&path, &program)));
                vec![program]
            }
            _ => panic!("{} is no case", path.display()),
        };
        cases.push(Case { name, command });
    }
    for (name, mut compiler) in compiling {
        assert!(compiler.wait().unwrap().success(), "cc: {name}.c");
    }
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(!wanted.is_empty() || cases.len() > 100, "{}", cases.len());
    assert!(!cases.is_empty(), "no case has `{wanted}` in its name");
    cases
}

/// Starts the C compiler.
fn compile(source: &Path, program: &Path) -> std::process::Child {
    Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([program, source])
        .spawn()
        .unwrap_or_else(|error| panic!("cc: {error}; scripts/setup installs it"))
}

/// The interpreter itself: `python3` may be a script that looks for it.
pub(crate) fn python() -> PathBuf {
    let program = "import sys; assert sys.version_info >= (3, 10), sys.version; \
                   print(sys.executable)";
    let output = Command::new("python3")
        .args(["-c", program])
        .output()
        .unwrap_or_else(|error| panic!("python3: {error}; scripts/setup installs it"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "python3 3.10 or newer: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().into()
}

/// Seeds of random calls.
const SEEDS: [&str; 3] = ["1", "5", "25"];
/// Steps from each seed.
const CALLS: &str = "300";
/// Runs of a seed, both ways: a busy machine may delay what the kernel itself shows by a step, and
/// two of its sockets may get one port.
const SEED_RUNS_MAX: usize = 3;

/// The difference of a run of random calls over the stack from one on the kernel.
fn judge_seed(seed: &str, program: &Path, scratch: &Path) -> Option<String> {
    let command = vec![program.to_path_buf(), seed.into(), CALLS.into()];
    let kernel = run(&command, scratch, patience());
    let expected = scratch.join(format!("{seed}.expected"));
    std::fs::write(&expected, &kernel.output).unwrap();
    let wanted = format!("LIFE_EXPECT={}", expected.display());
    // Each step waits as long for what the kernel has shown.
    let mut ours: Vec<PathBuf> = ["env", "LIFE_WAIT=10000"].map(PathBuf::from).into();
    ours.push(wanted.into());
    ours.extend(command);
    let name = format!("life{seed}");
    let case = Case {
        name: name.clone(),
        command: ours,
    };
    let ours = over_stack(&case, scratch, "");
    let is_complete = kernel.output.ends_with("end\nexit status: 0\n");
    let is_same = is_complete && kernel.output == ours.output;
    (!is_same).then(|| difference(&name, &kernel, &ours))
}

/// Random calls about sockets return what they do on the kernel, and change the same
/// (`cases/_life.c`; `scripts/check-life` makes more of them). Needs root, for a TAP and a network
/// namespace.
#[test]
fn random_calls_over_the_stack_return_what_they_do_on_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    unpacked(folder.path());
    let (source, program) = (folder.path().join("_life.c"), folder.path().join("life"));
    assert!(compile(&source, &program).wait().unwrap().success());
    for seed in SEEDS {
        let runs = (0..SEED_RUNS_MAX).map(|_| judge_seed(seed, &program, folder.path()));
        // Ends with the first run without a difference.
        let differences: Option<Vec<String>> = runs.collect();
        assert!(
            differences.is_none(),
            "{}",
            differences.unwrap_or_default().join("\n")
        );
    }
}
