//! Runs translated code of the SPU's own programs: memory for it, and the way in and out.
//!
//! The code is `sidecore_spu::translate`'s. Its memory is mapped twice, once writable and once
//! executable, so that no page is both. A block lies there until the room is used up; then all are
//! forgotten. A block whose words in the store changed is translated again, and interpreted once
//! that has happened often.
//!
//! Must stay true: one thread at a time has a value of this type and enters its code. No code is
//! written while it runs. Source: mmap(2), mremap(2); Intel 64 and IA-32 Architectures
//! Software Developer's Manual, volume 3, section 9.1.3, for code that is written anew.

use sidecore_bare::width::ToUsize;
use sidecore_spu::translate::{self, BLOCK_BYTES_MAX, Frame, Left};
use sidecore_spu::{Exit, Machine, Quadword, STORE_BYTES};
use std::io;
use std::sync::OnceLock;

/// Bytes of code that a context keeps.
const CODE_BYTES: usize = 4 << 20;
/// Changes after which a block is only interpreted.
const CHANGES_MAX: u8 = 16;
/// Instructions that are interpreted of such a block.
const INTERPRETED: u64 = 16;

/// A local store as programs of the SPU see it: the most significant byte of a word first.
#[derive(Debug)]
pub struct Words(*mut u8);

impl Words {
    /// The store at an address.
    ///
    /// # Safety
    /// 256 KiB from there, aligned to 16 bytes, stay mapped for reading and writing as long as this
    /// value is used. Others may write them at any time, but not by references.
    #[must_use]
    pub unsafe fn new(at: *mut u8) -> Self {
        Self(at)
    }

    fn word(&self, address: u32) -> *mut u32 {
        // Inside the store, so by the promise of `new` inside one allocation.
        self.0.wrapping_add(address.to_usize()).cast()
    }
}

impl sidecore_spu::Store for Words {
    fn load(&self, address: u32) -> Quadword {
        Quadword([0, 4, 8, 12].map(|at| self.fetch(address + at)))
    }

    fn save(&mut self, address: u32, value: Quadword) {
        for (at, word) in (address..).step_by(4).zip(value.0) {
            // SAFETY: as of `fetch`.
            unsafe { self.word(at).write_volatile(word.swap_bytes()) };
        }
    }

    fn fetch(&self, address: u32) -> u32 {
        // SAFETY: aligned and inside the store by the trait's promise; others may write it at any
        // time, so volatile.
        unsafe { self.word(address).read_volatile() }.swap_bytes()
    }
}

/// The blocks of a program.
#[derive(Debug)]
pub struct Translated {
    memory: Memory,
    used: usize,
    leave: usize,
    /// Bytes in front of the first block.
    gate: usize,
    entries: Box<[usize]>,
    changes: Box<[u8]>,
}

/// True where SIDECORE_SPE_SPU and the processor let programs be translated.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let asked = std::env::var("SIDECORE_SPE_SPU").ok();
        match asked.as_deref() {
            Some("interpreter") => return false,
            None | Some("" | "translated") => {}
            Some(other) => eprintln!(
                "libspe2: SIDECORE_SPE_SPU={other:?} is unknown; \
                 it is `translated` or `interpreter`"
            ),
        }
        is_possible()
    })
}

fn is_possible() -> bool {
    std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("lzcnt")
}

impl Translated {
    /// Room for blocks.
    ///
    /// # Errors
    /// The processor has neither AVX2 nor FMA, or the system refuses executable memory.
    pub fn new() -> io::Result<Self> {
        if !is_possible() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut memory = Memory::new(CODE_BYTES)?;
        let (gate, leave) = translate::gate();
        let leave = memory.place(0, &gate) + leave;
        Ok(Self {
            memory,
            used: gate.len().next_multiple_of(16),
            leave,
            gate: gate.len().next_multiple_of(16),
            entries: vec![0; STORE_BYTES / 4].into_boxed_slice(),
            changes: vec![0; STORE_BYTES / 4].into_boxed_slice(),
        })
    }

    /// Bytes of code at present.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.used
    }

    /// Runs a machine as [`Machine::run`] does.
    pub fn run(&mut self, machine: &mut Machine, store: &mut Words, budget: u64) -> Exit {
        let end = machine.executed().saturating_add(budget);
        loop {
            let left = end - machine.executed();
            if left == 0 {
                return Exit::Budget;
            }
            let place = (machine.pc() >> 2).to_usize();
            let changed = self.changes.get(place).copied().unwrap_or(0);
            let steps = if machine.interrupted() {
                1
            } else if changed >= CHANGES_MAX {
                INTERPRETED
            } else {
                if self.entries.get(place) == Some(&0) {
                    self.translate(store, machine.pc());
                }
                match self.enter(machine, store, left) {
                    Left::Missing => continue,
                    Left::Stale => {
                        self.forget((machine.pc() >> 2).to_usize());
                        continue;
                    }
                    Left::Interpret => 1,
                    Left::Budget => end - machine.executed(),
                }
            };
            let steps = steps.min(end - machine.executed());
            if steps == 0 {
                return Exit::Budget;
            }
            match machine.run(store, steps) {
                Exit::Budget => {}
                exit => return exit,
            }
        }
    }

    /// Enters the block at the program counter, which was translated.
    fn enter(&mut self, machine: &mut Machine, store: &mut Words, left: u64) -> Left {
        type Gate = unsafe extern "C" fn(*mut Frame, usize) -> i32;
        let place = (machine.pc() >> 2).to_usize();
        let block = self.entries[place];
        let budget = i64::try_from(left).unwrap_or(i64::MAX);
        let frame = machine.frame();
        frame.store = store.0.expose_provenance();
        frame.tables = std::ptr::from_ref(translate::tables()).expose_provenance();
        frame.entries = self.entries.as_ptr().expose_provenance();
        frame.leave = self.leave;
        frame.helper = (interpret as *const ()).expose_provenance();
        frame.budget = budget;
        frame.follow_status();
        let frame = std::ptr::from_mut(frame);
        // SAFETY: the gate's bytes are a function of this type, and mapped for execution.
        let gate = unsafe { std::mem::transmute::<*const u8, Gate>(self.memory.code) };
        // SAFETY: all pointers of the frame were just set; the block was made by `translate`.
        let left_by = unsafe { gate(frame, block) };
        // SAFETY: the code has ended, and the machine is borrowed by this function alone.
        let ran = budget - unsafe { (*frame).budget };
        machine.ran(ran.unsigned_abs());
        Left::of(left_by)
    }

    fn forget(&mut self, place: usize) {
        self.entries[place] = 0;
        self.changes[place] = self.changes[place].saturating_add(1);
    }

    fn translate(&mut self, store: &Words, address: u32) {
        if self.used + BLOCK_BYTES_MAX > CODE_BYTES {
            self.entries.fill(0);
            self.used = self.gate;
            serialize();
        }
        let code = translate::block(store, address);
        assert!(
            code.len() <= BLOCK_BYTES_MAX,
            "a block of {} bytes",
            code.len()
        );
        self.entries[(address >> 2).to_usize()] = self.memory.place(self.used, &code);
        self.used += code.len().next_multiple_of(16);
    }
}

/// Makes the processor fetch code again whose place had other code before.
fn serialize() {
    std::arch::x86_64::__cpuid(0);
}

/// Runs an instruction that has no code of its own.
extern "C" fn interpret(frame: *mut Frame, word: u32) {
    // SAFETY: called by translated code only, with the frame that it was entered with.
    unsafe { (*frame).interpret(word) };
}

/// Memory that is written at one address and executed at another.
#[derive(Debug)]
struct Memory {
    code: *const u8,
    written: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory of this value; nothing of it belongs to a thread.
unsafe impl Send for Memory {}

impl Memory {
    fn new(bytes: usize) -> io::Result<Self> {
        let (place, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever there is room.
        let written = unsafe { libc::mmap(place, bytes, access, kind, -1, 0) };
        if written == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // No descriptor, as in `store`: a host may count on the next one's number.
        // SAFETY: the mapping stays where it is; the second one lies wherever there is room.
        let code = unsafe { libc::mremap(written, 0, bytes, libc::MREMAP_MAYMOVE) };
        if code == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // SAFETY: mapped above, and in no use.
            unsafe { libc::munmap(written, bytes) };
            return Err(error);
        }
        // From here on dropping it unmaps both.
        let memory = Self {
            code: code.cast(),
            written: written.cast(),
            bytes,
        };
        // SAFETY: the range that was just mapped, of which nothing is used yet.
        if unsafe { libc::mprotect(code, bytes, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(memory)
    }

    /// Copies code to an offset, where there is room for it; returns its address.
    fn place(&mut self, at: usize, code: &[u8]) -> usize {
        assert!(at + code.len() <= self.bytes, "code at {at}");
        // SAFETY: inside the mapping, of which nothing runs now.
        unsafe {
            let to = self.written.add(at);
            std::ptr::copy_nonoverlapping(code.as_ptr(), to, code.len());
        }
        self.code.expose_provenance() + at
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this length, and in no other use.
        unsafe {
            libc::munmap(self.written.cast(), self.bytes);
            libc::munmap(self.code.cast_mut().cast(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests;
