//! Layout of a pointer chase: the nodes' addresses, and the random order in which they are visited.
//!
//! Why here: a load whose address is the value of the load before cannot be started early, so its
//! time is the memory's. A node is a number of four bytes: the index of the next node. All else
//! that a processor could profit from is removed. The order is a random single cycle. Nodes lie in
//! different lines of their pages, so that they do not crowd one set of the data cache. Where few
//! frames show in many pages, nodes share lines, so that few lines serve many pages. Must stay
//! true: every node has a place of its own in the frame that its page shows. Pure.
//! Source: docs/tlb.md, "Method".

use sidecore_bare::width::{ToU64, ToUsize};

/// Placement of nodes on the cache lines of their pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A line for each node, all lines of a page in turn: everything stays in the nearest cache as
    /// long as there are fewer nodes than half its lines.
    Near,
    /// Few lines, at so few places in a page that the nearest cache never holds them and the next
    /// one always does: the data costs the same for any number of pages.
    Far,
}

/// The memory that nodes are laid in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ground {
    /// Numbers (of four bytes) in a page.
    pub page_values: usize,
    /// Numbers in a block that is fetched together: 16 for a line, 32 for a DMA of 128 bytes.
    pub block_values: usize,
    /// Number of frames that back the pages; equal to the number of pages if none is shared.
    pub frames: usize,
}

/// The places of the nodes, one for each of `pages`: pages by number, and the frame that each
/// shows.
///
/// # Panics
/// If a frame shows in more pages than it has places for.
#[must_use]
pub(crate) fn places(ground: Ground, layout: Layout, pages: &[(usize, usize)]) -> Vec<u32> {
    let Ground {
        page_values,
        block_values,
        ..
    } = ground;
    let page_blocks = page_values / block_values;
    let mut seen = std::collections::HashMap::new();
    // The frame with most nodes decides how many lines of each frame are needed.
    let busiest = {
        for &(_, frame) in pages {
            *seen.entry(frame).or_insert(0usize) += 1;
        }
        seen.values().copied().max().unwrap_or(0)
    };
    // Several pages may show one frame: its nodes share the frame's lines.
    let frames = seen.len().max(1);
    let blocks = match layout {
        Layout::Near => busiest,
        Layout::Far => busiest.div_ceil(block_values),
    };
    assert!(
        blocks <= page_blocks && busiest <= page_values,
        "{busiest} nodes in a frame of {page_blocks} blocks"
    );
    let lanes = lanes(layout, blocks, frames, page_blocks);
    seen.values_mut().for_each(|count| *count = 0);
    let mut taken = std::collections::HashSet::new();
    let mut places = Vec::with_capacity(pages.len());
    for (index, &(page, frame)) in pages.iter().enumerate() {
        let count = seen.entry(frame).or_insert(0);
        let (block, slot) = match layout {
            Layout::Near => {
                let mut block = index % page_blocks;
                // The next free line of the frame; the assertion above has left enough.
                while !taken.insert((frame, block)) {
                    block = (block + 1) % page_blocks;
                }
                (block, 0)
            }
            Layout::Far => {
                let lane = (*count % blocks + frame) % lanes;
                (lane * (page_blocks / lanes), *count / blocks)
            }
        };
        *count += 1;
        places.push((page * page_values + block * block_values + slot) as u32);
    }
    places
}

/// The number of places in a page at which blocks lie. So few that at least [`LANE_BLOCKS`] blocks
/// compete for the same set of the nearest cache, whose sets are chosen by the place in a page; but
/// no fewer than one frame needs.
fn lanes(layout: Layout, blocks: usize, frames: usize, page_blocks: usize) -> usize {
    match layout {
        Layout::Near => page_blocks,
        Layout::Far => {
            let wanted = (blocks * frames / LANE_BLOCKS).max(1);
            // A power of two, so that lanes begin at equal distances in the page.
            let wanted = 1 << wanted.ilog2();
            wanted.max(blocks.next_power_of_two()).min(page_blocks)
        }
    }
}

/// Twice as many as the nearest cache of any machine has ways.
const LANE_BLOCKS: usize = 32;

/// The numbers below `count` in random order.
#[cfg(test)]
pub(crate) fn shuffled(count: usize, random: &mut Random) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    shuffle(&mut order, random);
    order
}

/// Puts `order` in random order. Visited in it, and from the last one on to the first, it is one
/// cycle over all nodes.
pub(crate) fn shuffle(order: &mut [u32], random: &mut Random) {
    for last in (1..order.len()).rev() {
        // Fisher and Yates: each order equally likely.
        order.swap(last, random.below(last + 1));
    }
}

/// Random numbers from a seed. Source: Marsaglia, "Xorshift RNGs"; Vigna, "xorshift64*".
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Numbers of this seed.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, which is at most 2^32 and not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // xorshift64*: no quality is needed but a long period.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * bound.to_u64()) >> 32).to_usize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    fn ground(frames: usize, block_values: usize) -> Ground {
        Ground {
            page_values: 1024,
            block_values,
            frames,
        }
    }

    proptest! {
        #[test]
        fn every_node_has_a_place_of_its_own(
            count in 1usize..5000,
            frames in prop::sample::select(vec![64usize, 128, 100_000]),
            block_values in prop::sample::select(vec![16usize, 32]),
            stride in 1usize..5,
        ) {
            let pages: Vec<_> = (0..count).map(|n| (n * stride, n * stride * 7 % frames)).collect();
            let mut layouts = vec![Layout::Far];
            if count <= 256 {
                layouts.push(Layout::Near);
            }
            for layout in layouts {
                let places = places(ground(frames, block_values), layout, &pages);
                let mut own = HashSet::new();
                for (&(page, frame), &place) in pages.iter().zip(&places) {
                    prop_assert_eq!(place as usize / 1024, page);
                    prop_assert!(own.insert((frame, place % 1024)), "two in one place");
                }
            }
        }

        #[test]
        fn an_order_is_one_cycle(count in 1usize..2000, seed in 1u64..1_000_000) {
            let mut order = shuffled(count, &mut Random::new(seed));
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..count as u32));
        }
    }

    #[test]
    fn near_nodes_fill_the_sets_evenly_and_far_ones_crowd_them() {
        for (count, layout, least, most) in [
            (256, Layout::Near, 2, 6),
            (512, Layout::Far, 32, 64),
            (4096, Layout::Far, 32, 64),
            (16384, Layout::Far, 32, 64),
        ] {
            let pages: Vec<_> = (0..count).map(|n| (n, n * 37 % 128)).collect();
            let mut lines = HashMap::<_, HashSet<_>>::new();
            for (place, (_, frame)) in places(ground(128, 16), layout, &pages).iter().zip(&pages) {
                let line = place % 1024 / 16;
                lines.entry(line).or_default().insert(*frame);
            }
            for (line, frames) in lines {
                assert!(
                    (least..=most).contains(&frames.len()),
                    "{count} nodes, {layout:?}, line {line}: {}",
                    frames.len()
                );
            }
        }
    }
}
