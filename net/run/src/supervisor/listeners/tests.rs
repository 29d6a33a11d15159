use super::*;
use crate::ports::Claim;
use crate::socket::tests::socket;
use crate::supervisor::tests::fixtures::{callers, table};
use rustix::net::SocketAddrUnix;

/// A table, and the listeners of a supervisor without other runs.
fn parts() -> (Table, Listeners, Streams) {
    let (listener, _callers) = callers(0);
    let listeners = Listeners::new(None).unwrap();
    (table(listener), listeners, Streams::default())
}

fn ends() -> [SocketAddr; 2] {
    ["127.0.0.1:1", "127.0.0.1:2"].map(|end| end.parse().unwrap())
}

fn pending() -> Pending {
    let [local, peer] = ends();
    Pending {
        local,
        peer,
        origin: Origin::Program(pair(true).unwrap().0),
    }
}

fn waiting(table: &mut Table, inode: u64) -> (usize, usize) {
    let listening = table.listening(inode).unwrap();
    (listening.pending.len(), listening.tokens.len())
}

#[test]
fn a_session_that_nothing_shows_is_refused() {
    for is_direct in [false, true] {
        let (mut table, mut listeners, mut streams) = parts();
        let (near, name) = listening_end(true).unwrap();
        // As if descriptors were short: the announcing connection cannot be made.
        let wrong = SocketAddrUnix::new("/proc/none").unwrap();
        let listening = Listening {
            name: Some(wrong),
            is_direct,
            ..Listening::default()
        };
        table
            .insert(1, socket(State::Listening(listening)))
            .unwrap();
        let refused = listeners.queue(&mut table, &mut streams, 1, pending());
        assert_eq!(refused, Err(Errno::CONNREFUSED));
        assert_eq!(waiting(&mut table, 1), (0, 0));
        // With a reachable near end, the next session is announced.
        table.listening(1).unwrap().name = Some(name);
        let queued = listeners.queue(&mut table, &mut streams, 1, pending());
        assert_eq!(queued, Ok(()));
        assert_eq!(waiting(&mut table, 1), (1, 1));
        assert!(local_socket::is_readable(near.as_fd()));
    }
}

#[test]
fn each_session_is_announced_up_to_a_bound() {
    let (mut table, mut listeners, mut streams) = parts();
    let (_near, name) = listening_end(true).unwrap();
    let listening = Listening {
        name: Some(name),
        ..Listening::default()
    };
    table
        .insert(1, socket(State::Listening(listening)))
        .unwrap();
    for count in 1..=TOKENS_MAX + 2 {
        listeners
            .queue(&mut table, &mut streams, 1, pending())
            .unwrap();
        let tokens = count.min(TOKENS_MAX);
        assert_eq!(waiting(&mut table, 1), (count, tokens));
    }
}

#[test]
fn a_listener_that_is_closed_is_forgotten_when_a_session_comes() {
    let (mut table, mut listeners, mut streams) = parts();
    let (near, name) = listening_end(true).unwrap();
    let listening = Listening {
        name: Some(name),
        ..Listening::default()
    };
    table
        .insert(1, socket(State::Listening(listening)))
        .unwrap();
    drop(near);
    let refused = listeners.queue(&mut table, &mut streams, 1, pending());
    assert_eq!(refused, Err(Errno::CONNREFUSED));
    assert!(table.sockets.is_empty());
    // A socket that does not listen takes no sessions.
    table.insert(2, socket(State::Bound)).unwrap();
    for inode in [1, 2] {
        let refused = listeners.queue(&mut table, &mut streams, inode, pending());
        assert_eq!(refused, Err(Errno::CONNREFUSED));
    }
}

#[test]
fn a_session_goes_to_another_listener_of_the_port_where_one_was_closed_unnoticed() {
    let (mut table, mut listeners, mut streams) = parts();
    let [local, peer] = ends();
    let mut nears = Vec::new();
    for inode in [1, 2] {
        let (near, name) = listening_end(true).unwrap();
        let listening = Listening {
            name: Some(name),
            ..Listening::default()
        };
        let mut of = socket(State::Listening(listening));
        of.local = peer;
        of.named = Some(0);
        let claim = Claim {
            reuses_port: true,
            ..of.claim(true)
        };
        assert!(table.take_port(inode, Transport::Tcp, peer.port(), claim));
        table.insert(inode, of).unwrap();
        nears.push(near);
    }
    assert_eq!(table.listeners_at(peer).len(), 2);
    // The one whose turn it is.
    let turn = turn_of(&[0, 1], local).unwrap();
    drop(nears.remove(usize::try_from(turn).unwrap()));
    let opened = listeners.open_between(&mut table, &mut streams, local, peer);
    assert!(opened.is_ok());
    assert_eq!(table.sockets.len(), 1);
    // The last one is closed, too.
    nears.clear();
    table.listening(2 - turn).unwrap().pending.clear();
    table.listening(2 - turn).unwrap().tokens.clear();
    let refused = listeners.open_between(&mut table, &mut streams, local, peer);
    assert_eq!(refused.err(), Some(Errno::CONNREFUSED));
    assert!(table.sockets.is_empty());
}

#[test]
fn an_announcement_that_failed_is_repeated() {
    let (mut table, mut listeners, mut streams) = parts();
    let (near, name) = listening_end(true).unwrap();
    let mut listening = Listening {
        name: Some(SocketAddrUnix::new("/proc/none").unwrap()),
        ..Listening::default()
    };
    listening.pending.push_back(pending());
    table
        .insert(1, socket(State::Listening(listening)))
        .unwrap();
    assert!(listeners.show_pending(&mut table, &mut streams, 1));
    assert!(listeners.are_overdue());
    assert!(table.listening(1).unwrap().unshown.is_some());
    table.listening(1).unwrap().name = Some(name);
    listeners.look_at_overdue(&mut table, &mut streams);
    assert!(!listeners.are_overdue());
    assert_eq!(waiting(&mut table, 1), (1, 1));
    assert_eq!(table.listening(1).unwrap().unshown, None);
    assert!(local_socket::is_readable(near.as_fd()));
    // One that no program has any more is forgotten.
    table.listening(1).unwrap().tokens.clear();
    listeners.overdue.insert(1);
    drop(near);
    listeners.look_at_overdue(&mut table, &mut streams);
    assert!(table.sockets.is_empty());
    listeners.look_at_overdue(&mut table, &mut streams);
    assert!(!listeners.are_overdue());
}

#[test]
fn sessions_between_programs_go_to_the_listeners_in_turn() {
    assert_eq!(turn_of(&[], ends()[0]), None);
    let listeners = [7, 8, 9];
    for port in 1..=9u16 {
        let peer = SocketAddr::from(([127, 0, 0, 1], port));
        let turn = usize::from(port % 3);
        assert_eq!(turn_of(&listeners, peer), Some(listeners[turn]));
    }
}

#[test]
fn a_session_is_opened_to_the_listener_of_its_address() {
    let (mut table, mut listeners, mut streams) = parts();
    let [peer, local] = ends();
    let refused = listeners.open_between(&mut table, &mut streams, local, peer);
    assert_eq!(refused.err(), Some(Errno::CONNREFUSED));
    let (near, name) = listening_end(true).unwrap();
    let listening = Listening {
        name: Some(name),
        ..Listening::default()
    };
    let of = socket(State::Listening(listening));
    let claim = of.claim(true);
    assert!(table.take_port(1, Transport::Tcp, peer.port(), claim));
    table.insert(1, of).unwrap();
    let between = listeners.open_between(&mut table, &mut streams, local, peer);
    let between = between.unwrap();
    let pending = table.listening(1).unwrap().pending.pop_front().unwrap();
    assert_eq!((pending.local, pending.peer), (peer, local));
    let Origin::Program(other) = &pending.origin else {
        panic!("{:?}", pending.origin);
    };
    assert_eq!(between.peer, Some(inode_of(other).unwrap()));
    rustix::net::send(&between.near, b"x", rustix::net::SendFlags::empty()).unwrap();
    assert!(local_socket::is_readable(other.as_fd()));
    // It listens without the library, so there is nothing to accept directly.
    let direct = listeners.open_directly(&mut table, local, peer);
    assert!(direct.is_none());
    drop(near);
}

#[test]
fn a_session_is_opened_directly_where_the_library_accepts() {
    let (mut table, mut listeners, _) = parts();
    let [peer, local] = ends();
    let own = table.names.make(Role::Listener);
    let (near, name) = named::listening_end(&own, true).unwrap();
    let listening = Listening {
        name: Some(name),
        is_direct: true,
        ..Listening::default()
    };
    let of = socket(State::Listening(listening));
    let claim = of.claim(true);
    assert!(table.take_port(1, Transport::Tcp, peer.port(), claim));
    table.insert(1, of).unwrap();
    let opened = listeners.open_directly(&mut table, local, peer).unwrap();
    assert_eq!(opened.listener, Some(1));
    let accepted = rustix::net::accept(&near).unwrap();
    let name = named::peers_name(&accepted).unwrap();
    assert_eq!(name.number, opened.number);
    // Seen from the accepting program.
    assert_eq!(named::ends_of(&name), Some((peer, local)));
    drop((near, accepted));
    assert!(listeners.open_directly(&mut table, local, peer).is_none());
    assert!(table.sockets.is_empty(), "the listener is closed");
}

#[test]
fn a_listener_stops_and_keeps_its_port() {
    let (mut table, listeners, _) = parts();
    let listening = Listening {
        is_direct: true,
        ..Listening::default()
    };
    let mut of = socket(State::Listening(listening));
    let claim = of.claim(true);
    of.named = Some(5);
    table.names.bear(5, 1);
    assert!(table.take_port(1, Transport::Tcp, 1, claim));
    table.insert(1, of).unwrap();
    assert_eq!(table.listeners_at(ends()[0]), [1]);
    listeners.stop(&mut table, 1);
    assert!(matches!(table.sockets[&1].state, State::Bound));
    assert_eq!(table.names.socket(5), None);
    assert!(table.listeners_at(ends()[0]).is_empty());
    assert!(!table.ports.is_free(Transport::Tcp, 1));
    listeners.stop(&mut table, 2);
}

#[test]
fn the_accepted_session_has_what_its_listener_has() {
    let (table, listeners, _) = parts();
    let mut table = table;
    let mut of = socket(State::Listening(Listening::default()));
    of.is_v6 = true;
    of.resets_on_close = true;
    of.keep_option(1, 2, vec![3]);
    table.insert(1, of).unwrap();
    let [local, peer] = ends();
    let accepted = listeners.accepted(&table, 1, (local, peer), State::Over);
    assert!(accepted.is_v6 && accepted.resets_on_close && !accepted.owns_kernel);
    assert_eq!((accepted.local, accepted.peer), (local, Some(peer)));
    assert_eq!(accepted.option(1, 2, 4), Ok(vec![3]));
    assert!(Rc::ptr_eq(&accepted.kernel, &table.sockets[&1].kernel));
    // The listener of a direct accept may be closed by now.
    let orphan = listeners.accepted(&table, 9, (local, peer), State::Over);
    assert!(!orphan.is_v6 && !orphan.resets_on_close && orphan.options.is_empty());
    assert!(Rc::ptr_eq(&orphan.kernel, &listeners.spare));
}

#[test]
fn a_closed_direct_listener_refuses_from_its_notice_on() {
    let (mut table, ..) = parts();
    let own = table.names.make(Role::Listener);
    let (near, name) = named::listening_end(&own, true).unwrap();
    let listening = Listening {
        name: Some(name),
        is_direct: true,
        ..Listening::default()
    };
    table
        .insert(1, socket(State::Listening(listening)))
        .unwrap();
    Listeners::look_at_closed(&mut table, 1);
    assert!(table.sockets.contains_key(&1), "another process has it");
    drop(near);
    Listeners::look_at_closed(&mut table, 1);
    assert!(table.sockets.is_empty());
    Listeners::look_at_closed(&mut table, 1);
}
