//! Link aggregation control (LACP) without I/O: LACPDUs and times in, LACPDUs and usable ports out.
//!
//! Each port has the machines of the standard: receive, periodic, mux (coupled control) and churn
//! detection. Selection is the implementer's part: ports whose partners are one system with one key
//! are a group, and one group is in use at a time. That is the group with the most ports, and a
//! group with a partner before a port without one. So a link to a switch without LACP carries
//! frames, but only one such link does.
//!
//! Must stay true: a port carries frames only if its mux distributes; a port that hears its own
//! system (a loop) never does; at most three LACPDUs a second leave a port. Source: IEEE
//! 802.1AX-2008 section 5.4; the names of states and functions are those of its figures.

use sidecore_net_stack::wire::lacp::{Party, Pdu, State};

/// Options of LACP.
#[derive(Debug, Clone, Copy)]
pub struct LacpOptions {
    /// Priority of this system; the lower number wins.
    pub system_priority: u16,
    /// The system's hardware address.
    pub system: [u8; 6],
    /// Sends LACPDUs without hearing any first.
    pub is_active: bool,
    /// Asks the partner for a LACPDU each second, and waits 3 s for one; else 30 s and 90 s.
    pub is_fast: bool,
}

/// State of a port's receive machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receive {
    Disabled,
    Expired,
    Defaulted,
    Current,
}

/// State of a port's mux machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mux {
    Detached,
    Waiting,
    Attached,
    Distributing,
}

/// The decision of the selection logic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Selection {
    Unselected,
    Standby,
    Selected,
}

/// Ports that may be aggregated have equal groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// The partner's priority, system and key.
    Shared(u16, [u8; 6], u16),
    /// A port by itself.
    Individual(usize),
}

/// One port.
#[derive(Debug)]
struct Port {
    actor: Party,
    partner: Party,
    receive: Receive,
    /// End of the receive machine's timer (`current_while_timer`).
    current_until_ns: u64,
    selected: Selection,
    mux: Mux,
    /// End of `wait_while_timer`.
    wait_until_ns: u64,
    /// A LACPDU is due (NTT, need to transmit).
    needs_transmit: bool,
    /// Next periodic LACPDU; none in the state NO_PERIODIC.
    periodic_ns: Option<u64>,
    /// Times of the last LACPDUs, oldest first.
    sent_ns: [Option<u64>; BURST],
    /// Times since which the actor's and the partner's flags of synchronization are cleared.
    unsynced_ns: [Option<u64>; 2],
    /// End of the time in which the port counts as looped back.
    looped_until_ns: Option<u64>,
}

impl Port {
    fn new(options: &LacpOptions, number: u16) -> Self {
        let state = State::AGGREGATION
            .setting(State::ACTIVITY, options.is_active)
            .setting(State::TIMEOUT, options.is_fast)
            .with(State::DEFAULTED);
        Self {
            actor: Party {
                system_priority: options.system_priority,
                system: options.system,
                key: KEY,
                port_priority: PORT_PRIORITY,
                port: number,
                state,
            },
            partner: NO_PARTNER,
            receive: Receive::Disabled,
            current_until_ns: 0,
            selected: Selection::Unselected,
            mux: Mux::Detached,
            wait_until_ns: 0,
            needs_transmit: false,
            periodic_ns: None,
            sent_ns: [None; BURST],
            unsynced_ns: [None; 2],
            looped_until_ns: None,
        }
    }

    fn is_defaulted(&self) -> bool {
        self.actor.state.has(State::DEFAULTED)
    }

    /// The state EXPIRED: the partner is asked to hurry, for the length of a short timeout.
    fn expire(&mut self, now_ns: u64) {
        self.receive = Receive::Expired;
        self.partner.state = self
            .partner
            .state
            .without(State::SYNCHRONIZATION)
            .with(State::TIMEOUT);
        // Short from here on (5.4.12): a partner that is there answers within it, as it is asked
        // for fast LACPDUs.
        self.current_until_ns = now_ns.saturating_add(SHORT_TIMEOUT_NS);
        self.actor.state = self.actor.state.with(State::EXPIRED);
    }

    /// The state DEFAULTED (`update_Default_Selected`, `recordDefault`).
    fn default_partner(&mut self) {
        if !self.partner.is_same_port(&NO_PARTNER) || self.partner.state.has(State::AGGREGATION) {
            self.selected = Selection::Unselected;
        }
        self.receive = Receive::Defaulted;
        self.partner = NO_PARTNER;
        self.actor.state = self
            .actor
            .state
            .with(State::DEFAULTED)
            .without(State::EXPIRED);
    }

    /// The state CURRENT: a LACPDU has come.
    fn record(&mut self, pdu: &Pdu, now_ns: u64) {
        // `update_Selected`: another partner, or one with other parameters.
        let aggregation = |state: State| state.has(State::AGGREGATION);
        let is_known = pdu.actor.is_same_port(&self.partner)
            && aggregation(pdu.actor.state) == aggregation(self.partner.state);
        if !is_known {
            self.selected = Selection::Unselected;
        }
        // `update_NTT`: what the partner knows of this port is old.
        let own = self.actor;
        let is_same = pdu.partner.is_same_port(&own);
        if !is_same || (pdu.partner.state.0 ^ own.state.0) & NOTED.0 != 0 {
            self.needs_transmit = true;
        }
        // `recordPDU`.
        let is_matched = is_same && aggregation(pdu.partner.state) == aggregation(own.state);
        let is_maintained = pdu.actor.state.has(State::ACTIVITY)
            || own.state.has(State::ACTIVITY) && pdu.partner.state.has(State::ACTIVITY);
        // A partner that is in step with another port, or with old parameters, is not in step with
        // this one.
        let is_synced = pdu.actor.state.has(State::SYNCHRONIZATION)
            && is_maintained
            && (is_matched || !aggregation(pdu.actor.state));
        self.partner = pdu.actor;
        self.partner.state = pdu.actor.state.setting(State::SYNCHRONIZATION, is_synced);
        self.actor.state = own.state.without(State::DEFAULTED).without(State::EXPIRED);
        // By this side's state: it is what the partner was asked to send by.
        let timeout_ns = timeout_ns(own.state);
        self.receive = Receive::Current;
        self.current_until_ns = now_ns.saturating_add(timeout_ns);
    }

    /// Timers of the receive machine, and of a loop.
    fn run_timers(&mut self, now_ns: u64) {
        if self.looped_until_ns.is_some_and(|until| until <= now_ns) {
            self.looped_until_ns = None;
        }
        match self.receive {
            Receive::Current if now_ns >= self.current_until_ns => self.expire(now_ns),
            Receive::Expired if now_ns >= self.current_until_ns => self.default_partner(),
            _ => {}
        }
        let states = [self.actor.state, self.partner.state];
        for (since, state) in self.unsynced_ns.iter_mut().zip(states) {
            if state.has(State::SYNCHRONIZATION) || self.receive == Receive::Disabled {
                *since = None;
            } else {
                since.get_or_insert(now_ns);
            }
        }
    }

    /// The mux machine, as far as it goes.
    fn run_mux(&mut self, is_ready: bool, now_ns: u64) {
        // Four states, each of which is entered once at most before a timer decides.
        for _ in 0..4 {
            let next = match (self.mux, self.selected) {
                (Mux::Detached, Selection::Selected | Selection::Standby) => Mux::Waiting,
                (Mux::Waiting, Selection::Unselected) => Mux::Detached,
                (Mux::Waiting, Selection::Selected) if is_ready => Mux::Attached,
                (Mux::Attached, Selection::Unselected | Selection::Standby) => Mux::Detached,
                (Mux::Attached, Selection::Selected) if self.is_partner_synced() => {
                    Mux::Distributing
                }
                (Mux::Distributing, Selection::Selected) if self.is_partner_synced() => return,
                (Mux::Distributing, _) => Mux::Attached,
                _ => return,
            };
            self.enter(next, now_ns);
            // The wait begins with the state: whatever was ready before is not this port's.
            if next == Mux::Waiting {
                return;
            }
        }
    }

    fn enter(&mut self, mux: Mux, now_ns: u64) {
        let carries = State::COLLECTING.with(State::DISTRIBUTING);
        let state = self.actor.state;
        self.mux = mux;
        match mux {
            Mux::Waiting => {
                self.wait_until_ns = now_ns.saturating_add(AGGREGATE_WAIT_NS);
                return;
            }
            Mux::Detached => {
                self.actor.state = state.without(carries).without(State::SYNCHRONIZATION);
            }
            Mux::Attached => {
                self.actor.state = state.without(carries).with(State::SYNCHRONIZATION);
            }
            Mux::Distributing => self.actor.state = state.with(carries),
        }
        self.needs_transmit = true;
    }

    fn is_partner_synced(&self) -> bool {
        self.partner.state.has(State::SYNCHRONIZATION)
    }

    /// The periodic machine; false in the state NO_PERIODIC.
    fn run_periodic(&mut self, now_ns: u64) -> bool {
        let is_active = |party: &Party| party.state.has(State::ACTIVITY);
        let is_silent = !is_active(&self.actor) && !is_active(&self.partner);
        if self.receive == Receive::Disabled || is_silent {
            self.periodic_ns = None;
            self.needs_transmit = false;
            return false;
        }
        let is_fast = self.partner.state.has(State::TIMEOUT);
        let interval_ns = if is_fast { FAST_NS } else { SLOW_NS };
        // The first one soon: a partner that is passive waits for it.
        let fast_ns = now_ns.saturating_add(FAST_NS);
        let due_ns = *self.periodic_ns.get_or_insert(fast_ns);
        // A partner that has begun to want them fast need not wait for the end of a slow interval.
        if due_ns <= now_ns || is_fast && due_ns > fast_ns {
            self.needs_transmit = true;
            self.periodic_ns = Some(now_ns.saturating_add(interval_ns));
        }
        true
    }

    /// The LACPDU that is due, unless three have left within a second.
    fn transmit(&mut self, now_ns: u64) -> Option<Pdu> {
        let [oldest, rest @ ..] = self.sent_ns;
        let is_limited = oldest.is_some_and(|at| now_ns < at.saturating_add(FAST_NS));
        if !self.needs_transmit || is_limited {
            return None;
        }
        self.needs_transmit = false;
        // Three a second (5.4.16): a change may be sent late, and is never lost, as the newest
        // state is sent then.
        self.sent_ns = [rest[0], rest[1], Some(now_ns)];
        Some(Pdu {
            actor: self.actor,
            partner: self.partner,
            collector_delay: 0,
        })
    }
}

/// The ports of one system.
#[derive(Debug)]
pub(super) struct Lacp {
    ports: Vec<Port>,
    /// The group in use.
    active: Option<Group>,
}

impl Lacp {
    /// Ports that are down, numbered from 1 to the partner.
    pub(super) fn new(options: &LacpOptions, ports: usize) -> Self {
        let numbers = (1..=u16::MAX).take(ports);
        Self {
            ports: numbers.map(|port| Port::new(options, port)).collect(),
            active: None,
        }
    }

    /// Reports the state of a link.
    pub(super) fn set_link(&mut self, port: usize, is_up: bool, now_ns: u64) {
        let port = &mut self.ports[port];
        match (port.receive, is_up) {
            (Receive::Disabled, true) => port.expire(now_ns),
            (Receive::Disabled, false) | (_, true) => {}
            (_, false) => {
                port.receive = Receive::Disabled;
                port.partner.state = port.partner.state.without(State::SYNCHRONIZATION);
                port.actor.state = port.actor.state.without(State::EXPIRED);
                port.selected = Selection::Unselected;
                port.looped_until_ns = None;
            }
        }
    }

    /// Takes a LACPDU that has come by a port.
    pub(super) fn receive(&mut self, port: usize, pdu: &Pdu, now_ns: u64) {
        // A partner that has moved its cable: the port where it was knows it no more.
        for (index, old) in self.ports.iter_mut().enumerate() {
            let is_disabled = old.receive == Receive::Disabled;
            if index != port && is_disabled && old.partner.is_same_port(&pdu.actor) {
                old.partner = NO_PARTNER;
                old.actor.state = old.actor.state.with(State::DEFAULTED);
            }
        }
        let port = &mut self.ports[port];
        if port.receive == Receive::Disabled {
            return;
        }
        // This system's own LACPDU: the link leads back to it.
        if pdu.actor.system == port.actor.system {
            // Longer than the slowest interval, so that the port stays out while the loop lasts.
            port.looped_until_ns = Some(now_ns.saturating_add(LONG_TIMEOUT_NS));
            port.selected = Selection::Unselected;
            return;
        }
        port.looped_until_ns = None;
        port.record(pdu, now_ns);
    }

    /// Runs all machines; `send` gets the LACPDUs that are due. To be called after each LACPDU and
    /// at least some times a second.
    pub(super) fn poll(&mut self, now_ns: u64, send: &mut dyn FnMut(usize, &Pdu)) {
        for port in &mut self.ports {
            port.run_timers(now_ns);
            // A port that was deselected detaches before it may be selected again.
            port.run_mux(false, now_ns);
        }
        // Between the two passes: what left its group has detached, and what joins one may attach.
        self.select();
        // `Ready`: ports of a group attach together.
        let is_ready = self.ports.iter().all(|port| {
            let waits = port.mux == Mux::Waiting && port.selected == Selection::Selected;
            !waits || now_ns >= port.wait_until_ns
        });
        for (index, port) in self.ports.iter_mut().enumerate() {
            port.run_mux(is_ready, now_ns);
            if port.run_periodic(now_ns)
                && let Some(pdu) = port.transmit(now_ns)
            {
                send(index, &pdu);
            }
        }
    }

    /// True if frames may be sent and received by the port.
    pub(super) fn carries(&self, port: usize) -> bool {
        self.ports[port].mux == Mux::Distributing
    }

    /// True if the port hears its own system.
    pub(super) fn is_looped(&self, port: usize) -> bool {
        self.ports[port].looped_until_ns.is_some()
    }

    /// True if the actor, or the partner, has not agreed to a group for a minute.
    pub(super) fn is_churned(&self, port: usize, now_ns: u64) -> bool {
        let mut since = self.ports[port].unsynced_ns.iter().flatten();
        since.any(|at| now_ns.saturating_sub(*at) >= CHURN_NS)
    }

    /// The partner's system, if one has been heard.
    pub(super) fn partner(&self, port: usize) -> Option<[u8; 6]> {
        let port = &self.ports[port];
        (!port.is_defaulted()).then_some(port.partner.system)
    }

    /// The name of the mux machine's state.
    pub(super) fn state(&self, port: usize) -> &'static str {
        match self.ports[port].mux {
            Mux::Detached => "detached",
            Mux::Waiting => "waiting",
            Mux::Attached => "attached",
            Mux::Distributing => "distributing",
        }
    }

    /// The selection logic: the best group is selected, other ports stand by.
    fn select(&mut self) {
        let groups: Vec<Option<Group>> = (0..self.ports.len()).map(|it| self.group(it)).collect();
        let rank = |index: usize| {
            let group = groups[index]?;
            let count = groups.iter().flatten().filter(|it| **it == group).count();
            // A group with a partner that speaks comes before any number of ports without one.
            let is_live = !self.ports[index].is_defaulted();
            // The group in use stays where another is no better.
            Some((is_live, count, self.active == Some(group)))
        };
        let mut best: Option<((bool, usize, bool), Group)> = None;
        for (index, group) in groups.iter().enumerate() {
            if let (Some(group), Some(rank)) = (*group, rank(index))
                && best.is_none_or(|(than, _)| rank > than)
            {
                best = Some((rank, group));
            }
        }
        self.active = best.map(|(_, group)| group);
        for (port, group) in self.ports.iter_mut().zip(groups) {
            port.selected = match group {
                None => Selection::Unselected,
                Some(group) if self.active == Some(group) => Selection::Selected,
                Some(_) => Selection::Standby,
            };
        }
    }

    /// The group that a port may join.
    fn group(&self, index: usize) -> Option<Group> {
        let port = &self.ports[index];
        // A port that has just come up waits for its partner's first LACPDU, or for its absence.
        let is_early = port.receive == Receive::Expired && port.is_defaulted();
        if port.receive == Receive::Disabled || port.looped_until_ns.is_some() || is_early {
            return None;
        }
        let partner = &port.partner;
        if port.is_defaulted() || !partner.state.has(State::AGGREGATION) {
            return Some(Group::Individual(index));
        }
        Some(Group::Shared(
            partner.system_priority,
            partner.system,
            partner.key,
        ))
    }
}

/// The receive machine's timeout of a port with this state.
fn timeout_ns(state: State) -> u64 {
    if state.has(State::TIMEOUT) {
        SHORT_TIMEOUT_NS
    } else {
        LONG_TIMEOUT_NS
    }
}

/// The partner of a port that has heard none: a link by itself that is in use at once. It is sent
/// a LACPDU each second, so that one that begins to speak is found soon.
const NO_PARTNER: Party = Party {
    system_priority: 0,
    system: [0; 6],
    key: 0,
    port_priority: 0,
    port: 0,
    state: State::SYNCHRONIZATION.with(State::TIMEOUT),
};
/// Flags that a partner has to know (`update_NTT`).
const NOTED: State = State::ACTIVITY
    .with(State::TIMEOUT)
    .with(State::AGGREGATION)
    .with(State::SYNCHRONIZATION);
/// All ports of a bond may be aggregated with one another.
const KEY: u16 = 1;
const PORT_PRIORITY: u16 = 0x8000;
/// LACPDUs of a port within one fast interval, at most (section 5.4.16).
const BURST: usize = 3;
const SECOND_NS: u64 = 1_000_000_000;
/// Section 5.4.4: `Fast_Periodic_Time`, `Slow_Periodic_Time`, `Short_Timeout_Time`,
/// `Long_Timeout_Time`, `Churn_Detection_Time`, `Aggregate_Wait_Time`.
const FAST_NS: u64 = SECOND_NS;
const SLOW_NS: u64 = 30 * SECOND_NS;
const SHORT_TIMEOUT_NS: u64 = 3 * SECOND_NS;
const LONG_TIMEOUT_NS: u64 = 90 * SECOND_NS;
const CHURN_NS: u64 = 60 * SECOND_NS;
const AGGREGATE_WAIT_NS: u64 = 2 * SECOND_NS;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_random::SplitMix;

    const STEP_NS: u64 = SECOND_NS / 10;

    fn options(last: u8) -> LacpOptions {
        LacpOptions {
            system_priority: 0x8000,
            system: [2, 0, 0, 0, 0, last],
            is_active: true,
            is_fast: true,
        }
    }

    #[test]
    fn a_lacpdu_of_the_standards_layout_is_answered_in_it() {
        let mut lacp = Lacp::new(&options(1), 1);
        lacp.set_link(0, true, 0);
        let mut bytes = [0; 110];
        bytes[..4].copy_from_slice(&[1, 1, 1, 20]);
        // Priority, system, key, port's priority, port; active, fast, may be aggregated.
        let partner = [0x7f, 0xff, 2, 0xaa, 0, 0, 0, 9, 0, 5, 0, 0x80, 0, 3, 0x07];
        bytes[4..19].copy_from_slice(&partner);
        bytes[22..24].copy_from_slice(&[2, 20]);
        bytes[42..44].copy_from_slice(&[3, 16]);
        lacp.receive(0, &Pdu::parse(&bytes).unwrap(), STEP_NS);
        let mut sent = Vec::new();
        lacp.poll(STEP_NS, &mut |_, pdu| sent.push(pdu.to_bytes()));
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0][..4], [1, 1, 1, 20]);
        let actor = [0x80, 0, 2, 0, 0, 0, 0, 1, 0, 1, 0x80, 0, 0, 1, 0x07];
        assert_eq!(sent[0][4..19], actor);
        assert_eq!(sent[0][24..39], partner);
    }

    #[test]
    fn the_larger_group_is_used_and_the_other_stands_by() {
        let mut first = Lacp::new(&options(1), 3);
        let mut others = [(2, 1), (3, 1), (3, 2)].map(|(last, port)| {
            let mut other = Lacp::new(&options(last), 2);
            other.set_link(port - 1, true, 0);
            (other, port - 1)
        });
        for port in 0..3 {
            first.set_link(port, true, 0);
        }
        for step in 1..60 {
            let now_ns = step * STEP_NS;
            let mut sent = Vec::new();
            first.poll(now_ns, &mut |port, pdu| sent.push((port, *pdu)));
            for (port, pdu) in sent {
                let (other, at) = &mut others[port];
                other.receive(*at, &pdu, now_ns);
            }
            for (port, (other, _)) in others.iter_mut().enumerate() {
                other.poll(now_ns, &mut |_, pdu| first.receive(port, pdu, now_ns));
            }
        }
        let carries = [0, 1, 2].map(|port| first.carries(port));
        assert_eq!(carries, [false, true, true]);
        assert_eq!(first.state(0), "waiting");
        assert!(!others[0].0.carries(0), "the other end knows");
    }

    #[test]
    fn any_lacpdu_leaves_the_machines_whole() {
        let mut random = SplitMix::new(7);
        let mut lacp = Lacp::new(&options(1), 4);
        for step in 0..20_000_u64 {
            let now_ns = step * STEP_NS / 4;
            let port = usize::try_from(random.below(4)).unwrap();
            match random.below(8) {
                0 => lacp.set_link(port, random.happens(0.7), now_ns),
                1..=4 => {
                    let byte = |random: &mut SplitMix| u8::try_from(random.below(4)).unwrap();
                    let mut party = || Party {
                        system: [2, 0, 0, 0, 0, byte(&mut random)],
                        key: byte(&mut random).into(),
                        port: byte(&mut random).into(),
                        state: State(u8::try_from(random.below(256)).unwrap()),
                        ..Party::default()
                    };
                    let pdu = Pdu {
                        actor: party(),
                        partner: party(),
                        collector_delay: 0,
                    };
                    lacp.receive(port, &pdu, now_ns);
                }
                _ => {}
            }
            let mut sent = 0;
            lacp.poll(now_ns, &mut |_, _| sent += 1);
            assert!(sent <= 4);
            // Ports that carry frames are one group.
            let carrying: Vec<usize> = (0..4).filter(|port| lacp.carries(*port)).collect();
            let partners: Vec<_> = carrying.iter().map(|port| lacp.partner(*port)).collect();
            assert!(partners.windows(2).all(|pair| pair[0] == pair[1]));
            assert!(partners.len() <= 1 || partners[0].is_some());
            assert!(carrying.iter().all(|port| !lacp.is_looped(*port)));
        }
    }
}
