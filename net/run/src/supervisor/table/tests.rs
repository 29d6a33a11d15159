use super::*;
use crate::socket::files::{inode_of, pair};
use crate::socket::tests::{datagram_socket, socket};
use crate::socket::{Joined, Pending, Report};
use crate::supervisor::tests::fixtures::{Callers, callers, table};

/// A table, with as many calls that wait in listen(2).
fn with_calls(count: i32) -> (Table, Callers) {
    let (listener, callers) = callers(count);
    (table(listener), callers)
}

fn joined() -> Socket {
    socket(State::Joined(Joined::new(Report::Made)))
}

fn has_event(table: &Table) -> bool {
    sidecore_sys::local_socket::is_readable(table.epoll.as_fd())
}

#[test]
fn a_far_end_is_watched_while_its_socket_is_there() {
    let (mut table, _callers) = with_calls(0);
    let (near, far) = pair(true).unwrap();
    let inode = inode_of(&near).unwrap();
    let mut socket = joined();
    socket.far = Some(far);
    table.insert(inode, socket).unwrap();
    assert!(!has_event(&table) && !table.is_closed(inode));
    drop(near);
    assert!(has_event(&table) && table.is_closed(inode));
    table.forget(inode);
    assert!(!has_event(&table));
    assert!(table.sockets.is_empty());
}

#[test]
fn a_removed_socket_leaves_nothing_behind() {
    let (mut table, callers) = with_calls(1);
    let listener = table.calls.listener();
    let caller = Caller::new(callers.calls[0], &listener);
    let mut of = joined();
    let name = table.names.make(sidecore_net_rings::Role::Program);
    of.named = Some(name.number);
    let claim = of.claim(false);
    assert!(table.take_port(7, Transport::Tcp, 1, claim));
    table.insert(7, of).unwrap();
    table.names.bear(name.number, 7);
    table.join_peers(7, 8);
    table.park(7, &caller, None);
    table.forget(7);
    assert!(table.sockets.is_empty() && !table.calls.has(7));
    assert_eq!(table.names.socket(name.number), None);
    assert_eq!(table.peer_of(7), None);
    assert!(table.ports.is_free(Transport::Tcp, 1));
    assert_eq!(callers.results(), [Err(Errno::BADF)]);
    // There is nothing to remove any more.
    table.forget(7);
    assert!(table.remove(7).is_none());
}

#[test]
fn a_reused_inode_is_the_new_sockets() {
    let (mut table, _callers) = with_calls(0);
    let mut old = joined();
    old.peer = Some("127.0.0.1:2".parse().unwrap());
    table.insert(7, old).unwrap();
    table.insert(7, joined()).unwrap();
    assert_eq!(table.sockets.len(), 1);
    assert_eq!(table.sockets[&7].peer, None);
}

#[test]
fn a_call_is_parked_at_a_socket_that_is_there() {
    let (mut table, callers) = with_calls(2);
    let listener = table.calls.listener();
    let [first, second] = [0, 1].map(|at| Caller::new(callers.calls[at], &listener));
    let nowhere = table.park(7, &first, None);
    assert!(matches!(nowhere, Reply::Now(Answer::Fail(Errno::BADF))));
    table.insert(7, joined()).unwrap();
    let patience = Some(Duration::ZERO);
    assert!(matches!(table.park(7, &first, patience), Reply::Later));
    table.park_asking(7, &second);
    table.calls.end_patience(Instant::now());
    table.calls.fail(7, Errno::CONNRESET);
    let expected = [Err(Errno::AGAIN), Err(Errno::CONNRESET)];
    assert_eq!(callers.results(), expected);
}

#[test]
fn without_a_stack_nothing_is_asked() {
    let (mut table, _callers) = with_calls(0);
    table.insert(7, socket(State::Bound)).unwrap();
    for (inode, backlog) in [(7, Some(5)), (7, None), (8, None)] {
        let asked = table.ask_stack(inode, backlog, Purpose::Listen);
        assert_eq!(asked, Ok(Request::Complete));
        assert!(!table.is_asking(inode));
    }
    assert_eq!(table.take_asked(7), Ok(Vec::new()));
    assert_eq!(table.take_asked(8), Err(Errno::BADF));
    // An engine that is gone cannot be asked; a socket of the loopback does not need it.
    table.scope.addresses.push([10, 0, 0, 1].into());
    let asked = table.ask_stack(7, Some(5), Purpose::Listen);
    assert_eq!(asked, Ok(Request::Complete));
    let any = "0.0.0.0:1".parse().unwrap();
    table.sockets.get_mut(&7).unwrap().local = any;
    let asked = table.ask_stack(7, Some(5), Purpose::Listen);
    assert_eq!(asked, Err(Errno::NETDOWN));
}

#[test]
fn a_closed_socket_gives_its_port_up_to_the_next() {
    let (mut table, _callers) = with_calls(0);
    let (near, far) = pair(true).unwrap();
    let mut first = joined();
    first.far = Some(far);
    let claim = first.claim(false);
    assert!(table.take_port(7, Transport::Tcp, 1, claim));
    table.insert(7, first).unwrap();
    assert!(!table.take_port(8, Transport::Tcp, 1, claim));
    assert!(table.sockets.contains_key(&7));
    drop(near);
    assert!(table.take_port(8, Transport::Tcp, 1, claim));
    assert!(!table.sockets.contains_key(&7));
}

#[test]
fn a_closed_listener_is_found_when_it_is_looked_for() {
    let (mut table, _callers) = with_calls(0);
    let at = "127.0.0.1:1".parse().unwrap();
    let mut tokens = Vec::new();
    for inode in [7, 8] {
        let (near, far) = pair(true).unwrap();
        let mut listening = Listening::default();
        listening.tokens.push_back(far);
        let of = socket(State::Listening(listening));
        let claim = Claim {
            reuses_port: true,
            ..of.claim(true)
        };
        assert!(table.take_port(inode, Transport::Tcp, 1, claim));
        table.insert(inode, of).unwrap();
        tokens.push(near);
    }
    assert_eq!(table.listeners_at(at), [7, 8]);
    tokens.remove(0);
    assert_eq!(table.listeners_at(at), [8]);
    assert!(table.listening(7).is_none() && table.listening(8).is_some());
}

#[test]
fn two_sockets_have_one_session_between_two_addresses() {
    let (mut table, _callers) = with_calls(0);
    // A pair of this process: the sweep finds its inode.
    let (near, _other) = pair(true).unwrap();
    let mut of = joined();
    let (local, peer) = (of.local, "127.0.0.1:2".parse().unwrap());
    of.peer = Some(peer);
    table.insert(inode_of(&near).unwrap(), of).unwrap();
    assert!(table.is_joined(local, peer));
    assert!(!table.is_joined(peer, local));
    drop(near);
    assert!(!table.is_joined(local, peer));
}

#[test]
fn a_sweep_removes_the_sockets_that_no_process_has() {
    let (mut table, _callers) = with_calls(0);
    let (live, _other) = pair(true).unwrap();
    let live = inode_of(&live).unwrap();
    table.insert(live, socket(State::Over)).unwrap();
    // No socket has this inode.
    table
        .insert(u64::from(u32::MAX), socket(State::Over))
        .unwrap();
    let (of, near) = datagram_socket();
    let datagram = inode_of(&near).unwrap();
    table.insert(datagram, of).unwrap();
    table.sweep();
    let mut left: Vec<u64> = table.sockets.keys().copied().collect();
    left.sort_unstable();
    let mut expected = [live, datagram];
    expected.sort_unstable();
    assert_eq!(left, expected);
    drop(near);
    table.sweep();
    assert!(!table.sockets.contains_key(&datagram));
}

#[test]
fn a_datagram_socket_is_watched_as_long_as_a_call_waits() {
    let (mut table, callers) = with_calls(1);
    let listener = table.calls.listener();
    let caller = Caller::new(callers.calls[0], &listener);
    let (of, near) = datagram_socket();
    let inode = inode_of(&near).unwrap();
    let carrier = of.carrier().unwrap().near;
    table.insert(inode, of).unwrap();
    let watched = |table: &Table| {
        let carrier = table.sockets[&inode].carrier();
        carrier.is_some_and(|carrier| carrier.watched.is_some())
    };
    table
        .watch(inode, Rc::new(near.try_clone().unwrap()))
        .unwrap();
    assert!(watched(&table));
    table.park(inode, &caller, None);
    table.unwatch(inode);
    assert!(watched(&table), "the call would not be repeated");
    let sender = crate::carrier::datagram_socket(false).unwrap();
    rustix::net::sendto(&sender, b"x", rustix::net::SendFlags::empty(), &carrier).unwrap();
    assert!(has_event(&table));
    table.calls.fail(inode, Errno::AGAIN);
    table.unwatch(inode);
    assert!(!watched(&table) && !has_event(&table));
    // A socket that is none, or not for datagrams, is not watched.
    table.insert(1, joined()).unwrap();
    for other in [1, 2] {
        table
            .watch(other, Rc::new(near.try_clone().unwrap()))
            .unwrap();
        table.unwatch(other);
    }
    assert_eq!(callers.results(), [Err(Errno::AGAIN)]);
}

#[test]
fn a_closed_listener_ends_what_waits_in_its_queue() {
    let (mut table, _callers) = with_calls(0);
    let ends = ["127.0.0.1:1", "127.0.0.1:2"].map(|end| end.parse().unwrap());
    let [local, peer] = ends;
    let (near, other) = pair(true).unwrap();
    let mut listening = Listening::default();
    listening.pending.push_back(Pending {
        local,
        peer,
        origin: Origin::Program(other),
    });
    table
        .insert(7, socket(State::Listening(listening)))
        .unwrap();
    table.forget(7);
    // The program that has connected reads an end.
    assert!(crate::socket::files::is_hung_up(&near));
}
