//! Kernels that only the daemon has: calls wait for a busy engine, up to the caller's limit.

use sidecore_daemon::client::{Args, Client, ClientError, ClientOptions, Piece};
use sidecore_daemon::served::{Cx, Memory, Registry, Reply, Request, Served};
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_engine::KernelError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Takes its first word in milliseconds.
struct Nap;

impl Served for Nap {
    const NAME: &'static str = "nap";
    type State = ();

    fn engine<'c>(
        _cx: &mut Cx<'c, Self>,
        request: &Request,
        _memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        std::thread::sleep(Duration::from_millis(request.words[0]));
        Ok(Reply::word(request.words[0] + 1))
    }
}

fn attach(daemon: &Daemon) -> Client {
    let options = ClientOptions {
        registry: Registry::builtin().with_remote("nap", 1, None).unwrap(),
        // A busy machine is not taken for a dead daemon; an engine is held up after 1 ms.
        silence_max: Duration::from_secs(60),
        ..ClientOptions::default()
    };
    Client::attach_with(daemon.socket(), options).unwrap()
}

#[test]
fn a_call_waits_for_an_engine_up_to_the_callers_limit() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 1,
        registry: Registry::builtin().with::<Nap>().unwrap(),
        ..DaemonOptions::default()
    })
    .unwrap();
    let (busy, client) = (attach(&daemon), attach(&daemon));
    let nap = client.kernel("nap").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let kernel = busy.kernel("nap").unwrap();
            while !over.load(Ordering::Relaxed) {
                busy.call(kernel, Args::new().words(&[30])).unwrap();
            }
        });
        for number in 0..10 {
            let reply = client.call(nap, Args::new().words(&[number])).unwrap();
            assert_eq!(reply.words[0], number + 1);
            std::thread::sleep(Duration::from_millis(3));
        }
        let spread = client
            .for_each(nap, &[], &mut [], 4, |_| Piece::new(&[1]))
            .unwrap();
        assert_eq!(spread.replies, [Reply::word(2); 4]);
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(client.counters().on_host, 0);

    // A limit that is too short is an error with that message, and leaves the engine usable.
    let mut output = client.buffer(8);
    output.bytes_mut().fill(5);
    let args = Args::new().words(&[400]).output(&mut output);
    let late = client.call(nap, args.within(Duration::from_millis(20)));
    let late = late.unwrap_err();
    assert!(
        matches!(
            late,
            ClientError::Late {
                kernel: "nap",
                waited_ms: 20
            }
        ),
        "{late}"
    );
    assert_eq!(output.bytes(), [5; 8]);
    let short = Args::new().within(Duration::from_millis(1));
    assert!(matches!(
        client.call(nap, short),
        Err(ClientError::Late { .. })
    ));
    // Without a limit it waits for the engine that is at the one that was left behind.
    assert_eq!(client.call(nap, Args::new()).unwrap().words[0], 1);

    // Too much memory for the arena is no missing daemon.
    let large = client.buffer(64 << 20);
    let error = client.call(nap, Args::new().input(&large)).unwrap_err();
    assert!(matches!(error, ClientError::ArenaFull { .. }), "{error}");
    daemon.stop();
    let error = client.call(nap, Args::new()).unwrap_err();
    assert!(error.to_string().contains("no daemon serves"), "{error}");
}
