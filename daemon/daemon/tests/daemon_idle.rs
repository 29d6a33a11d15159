//! An idle daemon costs next to nothing, with clients attached. Alone in its file: it looks at all
//! threads of the process.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; seeds.

#[path = "common/idle.rs"]
mod idle;

use sidecore_daemon::client::{Args, Client, ClientOptions};
use sidecore_daemon::{Daemon, DaemonOptions, EngineState};
use std::time::{Duration, Instant};

#[test]
fn an_idle_daemon_sleeps_but_for_its_heart() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        grace: Duration::from_millis(5),
        ..DaemonOptions::default()
    })
    .unwrap();
    let attach = || Client::attach_with(daemon.socket(), ClientOptions::patient()).unwrap();
    let clients = [(); 4].map(|()| attach());
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
            begun.elapsed() < Duration::from_secs(60),
            "the engines never sleep"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let (used, reference) = idle::watch(Duration::from_secs(2));
    // 50 beats and 50 ticks a second; some turns more where others take the core in between.
    idle::assert_asleep(used, reference, 600);
    // And they wake up.
    for client in &clients {
        client
            .call(client.kernel("empty").unwrap(), Args::new())
            .unwrap();
        assert_eq!(client.counters().on_host, 0);
    }
}
