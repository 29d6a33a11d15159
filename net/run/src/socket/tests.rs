use super::files::{is_hung_up, local_stream, pair};
use super::*;

/// A TCP socket of 127.0.0.1:1 in this state.
pub(crate) fn socket(state: State) -> Socket {
    let kernel = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    );
    let local = "127.0.0.1:1".parse().unwrap();
    Socket::new(Transport::Tcp, Rc::new(kernel.unwrap()), local, state)
}

/// A UDP socket of 127.0.0.1:1, and the program's own.
pub(crate) fn datagram_socket() -> (Socket, OwnedFd) {
    let near = crate::carrier::datagram_socket(false).unwrap();
    let mut carrier = Carrier::new(false).unwrap();
    carrier.settle(&near, &[]).unwrap();
    let state = State::Datagram(Datagram {
        engines: Vec::new(),
        carrier,
    });
    let socket = Socket {
        transport: Transport::Udp,
        ..socket(state)
    };
    (socket, near)
}

#[test]
fn only_a_datagram_socket_has_a_carrier() {
    for state in [
        State::Bound,
        State::Listening(Listening::default()),
        State::Joined(Joined::new(Report::Made)),
        State::Failed(None),
        State::Doomed,
        State::Shut,
        State::Over,
    ] {
        let mut socket = socket(state);
        assert!(!socket.is_datagram() && !socket.is_adopting());
        assert!(socket.carrier().is_none() && socket.carrier_mut().is_none());
        assert!(socket.engines().is_empty() && socket.openings().is_empty());
        assert!(socket.is_unseen());
        assert_eq!(
            socket.listening_mut().is_some(),
            matches!(socket.state, State::Listening(_))
        );
    }
    let (mut socket, _near) = datagram_socket();
    assert!(socket.is_datagram() && !socket.is_adopting());
    assert!(socket.carrier().is_some() && socket.carrier_mut().is_some());
    // The kernel reports datagrams of the far end, but not its close: sweeps look for that.
    assert!(!socket.is_unseen());
}

#[test]
fn a_datagram_socket_is_adopted_until_the_stack_has_answered() {
    let (mut socket, near) = datagram_socket();
    let adopting = Adopting {
        near: Rc::new(near),
        is_near: true,
        shared: Vec::new(),
        flags: Flags::default(),
    };
    socket.asked = Some(Asked {
        purpose: Purpose::Datagrams(adopting),
        openings: Vec::new(),
        engines: Vec::new(),
        refused: None,
    });
    assert!(socket.is_adopting());
    assert!(socket.asked.as_ref().unwrap().is_adopting());
    socket.asked.as_mut().unwrap().purpose = Purpose::Again;
    assert!(!socket.asked.as_ref().unwrap().is_adopting());
}

#[test]
fn the_far_end_shows_that_a_program_has_closed_the_near_one() {
    let (near, far) = pair(false).unwrap();
    let mut of = socket(State::Joined(Joined::new(Report::Made)));
    // Without a far end, nothing shows it.
    assert!(!of.is_closed());
    of.far = Some(far);
    assert!(!of.is_unseen() && !of.is_closed());
    // The end of its sending is no close.
    rustix::net::shutdown(&near, rustix::net::Shutdown::Write).unwrap();
    assert!(!of.is_closed());
    drop(near);
    assert!(of.is_closed());
}

#[test]
fn a_token_shows_that_a_listener_is_closed() {
    let (near, name) = files::listening_end(true).unwrap();
    let token = local_stream(true).unwrap();
    rustix::net::connect(&token, &name).unwrap();
    let mut listening = Listening::default();
    let none = socket(State::Listening(Listening::default()));
    assert!(!none.is_closed());
    listening.tokens.push_back(token);
    let of = socket(State::Listening(listening));
    assert!(!of.is_closed());
    drop(near);
    assert!(of.is_closed());
}

#[test]
fn a_free_port_shows_that_a_datagram_socket_is_closed() {
    let (socket, near) = datagram_socket();
    assert!(!socket.is_closed());
    drop(near);
    assert!(socket.is_closed());
}

#[test]
fn an_option_of_its_own_hides_the_kernels() {
    let mut socket = socket(State::Bound);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    let number = |value: i32| value.to_ne_bytes().to_vec();
    assert_eq!(socket.option(level, name, 4), Ok(number(0)));
    socket.keep_option(level, name, number(1));
    assert_eq!(socket.option(level, name, 4), Ok(number(1)));
    // The last value counts, and is kept once.
    socket.keep_option(level, name, number(2));
    assert_eq!(socket.option(level, name, 4), Ok(number(2)));
    assert_eq!(socket.options.len(), 1);
    let other = socket.option(level, libc::SO_REUSEADDR, 4);
    assert_eq!(other, Ok(number(0)));
    socket.drop_option(level, name);
    assert_eq!(socket.option(level, name, 4), Ok(number(0)));
    assert_eq!(
        socket.option(level, -1, 4),
        Err(Errno::NOPROTOOPT),
        "the kernel judges what it does not know"
    );
}

#[test]
fn a_time_of_zero_is_no_limit() {
    let socket = socket(State::Bound);
    assert_eq!(socket.patience(libc::SO_RCVTIMEO), None);
    let time = [2u64.to_ne_bytes(), 500_000u64.to_ne_bytes()].concat();
    let file = socket.kernel.as_fd();
    socket_option::set(file, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time).unwrap();
    let patience = socket.patience(libc::SO_RCVTIMEO).unwrap();
    // The kernel rounds to its ticks.
    assert!(patience >= Duration::from_millis(2490) && patience <= Duration::from_millis(2510));
    assert_eq!(socket.patience(libc::SO_SNDTIMEO), None);
}

#[test]
fn a_time_that_no_clock_reaches_is_no_limit() {
    for bytes in [[0xff; 16].as_slice(), &[0; 16], &[1; 15], &[1; 7], &[]] {
        assert_eq!(files::patience(bytes), None, "{bytes:?}");
    }
    let micro = [0u64.to_ne_bytes(), 1u64.to_ne_bytes()].concat();
    assert_eq!(files::patience(&micro), Some(Duration::from_micros(1)));
}

#[test]
fn a_claim_has_the_options_that_share_a_port() {
    let socket = socket(State::Bound);
    let plain = socket.claim(false);
    assert!(!plain.reuses_address && !plain.reuses_port && !plain.listens);
    for name in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
        let on = 1i32.to_ne_bytes();
        socket_option::set(socket.kernel.as_fd(), libc::SOL_SOCKET, name, &on).unwrap();
    }
    let shared = socket.claim(true);
    assert!(shared.reuses_address && shared.reuses_port && shared.listens);
    assert_eq!(shared.ip, socket.bound);
}

#[test]
fn a_holder_is_found_by_its_inode() {
    let (near, _far) = pair(false).unwrap();
    let inode = files::inode_of(&near).unwrap();
    let holder = Holder {
        thread: rustix::thread::gettid().as_raw_nonzero().get(),
        descriptor: std::os::fd::AsRawFd::as_raw_fd(&near),
        process: 0,
    };
    let found = holder.fetch(inode).unwrap();
    assert_eq!(files::inode_of(&found), Ok(inode));
    // Its thread has ended; the process has the descriptor still.
    let of_process = Holder {
        thread: -1,
        process: i32::try_from(std::process::id()).unwrap(),
        ..holder
    };
    assert!(of_process.fetch(inode).is_some());
    assert!(
        Holder {
            process: 0,
            ..of_process
        }
        .fetch(inode)
        .is_none()
    );
    // The descriptor refers to another file by now.
    assert!(holder.fetch(inode + 1).is_none());
    assert!(Holder::UNKNOWN.fetch(inode).is_none());
}

#[test]
fn a_pair_is_full_before_its_near_end_is_writable() {
    let (near, far) = pair(true).unwrap();
    let filler = files::fill(&near).unwrap();
    assert!(filler > 0);
    let is_writable = || {
        use rustix::event::{PollFd, PollFlags};
        let mut polled = [PollFd::new(&near, PollFlags::OUT)];
        rustix::event::poll(&mut polled, Some(&rustix::time::Timespec::default())).unwrap();
        polled[0].revents().contains(PollFlags::OUT)
    };
    assert!(!is_writable());
    // All of it can be taken off again.
    let mut head = Head::Filler(filler);
    let mut room = vec![0; 64 << 10];
    while head.is_filler() {
        let at_once = head.room(room.len());
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let (_, count) = rustix::net::recv(&far, &mut room[..at_once], flags).unwrap();
        assert_eq!(head.consume(&room[..count]), Consumed::Filler);
    }
    assert_eq!(rustix::io::ioctl_fionread(&far), Ok(0));
    assert!(is_writable());
}

#[test]
fn the_ends_of_a_pair_have_flags_of_their_own() {
    let (near, far) = pair(false).unwrap();
    let is_nonblocking = |file: &OwnedFd| {
        let flags = rustix::fs::fcntl_getfl(file).unwrap();
        flags.contains(rustix::fs::OFlags::NONBLOCK)
    };
    assert!(!is_nonblocking(&near) && is_nonblocking(&far));
    files::set_nonblocking(&near, true).unwrap();
    assert!(is_nonblocking(&near));
    files::set_nonblocking(&near, false).unwrap();
    assert!(!is_nonblocking(&near) && is_nonblocking(&far));
    assert!(!is_hung_up(&far));
    drop(near);
    assert!(is_hung_up(&far));
}

#[test]
fn the_kernels_socket_is_inspected_as_the_program_opened_it() {
    use rustix::net::{AddressFamily, SocketType};
    let open = |family, kind| {
        let file = rustix::net::socket(family, kind, None).unwrap();
        Opened::of(Rc::new(file))
    };
    let tcp = open(AddressFamily::INET, SocketType::STREAM).unwrap();
    assert_eq!((tcp.transport, tcp.is_v6), (Transport::Tcp, false));
    assert_eq!((tcp.local.port(), tcp.is_connected), (0, false));
    assert_eq!(tcp.any(), IpAddr::from([0, 0, 0, 0]));
    let udp = open(AddressFamily::INET, SocketType::DGRAM).unwrap();
    assert_eq!(udp.transport, Transport::Udp);
    assert!(open(AddressFamily::UNIX, SocketType::STREAM).is_none());
    // The kernel keeps the port that it chose, so that no other socket gets it.
    let port = tcp.choose_port("127.0.0.1".parse().unwrap()).unwrap();
    let bound = Opened::of(Rc::clone(&tcp.file)).unwrap();
    assert_eq!((port != 0, bound.local.port()), (true, port));
    let again = Opened {
        chosen: Some(port),
        ..bound
    };
    assert_eq!(again.choose_port(again.any()), Ok(port));
}
