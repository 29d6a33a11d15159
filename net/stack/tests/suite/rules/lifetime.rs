//! Start and end of sessions: handshakes, floods, resets, closing, TIME-WAIT.

use crate::rules::common::{S, World, v4};
use crate::rules::peer::{ACK, FIN, PLAIN, Peer, RST, SYN};
use sidecore_net_stack::{SessionError, SessionState};
#[test]
fn rfc_5961_resets_and_syns_are_challenged() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    let mut reset = peer.segment(RST, &[]);
    reset.sequence += 10;
    peer.send(&reset);
    let out = peer.take();
    assert_eq!((out.len(), out[0].flags), (1, ACK), "section 3.2");
    let syn = peer.segment(SYN, &[]);
    peer.send(&syn);
    assert_eq!(peer.take()[0].flags, ACK, "section 4.2");
    let mut old = peer.segment(ACK, b"x");
    old.acknowledgment = old.acknowledgment.wrapping_sub(100_000);
    peer.send(&old);
    assert_eq!(peer.take()[0].flags, ACK, "section 5.2");
    assert_eq!(
        peer.stack.info(id).expect("open").unread,
        0,
        "its data is not taken"
    );
    assert_eq!(peer.state(id), SessionState::Established);
    let mut reset = peer.segment(RST, &[]);
    reset.sequence += 100_000_000;
    peer.send(&reset);
    assert_eq!(peer.take(), [], "outside the window");
    let reset = peer.segment(RST, &[]);
    peer.send(&reset);
    assert_eq!(peer.error(id), Some(SessionError::Reset));
}

#[test]
fn rfc_9293_3_6_both_ways_of_closing_end_in_time_wait() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    // Ours first: FIN-WAIT-1, FIN-WAIT-2, TIME-WAIT.
    let id = peer.open_at(listener, &PLAIN);
    peer.take();
    peer.stack.shutdown_write(id).expect("open");
    peer.flush();
    assert_eq!(peer.take()[0].flags, FIN | ACK);
    assert_eq!(peer.state(id), SessionState::FinWait1);
    peer.ack(1);
    assert_eq!(peer.state(id), SessionState::FinWait2);
    peer.data(b"late");
    let fin = peer.segment(FIN | ACK, &[]);
    peer.send(&fin);
    peer.sequence += 1;
    assert_eq!(
        peer.take().last().expect("some").acknowledgment,
        peer.sequence
    );
    assert_eq!(peer.state(id), SessionState::TimeWait);
    peer.send(&fin);
    assert_eq!(peer.take().len(), 1, "the FIN again: acknowledged again");
    let mut bytes = [0; 10];
    assert_eq!(peer.stack.read(id, &mut bytes).expect("data stays"), 4);
    peer.stack.close(id).expect("open");
    peer.run(61 * S);
    assert_eq!(peer.stack.sessions(), 0);
    // Theirs first: CLOSE-WAIT, LAST-ACK, gone.
    peer.port += 1;
    let id = peer.open_at(listener, &PLAIN);
    peer.take();
    let fin = peer.segment(FIN | ACK, &[]);
    peer.send(&fin);
    peer.sequence += 1;
    assert_eq!(peer.state(id), SessionState::CloseWait);
    peer.take();
    peer.stack.close(id).expect("open");
    peer.flush();
    assert_eq!(peer.take()[0].flags, FIN | ACK);
    peer.ack(1);
    assert_eq!(peer.stack.sessions(), 0);
    // At once: CLOSING.
    peer.port += 1;
    let id = peer.open_at(listener, &PLAIN);
    peer.take();
    peer.stack.shutdown_write(id).expect("open");
    peer.flush();
    let fin = peer.segment(FIN | ACK, &[]);
    peer.send(&fin);
    peer.sequence += 1;
    assert_eq!(peer.state(id), SessionState::Closing);
    peer.ack(1);
    assert_eq!(peer.state(id), SessionState::TimeWait);
}

#[test]
fn rfc_2525_2_17_closing_with_unread_data_resets() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.data(b"nobody reads this");
    peer.take();
    peer.stack.close(id).expect("open");
    peer.flush();
    assert!(peer.take()[0].flags & RST != 0);
    assert_eq!(peer.stack.sessions(), 0);
}

#[test]
fn rfc_6191_time_wait_gives_way_to_a_later_syn() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    let id = peer.open_at(listener, &PLAIN);
    peer.stack.close(id).expect("open");
    peer.flush();
    peer.ack(1);
    let fin = peer.segment(FIN | ACK, &[]);
    peer.send(&fin);
    peer.sequence += 1;
    peer.take();
    assert_eq!(peer.stack.sessions(), 1, "in TIME-WAIT");
    let mut syn = peer.segment(SYN, &[]);
    syn.sequence = peer.sequence.wrapping_sub(500);
    peer.send(&syn);
    assert_eq!(
        peer.take()[0].flags,
        ACK,
        "an earlier number: the old session answers"
    );
    syn.sequence = peer.sequence + 1000;
    peer.send(&syn);
    assert_eq!(peer.take()[0].flags, SYN | ACK);
}

#[test]
fn rfc_4987_3_6_a_flood_of_syns_is_answered_with_cookies_that_open_sessions() {
    let mut peer = Peer::new(|config| config.offers.timestamps = true);
    let listener = peer.listen();
    let options = |value: u32| {
        let mut options = vec![2, 4, 5, 180, 4, 2, 8, 10];
        options.extend(value.to_be_bytes());
        options.extend([0, 0, 0, 0, 1, 3, 3, 7]);
        options
    };
    for port in 10_000..12_000 {
        let mut syn = peer.segment(SYN, &[]);
        syn.port = port;
        syn.options = options(7);
        peer.send(&syn);
    }
    assert!(peer.stack.counters().cookies_sent > 1900);
    assert!(peer.stack.sessions() <= 64, "embryos are bounded");
    let answer = peer.take().pop().expect("the last SYN's answer");
    assert_eq!((answer.port, answer.flags), (11_999, SYN | ACK));
    let sent_stamp = &answer.options[8..12];
    peer.port = 11_999;
    peer.sequence += 1;
    peer.acknowledgment = answer.sequence.wrapping_add(1);
    let mut ack = peer.segment(ACK, b"hello");
    ack.options = [&[1, 1, 8, 10, 0, 0, 0, 9][..], sent_stamp].concat();
    peer.send(&ack);
    let id = peer
        .stack
        .accept(listener)
        .expect("open")
        .expect("the cookie's session");
    let info = peer.stack.info(id).expect("open");
    assert_eq!(info.unread, 5);
    assert_eq!(
        (info.scales, info.sack, info.timestamps),
        ((7, 8), true, true)
    );
    assert_eq!(info.mss, 1448);
    // A forged one does not.
    let mut forged = ack.clone();
    forged.port = 11_998;
    forged.acknowledgment = forged.acknowledgment.wrapping_add(77);
    peer.take();
    peer.send(&forged);
    assert!(peer.take()[0].flags & RST != 0);
    assert!(peer.stack.accept(listener).expect("open").is_none());
}

#[test]
fn rfc_9293_3_5_both_may_open_at_once() {
    let mut world = World::new(9);
    let one = world.stacks[0]
        .connect(v4(2, 5000), Some(v4(1, 6000)))
        .expect("connects");
    let two = world.stacks[1]
        .connect(v4(1, 6000), Some(v4(2, 5000)))
        .expect("connects");
    world.run(S);
    for (end, id) in [(0, one), (1, two)] {
        let info = world.stacks[end].info(id).expect("open");
        assert_eq!(info.state, SessionState::Established, "end {end}");
    }
    world.stacks[0].write(one, b"hello").expect("open");
    world.run(S);
    let mut bytes = [0; 10];
    assert_eq!(world.stacks[1].read(two, &mut bytes).expect("open"), 5);
}

#[test]
fn an_embryo_whose_listener_is_gone_is_reset() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    let syn = peer.segment(SYN, &[]);
    peer.send(&syn);
    let answer = peer.take().remove(0);
    peer.stack.close_listener(listener).expect("listens");
    peer.sequence += 1;
    peer.acknowledgment = answer.sequence.wrapping_add(1);
    peer.ack(0);
    assert!(peer.take()[0].flags & RST != 0);
    assert_eq!(peer.stack.sessions(), 0);
}

/// Its number is a reused slot, otherwise each such listener would leak memory.
#[test]
fn a_listener_that_is_closed_with_half_open_sessions_gives_its_slot_back_with_the_last() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    for port in 0..2 {
        peer.port = 4000 + port;
        let syn = peer.segment(SYN, &[]);
        peer.send(&syn);
    }
    peer.stack.close_listener(listener).expect("open");
    let slot = |id| format!("{id:?}").split(',').next().map(str::to_owned);
    let first = peer.listen();
    assert_ne!(
        slot(first),
        slot(listener),
        "half-open sessions still name it"
    );
    peer.stack.close_listener(first).expect("open");
    for port in 0..2 {
        peer.port = 4000 + port;
        let mut reset = peer.segment(RST, &[]);
        reset.sequence += 1;
        peer.send(&reset);
    }
    let ids = [
        peer.listen(),
        peer.stack.listen(v4(1, 81), 4).expect("listens"),
    ];
    let mut slots = ids.map(slot);
    slots.sort();
    assert_eq!(slots, [slot(listener), slot(first)]);
}
