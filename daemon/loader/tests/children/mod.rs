//! Kernels that do harm: each costs its own request, and nothing else.

use super::*;
use sidecore_loader::Limits;
use std::time::Instant;

/// Kernels that end their process in every way, and one that says which process it is.
const HARMFUL: &str = r#"
#define _GNU_SOURCE
#include <sidecore_kernel.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static int which(struct sidecore_run *r) { r->reply[0] = (uint64_t)getpid(); return 0; }
static int segv(struct sidecore_run *r) { (void)r; *(volatile int *)8 = 1; return 0; }
static int loop(struct sidecore_run *r) { (void)r; for (;;) __asm__ volatile(""); return 0; }
static int lock(struct sidecore_run *r) {
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&m); pthread_mutex_lock(&m); (void)r; return 0;
}
static int leak(struct sidecore_run *r) {
    for (int i = 0; i < 1024; i++) {
        char *volatile p = malloc(1 << 20);
        memset(p, 1, 1 << 20);
    }
    (void)r; return 0;
}
static int quit(struct sidecore_run *r) { (void)r; exit(7); }
static int big(struct sidecore_run *r) {
    volatile char a[3 << 20];
    for (size_t i = 0; i < sizeof a; i += 4096) a[i] = 1;
    r->reply[0] = (uint64_t)a[4096]; return 0;
}
static int med(struct sidecore_run *r) {
    volatile char a[1 << 20];
    for (size_t i = 0; i < sizeof a; i += 4096) a[i] = 1;
    r->reply[0] = (uint64_t)a[4096]; return 0;
}
static int deep(struct sidecore_run *r) {
    volatile char a[4096]; a[0] = 1; int more = deep(r); return more + a[0];
}
static int abrt(struct sidecore_run *r) { (void)r; abort(); }
static int death(struct sidecore_run *r) { (void)r; kill(getppid(), SIGKILL); return 0; }
static int thread(struct sidecore_run *r) { (void)r; pthread_exit(0); }
static int sleepy(struct sidecore_run *r) { (void)r; usleep(1); return 0; }
static int shared(struct sidecore_run *r) {
    void *p = mmap(0, 1 << 20, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)r; return p == MAP_FAILED;
}
static int code(struct sidecore_run *r) {
    void *p = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)r; return p == MAP_FAILED;
}
static int divide(struct sidecore_run *r) {
    volatile uint64_t n = 7; r->reply[0] = n / r->words[0]; return 0;
}
static int unlist(struct sidecore_run *r) {
    /* What a stray write could do: the list that tells of this thread's end. */
    (void)r; raise(SIGUSR1); return 0;
}
static int copy(struct sidecore_run *r) {
    for (uint64_t at = 0; at < r->input_bytes[0]; at += r->store_bytes) {
        uint64_t n = r->input_bytes[0] - at;
        if (n > r->store_bytes) n = r->store_bytes;
        if (sidecore_get(r, r->store, 0, at, n, 0)) return sidecore_fail(r, "get");
        if (sidecore_put(r, 0, at, r->store, n, 0)) return sidecore_fail(r, "put");
    }
    return 0;
}
static int loopy(struct sidecore_run *r) {
    while (!sidecore_yield(r)) ;
    return sidecore_fail(r, "gave up");
}
/* The word that says whose turn it is. The host's record of the call, which `call` leads to, has
 * the address of the word behind it that says whether the answer is wanted. */
static uint32_t *turn(struct sidecore_run *r) {
    uint64_t *call = r->call;
    for (int at = 0; at < 4; at++) {
        uint64_t *memory = (uint64_t *)call[at];
        if (call[at] % 8 || call[at] - (uint64_t)call + (1 << 20) > 2 << 20) continue;
        for (int word = 0; word < 128; word++) {
            uint32_t *found = (uint32_t *)(memory[word] - 12);
            if (memory[word] >> 32 && memory[word] % 4096 == 12
                && *found == (1u << 31 | (uint32_t)getpid())) return found;
        }
    }
    return 0;
}
static int wakes(struct sidecore_run *r) {
    uint32_t *word = turn(r);
    if (!word) return sidecore_fail(r, "no turn");
    for (;;) syscall(SYS_futex, word, 1, 1, 0, 0, 0);
}
#define K(f) {#f, 1, 0, 4096, 0, 0, f}
static const struct sidecore_kernel kernels[] = {
    K(which), K(segv), K(loop), K(lock), K(leak), K(quit), K(big), K(med), K(deep), K(abrt),
    K(death), K(thread), K(sleepy), K(shared), K(code), K(divide), K(unlist), K(copy), K(loopy),
    K(wakes)};
SIDECORE_KERNEL_MODULE(kernels)
"#;

const NAMES: [&str; 20] = [
    "which", "segv", "loop", "lock", "leak", "quit", "big", "med", "deep", "abrt", "death",
    "thread", "sleepy", "shared", "code", "divide", "unlist", "copy", "loopy", "wakes",
];

/// The kernels, with a time that tests wait for; `more` follows them in the source.
fn harmful(folder: &Path, more: &str) {
    let text = format!("{HARMFUL}{more}");
    compile_with(folder, "harmful.so", &text, &["-O1", "-w"]);
}

/// A daemon with the kernels, with `more` behind them in the source; folders of both.
fn harmed(more: &str) -> (Daemon, [tempfile::TempDir; 2]) {
    let (kernels, sockets) = (folder(), folder());
    harmful(kernels.path(), more);
    let loaded = register(Registry::builtin(), kernels.path()).unwrap();
    assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
    (serve(sockets.path(), loaded.registry), [kernels, sockets])
}

fn remote() -> Registry {
    NAMES.iter().fold(Registry::builtin(), |registry, name| {
        registry.with_remote(name, 1, None).unwrap()
    })
}

fn call(client: &Client, name: &str, words: &[u64]) -> Result<u64, String> {
    let kernel = client.kernel(name).unwrap();
    let reply = client.call(kernel, Args::new().words(words));
    reply
        .map(|reply| reply.words[0])
        .map_err(|error| error.to_string())
}

fn exists(process: u64) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

#[test]
fn harm_costs_one_request_and_its_process() {
    if !has_compiler() {
        return;
    }
    let (daemon, _folders) = harmed("SIDECORE_KERNEL_LIMITS(100000, 64 << 20, 0)\n");
    let (client, other) = (attach(&daemon, remote()), attach(&daemon, remote()));
    let others = call(&other, "which", &[]).unwrap();
    let mut process = call(&client, "which", &[]).unwrap();
    let mut replaced = Vec::new();
    assert_ne!(process, others, "each client has a process");
    assert!(process != u64::from(std::process::id()));
    for (name, reason) in [
        ("segv", "segv: bad address 0x8 (SIGSEGV)"),
        ("loop", "loop: still running after 100 ms"),
        ("lock", "lock: still running after 100 ms"),
        ("wakes", "wakes: still running after 100 ms"),
        ("leak", "leak: out of memory (65536 KiB)"),
        ("quit", "quit: ended its process (status 7)"),
        ("big", "big: out of stack (2048 KiB)"),
        ("deep", "deep: out of stack (2048 KiB)"),
        ("abrt", "abrt: aborted"),
        ("death", "death: system call "),
        ("thread", "thread: "),
        ("sleepy", "sleepy: system call "),
        ("shared", "shared: system call "),
        ("code", "code: system call "),
        ("divide", "divide: arithmetic fault (SIGFPE)"),
        ("unlist", "unlist: aborted"),
    ] {
        if name == "divide" && !cfg!(target_arch = "x86_64") {
            continue;
        }
        // Twice: the process that takes the first one's place is as good.
        for _ in 0..2 {
            let before = call(&client, "which", &[]).unwrap();
            assert_eq!(before, process, "{name}");
            let error = call(&client, name, &[0]).expect_err(name);
            assert!(error.contains(reason), "{name}: {error}");
            let begun = Instant::now();
            process = call(&client, "which", &[]).unwrap();
            replaced.push(begun.elapsed());
            assert_ne!(before, process, "{name}");
            assert!(!exists(before), "{name}: it was waited for");
        }
    }
    replaced.sort();
    // A figure, not a judgement: this machine may be busy.
    let (middle, last) = (replaced[replaced.len() / 2], replaced[replaced.len() - 1]);
    eprintln!("the first call of a new process took {middle:?}, {last:?} at most");
    assert_eq!(call(&client, "med", &[]), Ok(1));
    assert_eq!(call(&other, "which", &[]), Ok(others), "not touched");
    assert_eq!(client.counters().on_host, 0);
    // The end of a session is that of its process.
    drop(client);
    let begun = Instant::now();
    while exists(process) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(call(&other, "which", &[]), Ok(others));
    daemon.stop();
}

#[test]
fn bytes_stay_in_the_clients_memory() {
    if !has_compiler() {
        return;
    }
    let (daemon, _folders) = harmed("");
    let client = attach(&daemon, remote());
    let copy = client.kernel("copy").unwrap();
    let mut input = client.buffer(100_001);
    for (byte, number) in input.bytes_mut().iter_mut().zip(0_u32..) {
        *byte = (number % 251) as u8;
    }
    let mut output = client.buffer(100_001);
    for _ in 0..3 {
        output.bytes_mut().fill(0);
        let args = Args::new().input(&input).output(&mut output);
        client.call(copy, args).unwrap();
        assert!(input.bytes() == output.bytes());
    }
    // The same as a job, whose ranges take another way.
    let job = client::Job::new(copy).input(input).output(output);
    let done = client.submit(job).unwrap().wait();
    done.result.unwrap();
    assert_eq!(client.counters().on_host, 0);
    daemon.stop();
}

#[test]
fn an_object_gets_the_limits_that_it_asks_for_and_no_more_than_there_are() {
    if !has_compiler() {
        return;
    }
    let (daemon, [kernels, _sockets]) = harmed("SIDECORE_KERNEL_LIMITS(20000, 0, 8 << 20)\n");
    let client = attach(&daemon, remote());
    assert_eq!(call(&client, "big", &[]), Ok(1));
    let late = call(&client, "loop", &[]).unwrap_err();
    assert!(late.contains("still running after 20 ms"), "{late}");
    daemon.stop();

    for (fields, words) in [
        ("11000000, 0, 0", "--kernel-ms"),
        ("0, 2ull << 30, 0", "--kernel-memory"),
        ("0, 0, 65 << 20", "--kernel-stack"),
    ] {
        harmful(
            kernels.path(),
            &format!("SIDECORE_KERNEL_LIMITS({fields})\n"),
        );
        let loaded = register(Registry::builtin(), kernels.path()).unwrap();
        let refused = loaded.refused[0].to_string();
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(Limits::DEFAULT.stack_bytes, 2 << 20);
}

#[test]
fn a_host_process_that_is_killed_is_started_again() {
    if !has_compiler() {
        return;
    }
    let (daemon, _folders) = harmed("");
    let client = attach(&daemon, remote());
    let worker = call(&client, "which", &[]).unwrap();
    let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
    // Its parent, behind the name in brackets and the state.
    let (_, behind) = stat.rsplit_once(") ").unwrap();
    let host = behind.split(' ').nth(1).unwrap();
    let killed = Command::new("kill").args(["-KILL", host]).status();
    assert!(killed.unwrap().success());
    // Its workers end with it. The request that finds this one gone is done by another.
    while fs::read_to_string(format!("/proc/{worker}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_ne!(call(&client, "which", &[]).unwrap(), worker);
    daemon.stop();
}

/// Initializers run in the host process; one that crashes or does not return is refused.
#[test]
fn an_object_whose_initializer_ends_its_process_is_refused() {
    if !has_compiler() {
        return;
    }
    let kernels = folder();
    let object = |name: &str, body: &str| {
        let source = format!(
            "#include <sidecore_kernel.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
             __attribute__((constructor)) static void at_load(void) {{ {body} }}\n\
             static int run(struct sidecore_run *run) {{ (void)run; return 0; }}\n\
             static const struct sidecore_kernel k[] = {{{{\"{name}\", 1, 0, 0, 0, 0, run}}}};\n\
             SIDECORE_KERNEL_MODULE(k)\n"
        );
        compile(kernels.path(), &format!("{name}.so"), &source);
    };
    object("dies", "int *volatile p = (int *)8; *p = 1;");
    object("exits", "exit(3);");
    object("lives", "");
    let loaded = register(Registry::builtin(), kernels.path()).unwrap();
    let said: Vec<String> = loaded.refused.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("bad address (SIGSEGV)"), "{said:?}");
    assert!(said[1].contains("status 3"), "{said:?}");
    assert!(loaded.registry.find("lives").is_some());
}

#[test]
fn an_exception_of_cxx_is_a_failure() {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("NOT tested: there is no C++ compiler `c++`");
        return;
    }
    let (kernels, sockets) = (folder(), folder());
    let source = kernels.path().join("throws.cc");
    fs::write(
        &source,
        "#include <sidecore_kernel.h>\n#include <stdexcept>\n#include <vector>\n\
         static int run(struct sidecore_run *r) {\n\
           if (r->words[0] == 1) {\n\
             try { throw 7; } catch (int n) { r->reply[0] = n; return 0; } }\n\
           if (r->words[0] == 2) {\n\
             std::vector<char> v(1ull << 40); r->reply[0] = v[5]; return 0; }\n\
           throw std::runtime_error(\"no\"); }\n\
         static const sidecore_kernel k[] = {{\"segv\", 1, 0, 0, 0, 0, run}};\n\
         SIDECORE_KERNEL_MODULE(k)\n",
    )
    .unwrap();
    let object = kernels.path().join("throws.so");
    let output = Command::new("c++")
        .args(["-O1", "-fPIC", "-shared", "-I"])
        .arg(root().join("../kernel-abi/include"))
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    close(&object);
    let loaded = register(Registry::builtin(), kernels.path()).unwrap();
    assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
    let daemon = serve(sockets.path(), loaded.registry);
    let client = attach(&daemon, remote());
    assert_eq!(call(&client, "segv", &[1]), Ok(7));
    for word in [0, 2] {
        let error = call(&client, "segv", &[word]).unwrap_err();
        assert!(error.contains("segv: aborted"), "{error}");
        assert_eq!(call(&client, "segv", &[1]), Ok(7));
    }
    daemon.stop();
}

/// A client that goes away takes its endless kernel along; others of the engine are served.
#[test]
fn a_kernel_whose_client_is_gone_ends() {
    if !has_compiler() {
        return;
    }
    let (daemon, _folders) = harmed("SIDECORE_KERNEL_LIMITS(10000000, 0, 0)\n");
    let waiting = attach(&daemon, remote());
    for name in ["loop", "loopy"] {
        let client = attach(&daemon, remote());
        let job = client::Job::new(client.kernel(name).unwrap());
        let ticket = client.submit(job).unwrap();
        // On the engine, and not before it: a job that no engine has begun is taken back.
        let mut busy = false;
        while !busy {
            let status = client::status(daemon.socket(), &Default::default()).unwrap();
            busy = status.engines[0].client.is_some();
        }
        drop(ticket);
        drop(client);
        // Its engine has ten seconds of such a kernel before it; this one does not take them.
        let begun = Instant::now();
        call(&waiting, "which", &[]).unwrap();
        // A new thread may have taken the engine meanwhile: the old one is not stuck.
        let left = || client::status(daemon.socket(), &Default::default()).unwrap();
        while left().engines[0].left_behind > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }
    daemon.stop();
}
