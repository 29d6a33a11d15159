//! Servers as users deploy them, compared with the kernel's: no thread is pinned, engines sleep.
//!
//! Why here: on a user's machine programs share two cores with their clients, instead of having a
//! core each. The clients use the kernel's stack, so that only the server differs: ours with its
//! stack in the server's own process, ours with a separate engine, and the kernel's.
//!
//! - `load`: the client of the echo servers; `echo`: the kernel's echo server. HTTP is asked for by
//!   wrk, streams are iperf3's.
//!
//! Must stay true: all start before the first is measured, and those that are not measured are
//! idle; CUBIC everywhere; each server has a wire of its own, a TAP for ours, a veth for the
//! kernel's.

mod echo;
mod load;

use super::interfaces;
use super::kernel::plain;
use super::namespace::Namespace;
use super::programs::{Running, tool};
use super::{Bench, BenchError, Better, Candidate, Comparison, Group, sleep};
use crate::measure::stats::Series;
use echo::Echo;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The group.
pub(super) const GROUP: Group = Group {
    name: "deploy",
    run,
};

fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cancel = bench.cancel();
    let (near, far) = interfaces::wired(&cancel)?;
    interfaces::choose_cubic(&near, "near", NEAR, &cancel)?;
    interfaces::choose_cubic(&far, "far", FAR, &cancel)?;
    let places = Places {
        near,
        far,
        sidecore: bench.config.sidecore.clone(),
        scratch: bench.config.scratch.clone(),
        time: bench.choose(Duration::from_millis(300), Duration::from_secs(2)),
    };
    requests(bench, &places)?;
    pages(bench, &places)?;
    streams(bench, &places)
}

/// State that all measurements share.
struct Places {
    /// Namespace of the clients and of our servers' TAPs.
    near: Namespace,
    /// Namespace of the kernel's servers.
    far: Namespace,
    sidecore: PathBuf,
    scratch: PathBuf,
    /// Length of one measurement.
    time: Duration,
}

/// A server of ours.
struct Ours {
    /// The server, and a separate engine's process. Ended in this order.
    programs: Vec<Running>,
    address: SocketAddr,
}

impl Ours {
    /// A server whose stack is in its own process.
    fn within(places: &Places, service: &str, cancel: &AtomicBool) -> Result<Self, BenchError> {
        let config = places.configure("within", 1)?;
        let mut command = Command::new(&places.sidecore);
        command.args(["net", service, "--config"]).arg(&config);
        let server = places.start(command, cancel)?;
        places.choose_cubic("within", 1, cancel)?;
        Ok(Self::at(1, service, vec![server]))
    }

    /// A server attached to an engine in another process.
    fn apart(places: &Places, service: &str, cancel: &AtomicBool) -> Result<Self, BenchError> {
        let config = places.configure("apart", 2)?;
        let mut command = Command::new(&places.sidecore);
        command.args(["net", "up"]).arg(&config);
        let engine = places.start(command, cancel)?;
        places.choose_cubic("apart", 2, cancel)?;
        let mut command = Command::new(&places.sidecore);
        command.args(["net", service, "--socket"]);
        command.arg(places.socket("apart"));
        let server = places.start(command, cancel)?;
        Ok(Self::at(2, service, vec![server, engine]))
    }

    fn at(wire: u8, service: &str, programs: Vec<Running>) -> Self {
        let port = match service {
            "echo" => 7,
            "http" => 80,
            _ => 5201,
        };
        Self {
            programs,
            address: SocketAddr::from((Ipv4Addr::new(10, 98, wire, 2), port)),
        }
    }

    /// Processor time of the server and its engine, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        self.programs.iter().map(Running::cpu_ns).sum()
    }
}

impl Places {
    fn socket(&self, name: &str) -> PathBuf {
        self.scratch.join(format!("{name}.sock"))
    }

    /// Writes the configuration of a stack on a TAP of its own.
    fn configure(&self, name: &str, wire: u8) -> Result<PathBuf, BenchError> {
        let path = self.scratch.join(format!("{name}.toml"));
        let text = format!(
            "socket = {:?}\n[nic]\nkind = \"tap\"\nname = \"{name}\"\n\
             host = [\"10.98.{wire}.1/24\"]\n\
             [stack]\naddresses = [\"10.98.{wire}.2/24\"]\n",
            self.socket(name)
        );
        std::fs::write(&path, text).map_err(BenchError::io("write a configuration"))?;
        Ok(path)
    }

    /// For the kernel's end of a TAP.
    fn choose_cubic(&self, name: &str, wire: u8, cancel: &AtomicBool) -> Result<(), BenchError> {
        interfaces::choose_cubic(&self.near, name, Ipv4Addr::new(10, 98, wire, 1), cancel)
    }

    /// Starts one of our programs in the clients' namespace, and waits until it is ready.
    fn start(&self, command: Command, cancel: &AtomicBool) -> Result<Running, BenchError> {
        let program = Running::start(Some(&self.near), command)?;
        program.wait_for_words("ready", cancel)?;
        Ok(program)
    }

    /// Length of one measurement, for programs that count whole seconds.
    fn seconds(&self) -> String {
        self.time.as_secs().max(1).to_string()
    }

    /// Runs a client to its end; returns its output.
    fn ask(&self, command: Command, cancel: &AtomicBool) -> Result<String, BenchError> {
        Running::start(Some(&self.near), command)?.output(cancel)
    }
}

/// Requests of 64 bytes; and the cost of an idle server.
fn requests(bench: &mut Bench<'_>, places: &Places) -> Result<(), BenchError> {
    let cancel = bench.cancel();
    let local = SocketAddr::from((FAR, 7));
    let kernel = Echo::start(&places.far, local)?;
    let within = Ours::within(places, "echo", &cancel)?;
    let apart = Ours::apart(places, "echo", &cancel)?;
    for count in SESSIONS {
        let of = |what: &str| format!("64 B, {}: {what}", sessions(count));
        let names = [
            "rate",
            "median",
            "p99",
            "longest",
            "server's processor time",
        ]
        .map(of);
        let units = ["K/s", "us", "us", "us", "us"];
        let metrics: Vec<_> = names.iter().map(String::as_str).zip(units).collect();
        let one = |to: SocketAddr, cpu_ns: &dyn Fn() -> u64, cancel: &AtomicBool| {
            let streams = (0..count).map(|_| plain::connect(&places.near, to));
            let streams = streams.collect::<Result<Vec<_>, _>>()?;
            // After connecting: handshakes are no part of a request's cost.
            let before = cpu_ns();
            let answered = load::ask(streams, places.time, cancel)?;
            let used_us = (cpu_ns() - before) as f64 / 1e3;
            Ok(vec![
                answered.rate() / 1e3,
                answered.under_us(0.5),
                answered.under_us(0.99),
                answered.under_us(1.0),
                used_us / answered.count as f64,
            ])
        };
        let series = bench.interleave_of(
            &metrics,
            &mut [
                Candidate::new(WITHIN, |cancel| {
                    one(within.address, &|| within.cpu_ns(), cancel)
                }),
                Candidate::new(EPOLL, |cancel| one(local, &|| kernel.cpu_ns(), cancel)),
                Candidate::new(APART, |cancel| {
                    one(apart.address, &|| apart.cpu_ns(), cancel)
                }),
            ],
        )?;
        let targets = match count {
            1 => [None, Some(1.2), None, None, Some(1.5)],
            50 => [Some(1.0), None, Some(1.5), None, None],
            _ => [Some(1.25), None, None, None, None],
        };
        compare(bench, &metrics, targets, &series, EPOLL);
    }
    let idle = |cpu_ns: &dyn Fn() -> u64, cancel: &AtomicBool| {
        let (before, begun) = (cpu_ns(), Instant::now());
        sleep(places.time, cancel)?;
        let used = (cpu_ns() - before) as f64;
        Ok(vec![100.0 * used / begun.elapsed().as_nanos() as f64])
    };
    let mut candidates = [
        Candidate::new(WITHIN, |cancel| idle(&|| within.cpu_ns(), cancel)),
        Candidate::new(APART, |cancel| idle(&|| apart.cpu_ns(), cancel)),
    ];
    let series = bench.interleave(IDLE, "%", &mut candidates)?;
    for (name, series) in [WITHIN, APART].into_iter().zip(&series) {
        if let Some(series) = series {
            bench
                .row(format!("{IDLE}: {name}"), None, series, "%")
                .note("0.5 or less is wanted");
        }
    }
    Ok(())
}

/// Pages of HTTP.
fn pages(bench: &mut Bench<'_>, places: &Places) -> Result<(), BenchError> {
    let cancel = bench.cancel();
    let nginx = match nginx(places, &cancel) {
        Ok(nginx) => Some(nginx),
        Err(BenchError::Missing(reason)) => {
            bench.missing("nginx", "HTTP", &reason);
            None
        }
        Err(error) => return Err(error),
    };
    let within = Ours::within(places, "http", &cancel)?;
    let apart = Ours::apart(places, "http", &cancel)?;
    for count in SESSIONS {
        let of = |what: &str| format!("HTTP, {}: {what}", sessions(count));
        let names = ["rate", "median", "p99"].map(of);
        let metrics: Vec<_> = names
            .iter()
            .map(String::as_str)
            .zip(["K/s", "us", "us"])
            .collect();
        let one = |to: SocketAddr, cancel: &AtomicBool| wrk(places, count, to, cancel);
        let mut candidates = vec![Candidate::new(WITHIN, |cancel| one(within.address, cancel))];
        // `compare` expects nginx as the second series; without it ours runs alone.
        if nginx.is_some() {
            let to = SocketAddr::from((FAR, 80));
            candidates.push(Candidate::new(NGINX, move |cancel| one(to, cancel)));
            candidates.push(Candidate::new(APART, |cancel| one(apart.address, cancel)));
        }
        let series = bench.interleave_of(&metrics, &mut candidates)?;
        let targets = match count {
            1 => [None, Some(1.2), None],
            50 => [Some(1.0), None, Some(1.5)],
            _ => [Some(1.25), None, None],
        };
        compare(bench, &metrics, targets, &series, NGINX);
    }
    Ok(())
}

/// nginx that answers `/` from memory, with as many bytes as ours.
fn nginx(places: &Places, cancel: &AtomicBool) -> Result<Running, BenchError> {
    let mut command = tool("nginx")?;
    let folder = places.scratch.join("nginx");
    std::fs::create_dir_all(&folder).map_err(BenchError::io("make nginx's folder"))?;
    let config = folder.join("nginx.conf");
    let text = format!(
        "daemon off; master_process off; worker_processes 1; pid {0}/pid; error_log {0}/errors;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; tcp_nodelay on;\n\
         client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
         fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
         server {{ listen {FAR}:80 backlog=4096; location / {{ default_type text/plain;\n\
         return 200 \"{1}\"; }} }} }}\n",
        folder.display(),
        "x".repeat(PAGE_BYTES),
    );
    std::fs::write(&config, text).map_err(BenchError::io("write nginx's configuration"))?;
    command.arg("-e").arg(folder.join("errors"));
    command.arg("-p").arg(&folder).arg("-c").arg(&config);
    let nginx = Running::start(Some(&places.far), command)?;
    let to = SocketAddr::from((FAR, 80));
    let until = Instant::now() + START_TIME_MAX;
    while plain::connect(&places.near, to).is_err() {
        if Instant::now() > until {
            return Err(nginx.fault("does not listen".into()));
        }
        sleep(Duration::from_millis(10), cancel)?;
    }
    Ok(nginx)
}

/// Thousands of pages a second, and median and 99th percentile of the time of one in us.
fn wrk(
    places: &Places,
    count: usize,
    to: SocketAddr,
    cancel: &AtomicBool,
) -> Result<Vec<f64>, BenchError> {
    let mut command = tool("wrk")?;
    let (seconds, count) = (places.seconds(), count.to_string());
    command.args(["-t1", "--latency", "-d", &seconds, "-c", &count]);
    command.arg(format!("http://{to}/"));
    let said = places.ask(command, cancel)?;
    figures_of_wrk(&said).ok_or_else(|| BenchError::Wrong(format!("wrk said {said}")))
}

fn figures_of_wrk(said: &str) -> Option<Vec<f64>> {
    let after = |words: &str| {
        let line = said
            .lines()
            .find_map(|line| line.trim().strip_prefix(words))?;
        Some(line.trim())
    };
    let time_us = |text: &str| {
        let digits = text.trim_end_matches(char::is_alphabetic);
        let unit = match &text[digits.len()..] {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            _ => return None,
        };
        Some(digits.parse::<f64>().ok()? * unit)
    };
    let rate: f64 = after("Requests/sec:")?.parse().ok()?;
    Some(vec![
        rate / 1e3,
        time_us(after("50%")?)?,
        time_us(after("99%")?)?,
    ])
}

/// Streams of iperf3, in and out.
fn streams(bench: &mut Bench<'_>, places: &Places) -> Result<(), BenchError> {
    let cancel = bench.cancel();
    let mut command = tool("iperf3")?;
    command.args(["-s", "--forceflush"]);
    let kernel = Running::start(Some(&places.far), command)?;
    kernel.wait_for_words("Server listening", &cancel)?;
    let within = Ours::within(places, "iperf3", &cancel)?;
    let apart = Ours::apart(places, "iperf3", &cancel)?;
    for (name, reverse, target) in [
        ("iperf3, one stream in", false, 1.0),
        ("iperf3, one stream out", true, 1.1),
    ] {
        let metrics = [(name, "Gb/s")];
        let one = |to: SocketAddr, cancel: &AtomicBool| iperf3(places, to, reverse, cancel);
        let series = bench.interleave_of(
            &metrics,
            &mut [
                Candidate::new(WITHIN, |cancel| one(within.address, cancel)),
                Candidate::new(IPERF3, |cancel| one(SocketAddr::from((FAR, 5201)), cancel)),
                Candidate::new(APART, |cancel| one(apart.address, cancel)),
            ],
        )?;
        compare(bench, &metrics, [Some(target)], &series, IPERF3);
    }
    Ok(())
}

/// Gb/s that arrive.
fn iperf3(
    places: &Places,
    to: SocketAddr,
    reverse: bool,
    cancel: &AtomicBool,
) -> Result<Vec<f64>, BenchError> {
    let mut command = tool("iperf3")?;
    command.args(["-J", "-c", &to.ip().to_string(), "-t", &places.seconds()]);
    if reverse {
        command.arg("-R");
    }
    let said = places.ask(command, cancel)?;
    super::pair::arrived(&said).map(|bits| vec![bits / 1e9])
}

/// Ours within and apart, each compared with the kernel's, which is second of `series`.
fn compare<const N: usize>(
    bench: &mut Bench<'_>,
    metrics: &[(&str, &'static str)],
    targets: [Option<f64>; N],
    series: &[Option<Vec<Series>>],
    peer: &str,
) {
    let of = |who: usize| series.get(who).and_then(Option::as_ref);
    for (index, (&(metric, unit), target)) in metrics.iter().zip(targets).enumerate() {
        let better = match unit {
            "us" => Better::Lower,
            _ => Better::Higher,
        };
        for (who, what, target) in [(0, WITHIN, target), (2, APART, None)] {
            let metric = format!("{metric}, {what}");
            let comparison = Comparison {
                name: peer,
                metric: &metric,
                unit,
                better,
                target,
                note: NOTE,
            };
            let [here, there] = [who, 1].map(|who| of(who).map(|series| &series[index]));
            bench.compare(&comparison, here, there);
        }
    }
}

fn sessions(count: usize) -> String {
    match count {
        1 => "1 session".into(),
        _ => format!("{count} sessions"),
    }
}

const SESSIONS: [usize; 3] = [1, 50, 1000];
const WITHIN: &str = "stack in the server's process";
const APART: &str = "engine in a process of its own";
const EPOLL: &str = "epoll over the kernel's stack";
const NGINX: &str = "nginx, one process";
const IPERF3: &str = "iperf3's server";
const IDLE: &str = "processor time of a server that nobody asks";
const NOTE: &str = "nobody is pinned; ours over a TAP, the kernel's over a veth";
/// Address of their clients.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Address of the kernel's servers.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// Length of our server's `/`.
const PAGE_BYTES: usize = 41;
const START_TIME_MAX: Duration = Duration::from_secs(5);
