//! Datagrams in fragments, in any order, duplicated and contradictory, sent to the kernel and to
//! our stack: valid ones are delivered by both, and the kernel delivers everything that ours does.
//! Needs root and /dev/net/tun, or is skipped with a note, unless `SIDECORE_ALL_PROGRAMS` is set.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::common;
use crate::fragments;
use crate::namespace;

use common::Random;
use fragments::{Jumble, Target, UDP, cut, datagram, frame};
use namespace::{in_namespace, ip, is_left_out, no_taps};
use sidecore_net::nic::tap::{Tap, TapOptions};
use sidecore_net::nic::{Nic, Outgoing, TransmitChecksum};
use std::collections::HashSet;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

#[test]
fn the_kernel_takes_what_we_take() {
    if is_left_out(no_taps()) {
        return;
    }
    in_namespace(compare);
}

fn compare() {
    let mut tap = Tap::open(&TapOptions {
        name: "frag0".to_owned(),
        offload: false,
        ..TapOptions::default()
    })
    .unwrap();
    // The frames are built for this address.
    ip("link set frag0 down");
    ip("link set frag0 address 02:00:00:00:00:01");
    ip("link set frag0 up");
    ip("address add 10.0.0.1/24 dev frag0");
    ip("address add fd00::1/64 dev frag0 nodad");
    let socket = UdpSocket::bind("[::]:80").unwrap();
    socket.set_nonblocking(true).unwrap();
    let (mut random, mut kernels) = (Random(23), HashSet::new());
    warm_up(&mut tap, &socket);
    let (mut ours, mut honest) = (HashSet::new(), HashSet::new());
    for number in 1..=ROUNDS {
        let jumble = Jumble::new(&mut random, number);
        let mut target = Target::new();
        for piece in &jumble.pieces {
            let bytes = frame(jumble.v4, 2, piece);
            send(&mut tap, &bytes);
            target.put(bytes);
        }
        tap.flush().unwrap();
        if let Some(got) = target.read() {
            assert_eq!(got, jumble.sent);
            ours.insert(number);
        }
        honest.extend(jumble.honest.then_some(number));
        read(&socket, &mut kernels);
    }
    let begun = Instant::now();
    while !honest.is_subset(&kernels) && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
        read(&socket, &mut kernels);
    }
    let lacks = |of: &HashSet<u32>, what: &HashSet<u32>, name: &str| {
        let missing: Vec<u32> = what.difference(of).copied().collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    };
    lacks(&ours, &honest, "honest ones, of ours");
    lacks(&kernels, &honest, "honest ones, of the kernel's");
    lacks(&kernels, &ours, "ours, of the kernel's");
    assert!(honest.len() < ROUNDS as usize * 9 / 10);
}

fn send(tap: &mut Tap, bytes: &[u8]) {
    let outgoing = Outgoing {
        header: bytes,
        payload: [&[], &[]],
        checksum: TransmitChecksum::Complete,
        segment_bytes: None,
    };
    assert!(tap.transmit(&outgoing).unwrap());
}

/// Waits until fragments are delivered in both families: the interface has just come up.
fn warm_up(tap: &mut Tap, socket: &UdpSocket) {
    let begun = Instant::now();
    let (mut number, mut seen) = (0, HashSet::new());
    while !seen.contains(&0) || !seen.contains(&1) {
        assert!(begun.elapsed() < PATIENCE, "the kernel takes nothing");
        number += 2;
        for v4 in [true, false] {
            let whole = datagram(
                v4,
                &[[0, 0, 0, u8::from(v4)].as_slice(), &[7; 2000]].concat(),
            );
            for piece in cut(0x8000 + number, UDP, &whole, 800) {
                send(tap, &frame(v4, 2, &piece));
            }
        }
        tap.flush().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        read(socket, &mut seen);
    }
}

/// The numbers of the received datagrams.
fn read(socket: &UdpSocket, numbers: &mut HashSet<u32>) {
    let mut bytes = vec![0; 10_000];
    while let Ok(len) = socket.recv(&mut bytes) {
        assert!(len >= 100);
        numbers.insert(u32::from_be_bytes(bytes[..4].try_into().unwrap()));
    }
}

const ROUNDS: u32 = 600;
const PATIENCE: Duration = Duration::from_secs(60);
