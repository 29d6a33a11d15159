//! The C headers compile without a warning, wherever they are included, as C and as C++; programs
//! that are linked with the library call kernels, submit jobs, and survive the daemon's death. They
//! send nothing to a daemon that another user (65534) pretends to be; that part needs root.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; a child speaks.

#[path = "common/c.rs"]
mod c;
#[path = "../../daemon/tests/common/other_user.rs"]
mod other_user;

use c::{LANGUAGES, compile_and_link, compile_with, install};
use other_user::{ARGUMENT, Child, ROLE, UID, can_be_played, open_folder, pretend};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[test]
fn the_headers_compile_in_any_order_in_any_standard() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, nets, others) = (
        "#include \"sidecore.h\"\n",
        "#include \"sidecore_net.h\"\n",
        // Without the additions of _GNU_SOURCE, where the standard is strict.
        "#include <stdio.h>\n#include <time.h>\n#include <fcntl.h>\n#include <sys/socket.h>\n",
    );
    let orders = [
        [ours, "", ""],
        [nets, "", ""],
        [ours, nets, others],
        [others, nets, ours],
        [others, ours, ours],
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (number, order) in orders.iter().enumerate() {
        let text = format!("{}int main(void) {{ return 0; }}\n", order.concat());
        let source = folder.path().join(format!("order{number}.c"));
        std::fs::write(&source, text).unwrap();
        for (compiler, language, standard) in [
            ("cc", "c", "c99"),
            ("cc", "c", "c11"),
            ("cc", "c", "gnu17"),
            ("c++", "c++", "c++11"),
            ("c++", "c++", "c++17"),
        ] {
            let output = Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
                .args(["-x", language, &format!("-std={standard}")])
                .arg("-I")
                .arg(root.join("include"))
                .arg("-I")
                .arg(root.join("../../net/c/include"))
                .arg(&source)
                .output()
                .unwrap_or_else(|error| panic!("{compiler}: {error}; scripts/setup installs it"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{standard}, order {number}: {said}"
            );
        }
    }
}

#[test]
fn a_c_client_calls_and_survives_the_daemon() {
    for language in LANGUAGES {
        let said = play("sidecore_h.c", language);
        assert!(
            said.starts_with("ready\n") && said.contains("then on its own"),
            "{said}"
        );
    }
}

/// Clocks are system calls if the kernel's vDSO is not mapped.
#[test]
fn a_c_client_runs_under_valgrind() {
    let found = Command::new("valgrind").arg("--version").output();
    found.expect("valgrind; scripts/setup installs it");
    let said = play_under(&["valgrind", "-q", "--error-exitcode=9"], "attach.c");
    assert_eq!(said, "ready\nsum 3.5\n");
}

/// Memory and tickets that an exception leaves behind are given back, and answers are those of the
/// C functions.
#[test]
fn a_client_in_cpp_owns_what_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("client.cc");
    std::fs::write(&source, CLIENT_IN_CPP).unwrap();
    install(&library(), "libsidecore", folder.path());
    let libraries = folder.path().display();
    let options = [
        "-std=c++17".to_owned(),
        format!("-L{libraries}"),
        "-lsidecore".to_owned(),
        format!("-Wl,-rpath,{libraries}"),
    ];
    let (root, source) = (env!("CARGO_MANIFEST_DIR"), source.to_str().unwrap());
    let program = compile_with(root, source, LANGUAGES[1], folder.path(), &options);
    let daemon = idle_daemon(folder.path());
    let output = Command::new(program).arg(daemon.socket()).output().unwrap();
    assert_eq!(said(&output), "all is well\n");
    assert!(output.status.success(), "{}", output.status);
}

/// The module's own examples, then what is an exception, what outlives a client, and NumPy where it
/// is installed.
#[test]
fn a_client_in_python_calls_submits_and_reports() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = idle_daemon(folder.path());
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let output = Command::new("python3")
        .args(["-B", "-W", "error", "-c", CLIENT_IN_PYTHON])
        .arg(daemon.socket())
        .arg(env!("CARGO_PKG_VERSION"))
        .env("PYTHONPATH", &module)
        .env("SIDECORE_LIBRARY", library())
        .output()
        .expect("python3; scripts/setup installs it");
    let text = said(&output);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.ends_with("all is well\n"), "{text}");
    if text.contains("no NumPy") {
        eprintln!("NOT TESTED: arrays of NumPy (python3-numpy)");
    }
}

#[test]
fn pip_installs_the_module_from_its_folder() {
    let can_build = "import pip, setuptools\ntry: import wheel\n\
        except ImportError: assert int(setuptools.__version__.split('.')[0]) >= 71";
    let python = |words: &[&str]| Command::new("python3").args(words).output().unwrap();
    if !python(&["-c", can_build]).status.success() {
        eprintln!("NOT TESTED: there is no pip with setuptools and wheel");
        return;
    }
    // Of a copy: a build leaves files next to its sources.
    let folder = tempfile::tempdir().unwrap();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for name in ["pyproject.toml", "sidecore_offload.py"] {
        std::fs::copy(module.join(name), copy.join(name)).unwrap();
    }
    let installed = folder.path().join("installed");
    let (copy, target) = (copy.to_str().unwrap(), installed.to_str().unwrap());
    let offline = ["--no-index", "--no-build-isolation", "--no-deps"];
    let words = ["-m", "pip", "install", "--target", target, copy];
    let output = python(&[&words[..], &offline].concat());
    assert!(output.status.success(), "{}", said(&output));
    assert!(installed.join("sidecore_offload.py").exists());
    let information = format!("sidecore_offload-{}.dist-info", env!("CARGO_PKG_VERSION"));
    assert!(installed.join(information).exists());
}

/// A daemon of one engine.
fn idle_daemon(folder: &Path) -> Daemon {
    Daemon::start(DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines: 1,
        ..DaemonOptions::default()
    })
    .unwrap()
}

/// The built library lies next to this test's program.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libsidecore.so")
}

/// All that a program said, errors last.
fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// In a container a client has a PID namespace of its own, or the daemon has.
#[test]
fn a_c_client_attaches_from_a_pid_namespace() {
    if !sidecore_is_root() {
        return;
    }
    let said = play_under(&["unshare", "-pf", "--mount-proc"], "attach.c");
    assert_eq!(said, "ready\nsum 3.5\n");
}

fn sidecore_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Runs a program under a runner while a daemon serves; returns all of its output.
fn play_under(runner: &[&str], source: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let root = env!("CARGO_MANIFEST_DIR");
    let program = compile_and_link(root, source, LANGUAGES[0], folder.path());
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 1,
        ..DaemonOptions::default()
    })
    .unwrap();
    let output = Command::new(runner[0])
        .args(&runner[1..])
        .arg(&program)
        .arg(daemon.socket())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {errors}{said}", output.status);
    said
}

/// Runs a program while a daemon serves, which is stopped at the program's line `ready`. Returns
/// all of the program's output.
fn play(source: &str, language: (&str, &str)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let root = env!("CARGO_MANIFEST_DIR");
    let program = compile_and_link(root, source, language, folder.path());
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        registry: Registry::with_spin_us(),
        ..DaemonOptions::default()
    })
    .unwrap();
    let mut child = Command::new(&program)
        .arg(daemon.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    said.read_line(&mut text).unwrap();
    daemon.stop();
    said.read_to_string(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}{text}", output.status);
    text
}

#[test]
fn a_c_client_keeps_a_thousand_jobs_open() {
    for language in LANGUAGES {
        let text = play("jobs.c", language);
        assert!(text.starts_with("ready\n"), "{text}");
        assert!(text.contains("lost, then done here"), "{text}");
    }
}

/// Not a test of its own: the other user's part.
#[test]
fn child() {
    if let Ok(role) = std::env::var(ROLE) {
        assert_eq!(role, "pretend");
        pretend(&PathBuf::from(std::env::var_os(ARGUMENT).unwrap()));
    }
}

#[test]
fn an_impostor_is_told_nothing_and_refused_in_one_line() {
    if !can_be_played() {
        return;
    }
    let folder = open_folder();
    let place = folder.path().join("theirs");
    std::fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(UID), Some(UID)).unwrap();
    let socket = place.join("daemon.sock");
    let mut impostor = Child::start(folder.path(), "pretend", &socket);
    impostor.expect("listening");
    for language in LANGUAGES {
        let root = env!("CARGO_MANIFEST_DIR");
        let program = compile_and_link(root, "attach.c", language, folder.path());
        let output = Command::new(program).arg(&socket).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("neither this one nor root"), "{said}");
        assert_eq!(impostor.expect("heard: "), "nothing");
    }
}

const CLIENT_IN_CPP: &str = r#"
#include "sidecore.hpp"
#include <cstdio>
#include <numeric>
#include <vector>

static int check(bool holds, const char *what) {
    if (!holds)
        std::printf("not so: %s\n", what);
    return holds ? 0 : 1;
}

int main(int argc, char **argv) {
    int bad = 0;
    try {
        sidecore_client::Client nowhere("/nowhere/daemon.sock");
        bad += check(false, "a daemon is nowhere");
    } catch (const sidecore_client::Error &error) {
        bad += check(error.code() == -ENOENT && *error.what() != 0, "no daemon, in words");
    }
    struct sidecore_options options = {};
    options.size = sizeof options;
    options.path = argc == 2 ? argv[1] : nullptr;
    options.arena_bytes = 1 << 20;
    options.silence_ms = 60000; /* a busy machine is not taken for a dead daemon */
    sidecore_client::Client first(options);
    const sidecore_client::Client client = std::move(first);
    bad += check(client.engines() == 1, "one engine");
    sidecore_client::Buffer in = client.alloc(1000 * sizeof(double));
    std::iota(in.begin<double>(), in.end<double>(), 0.0);
    const int sum = client.kernel("sum_f64");
    const sidecore_client::Answer answer = client.call(sum, {}, {&in}, {}, 0);
    bad += check(answer && answer.as_double(0) == 499500.0, "the sum");
    bad += check(client.call(sum, {1, 2, 3, 4, 5, 6, 7}).status == SIDECORE_INVALID, "seven words");
    try {
        client.kernel("no such kernel");
        bad += check(false, "a kernel of that name");
    } catch (const sidecore_client::Error &error) {
        bad += check(error.code() == -ENOENT, "no such kernel");
    }
    try {
        client.alloc(1 << 21);
        bad += check(false, "2 MiB of 1");
    } catch (const sidecore_client::Error &error) {
        bad += check(error.code() == SIDECORE_NO_MEMORY, "no room");
    }
    /* Again and again: a buffer that was not given back would fill the arena. */
    for (int i = 0; i < 100; i++)
        sidecore_client::Buffer half = client.alloc(1 << 19);

    std::vector<sidecore_client::Buffer> parts;
    for (std::uint64_t token = 0; token < 50; token++) {
        parts.push_back(client.alloc(16 * sizeof(double)));
        std::fill(parts.back().begin<double>(), parts.back().end<double>(), double(token));
        bad += check(client.submit(token, sum, {}, {&parts.back()}).has_value(), "a job");
    }
    double all = 0;
    int jobs = 0;
    while (auto done = client.wait()) {
        bad += check(*done && done->as_double(0) == 16.0 * double(done->token), "a job's sum");
        all += done->as_double(0);
        jobs++;
    }
    bad += check(jobs == 50 && all == 16.0 * 1225 && !client.poll(), "fifty jobs");
    bad += check(client.descriptor() >= 0, "a descriptor");
    std::printf(bad ? "bad\n" : "all is well\n");
    return bad;
}
"#;

const CLIENT_IN_PYTHON: &str = r#"
import array, doctest, gc, selectors, struct, sys
import sidecore_offload as client_of

socket, version = sys.argv[1:]
assert client_of.__version__ == version, client_of.__version__
# A busy machine is not taken for a dead daemon.
client_of.Client.__init__.__defaults__ = (None, 16 << 20, 0, 60000)
found = doctest.testmod(client_of, extraglobs={"SOCKET": socket, "array": array, "struct": struct})
assert found.failed == 0 and found.attempted >= 8, found

client = client_of.Client(socket, arena_bytes=1 << 20)
assert client.engines == 1

def raises(kind, work, *words, **named):
    try:
        work(*words, **named)
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")

raises(LookupError, client.kernel, "no such kernel")
raises(ValueError, client.call, -1)
raises(ValueError, client.call, "empty", words=range(7))
raises(ValueError, client.call, "sum_f64", [b"8 bytes "] * 5)
raises(FileNotFoundError, client_of.Client, "/nowhere/daemon.sock")
raises(MemoryError, client.buffer, 1 << 21)
raises(TypeError, client.buffer, 1.5)
raises(ValueError, client.buffer, 8 - (1 << 64))
# Again and again: a buffer that was not given back would fill the arena.
for _ in range(100):
    client.buffer(1 << 19)
assert client.call("sum_f64", [struct.pack("d", 7)], engine=0).as_double() == 7
assert bytes(client.buffer(b"")) == b""

tokens = {client.submit("sum_f64", [array.array("d", [n, n])]): 2.0 * n for n in range(50)}
watched = selectors.DefaultSelector()
watched.register(client, selectors.EVENT_READ)
while tokens:
    assert watched.select(60), "no job ends"
    while (done := client.wait(0)) is not None:
        assert done.as_double() == tokens.pop(done.token)
assert client.wait() is None and not client._open
assert not client.cancel(0)

try:
    import numpy
except ImportError:
    print("no NumPy")
else:
    buffer = client.buffer(numpy.arange(6.0).reshape(2, 3))
    numbers = buffer.array("f8")
    numbers += 1
    assert client.call("sum_f64", [buffer]).as_double() == numbers.sum() == 21
    raises(TypeError, client.buffer, numpy.zeros((3, 2)).T)

# A view outlives all names of its buffer and its client.
view = client.buffer(b"12345678").view()
watched.close()
del client
gc.collect()
assert bytes(view) == b"12345678"
del view
gc.collect()
print("all is well")
"#;
