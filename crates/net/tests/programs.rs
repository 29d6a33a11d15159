//! Programs that others wrote talk to servers on the stack, over a TAP, IPv4 and IPv6, and tshark looks
//! at what they said. Needs root, /dev/net/tun and Debian's packages; a program that is missing is
//! named and its part left out, unless `SIDECORE_ALL_PROGRAMS` is set.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

#[path = "common/namespace.rs"]
mod namespace;
#[path = "common/running.rs"]
mod running;

use namespace::{in_namespace, run, wait_for_ipv6};
use running::Running;
use serde_json::Value;
use sidecore_net::servers::Service;
use sidecore_net::sock::client::status;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Our ends, as an address bar has them.
const HOSTS: [&str; 2] = ["10.77.0.2", "[fd77::2]"];

#[test]
fn curl_gets_pages() {
    if !have("curl") {
        return;
    }
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Http, "0.0.0.0:80");
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
        assert!(
            served[0].sessions == 3 && served[1].sessions == 3,
            "{served:?}"
        );
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
        ] {
            let words = format!("--client {target} --time 1 --json {more}");
            let report: Value = serde_json::from_str(&run("iperf3", &words)).unwrap();
            let bytes = |side: &str| report["end"][side]["bytes"].as_u64().unwrap();
            let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
            assert!(received > 1 << 20, "{words}: {received} of {sent} bytes");
            assert!(received <= sent, "{words}: {received} of {sent} bytes");
        }
        for (target, more) in [
            ("10.77.0.2", "--bidir"),
            ("fd77::2 --port 5202", "--bidir --parallel 2"),
        ] {
            let words = format!("--client {target} --time 1 --json {more}");
            let report: Value = serde_json::from_str(&run("iperf3", &words)).unwrap();
            for way in ["", "_bidir_reverse"] {
                let bytes = |side: &str| {
                    let sum = &report["end"][format!("sum_{side}{way}")]["bytes"];
                    sum.as_u64().unwrap_or_else(|| panic!("{words}: {report}"))
                };
                let (sent, received) = (bytes("sent"), bytes("received"));
                assert!(received > 1 << 20 && received <= sent, "{words}: {report}");
            }
        }
        // Datagrams come at the rate that was asked for, and nothing is lost on an idle TAP.
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
            let words = format!(
                "--client {target} --udp --bitrate 8M --length 1000 --time 1 --json {more}"
            );
            let report: Value = serde_json::from_str(&run("iperf3", &words)).unwrap();
            let all = report["end"]["streams"].as_array().unwrap();
            assert_eq!(all.len(), streams, "{words}: {report}");
            for stream in all {
                let number = |name: &str| stream["udp"][name].as_f64().unwrap();
                let packets = number("packets");
                assert!((700.0..=1100.0).contains(&packets), "{words}: {stream}");
                assert!(number("lost_packets") < 0.2 * packets, "{words}: {stream}");
                assert!(number("jitter_ms") < 100.0, "{words}: {stream}");
            }
        }
        // What it cannot do it says.
        let words = "--client 10.77.0.2 --sctp --time 1";
        let refused = Command::new("iperf3").args(words.split(' ')).output();
        let said = String::from_utf8(refused.unwrap().stderr).unwrap();
        assert!(said.contains("not implemented"), "{said}");
        // A client that goes away in the middle leaves the server to the next one.
        let mut client = Command::new("iperf3")
            .args(["--client", "10.77.0.2", "--time", "30"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(300));
        client.kill().unwrap();
        client.wait().unwrap();
        run("iperf3", "--client 10.77.0.2 --time 1");
        running.down();
    });
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
        for (target, length, more) in [
            ("10.77.0.2", 8000, ""),
            ("10.77.0.2", 60_000, "--reverse"),
            ("fd77::2 --port 5202", 60_000, ""),
            ("fd77::2 --port 5202", 8000, "--reverse"),
        ] {
            let megabits = length / 1000;
            let words = format!(
                "--client {target} --udp --bitrate {megabits}M --length {length} --time 1 --json {more}"
            );
            let report: Value = serde_json::from_str(&run("iperf3", &words)).unwrap();
            let stream = &report["end"]["streams"][0]["udp"];
            let number = |name: &str| stream[name].as_f64().unwrap();
            let packets = number("packets");
            assert!((80.0..=140.0).contains(&packets), "{words}: {stream}");
            assert!(number("lost_packets") < 0.2 * packets, "{words}: {stream}");
        }
        let stack: Value = serde_json::from_str(&status(&running.path()).unwrap()).unwrap();
        let number = |name: &str| stack["stack"][name].as_u64().unwrap();
        assert!(number("packets_reassembled") > 24 + 2 * 60, "{stack}");
        assert!(number("packets_fragmented") > 24 + 2 * 80, "{stack}");
        assert!(number("fragments_received") > 1000 && number("fragments_sent") > 1000);
        assert_eq!(number("reassemblies_refused"), 0, "{stack}");
        assert_eq!(number("malformed") + number("bad_checksums"), 0, "{stack}");
        running.down();
    });
}

#[test]
fn load_generators_find_no_failed_request() {
    in_namespace(|| {
        let mut running = Running::up();
        running.serve(Service::Http, "0.0.0.0:80");
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
    in_namespace(|| {
        let mut running = Running::up();
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.pcap");
        let capture = Capture::begin(&trace);
        running.serve(Service::Http, "0.0.0.0:80");
        running.serve(Service::Http, "[::]:80");
        running.serve(Service::Echo, "0.0.0.0:7");
        wait_for_ipv6();
        run("ping", "-c 2 -i 0.2 -w 15 10.77.0.2");
        for host in HOSTS {
            let options = "--silent --show-error --fail --max-time 60 --globoff --output /dev/null";
            for path in ["", "bytes/1", "bytes/100000", "bytes/3000000"] {
                run("curl", &format!("{options} http://{host}/{path}"));
            }
        }
        let stack: Value = serde_json::from_str(&status(&running.path()).unwrap()).unwrap();
        let stack = &stack["stack"];
        let kernels = kernels_retransmissions();
        running.down();
        capture.end();
        let frames = look(&trace, "tcp");
        assert!(
            frames.lines().count() > 50,
            "nothing was captured: {frames}"
        );
        assert_eq!(look(&trace, "_ws.malformed"), "");
        // A checksum that was left to hardware is none yet; the IP header's is always there.
        assert_eq!(look(&trace, "ip.checksum.status == 0"), "");
        assert_eq!(stack["malformed"], 0);
        assert_eq!(stack["bad_checksums"], 0);
        assert_eq!(stack["timeouts"], 0, "{stack}");
        // Nothing was lost, so that nothing is sent again but a probe where the other end was late.
        let probes = stack["tail_probes"].as_u64().unwrap();
        assert!(
            stack["retransmitted"].as_u64().unwrap() <= probes,
            "{stack}"
        );
        let again = look(&trace, "tcp.analysis.retransmission");
        let expected = probes as usize + kernels;
        assert!(
            again.lines().count() <= expected,
            "{expected} expected: {again}"
        );
    });
}

/// tshark, writing down what passes the TAP.
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
        let begun = Instant::now();
        while std::fs::metadata(trace).map_or(0, |data| data.len()) == 0 {
            assert!(begun.elapsed() < PATIENCE, "tshark does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self(child)
    }

    fn end(mut self) {
        // What was captured last is still on its way into the file.
        std::thread::sleep(Duration::from_secs(2));
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // One that has ended is only waited for.
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
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let heads = lines.next().unwrap().split(' ');
    let values = lines.next().unwrap().split(' ');
    let found = heads.zip(values).find(|(head, _)| *head == "RetransSegs");
    found.unwrap().1.parse().unwrap()
}
/// Whether a program is installed; says so if not.
fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|place| place.join(program).is_file());
    if !found {
        let message = format!("{program} is not installed; scripts/setup installs it");
        assert!(
            std::env::var_os("SIDECORE_ALL_PROGRAMS").is_none(),
            "{message}"
        );
        eprintln!("left out: {message}");
    }
    found
}

const PATIENCE: Duration = Duration::from_secs(60);
