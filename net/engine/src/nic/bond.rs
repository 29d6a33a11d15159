//! Several NICs as one: a link that replaces another, or flows spread over all links (bonding).
//!
//! [`BondMode::Backup`] sends by one link and, when that fails, by another, and announces the
//! stack's addresses there (gratuitous ARP, unsolicited neighbour advertisements).
//! [`BondMode::Balance`] spreads flows over a static group of a switch, and [`BondMode::Lacp`] over
//! a group that is negotiated (IEEE 802.1AX).
//!
//! Why here: the stack has one interface. Must stay true: the frames of a flow leave by one link
//! while the links stay as they are; what comes by a link that is not in use does not reach the
//! stack; a link that fails does not end the engine. A round reads the clock, and ten rounds
//! a second the carriers. Source: IEEE 802.1AX-2008, RFC 5227 section 3 (announcements), RFC 4861
//! section 7.2.6, RFC 826 (probes).

mod lacp;

use super::middleware::Clock;
use super::neighbor::{self, kind_and_body};
use super::spread::flow_hash;
use super::{
    Capabilities, LinkReport, Nic, NicError, NicReport, Outgoing, Received, TransmitChecksum,
};
use lacp::Lacp;
pub use lacp::LacpOptions;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use sidecore_bare::width::ToUsize;
use sidecore_net_stack::wire::ethernet::Ethernet;
use sidecore_net_stack::wire::lacp::{BYTES as SLOW_BYTES, DESTINATION, Marker, Pdu, SLOW};
use sidecore_net_stack::wire::{Ip, Mac};
use sidecore_sys::clock;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The use of the links.
#[derive(Debug, Clone, Copy)]
pub enum BondMode {
    /// One link carries all frames; another one replaces it when it fails.
    Backup,
    /// All links carry flows, which a hash of their ends selects.
    Balance,
    /// The same over the links that LACP has agreed on.
    Lacp(LacpOptions),
}

/// Options of a bond.
#[derive(Debug, Clone)]
pub struct BondOptions {
    /// The use of the links.
    pub mode: BondMode,
    /// Our hardware address, which all links accept frames for.
    pub address: Mac,
    /// The stack's addresses, announced by a link that replaces another. Further ones are learned
    /// from what the stack sends.
    pub own: Vec<std::net::IpAddr>,
    /// Neighbours that each link has to reach to count as up; none: its carrier is enough.
    pub probes: Vec<std::net::IpAddr>,
    /// The time for tests; none: the system's.
    pub clock: Option<Clock>,
}

/// One link of a bond.
#[derive(Debug)]
struct Link<N> {
    nic: N,
    name: String,
    /// The link's own address: of its LACPDUs and probes.
    own: Mac,
    /// Carrier, no failure, and answers to probes.
    is_up: bool,
    /// The NIC has failed and was not heard since.
    has_failed: bool,
    /// Time at which the carrier came, or a probe was last answered.
    heard_ns: u64,
    had_carrier: bool,
    frames_sent: u64,
}

/// Several NICs as one.
#[derive(Debug)]
pub struct Bond<N> {
    links: Vec<Link<N>>,
    mode: BondMode,
    lacp: Option<Lacp>,
    /// Links by which frames are sent and taken.
    usable: Vec<usize>,
    capabilities: Capabilities,
    clock: Option<Clock>,
    /// An epoll instance over the links' descriptors; none if one of them has to be polled.
    watch: Option<OwnedFd>,
    /// The link with which the next round begins.
    next: usize,
    look_ns: u64,
    probe_ns: u64,
    /// LACPDUs have come that the machines have not seen.
    has_heard: bool,
    own: Vec<Ip>,
    probes: Vec<Ip>,
    /// Responses to markers, by link.
    answers: Vec<(usize, [u8; SLOW_BYTES])>,
    announcements: Announcements,
    dropped: u64,
}

/// Announcements that are left after a link has replaced another.
#[derive(Debug, Default)]
struct Announcements {
    left: u8,
    due_ns: u64,
    /// A link was in use before.
    is_warm: bool,
    fail_overs: u64,
}

impl<N: Nic> Bond<N> {
    /// A bond of `links`, with their names. With probes every link's NIC has to accept frames to
    /// `link_address`, as an interface in promiscuous mode does.
    ///
    /// # Errors
    /// [`NicError::Options`] for fewer than two links or more than [`LINKS_MAX`];
    /// [`NicError::Os`].
    pub fn new(links: Vec<(N, String)>, options: &BondOptions) -> Result<Self, NicError> {
        if !(2..=LINKS_MAX).contains(&links.len()) {
            let reason = format!("a bond has 2 to {LINKS_MAX} links, not {}", links.len());
            return Err(NicError::Options(reason));
        }
        let mut capabilities = links[0].0.capabilities();
        for (nic, _) in &links[1..] {
            // A frame may leave by any link, so that the weakest one decides.
            capabilities = common(capabilities, nic.capabilities());
        }
        capabilities.address = options.address;
        let lacp = match &options.mode {
            BondMode::Lacp(lacp) => Some(Lacp::new(lacp, links.len())),
            BondMode::Backup | BondMode::Balance => None,
        };
        let links = links
            .into_iter()
            .enumerate()
            .map(|(index, (nic, name))| Link {
                nic,
                name,
                own: link_address(options.address, index),
                is_up: false,
                has_failed: false,
                heard_ns: 0,
                had_carrier: false,
                frames_sent: 0,
            });
        let mut this = Self {
            links: links.collect(),
            mode: options.mode,
            lacp,
            usable: Vec::with_capacity(LINKS_MAX),
            capabilities,
            clock: options.clock.clone(),
            watch: None,
            next: 0,
            look_ns: 0,
            probe_ns: 0,
            has_heard: false,
            own: Vec::new(),
            probes: options.probes.iter().copied().map(Ip::from).collect(),
            answers: Vec::new(),
            announcements: Announcements::default(),
            dropped: 0,
        };
        for address in &options.own {
            this.learn_address(Ip::from(*address));
        }
        this.watch = this.watch_all()?;
        let now_ns = this.now_ns();
        // At once: the first packets of the stack would be dropped without a usable link.
        this.look(now_ns);
        Ok(this)
    }

    fn now_ns(&self) -> u64 {
        self.clock
            .as_ref()
            .map_or_else(clock::now_ns, Clock::now_ns)
    }

    /// An epoll instance over all links.
    fn watch_all(&self) -> Result<Option<OwnedFd>, NicError> {
        let failed = |error: rustix::io::Errno| NicError::Os {
            what: "cannot wait for several NICs (epoll)".to_owned(),
            error: error.into(),
        };
        let watch = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        for (number, link) in (0..).zip(&self.links) {
            let Some(descriptor) = link.nic.descriptor() else {
                // One NIC without a descriptor has to be polled, and so has the bond.
                return Ok(None);
            };
            let data = EventData::new_u64(number);
            epoll::add(&watch, descriptor, data, EventFlags::IN).map_err(failed)?;
        }
        Ok(Some(watch))
    }

    /// Frames of one link; the number that was passed on.
    fn receive_from(
        &mut self,
        index: usize,
        budget: usize,
        now_ns: u64,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        // Read before the frames: one that arrives while a link is taken out of use counts as
        // before it.
        let is_used = self.usable.contains(&index);
        let (lacp, answers) = (&mut self.lacp, &mut self.answers);
        let (probes, link) = (&self.probes, &mut self.links[index]);
        let (own, mut passed, mut is_heard, mut has_pdu) = (link.own, 0, false, false);
        let received = link.nic.receive(budget, &mut |frame| {
            let (kind, body) = kind_and_body(frame.bytes);
            // They end at this link, and nothing forwards them (IEEE 802.3, annex 57A).
            if kind == SLOW {
                let Some(lacp) = lacp.as_mut() else {
                    return;
                };
                if let Some(pdu) = Pdu::parse(body) {
                    lacp.receive(index, &pdu, now_ns);
                    has_pdu = true;
                } else if let Some(marker) = Marker::parse(body)
                    && answers.len() < ANSWERS_MAX
                {
                    answers.push((index, marker.response()));
                }
                return;
            }
            is_heard |= probes.iter().any(|it| neighbor::is_answer(it, kind, body));
            // Answers to probes are the link's own.
            if is_used && !frame.bytes.starts_with(&own) {
                passed += 1;
                sink(frame);
            }
        });
        if is_heard {
            link.heard_ns = now_ns;
        }
        self.has_heard |= has_pdu;
        // A receive is the test of a link, also of one that has failed: it comes back this way.
        self.judge(index, received.is_ok(), now_ns);
        passed
    }

    /// Notes that a link's NIC works, or has failed: the engine goes on with the others.
    fn judge(&mut self, index: usize, is_good: bool, now_ns: u64) {
        let link = &mut self.links[index];
        if link.has_failed != is_good {
            return;
        }
        link.has_failed = !is_good;
        // A descriptor in the state of an error would end each sleep at once.
        if let (Some(watch), Some(descriptor)) = (&self.watch, link.nic.descriptor()) {
            if is_good {
                let data = EventData::new_u64(0);
                epoll::add(watch, descriptor, data, EventFlags::IN).ok();
            } else {
                epoll::delete(watch, descriptor).ok();
            }
        }
        if !is_good {
            link.is_up = false;
            self.choose(now_ns);
        }
    }

    /// Carriers, probes, LACP's timers and announcements.
    fn look(&mut self, now_ns: u64) {
        self.look_ns = now_ns.saturating_add(LOOK_NS);
        let is_probed = !self.probes.is_empty();
        for (index, link) in self.links.iter_mut().enumerate() {
            let has_carrier = !link.has_failed && link.nic.has_carrier();
            if has_carrier && !link.had_carrier {
                // Time for the first answers.
                link.heard_ns = now_ns;
            }
            link.had_carrier = has_carrier;
            let is_silent = now_ns.saturating_sub(link.heard_ns) > SILENCE_NS;
            // A carrier alone does not show a switch that forwards nothing; answers to probes do.
            link.is_up = has_carrier && !(is_probed && is_silent);
            if let Some(lacp) = &mut self.lacp {
                lacp.set_link(index, link.is_up, now_ns);
            }
        }
        if is_probed && now_ns >= self.probe_ns {
            self.probe_ns = now_ns.saturating_add(PROBE_NS);
            self.probe();
        }
        self.run_lacp(now_ns);
        self.choose(now_ns);
        if self.announcements.left > 0 && now_ns >= self.announcements.due_ns {
            self.announce(now_ns);
        }
    }

    fn run_lacp(&mut self, now_ns: u64) {
        self.has_heard = false;
        let Some(lacp) = &mut self.lacp else {
            return;
        };
        // Nothing is allocated while nothing is due.
        let mut due = std::mem::take(&mut self.answers);
        lacp.poll(now_ns, &mut |port, pdu| due.push((port, pdu.to_bytes())));
        for (index, bytes) in due.drain(..) {
            let header = Ethernet::new(DESTINATION, self.links[index].own, SLOW);
            self.send_own(index, &[&header.to_bytes()[..], &bytes].concat());
        }
        self.answers = due;
    }

    /// Chooses the links in use.
    fn choose(&mut self, now_ns: u64) {
        let before = self.usable.first().copied();
        let links = self.links.iter().enumerate();
        let mut up = links.filter(|(_, link)| link.is_up).map(|(index, _)| index);
        match (self.mode, &self.lacp) {
            (BondMode::Backup, _) => {
                // The link in use stays: a return of the first would cost a second break.
                let stays = before.filter(|index| self.links[*index].is_up);
                let chosen = stays.or_else(|| up.next());
                self.usable.clear();
                self.usable.extend(chosen);
            }
            (_, None) => {
                let up: Vec<usize> = up.collect();
                self.usable.clone_from(&up);
            }
            (_, Some(lacp)) => {
                let up: Vec<usize> = up.filter(|index| lacp.carries(*index)).collect();
                self.usable.clone_from(&up);
            }
        }
        let is_new = self.usable.first().is_some_and(|now| before != Some(*now));
        if is_new && matches!(self.mode, BondMode::Backup) {
            let announcements = &mut self.announcements;
            // The first link has nothing to replace.
            if announcements.is_warm {
                announcements.left = ANNOUNCEMENTS;
                announcements.due_ns = now_ns;
                announcements.fail_overs += 1;
            }
            announcements.is_warm = true;
        }
    }

    /// Announces the stack's addresses by the link in use, so that switches and neighbours follow.
    fn announce(&mut self, now_ns: u64) {
        self.announcements.left -= 1;
        // Again after a while: the switch may not forward yet, and nothing acknowledges an
        // announcement.
        self.announcements.due_ns = now_ns.saturating_add(ANNOUNCE_NS);
        let Some(&link) = self.usable.first() else {
            return;
        };
        let address = self.capabilities.address;
        for own in self.own.clone() {
            self.send_own(link, &neighbor::announcement(address, &own));
        }
    }

    /// Asks the neighbours by each link, from the link's own address: switches must not learn ours
    /// at a link that is not in use.
    fn probe(&mut self) {
        for index in 0..self.links.len() {
            let own = self.links[index].own;
            for probe in self.probes.clone() {
                self.send_own(index, &neighbor::question(own, &probe));
            }
        }
    }

    /// Sends a frame of the bond itself; one that is not taken is lost.
    fn send_own(&mut self, index: usize, frame: &[u8]) {
        let link = &mut self.links[index];
        if link.has_failed {
            return;
        }
        let frame = Outgoing {
            header: frame,
            payload: [&[], &[]],
            checksum: TransmitChecksum::Complete,
            segment_bytes: None,
        };
        // A failure is seen by the next round's receive.
        link.nic.transmit(&frame).ok();
        link.nic.flush().ok();
    }

    /// Learns an address of the stack from its ARP packets and solicitations, for announcements.
    fn learn(&mut self, header: &[u8]) {
        let (kind, body) = kind_and_body(header);
        if let Some(address) = neighbor::sender(kind, body) {
            self.learn_address(address);
        }
    }

    fn learn_address(&mut self, address: Ip) {
        let is_one = !address.is_unspecified() && !address.is_multicast();
        if is_one && self.own.len() < ADDRESSES_MAX && !self.own.contains(&address) {
            self.own.push(address);
        }
    }
}

impl<N: Nic> Nic for Bond<N> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let (now_ns, mut count) = (self.now_ns(), 0);
        for step in 0..self.links.len() {
            let index = (self.next + step) % self.links.len();
            // As between engines' links: `next` makes each the first in turn.
            count += self.receive_from(index, budget - count, now_ns, sink);
        }
        self.next = (self.next + 1) % self.links.len();
        if self.has_heard || !self.answers.is_empty() {
            self.run_lacp(now_ns);
            self.choose(now_ns);
        }
        if now_ns >= self.look_ns {
            self.look(now_ns);
        }
        Ok(count)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        self.learn(frame.header);
        let index = match (self.usable.as_slice(), self.mode) {
            // As on a wire that is unplugged.
            ([], _) => {
                self.dropped += 1;
                return Ok(true);
            }
            ([first, ..], BondMode::Backup) => *first,
            // By flow: TCP takes frames that overtake one another for losses (IEEE 802.1AX, 5.2.4).
            (all, _) => all[flow_hash(frame.header).to_usize() % all.len()],
        };
        let link = &mut self.links[index];
        match link.nic.transmit(frame) {
            Ok(is_taken) => {
                link.frames_sent += u64::from(is_taken);
                Ok(is_taken)
            }
            Err(_) => {
                self.dropped += 1;
                self.judge(index, false, self.now_ns());
                Ok(true)
            }
        }
    }

    fn flush(&mut self) -> Result<(), NicError> {
        for index in 0..self.links.len() {
            if !self.links[index].has_failed && self.links[index].nic.flush().is_err() {
                self.judge(index, false, self.now_ns());
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    fn arm(&mut self) -> Result<bool, NicError> {
        let mut is_armed = self.watch.is_some();
        for link in &mut self.links {
            // One that has failed will report nothing; the others do.
            is_armed &= link.has_failed || link.nic.arm().unwrap_or(true);
        }
        Ok(is_armed)
    }

    fn has_carrier(&self) -> bool {
        self.links.iter().any(|link| link.is_up)
    }

    fn report(&self) -> Option<NicReport> {
        let now_ns = self.now_ns();
        let links = self.links.iter().enumerate().map(|(index, link)| {
            let lacp = self.lacp.as_ref();
            LinkReport {
                name: link.name.clone(),
                is_up: link.is_up,
                is_used: self.usable.contains(&index),
                frames_sent: link.frames_sent,
                lacp_state: lacp.map(|lacp| lacp.state(index)),
                lacp_partner: lacp
                    .and_then(|lacp| lacp.partner(index))
                    .map(|mac| text(&mac)),
                is_churned: lacp.is_some_and(|lacp| lacp.is_churned(index, now_ns)),
                is_looped: lacp.is_some_and(|lacp| lacp.is_looped(index)),
            }
        });
        Some(NicReport {
            kind: "bond",
            links: links.collect(),
            dropped: self.dropped,
            fail_overs: self.announcements.fail_overs,
            ..NicReport::default()
        })
    }
}

/// The own address of a link of a bond: locally administered, and different for each link.
#[must_use]
pub(crate) fn link_address(bond: Mac, index: usize) -> Mac {
    let [first, a, b, c, d, last] = bond;
    // Fewer links than 255, so that none has the bond's own.
    let number = u8::try_from(index + 1).unwrap_or(u8::MAX);
    // Locally administered, and no group: a switch must not see one address on two ports.
    [(first | 2) & !1, a, b, c, d, last.wrapping_add(number)]
}

/// The offloads and sizes that both NICs have.
fn common(one: Capabilities, other: Capabilities) -> Capabilities {
    let super_segment_bytes = one.super_segment_bytes.min(other.super_segment_bytes);
    Capabilities {
        address: one.address,
        mtu_bytes: one.mtu_bytes.min(other.mtu_bytes),
        super_segment_bytes,
        completes_checksums: one.completes_checksums && other.completes_checksums,
        // What one link may do, the stack has to expect of all.
        cuts_datagrams: one.cuts_datagrams && other.cuts_datagrams,
        merges_received: one.merges_received || other.merges_received,
    }
}

/// `02:00:00:00:00:01`.
fn text(mac: &Mac) -> String {
    let bytes: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// The most links of a bond.
pub const LINKS_MAX: usize = 16;
/// Addresses of the stack that are announced, at most.
const ADDRESSES_MAX: usize = 32;
/// Responses to markers that wait for the end of a round, at most.
const ANSWERS_MAX: usize = 16;
/// Time between two looks at the carriers and LACP's timers.
const LOOK_NS: u64 = 100_000_000;
/// Time between two probes of a neighbour, and the longest silence of a link that is up.
const PROBE_NS: u64 = 1_000_000_000;
const SILENCE_NS: u64 = 3_500_000_000;
/// Announcements of an address, and the time between them (RFC 5227 section 1.1).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_NS: u64 = 2_000_000_000;

#[cfg(test)]
mod tests;
