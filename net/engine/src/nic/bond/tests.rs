//! LACP between two of our own machines and against LACPDUs made by hand, and bonds of links to
//! themselves and to one another.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use super::*;
use crate::nic::pair::{self, Pair, PairOptions};
use sidecore_random::SplitMix;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

const SECOND_NS: u64 = 1_000_000_000;
const STEP_NS: u64 = SECOND_NS / 10;

fn options(last: u8) -> LacpOptions {
    LacpOptions {
        system_priority: 0x8000,
        system: [2, 0, 0, 0, 0, last],
        is_active: true,
        is_fast: true,
    }
}

/// Two systems with a cable from each port of the first to a port of the second.
struct Cables {
    ends: [Lacp; 2],
    /// The second's port at the other end of each cable of the first.
    to: Vec<usize>,
    is_cut: Vec<bool>,
    now_ns: u64,
    sent: u64,
}

impl Cables {
    fn new(options: [LacpOptions; 2], count: usize) -> Self {
        let mut this = Self {
            ends: options.map(|options| Lacp::new(&options, count)),
            to: (0..count).collect(),
            is_cut: vec![false; count],
            now_ns: 0,
            sent: 0,
        };
        for port in 0..count {
            this.set_links(port, true);
        }
        this
    }

    fn set_links(&mut self, port: usize, is_up: bool) {
        let now_ns = self.now_ns;
        self.ends[0].set_link(port, is_up, now_ns);
        self.ends[1].set_link(self.to[port], is_up, now_ns);
    }

    /// Time passes; each LACPDU gets through if `passes` says so.
    fn run(&mut self, seconds: u64, mut passes: impl FnMut() -> bool) {
        for _ in 0..seconds * 10 {
            self.now_ns += STEP_NS;
            for end in 0..2 {
                let mut sent = Vec::new();
                self.ends[end].poll(self.now_ns, &mut |port, pdu| sent.push((port, *pdu)));
                for (port, pdu) in sent {
                    self.sent += 1;
                    let cable = match end {
                        0 => port,
                        _ => self.to.iter().position(|to| *to == port).unwrap(),
                    };
                    let other = if end == 0 { self.to[cable] } else { cable };
                    if !self.is_cut[cable] && passes() {
                        // As over the wire.
                        let pdu = Pdu::parse(&pdu.to_bytes()).unwrap();
                        self.ends[1 - end].receive(other, &pdu, self.now_ns);
                    }
                }
            }
        }
    }

    fn carrying(&self, end: usize) -> Vec<usize> {
        let ports = 0..self.to.len();
        ports.filter(|port| self.ends[end].carries(*port)).collect()
    }
}

#[test]
fn two_systems_agree_and_then_send_no_more_than_they_must() {
    let mut both = Cables::new([options(1), options(2)], 4);
    both.run(4, || true);
    assert_eq!(both.carrying(0), [0, 1, 2, 3]);
    assert_eq!(both.carrying(1), [0, 1, 2, 3]);
    assert_eq!(both.ends[0].partner(3), Some([2, 0, 0, 0, 0, 2]));
    let before = both.sent;
    both.run(60, || true);
    // One a second for each of eight ports.
    assert!((400..=480).contains(&(both.sent - before)));
    assert!(!both.ends[0].is_churned(0, both.now_ns));
}

#[test]
fn slow_partners_send_two_a_minute_and_last_ninety_seconds() {
    let slow = |last| LacpOptions {
        is_fast: false,
        ..options(last)
    };
    let mut both = Cables::new([slow(1), slow(2)], 1);
    both.run(5, || true);
    let before = both.sent;
    both.run(120, || true);
    assert!((6..=10).contains(&(both.sent - before)), "{}", both.sent);
    both.is_cut[0] = true;
    both.run(55, || true);
    assert_eq!(both.carrying(0), [0]);
    // It was heard last 4 s before the cut: after 86 s it has expired, 3 s later it is gone.
    both.run(33, || true);
    assert_eq!(
        both.ends[0].state(0),
        "attached",
        "expired, and not yet defaulted"
    );
}

#[test]
fn a_silent_link_ends_after_three_seconds_and_only_one_without_a_partner_carries() {
    let mut both = Cables::new([options(1), options(2)], 2);
    both.run(5, || true);
    both.is_cut[1] = true;
    both.run(2, || true);
    assert_eq!(both.carrying(0), [0, 1]);
    both.run(3, || true);
    assert_eq!(both.carrying(0), [0]);
    // Both silent: a link by itself is used, and not two.
    both.is_cut[0] = true;
    both.run(12, || true);
    assert_eq!(both.carrying(0).len(), 1);
    assert_eq!(both.ends[0].partner(0), None);
    both.is_cut = vec![false; 2];
    both.run(5, || true);
    assert_eq!(both.carrying(0), [0, 1]);
    assert_eq!(both.carrying(1), [0, 1]);
}

#[test]
fn passive_ends_are_silent_until_they_are_spoken_to() {
    let passive = |last| LacpOptions {
        is_active: false,
        ..options(last)
    };
    let mut both = Cables::new([passive(1), passive(2)], 1);
    both.run(20, || true);
    assert_eq!((both.sent, both.ends[0].partner(0)), (0, None));
    let mut both = Cables::new([passive(1), options(2)], 2);
    both.run(5, || true);
    assert_eq!(both.carrying(0), [0, 1]);
    assert_eq!(both.carrying(1), [0, 1]);
}

#[test]
fn a_link_to_itself_carries_nothing_until_it_is_mended() {
    let mut one = Lacp::new(&options(1), 2);
    let mut peer = Lacp::new(&options(2), 1);
    one.set_link(0, true, 0);
    one.set_link(1, true, 0);
    peer.set_link(0, true, 0);
    let mut run = |one: &mut Lacp, steps: std::ops::Range<u64>, is_looped: bool| {
        for step in steps {
            let now_ns = step * STEP_NS;
            let mut sent = Vec::new();
            one.poll(now_ns, &mut |port, pdu| sent.push((port, *pdu)));
            for (port, pdu) in sent {
                match (port, is_looped) {
                    (0, _) => peer.receive(0, &pdu, now_ns),
                    (_, true) => one.receive(1, &pdu, now_ns),
                    _ => {}
                }
            }
            peer.poll(now_ns, &mut |_, pdu| one.receive(0, pdu, now_ns));
        }
    };
    run(&mut one, 1..200, true);
    assert!(one.carries(0) && !one.carries(1));
    assert!(one.is_looped(1) && !one.is_looped(0));
    // Neither flag of the looped port was ever set.
    assert!(one.is_churned(1, 700 * STEP_NS));
    run(&mut one, 200..1200, false);
    assert!(!one.is_looped(1));
}

#[test]
fn another_partner_and_a_moved_cable_are_noticed() {
    let mut both = Cables::new([options(1), options(2)], 3);
    both.run(5, || true);
    both.ends[1] = Lacp::new(&options(9), 3);
    for port in 0..3 {
        both.ends[1].set_link(port, true, both.now_ns);
    }
    both.run(1, || true);
    assert!(both.carrying(0).is_empty(), "it was another that agreed");
    both.run(4, || true);
    assert_eq!(both.carrying(0), [0, 1, 2]);
    assert_eq!(both.ends[0].partner(0), Some([2, 0, 0, 0, 0, 9]));
    // Two cables change their places at the far end.
    both.set_links(1, false);
    both.set_links(2, false);
    both.run(1, || true);
    assert_eq!(both.carrying(0), [0]);
    both.to.swap(1, 2);
    both.set_links(1, true);
    both.set_links(2, true);
    both.run(5, || true);
    assert_eq!(both.carrying(0), [0, 1, 2]);
    assert_eq!(both.carrying(1), [0, 1, 2]);
}

#[test]
fn half_of_all_lacpdus_lost_and_links_that_flap_do_not_stop_it() {
    for seed in 0..20 {
        let mut random = SplitMix::new(seed);
        let mut both = Cables::new([options(1), options(2)], 3);
        for _ in 0..20 {
            let port = usize::try_from(random.below(3)).unwrap();
            let is_up = random.happens(0.5);
            both.set_links(port, is_up);
            both.run(2, || random.happens(0.5));
        }
        for port in 0..3 {
            both.set_links(port, true);
        }
        both.run(15, || true);
        for end in 0..2 {
            assert_eq!(both.carrying(end), [0, 1, 2], "seed {seed}");
        }
    }
}

/// A link whose carrier and whose NIC can be made to fail.
struct Wire {
    pair: Pair,
    has_carrier: Rc<Cell<bool>>,
    is_broken: Rc<Cell<bool>>,
}

impl Wire {
    fn check(&self) -> Result<(), NicError> {
        match self.is_broken.get() {
            true => Err(NicError::Options("it is broken".to_owned())),
            false => Ok(()),
        }
    }
}

impl Nic for Wire {
    fn capabilities(&self) -> Capabilities {
        self.pair.capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        self.check()?;
        self.pair.receive(budget, sink)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        self.check()?;
        self.pair.transmit(frame)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.pair.flush()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pair.descriptor()
    }

    fn arm(&mut self) -> Result<bool, NicError> {
        self.pair.arm()
    }

    fn has_carrier(&self) -> bool {
        self.has_carrier.get()
    }
}

const ADDRESS: Mac = [2, 0x51, 0, 0, 0, 9];
const OWN: [u8; 4] = [10, 0, 0, 9];

/// A bond of two links, their far ends, and their switches.
struct Set {
    bond: Bond<Wire>,
    far: Vec<Pair>,
    carriers: Vec<Rc<Cell<bool>>>,
    breaks: Vec<Rc<Cell<bool>>>,
    clock: Clock,
}

impl Set {
    fn new(mode: BondMode, probes: &[IpAddr]) -> Self {
        let clock = Clock::default();
        clock.set_ns(SECOND_NS);
        let (mut links, mut far) = (Vec::new(), Vec::new());
        let (mut carriers, mut breaks) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let (pair, other) = pair::link(&PairOptions::default()).unwrap();
            let (carrier, broken) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(false)));
            let wire = Wire {
                pair,
                has_carrier: Rc::clone(&carrier),
                is_broken: Rc::clone(&broken),
            };
            links.push((wire, format!("eth{number}")));
            far.push(other);
            carriers.push(carrier);
            breaks.push(broken);
        }
        let options = BondOptions {
            mode,
            address: ADDRESS,
            own: vec![IpAddr::from(OWN), IpAddr::from([0xfd; 16])],
            probes: probes.to_vec(),
            clock: Some(clock.clone()),
        };
        Self {
            bond: Bond::new(links, &options).unwrap(),
            far,
            carriers,
            breaks,
            clock,
        }
    }

    /// Time passes, and the bond has a round; the frames that it passed on.
    fn round(&mut self, ns: u64) -> Vec<Vec<u8>> {
        self.clock.set_ns(self.clock.now_ns() + ns);
        frames(&mut self.bond)
    }

    fn used(&self) -> Vec<bool> {
        let links = self.bond.report().unwrap().links;
        links.iter().map(|link| link.is_used).collect()
    }
}

/// All frames that wait.
fn frames(nic: &mut impl Nic) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut take = |frame: Received<'_>| frames.push(frame.bytes.to_vec());
    while nic.receive(64, &mut take).unwrap() > 0 {}
    frames
}

fn send(nic: &mut impl Nic, header: &[u8]) {
    let frame = Outgoing {
        header,
        payload: [&[], &[]],
        checksum: TransmitChecksum::Complete,
        segment_bytes: None,
    };
    assert!(nic.transmit(&frame).unwrap());
    nic.flush().unwrap();
}

/// A frame of the type for experiments.
fn plain(number: u8) -> Vec<u8> {
    let mut frame = vec![number; 60];
    frame[..6].copy_from_slice(&ADDRESS);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// A TCP frame of IPv4 from this port.
fn segment(port: u16) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 6;
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame
}

#[test]
fn a_link_replaces_another_and_says_so() {
    let mut set = Set::new(BondMode::Backup, &[]);
    // An address that the stack got later.
    let later = neighbor::announcement(ADDRESS, &Ip::v4([10, 0, 0, 77]));
    send(&mut set.bond, &later);
    assert_eq!(frames(&mut set.far[0]), std::slice::from_ref(&later));
    assert!(frames(&mut set.far[1]).is_empty());
    // What comes by the other link was flooded, and came by the first as well.
    send(&mut set.far[0], &plain(2));
    send(&mut set.far[1], &plain(2));
    assert_eq!(set.round(0), [plain(2)]);
    set.carriers[0].set(false);
    set.round(LOOK_NS);
    assert_eq!(set.used(), [false, true]);
    let announced = frames(&mut set.far[1]);
    assert_eq!((announced.len(), &announced[2]), (3, &later));
    for (frame, own) in announced.iter().zip([Ip::v4(OWN), Ip([0xfd; 16])]) {
        let (kind, body) = kind_and_body(frame);
        assert!(neighbor::is_answer(&own, kind, body));
        assert_eq!(frame[6..12], ADDRESS);
    }
    set.round(ANNOUNCE_NS);
    assert_eq!(frames(&mut set.far[1]).len(), 3, "once more");
    set.round(ANNOUNCE_NS);
    assert!(frames(&mut set.far[1]).is_empty());
    // The first link comes back, and nothing moves.
    set.carriers[0].set(true);
    set.round(LOOK_NS);
    assert_eq!(set.used(), [false, true]);
    assert_eq!(set.bond.report().unwrap().fail_overs, 1);
    // None is left: frames are lost as on a wire, and the bond goes on.
    set.carriers.iter().for_each(|carrier| carrier.set(false));
    set.round(LOOK_NS);
    send(&mut set.bond, &plain(3));
    assert_eq!(set.bond.report().unwrap().dropped, 1);
    assert!(!set.bond.has_carrier());
}

#[test]
fn a_broken_nic_does_not_end_the_bond() {
    let mut set = Set::new(BondMode::Backup, &[]);
    set.breaks[0].set(true);
    send(&mut set.bond, &plain(1));
    assert_eq!(
        set.bond.report().unwrap().dropped,
        1,
        "the frame that found it out"
    );
    send(&mut set.bond, &plain(2));
    assert_eq!(frames(&mut set.far[1]), [plain(2)]);
    assert!(set.round(LOOK_NS).is_empty());
    set.breaks[0].set(false);
    set.breaks[1].set(true);
    set.round(LOOK_NS);
    set.round(LOOK_NS);
    assert_eq!(set.used(), [true, false]);
    send(&mut set.bond, &plain(3));
    assert!(frames(&mut set.far[0]).contains(&plain(3)));
}

#[test]
fn flows_use_all_links_and_stay_where_they_are() {
    let mut set = Set::new(BondMode::Balance, &[]);
    for port in 0..100 {
        send(&mut set.bond, &segment(port));
        send(&mut set.bond, &segment(port));
    }
    let [one, other] = [0, 1].map(|index| frames(&mut set.far[index]));
    assert_eq!((one.len(), other.len()), (100, 100));
    for pair in one.chunks(2).chain(other.chunks(2)) {
        assert_eq!(pair[0], pair[1]);
    }
    // Both links are received from, and one that is left carries all.
    send(&mut set.far[0], &plain(1));
    send(&mut set.far[1], &plain(2));
    assert_eq!(set.round(0).len(), 2);
    set.carriers[1].set(false);
    set.round(LOOK_NS);
    for port in 0..10 {
        send(&mut set.bond, &segment(port));
    }
    assert_eq!(frames(&mut set.far[0]).len(), 10);
}

#[test]
fn a_link_that_leads_nowhere_is_found_by_probes() {
    for target in [IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xfe; 16])] {
        let mut set = Set::new(BondMode::Backup, &[target]);
        for _ in 0..60 {
            let passed = set.round(LOOK_NS);
            assert!(passed.is_empty(), "answers to probes are not the stack's");
            // The neighbour is behind the second link alone.
            frames(&mut set.far[0]);
            let mut came = frames(&mut set.far[1]);
            came.retain(|frame| frame[6..12] != ADDRESS);
            for asked in came {
                assert_eq!(asked[6..12], link_address(ADDRESS, 1));
                send(&mut set.far[1], &reply(&asked, target));
            }
        }
        assert_eq!(set.used(), [false, true], "{target}");
        assert_eq!(set.bond.report().unwrap().fail_overs, 1);
    }
}

/// The answer of the neighbour with `target` to a probe.
fn reply(asked: &[u8], target: IpAddr) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, 0xee];
    let (kind, body) = kind_and_body(asked);
    // A host answers an ARP probe, which a tunnel leaves alone.
    neighbor::answer(mac, kind, body).unwrap_or_else(|| {
        let mut frame = neighbor::announcement(mac, &Ip::from(target));
        frame[..6].copy_from_slice(&asked[6..12]);
        frame
    })
}

#[test]
fn two_bonds_agree_by_lacp_and_stop_when_a_link_is_silent() {
    let lacp = |last| BondMode::Lacp(options(last));
    let mut set = Set::new(lacp(1), &[]);
    let far = std::mem::take(&mut set.far);
    let far = far
        .into_iter()
        .map(|pair| (pair, "far".to_owned()))
        .collect();
    let far_options = BondOptions {
        mode: lacp(2),
        address: [2, 0x51, 0, 0, 0, 0x80],
        own: Vec::new(),
        probes: Vec::new(),
        clock: Some(set.clock.clone()),
    };
    let mut far = Bond::new(far, &far_options).unwrap();
    send(&mut set.bond, &segment(1));
    assert_eq!(set.bond.report().unwrap().dropped, 1, "no link yet");
    for _ in 0..50 {
        assert!(set.round(LOOK_NS).is_empty());
        assert!(frames(&mut far).is_empty());
    }
    assert_eq!(set.used(), [true, true]);
    let link = set.bond.report().unwrap().links.remove(0);
    assert_eq!(link.lacp_state, Some("distributing"));
    assert_eq!(link.lacp_partner.as_deref(), Some("02:00:00:00:00:02"));
    for port in 0..10 {
        send(&mut set.bond, &segment(port));
    }
    assert_eq!(frames(&mut far).len(), 10);
    set.carriers[0].set(false);
    for _ in 0..50 {
        set.round(LOOK_NS);
        frames(&mut far);
    }
    assert_eq!(set.used(), [false, true]);
    let used = far.report().unwrap().links;
    assert!(
        !used[0].is_used && used[1].is_used,
        "a silent link ends at the other end, too"
    );
}

#[test]
fn a_marker_is_answered_on_its_link() {
    let mut set = Set::new(BondMode::Lacp(options(1)), &[]);
    let mut marker = vec![0; 124];
    marker[..6].copy_from_slice(&DESTINATION);
    marker[12..18].copy_from_slice(&[0x88, 0x09, 2, 1, 1, 16]);
    marker[18..28].copy_from_slice(&[0, 7, 2, 0, 0, 0, 0, 9, 1, 2]);
    for _ in 0..100 {
        send(&mut set.far[1], &marker);
    }
    set.round(0);
    let answered = frames(&mut set.far[1]);
    assert_eq!(answered.len(), ANSWERS_MAX, "not more in one round");
    assert_eq!(
        answered[0][12..28],
        [&[0x88, 0x09, 2, 1, 2, 16][..], &marker[18..28]].concat()
    );
    assert!(frames(&mut set.far[0]).is_empty());
}

#[test]
fn a_sleeper_is_woken_by_any_link() {
    let mut set = Set::new(BondMode::Balance, &[]);
    for index in 0..2 {
        set.round(0);
        assert!(set.bond.arm().unwrap());
        let readable =
            |bond: &Bond<Wire>| sidecore_sys::local_socket::is_readable(bond.descriptor().unwrap());
        assert!(!readable(&set.bond));
        send(&mut set.far[index], &plain(1));
        assert!(readable(&set.bond));
    }
}

#[test]
fn bonds_of_one_link_and_of_too_many_are_refused() {
    for count in [0, 1, LINKS_MAX + 1] {
        let link = || pair::link(&PairOptions::default()).unwrap().0;
        let links = (0..count).map(|_| (link(), String::new())).collect();
        let bond_options = BondOptions {
            mode: BondMode::Backup,
            address: ADDRESS,
            own: Vec::new(),
            probes: Vec::new(),
            clock: None,
        };
        let said = Bond::new(links, &bond_options).err().unwrap().to_string();
        assert!(said.contains("2 to 16 links"), "{said}");
    }
}
