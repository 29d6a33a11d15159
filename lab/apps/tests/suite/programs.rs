//! Other authors' programs talk to servers on the stack, over a TAP, IPv4 and IPv6, and tshark
//! checks their packets. Needs root, /dev/net/tun and Debian's packages; a program that is missing
//! is named and its part skipped, unless `SIDECORE_ALL_PROGRAMS` is set.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::namespace;
use crate::running;

use namespace::{in_namespace, is_left_out, run, wait_for_ipv6};
use running::Running;
use serde_json::Value;
use sidecore_net::sock::client::status;
use sidecore_net_apps::Service;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Our ends, as a URL has them.
const HOSTS: [&str; 2] = ["10.77.0.2", "[fd77::2]"];

#[test]
fn curl_gets_pages() {
    if !have("curl") {
        return;
    }
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Http, "[::]:80");
        wait_for_ipv6();
        for host in HOSTS {
            let options = "--silent --show-error --fail --max-time 60 --globoff";
            let page = run("curl", &format!("{options} http://{host}/"));
            assert!(page.contains("engine"), "{page}");
            let page = run("curl", &format!("{options} http://{host}/bytes/5000001"));
            let right = page.lines().all(|line| "Sidecore.".starts_with(line));
            assert!(page.len() == 5_000_001 && right, "{} bytes", page.len());
            // Two on one session.
            let written = "%{num_connects} %{http_code}\n";
            let said = Command::new("curl")
                .args(options.split(' '))
                .args(["--head", "--output", "/dev/null", "--write-out", written])
                .args([format!("http://{host}/"), "--output".into()])
                .args(["/dev/null".into(), format!("http://{host}/bytes/7")])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            assert_eq!(said, "1 200\n0 200\n");
        }
        let served = running.down();
        assert!(served[0].sessions == 6, "{served:?}");
    });
}

#[test]
fn iperf3_measures_either_way() {
    if !have("iperf3") {
        return;
    }
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Iperf3, "0.0.0.0:5201");
        running.serve(Service::Iperf3, "[::]:5202");
        wait_for_ipv6();
        for (target, more) in [
            ("10.77.0.2", ""),
            ("10.77.0.2", "--reverse --parallel 3"),
            ("fd77::2 --port 5202", "--parallel 2"),
            ("fd77::2 --port 5202", "--reverse"),
            ("10.77.0.2", "--bidir"),
            ("fd77::2 --port 5202", "--bidir --parallel 2"),
        ] {
            // This much is sent in any case; the time for it depends on the machine.
            let words = format!("--client {target} --bytes 8M --json {more}");
            let report: Value = serde_json::from_str(&run("iperf3", &words)).unwrap();
            let ways: &[&str] = if more.contains("bidir") {
                &["", "_bidir_reverse"]
            } else {
                &[""]
            };
            for way in ways {
                let bytes = |side: &str| {
                    let sum = &report["end"][format!("sum_{side}{way}")]["bytes"];
                    sum.as_u64().unwrap_or_else(|| panic!("{words}: {report}"))
                };
                let (sent, received) = (bytes("sent"), bytes("received"));
                assert!(0 < received && received <= sent, "{words}: {report}");
                // The sum of both directions or only one, depending on the side that ends the test.
                assert!(ways.len() > 1 || sent >= 8 << 20, "{words}: {report}");
            }
        }
        for (target, more, streams) in [
            ("10.77.0.2", "", 1),
            ("10.77.0.2", "--reverse --parallel 3", 3),
            (
                "fd77::2 --port 5202",
                "--parallel 2 --udp-counters-64bit",
                2,
            ),
            ("fd77::2 --port 5202", "--reverse", 1),
            ("10.77.0.2", "--bidir", 2),
        ] {
            let words = format!("--client {target} --length 1000 --bytes 500K {more}");
            let measured = datagrams(&running, &words, 8_000_000.0);
            assert_eq!(measured.len(), streams, "{words}: {measured:?}");
        }
        // It reports unsupported options.
        let words = "--client 10.77.0.2 --sctp --time 1";
        let refused = Command::new("iperf3").args(words.split(' ')).output();
        let said = String::from_utf8(refused.unwrap().stderr).unwrap();
        assert!(said.contains("not implemented"), "{said}");
        // A client that leaves in the middle does not block the next one.
        let mut client = Command::new("iperf3")
            .args(["--client", "10.77.0.2", "--time", "30"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let before = counted(&running, "frames_received");
        until(|| counted(&running, "frames_received") > before + 100);
        client.kill().unwrap();
        client.wait().unwrap();
        run("iperf3", "--client 10.77.0.2 --bytes 1M");
        running.down();
    });
}

/// Measures one direction of datagrams at a given rate; returns the sent and the lost datagrams of
/// each stream. Some counter holds every lost datagram as dropped: a receiver that does not run for
/// a while has a finite queue.
fn datagrams(running: &Running, words: &str, bits_per_second: f64) -> Vec<(u64, u64)> {
    let before = dropped(running);
    let words = format!("{words} --udp --bitrate {bits_per_second:.0} --json");
    let report: Value = serde_json::from_str(&run("iperf3", &words)).unwrap();
    let all = report["end"]["streams"].as_array().unwrap();
    let streams: Vec<(u64, u64)> = all
        .iter()
        .map(|stream| {
            let number = |name: &str| stream["udp"][name].as_f64().unwrap();
            let (packets, lost) = (number("packets"), number("lost_packets"));
            assert!(0.0 <= lost && lost < packets, "{words}: {stream}");
            // Never faster than requested, except for a packet at the beginning.
            let limit = 1.1 * bits_per_second * number("seconds") + 16.0 * 65_536.0;
            assert!(number("bytes") * 8.0 <= limit, "{words}: {stream}");
            let jitter_ms = number("jitter_ms");
            assert!(
                (0.0..1000.0 * number("seconds")).contains(&jitter_ms),
                "{words}: {stream}"
            );
            (packets as u64, lost as u64)
        })
        .collect();
    let lost: u64 = streams.iter().map(|(_, lost)| lost).sum();
    let dropped = dropped(running) - before;
    assert!(
        lost <= dropped,
        "{words}: {lost} lost, {dropped} dropped: {report}"
    );
    streams
}

/// Dropped datagrams and frames: of our sockets, the kernel's, the TAP.
fn dropped(running: &Running) -> u64 {
    let table = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<String>>()
    };
    let last = |line: &String| {
        line.split_whitespace()
            .last()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let of_v6: u64 = table("snmp6")
        .iter()
        .filter(|line| line.starts_with("Udp6InErrors") || line.starts_with("Ip6ReasmFails"))
        .map(last)
        .sum();
    // After the name: received bytes, packets, errors, drops, ..., and from the ninth on the sent
    // ones.
    let of_tap: u64 = table("dev")
        .iter()
        .filter_map(|line| line.trim().strip_prefix("sidecore0:"))
        .flat_map(|line| {
            let numbers: Vec<u64> = line
                .split_whitespace()
                .map(|number| number.parse().unwrap())
                .collect();
            [numbers[3], numbers[11]]
        })
        .sum();
    snmp("Udp:", "InErrors")
        + snmp("Ip:", "ReasmFails")
        + of_v6
        + of_tap
        + counted(running, "datagrams_dropped")
        + counted(running, "reassemblies_evicted")
        + counted(running, "reassemblies_late")
}

/// One of the stack's counters.
fn counted(running: &Running, name: &str) -> u64 {
    let status: Value = serde_json::from_str(&status(&running.path()).unwrap()).unwrap();
    status["stack"][name].as_u64().unwrap()
}

/// Waits until the condition holds.
fn until(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Datagrams and echo requests that are longer than the link's packets, both ways.
#[test]
fn fragments_pass_both_ways() {
    if !have("iperf3") {
        return;
    }
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Iperf3, "0.0.0.0:5201");
        running.serve(Service::Iperf3, "[::]:5202");
        wait_for_ipv6();
        for target in ["-4 10.77.0.2", "-6 fd77::2"] {
            for len in [1473, 8000, 20_000, 65_507] {
                let said = run("ping", &format!("-c 3 -i 0.2 -w 15 -s {len} {target}"));
                assert!(said.contains("3 received"), "{target} {len}: {said}");
            }
        }
        // Echo requests and answers, and datagrams towards us and from us.
        let (mut came, mut went) = (24, 24);
        for (target, length, more) in [
            ("10.77.0.2", 8000, ""),
            ("10.77.0.2", 60_000, "--reverse"),
            ("fd77::2 --port 5202", 60_000, ""),
            ("fd77::2 --port 5202", 8000, "--reverse"),
        ] {
            let bytes = 100 * length;
            let words = format!("--client {target} --length {length} --bytes {bytes} {more}");
            let measured = datagrams(&running, &words, 1_000.0 * f64::from(length));
            for (packets, lost) in measured {
                if more.is_empty() {
                    came += packets - lost;
                } else {
                    went += packets;
                }
            }
        }
        let stack: Value = serde_json::from_str(&status(&running.path()).unwrap()).unwrap();
        let number = |name: &str| stack["stack"][name].as_u64().unwrap();
        assert!(number("packets_reassembled") >= came, "{came}: {stack}");
        assert!(number("packets_fragmented") >= went, "{went}: {stack}");
        assert!(number("fragments_received") >= 2 * came, "{came}: {stack}");
        assert!(number("fragments_sent") >= 2 * went, "{went}: {stack}");
        assert_eq!(number("reassemblies_refused"), 0, "{stack}");
        assert_eq!(number("malformed") + number("bad_checksums"), 0, "{stack}");
        running.down();
    });
}

#[test]
fn load_generators_find_no_failed_request() {
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Http, "[::]:80");
        wait_for_ipv6();
        for host in HOSTS {
            if have("ab") {
                for keep in ["-k", ""] {
                    let words = format!("-q {keep} -s 30 -n 500 -c 20 http://{host}/bytes/3000");
                    let said = run("ab", &words);
                    let line = |begins: &str| {
                        let line = said.lines().find(|line| line.starts_with(begins));
                        line.map(|line| line.split_whitespace().last().unwrap().to_owned())
                    };
                    assert_eq!(line("Complete requests").as_deref(), Some("500"), "{said}");
                    assert_eq!(line("Failed requests").as_deref(), Some("0"), "{said}");
                    assert_eq!(line("Non-2xx responses"), None, "{said}");
                }
            }
            if have("wrk") {
                // With the port: a bare Debian has no list of services, in which wrk looks.
                let words = format!("-t 1 -c 50 -d 1s --timeout 30s http://{host}:80/");
                let said = run("wrk", &words);
                assert!(!said.contains("Socket errors"), "{said}");
                assert!(!said.contains("Non-2xx"), "{said}");
                assert!(said.contains("requests in"), "{said}");
            }
        }
        running.down();
    });
}

#[test]
fn tshark_finds_nothing_wrong() {
    if !have("tshark") || !have("curl") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.pcap");
    // On a busy machine an answer of the kernel's may come after a timeout. That is not wrong, and
    // does not happen every time.
    for recording in 1..=RECORDINGS_MAX {
        let file = trace.clone();
        let (stack, kernels) = in_namespace(move || record(&file));
        if stack["timeouts"] == 0 || recording == RECORDINGS_MAX {
            return judge(&trace, &stack, kernels);
        }
        std::fs::remove_file(&trace).unwrap();
    }
}

/// Pings and pages while tshark writes them down; the stack's counters, and segments that the
/// kernel sent again.
fn record(trace: &Path) -> (Value, usize) {
    let mut running = Running::up();
    let capture = Capture::begin(trace);
    running.serve(Service::Http, "[::]:80");
    running.serve(Service::Echo, "0.0.0.0:7");
    wait_for_ipv6();
    run("ping", "-c 2 -i 0.2 -w 60 10.77.0.2");
    for host in HOSTS {
        let options = "--silent --show-error --fail --max-time 60 --globoff --output /dev/null";
        for path in ["", "bytes/1", "bytes/100000", "bytes/3000000"] {
            run("curl", &format!("{options} http://{host}/{path}"));
        }
    }
    let report: Value = serde_json::from_str(&status(&running.path()).unwrap()).unwrap();
    let kernels = kernels_retransmissions();
    capture.end(trace);
    running.down();
    (report["stack"].clone(), kernels)
}

fn judge(trace: &Path, stack: &Value, kernels: usize) {
    let frames = look(trace, "tcp");
    assert!(
        frames.lines().count() > 50,
        "nothing was captured: {frames}"
    );
    assert_eq!(look(trace, "_ws.malformed"), "");
    // A checksum that was left to hardware is none yet; the IP header's is always there.
    assert_eq!(look(trace, "ip.checksum.status == 0"), "");
    assert_eq!(stack["malformed"], 0);
    assert_eq!(stack["bad_checksums"], 0);
    assert_eq!(stack["timeouts"], 0, "{stack}");
    // Nothing was lost, so that nothing is sent again except a probe where the other end was late.
    let probes = stack["tail_probes"].as_u64().unwrap();
    assert!(
        stack["retransmitted"].as_u64().unwrap() <= probes,
        "{stack}"
    );
    let again = look(trace, "tcp.analysis.retransmission");
    let expected = probes as usize + kernels;
    assert!(
        again.lines().count() <= expected,
        "{expected} expected: {again}"
    );
}

/// tshark, recording the traffic of the TAP.
struct Capture(Child);

impl Capture {
    fn begin(trace: &Path) -> Self {
        let path = trace.to_str().unwrap();
        let child = Command::new("tshark")
            .args(["-q", "-i", "sidecore0", "-s", "200", "-w", path])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It writes the file's head once it listens.
        until(|| std::fs::metadata(trace).map_or(0, |data| data.len()) > 0);
        Self(child)
    }

    /// Ends once the file holds a last echo request, and so all that came before.
    fn end(mut self, trace: &Path) {
        run("ping", &format!("-c 1 -w 60 -p {LAST} 10.77.0.2"));
        until(|| {
            let captured = std::fs::read(trace).unwrap();
            let last = u64::from_str_radix(LAST, 16).unwrap().to_be_bytes();
            captured.windows(8).any(|bytes| bytes == last)
        });
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // A process that has ended is only reaped.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The frames of a trace that a filter picks, a line each.
fn look(trace: &Path, filter: &str) -> String {
    let output = Command::new("tshark")
        .args(["-r", trace.to_str().unwrap(), "-Y", filter])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark -Y {filter}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Segments that the kernel sent again in this namespace.
fn kernels_retransmissions() -> usize {
    snmp("Tcp:", "RetransSegs") as usize
}

/// One of the kernel's counters in this namespace.
fn snmp(protocol: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let heads = lines.next().unwrap().split(' ');
    let values = lines.next().unwrap().split(' ');
    let found = heads.zip(values).find(|(head, _)| *head == name);
    found.unwrap().1.parse().unwrap()
}

/// True if a program is installed; prints a note if not.
fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|place| place.join(program).is_file());
    let missing = format!("{program} is not installed; scripts/setup installs it");
    !is_left_out((!found).then_some(&missing))
}

/// Payload pattern of the last echo request of a capture.
const LAST: &str = "5ca1ab1e0ddba115";
const PATIENCE: Duration = Duration::from_secs(60);
/// Recordings, one of which must be without a timeout.
const RECORDINGS_MAX: u32 = 10;
