//! The papers' experiment in real kernels, end to end, with the binary under test.
//!
//! Why here: ublk, the kernel's NBD client and iso9660 may only be met in a guest (docs/guests.md).
//! Must stay true: every step of both guests is named here, so that a step that vanished from the
//! script fails the test. The guests bound their own time.
//! Needs what scripts/setup installs, and the kernel that it fetches.
//!
//! RDMA over the stack with Linux's software iWARP in a guest: the short form of
//! `net/rdma/guest/run`, every part of it by name.
//!
//! Why here: a peer by other authors. Must stay true: a part that vanished from the script fails
//! the test. It takes half a minute. It is skipped, with a message, where the guest was not made
//! (`scripts/setup --siw`: 280 MB), without root, and where the other ends of Linux's tools were
//! not built (`cargo test --workspace` builds them, as does `cargo build -p sidecore-rdma --example
//! linux_peers`).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Steps for each packed image over ublk, in the QEMU guest.
const UBLK_STEPS: [&str; 9] = [
    "attach",
    "read-only",
    "dd",
    "bytes",
    "mount",
    "diff",
    "busy",
    "unmount",
    "detach",
];
/// Steps over ublk that one image is enough for.
const UBLK_STEPS_ONCE: [&str; 12] = [
    "parallel-attach",
    "parallel-reads",
    "parallel-detach",
    "odd-size",
    "damaged-frame",
    "recover-attach",
    "recover-kill-9",
    "recover-detach",
    "orphan",
    "force",
    "signals",
    "unload",
];
/// Steps for each packed image over NBD, in User-mode Linux.
const NBD_STEPS: [&str; 9] = [
    "serve",
    "connect",
    "dd",
    "bytes",
    "mount",
    "diff",
    "unmount",
    "disconnect",
    "stop",
];
const FORMATS: [&str; 2] = ["cloop-lzo", "zstd"];

#[test]
fn packed_iso_images_are_read_by_real_kernels_over_ublk_and_nbd() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/export/guest/run");
    let output = Command::new(&script)
        .arg(env!("CARGO_BIN_EXE_sidecore"))
        .output()
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", script.display()));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let story = format!("standard output:\n{stdout}\nstandard error:\n{stderr}");
    assert_ne!(
        output.status.code(),
        Some(2),
        "the guests could not run (scripts/setup installs what they need)\n{story}"
    );
    let mut steps = vec!["qemu boot".to_owned(), "uml boot".to_owned()];
    steps.extend(["qemu modules", "uml modules"].map(str::to_owned));
    for format in FORMATS {
        steps.extend(UBLK_STEPS.map(|step| format!("qemu {format}-{step}")));
        steps.extend(NBD_STEPS.map(|step| format!("uml {format}-{step}")));
    }
    steps.extend(UBLK_STEPS_ONCE.map(|step| format!("qemu {step}")));
    steps.push("uml unload".to_owned());
    // It says so, and only there.
    let has_amx = std::fs::read_to_string("/proc/cpuinfo")
        .is_ok_and(|text| text.split_whitespace().any(|flag| flag == "amx_tile"));
    let cannot = stdout
        .lines()
        .any(|line| line.starts_with("uml cannot run: "));
    assert_eq!(cannot, has_amx, "{story}");
    steps.retain(|step| !has_amx || step.starts_with("qemu "));
    for step in steps {
        let begin = format!("{step} ok ");
        assert!(
            stdout.lines().any(|line| line.starts_with(&begin)),
            "no result of step '{step}'\n{story}"
        );
    }
    assert!(
        output.status.success(),
        "ended with {}\n{story}",
        output.status
    );
}

/// Steps of the guest that writes to its disk.
const OVERLAY_STEPS: [&str; 9] = [
    "pack",
    "serve",
    "boot-1",
    "boot-2",
    "found-all",
    "wrote-more",
    "commit",
    "contents",
    "resize",
];

#[test]
fn a_guest_boots_from_an_image_writes_reboots_and_becomes_a_new_image() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/export/guest/overlay");
    let output = Command::new(&script)
        .arg(env!("CARGO_BIN_EXE_sidecore"))
        .output()
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", script.display()));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    for step in OVERLAY_STEPS {
        let line = format!("overlay {step} ok");
        assert!(
            stdout.lines().any(|it| it == line),
            "{line}: {stdout}{stderr}"
        );
    }
}

const PARTS: [&str; 22] = [
    "ours to rping -s, 100 bytes",
    "rping -c to ours, 100 bytes",
    "ours to rping -s, 60000 bytes",
    "rping -c to ours, 60000 bytes",
    "ours to rdma_server",
    "rdma_client to ours",
    "ours to ucmatose",
    "ucmatose to ours",
    "ours to ib_send_lat, 64 bytes",
    "ib_send_lat to ours, 64 bytes",
    "ours to ib_send_bw, 65536 bytes",
    "ib_send_bw to ours, 65536 bytes",
    "ours to ib_write_lat, 64 bytes",
    "ib_write_lat to ours, 64 bytes",
    "ours to ib_write_bw, 65536 bytes",
    "ib_write_bw to ours, 65536 bytes",
    "ours to ib_read_lat, 64 bytes",
    "ib_read_lat to ours, 64 bytes",
    "ours to ib_read_bw, 65536 bytes",
    "ib_read_bw to ours, 65536 bytes",
    "rcopy to ours, 2097152 bytes",
    "ours to rcopy, 2097152 bytes",
];

fn guest_is_made() -> bool {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home);
    cache.is_some_and(|cache| cache.join("sidecore/siw/ready/done").exists())
}

#[test]
fn linux_tools_and_our_ends_understand_one_another() {
    let program = Path::new(env!("CARGO_BIN_EXE_sidecore"));
    let peers = program.with_file_name("examples").join("linux_peers");
    let is_root =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let lacking = [
        (is_root, "root"),
        (guest_is_made(), "the guest: scripts/setup --siw"),
        (
            peers.exists(),
            "cargo build -p sidecore-rdma --example linux_peers",
        ),
    ];
    if let Some((_, what)) = lacking.iter().find(|(is_there, _)| !is_there) {
        println!("skipped: needs {what}");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../net/rdma/guest/run");
    let output = Command::new(script)
        .args(["--short", "--json", "--program"])
        .arg(program)
        .arg("--peers")
        .arg(&peers)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let story = format!("standard output:\n{stdout}\nstandard error:\n{stderr}");
    assert!(
        output.status.success(),
        "ended with {}\n{story}",
        output.status
    );
    let report: serde_json::Value = serde_json::from_str(&stdout).expect(&story);
    let rows = report["rows"].as_array().unwrap();
    let right: Vec<_> = rows.iter().filter(|row| row["ok"] == true).collect();
    for part in PARTS {
        let name = format!("{part}, stack, siw-11");
        let is_there = right.iter().any(|row| row["part"] == name.as_str());
        assert!(is_there, "no result of '{name}'\n{story}");
    }
    let capture = &report["capture"];
    for what in ["bad_crcs", "malformed", "terminates", "lost_frames"] {
        assert_eq!(capture[what], 0, "{what}\n{story}");
    }
    // Each sent message has a CRC.
    assert_eq!(capture["good_crcs"], capture["messages"], "{story}");
    assert!(capture["messages"].as_u64() > Some(1000), "{story}");
}

mod rdma {
    //! `rdma serve`, `rdma ping` and `rdma run`, from the outside: silent connections block no
    //! other client, a signal ends the server, and Debian's rping is a peer of both.

    // A test's helpers may fail it too.
    #![allow(clippy::unwrap_used)]

    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader};
    use std::net::TcpStream;
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::time::{Duration, Instant};

    /// Ended on drop.
    struct Serving(Child);

    impl Serving {
        /// `rdma serve` on the loopback, its standard output, and its address.
        fn start(options: &[&str]) -> (Self, BufReader<ChildStdout>, String) {
            let child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
                .args(["rdma", "serve", "127.0.0.1:0"])
                .args(options)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut serving = Self(child);
            let mut said = BufReader::new(serving.0.stdout.take().unwrap());
            let mut ready = String::new();
            said.read_line(&mut ready).unwrap();
            let address = ready.trim().strip_prefix("ready ").unwrap().to_owned();
            (serving, said, address)
        }
    }

    impl Drop for Serving {
        fn drop(&mut self) {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }

    #[test]
    fn silent_connections_lock_nobody_out_and_a_signal_ends_it() {
        let (mut serving, _said, address) = Serving::start(&[]);
        let mute: Vec<TcpStream> = (0..64)
            .map(|_| TcpStream::connect(&address).unwrap())
            .collect();
        let pinged = Command::new("timeout")
            .args(["300", env!("CARGO_BIN_EXE_sidecore"), "rdma", "ping"])
            .args([&*address, "--rounds", "2"])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&pinged.stderr);
        assert!(pinged.status.success(), "{errors}");
        kill_process(Pid::from_child(&serving.0), Signal::TERM).unwrap();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = serving.0.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(0));
        drop(mute);
    }

    /// A program under `rdma run`.
    fn run(program: &[&str]) -> Command {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new("timeout");
        command
            .args(["300", env!("CARGO_BIN_EXE_sidecore"), "rdma", "run", "--"])
            .args(program)
            .env(
                "SIDECORE_VERBS_LIBRARY",
                own.with_file_name("libsidecore_verbs.so"),
            );
        command
    }

    #[test]
    fn programs_find_the_device_s_file() {
        let file = "/dev/infiniband/sidecore-verbs0";
        let script = format!("test -c {file} && test ! -e {file}0 && test -c /dev/null");
        let output = run(&["sh", "-c", &script]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
    }

    #[test]
    fn a_refused_program_leaves_no_folder_of_libraries() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        // An ELF file of one program header, a segment to load: it names no dynamic linker.
        let mut bytes = vec![0; 64 + 56];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        (bytes[32], bytes[54], bytes[56], bytes[64]) = (64, 56, 1, 1);
        std::fs::write(&program, bytes).unwrap();
        let refused = run(&[program.to_str().unwrap()])
            .env("SIDECORE_VERBS_LIBRARY", &program)
            .env("XDG_RUNTIME_DIR", folder.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{errors}");
        assert!(errors.contains("linked statically"), "{errors}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    fn has_rping() -> bool {
        let found = Command::new("rping").arg("-h").output().is_ok();
        if !found {
            eprintln!("skipped: rping is not installed (Debian: rdmacm-utils; scripts/setup)");
        }
        found
    }

    #[test]
    fn rping_is_served_by_ours() {
        if !has_rping() {
            return;
        }
        let (_serving, mut said, address) = Serving::start(&["--clients", "1"]);
        let port = address.rsplit(':').next().unwrap().to_owned();
        let client = [
            "rping",
            "-c",
            "-a",
            "127.0.0.1",
            "-p",
            &port,
            "-V",
            "-C",
            "20",
        ];
        let output = run(&client).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let mut served = String::new();
        said.read_line(&mut served).unwrap();
        assert!(served.contains("20 rounds"), "{served}");
    }

    #[test]
    fn rping_serves_ours() {
        if !has_rping() {
            return;
        }
        // A port that was free a moment ago.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let port = address.rsplit(':').next().unwrap();
        let server = ["rping", "-s", "-a", "127.0.0.1", "-p", port, "-C", "20"];
        let mut serving = Serving(run(&server).spawn().unwrap());
        let begun = Instant::now();
        let output = loop {
            let output = Command::new(env!("CARGO_BIN_EXE_sidecore"))
                .args(["rdma", "ping", &address, "--rounds", "20", "--peer-to-peer"])
                .output()
                .unwrap();
            // Refused until it listens.
            if output.status.success() || begun.elapsed() > Duration::from_secs(60) {
                break output;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serving.0.wait().unwrap();
    }
}
