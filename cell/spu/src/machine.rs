//! The machine: registers, the program counter, and the loop that runs instructions from a store.
//!
//! Must stay true: every instruction is read from the store when it runs, so that code which a
//! program or a transfer has changed is the code that runs; what is kept of it is its decoding.
//! Addresses are masked as by a store of 256 KiB.

use crate::isa::{Compute, Op, decode};
use crate::registers::{Fields, MASK, Quadword, STORE_BYTES, Store, bits};
use crate::translate::Frame;
use sidecore_bare::width::ToUsize;

/// Number of a channel, below 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Channel(pub u8);

impl Channel {
    /// 1 while interrupts are enabled; the machine's own.
    pub const MACHINE_STATUS: Self = Self(13);
    /// Sets the address that an interrupt returns to; the machine's own.
    pub const WRITE_RETURN: Self = Self(14);
    /// Reads that address; the machine's own.
    pub const READ_RETURN: Self = Self(15);
}

/// The channels of a machine. Nothing here may block: an operation that has to wait says so.
pub trait Channels {
    /// The value of a channel; nothing where it has none yet.
    fn read(&mut self, channel: Channel) -> Option<u32>;
    /// Writes a value; false where there is no room yet.
    fn write(&mut self, channel: Channel, value: u32) -> bool;
    /// Operations that a channel takes without waiting.
    fn count(&mut self, channel: Channel) -> u32;
}

/// Why the machine came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// As many instructions ran as were asked for.
    Budget,
    /// A channel is read or counted: [`Machine::answer`] gives the value, and goes on.
    Read(Channel),
    /// See [`Exit::Read`].
    Count(Channel),
    /// A value is written to a channel: [`Machine::answer`] with any value goes on.
    Write(Channel, u32),
    /// `stop` with its code of 14 bits, or `stopd`; the program counter is behind it.
    Stop(u32),
    /// A comparison halted the program.
    Halt,
    /// A word that is no instruction; the program counter is at it.
    Invalid(u32),
}

/// A word that ran, decoded.
#[derive(Debug, Clone, Copy)]
struct Decoded {
    word: u32,
    fields: Fields,
    /// Nothing where the word is no instruction.
    op: Option<Op>,
    compute: Option<Compute>,
}

impl Decoded {
    fn new(word: u32) -> Self {
        let (row, fields) = decode(word).unzip();
        Self {
            word,
            fields: fields.unwrap_or_default(),
            op: row.map(|row| row.op),
            compute: row.and_then(|row| row.compute),
        }
    }
}

/// An SPU without its store and its channels.
pub struct Machine {
    frame: Frame,
    /// The address at which an interrupt came.
    return_to: u32,
    interrupts: bool,
    /// An event waits: `bisled` branches, and an interrupt comes where they are enabled.
    event: bool,
    /// Register that an answer goes to.
    asked: Option<u8>,
    decoded: Box<[Decoded]>,
    executed: u64,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_struct("Machine");
        all.field("pc", &self.frame.pc)
            .field("executed", &self.executed);
        all.finish_non_exhaustive()
    }
}

impl Machine {
    /// A machine at an entry, all registers 0.
    #[must_use]
    pub fn new(entry: u32) -> Self {
        Self {
            frame: Frame::new(entry & MASK & !3),
            return_to: 0,
            interrupts: false,
            event: false,
            asked: None,
            decoded: vec![Decoded::new(0); STORE_BYTES / 4].into_boxed_slice(),
            executed: 0,
        }
    }

    /// A register's value; numbers count modulo 128.
    #[must_use]
    pub fn register(&self, number: u8) -> Quadword {
        self.frame.state.get(number)
    }

    /// Sets a register; numbers count modulo 128.
    pub fn set_register(&mut self, number: u8, value: Quadword) {
        self.frame.state.set(number, value);
    }

    /// The status register of floats.
    #[must_use]
    pub fn float_status(&self) -> Quadword {
        self.frame.state.status()
    }

    /// Address of the next instruction.
    #[must_use]
    pub fn pc(&self) -> u32 {
        self.frame.pc
    }

    /// Goes on elsewhere.
    pub fn set_pc(&mut self, address: u32) {
        self.frame.pc = address & MASK & !3;
        self.asked = None;
    }

    /// Instructions that ran.
    #[must_use]
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// True while interrupts are enabled.
    #[must_use]
    pub fn interrupts(&self) -> bool {
        self.interrupts
    }

    /// Says whether an event waits.
    pub fn set_event(&mut self, waits: bool) {
        self.event = waits;
    }

    /// Address to which an interrupt returns.
    #[must_use]
    pub fn return_to(&self) -> u32 {
        self.return_to
    }

    /// Sets that address.
    pub fn set_return_to(&mut self, address: u32) {
        self.return_to = address & MASK & !3;
    }

    /// True where an interrupt comes before the next instruction.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.event && self.interrupts
    }

    /// The registers as translated code has them.
    pub fn frame(&mut self) -> &mut Frame {
        &mut self.frame
    }

    /// Counts instructions that translated code ran.
    pub fn ran(&mut self, count: u64) {
        self.executed += count;
    }

    /// Answers the channel's operation that the machine came back with; without one, nothing.
    pub fn answer(&mut self, value: u32) {
        if let Some(register) = self.asked.take() {
            // A channel's value comes in the preferred slot; the other words become 0.
            self.frame.state.set(register, Quadword([value, 0, 0, 0]));
        }
    }

    /// Runs until something is asked, or `budget` instructions have run.
    pub fn run(&mut self, store: &mut impl Store, budget: u64) -> Exit {
        for count in 0..budget {
            if self.interrupted() {
                self.interrupts = false;
                // No further one until the program enables them again: there is one address to
                // return to.
                self.return_to = self.frame.pc;
                self.frame.pc = 0;
            }
            let place = (self.frame.pc >> 2).to_usize();
            let word = store.fetch(self.frame.pc);
            // The word itself is the key, so that changed code is decoded anew.
            if self.decoded[place].word != word {
                self.decoded[place] = Decoded::new(word);
            }
            let decoded = &self.decoded[place];
            if let Some(compute) = decoded.compute {
                compute(&mut self.frame.state, &decoded.fields);
                self.frame.pc = (self.frame.pc + 4) & MASK;
                continue;
            }
            let Decoded { op, fields, .. } = *decoded;
            let exit = match op {
                Some(op) => self.control(store, op, &fields, word),
                None => Some(Exit::Invalid(word)),
            };
            if let Some(exit) = exit {
                // The one that asks has run, too.
                self.executed += count + 1;
                return exit;
            }
        }
        self.executed += budget;
        Exit::Budget
    }

    /// Runs one that touches more than registers; the program counter goes on.
    fn control(
        &mut self,
        store: &mut impl Store,
        op: Op,
        fields: &Fields,
        word: u32,
    ) -> Option<Exit> {
        let next = (self.frame.pc + 4) & MASK;
        if let Some(address) = self.address(op, fields) {
            match op {
                Op::Lqd | Op::Lqx | Op::Lqa | Op::Lqr => {
                    // The last four bits of an address do not count.
                    self.frame
                        .state
                        .set(fields.rt, store.load(address & MASK & !15));
                }
                _ => store.save(address & MASK & !15, self.frame.state.get(fields.rt)),
            }
            self.frame.pc = next;
            return None;
        }
        if let Some(taken) = self.branch(op, fields) {
            // Before the link is written, which may go to the register of the target.
            let to = self.target(op, fields);
            if matches!(op, Op::Brsl | Op::Brasl | Op::Bisl | Op::Bisled) {
                self.frame.state.set(fields.rt, Quadword([next, 0, 0, 0]));
            }
            self.frame.pc = if taken { to & MASK & !3 } else { next };
            return None;
        }
        let channel = Channel(fields.ra);
        let exit = match op {
            Op::Stop => Exit::Stop(word & 0x3fff),
            Op::Stopd => Exit::Stop(0x3fff),
            Op::Rdch => Exit::Read(channel),
            Op::Rchcnt => Exit::Count(channel),
            Op::Wrch => Exit::Write(channel, self.frame.state.word(fields.rt)),
            _ if self.halts(op, fields) => Exit::Halt,
            _ => {
                self.frame.pc = next;
                return None;
            }
        };
        // Before the machine's own channels, which answer through it.
        self.asked = matches!(op, Op::Rdch | Op::Rchcnt).then_some(fields.rt);
        // Moved on now: the answer may come much later.
        self.frame.pc = next;
        self.own_channel(exit)
    }

    /// Does an operation on a channel that is the machine's own; gives the others back.
    fn own_channel(&mut self, exit: Exit) -> Option<Exit> {
        match exit {
            Exit::Read(Channel::MACHINE_STATUS) => self.answer(self.interrupts.into()),
            Exit::Read(Channel::READ_RETURN) => self.answer(self.return_to),
            Exit::Write(Channel::WRITE_RETURN, value) => self.set_return_to(value),
            Exit::Count(Channel::MACHINE_STATUS | Channel::READ_RETURN | Channel::WRITE_RETURN) => {
                // These three never wait.
                self.answer(1)
            }
            _ => return Some(exit),
        }
        None
    }

    /// The address of a load or a store.
    fn address(&self, op: Op, fields: &Fields) -> Option<u32> {
        let number = bits(fields.immediate);
        match op {
            Op::Lqd | Op::Stqd => Some(self.frame.state.word(fields.ra).wrapping_add(number << 4)),
            Op::Lqx | Op::Stqx => Some(
                self.frame
                    .state
                    .word(fields.ra)
                    .wrapping_add(self.frame.state.word(fields.rb)),
            ),
            Op::Lqa | Op::Stqa => Some(number << 2),
            Op::Lqr | Op::Stqr => Some(self.frame.pc.wrapping_add(number << 2)),
            _ => None,
        }
    }

    /// For a branch: true where it is taken. Its feature bits act on interrupts.
    fn branch(&mut self, op: Op, fields: &Fields) -> Option<bool> {
        let word = self.frame.state.word(fields.rt);
        let half = word & 0xffff;
        let taken = match op {
            Op::Br | Op::Bra | Op::Brsl | Op::Brasl | Op::Bi | Op::Bisl | Op::Iret => true,
            Op::Bisled => self.event,
            Op::Brnz | Op::Binz => word != 0,
            Op::Brz | Op::Biz => word == 0,
            Op::Brhnz | Op::Bihnz => half != 0,
            Op::Brhz | Op::Bihz => half == 0,
            _ => return None,
        };
        let indirect = fields.rb;
        // A branch that is not taken leaves interrupts as they are.
        if taken && indirect & DISABLE != 0 {
            self.interrupts = false;
        } else if taken && indirect & ENABLE != 0 {
            self.interrupts = true;
        }
        Some(taken)
    }

    fn target(&self, op: Op, fields: &Fields) -> u32 {
        let number = bits(fields.immediate) << 2;
        match op {
            Op::Bra | Op::Brasl => number,
            Op::Br | Op::Brsl | Op::Brnz | Op::Brz | Op::Brhnz | Op::Brhz => {
                self.frame.pc.wrapping_add(number)
            }
            Op::Iret => self.return_to,
            _ => self.frame.state.word(fields.ra),
        }
    }

    fn halts(&self, op: Op, fields: &Fields) -> bool {
        let (a, b) = (
            self.frame.state.word(fields.ra),
            self.frame.state.word(fields.rb),
        );
        let number = bits(fields.immediate);
        let greater = |a: u32, b: u32| a.cast_signed() > b.cast_signed();
        match op {
            Op::Heq => a == b,
            Op::Heqi => a == number,
            Op::Hgt => greater(a, b),
            Op::Hgti => greater(a, number),
            Op::Hlgt => a > b,
            Op::Hlgti => a > number,
            _ => false,
        }
    }
}

impl Machine {
    /// Runs with channels until the program stops, waits at a channel, or `budget` instructions
    /// ran. Where it waits, the operation is the exit, and [`Machine::answer`] goes on behind it.
    pub fn run_with(
        &mut self,
        store: &mut impl Store,
        channels: &mut impl Channels,
        budget: u64,
    ) -> Exit {
        let end = self.executed() + budget;
        loop {
            let exit = self.run(store, end - self.executed());
            let answer = match exit {
                Exit::Read(channel) => channels.read(channel),
                Exit::Count(channel) => Some(channels.count(channel)),
                Exit::Write(channel, value) => channels.write(channel, value).then_some(0),
                _ => None,
            };
            match answer {
                Some(value) => self.answer(value),
                None => return exit,
            }
        }
    }
}

/// Feature bits of branches to registers, in the field of RB.
const DISABLE: u8 = 0x20;
const ENABLE: u8 = 0x10;
