//! Operations on partials and scale buffers, checked and put down as steps.

use crate::abi::{Operation, Refusal};
use crate::data::{below, below_or_none};
use crate::instance::{Instance, Mode};
use crate::steps::{Order, Scaling, Step, Update};
use std::ffi::c_int;

impl Instance {
    /// Puts operations down: each with its partition and cumulative scale buffer. All are checked
    /// first.
    pub(crate) fn update_partials(
        &mut self,
        order: Order,
        operations: impl Iterator<Item = (Operation, Option<c_int>, c_int)>,
    ) -> Result<(), Refusal> {
        self.make_room()?;
        let before = self.pending.len();
        for (operation, partition, cumulative) in operations {
            let partition = partition.map(|partition| below(partition, self.partitions));
            let update = partition
                .transpose()
                .and_then(|partition| self.update_of(order, operation, partition, cumulative));
            match update {
                Ok(update) => self.pending.push(Step::Update(update)),
                Err(refusal) => {
                    // An error changes nothing.
                    self.pending.truncate(before);
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    fn update_of(
        &self,
        order: Order,
        operation: Operation,
        partition: Option<usize>,
        cumulative: c_int,
    ) -> Result<Update, Refusal> {
        let destination = below(operation.destination, self.buffers)?;
        if destination < self.tips {
            return Err(Refusal::OutOfRange);
        }
        let sources = [
            below(operation.child1, self.buffers)?,
            below(operation.child2, self.buffers)?,
        ];
        let matrices = [
            below(operation.matrix1, self.matrices.len())?,
            below(operation.matrix2, self.matrices.len())?,
        ];
        // Pre-order partials are no states.
        let is_coded = order == Order::Pre && self.coded[sources[0]];
        if is_coded
            || sources.iter().any(|&source| self.lacks_data(source))
            || matrices
                .iter()
                .any(|&matrix| !self.matrices[matrix].is_set())
        {
            return Err(Refusal::OutOfRange);
        }
        Ok(Update {
            order,
            destination,
            sources,
            matrices,
            scaling: match order {
                Order::Post => self.scaling_of(operation, destination, sources, cumulative)?,
                Order::Pre => self.pre_order_scaling_of(operation, destination)?,
            },
            partition,
        })
    }

    /// Scaling of pre-order partials: what is taken from a pattern is taken from all of its ratios,
    /// so no cumulative buffer gets it, and factors of another result are not applied.
    fn pre_order_scaling_of(
        &self,
        operation: Operation,
        destination: usize,
    ) -> Result<Scaling, Refusal> {
        let node = destination - self.tips;
        let write = below_or_none(operation.scale_write.max(-1), self.scales)?;
        // Not applied, but an index out of range is refused all the same.
        below_or_none(operation.scale_read.max(-1), self.scales)?;
        let at = match self.mode {
            Mode::Auto => {
                return Ok(Scaling::Auto {
                    node,
                    // Pre-order partials are no members of mixtures.
                    below: [None; 2],
                });
            }
            // In this mode scale buffers are numbered by inner node.
            Mode::Always => Some(node),
            Mode::Dynamic => Some(write.ok_or(Refusal::OutOfRange)?),
            Mode::Manual => write,
        };
        Ok(at.map_or(Scaling::Keep, |at| Scaling::Write {
            at,
            cumulative: None,
            replaced: None,
            below: [None; 2],
        }))
    }

    fn scaling_of(
        &self,
        operation: Operation,
        destination: usize,
        children: [usize; 2],
        cumulative: c_int,
    ) -> Result<Scaling, Refusal> {
        let node = destination - self.tips;
        // Tips have no factors: their numbers give none.
        let below = children.map(|child| child.checked_sub(self.tips));
        if self.mode == Mode::Auto {
            return Ok(Scaling::Auto { node, below });
        }
        let cumulative = below_or_none(cumulative, self.scales)?;
        // Any negative number is none here.
        let write = below_or_none(operation.scale_write.max(-1), self.scales)?;
        let read = below_or_none(operation.scale_read.max(-1), self.scales)?;
        let scaling = |at, replaced, below| Scaling::Write {
            at,
            cumulative,
            replaced,
            below,
        };
        match self.mode {
            Mode::Always => Ok(scaling(node, None, below)),
            Mode::Dynamic if children.iter().any(|&child| self.coded[child]) => Ok(Scaling::Keep),
            Mode::Dynamic => {
                let at = write.ok_or(Refusal::OutOfRange)?;
                Ok(scaling(at, read, [None; 2]))
            }
            // An operation that names both writes, as in BEAGLE.
            _ => Ok(match (write, read) {
                (Some(at), _) => scaling(at, None, [None; 2]),
                (None, Some(at)) => Scaling::Read { at },
                (None, None) => Scaling::Keep,
            }),
        }
    }

    /// True for a tip that was given neither states nor partials.
    pub(crate) fn lacks_data(&self, buffer: usize) -> bool {
        // Data are set in all chunks at once, so the first answers for all.
        let node = self.chunks.first().map(|chunk| &chunk.nodes[buffer]);
        buffer < self.tips
            && node.is_some_and(|node| node.codes.is_empty() && node.values.len() == 0)
    }

    /// Adds logarithms of scale buffers to `into`, or takes them from it.
    pub(crate) fn accumulate(
        &mut self,
        indices: &[c_int],
        into: c_int,
        sign: f64,
        partition: Option<c_int>,
    ) -> Result<(), Refusal> {
        let partition = self.partition_of(partition)?;
        if self.mode == Mode::Auto {
            if partition.is_some() || sign < 0.0 {
                return Err(Refusal::NoImplementation);
            }
            // In this mode clients name buffers of partials: each has what was taken there.
            let nodes = indices.iter().map(|&index| {
                let buffer = below(index, self.buffers)?;
                buffer.checked_sub(self.tips).ok_or(Refusal::OutOfRange)
            });
            let nodes = nodes.collect::<Result<Vec<usize>, Refusal>>()?;
            return self.put(Step::Collect { nodes });
        }
        let into = below(into, self.scales)?;
        let from = indices.iter().map(|&index| below(index, self.scales));
        let from = from.collect::<Result<Vec<usize>, Refusal>>()?;
        self.put(Step::Accumulate {
            from,
            into,
            sign,
            partition,
        })
    }

    /// Makes a scale buffer 0.
    pub(crate) fn reset(&mut self, at: c_int, partition: Option<c_int>) -> Result<(), Refusal> {
        let partition = self.partition_of(partition)?;
        if self.mode == Mode::Auto && partition.is_some() {
            return Err(Refusal::NoImplementation);
        }
        // Automatic scaling has one buffer for sums, whatever the client calls it.
        let at = if self.mode == Mode::Auto {
            0
        } else {
            below(at, self.scales)?
        };
        self.put(Step::Reset { at, partition })
    }

    /// Copies a scale buffer.
    pub(crate) fn copy_scale(&mut self, into: c_int, from: c_int) -> Result<(), Refusal> {
        let into = below(into, self.scales)?;
        let from = below(from, self.scales)?;
        self.put(Step::Copy { from, into })
    }

    fn partition_of(&self, partition: Option<c_int>) -> Result<Option<usize>, Refusal> {
        partition
            .map(|partition| below(partition, self.partitions))
            .transpose()
    }
}
