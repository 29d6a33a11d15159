use super::*;
use crate::socket::tests::{datagram_socket, socket};
use crate::socket::{Joined, Listening};
use std::rc::Rc;

fn linger(on: i32, seconds: i32) -> Vec<u8> {
    [on.to_ne_bytes(), seconds.to_ne_bytes()].concat()
}

#[test]
fn only_a_linger_of_zero_that_is_on_resets() {
    assert!(resets(&linger(1, 0)));
    assert!(resets(&linger(7, 0)));
    assert!(!resets(&linger(0, 0)));
    assert!(!resets(&linger(1, 1)));
    assert!(!resets(&linger(1, -1)));
    for length in 0..8 {
        assert!(!resets(&linger(1, 0)[..length]), "{length}");
    }
}

#[test]
fn an_error_is_reported_once() {
    let mut failed = State::Failed(Some(Errno::CONNREFUSED));
    assert_eq!(take_error(&mut failed), libc::ECONNREFUSED);
    assert_eq!(take_error(&mut failed), 0);
    for mut other in [State::Bound, State::Over, State::Doomed] {
        assert_eq!(take_error(&mut other), 0);
    }
}

#[test]
fn the_state_of_a_session_follows_its_ends() {
    let ends = |own, peers| Ends { own, peers };
    let joined = State::Joined(Joined::new(Report::Made));
    // The numbers of `include/net/tcp_states.h`.
    assert_eq!(tcp_state(&joined, ends(false, false)), 1);
    assert_eq!(tcp_state(&joined, ends(true, false)), 5);
    assert_eq!(tcp_state(&joined, ends(false, true)), 8);
    assert_eq!(tcp_state(&joined, ends(true, true)), 7);
    let listening = State::Listening(Listening::default());
    assert_eq!(tcp_state(&listening, Ends::default()), 10);
    for closed in [State::Bound, State::Failed(None), State::Over] {
        assert_eq!(tcp_state(&closed, Ends::default()), 7);
    }
}

#[test]
fn the_stack_gets_the_options_that_it_has() {
    let socket = socket(State::Bound);
    let number = |value: i32| value.to_ne_bytes();
    let option = |level, name, value: i32| option_of_stack(&socket, level, name, &number(value));
    let tcp = libc::IPPROTO_TCP;
    assert_eq!(
        option(tcp, libc::TCP_NODELAY, 1),
        Some(SocketOption::NoDelay(true))
    );
    assert_eq!(
        option(tcp, libc::TCP_NODELAY, 0),
        Some(SocketOption::NoDelay(false))
    );
    assert_eq!(
        option(tcp, libc::TCP_USER_TIMEOUT, 1500),
        Some(SocketOption::UserTimeoutMs(1500))
    );
    for (level, name) in [
        (tcp, libc::TCP_CORK),
        (libc::SOL_SOCKET, libc::SO_SNDBUF),
        (libc::IPPROTO_IP, libc::TCP_USER_TIMEOUT),
    ] {
        assert_eq!(option(level, name, 1), None, "{level} {name}");
    }
    // SO_RCVBUF and TCP_WINDOW_CLAMP are passed as the window that they allow.
    assert_eq!(option(libc::SOL_SOCKET, libc::SO_RCVBUF, 1), None);
    // A value that is too short for a number counts as zero, as long as the kernel took it.
    assert_eq!(
        option_of_stack(&socket, tcp, libc::TCP_NODELAY, &[1]),
        Some(SocketOption::NoDelay(false))
    );
}

#[test]
fn the_traffic_class_is_that_of_the_sessions_family() {
    let mut of = socket(State::Bound);
    let tos = (libc::IPPROTO_IP, libc::IP_TOS);
    let class = (libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
    let option = |of: &Socket, (level, name): (i32, i32), value: &[u8]| {
        option_of_stack(of, level, name, value)
    };
    let passed = |class| Some(SocketOption::TrafficClass(class));
    let number = |value: i32| value.to_ne_bytes();
    assert_eq!(option(&of, tos, &number(0xb8)), passed(0xb8));
    assert_eq!(option(&of, tos, &[0x48]), passed(0x48));
    assert_eq!(option(&of, tos, &[]), None);
    assert_eq!(option(&of, class, &number(0xb8)), None);
    of.is_v6 = true;
    assert_eq!(option(&of, tos, &number(0xb8)), None);
    assert_eq!(option(&of, class, &number(0xb8)), passed(0xb8));
    assert_eq!(option(&of, class, &number(-1)), passed(0));
    for refused in [&number(256)[..], &[1]] {
        assert_eq!(option(&of, class, refused), None);
    }
    // An IPv6 socket with an IPv4 peer sends IPv4.
    of.peer = Some("192.0.2.1:80".parse().unwrap());
    assert_eq!(option(&of, tos, &number(0x20)), passed(0x20));
    assert_eq!(option(&of, class, &number(0x20)), None);
}

#[test]
fn the_window_follows_the_receive_buffer_and_its_clamp() {
    let mut of = socket(State::Bound);
    let (all, tcp) = (libc::SOL_SOCKET, libc::IPPROTO_TCP);
    let number = |value: i32| value.to_ne_bytes();
    assert_eq!(of.window(false), None);
    set(&mut of, all, libc::SO_RCVBUF, &number(20_000)).unwrap();
    assert_eq!(of.window(false), Some(20_000));
    set(&mut of, tcp, libc::TCP_WINDOW_CLAMP, &number(9_000)).unwrap();
    assert_eq!(of.window(true), Some(9_000));
    // The stack's least.
    set(&mut of, all, libc::SO_RCVBUF, &number(1)).unwrap();
    of.window_max = of.window(true);
    let value = |name| option_of_stack(&of, all, name, &number(1));
    let least = SocketOption::ReceiveBytes(4096);
    assert_eq!(value(libc::SO_RCVBUF), Some(least));
}

#[test]
fn a_buffer_of_a_shared_kernel_socket_is_restored_to_what_it_was() {
    let mut of = socket(State::Joined(Joined::new(Report::Made)));
    let level = libc::SOL_SOCKET;
    let number = |value: i32| value.to_ne_bytes();
    set(&mut of, level, libc::SO_RCVBUF, &number(10_000)).unwrap();
    of.owns_kernel = false;
    set(&mut of, level, libc::SO_RCVBUF, &number(30_000)).unwrap();
    let kernel = socket_option::get(of.kernel.as_fd(), level, libc::SO_RCVBUF, 4);
    assert_eq!(kernel.unwrap(), number(20_000));
    assert_eq!(of.kept_bytes(libc::SO_RCVBUF), Some(60_000));
    assert_eq!(plain(level, libc::SO_RCVBUFFORCE), libc::SO_RCVBUF);
    assert_eq!(plain(level, libc::SO_SNDBUFFORCE), libc::SO_SNDBUF);
    assert_eq!(
        plain(libc::IPPROTO_TCP, libc::SO_RCVBUFFORCE),
        libc::SO_RCVBUFFORCE
    );
}

#[test]
fn keepalive_and_its_time_are_one_option_of_the_stack() {
    let socket = socket(State::Bound);
    let file = socket.kernel.as_fd();
    let number = |value: i32| value.to_ne_bytes();
    let (tcp, all) = (libc::IPPROTO_TCP, libc::SOL_SOCKET);
    let option = |level, name, value: i32| option_of_stack(&socket, level, name, &number(value));
    let seconds = |seconds| Some(SocketOption::KeepaliveIdleSeconds(seconds));
    // The time alone turns nothing on.
    assert_eq!(option(tcp, libc::TCP_KEEPIDLE, 9), None);
    assert_eq!(option(all, libc::SO_KEEPALIVE, 1), seconds(7200));
    socket_option::set(file, tcp, libc::TCP_KEEPIDLE, &number(11)).unwrap();
    assert_eq!(option(all, libc::SO_KEEPALIVE, 1), seconds(11));
    assert_eq!(option(all, libc::SO_KEEPALIVE, 0), seconds(0));
    socket_option::set(file, all, libc::SO_KEEPALIVE, &number(1)).unwrap();
    assert_eq!(option(tcp, libc::TCP_KEEPIDLE, 9), seconds(9));
}

#[test]
fn an_option_of_a_shared_kernel_socket_stays_the_listeners() {
    let mut of = socket(State::Joined(Joined::new(Report::Made)));
    let (level, name) = (libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    let number = |value: i32| value.to_ne_bytes();
    let kernel = || socket_option::get(of.kernel.as_fd(), level, name, 4).unwrap();
    assert_eq!(kernel(), number(0));
    of.owns_kernel = false;
    set(&mut of, level, name, &number(1)).unwrap();
    assert_eq!(of.option(level, name, 4).unwrap(), number(1));
    let kernel = || socket_option::get(of.kernel.as_fd(), level, name, 4).unwrap();
    assert_eq!(kernel(), number(0));
    // The kernel refuses what it would refuse of the program's own.
    let refused = set(&mut of, level, -1, &number(1));
    assert_eq!(refused, Err(Errno::NOPROTOOPT));
    let mut own = socket(State::Bound);
    set(&mut own, level, name, &number(1)).unwrap();
    assert!(own.options.is_empty());
    assert_eq!(own.option(level, name, 4).unwrap(), number(1));
}

#[test]
fn a_linger_of_zero_from_before_the_session_counts() {
    let (listener, callers) = crate::supervisor::tests::fixtures::callers(0);
    let mut table = crate::supervisor::tests::fixtures::table(listener);
    table.sockets.insert(1, socket(State::Bound));
    table.sockets.insert(2, datagram_socket().0);
    assert!(!table.take_linger(1));
    let on = linger(1, 0);
    let file = Rc::clone(&table.sockets[&1].kernel);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    socket_option::set(file.as_fd(), level, name, &on).unwrap();
    assert!(table.take_linger(1));
    assert!(table.sockets[&1].resets_on_close);
    assert!(!table.take_linger(3));
    // Without a stack there is no session that takes options.
    table.tell_options(1);
    table.tell_options(2);
    assert!(callers.results().is_empty());
}
