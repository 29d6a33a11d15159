use super::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SERVER: &str = "127.0.0.1:5432";
const CLIENT: &str = "127.0.0.1:40000";
const OTHER: u32 = 23457;
/// Tries of some milliseconds each.
const TRIES_MAX: u32 = 20_000;

fn name(local: &str, peer: &str, role: Role) -> Name {
    // Relaxed: the number only has to be unique.
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = Name::new(role, std::process::id(), number);
    let end = |end: &str| crate::supervisor::named::end_bytes(end.parse().unwrap(), true);
    name.ends = [end(local), end(peer)];
    name
}

fn folder() -> tempfile::TempDir {
    let made = tempfile::tempdir().unwrap();
    std::fs::set_permissions(made.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    made
}

#[test]
fn a_connecting_program_gets_an_end_of_its_own() {
    let folder = folder();
    let rendezvous = Rendezvous::at(&folder.path().join("a/loopback")).unwrap();
    let sockets = rendezvous.open(SERVER.parse().unwrap(), false, None);
    let sockets = sockets.unwrap();
    let name = name(CLIENT, SERVER, Role::Program);
    let visitor = rendezvous.connect(SERVER.parse().unwrap(), &name).unwrap();
    let came = sockets[0].next().unwrap();
    assert_eq!(came.local, SERVER.parse().unwrap());
    assert_eq!(came.peer, CLIENT.parse().unwrap());
    let near = came.near;
    // The flags of one end are independent of the other's.
    crate::socket::files::set_nonblocking(&visitor, false).unwrap();
    let flags = rustix::fs::fcntl_getfl(&near).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
    assert!(sockets[0].next().is_none());
    // The port has a listener as long as the door exists.
    let again = rendezvous.open(SERVER.parse().unwrap(), false, None);
    assert_eq!(again.unwrap_err(), Errno::ADDRINUSE);
    drop((sockets, visitor));
    // A child that another test forks has the sockets, too, until it executes its program.
    let mut tries = 0;
    while rendezvous.connect(SERVER.parse().unwrap(), &name).err() != Some(Errno::CONNREFUSED) {
        tries += 1;
        assert!(tries < TRIES_MAX, "the port has a listener");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn only_addresses_of_the_loopback_and_of_the_listener_are_let_in() {
    let folder = folder();
    let rendezvous = Rendezvous::at(&folder.path().join("loopback")).unwrap();
    let sockets = rendezvous.open(SERVER.parse().unwrap(), false, None);
    let sockets = sockets.unwrap();
    for (local, peer, role) in [
        ("10.0.0.5:22", SERVER, Role::Program),
        (CLIENT, "10.0.0.5:5432", Role::Program),
        (CLIENT, "127.0.0.1:5433", Role::Program),
        (CLIENT, "127.0.0.2:5432", Role::Program),
        (CLIENT, SERVER, Role::Session),
    ] {
        let visited = rendezvous.connect(SERVER.parse().unwrap(), &name(local, peer, role));
        assert!(visited.is_ok());
        assert!(sockets[0].next().is_none(), "{local} {peer}");
    }
}

/// Runs `work` as an unprivileged user: on its own thread, with its own credentials.
fn as_another_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let other = rustix::process::Uid::from_raw(OTHER);
    let work = move || {
        rustix::thread::set_thread_res_uid(other, other, other).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

#[test]
fn a_rendezvous_socket_is_closed_to_other_users() {
    if local_socket::effective_uid() != 0 {
        return;
    }
    let folder = folder();
    let place = folder.path().join("loopback");
    let rendezvous = Rendezvous::at(&place).unwrap();
    let sockets = rendezvous.open(SERVER.parse().unwrap(), false, None);
    let sockets = sockets.unwrap();
    let door = place.join("127.0.0.1-5432");
    let at = SocketAddrUnix::new(door.clone()).unwrap();
    let visitor = name(CLIENT, SERVER, Role::Program);
    let connect = || connect_named(&visitor, &at, Maker::User).map(drop);
    assert_eq!(as_another_user(connect), Err(Errno::ACCESS));
    // A process that reaches it nevertheless is rejected.
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    open(&place);
    open(&door);
    let connect = || {
        let socket = local_stream(true).unwrap();
        let name = SocketAddrUnix::new_abstract_name(&visitor.bytes()).unwrap();
        rustix::net::bind(&socket, &name).unwrap();
        rustix::net::connect(&socket, &at).unwrap();
        socket
    };
    let came = as_another_user(connect);
    assert!(sockets[0].next().is_none());
    // A door of another user is not used either.
    drop((sockets, came));
    let listen = || {
        let socket = local_stream(true).unwrap();
        rustix::net::bind(&socket, &at).unwrap();
        rustix::net::listen(&socket, 9).unwrap();
        socket
    };
    let theirs = as_another_user(listen);
    open(&door);
    let name = name(CLIENT, SERVER, Role::Program);
    let visited = rendezvous.connect(SERVER.parse().unwrap(), &name);
    assert_eq!(visited.unwrap_err(), Errno::CONNREFUSED);
    drop(theirs);
}

#[test]
fn a_folder_that_another_user_can_exchange_is_refused() {
    let folder = folder();
    let open = folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let inside = Rendezvous::at(&open.join("loopback")).unwrap_err();
    assert!(inside.to_string().contains("chmod go-w"), "{inside}");
    // A folder from an earlier version is closed to others.
    let old = folder.path().join("old");
    std::fs::create_dir(&old).unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).unwrap();
    Rendezvous::at(&old).unwrap();
    assert_eq!(old.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    if local_socket::effective_uid() != 0 {
        return;
    }
    let theirs = folder.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(OTHER), None).unwrap();
    for path in [theirs.join("loopback"), theirs] {
        let refused = Rendezvous::at(&path).unwrap_err();
        assert!(refused.to_string().contains("23457"), "{refused}");
    }
}

#[test]
fn a_name_that_another_supervisor_is_taking_is_left_to_it() {
    let folder = folder();
    let place = folder.path().join("loopback");
    let (first, second) = (
        Rendezvous::at(&place).unwrap(),
        Rendezvous::at(&place).unwrap(),
    );
    let door = place.join("127.0.0.1-5432");
    // The first one is between bind and listen.
    let claim = Claim::on(&first.0).unwrap();
    let listener = local_stream(true).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(door).unwrap()).unwrap();
    let open = || second.open(SERVER.parse().unwrap(), false, None);
    assert_eq!(open().unwrap_err(), Errno::ADDRINUSE);
    rustix::net::listen(&listener, 9).unwrap();
    drop(claim);
    assert_eq!(open().unwrap_err(), Errno::ADDRINUSE);
    let name = name(CLIENT, SERVER, Role::Program);
    second.connect(SERVER.parse().unwrap(), &name).unwrap();
}

#[test]
fn one_of_two_supervisors_gets_a_name() {
    let folder = folder();
    let place = folder.path().join("loopback");
    Rendezvous::at(&place).unwrap();
    let round = std::sync::Barrier::new(2);
    let open = || {
        let rendezvous = Rendezvous::at(&place).unwrap();
        let mut outcomes = Vec::new();
        for port in 1..=100 {
            round.wait();
            let sockets = rendezvous.open(SocketAddr::from(([127, 0, 0, 1], port)), false, None);
            // Held until the other one has tried, too.
            round.wait();
            outcomes.push(sockets.is_ok());
        }
        outcomes
    };
    let [one, other] = std::thread::scope(|scope| {
        let threads = [scope.spawn(open), scope.spawn(open)];
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(one.iter().zip(&other).all(|(one, other)| one != other));
}

#[test]
fn a_socket_that_was_replaced_leaves_its_name() {
    let folder = folder();
    let place = folder.path().join("loopback");
    let rendezvous = Rendezvous::at(&place).unwrap();
    let sockets = rendezvous.open(SERVER.parse().unwrap(), false, None);
    let door = place.join("127.0.0.1-5432");
    std::fs::remove_file(&door).unwrap();
    let listener = local_stream(true).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&door).unwrap()).unwrap();
    drop(sockets.unwrap());
    assert!(door.exists());
}
