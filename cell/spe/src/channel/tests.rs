//! Channels as programs see them: counts, tags, events, commands.

use super::*;
use crate::switch::address;

#[test]
fn the_decrementer_passes_zero_and_goes_on() {
    let mail = Mail::new();
    let mut channels = Channels::new([false; 2]);
    channels.event_mask = event::DECREMENTER;
    channels.decrementer = (Instant::now() - Duration::from_millis(1), 10);
    channels.decrementer_armed = true;
    assert_eq!(channels.count(&mail, 0), Outcome::Value(1));
    assert_eq!(
        channels.read(&mail, 0),
        Outcome::Value(event::DECREMENTER.into())
    );
    // At 79.8 MHz a millisecond is far below zero, and nothing is raised before it is again.
    let Outcome::Value(value) = channels.read(&mail, 8) else {
        panic!("it can always be read")
    };
    assert!(value > u64::from(u32::MAX) / 2, "{value}");
    assert_eq!(channels.count(&mail, 0), Outcome::Value(0));
    // Two more rounds of 53.8 seconds: one event again, and the value goes on in between.
    let _ = channels.write(&Store::new().unwrap(), &mail, 2, event::DECREMENTER);
    channels.decrementer.0 -= Duration::from_secs(109);
    let before = channels.decrementer_value();
    assert_eq!(channels.count(&mail, 0), Outcome::Value(1));
    let ticks = before.wrapping_sub(channels.decrementer_value());
    assert!(ticks < TIME_BASE as u32, "{ticks}");
    assert_eq!(
        channels.read(&mail, 0),
        Outcome::Value(event::DECREMENTER.into())
    );
    assert_eq!(channels.count(&mail, 0), Outcome::Value(0));
    // From the largest value it passes zero after 53 seconds, not now.
    channels.decrementer = (Instant::now(), u32::MAX);
    channels.decrementer_armed = true;
    let Outcome::Blocked(Some(at)) = channels.read(&mail, 0) else {
        panic!("an event is waited for")
    };
    let seconds = (at - Instant::now()).as_secs();
    assert!((45..54).contains(&seconds), "{seconds}");
}

#[test]
fn a_signal_that_came_and_went_is_an_event() {
    let mail = Mail::new();
    let mut channels = Channels::new([true, false]);
    channels.event_mask = event::SIGNAL_1 | event::SIGNAL_2;
    channels.signal(0, 1);
    channels.signal(0, 4);
    channels.signal(1, 1);
    channels.signal(1, 4);
    assert_eq!(channels.read(&mail, 3), Outcome::Value(5));
    assert_eq!(channels.read(&mail, 4), Outcome::Value(4));
    assert_eq!(channels.read(&mail, 4), Outcome::Blocked(None));
    let both = u64::from(event::SIGNAL_1 | event::SIGNAL_2);
    assert_eq!(channels.read(&mail, 0), Outcome::Value(both));
    assert_eq!(channels.count(&mail, 0), Outcome::Value(0));
}

const TAG_MASK: u64 = 22;
const TAG_UPDATE: u64 = 23;
const TAG_STATUS: u64 = 24;

/// A program's side: channels, mailboxes, a store.
struct Spu {
    channels: Channels,
    mail: Mail,
    store: Store,
}

impl Spu {
    fn new() -> Spu {
        crate::fault::install();
        Spu {
            channels: Channels::new([false; 2]),
            mail: Mail::new(),
            store: Store::new().unwrap(),
        }
    }

    fn read(&mut self, channel: u64) -> Outcome {
        self.channels.read(&self.mail, channel)
    }

    fn write(&mut self, channel: u64, value: u32) -> Outcome {
        self.channels.write(&self.store, &self.mail, channel, value)
    }

    fn count(&mut self, channel: u64) -> Outcome {
        self.channels.count(&self.mail, channel)
    }

    /// A command by its channels, as a program writes them.
    fn command(&mut self, code: u32, lsa: u32, ea: u64, size: u32, tag: u32) -> Outcome {
        let words = [lsa, (ea >> 32) as u32, ea as u32, size, tag];
        for (channel, word) in (16..).zip(words) {
            assert_eq!(self.write(channel, word), DONE);
        }
        self.write(21, code)
    }

    /// Stalls a list of tag `tag` that gets 16 bytes from `from`.
    fn stall(&mut self, from: u64, tag: u32) {
        self.store.set_word(0x100, 16 | 1 << 31);
        self.store.set_word(0x104, from as u32);
        let list = from & !0xffff_ffff | 0x100;
        assert_eq!(self.command(0x44, 0x1000, list, 8, tag), DONE);
    }
}

#[repr(align(128))]
struct Memory([u8; 256]);

fn value(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Value(value) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn channels_that_are_none_end_the_program() {
    let mut spu = Spu::new();
    for channel in [
        1,
        2,
        5,
        6,
        7,
        9,
        10,
        13,
        14,
        16,
        21,
        22,
        23,
        26,
        28,
        30,
        31,
        77,
        u64::MAX,
    ] {
        assert_eq!(spu.read(channel), BAD, "{channel}");
    }
    for channel in [
        0,
        3,
        4,
        5,
        6,
        8,
        10,
        11,
        12,
        13,
        15,
        24,
        25,
        27,
        29,
        31,
        u64::MAX,
    ] {
        assert_eq!(spu.write(channel, 0), BAD, "{channel}");
    }
    for channel in [5, 6, 10, 31, u64::MAX] {
        assert_eq!(spu.count(channel), BAD, "{channel}");
    }
}

#[test]
fn counts_are_the_hardwares_when_nothing_happened() {
    let mut spu = Spu::new();
    let counts = [
        (0, 0),
        (3, 0),
        (4, 0),
        (21, 16),
        (TAG_UPDATE, 1),
        (TAG_STATUS, 0),
        (25, 0),
        (27, 0),
        (28, 1),
        (29, 0),
        (30, 1),
    ];
    for (channel, count) in counts {
        assert_eq!(spu.count(channel), Outcome::Value(count), "{channel}");
    }
    for channel in [1, 2, 7, 8, 9, 11, 12, 14, 15, 16, 17, 18, 19, 20, 22, 26] {
        assert_eq!(spu.count(channel), Outcome::Value(1), "{channel}");
    }
}

#[test]
fn a_register_keeps_what_was_written() {
    let mut spu = Spu::new();
    spu.write(14, 0xffff_fff1);
    spu.write(1, 0x30);
    spu.write(TAG_MASK, 0x8000_0001);
    assert_eq!(spu.read(15), Outcome::Value(0xffff_fff1));
    assert_eq!(spu.read(11), Outcome::Value(0x30));
    assert_eq!(spu.read(12), Outcome::Value(0x8000_0001));
}

#[test]
fn a_command_takes_its_parameters_from_the_channels() {
    let mut spu = Spu::new();
    let memory = Box::new(Memory([7; 256]));
    let ea = address(memory.0.as_ptr());
    assert_eq!(spu.command(0x40, 0x1000, ea, 16, 2), DONE);
    assert_eq!(spu.store.word(0x100c), 0x0707_0707);
    // The size has 16 bits.
    assert_eq!(spu.command(0x40, 0x2000, ea, 0x5_0010, 2), DONE);
    assert_eq!(
        (spu.store.word(0x200c), spu.store.word(0x2010)),
        (0x0707_0707, 0)
    );
    // The high half of the address is the last command's only if it is written again.
    let low = ea as u32;
    for (channel, word) in [(16, 0x3000), (18, low), (19, 16), (20, 2)] {
        spu.write(channel, word);
    }
    let refused = spu.write(21, 0x40);
    assert_eq!(
        refused,
        Outcome::Stopped(Stop::Exception(crate::mfc::DMA_STORAGE))
    );
    // A command that is none ends the program.
    let refused = spu.command(0x99, 0, ea, 16, 2);
    assert_eq!(
        refused,
        Outcome::Stopped(Stop::Exception(crate::mfc::INVALID_DMA))
    );
}

#[test]
fn tag_status_comes_by_its_condition() {
    let mut spu = Spu::new();
    let memory = Box::new(Memory([7; 256]));
    let ea = address(memory.0.as_ptr());
    spu.write(TAG_MASK, 0b1010);
    // Nothing was asked for.
    assert_eq!(spu.read(TAG_STATUS), Outcome::Blocked(None));
    for condition in [0, 1, 2] {
        spu.write(TAG_UPDATE, condition);
        assert_eq!(spu.count(TAG_STATUS), Outcome::Value(1));
        assert_eq!(spu.read(TAG_STATUS), Outcome::Value(0b1010), "{condition}");
        assert_eq!(spu.count(TAG_STATUS), Outcome::Value(0));
    }
    // Of two tags one is under way.
    spu.stall(ea, 3);
    spu.write(TAG_UPDATE, 0);
    assert_eq!(spu.read(TAG_STATUS), Outcome::Value(0b0010));
    spu.write(TAG_UPDATE, 1);
    assert_eq!(spu.read(TAG_STATUS), Outcome::Value(0b0010));
    spu.write(TAG_UPDATE, 2);
    assert_eq!(
        (spu.read(TAG_STATUS), spu.count(TAG_STATUS)),
        (Outcome::Blocked(None), DONE)
    );
    // Any of none that is done.
    spu.write(TAG_MASK, 0b1000);
    spu.write(TAG_UPDATE, 1);
    assert_eq!(spu.read(TAG_STATUS), Outcome::Blocked(None));
    assert_eq!(spu.write(26, 3), DONE);
    assert_eq!(spu.read(TAG_STATUS), Outcome::Value(0b1000));
    // Of no tag at all every condition holds at once.
    spu.write(TAG_MASK, 0);
    for condition in [0, 1, 2] {
        spu.write(TAG_UPDATE, condition);
        assert_eq!(spu.read(TAG_STATUS), Outcome::Value(0));
    }
}

#[test]
fn stalls_are_read_once_and_acknowledged() {
    let mut spu = Spu::new();
    let memory = Box::new(Memory([7; 256]));
    let ea = address(memory.0.as_ptr());
    assert_eq!(spu.read(25), Outcome::Blocked(None));
    spu.write(1, event::LIST_STALL);
    spu.stall(ea, 5);
    assert_eq!(spu.count(25), Outcome::Value(1));
    assert_eq!(value(spu.read(0)), event::LIST_STALL.into());
    assert_eq!(value(spu.read(25)), 1 << 5);
    assert_eq!(spu.read(25), Outcome::Blocked(None));
    assert_eq!(spu.count(21), Outcome::Value(15));
    assert_eq!(spu.write(26, 5), DONE);
    assert_eq!(spu.count(21), Outcome::Value(16));
    // A tag above 31 is taken modulo 32, one without a stall changes nothing.
    assert_eq!(spu.write(26, 32 + 6), DONE);
}

#[test]
fn a_full_queue_blocks_a_command() {
    let mut spu = Spu::new();
    let memory = Box::new(Memory([7; 256]));
    let ea = address(memory.0.as_ptr());
    spu.stall(ea, 1);
    for _ in 0..15 {
        assert_eq!(spu.command(0x42, 0x2000, ea, 16, 1), DONE);
    }
    assert_eq!(spu.count(21), Outcome::Value(0));
    assert_eq!(spu.command(0x42, 0x2000, ea, 16, 1), Outcome::Blocked(None));
    spu.write(1, event::QUEUE);
    assert_eq!(spu.write(26, 1), DONE);
    assert_eq!(spu.count(21), Outcome::Value(16));
    // That a place came free is an event.
    assert_eq!(value(spu.read(0)), event::QUEUE.into());
    assert_eq!(spu.write(21, 0x42), DONE);
}

#[test]
fn events_are_masked_read_and_acknowledged() {
    let mut spu = Spu::new();
    spu.channels.signal(0, 1);
    // Not let through by the mask: no count, but remembered.
    assert_eq!(spu.count(0), Outcome::Value(0));
    spu.write(1, event::SIGNAL_1);
    assert_eq!(spu.count(0), Outcome::Value(1));
    assert_eq!(value(spu.read(0)), event::SIGNAL_1.into());
    // Read, and not acknowledged: it is there again where the mask is written.
    assert_eq!(spu.read(0), Outcome::Blocked(None));
    spu.write(1, event::SIGNAL_1);
    assert_eq!(spu.count(0), Outcome::Value(1));
    spu.write(2, event::SIGNAL_1);
    assert_eq!(spu.count(0), Outcome::Value(0));
    // The signal is still there, and no new event.
    assert_eq!(spu.read(0), Outcome::Blocked(None));
    assert_eq!(spu.read(3), Outcome::Value(1));
    spu.channels.signal(0, 2);
    assert_eq!(spu.count(0), Outcome::Value(1));
}

#[test]
fn a_synchronisation_is_an_event_at_once() {
    let mut spu = Spu::new();
    spu.write(1, event::SYNC);
    assert_eq!(spu.write(9, 0), DONE);
    assert_eq!(value(spu.read(0)), event::SYNC.into());
}

#[test]
fn a_decrementer_that_is_acknowledged_while_masked_stops() {
    let mut spu = Spu::new();
    spu.write(7, 10);
    spu.write(2, event::DECREMENTER);
    std::thread::sleep(Duration::from_millis(1));
    spu.write(1, event::DECREMENTER);
    assert_eq!(spu.count(0), Outcome::Value(0));
    // A wait for it has no end that could be waited for.
    assert_eq!(spu.read(0), Outcome::Blocked(None));
}

#[test]
fn a_lost_reservation_is_found_by_looking() {
    let mut spu = Spu::new();
    let mut memory = Box::new(Memory([7; 256]));
    let ea = address(memory.0.as_ptr());
    spu.write(1, event::RESERVATION);
    assert_eq!(spu.command(0xd0, 0x1000, ea, 0, 0), DONE);
    assert_eq!(
        (spu.count(27), spu.read(27)),
        (Outcome::Value(1), Outcome::Value(4))
    );
    assert_eq!(spu.read(27), Outcome::Blocked(None));
    let Outcome::Blocked(Some(look)) = spu.read(0) else {
        panic!("it is to be looked at again");
    };
    assert!(look > Instant::now() - LINE_LOOK);
    memory.0[3] = 8;
    assert_eq!(value(spu.read(0)), event::RESERVATION.into());
    // It is lost once.
    assert_eq!(spu.read(0), Outcome::Blocked(None));
}

#[test]
fn an_interrupt_comes_by_the_mask() {
    let mut spu = Spu::new();
    assert_eq!(spu.channels.interrupts(&spu.mail), (false, None));
    spu.mail.push(1);
    assert_eq!(spu.channels.interrupts(&spu.mail), (false, None));
    spu.write(1, crate::mail::event::IN_MAILBOX);
    assert_eq!(spu.channels.interrupts(&spu.mail), (true, None));
    // Looking takes nothing away.
    assert_eq!(spu.count(0), Outcome::Value(1));
    spu.write(1, event::DECREMENTER);
    spu.write(7, u32::MAX);
    let (comes, next) = spu.channels.interrupts(&spu.mail);
    assert!(!comes && next.is_some());
}

#[test]
fn mailboxes_block_where_they_are_full_or_empty() {
    let mut spu = Spu::new();
    assert_eq!(spu.read(29), Outcome::Blocked(None));
    assert_eq!(
        (spu.write(28, 5), spu.write(28, 6)),
        (DONE, Outcome::Blocked(None))
    );
    assert_eq!(
        (spu.write(30, 7), spu.write(30, 8)),
        (DONE, Outcome::Blocked(None))
    );
    assert_eq!((spu.count(28), spu.count(30)), (DONE, DONE));
    assert_eq!(
        (spu.mail.take_out(), spu.mail.take_interrupt()),
        (Some(5), Some(7))
    );
    spu.mail.push(9);
    assert_eq!(
        (spu.count(29), spu.read(29)),
        (Outcome::Value(1), Outcome::Value(9))
    );
}
