//! `sidecore net run --loopback` compared with the kernel: each small program of
//! `net/run/tests/cases` runs plainly and under it, and must print the same and end alike.
//!
//! Why here: programs expect of sockets what the kernel does, corner cases included; it is the only
//! complete description. A case that is known to differ is listed in `KNOWN`, with the reason, and
//! must differ: one that agrees fails the test until it is removed from the list.
//!
//! Must stay true: nothing is left out. Needs python3 (3.10 or newer) and cc; no root, no network.
//! `SIDECORE_CASES=WORD` runs only the cases whose names have the word in them.

#![allow(clippy::unwrap_used)] // Helper functions of tests.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Cases whose results differ from the kernel's, and why.
const KNOWN: &[(&str, &str)] = &[
    (
        "accept_errors",
        "recv and send on a listener fail with a local socket's errors",
    ),
    (
        "backlog_full",
        "a backlog holds nobody back: opening between programs takes no time",
    ),
    (
        "close_while_accepting",
        "who polls a listener that is shut sees IN beside HUP",
    ),
    (
        "fork_socket_before_connect",
        "what a child binds or connects and leaves ends with the child",
    ),
    (
        "peer_closed_poll",
        "no reset answers a write after the peer's close: polls see no ERR, SO_ERROR is 0",
    ),
    (
        "receive_low_water",
        "poll of a pair does not look at SO_RCVLOWAT",
    ),
    (
        "reuse_address",
        "nothing waits in TIME-WAIT: the port is free at once",
    ),
    ("self_connect", "a socket cannot be both ends of its pair"),
    (
        "send_file",
        "sendfile into a listener fails with a local socket's error",
    ),
    ("truncate_stream", "a pair does not throw away by MSG_TRUNC"),
];

/// More of them, where programs load no library.
const KNOWN_WITHOUT_LIBRARY: &[(&str, &str)] = &[
    (
        "peer_closed_writes",
        "a pair refuses the first write after its peer's close, TCP the second",
    ),
    (
        "signals",
        "accept with SO_RCVTIMEO goes on after a signal with SA_RESTART",
    ),
];

/// Cases whose results over a stack may differ between rings and pairs, and why. They must end all
/// the same.
const KNOWN_OF_RINGS: &[(&str, &str)] = &[
    (
        "close_while_receiving",
        "who waits for a descriptor that is closed hears EBADF instead of waiting on",
    ),
    (
        "epoll_edge",
        "an edge-triggered registration is told once more when its descriptor gets rings",
    ),
    (
        "signals",
        "without a library accept with SO_RCVTIMEO goes on after a signal with SA_RESTART",
    ),
];

/// A case that takes longer hangs. On an idle machine none takes three seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs, both ways, of a case that differs.
const RUNS_MAX: usize = 3;

/// Cases that run at once.
const WORKERS_MAX: usize = 4;

/// One small program.
struct Case {
    name: String,
    /// Program and arguments that run it.
    command: Vec<PathBuf>,
}

/// What a case did.
struct Run {
    /// Standard output, then how it ended.
    told: String,
    /// Standard error: shown with a difference, not compared.
    errors: String,
}

#[test]
fn every_case_prints_what_it_prints_on_the_kernel() {
    judge_all(|_| true, |case, scratch| judge(case, scratch, "", KNOWN));
}

/// Without the library, as a static program is, which accepts by calls to the supervisor.
#[test]
fn without_a_library_sessions_are_what_they_are_on_the_kernel() {
    let is_about_sessions = |name: &str| {
        let wanted = [
            "accept", "backlog", "close", "connect", "epoll", "exec", "fork", "linger",
        ];
        let more = [
            "poll", "rights", "reuse", "select", "shutdown", "signals", "threads",
        ];
        wanted
            .iter()
            .chain(&more)
            .any(|word| name.starts_with(word))
    };
    let known = [KNOWN, KNOWN_WITHOUT_LIBRARY].concat();
    judge_all(is_about_sessions, |case, scratch| {
        judge(case, scratch, "--no-rings", &known)
    });
}

/// Over a stack, rings make no difference. Needs root, for a TAP and a network namespace.
#[test]
fn with_rings_every_case_prints_what_it_prints_with_pairs() {
    let is_about_streams = |name: &str| {
        // Urgent data does not cross the stack: there that case waits until it is ended.
        let others = [
            "udp_",
            "options_",
            "unix_",
            "resolve",
            "bind_",
            "accept_errors",
            "many_messages",
            "out_of_band",
            // The bytes and the end arrive one after the other: a poll in between sees only the
            // bytes.
            "receive_low_water",
            // So do bytes and a reset; rings keep the bytes, as the kernel does, pairs do not.
            "linger_before",
        ];
        !others.iter().any(|other| name.starts_with(other))
    };
    judge_all(is_about_streams, judge_rings);
}

/// A program gets rings where it can, and none where it is configured without them or has set up an
/// io_uring.
#[test]
fn a_session_of_the_stack_has_rings() {
    let folder = tempfile::tempdir().unwrap();
    let has_rings = |before: &str, options: &str| {
        let program = format!(
            "import ctypes, sys; sys.path.insert(0, {:?}); from _case import *\n{before}\n\
             client, accepted = pair()\n\
             for _ in range(20): client.sendall(b'x'); receive(accepted, 1)\n\
             say(sum('sidecore-ring' in line for line in open('/proc/self/maps')))\n",
            folder_of_cases().display().to_string()
        );
        let command = vec![python(), "-c".into(), program.into()];
        let name = "rings".to_owned();
        let ran = over_stack(&Case { name, command }, folder.path(), options);
        assert!(
            ran.told.ends_with("exit status: 0\n"),
            "{}{}",
            ran.told,
            ran.errors
        );
        ran.told.lines().next().map(str::to_owned)
    };
    // Two mappings: the shared segment, and one memory for both ends.
    assert_eq!(has_rings("", "").as_deref(), Some("2"));
    assert_eq!(has_rings("", "--no-rings").as_deref(), Some("0"));
    let io_uring = format!(
        "ctypes.CDLL(None).syscall({}, 4, ctypes.create_string_buffer(120))",
        libc::SYS_io_uring_setup
    );
    assert_eq!(has_rings(&io_uring, "").as_deref(), Some("0"));
}

/// A connect after the listener was closed is refused, not accepted and reset.
#[test]
fn a_closed_listener_of_the_stack_refuses_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = format!(
        "import sys; sys.path.insert(0, {:?}); from _case import *\n\
         for _ in range(5):\n\
         \x20   server = listener()\n\
         \x20   address = server.getsockname()\n\
         \x20   client = socket.create_connection(address)\n\
         \x20   child = os.fork()\n\
         \x20   if child == 0: time.sleep(0.2); server.close(); os._exit(0)\n\
         \x20   server.close()\n\
         \x20   shared = outcome(lambda: bool(socket.create_connection(address)))\n\
         \x20   os.waitpid(child, 0)\n\
         \x20   say(shared, outcome(socket.create_connection, address))\n",
        folder_of_cases().display().to_string()
    );
    let command = vec![python(), "-c".into(), program.into()];
    let name = "closed".to_owned();
    let ran = over_stack(&Case { name, command }, folder.path(), "");
    let expected = "True ECONNREFUSED\n".repeat(5);
    assert!(
        ran.told == format!("{expected}exit status: 0\n"),
        "{}{}",
        ran.told,
        ran.errors
    );
}

/// A library of another build, which cannot share rings, is reported.
#[test]
fn a_library_of_another_version_is_told_of_once() {
    let folder = tempfile::tempdir().unwrap();
    let asks = |version: u32| {
        let program = format!(
            "import sys; sys.path.insert(0, {:?}); from _case import *; import ctypes, struct\n\
             client, accepted = pair()\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             for _ in range(2):\n    \
                 asked = struct.pack('4I', {version}, 0, 0, 0)\n    \
                 words = ctypes.create_string_buffer(asked, 16)\n    \
                 room = ctypes.c_uint32(16)\n    \
                 got = libc.syscall({}, client.fileno(), {}, {}, words, ctypes.byref(room))\n    \
                 say(errno.errorcode[ctypes.get_errno()] if got else 'ok')\n",
            folder_of_cases().display().to_string(),
            libc::SYS_getsockopt,
            sidecore_net_rings::LEVEL,
            sidecore_net_rings::ATTACH,
        );
        let name = "version".to_owned();
        let command = vec![python(), "-c".into(), program.into()];
        let ran = over_stack(&Case { name, command }, folder.path(), "");
        (ran.told, ran.errors.matches("of another version").count())
    };
    let (old, other) = (0, sidecore_net_rings::VERSION + 1);
    for version in [old, other] {
        let refused = "ENOTSUP\nENOTSUP\nexit status: 0\n".to_owned();
        assert_eq!(asks(version), (refused, 1), "{version}");
    }
    let same = "ok\nok\nexit status: 0\n".to_owned();
    assert_eq!(asks(sidecore_net_rings::VERSION), (same, 0));
}

/// With `--all` an address of the kernel's is not among the stack's either; the loopback's
/// addresses stay the kernel's.
#[test]
fn with_all_only_the_loopback_is_left_to_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let program = format!(
        "import sys; sys.path.insert(0, {:?}); from _case import *\n\
         for address in '10.91.9.1', '127.0.0.1', '10.91.9.2':\n    \
             made = socket.socket()\n    \
             say(outcome(made.bind, (address, 8080)) or outcome(made.listen))\n",
        folder_of_cases()
    );
    let path = folder.path().join("all.py");
    std::fs::write(&path, program).unwrap();
    let case = Case {
        name: "all".to_owned(),
        command: vec![python(), path],
    };
    let told = |options: &str| over_stack(&case, folder.path(), options).told;
    assert_eq!(told(""), "None\nNone\nNone\nexit status: 0\n");
    let all = told("--all");
    assert_eq!(all, "EADDRNOTAVAIL\nNone\nNone\nexit status: 0\n");
}

fn judge_all(
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

/// Every reason belongs to an existing case.
#[test]
fn the_list_of_known_differences_names_cases() {
    let all = KNOWN
        .iter()
        .chain(KNOWN_OF_RINGS)
        .chain(KNOWN_WITHOUT_LIBRARY);
    for (name, reason) in all {
        let found = ["py", "c"]
            .iter()
            .any(|ending| folder_of_cases().join(format!("{name}.{ending}")).is_file());
        assert!(found, "no case `{name}`");
        assert!(reason.len() > 10, "no reason for `{name}`");
    }
}

/// The comparison sees a difference of output, of exit status, and a signal.
#[test]
fn a_difference_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let shell = |words: &str| {
        let command = ["sh", "-c", words].map(PathBuf::from);
        run(&command, folder.path(), Duration::from_secs(30)).told
    };
    assert_eq!(shell("echo a; exit 3"), "a\nexit status: 3\n");
    assert_eq!(shell("echo a; kill -TERM $$"), "a\nexit status: 143\n");
    assert_ne!(shell("echo a"), shell("echo b"));
    let endless = ["sleep", "60"].map(PathBuf::from);
    let told = run(&endless, folder.path(), Duration::from_millis(200)).told;
    assert!(told.starts_with("hangs"), "{told}");
}

/// Runs a case both ways; returns the fault.
fn judge(case: &Case, scratch: &Path, options: &str, known: &[(&str, &str)]) -> Option<String> {
    let known = known.iter().find(|(name, _)| *name == case.name);
    let name = &case.name;
    std::fs::create_dir_all(scratch).unwrap();
    let kernel = run(&case.command, scratch, PATIENCE);
    if !kernel.told.ends_with("exit status: 0\n") {
        let (told, errors) = (kernel.told, kernel.errors);
        return Some(format!(
            "{name} fails on the kernel itself:\n{told}{errors}"
        ));
    }
    let mut command: Vec<_> = [env!("CARGO_BIN_EXE_sidecore"), "net", "run", "--loopback"]
        .map(PathBuf::from)
        .into();
    command.extend(options.split_whitespace().map(PathBuf::from));
    command.push("--".into());
    command.extend(case.command.iter().cloned());
    let ours = run(&command, scratch, PATIENCE);
    match (kernel.told == ours.told, known) {
        (true, None) | (false, Some(_)) => None,
        (true, Some((_, reason))) => Some(format!(
            "{name} agrees now: take it off KNOWN (its reason was: {reason})"
        )),
        (false, None) => Some(format!(
            "{name}: the first difference is line {}\n{}{}",
            first_difference(&kernel.told, &ours.told),
            side_by_side(&kernel.told, &ours.told),
            ours.errors
        )),
    }
}

/// Runs a case over a stack with pairs and with rings; returns the fault.
fn judge_rings(case: &Case, scratch: &Path) -> Option<String> {
    let known = KNOWN_OF_RINGS.iter().find(|(name, _)| *name == case.name);
    let name = &case.name;
    std::fs::create_dir_all(scratch).unwrap();
    let mut differs = None;
    // Cases that differ by timing alone agree on a second run.
    for _ in 0..RUNS_MAX {
        let pairs = over_stack(case, scratch, "--no-rings");
        let rings = over_stack(case, scratch, "");
        let ends = !rings.told.contains("hangs: ");
        if pairs.told == rings.told || known.is_some() && ends {
            return None;
        }
        differs = Some(format!(
            "{name}: with rings, the first difference is line {}\n{}{}",
            first_difference(&pairs.told, &rings.told),
            side_by_side(&pairs.told, &rings.told),
            rings.errors
        ));
    }
    differs
}

/// Runs a case under a run whose stack has 10.91.9.2 and fd91::2, at which the case connects.
fn over_stack(case: &Case, scratch: &Path, options: &str) -> Run {
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
    command.extend([run_it, env!("CARGO_BIN_EXE_sidecore").to_owned()].map(PathBuf::from));
    command.extend(["--config".into(), setup, "--".into()]);
    command.extend(case.command.iter().cloned());
    run(&command, scratch, PATIENCE)
}

/// Runs a command with a time limit, in a process group of its own that ends with it.
fn run(command: &[PathBuf], scratch: &Path, patience: Duration) -> Run {
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
        told: format!("{}{end}\n", read(&out)),
        errors: read(&errors),
    }
}

/// The library that programs load: cargo puts it next to the tests, whose crate depends on it.
fn library() -> PathBuf {
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
    part("kernel", kernel) + &part("ours  ", ours)
}

/// All cases, those in C compiled into `folder`.
fn cases(folder: &Path) -> Vec<Case> {
    let wanted = std::env::var("SIDECORE_CASES").unwrap_or_default();
    let python = python();
    let mut cases = Vec::new();
    let mut compiling = Vec::new();
    for entry in folder_of_cases().read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if name.starts_with('_') || !name.contains(&wanted) {
            continue; // what cases share, or unwanted
        }
        let command = match path.extension().and_then(|ending| ending.to_str()) {
            Some("py") => vec![python.clone(), path],
            Some("c") => {
                let program = folder.join(&name);
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

fn compile(source: &Path, program: &Path) -> std::process::Child {
    Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([program, source])
        .spawn()
        .unwrap_or_else(|error| panic!("cc: {error}; scripts/setup installs it"))
}

/// The interpreter itself: `python3` may be a script that looks for it.
fn python() -> PathBuf {
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

fn folder_of_cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../net/run/tests/cases")
}
