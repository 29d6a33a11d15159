//! `daemon` and `top`, from the outside: what they print, how they end, what they leave behind.
//!
//! Must stay true: every daemon that a test starts ends with the test, also when it fails.

// A test's helpers may fail it too.
#![allow(clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use sidecore_attach::Trust;
use sidecore_daemon::client::{Args, Client, ClientOptions, Job, status};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{ENGINES_MAX, EngineState, EngineStatus};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::serving;

use serving::until_it_says;

fn sidecore(arguments: &[&str]) -> Command {
    // A hang fails the test instead of stopping it.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "300", env!("CARGO_BIN_EXE_sidecore")]);
    command.args(arguments);
    command
}

/// The one line that it printed to standard error when it could not run.
fn refusal(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
    assert!(output.stdout.is_empty());
    // No cause is repeated.
    assert!(errors.matches("os error").count() <= 1, "{errors}");
    errors
}

/// A daemon that has said `ready`; ended on drop.
struct Serving {
    child: Child,
    socket: PathBuf,
}

impl Serving {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let socket = directory.join("daemon.sock");
        let mut child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
            .arg("daemon")
            .arg("--socket")
            .arg(&socket)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until_it_says(&mut child, &format!("ready {}\n", socket.display()));
        Self { child, socket }
    }

    fn path(&self) -> &str {
        self.socket.to_str().unwrap()
    }

    /// Sends a signal; the exit status.
    fn end(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the daemon does not end, told so by {signal:?}");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with one kernel, `endless`, that never returns.
fn endless(folder: &Path) -> PathBuf {
    let source = folder.join("endless.c");
    let text = "#include <sidecore_kernel.h>\n\
                static int endless(struct sidecore_run *run)\n\
                { (void)run; for (;;) __asm__ volatile(\"\"); return 0; }\n\
                static const struct sidecore_kernel kernels[] =\n\
                { {\"endless\", 1, 0, 4096, 0, 0, endless} };\n\
                SIDECORE_KERNEL_MODULE(kernels)\n";
    std::fs::write(&source, text).unwrap();
    let kernels = folder.join("kernels");
    std::fs::create_dir(&kernels).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon/kernel-abi/include"))
        .arg(&source)
        .arg("-o")
        .arg(kernels.join("endless.so"))
        .status();
    assert!(compiled.expect("cc; scripts/setup installs it").success());
    kernels
}

#[test]
fn it_ends_though_a_loaded_kernel_never_returns() {
    for (signal, client_stays) in [(Signal::TERM, true), (Signal::INT, false)] {
        let directory = tempfile::tempdir().unwrap();
        let kernels = endless(directory.path());
        let kernels = kernels.to_str().unwrap();
        let options = ["--engines", "1", "--kernels", kernels];
        let mut daemon = Serving::start(directory.path(), &options);
        let options = ClientOptions {
            registry: Registry::builtin().with_remote("endless", 1, None).unwrap(),
            ..ClientOptions::patient()
        };
        let client = Client::attach_with(&daemon.socket, options).unwrap();
        client
            .post(Job::new(client.kernel("endless").unwrap()))
            .unwrap();
        let shows = |wanted: fn(&EngineStatus) -> bool| {
            let begun = Instant::now();
            let trust = Trust::default();
            while !wanted(&status(&daemon.socket, &trust).unwrap().engines[0]) {
                assert!(begun.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        shows(|engine| engine.state == EngineState::Busy);
        let client = Some(client).filter(|_| client_stays);
        if client.is_none() {
            // Its process ended with it: the engine serves others, long before the kernel's limit.
            let other = Client::attach_with(&daemon.socket, ClientOptions::patient()).unwrap();
            let empty = other.kernel("empty").unwrap();
            other.call(empty, Args::new()).unwrap();
            assert_eq!(other.counters().on_engines, 1);
            shows(|engine| engine.left_behind == 0);
        }
        assert_eq!(daemon.end(signal), Some(0));
        assert!(!daemon.socket.exists());
        let mut said = String::new();
        let mut errors = daemon.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        // Its process has ended before the daemon, where this machine had time for it.
        assert!(
            said.lines().all(|line| line.contains("has not returned")),
            "{said}"
        );
    }
}

#[test]
fn engines_follow_the_processors_of_the_process() {
    let cores = sidecore_sys::cpu::allowed().unwrap();
    let has_taskset = Command::new("taskset").arg("--version").output().is_ok();
    if cores.len() < 2 || !has_taskset {
        eprintln!("NOT tested: it takes two cores, and taskset of util-linux");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Serving::start(directory.path(), &["--engines", "1"]);
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let every = cores.iter().map(usize::to_string).collect::<Vec<_>>();
    let first_only = first.to_string();
    let client = Client::attach_with(&daemon.socket, ClientOptions::patient()).unwrap();
    let empty = client.kernel("empty").unwrap();
    for (cpus, engine) in [(&first_only, first), (&every.join(","), last)] {
        // As a set of processors that was changed: the process's threads keep masks of their own.
        let moved = Command::new("taskset")
            .args(["-p", "-c", cpus, &daemon.child.id().to_string()])
            .output()
            .unwrap();
        assert!(moved.status.success());
        let begun = Instant::now();
        while status(&daemon.socket, &Trust::default()).unwrap().engines[0].cpu != engine {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(10));
        }
        client.call(empty, Args::new()).unwrap();
    }
    assert_eq!(client.counters().on_host, 0);
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}

#[test]
fn it_serves_shows_itself_and_ends_in_order() {
    for signal in [Signal::INT, Signal::TERM] {
        let directory = tempfile::tempdir().unwrap();
        let options = ["--engines", "1", "--grace-ms", "5", "--spin-us"];
        let mut daemon = Serving::start(directory.path(), &options);
        let options = ClientOptions {
            registry: Registry::with_spin_us(),
            ..ClientOptions::patient()
        };
        let client = Client::attach_with(&daemon.socket, options).unwrap();
        let spin = client.kernel("spin_us").unwrap();
        for number in 0..10 {
            let reply = client.call(spin, Args::new().words(&[1, number])).unwrap();
            assert_eq!(reply.words[1], number);
        }
        assert_eq!(client.counters().on_engines, 10, "{:?}", client.counters());

        // An engine counts a request after it has answered it.
        let begun = Instant::now();
        let status = loop {
            let output = sidecore(&["top", "--socket", daemon.path(), "--json"])
                .output()
                .unwrap();
            assert!(output.status.success());
            let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            if status["engines"][0]["calls"] == 10 || begun.elapsed() > PATIENCE {
                break status;
            }
        };
        assert_eq!(status["pid"], daemon.child.id());
        assert_eq!(status["grace_us"], 5_000);
        assert_eq!(status["engines"].as_array().unwrap().len(), 1);
        assert_eq!(status["engines"][0]["calls"], 10);
        let clients = status["clients"].as_array().unwrap();
        assert_eq!(clients.len(), 1, "{status}");
        assert_eq!(clients[0]["pid"], std::process::id());
        let kernels = status["kernels"].as_array().unwrap();
        assert!(
            kernels.iter().any(|name| name == "inflate_frame"),
            "{status}"
        );

        let output = sidecore(&["top", "--socket", daemon.path(), "--once"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        for words in [
            "before sleeping",
            "engines: 1,",
            "ENGINE",
            "STALLS",
            "ENGINES A LOOP",
            "clients: 1 ",
        ] {
            assert!(text.contains(words), "{words} is not in {text}");
        }
        assert!(!text.contains('\x1b'), "{text}");

        assert_eq!(daemon.end(signal), Some(0));
        assert!(!daemon.socket.exists());
        // The host does the work that the engines no longer do.
        let reply = client.call(spin, Args::new().words(&[1, 11])).unwrap();
        assert_eq!(reply.words[1], 11);
    }
}

#[test]
fn what_cannot_run_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("daemon.sock");
    let socket = socket.to_str().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "no socket").unwrap();
    let file = file.to_str().unwrap();
    let cores = sidecore_sys::cpu::allowed().unwrap().len();
    let too_many = (cores + 1).to_string();
    for (arguments, words) in [
        (
            vec!["daemon", "--socket", socket, "--engines", "0"],
            "at least 1 engine",
        ),
        (
            vec!["daemon", "--socket", socket, "--engines", &too_many],
            // Where a daemon has fewer engines than there are cores, for that reason.
            match cores < ENGINES_MAX {
                true => "--oversubscribe",
                false => "engines asked for",
            },
        ),
        (
            vec![
                "daemon",
                "--socket",
                socket,
                "--engines",
                "100000",
                "--oversubscribe",
            ],
            "100000 engines",
        ),
        (vec!["daemon", "--socket", file], "no socket"),
        (vec!["top", "--socket", socket], "sidecore daemon"),
        (vec!["top", "--socket", socket, "--json"], "sidecore daemon"),
    ] {
        let output = sidecore(&arguments).output().unwrap();
        let errors = refusal(&output);
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "no socket");
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Serving::start(directory.path(), &["--engines", "1"]);
    let output = sidecore(&["daemon", "--socket", daemon.path()])
        .output()
        .unwrap();
    let errors = refusal(&output);
    assert!(errors.contains("already serves"), "{errors}");
    assert!(Client::attach(&daemon.socket).is_ok());
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}

#[test]
fn the_socket_of_a_killed_daemon_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut killed = Serving::start(directory.path(), &["--engines", "1"]);
    killed.end(Signal::KILL);
    assert!(killed.socket.exists());
    let mut daemon = Serving::start(directory.path(), &["--engines", "1"]);
    assert!(Client::attach(&daemon.socket).is_ok());
    assert_eq!(daemon.end(Signal::INT), Some(0));
}

#[test]
fn a_socket_of_somebody_else_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make one; the continuous integration runs as root.
        eprintln!("not root: nothing to give away");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("daemon.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::os::unix::fs::chown(&socket, Some(12_345), None).unwrap();
    let output = sidecore(&["daemon", "--socket", socket.to_str().unwrap()])
        .output()
        .unwrap();
    let errors = refusal(&output);
    assert!(errors.contains("12345"), "{errors}");
    assert!(socket.exists());
}

#[test]
fn engines_may_share_cores_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let cores = sidecore_sys::cpu::allowed().unwrap().len();
    let engine_count = (cores + 1).min(ENGINES_MAX);
    let engines = engine_count.to_string();
    let arguments = ["--engines", &engines, "--oversubscribe", "--grace-ms", "1"];
    let mut daemon = Serving::start(directory.path(), &arguments);
    let client = Client::attach(&daemon.socket).unwrap();
    assert_eq!(client.engines(), engine_count);
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}

/// The files of docs/containers.md: each is read as YAML, and the commands in it are run, with a
/// socket of this test in place of theirs.
#[test]
fn the_examples_for_containers_serve_each_other() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/containers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let files: Vec<&str> = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|part| part.split("```").next())
        .collect();
    assert_eq!(files.len(), 2);
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))";
    let has_yaml = Command::new("python3").args(["-c", "import yaml"]).output();
    if !has_yaml.is_ok_and(|output| output.status.success()) {
        eprintln!("NOT tested: there is no Python with yaml (python3-yaml)");
        return;
    }
    let read = |text: &str| -> Vec<serde_json::Value> {
        let mut child = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, text.as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (compose, pods) = (read(files[0]), read(files[1]));
    let services = &compose[0]["services"];
    let container = |pod: &serde_json::Value| pod["containers"][0].clone();
    let (set, pod) = (
        container(&pods[0]["spec"]["template"]["spec"]),
        container(&pods[1]["spec"]),
    );
    // Both sides have the same folder, and the client's user is the one that the daemon allows.
    assert_eq!(pods[1]["spec"]["securityContext"]["runAsUser"], 1000);
    assert_eq!(services["program"]["user"], "1000");
    let folder = |pod: &serde_json::Value| pod["volumes"][0]["hostPath"]["path"].clone();
    let of_set = &pods[0]["spec"]["template"]["spec"];
    assert_eq!(folder(of_set), folder(&pods[1]["spec"]));
    for (daemon, client) in [
        (
            &services["engines"]["command"],
            &services["program"]["command"],
        ),
        (&set["args"], &pod["args"]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let words = |list: &serde_json::Value| -> Vec<String> {
            let words = list.as_array().unwrap().iter();
            words
                .map(|word| word.as_str().unwrap().to_owned())
                .collect()
        };
        let (daemon, mut client) = (words(daemon), words(client));
        assert_eq!(
            daemon[..3],
            ["daemon", "--socket", "/run/sidecore/daemon.sock"]
        );
        assert!(
            daemon
                .windows(2)
                .any(|pair| pair == ["--allow-uid", "1000"])
        );
        let options: Vec<&str> = daemon[3..].iter().map(String::as_str).collect();
        let serving = Serving::start(directory.path(), &options);
        for word in &mut client {
            match word.as_str() {
                "/run/sidecore/daemon.sock" => serving.path().clone_into(word),
                "/usr/bin/sidecore" => env!("CARGO_MANIFEST_PATH").clone_into(word),
                _ => {}
            }
        }
        let client: Vec<&str> = client.iter().map(String::as_str).collect();
        let output = sidecore(&client).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.starts_with("xxh3: "),
            "{said}"
        );
    }
}

/// Limit of a wait for an event that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
