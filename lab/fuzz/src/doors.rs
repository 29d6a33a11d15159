//! Input that a supervisor gets from other processes: names of sockets that connect to its
//! rendezvous sockets and listening near ends, links next to rendezvous sockets, addresses and
//! control messages of programs.
//!
//! Must stay true: a connection is accepted only with addresses of the loopback that match the
//! rendezvous socket.

use sidecore_net_rings::{ADDRESS_BYTES, HELLO_BYTES, Hello, Hint, NAME_BYTES, Name, Role};
use sidecore_net_run::address::{self, Given};
use sidecore_net_run::control::{self, Asked};
use sidecore_net_run::{end_bytes, ends_of, judge, read_text};
use sidecore_sys::control_message::judge_for_tcp;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Runs one input: its first byte selects the parser for the rest.
pub fn fuzz_doors(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    match kind % 6 {
        0 => {
            if let Some(name) = Name::read(data) {
                visit(&name);
            }
        }
        1 => visit(&named(data)),
        2 => {
            if let Ok(text) = std::str::from_utf8(data)
                && let Some((name, _)) = read_text(text)
            {
                assert_eq!(name.role, Role::Listener, "a link names a listener");
            }
        }
        3 => {
            if let Given::Inet(given) = address::read(data) {
                for is_v6 in [given.is_ipv6(), true] {
                    let again = address::read(&address::write(given, is_v6));
                    assert!(matches!(again, Given::Inet(_)), "{given} is lost");
                }
            }
        }
        4 => {
            let asked = Asked::read(data, |ip| ip.is_loopback());
            assert!(
                asked.for_kernel.len() <= data.len(),
                "control messages grow"
            );
            let mut control = data.to_vec();
            control::set_destination(&mut control, Ipv4Addr::LOCALHOST.into());
            control::set_destination(&mut control, Ipv6Addr::LOCALHOST.into());
            // Any result is fine, as long as nothing panics.
            let _ = judge_for_tcp(data);
        }
        _ => {
            let number = data.first_chunk().map_or(0, |it| u64::from_ne_bytes(*it));
            if let Some(hello) = Hello::read(data, number) {
                assert_eq!(hello.bytes(number), data, "{HELLO_BYTES} bytes say it");
            }
            // Either result is fine: a hint, or another sixth argument.
            let _ = Hint::of(number);
        }
    }
}

/// A name built from these bytes, in the form that a supervisor writes.
fn named(data: &[u8]) -> Name {
    let mut bytes = data.iter().copied().chain(std::iter::repeat(0));
    let mut byte = || bytes.next().unwrap_or_default();
    let role = [Role::Program, Role::Session, Role::Token, Role::Listener];
    let mut name = Name::new(role[usize::from(byte() % 4)], byte().into(), byte().into());
    for end in &mut name.ends {
        let mut address = [0; ADDRESS_BYTES];
        address.fill_with(&mut byte);
        *end = address;
    }
    name
}

fn visit(name: &Name) {
    let bytes = name.bytes();
    assert_eq!(bytes.len(), NAME_BYTES, "names have one length");
    let again = Name::read(&bytes);
    assert!(again.is_some(), "a name that was written is read");
    // The addresses survive the round trip, unless the bytes fit no family.
    let Some(name) = again else {
        return;
    };
    let is_loopback = |end: SocketAddr| end.ip().is_loopback();
    if let Some((local, peer)) = ends_of(&name) {
        assert!(is_loopback(local) && is_loopback(peer), "{local} {peer}");
    }
    let any = [
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::from(Ipv6Addr::UNSPECIFIED),
        IpAddr::from(Ipv4Addr::LOCALHOST),
    ];
    for door in any.map(|ip| SocketAddr::new(ip, 80)) {
        if let Some((local, peer)) = judge(door, &name) {
            assert!(name.role == Role::Program, "a session of a program's");
            assert!(
                local.port() == 80 && is_loopback(local),
                "{local} at {door}"
            );
            assert!(is_loopback(peer), "{peer} is let in");
        }
    }
}

/// Seed inputs.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (local, peer) in [
        ("127.0.0.1:40000", "127.0.0.1:80"),
        ("[::1]:40000", "[::1]:80"),
        ("10.0.0.5:22", "127.0.0.1:80"),
    ] {
        let ends = [local, peer].map(|end| end.parse::<SocketAddr>());
        let [Ok(local), Ok(peer)] = ends else {
            continue;
        };
        let mut name = Name::new(Role::Program, 7, 8);
        let end = |end| end_bytes(end, true);
        name.ends = [end(local), end(peer)];
        seeds.push([&[0], name.bytes().as_slice()].concat());
        seeds.push([&[1, 0, 7, 8], name.ends.concat().as_slice()].concat());
        seeds.push([&[3], address::write(local, local.is_ipv6()).as_slice()].concat());
    }
    seeds.push(b"\x027-1f-6".to_vec());
    let marks = control::Marks {
        hops: Some(7),
        class: Some(8),
    };
    for is_v6 in [false, true] {
        seeds.push([&[4], marks.write(is_v6).as_slice()].concat());
    }
    let hello = Hello {
        thread: 5,
        descriptor: 6,
    };
    seeds.push([&[5], hello.bytes(9).as_slice()].concat());
    seeds
}
