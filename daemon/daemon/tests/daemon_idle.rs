//! An idle daemon costs next to nothing with clients attached, and a tenth of that without. Alone
//! in its file: it looks at all threads of the process.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; seeds.

#[path = "common/idle.rs"]
mod idle;

use sidecore_daemon::client::{Args, Client, ClientOptions};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions, EngineState};
use std::time::{Duration, Instant};

#[test]
fn an_idle_daemon_sleeps_but_for_its_heartbeat() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        grace: Duration::from_millis(5),
        registry: Registry::with_spin_us(),
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
    // Without a client 4 ticks and a beat a second.
    drop(clients);
    let begun = Instant::now();
    loop {
        let (used, reference) = idle::watch(Duration::from_secs(2));
        if used.turns <= 40 {
            idle::assert_asleep(used, reference, 40);
            break;
        }
        // The clients' memory may still be on its way back.
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{used:?}: it never rests"
        );
    }
    // It beats again for the next client, which would give it up after 700 ms without.
    let options = ClientOptions {
        registry: Registry::with_spin_us(),
        silence_max: Duration::from_millis(700),
        ..ClientOptions::patient()
    };
    let client = Client::attach_with(daemon.socket(), options).unwrap();
    let spin = client.kernel("spin_us").unwrap();
    client.call(spin, Args::new().words(&[1_000_000])).unwrap();
    let counters = client.counters();
    assert_eq!((counters.on_engines, counters.on_host), (1, 0));
}
