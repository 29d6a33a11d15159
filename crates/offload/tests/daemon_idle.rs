//! An idle daemon costs next to nothing, with clients attached. Alone in its file: it measures the
//! processor time of the whole process.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; seeds.

use sidecore_offload::client::{Args, Client};
use sidecore_offload::daemon::{Daemon, DaemonOptions, EngineState};
use sidecore_sys::clock;
use std::time::{Duration, Instant};

#[test]
fn an_idle_daemon_uses_less_than_one_percent_of_a_core() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        grace: Duration::from_millis(5),
        ..DaemonOptions::default()
    })
    .unwrap();
    let clients = [(); 4].map(|()| Client::attach(daemon.socket()).unwrap());
    for client in &clients {
        let empty = client.kernel("empty").unwrap();
        client.call(empty, Args::new()).unwrap();
    }
    let begun = Instant::now();
    let asleep = || {
        let status = clients[0].status().unwrap();
        status
            .engines
            .iter()
            .all(|engine| engine.state == EngineState::Asleep)
    };
    while !asleep() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the engines never sleep"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let (cpu_ns, wall_ns) = (clock::process_cpu_ns(), clock::now_ns());
    std::thread::sleep(Duration::from_secs(2));
    let used_ns = clock::process_cpu_ns() - cpu_ns;
    let passed_ns = clock::now_ns() - wall_ns;
    let percent = used_ns as f64 / passed_ns as f64 * 100.0;
    println!("{percent:.3} % of a core");
    assert!(percent < 1.0, "{percent:.3} % of a core");
    // And they wake up.
    for client in &clients {
        client
            .call(client.kernel("empty").unwrap(), Args::new())
            .unwrap();
        assert_eq!(client.counters().on_host, 0);
    }
}
