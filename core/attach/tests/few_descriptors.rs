//! An acceptor whose process may open few descriptors: it serves, and neither hangs nor spins. A
//! test binary of its own, because the limit is the process's.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sidecore_attach::protocol::KIND_STATUS;
use sidecore_attach::{
    Acceptor, AcceptorOptions, Allow, Event, Introduction, Protocol, Quota, Trust,
};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROTOCOL: Protocol = Protocol {
    magic: u64::from_le_bytes(*b"TESTING1"),
    version: 3,
    server: "test",
};
const LONG: Duration = Duration::from_secs(60);

fn open(folder: &Path) -> Acceptor<()> {
    let options = AcceptorOptions {
        allow: Allow::default(),
        quota: Quota {
            places_max: 64,
            user_places_max: 16,
            bytes_max: 1 << 20,
            user_bytes_max: 1 << 19,
        },
        cpus: Vec::new(),
        acceptors: 1,
        remedy: |_| "no remedy".to_owned(),
    };
    Acceptor::open(PROTOCOL, &folder.join("test.sock"), options).unwrap()
}

/// One turn of a server that answers every question.
fn turn(acceptor: &mut Acceptor<()>, timeout: Duration) {
    acceptor.wait(&[], timeout).expect("the acceptor goes on");
    while let Some(event) = acceptor.next_event() {
        if let Event::Question { from, .. } = event {
            acceptor.answer(from, KIND_STATUS, b"well");
        }
    }
}

fn is_answered(acceptor: &mut Acceptor<()>) -> bool {
    let question = PROTOCOL.question(KIND_STATUS, &[]);
    let trust = Trust::default();
    let asked = Introduction::begin(PROTOCOL, acceptor.path(), &trust, &question, 4096);
    let asked = asked.expect("there is room in the queue");
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        turn(acceptor, Duration::from_millis(10));
        if let Some(answer) = asked.poll().expect("it is not hung up on") {
            return answer.body == b"well";
        }
    }
    false
}

/// A process with `count` connections that say nothing, once it has them.
fn crowd(folder: &Path, count: usize, acceptor: &mut Acceptor<()>) -> Child {
    // The limit is inherited.
    let program = "import resource, socket, sys\n\
                   _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n\
                   resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n\
                   held = []\n\
                   for _ in range(int(sys.argv[2])):\n\
                   \x20   s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                   \x20   s.connect(sys.argv[1]); held.append(s)\n\
                   print('connected', flush=True)\n\
                   sys.stdin.read()\n";
    let mut child = Command::new("python3")
        .args(["-c", program])
        .arg(folder.join("test.sock"))
        .arg(count.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3; scripts/setup installs it");
    let said = BufReader::new(child.stdout.take().unwrap());
    let waiting = std::thread::spawn(move || said.lines().next());
    while !waiting.is_finished() {
        turn(acceptor, Duration::from_millis(10));
    }
    assert_eq!(waiting.join().unwrap().unwrap().unwrap(), "connected");
    child
}

#[test]
fn more_connections_than_descriptors_do_not_stop_the_door() {
    let folder = tempfile::tempdir().unwrap();
    let before = getrlimit(Resource::Nofile);
    let limited = Rlimit {
        current: Some(64),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, limited).unwrap();
    let mut acceptor = open(folder.path());
    assert!(acceptor.places_max() < 64, "it has no descriptors for 64");
    let mut mute = crowd(folder.path(), 200, &mut acceptor);
    assert!(is_answered(&mut acceptor), "beside them");
    mute.kill().unwrap();
    mute.wait().unwrap();
    assert!(is_answered(&mut acceptor), "after them");

    // Something else takes all that are left: silent connections make room, and where there are
    // none the acceptor pauses.
    let mut mute = crowd(folder.path(), 8, &mut acceptor);
    let question = PROTOCOL.question(KIND_STATUS, &[]);
    let trust = Trust::default();
    let path = acceptor.path().to_owned();
    let ask = || Introduction::begin(PROTOCOL, &path, &trust, &question, 4096).unwrap();
    let (first, second) = (ask(), ask());
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let begun = Instant::now();
    while first.poll().unwrap().is_none() || second.poll().unwrap().is_none() {
        assert!(begun.elapsed() < LONG, "no silent connection makes room");
        turn(&mut acceptor, Duration::from_millis(10));
    }
    mute.kill().unwrap();
    mute.wait().unwrap();
    drop(taken);
    assert!(is_answered(&mut acceptor));
    let third = ask();
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let begun = Instant::now();
    for _ in 0..20 {
        turn(&mut acceptor, Duration::from_millis(100));
    }
    // Twenty turns of an acceptor that looks at a listener again and again take no time at all.
    assert!(begun.elapsed() >= Duration::from_millis(100), "it spins");
    drop(taken);
    let begun = Instant::now();
    while third.poll().unwrap().is_none() {
        assert!(begun.elapsed() < LONG, "it is not answered afterwards");
        turn(&mut acceptor, Duration::from_millis(10));
    }
}
