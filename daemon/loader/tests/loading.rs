//! Kernels of C and Rust through a daemon, and files that must be refused.
//!
//! Needs a C compiler: without one the tests report that and pass.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod children;

use sidecore_daemon::client::{self, Args, Client, ClientError, ClientOptions};
use sidecore_daemon::served::{KernelHash, Registry};
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_loader::{Fault, FolderError, HostProgram, Limits, Loading, ObjectError, Registered};
use sidecore_sys::float::Modes;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A folder that only this user can write, whatever the mask for new files.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

/// As `sidecore daemon` does, with this crate's program as the host.
fn register(registry: Registry, folder: &Path) -> Result<Registered, FolderError> {
    let host = HostProgram {
        file: env!("CARGO_BIN_EXE_sidecore-kernel-host").into(),
        arguments: Vec::new(),
    };
    let loading = Loading {
        host: Some(host),
        limits: Limits::MOST,
    };
    sidecore_loader::register(registry, folder, &loading)
}

fn close(file: &Path) {
    fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
}

fn has_compiler() -> bool {
    let found = Command::new("cc").arg("--version").output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("NOT tested: there is no C compiler `cc`");
    }
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles C source to `folder/name`.
fn compile(folder: &Path, name: &str, source: &str) -> PathBuf {
    compile_as(folder, name, source, "-O2")
}

fn compile_as(folder: &Path, name: &str, source: &str, level: &str) -> PathBuf {
    let options = [level, "-std=c11", "-Wall", "-Wextra", "-Werror"];
    compile_with(folder, name, source, &options)
}

fn compile_with(folder: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (text, object) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&text, source).unwrap();
    let output = Command::new("cc")
        .args(options)
        .args(["-fPIC", "-shared", "-I"])
        .arg(root().join("../kernel-abi/include"))
        .arg(&text)
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    fs::remove_file(text).unwrap();
    close(&object);
    object
}

/// The template in C, built by its Makefile.
fn template(folder: &Path) -> PathBuf {
    for file in ["word_sum.c", "Makefile"] {
        fs::copy(root().join("examples/c").join(file), folder.join(file)).unwrap();
    }
    let output = Command::new("make")
        .arg("-C")
        .arg(folder)
        .arg(format!(
            "INCLUDE={}",
            root().join("../kernel-abi/include").display()
        ))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let object = folder.join("word_sum.so");
    close(&object);
    object
}

/// A daemon with these kernels, on a socket in `folder`.
fn serve(folder: &Path, registry: Registry) -> Daemon {
    Daemon::start(DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines: 1,
        grace: Duration::from_millis(1),
        registry,
        ..DaemonOptions::default()
    })
    .unwrap()
}

fn attach(daemon: &Daemon, registry: Registry) -> Client {
    let options = ClientOptions {
        registry,
        ..ClientOptions::patient()
    };
    // However long a busy machine takes for it.
    let mut tries = (0..30).map(|_| Client::attach_with(daemon.socket(), options.clone()));
    let tried = tries.find(|tried| !matches!(tried, Err(ClientError::Silent { .. })));
    tried.unwrap().unwrap()
}

#[test]
fn a_kernel_in_c_serves_and_its_hash_is_the_files() {
    if !has_compiler() {
        return;
    }
    let (kernels, sockets) = (folder(), folder());
    let object = template(kernels.path());
    let loaded = register(Registry::builtin(), kernels.path()).unwrap();
    assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
    let daemon = serve(sockets.path(), loaded.registry);
    let hash = KernelHash::of(&fs::read(&object).unwrap());
    // The linked code stays, even if the file changes.
    fs::write(&object, b"something else").unwrap();
    let status = client::status(daemon.socket(), &Default::default()).unwrap();
    let listed = status
        .served
        .iter()
        .find(|kernel| kernel.name == "word_sum")
        .unwrap();
    assert_eq!((listed.version, &listed.hash), (1, &hash.to_string()));

    let remote = |hash| {
        Registry::builtin()
            .with_remote("word_sum", 1, hash)
            .unwrap()
    };
    let client = attach(&daemon, remote(Some(hash)));
    let word_sum = client.kernel("word_sum").unwrap();
    let mut values = client.buffer(100_000);
    for (value, number) in values.values_mut::<u64>().iter_mut().zip(0..) {
        *value = number * number;
    }
    let sum: u64 = (0..12_500).map(|number| number * number).sum();
    for round in 1..=3 {
        let reply = client.call(word_sum, Args::new().input(&values)).unwrap();
        assert_eq!(reply.words, [sum, round, 0, 0, 0, 0]);
    }
    let odd = client.call(word_sum, Args::new().input_part(&values, 0..9));
    let odd = odd.unwrap_err().to_string();
    assert!(odd.contains("whole 64-bit words"), "{odd}");
    assert_eq!(client.counters().on_host, 0);

    // Another build is not called; a client without a build of its own gets an error.
    let client = attach(&daemon, remote(Some(KernelHash::of(b"another"))));
    let word_sum = client.kernel("word_sum").unwrap();
    let refused = client
        .call(word_sum, Args::new().input(&values))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("no daemon serves `word_sum` version 1 with hash"),
        "{refused}"
    );
    let other_version = Registry::builtin()
        .with_remote("word_sum", 2, None)
        .unwrap();
    let client = attach(&daemon, other_version);
    let word_sum = client.kernel("word_sum").unwrap();
    assert!(client.call(word_sum, Args::new().input(&values)).is_err());
    daemon.stop();
}

#[test]
fn a_client_insists_on_a_built_in_kernels_hash() {
    let sockets = folder();
    let daemon = serve(sockets.path(), Registry::builtin());
    let status = client::status(daemon.socket(), &Default::default()).unwrap();
    let listed = status
        .served
        .iter()
        .find(|kernel| kernel.name == "empty")
        .unwrap();
    for (hash, on_engines) in [(listed.hash.parse().unwrap(), 1), (KernelHash::of(b""), 0)] {
        let registry = Registry::builtin().expecting("empty", hash).unwrap();
        let client = attach(&daemon, registry);
        client
            .call(client.kernel("empty").unwrap(), Args::new())
            .unwrap();
        assert_eq!(client.counters().on_engines, on_engines);
    }
    assert!(
        Registry::builtin()
            .expecting("nobody", KernelHash::of(b""))
            .is_err()
    );
    daemon.stop();
}

#[test]
fn a_kernel_in_rust_serves() {
    // Next to the test programs, where `cargo test` builds examples.
    let here = std::env::current_exe().unwrap();
    let built = here
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples/librust_kernel.so");
    if !built.is_file() {
        eprintln!("NOT tested: {} was not built", built.display());
        return;
    }
    let (kernels, sockets) = (folder(), folder());
    let object = kernels.path().join("rot13.so");
    fs::copy(built, &object).unwrap();
    close(&object);
    let loaded = register(Registry::builtin(), kernels.path()).unwrap();
    assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
    let daemon = serve(sockets.path(), loaded.registry);
    let client = attach(
        &daemon,
        Registry::builtin().with_remote("rot13", 1, None).unwrap(),
    );
    let rot13 = client.kernel("rot13").unwrap();
    let text = b"Why did the chicken cross the road? ".repeat(1000);
    let mut input = client.buffer(text.len());
    input.bytes_mut().copy_from_slice(&text);
    let mut output = client.buffer(text.len());
    let reply = client
        .call(rot13, Args::new().input(&input).output(&mut output))
        .unwrap();
    assert_eq!(reply.words[0], text.len() as u64);
    assert!(
        output
            .bytes()
            .starts_with(b"Jul qvq gur puvpxra pebff gur ebnq? Jul")
    );
    input.bytes_mut().copy_from_slice(output.bytes());
    client
        .call(rot13, Args::new().input(&input).output(&mut output))
        .unwrap();
    assert!(output.bytes() == text);
    let mut short = client.buffer(10);
    let error = client.call(rot13, Args::new().input(&input).output(&mut short));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("beyond the end"), "{error}");
    daemon.stop();
}

/// The guide for kernel authors has a kernel in Rust: it builds with one dependency, and counts.
#[test]
fn the_pages_kernel_in_rust_serves() {
    let page = fs::read_to_string(root().join("../../docs/users/kernels.md")).unwrap();
    let code = page.split("```rust,ignore\n").nth(1).unwrap();
    let code = code.split("```").next().unwrap();
    let (project, kernels, sockets) = (folder(), folder(), folder());
    let abi = root().join("../kernel-abi");
    let manifest = format!(
        "[package]\nname = \"lines\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[lib]\n\
         crate-type = [\"cdylib\"]\n[dependencies]\nsidecore-kernel-abi.path = {abi:?}\n\
         [workspace]\n"
    );
    fs::write(project.path().join("Cargo.toml"), manifest).unwrap();
    // The versions of this workspace, which are on this machine.
    fs::copy(
        root().join("../../Cargo.lock"),
        project.path().join("Cargo.lock"),
    )
    .unwrap();
    fs::create_dir(project.path().join("src")).unwrap();
    fs::write(project.path().join("src/lib.rs"), code).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet"])
        .current_dir(project.path())
        .env("CARGO_TARGET_DIR", project.path().join("target"))
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let object = kernels.path().join("lines.so");
    fs::copy(project.path().join("target/debug/liblines.so"), &object).unwrap();
    close(&object);
    let loaded = register(Registry::builtin(), kernels.path()).unwrap();
    assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
    let daemon = serve(sockets.path(), loaded.registry);
    let registry = Registry::builtin().with_remote("lines", 1, None).unwrap();
    let client = attach(&daemon, registry);
    let mut text = client.buffer(50_000);
    text.bytes_mut().fill(b'.');
    text.bytes_mut()
        .iter_mut()
        .step_by(100)
        .for_each(|byte| *byte = b'\n');
    let lines = client.kernel("lines").unwrap();
    let reply = client.call(lines, Args::new().input(&text)).unwrap();
    assert_eq!(reply.words, [500, 0, 0, 0, 0, 0]);
    daemon.stop();
}

/// An object of a kernel that fails, whose `sidecore_kernel_module` is `body`.
fn object_with(folder: &Path, name: &str, body: &str) {
    let source = format!(
        "#include <sidecore_kernel.h>\n\
         static int run(struct sidecore_run *run) {{ (void)run; return 7; }}\n\
         const struct sidecore_kernel k[] = {{{{\"{name}\", 1, 0, 64, NULL, NULL, run}}}};\n\
         const struct sidecore_module *sidecore_kernel_module(void) {{ {body} }}\n"
    );
    compile(folder, &format!("{name}.so"), &source);
}

/// An object of one kernel with these fields.
fn object_of(folder: &Path, name: &str, fields: &str) {
    let source = format!(
        "#include <sidecore_kernel.h>\n\
         void *create(void) {{ return NULL; }}\n\
         void destroy(void *state) {{ (void)state; }}\n\
         int run(struct sidecore_run *run) {{ (void)run; return 7; }}\n\
         static const struct sidecore_kernel k[] = {{{{{fields}}}}};\n\
         SIDECORE_KERNEL_MODULE(k)\n"
    );
    compile(folder, &format!("{name}.so"), &source);
}

#[test]
fn files_that_are_not_fit_are_refused_one_by_one() {
    if !has_compiler() {
        return;
    }
    let (kernels, elsewhere) = (folder(), folder());
    let at = kernels.path();
    let module =
        |fields: &str| format!("static const struct sidecore_module m = {{{fields}}}; return &m;");
    let size = "sizeof(struct sidecore_kernel)";
    object_with(at, "good", &module(&format!("1, {size}, 1, 0, k")));
    object_with(at, "abi", &module(&format!("2, {size}, 1, 0, k")));
    object_with(at, "size", &module("1, 8, 1, 0, k"));
    object_with(at, "none", &module(&format!("1, {size}, 0, 0, k")));
    object_with(at, "many", &module(&format!("1, {size}, 65, 0, k")));
    object_with(at, "nowhere", &module(&format!("1, {size}, 1, 0, NULL")));
    object_with(at, "null", "return NULL;");
    object_with(at, "echo", &module(&format!("1, {size}, 1, 0, k")));
    object_with(at, "open", &module(&format!("1, {size}, 1, 0, k")));
    fs::set_permissions(at.join("open.so"), Permissions::from_mode(0o775)).unwrap();
    object_of(at, "nameless", "NULL, 1, 0, 0, NULL, NULL, run");
    object_of(at, "empty_name", "\"\", 1, 0, 0, NULL, NULL, run");
    object_of(at, "blank", "\"a b\", 1, 0, 0, NULL, NULL, run");
    object_of(
        at,
        "long_name",
        &format!("\"{}\", 1, 0, 0, NULL, NULL, run", "x".repeat(41)),
    );
    object_of(at, "runless", "\"runless\", 1, 0, 0, NULL, NULL, NULL");
    object_of(at, "half", "\"half\", 1, 0, 0, create, NULL, run");
    object_of(
        at,
        "greedy",
        "\"greedy\", 1, 0, 1ull << 40, NULL, NULL, run",
    );
    object_of(
        at,
        "stateless",
        "\"stateless\", 1, 0, 0, create, destroy, run",
    );
    compile(
        at,
        "stranger.so",
        "int other(void); int other(void) { return 1; }\n",
    );
    compile(
        at,
        "unresolved.so",
        "int nobody_has_this(void); int sidecore_kernel_module(void);\n\
         int sidecore_kernel_module(void) { return nobody_has_this(); }\n",
    );
    fs::write(at.join("text.so"), "this is no object\n").unwrap();
    close(&at.join("text.so"));
    fs::create_dir(at.join("folder.so")).unwrap();
    let outside = elsewhere.path().join("good.so");
    fs::copy(at.join("good.so"), &outside).unwrap();
    symlink(outside, at.join("link.so")).unwrap();
    let made = Command::new("mkfifo")
        .arg(at.join("pipe.so"))
        .status()
        .unwrap();
    assert!(made.success());
    fs::write(at.join("README"), "not looked at").unwrap();
    fs::write(at.join(".hidden.so"), "not looked at").unwrap();

    let loaded = register(Registry::builtin(), at).unwrap();
    let reason = |name: &str| {
        let file = at.join(format!("{name}.so"));
        let refused = loaded.refused.iter().find(|refused| refused.file == file);
        &refused
            .unwrap_or_else(|| panic!("{name} was not refused"))
            .reason
    };
    assert!(matches!(reason("abi"), ObjectError::Abi { abi: 2 }));
    let of_table = [
        "size",
        "none",
        "many",
        "nowhere",
        "null",
        "nameless",
        "empty_name",
        "blank",
    ];
    for name in of_table.into_iter().chain(["long_name", "runless", "half"]) {
        let reason = reason(name);
        assert!(matches!(reason, ObjectError::Table(_)), "{name}: {reason}");
    }
    assert!(matches!(reason("echo"), ObjectError::Registry(_)));
    assert!(matches!(reason("greedy"), ObjectError::Store { .. }));
    assert!(matches!(
        reason("open"),
        ObjectError::Unsafe(Fault::Writable { mode: 0o775 })
    ));
    assert!(matches!(reason("stranger"), ObjectError::NoModule));
    let text = reason("unresolved").to_string();
    assert!(
        text.contains("nobody_has_this") && !text.contains("/proc"),
        "{text}"
    );
    assert!(matches!(reason("text"), ObjectError::Linker(_)));
    assert!(matches!(reason("folder"), ObjectError::Unsafe(Fault::Kind)));
    assert!(matches!(reason("pipe"), ObjectError::Unsafe(Fault::Kind)));
    assert!(matches!(reason("link"), ObjectError::Link));
    assert_eq!(loaded.refused.len(), 23 - 2, "{:?}", loaded.refused);

    // Those that are fit are served: one that fails, and one that gets no state.
    let daemon = serve(elsewhere.path(), loaded.registry);
    let registry = Registry::builtin().with_remote("good", 1, None).unwrap();
    let client = attach(&daemon, registry.with_remote("stateless", 1, None).unwrap());
    for (name, text) in [("good", "status 7"), ("stateless", "made no state")] {
        let error = client
            .call(client.kernel(name).unwrap(), Args::new())
            .unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let empty = client.kernel("empty").unwrap();
    client.call(empty, Args::new()).unwrap();
    assert_eq!(client.counters().on_host, 0);
    daemon.stop();
}

#[test]
fn a_folder_that_others_can_change_is_refused_whole() {
    let parent = folder();
    let inner = parent.path().join("kernels");
    fs::create_dir(&inner).unwrap();
    close(&inner);
    assert!(register(Registry::builtin(), &inner).is_ok());
    let refused = |folder: &Path| register(Registry::builtin(), folder).unwrap_err();
    fs::set_permissions(&inner, Permissions::from_mode(0o1777)).unwrap();
    let error = refused(&inner);
    assert!(matches!(error, FolderError::Unsafe { .. }), "{error}");
    close(&inner);
    fs::set_permissions(parent.path(), Permissions::from_mode(0o775)).unwrap();
    let error = refused(&inner).to_string();
    assert!(
        error.contains("mode 0775") && error.contains("chmod go-w"),
        "{error}"
    );
    // As /tmp: others may make files there, but not exchange ours.
    fs::set_permissions(parent.path(), Permissions::from_mode(0o1777)).unwrap();
    assert!(register(Registry::builtin(), &inner).is_ok());
    // A link to it is resolved before the walk.
    let link = parent.path().join("link");
    symlink(&inner, &link).unwrap();
    assert!(register(Registry::builtin(), &link).is_ok());
    let missing = refused(&inner.join("missing"));
    assert!(
        matches!(missing, FolderError::Unreadable { .. }),
        "{missing}"
    );
}

/// Changes the modes of its thread as `crtfastmath` and `fesetround` do.
const SPOIL: &str = "
#if defined(__x86_64__)
static void spoil(void) {
    unsigned vector = 0xdfc0;
    unsigned short x87 = 0x0b7f;
    __asm__ volatile(\"ldmxcsr %0; fldcw %1; pxor %%mm0, %%mm0\" : : \"m\"(vector), \"m\"(x87));
}
#elif defined(__aarch64__)
static void spoil(void) { __asm__ volatile(\"msr fpcr, %0\" : : \"r\"(0x1400000ul)); }
#else
static void spoil(void) {}
#endif
";

/// The sum of 1000 subnormal numbers as the daemon's engine computes it; in units of the smallest.
fn subnormal_sum(daemon: &Daemon) -> u64 {
    let client = attach(daemon, Registry::builtin());
    let kernel = client.kernel("sum_f64").unwrap();
    let mut values = client.buffer(8000);
    for (value, number) in values.values_mut::<u64>().iter_mut().zip(1..) {
        *value = number;
    }
    let reply = client.call(kernel, Args::new().input(&values)).unwrap();
    assert_eq!(client.counters().on_engines, 1);
    reply.words[0]
}

#[test]
fn an_object_built_with_ofast_leaves_other_kernels_results() {
    if !has_compiler() {
        return;
    }
    let (kernels, sockets) = (folder(), folder());
    // Newer compilers leave the constructor out of shared objects: it stands here, too.
    let source = format!(
        "#include <sidecore_kernel.h>
{SPOIL}
__attribute__((constructor)) static void at_load(void) {{ spoil(); }}
static int twice(struct sidecore_run *run) {{
    double value;
    __builtin_memcpy(&value, &run->words[0], 8);
    value *= 2;
    __builtin_memcpy(&run->reply[0], &value, 8);
    return 0;
}}
static const struct sidecore_kernel kernels[] = {{{{\"twice\", 1, 0, 4096, 0, 0, twice}}}};
SIDECORE_KERNEL_MODULE(kernels)
"
    );
    compile_as(kernels.path(), "fast.so", &source, "-Ofast");
    let loaded = register(Registry::builtin(), kernels.path()).unwrap();
    assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
    assert_eq!(Modes::current(), Modes::DEFAULT);
    let daemon = serve(sockets.path(), loaded.registry);
    assert_eq!(subnormal_sum(&daemon), 500_500);
    // The kernel itself computes by the default modes as well.
    let registry = Registry::builtin().with_remote("twice", 1, None).unwrap();
    let client = attach(&daemon, registry);
    let twice = client.kernel("twice").unwrap();
    let reply = client.call(twice, Args::new().words(&[21])).unwrap();
    assert_eq!(reply.words[0], 42);
}

#[test]
fn a_kernel_that_leaves_modes_changed_leaves_other_kernels_results() {
    if !has_compiler() {
        return;
    }
    let (kernels, sockets) = (folder(), folder());
    let source = format!(
        "#include <sidecore_kernel.h>
{SPOIL}
static int state;
static void *make(void) {{ spoil(); return &state; }}
static void end(void *made) {{ (void)made; spoil(); }}
static int leave(struct sidecore_run *run) {{ run->reply[0] = 7; spoil(); return 0; }}
static const struct sidecore_kernel kernels[] = {{{{\"leave\", 1, 0, 4096, make, end, leave}}}};
SIDECORE_KERNEL_MODULE(kernels)
"
    );
    compile(kernels.path(), "leave.so", &source);
    let loaded = register(Registry::builtin(), kernels.path()).unwrap();
    assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
    let daemon = serve(sockets.path(), loaded.registry);
    assert_eq!(subnormal_sum(&daemon), 500_500);
    let registry = Registry::builtin().with_remote("leave", 1, None).unwrap();
    let client = attach(&daemon, registry);
    let leave = client.kernel("leave").unwrap();
    for _ in 0..3 {
        let reply = client.call(leave, Args::new()).unwrap();
        assert_eq!((reply.words[0], client.counters().on_host), (7, 0));
        assert_eq!(subnormal_sum(&daemon), 500_500);
    }
}
