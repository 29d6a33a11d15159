//! Layouts and symbols compared with rdma-core's; Debian's programs on libibverbs and librdmacm,
//! unmodified, in a network namespace of their own and without privileges; and a C program of this
//! folder's on the same interface. Prints a note and passes where they are not installed (Debian:
//! rdmacm-utils, perftest, ibverbs-utils, ucx-utils, qperf, openmpi-bin; `scripts/setup`).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A folder with the library under both of its names.
fn library() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let built = own.parent().unwrap().join("libsidecore_verbs.so");
        assert!(built.is_file(), "{} is not built", built.display());
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            symlink(&built, folder.path().join(name)).unwrap();
        }
        folder
    });
    folder.path()
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        println!("skipped: {program} is not installed (scripts/setup)");
    }
    found
}

/// Runs a script of the shell in namespaces of its own, as an ordinary user of them.
fn run(script: &str) -> Output {
    let inside = format!("ip link set lo up; cd \"$SCRATCH\" || exit 1\n{script}");
    let scratch = tempfile::tempdir().unwrap();
    let command = |wrapper: &[&str]| {
        let mut words = wrapper.iter().copied().chain(["sh", "-c", &inside]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env("LD_LIBRARY_PATH", library());
        command.env("SCRATCH", scratch.path());
        command.env_remove("SIDECORE_RDMA_SOCKET");
        command
    };
    let able = Command::new("unshare").args(["-Urn", "true"]).status();
    match able.is_ok_and(|status| status.success()) {
        true => command(&["unshare", "-Urn"]).output().unwrap(),
        false => {
            println!("without namespaces: the system allows none");
            command(&["env"]).output().unwrap()
        }
    }
}

/// Runs a server and, once it listens, a client; both must succeed. What both said.
fn pair(server: &str, client: &str, port: u16) -> String {
    // The server's socket, in hexadecimal digits, in the kernel's table: no time is guessed.
    let script = format!(
        "timeout 60 {server} > server 2>&1 & pid=$!
         for i in $(seq 600); do
             grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6 && break
             kill -0 $pid 2> /dev/null || break
             sleep 0.02
         done
         timeout 60 {client} > client 2>&1; client=$?
         wait $pid; server=$?
         cat server client
         echo client $client server $server"
    );
    let output = run(&script);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.ends_with("client 0 server 0\n"),
        "{server} and {client}: {said} {errors}"
    );
    said
}

#[test]
fn the_device_is_announced() {
    if !is_installed("ibv_devinfo") {
        return;
    }
    let output = run("ibv_devices && ibv_devinfo -v");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    for part in [
        "sidecore0",
        "InfiniBand (0)",
        "Ethernet",
        "PORT_ACTIVE (4)",
        "max_mr:\t\t\t\t1048576",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn rping_s_texts_come_back() {
    if !is_installed("rping") {
        return;
    }
    let said = pair(
        "rping -s -v -C 100 -S 4096",
        "rping -c -a 127.0.0.1 -v -C 100 -S 4096",
        7174,
    );
    assert_eq!(said.matches("server ping data: rdma-ping-").count(), 100);
    assert_eq!(said.matches("ping data: rdma-ping-").count(), 200);
}

#[test]
fn a_server_of_rping_stays_for_several_clients() {
    if !is_installed("rping") {
        return;
    }
    // A persistent server has no end of its own.
    pair(
        "sh -c 'mkfifo done; rping -s -P & server=$!; read line < done; kill $server; \
         wait $server; true'",
        "sh -c 'for i in 1 2 3; do rping -c -a 127.0.0.1 -C 5 || exit 1; done; \
         echo > done'",
        7174,
    );
}

#[test]
fn librdmacm_s_examples_succeed() {
    if !is_installed("ucmatose") {
        return;
    }
    pair("ucmatose -b 127.0.0.1", "ucmatose -s 127.0.0.1", 7471);
    pair(
        "ucmatose -b 127.0.0.1 -c 20 -C 20 -S 5000",
        "ucmatose -s 127.0.0.1 -c 20 -C 20 -S 5000",
        7471,
    );
    pair("rdma_server", "rdma_client -s 127.0.0.1", 7471);
    pair("rdma_xserver", "rdma_xclient -s 127.0.0.1", 7471);
    pair(
        "rstream -S 5000 -C 50 -T s",
        "rstream -s 127.0.0.1 -S 5000 -C 50 -T s",
        7471,
    );
}

#[test]
fn datagrams_of_librdmacm_are_refused() {
    if !is_installed("udaddy") {
        return;
    }
    let output = run("timeout 20 udaddy -s 127.0.0.1");
    let code = output.status.code();
    assert!(
        code.is_some_and(|code| (1..124).contains(&code)),
        "{code:?}"
    );
}

/// Programs of perftest, in both of their interfaces where they have two: connected by librdmacm,
/// and by themselves.
fn perftest(program: &str, options: &str) {
    if !is_installed(program) {
        return;
    }
    for way in ["-R", ""] {
        let server = format!("{program} {way} -F -n 200 {options}");
        let said = pair(&server, &format!("{server} 127.0.0.1"), 18515);
        assert!(said.contains("#bytes"), "{said}");
    }
}

/// Examples of libibverbs, which connect their pairs themselves.
#[test]
fn pingpong_s_messages_come_back() {
    for (program, options) in [
        ("ibv_rc_pingpong", "-g 0"),
        ("ibv_rc_pingpong", "-g 0 -e -s 100000 -m 4096"),
        ("ibv_rc_pingpong", "-g 0 -N -c"),
        ("ibv_srq_pingpong", "-g 0"),
        ("ibv_srq_pingpong", "-g 0 -e -q 3"),
        ("ibv_ud_pingpong", "-g 0"),
        ("ibv_ud_pingpong", "-g 0 -e -s 2048"),
    ] {
        if is_installed(program) {
            let server = format!("{program} {options} -n 200");
            let said = pair(&server, &format!("{server} 127.0.0.1"), 18515);
            assert!(said.contains("200 iters in"), "{said}");
        }
    }
}

#[test]
fn messages_are_measured() {
    for options in [
        "-s 64",
        "-s 64 -e",
        "-s 64 -I 64",
        "-s 65536",
        "-s 1048576 --use-srq",
    ] {
        perftest("ib_send_lat", options);
    }
    perftest("ib_send_bw", "-s 65536");
    perftest("ib_send_bw", "-s 4096 -b -q 4");
}

#[test]
fn writes_are_measured() {
    perftest("ib_write_lat", "-s 64");
    perftest("ib_write_bw", "-s 65536");
    perftest("ib_write_bw", "-s 1048576 -b");
}

#[test]
fn reads_and_atomics_are_measured() {
    perftest("ib_read_lat", "-s 64");
    perftest("ib_read_bw", "-s 65536");
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        perftest("ib_atomic_lat", &format!("-A {kind}"));
        perftest("ib_atomic_bw", &format!("-A {kind}"));
    }
}

/// A command with the library loaded ahead of the C library, as `sidecore rdma run` starts it.
fn preloaded(command: &str) -> String {
    let library = library().join("libibverbs.so.1");
    format!("env LD_PRELOAD={} {command}", library.display())
}

/// UCX, whose transports connect their pairs themselves.
#[test]
fn ucx_s_messages_are_measured() {
    if !is_installed("ucx_perftest") {
        return;
    }
    for (transport, test) in [
        ("rc_v", "tag_lat"),
        ("rc_v", "tag_bw -s 100000"),
        ("rc_v", "ucp_put_lat"),
        ("rc_v", "ucp_put_bw -s 100000"),
        ("rc_v", "ucp_get -s 100000"),
        ("rc_v", "ucp_fadd"),
        ("ud_v", "tag_lat"),
        ("ud_v", "tag_bw -s 10000"),
    ] {
        let common = format!("UCX_TLS={transport},self ucx_perftest -p 13337 -n 200 -w 10");
        let server = preloaded(&common);
        let said = pair(&server, &format!("{server} 127.0.0.1 -t {test}"), 13337);
        assert!(said.contains("Final:"), "{said}");
        assert!(!said.contains("ERROR"), "{said}");
    }
}

/// netcat accepts by accept4(2), which librspreload does not have, and curl opens without waiting.
#[test]
fn programs_on_rsocket_accept_as_they_like() {
    let preload = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";
    if !is_installed("nc") || !is_installed("curl") || !Path::new(preload).is_file() {
        return;
    }
    let library = library().join("libibverbs.so.1");
    let under = format!("env LD_PRELOAD={}:{preload}", library.display());
    let listen = |port| {
        format!(
            "sh -c \"printf 'HTTP/1.0 200 OK\\r\\n\\r\\nserved' | {under} nc -lN 127.0.0.1 {port}\""
        )
    };
    let ask = format!("sh -c 'echo asked | {under} nc -N 127.0.0.1 7171'");
    let said = pair(&listen(7171), &ask, 7171);
    assert!(said.contains("asked") && said.contains("served"), "{said}");
    let ask = format!("{under} curl -s http://127.0.0.1:7172/");
    let said = pair(&listen(7172), &ask, 7172);
    assert!(
        said.contains("GET / HTTP") && said.contains("served"),
        "{said}"
    );
}

/// Open MPI on UCX: every byte and sum is compared.
#[test]
fn ranks_of_open_mpi_exchange_messages_over_ucx() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../fi/mpi/exchange.c");
    if !is_installed("mpirun") || !is_installed("mpicc") || !Path::new(source).is_file() {
        return;
    }
    let ranks = preloaded(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_TLS=rc_v,self \
         timeout 300 mpirun --oversubscribe --bind-to none -n 2 --mca pml ucx ./exchange ucx",
    );
    let output = run(&format!("mpicc -O2 -o exchange {source} && {ranks}"));
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said} {errors}");
}

/// qperf ends its tests with work under way both ways, for which there are no receives. Up to
/// 0.4.11 its server names its port before it listens, so that a quick client may be rejected.
#[test]
fn qperf_s_tests_end() {
    if !is_installed("qperf") {
        return;
    }
    let tests = "rc_lat rc_bi_bw rc_bi_bw rc_rdma_write_bw rc_rdma_read_bw rc_fetch_add_mr \
                 ver_rc_compare_swap";
    pair(
        "sh -c 'mkfifo done; qperf & server=$!; read line < done; kill $server; \
         wait $server; true'",
        &format!(
            "sh -c 'for test in {tests}; do tries=20; \
             until qperf -cm1 -t 1 127.0.0.1 $test > said 2>&1; do \
             cat said; grep -q rejected said || exit 1; \
             tries=$((tries - 1)); test $tries != 0 || exit 1; done; done; echo > done'"
        ),
        19765,
    );
}

/// The C program of this folder, built once; none without the headers.
fn program() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("verbs");
        let output = Command::new("cc")
            .args([
                "-std=gnu11",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
            ])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs.c"))
            .arg("-o")
            .arg(&program)
            .args(["-lrdmacm", "-libverbs"])
            .output()
            .unwrap_or_else(|error| panic!("cc: {error}; scripts/setup installs it"));
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("rdma/rdma_cma.h: No such file") {
            println!("skipped: rdma/rdma_cma.h is not installed (Debian: librdmacm-dev)");
            return None;
        }
        assert!(output.status.success(), "{said}");
        Some((folder, program))
    });
    built.as_ref().map(|(_, program)| program)
}

fn part(name: &str) {
    let Some(program) = program() else {
        return;
    };
    let output = run(&format!("timeout 120 {} {name}", program.display()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n");
}

/// Tests of the C program, by their names there.
macro_rules! parts {
    ($($test:ident: $name:literal;)*) => {$(
        #[test]
        fn $test() {
            part($name);
        }
    )*};
}

parts! {
    every_operation_completes_as_verbs_say: "operations";
    extended_pairs_and_queues_do_the_same: "extended";
    faults_are_reported_to_the_one_that_made_them: "faults";
    a_request_for_an_event_raises_one: "events";
    slots_are_taken_until_their_completion_is_polled: "slots";
    shared_receives_serve_several_pairs: "shared";
    bad_arguments_are_refused: "misuse";
    objects_leave_nothing: "leaks";
    a_million_regions_fit: "regions";
    a_killed_peer_is_noticed_at_once: "killed";
    a_thousand_connections_work: "many";
    random_operations_agree_with_a_model: "sequence";
    several_threads_share_a_pair: "threads";
    a_program_that_watches_its_memory_sees_writes: "memory";
    a_request_can_be_rejected: "rejected";
    calls_without_a_channel_wait: "waiting";
    addresses_are_those_of_both_sides: "addresses";
    regions_have_their_rights: "rights";
    messages_have_all_lengths: "lengths";
    a_message_invalidates_a_key: "invalidated";
    events_move_with_their_identifier: "migrated";
    what_was_sent_arrives_after_the_end: "left";
    a_child_has_its_own_engine: "forked";
    properties_and_names_are_reported: "properties";
    refused_work_changes_no_copy: "copies";
    a_peer_may_serve_no_reads: "unread";
    a_call_does_not_wait_for_what_has_ended: "ended";
    a_region_keeps_its_offsets: "moved";
    several_threads_poll_a_queue_in_steps: "pollers";
    pairs_connect_by_their_numbers: "direct";
    a_pair_can_be_its_own_peer: "loop";
    a_peer_that_is_not_there_is_no_answer: "absent";
    changes_of_state_have_their_attributes: "changes";
    two_processes_exchange_their_numbers: "processes";
    datagrams_arrive_or_are_lost: "datagrams";
}

#[test]
fn layouts_are_those_of_the_headers() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    let mut text = String::from(
        "#include <rdma/rdma_cma.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    let layouts = sidecore_verbs::layouts();
    for (name, _, field, _) in &layouts {
        let field = field.trim_start_matches("r#");
        writeln!(
            text,
            "printf(\"{name} %zu {field} %zu\\n\", sizeof(struct {name}), \
             offsetof(struct {name}, {field}));"
        )
        .unwrap();
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).unwrap();
    let program = folder.path().join("layout");
    let output = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|error| panic!("cc: {error}; scripts/setup installs it"));
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("rdma/rdma_cma.h: No such file") {
        println!("not compared: rdma/rdma_cma.h is not installed (Debian: librdmacm-dev)");
        return;
    }
    assert!(output.status.success(), "{said}");
    let output = Command::new(&program).output().unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    let own: String = layouts
        .iter()
        .map(|(name, bytes, field, offset)| {
            format!(
                "{name} {bytes} {} {offset}\n",
                field.trim_start_matches("r#")
            )
        })
        .collect();
    assert!(layouts.len() > 300);
    for (own, expected) in own.lines().zip(expected.lines()) {
        assert_eq!(own, expected);
    }
    assert_eq!(own, expected);
}

/// Symbols of a library, with their versions; none without the tool or the library.
fn symbols(library: &std::path::Path) -> Option<BTreeSet<String>> {
    let output = Command::new("objdump")
        .arg("-T")
        .arg(library)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let defined = text.lines().filter(|line| !line.contains("*UND*"));
    let words = defined.map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>());
    let all: BTreeSet<_> = words
        // Older versions of a symbol stand in brackets: programs of before 2008 want them.
        .filter(|words| words.len() == 2 && !words[1].starts_with('('))
        .filter(|words| words[1].starts_with("IBVERBS_") || words[1].starts_with("RDMACM_"))
        .filter(|words| words[0] != words[1])
        .map(|words| format!("{} {}", words[1], words[0]))
        .collect();
    (!all.is_empty()).then_some(all)
}

#[test]
fn every_symbol_of_debian_s_libraries_is_there_with_its_version() {
    let own = std::env::current_exe().unwrap();
    let own = symbols(&own.parent().unwrap().join("libsidecore_verbs.so"));
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let folder = std::path::Path::new("/usr/lib/x86_64-linux-gnu");
        let (Some(own), Some(debian)) = (&own, symbols(&folder.join(name))) else {
            println!("not compared: {name} is not installed (Debian: libibverbs1, librdmacm1)");
            continue;
        };
        let missing: Vec<_> = debian.difference(own).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}
