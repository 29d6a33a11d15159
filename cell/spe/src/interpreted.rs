//! Programs of the SPU itself: a machine of their own in the place of the gate.
//!
//! A context whose program is an executable of the SPU has a machine of `sidecore-spu`. The engine
//! runs it until it asks for something, and serves that as it serves a call of the gate: the same
//! channels, the same commands, the same store. Blocks of the program are translated where the
//! processor and SIDECORE_SPE_SPU let them be, and interpreted elsewhere.
//!
//! Must stay true: the engine that has the context is the only one to run its machine. Words of the
//! store have the most significant byte first, and so have the MFC's lists and callbacks.

use crate::channel::Channels;
use crate::engine::Request;
use crate::mail::Mail;
use crate::store::Store;
use crate::switch::low;
use crate::translated::{self, Translated, Words};
use sidecore_spu::{Executable, Exit, Machine, Quadword};

/// A program of the SPU in a context.
#[derive(Debug)]
pub(crate) struct Interpreted {
    machine: Machine,
    /// Nothing where the program is interpreted.
    translated: Option<Translated>,
    end: usize,
}

/// Stack pointer that a program begins with: the last quadwords of the store are the caller's
/// frame.
pub(crate) const STACK_TOP: u32 = 0x3_ffd0;
/// Instructions between two looks at what else waits for the engine.
const SLICE: u64 = 50_000;
/// Operations of the gate.
const READ: u64 = 1;
const WRITE: u64 = 2;
const COUNT: u64 = 3;
const STOP: u64 = 4;
const HALT: u64 = 6;
/// One that no program has.
const NONE: u64 = 0xff;
/// A channel that a look at the engine's other work counts: it never waits.
const TAG_MASK: u64 = 22;

impl Interpreted {
    /// Copies a program into a store.
    pub(crate) fn load(program: &Executable<'_>, store: &Store) -> Self {
        store.clear();
        for (address, bytes) in program.parts() {
            // Checked by the program's reader.
            store.write(address, bytes);
        }
        Self {
            machine: Machine::new(program.entry()),
            // Without room for code the program is interpreted.
            translated: if translated::is_wanted() {
                Translated::new().ok()
            } else {
                None
            },
            end: program.end(),
        }
    }

    /// Begins at an entry with the registers that libspe2 gives: three numbers, or the user's three
    /// quadwords.
    pub(crate) fn begin(&mut self, entry: u32, numbers: [u64; 3], user: Option<&[u8; 48]>) {
        self.machine = Machine::new(entry);
        let room = STACK_TOP.saturating_sub(u32::try_from(self.end).unwrap_or(STACK_TOP));
        self.machine
            .set_register(1, Quadword([STACK_TOP, room, 0, 0]));
        for (register, word) in (3..).zip(numbers) {
            let value = Quadword([low(word >> 32), low(word), 0, 0]);
            self.machine.set_register(register, value);
        }
        let given = user.into_iter().flat_map(|all| all.chunks_exact(16));
        for (register, bytes) in (3..).zip(given) {
            // The host wrote numbers: words of this machine's order.
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            self.machine.set_register(register, Quadword(words));
        }
    }

    /// The address of the next instruction.
    pub(crate) fn pc(&self) -> u32 {
        self.machine.pc()
    }

    /// Steps over the word behind a `stop`, which was a callback's message.
    pub(crate) fn step_over(&mut self) {
        self.machine.set_pc(self.machine.pc() + 4);
    }

    /// Gives the answer to the last request and runs to the next one. `event` says whether an event
    /// waits that the program's mask lets through.
    pub(crate) fn run(&mut self, store: &Store, answer: u64, event: bool) -> Request {
        self.machine.answer(low(answer));
        self.machine.set_event(event);
        // SAFETY: the store is mapped as long as it lives, and aligned to its size; nothing has
        // references into it.
        let mut words = unsafe { Words::new(store.base() as *mut u8) };
        let exit = match &mut self.translated {
            Some(translated) => translated.run(&mut self.machine, &mut words, SLICE),
            None => self.machine.run(&mut words, SLICE),
        };
        let (op, args) = match exit {
            Exit::Budget => (COUNT, [TAG_MASK, 0]),
            Exit::Read(channel) => (READ, [channel.0.into(), 0]),
            Exit::Count(channel) => (COUNT, [channel.0.into(), 0]),
            Exit::Write(channel, value) => (WRITE, [channel.0.into(), value.into()]),
            // The word behind the instruction is a callback's message.
            Exit::Stop(code) => (STOP, [code.into(), self.machine.pc().into()]),
            Exit::Halt => (HALT, [0, 0]),
            Exit::Invalid(word) => {
                let pc = self.machine.pc();
                eprintln!("libspe2: {word:#010x} at {pc:#07x} is no instruction of the SPU");
                (NONE, [0, 0])
            }
        };
        Request {
            op,
            args: [args[0], args[1], 0, 0],
        }
    }

    /// True where an event waits that the mask lets through.
    pub(crate) fn event(channels: &mut Channels, mail: &Mail) -> bool {
        channels.interrupts(mail).0
    }
}
