//! Loops: many pieces of one kernel's work across several engines.
//!
//! **A policy decides the width.** It is one of `sidecore-sched`, lives in the client, and reads
//! from the daemon's activity page how many engines serve other clients, and how many clients were
//! served lately but have no engine now. It lives in the client, because a policy measures the
//! client's own work, communication included, and because asking the daemon would cost a round
//! trip. It need not be trusted: a client that takes more engines than its share still gets only
//! every other turn at each of them (`server/engine.rs`).
//!
//! **The order of results** is that of the pieces, on whichever engine each was done: a fold over
//! the replies has the same bits for any number of engines.
//!
//! Must stay true: no code of the caller runs while a request is in flight; the call ends only when
//! every request is answered or given up.

use super::buffer::Buffer;
use super::call::{Pending, place_input};
use super::error::ClientError;
use super::link::{Link, Progress, Slot, Watch};
use super::{Client, KernelId, Wait};
use crate::served::{Memory, Pairwise, Reply, Request, SUM_BLOCK_VALUES};
use crate::shm::segment::Lease;
use crate::shm::slot::{Packet, RANGES_MAX, WORDS};
use parking_lot::{Mutex, MutexGuard};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sched::{Arrival, ClassId, Decision, Departure, TaskId};
use sidecore_sys::{SharedSlice, clock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most pieces of one loop.
pub const PIECES_MAX: usize = 1 << 16;

/// The request of one piece of a loop. Buffers are named by their place in the lists that the loop
/// was given.
#[derive(Debug, Clone, Default)]
pub struct Piece {
    words: [u64; WORDS],
    inputs: [(usize, Range<usize>); RANGES_MAX],
    outputs: [(usize, Range<usize>); RANGES_MAX],
    input_count: usize,
    output_count: usize,
}

impl Piece {
    /// A piece with these words; the rest, and those beyond 6, are 0.
    #[must_use]
    pub fn new(words: &[u64]) -> Self {
        let mut piece = Self::default();
        for (place, word) in piece.words.iter_mut().zip(words) {
            *place = *word;
        }
        piece
    }

    /// The next input: bytes of the loop's input buffer number `buffer`.
    #[must_use]
    pub fn input(mut self, buffer: usize, range: Range<usize>) -> Self {
        // Counted though there is no place for it: `check` reports how many were given.
        if let Some(place) = self.inputs.get_mut(self.input_count) {
            *place = (buffer, range);
        }
        self.input_count += 1;
        self
    }

    /// The next output: bytes of the loop's output buffer number `buffer`. Outputs of two pieces
    /// that overlap hold either's bytes.
    #[must_use]
    pub fn output(mut self, buffer: usize, range: Range<usize>) -> Self {
        if let Some(place) = self.outputs.get_mut(self.output_count) {
            *place = (buffer, range);
        }
        self.output_count += 1;
        self
    }

    fn check(&self, inputs: &[&Buffer], outputs: &[&mut Buffer]) -> Result<(), ClientError> {
        let limit = |what, value, limit| Err(ClientError::Limit { what, value, limit });
        let count = self.input_count + self.output_count;
        if count > RANGES_MAX {
            return limit("inputs and outputs of a request", count, RANGES_MAX);
        }
        let lens = |index: &usize| inputs.get(*index).map(|buffer| buffer.len());
        let out_lens = |index: &usize| outputs.get(*index).map(|buffer| buffer.len());
        let inputs = self.inputs[..self.input_count].iter();
        let outputs = self.outputs[..self.output_count].iter();
        let all = inputs
            .map(|(index, range)| (index, range, lens(index)))
            .chain(outputs.map(|(index, range)| (index, range, out_lens(index))));
        for (index, range, len) in all {
            let Some(len) = len else {
                return limit("the number of a buffer in a piece", *index, RANGES_MAX);
            };
            if range.start > range.end || range.end > len {
                return limit("the end of a range in a buffer", range.end, len);
            }
        }
        for (place, (index, range)) in self.outputs[..self.output_count].iter().enumerate() {
            let overlaps = |(other, others): &(usize, Range<usize>)| {
                other == index && range.start < others.end && others.start < range.end
            };
            if self.outputs[..place].iter().any(overlaps) {
                return limit("overlapping outputs of one piece", place + 1, 0);
            }
        }
        Ok(())
    }
}

/// The outcome of one loop.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spread {
    /// The replies, in the order of the pieces.
    pub replies: Vec<Reply>,
    /// Engines that took part; 0 where all was done on this thread.
    pub width: usize,
    /// Pieces that this thread did itself.
    pub on_host: usize,
}

impl Client {
    /// Does `count` pieces of work by one kernel, as wide as the policy says, and waits for all.
    /// `piece` describes each; it is called for all of them first.
    ///
    /// # Errors
    /// As [`Client::call`]; of several failures that of the first piece. Outputs are then in part
    /// written.
    pub fn for_each(
        &self,
        kernel: KernelId,
        inputs: &[&Buffer],
        outputs: &mut [&mut Buffer],
        count: usize,
        piece: impl FnMut(usize) -> Piece,
    ) -> Result<Spread, ClientError> {
        if count > PIECES_MAX {
            return Err(ClientError::Limit {
                what: "pieces of a loop",
                value: count,
                limit: PIECES_MAX,
            });
        }
        // All are checked before the first runs: a wrong one leaves no half-written output.
        let pieces: Vec<Piece> = (0..count).map(piece).collect();
        for piece in &pieces {
            piece.check(inputs, outputs)?;
        }
        let mut results: Vec<Option<Result<Reply, ClientError>>> = Vec::new();
        results.resize_with(count, || None);
        let wait = Wait::of(self, kernel, None);
        let width = match self.link() {
            Some(link) if count > 0 => {
                let loop_ = Loop {
                    kernel,
                    pieces: &pieces,
                    wait,
                };
                let width = self.on_engines(&link, &loop_, inputs, outputs, &mut results);
                if link.is_dead() {
                    // Later writes of the daemon then go to memory that no code reads any more.
                    outputs
                        .iter_mut()
                        .for_each(|buffer| drop(buffer.move_home()));
                }
                width
            }
            _ => 0,
        };
        let on_host = self.on_host(kernel, inputs, outputs, &pieces, &mut results)?;
        let replies: Result<Vec<Reply>, ClientError> = results.into_iter().flatten().collect();
        Ok(Spread {
            replies: replies?,
            width,
            on_host,
        })
    }

    /// Adds up all doubles of a buffer. The sum has the same bits for any number of engines, and
    /// without any.
    ///
    /// # Errors
    /// As [`Client::for_each`].
    pub fn sum_f64(&self, values: &Buffer) -> Result<f64, ClientError> {
        let kernel = self.kernel("sum_f64")?;
        let bytes = values.len() / size_of::<f64>() * size_of::<f64>();
        // Whole subtrees of the sum's tree, and no more pieces than a loop may have.
        let mut piece_bytes = SUM_PIECE_BLOCKS * SUM_BLOCK_VALUES * size_of::<f64>();
        while bytes.div_ceil(piece_bytes) > PIECES_MAX {
            piece_bytes *= 2;
        }
        let count = bytes.div_ceil(piece_bytes);
        let spread = self.for_each(kernel, &[values], &mut [], count, |index| {
            let start = index * piece_bytes;
            Piece::default().input(0, start..bytes.min(start + piece_bytes))
        })?;
        let mut sum = Pairwise::default();
        // In the order of the pieces, so the sum's tree is the one of a single engine.
        for reply in &spread.replies {
            sum.push(f64::from_bits(reply.words[0]));
        }
        Ok(sum.finish())
    }

    /// Asks the policy, does the pieces on engines, and tells the policy. Pieces without a result
    /// are left to the host. Returns how many engines took part.
    fn on_engines(
        &self,
        link: &Arc<Link>,
        loop_: &Loop<'_>,
        inputs: &[&Buffer],
        outputs: &mut [&mut Buffer],
        results: &mut [Option<Result<Reply, ClientError>>],
    ) -> usize {
        let &Loop {
            kernel,
            pieces,
            wait,
        } = loop_;
        // A kernel that this daemon does not have: this thread has it.
        let Some(number) = link.number(kernel.index) else {
            return 0;
        };
        let Some((packets, _staged)) = packets(link, number, inputs, outputs, pieces) else {
            return 0;
        };
        let others = link.others();
        let units = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        let class = ClassId(u16::try_from(kernel.index).unwrap_or(u16::MAX));
        let arrival = Arrival {
            task: TaskId(link.client.into()),
            class,
            units,
            engines_idle: (link.engines as u32).saturating_sub(others.engines),
            engines: link.engines as u32,
            ready: others.ready,
            live: 1 + others.clients,
            waiting: 0,
        };
        let decision = self.policy.lock().arrive(self.now_ns(), &arrival);
        let width = match decision {
            Decision::Engines(width) => width.get().to_usize(),
            // Only an engine can do it, so at least one does.
            _ if kernel.is_remote => 1,
            _ => return 0,
        };
        // Perhaps fewer than the policy says: other threads use the rest.
        let mut lanes = self.lanes(link, width, wait);
        let taken = lanes.len();
        let begun_ns = self.now_ns();
        if taken > 0 {
            drive(link, &mut lanes, &packets, results, self.spin_cycles, wait);
            leave_behind(&mut lanes, outputs);
        }
        // Other threads wait for the slots, and the policy is another lock.
        drop(lanes);
        let ended_ns = self.now_ns();
        let departure = Departure {
            task: arrival.task,
            class,
            units,
            width: taken.max(1) as u32,
            on_host: false,
            elapsed_ns: ended_ns - begun_ns,
            work_ns: 0,
        };
        // A loop that an end cut short says nothing about its kernel's time.
        if !link.is_dead() && taken > 0 {
            self.policy.lock().depart(ended_ns, &departure);
        }
        taken
    }

    /// Takes up to `width` engines of `link` that no other thread of this process uses, first those
    /// without a client; waits for one if there is none.
    fn lanes<'a>(&'a self, link: &'a Arc<Link>, width: usize, wait: Wait) -> Vec<Lane<'a>> {
        let mut lanes = Vec::with_capacity(width);
        let free = (0..link.engines).filter(|&engine| link.activity.serving(engine).is_none());
        let busy = (0..link.engines).filter(|&engine| link.activity.serving(engine).is_some());
        for engine in free.chain(busy) {
            if lanes.len() == width {
                break;
            }
            // Never waited for here: with two slots held, two threads could wait for each other.
            if let Some(mut slot) = self.slots.get(engine).and_then(Mutex::try_lock)
                && !slot.is_held_up()
            {
                lanes.extend(Lane::new(link, engine, slot));
            }
        }
        if lanes.is_empty()
            && let Some((engine, slot)) = self.claim(wait)
        {
            lanes.extend(Lane::new(link, engine, slot));
        }
        lanes
    }

    /// Runs the pieces that have no result on this thread; returns their number.
    fn on_host(
        &self,
        kernel: KernelId,
        inputs: &[&Buffer],
        outputs: &mut [&mut Buffer],
        pieces: &[Piece],
        results: &mut [Option<Result<Reply, ClientError>>],
    ) -> Result<usize, ClientError> {
        let Some(entry) = self.options.registry.entry(kernel.index) else {
            return Err(ClientError::UnknownKernel {
                name: format!("number {}", kernel.index),
            });
        };
        let inputs: Vec<SharedSlice<'_>> = inputs
            .iter()
            .map(|buffer| SharedSlice::from_ref(buffer.bytes()))
            .collect();
        let outputs: Vec<SharedSlice<'_>> = outputs
            .iter_mut()
            .map(|buffer| SharedSlice::from_mut(buffer.bytes_mut()))
            .collect();
        let gone = AtomicBool::new(false);
        let mut done = 0;
        // After a failure the rest is not needed.
        let failed = |result: &Option<Result<_, _>>| matches!(result, Some(Err(_)));
        if results.iter().any(failed) {
            return Ok(0);
        }
        for (piece, result) in pieces.iter().zip(results) {
            if result.is_some() {
                continue;
            }
            // Only the daemon has the kernel, so nothing else can do the piece.
            if kernel.is_remote && self.is_attached() {
                return Err(self.late(kernel, None));
            }
            let mut memory = Memory::new(&gone);
            for (index, range) in &piece.inputs[..piece.input_count] {
                // Checked with the piece.
                memory.add_input(
                    inputs[*index]
                        .range(range.clone())
                        .unwrap_or(inputs[*index]),
                );
            }
            for (index, range) in &piece.outputs[..piece.output_count] {
                memory.add_output(
                    outputs[*index]
                        .range(range.clone())
                        .unwrap_or(outputs[*index]),
                );
            }
            let request = Request { words: piece.words };
            *result = Some((entry.host)(&request, &memory).map_err(ClientError::from));
            done += 1;
            if failed(result) {
                break;
            }
        }
        self.counters
            .on_host
            .fetch_add(done.to_u64(), Ordering::Relaxed);
        Ok(done)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The work of a loop, and for how long it waits.
struct Loop<'l> {
    kernel: KernelId,
    pieces: &'l [Piece],
    wait: Wait,
}

/// An engine that takes part, with its present piece.
struct Lane<'a> {
    engine: usize,
    slot: MutexGuard<'a, Slot>,
    pending: Option<(usize, Pending<'a>)>,
    /// While this thread naps for the answer.
    progress: Option<Progress>,
    /// True if the engine does not move on. It gets no other piece, and its last one is left to it
    /// unless the answer comes before all others are done.
    held_up: bool,
}

impl<'a> Lane<'a> {
    /// `None` if the slot is not of this attachment.
    fn new(link: &'a Arc<Link>, engine: usize, mut slot: MutexGuard<'a, Slot>) -> Option<Self> {
        let same = slot.link(engine, || Some(Arc::clone(link)));
        same.is_some_and(|slots| Arc::ptr_eq(slots, link))
            .then_some(Self {
                engine,
                slot,
                pending: None,
                progress: None,
                held_up: false,
            })
    }
}

/// Keeps every lane busy until all packets are answered, one failed, no engine moves on, or the
/// link is dead. The host then does the pieces without a result.
fn drive<'a>(
    link: &'a Link,
    lanes: &mut [Lane<'a>],
    packets: &[Packet],
    results: &mut [Option<Result<Reply, ClientError>>],
    spin_cycles: u64,
    wait: Wait,
) {
    let mut next = 0;
    let mut watch = Watch::new(link);
    let mut progress_at = clock::cycles();
    loop {
        let mut busy = false;
        let mut progress = false;
        for lane in &mut *lanes {
            if let Some((index, pending)) = &lane.pending {
                if !pending.is_answered() {
                    busy |= !lane.held_up;
                    continue;
                }
                progress = true;
                (lane.progress, lane.held_up) = (None, false);
                // An answer that makes no sense: the host does it.
                if let Some(result) = pending.answer() {
                    lane.slot.calls += 1;
                    // No new pieces behind a failure; those under way are waited for.
                    if result.is_err() {
                        next = packets.len();
                    }
                    results[*index] = Some(result);
                }
                lane.pending = None;
            }
            if next < packets.len() && !link.is_dead() {
                let sequence = lane.slot.next_sequence();
                let pending = Pending::submit(link, lane.engine, sequence, &packets[next]);
                lane.pending = pending.map(|pending| (next, pending));
                next += 1;
                busy = true;
            }
        }
        // Not busy, though pieces are left: all engines are held up, or the link is dead.
        if !busy {
            return;
        }
        if progress {
            // Each answer shows that the daemon lives.
            progress_at = clock::cycles();
            watch = Watch::new(link);
        } else if clock::cycles().wrapping_sub(progress_at) < spin_cycles {
            std::hint::spin_loop();
        } else {
            let mut waiting = lanes.iter().filter(|lane| !lane.held_up);
            let mut pending = waiting.by_ref().filter_map(|lane| lane.pending.as_ref());
            let first = pending.next().map(|(_, pending)| pending.nap(&mut watch));
            // The daemon is gone: do not wait for the others either.
            if first == Some(None) {
                keep_answered(lanes, results);
                return;
            }
            for lane in lanes.iter_mut().filter(|lane| lane.pending.is_some()) {
                let engine = lane.engine;
                let watched = lane
                    .progress
                    .get_or_insert_with(|| Progress::new(link, engine));
                lane.held_up = match wait {
                    Wait::UntilHeldUp => watched.is_held_up(link, engine),
                    Wait::Until(_) => wait.is_over(),
                };
            }
        }
    }
}

/// Leaves pieces to engines that do not move on; the outputs go where these do not write.
fn leave_behind(lanes: &mut [Lane<'_>], outputs: &mut [&mut Buffer]) {
    if lanes.iter().all(|lane| lane.pending.is_none()) {
        return;
    }
    // The stretches that an engine may still write to stay taken until it has answered.
    let leases = outputs.iter_mut().filter_map(|buffer| buffer.move_home());
    let leases = Arc::new(leases.collect());
    for lane in lanes.iter_mut().filter(|lane| lane.pending.is_some()) {
        lane.pending = None;
        lane.slot.leave_behind(lane.engine, Arc::clone(&leases));
    }
}

/// After the end of a link: keeps the answers that came before it.
fn keep_answered(lanes: &mut [Lane<'_>], results: &mut [Option<Result<Reply, ClientError>>]) {
    for (index, pending) in lanes.iter_mut().filter_map(|lane| lane.pending.take()) {
        if pending.is_answered() {
            results[index] = pending.answer();
        }
    }
}

/// Inputs that had to be copied to the arena, for the time of a loop.
type Staged = Vec<Option<Lease>>;

/// The packets of all pieces, and the leases of inputs that had to be copied to the arena. `None`
/// where there is no room.
fn packets(
    link: &Link,
    kernel: u32,
    inputs: &[&Buffer],
    outputs: &mut [&mut Buffer],
    pieces: &[Piece],
) -> Option<(Vec<Packet>, Staged)> {
    let mut staged = Vec::with_capacity(inputs.len());
    let mut input_offsets = Vec::with_capacity(inputs.len());
    for buffer in inputs {
        let (lease, (offset, _)) = place_input(link, buffer, &(0..buffer.len()))?;
        staged.push(lease);
        input_offsets.push(offset);
    }
    let mut output_offsets = Vec::with_capacity(outputs.len());
    for buffer in outputs {
        if !buffer.move_to(&link.segment) {
            return None;
        }
        output_offsets.push(buffer.offset_in(&link.segment)?.to_u64());
    }
    let packets = pieces.iter().map(|piece| {
        let mut packet = Packet {
            kernel,
            words: piece.words,
            inputs: piece.input_count as u8,
            outputs: piece.output_count as u8,
            ..Packet::default()
        };
        let ins = piece.inputs[..piece.input_count]
            .iter()
            .map(|(index, range)| (input_offsets[*index], range));
        let outs = piece.outputs[..piece.output_count]
            .iter()
            .map(|(index, range)| (output_offsets[*index], range));
        for (place, (offset, range)) in packet.ranges.iter_mut().zip(ins.chain(outs)) {
            *place = (offset + range.start.to_u64(), range.len().to_u64());
        }
        packet
    });
    Some((packets.collect(), staged))
}

/// Blocks of a piece of a sum: 512 KiB, a power of two.
const SUM_PIECE_BLOCKS: usize = 32;
